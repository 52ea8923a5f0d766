package chaos

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// process is a gateway as its users run it.
type process struct {
	cmd            *exec.Cmd
	clients, admin string // its addresses, host:port
	log            *strings.Builder
	ended          chan error
}

// buildGateway makes the gateway's binary.
func buildGateway(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "gateway")
	if out, err := exec.Command("go", "build", "-o", binary, "github.com/warmpath/warmpath/cmd/gateway").CombinedOutput(); err != nil {
		t.Fatalf("build the gateway: %v\n%s", err, out)
	}
	return binary
}

var serving = regexp.MustCompile(`msg=serving clients=http://(\S+) admin=http://(\S+)`)

// run starts a gateway and waits until it serves.
func run(t *testing.T, binary string, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(binary, args...), log: &strings.Builder{}, ended: make(chan error, 1)}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.cmd.Process.Kill() })
	addresses := make(chan []string, 1)
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if m := serving.FindStringSubmatch(lines.Text()); m != nil {
				addresses <- m
			}
			if p.log.Len() < 1<<20 {
				p.log.WriteString(lines.Text() + "\n")
			}
		}
		p.ended <- p.cmd.Wait()
	}()
	select {
	case m := <-addresses:
		p.clients, p.admin = m[1], m[2]
	case err := <-p.ended:
		t.Fatalf("the gateway does not serve: %v\n%s", err, p.log)
	case <-time.After(20 * time.Second):
		t.Fatal("the gateway does not serve")
	}
	return p
}

// ready asks /readyz.
func (p *process) ready() bool {
	resp, err := http.Get("http://" + p.admin + "/readyz")
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// resident returns the memory that the process has, in bytes.
func (p *process) resident(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindSubmatch(text)
	if m == nil {
		t.Fatal("no VmRSS")
	}
	n, _ := strconv.Atoi(string(m[1]))
	return n << 10
}

// held returns the bytes of heap and stacks that are in use after some collections: the
// first leaves what is pooled, and stacks shrink by half with each.
func (p *process) held(t *testing.T) (sum int) {
	t.Helper()
	page := ""
	const collect = "/debug/pprof/heap?gc=1"
	for _, path := range []string{collect, collect, collect, collect, "/metrics"} {
		resp, err := http.Get("http://" + p.admin + path)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		page = string(text)
	}
	for _, name := range []string{"go_memstats_heap_inuse_bytes", "go_memstats_stack_inuse_bytes"} {
		m := regexp.MustCompile(`(?m)^` + name + ` (\S+)$`).FindStringSubmatch(page)
		if m == nil {
			t.Fatalf("no %s", name)
		}
		v, _ := strconv.ParseFloat(m[1], 64)
		sum += int(v)
	}
	return sum
}

func eventually(t *testing.T, within time.Duration, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(within); !f(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", within, what)
		}
	}
}

// balancer spreads connections over the gateways that say they are ready, as one in
// front of a cluster does: it knows nothing of HTTP.
type balancer struct {
	listener net.Listener
	mu       sync.Mutex
	behind   []*process
	turn     int
}

func newBalancer(t *testing.T) *balancer {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &balancer{listener: l}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go b.carry(c.(*net.TCPConn))
		}
	}()
	return b
}

// set says which gateways there are.
func (b *balancer) set(behind ...*process) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.behind = behind
}

// watch asks each gateway whether it is ready, until stop is closed. What is not leaves
// the rotation.
func (b *balancer) watch(all func() []*process, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(50 * time.Millisecond):
		}
		var up []*process
		for _, p := range all() {
			if p.ready() {
				up = append(up, p)
			}
		}
		b.set(up...)
	}
}

func (b *balancer) next() *process {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.behind) == 0 {
		return nil
	}
	b.turn++
	return b.behind[b.turn%len(b.behind)]
}

func (b *balancer) carry(c *net.TCPConn) {
	defer func() { _ = c.Close() }()
	p := b.next()
	if p == nil {
		return
	}
	to, err := net.Dial("tcp", p.clients)
	if err != nil {
		return
	}
	defer func() { _ = to.Close() }()
	done := make(chan struct{})
	go func() {
		_, _ = io.Copy(to, c)
		_ = to.(*net.TCPConn).CloseWrite()
		close(done)
	}()
	_, _ = io.Copy(c, to)
	_ = c.CloseWrite()
	<-done
}
