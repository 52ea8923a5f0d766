// Package chaos puts a gateway between replicas that break in every way and clients
// that behave in every way, and holds that nobody who could be served is not, that no
// answer is silently short, and that nothing is left over in the end.
//
//	make chaos                                     two minutes
//	go test ./test/chaos                           ten seconds
//	go test ./test/chaos -chaos 30s -seed 7 -v     as long as one likes; a seed repeats what breaks when
package chaos

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/gateway"
)

var (
	length = flag.Duration("chaos", 10*time.Second, "how long it lasts")
	seed   = flag.Uint64("seed", 0, "what breaks when; 0 for anything")
)

const (
	fleet   = 4
	clients = 24
)

// node is one replica, a process of its own that can be killed and frozen.
type node struct {
	t       *testing.T
	binary  string
	address string
	cmd     *exec.Cmd
	frozen  bool
}

func startNode(t *testing.T, binary string) *node {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, binary: binary, address: l.Addr().String()}
	_ = l.Close()
	n.start()
	t.Cleanup(n.kill)
	return n
}

func (n *node) url() string { return "http://" + n.address }

func (n *node) start() {
	n.cmd = exec.Command(n.binary, "-listen", n.address, "-decode-time", "2ms", "-prefill-rate", "200000")
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := n.cmd.Start(); err != nil {
		n.t.Errorf("start a replica: %v", err)
	}
}

func (n *node) kill() {
	if n.cmd != nil {
		_ = n.cmd.Process.Kill()
		_ = n.cmd.Wait()
		n.cmd, n.frozen = nil, false
	}
}

func (n *node) signal(s syscall.Signal) {
	if n.cmd != nil {
		_ = n.cmd.Process.Signal(s)
		n.frozen = s == syscall.SIGSTOP
	}
}

// fault has the replica misbehave; "{}" heals it.
func (n *node) fault(faults string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, n.url()+"/mock/faults", strings.NewReader(faults))
	if err != nil {
		n.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return // it does not answer: that is a fault too
	}
	if resp.StatusCode != http.StatusOK {
		n.t.Errorf("the replica does not know the fault %s", faults)
	}
	_ = resp.Body.Close()
}

// heal makes it well again, whatever was done to it.
func (n *node) heal() {
	if n.cmd == nil {
		n.start()
		return // healthy from the start
	}
	if n.frozen {
		n.signal(syscall.SIGCONT)
	}
	n.fault("{}")
}

// ailments is what a replica can have.
var ailments = []func(*node){
	(*node).kill,
	func(n *node) { n.signal(syscall.SIGSTOP) },
	func(n *node) { n.kill(); n.start() },
	func(n *node) { n.signal(syscall.SIGTERM); n.kill() },
	func(n *node) { n.fault(`{"cut":true}`) },
	func(n *node) { n.fault(`{"cut":true,"after":3}`) },
	func(n *node) { n.fault(`{"cut":true,"after":1,"probability":0.3}`) },
	func(n *node) { n.fault(`{"status":500}`) },
	func(n *node) { n.fault(`{"status":500,"probability":0.3}`) },
	func(n *node) { n.fault(`{"status":503,"retry_after":"1s"}`) },
	func(n *node) { n.fault(`{"status":429,"probability":0.5}`) },
	func(n *node) { n.fault(`{"garbage":true}`) },
	func(n *node) { n.fault(`{"garbage":true,"after":2}`) },
	func(n *node) { n.fault(`{"hang":true}`) },
	func(n *node) { n.fault(`{"hang":true,"after":2}`) },
	func(n *node) { n.fault(`{"error":true}`) },
	func(n *node) { n.fault(`{"error":true,"after":4}`) },
	func(n *node) { n.fault(`{"abort":true}`) },
	func(n *node) { n.fault(`{"abort":true,"after":2}`) },
	func(n *node) { n.fault(`{"header_delay":"300ms"}`) },
	func(n *node) { n.fault(`{"event_delay":"60ms"}`) },
	func(n *node) { n.fault(`{"loading":true}`) },
}

// build makes the mock replica's binary.
func build(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "mockvllm")
	if out, err := exec.Command("go", "build", "-o", binary, "github.com/warmpath/warmpath/cmd/mockvllm").CombinedOutput(); err != nil {
		t.Fatalf("build mockvllm: %v\n%s", err, out)
	}
	return binary
}

// stage is the gateway and what stands on both sides of it.
type stage struct {
	*testing.T
	gateway *gateway.Gateway
	nodes   []*node
	want    map[string]string // the answer to each prompt
	log     bytes.Buffer
	mu      sync.Mutex
	counts  map[string]int
	wrong   []string
}

func (s *stage) count(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[what]++
}

// fail notes what must not happen.
func (s *stage) fail(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wrong = append(s.wrong, time.Now().Format("05.000 ")+fmt.Sprintf(format, args...))
}

// lockedWriter lets the log be written by many.
type lockedWriter struct{ s *stage }

func (w lockedWriter) Write(p []byte) (int, error) {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	return w.s.log.Write(p)
}

func newStage(t *testing.T) *stage {
	s := &stage{T: t, want: map[string]string{}, counts: map[string]int{}}
	binary := build(t)
	cfg := config.Default()
	for range fleet {
		n := startNode(t, binary)
		s.nodes = append(s.nodes, n)
		cfg.Replica.URLs = append(cfg.Replica.URLs, n.url())
	}
	cfg.Listen, cfg.Admin = "127.0.0.1:0", "127.0.0.1:0"
	cfg.Replica.ProbeInterval, cfg.Replica.ProbeTimeout = 300*time.Millisecond, 500*time.Millisecond
	cfg.Proxy.Attempts, cfg.Proxy.RetryBudget = fleet, 0
	cfg.Proxy.MaxBodyBytes = 1 << 20
	cfg.Proxy.HeaderTimeout, cfg.Proxy.EventTimeout = 3*time.Second, 2*time.Second
	cfg.Proxy.UploadTimeout, cfg.Proxy.WriteTimeout = time.Second, time.Second
	var err error
	if s.gateway, err = gateway.New(cfg, slog.New(slog.NewTextHandler(lockedWriter{s}, &slog.HandlerOptions{Level: slog.LevelDebug}))); err != nil {
		t.Fatal(err)
	}
	s.gateway.Start()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = s.gateway.Stop(ctx) // what is left then has been reported
	})
	s.eventually("every replica is up", func() bool { return s.metric("warmpath_replica_up") == fleet })
	for i := range 16 {
		prompt := fmt.Sprintf("question %d %s", i, strings.Repeat("and so on ", i*10))
		status, body, err := s.ask(t.Context(), &http.Client{}, prompt, true)
		if err != nil || status != http.StatusOK {
			t.Fatalf("before anything breaks: status %d, %v", status, err)
		}
		text, _, _ := content(body)
		s.want[prompt] = text
	}
	return s
}

func (s *stage) eventually(what string, f func() bool) {
	s.Helper()
	for end := time.Now().Add(20 * time.Second); !f(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			s.Fatalf("not within 20 s: %s\n%s", what, s.page("/replicas"))
		}
	}
}

func (s *stage) page(path string) string {
	resp, err := http.Get(s.gateway.AdminAddr() + path)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	text, _ := io.ReadAll(resp.Body)
	return string(text)
}

// metric returns the sum of a metric's series, of those that contain a text.
func (s *stage) metric(name string, with ...string) (sum float64) {
	for line := range strings.Lines(s.page("/metrics")) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || rest[0] != ' ' && rest[0] != '{' || len(with) > 0 && !strings.Contains(rest, with[0]) {
			continue
		}
		if v, err := strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndex(rest, " "):]), 64); err == nil {
			sum += v
		}
	}
	return sum
}

// breakThings gives the replicas ailments, and spares one of them at a time, which the
// gateway knows to be well.
func (s *stage) breakThings(ctx context.Context, random *rand.Rand) {
	spared, heir := 0, 1
	ill := map[int]time.Time{} // and until when
	next := time.Now().Add(2 * time.Second)
	for ctx.Err() == nil {
		time.Sleep(50 * time.Millisecond)
		for i, until := range ill {
			if time.Now().After(until) || i == heir {
				s.nodes[i].heal()
				delete(ill, i)
			}
		}
		if i := random.IntN(fleet); i != spared && i != heir && ill[i].IsZero() && random.IntN(3) == 0 {
			ailments[random.IntN(len(ailments))](s.nodes[i])
			ill[i] = time.Now().Add(time.Duration(200+random.IntN(2500)) * time.Millisecond)
		}
		if time.Now().After(next) && s.metric("warmpath_replica_up", s.nodes[heir].address) == 1 {
			spared, heir = heir, (heir+1+random.IntN(fleet-1))%fleet
			next = time.Now().Add(2 * time.Second)
		}
	}
	for i := range s.nodes {
		s.nodes[i].heal()
	}
}

// TestNothingThatCouldBeAvoidedReachesAClient is the whole of it.
func TestNothingThatCouldBeAvoidedReachesAClient(t *testing.T) {
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	t.Logf("-seed %d", *seed)
	s := newStage(t)
	http.DefaultClient.CloseIdleConnections()
	s.eventually("the gateway is at rest", func() bool { return s.metric("warmpath_replica_connections") == 0 })
	goroutines := runtime.NumGoroutine()

	ctx, cancel := context.WithTimeout(t.Context(), *length)
	defer cancel()
	var running sync.WaitGroup
	running.Go(func() { s.breakThings(ctx, rand.New(rand.NewPCG(*seed, 0))) })
	for i := range clients {
		running.Go(func() { s.client(ctx, rand.New(rand.NewPCG(*seed, uint64(i+1)))) })
	}
	var early, late uint64
	running.Go(func() {
		wait(ctx, *length/4)
		early = inUse()
		wait(ctx, *length*6/10)
		late = inUse()
	})
	running.Wait()

	t.Logf("%v", s.counts)
	if len(s.wrong) > 0 {
		file := filepath.Join(os.TempDir(), "chaos-gateway.log")
		t.Logf("the gateway's log is in %s: %v", file, os.WriteFile(file, s.log.Bytes(), 0o600))
	}
	for i, w := range s.wrong {
		if i == 20 {
			t.Errorf("and %d more", len(s.wrong)-i)
			break
		}
		t.Error(w)
	}
	if s.counts["whole"] < 50 || s.counts["told"] == 0 && *length > 30*time.Second {
		t.Errorf("too little came of it: %v", s.counts)
	}
	s.eventually("every replica is back", func() bool { return s.metric("warmpath_replica_up") == fleet })
	for _, gauge := range []string{"warmpath_inflight", "warmpath_replica_inflight", "warmpath_replica_pending_tokens", "warmpath_buffered_bytes", "warmpath_client_connections", "warmpath_replica_connections"} {
		s.eventually(gauge+" is 0", func() bool { return s.metric(gauge) == 0 })
	}
	http.DefaultClient.CloseIdleConnections()
	s.eventually("goroutines are back to the start", func() bool {
		http.DefaultClient.CloseIdleConnections()
		return runtime.NumGoroutine() <= goroutines+4
	})
	t.Logf("memory in use: %d KiB after a quarter, %d KiB near the end", early>>10, late>>10)
	if late > early+early/2+8<<20 {
		t.Errorf("memory grew from %d to %d bytes", early, late)
	}
	if strings.Contains(s.log.String(), "BUG") {
		t.Errorf("the gateway's log has a bug:\n%s", s.log.String())
	}
}

func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

func inUse() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(m.Run())
}
