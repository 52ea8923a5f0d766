// Package redistest runs real Redis servers for tests, and breaks them: they are
// killed, frozen and cut off, as they are in the world.
package redistest

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience is how long a server may take to do what it is told.
const patience = 15 * time.Second

// Server is a redis-server process of the test's own, on a port of 127.0.0.1.
type Server struct {
	t    testing.TB
	Addr string
	Port int
	dir  string
	args []string
	cmd  *exec.Cmd
}

// Start runs a server with these arguments beside the usual. Without the binary the
// test is skipped, unless WARMPATH_NEED_REDIS is set, as in CI.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("WARMPATH_NEED_REDIS") != "" {
			t.Fatal("redis-server is not installed: apt-get install redis-server")
		}
		t.Skip("redis-server is not installed (apt-get install redis-server): what needs it is not tested")
	}
	s := &Server{t: t, dir: t.TempDir(), args: args}
	s.Port = freePort(t)
	s.Addr = "127.0.0.1:" + strconv.Itoa(s.Port)
	t.Cleanup(s.Kill)
	s.Restart()
	return s
}

// StartTLS is Start of a server that takes TLS too, at the address that it returns, by
// the files of its certificate, key and authority. Clients need no certificate.
func StartTLS(t testing.TB, cert, key, authority string) (s *Server, addr string) {
	t.Helper()
	port := strconv.Itoa(freePort(t))
	s = Start(t, "--tls-port", port, "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", authority, "--tls-auth-clients", "no")
	return s, "127.0.0.1:" + port
}

func freePort(t testing.TB) int {
	t.Helper()
	for {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		port := l.Addr().(*net.TCPAddr).Port
		_ = l.Close()
		if port < 55_000 { // a Cluster's nodes take the port 10,000 above theirs too
			return port
		}
	}
}

// Restart runs the server again, after [Server.Kill], without its data.
func (s *Server) Restart() {
	s.t.Helper()
	args := append([]string{
		"--port", strconv.Itoa(s.Port), "--bind", "127.0.0.1", "--dir", s.dir, "--save", "", "--appendonly", "no",
		"--enable-debug-command", "yes", "--loglevel", "warning", "--daemonize", "no",
	}, s.args...)
	s.run("redis-server", args...)
	Eventually(s.t, "redis-server answers", func() bool { return s.try("PING") != "" })
}

func (s *Server) run(name string, args ...string) {
	s.t.Helper()
	s.cmd = exec.Command(name, args...)
	s.cmd.Dir = s.dir
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
}

// Kill ends the server at once.
func (s *Server) Kill() {
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
		s.cmd = nil
	}
}

// Freeze stops the process, its connections left open; Thaw lets it go on.
func (s *Server) Freeze() { _ = s.cmd.Process.Signal(syscall.SIGSTOP) }

// Thaw ends a Freeze.
func (s *Server) Thaw() { _ = s.cmd.Process.Signal(syscall.SIGCONT) }

// Do runs a command on the server and returns its answer.
func (s *Server) Do(args ...string) string {
	s.t.Helper()
	out, err := exec.Command("redis-cli", append([]string{"-p", strconv.Itoa(s.Port)}, args...)...).CombinedOutput()
	if err != nil {
		s.t.Fatalf("redis-cli %v: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// Sleep has the server do nothing for some seconds.
func (s *Server) Sleep(seconds int) { s.try("DEBUG", "SLEEP", strconv.Itoa(seconds)) }

// Try is Do for what may fail: its answer is then empty.
func (s *Server) Try(args ...string) string { return s.try(args...) }

// try is Do for what may fail yet.
func (s *Server) try(args ...string) string {
	out, err := exec.Command("redis-cli", append([]string{"-p", strconv.Itoa(s.Port)}, args...)...).Output()
	if err != nil || bytes.HasPrefix(out, []byte("LOADING")) {
		return ""
	}
	return strings.TrimSpace(string(out))
}

// Cluster runs three masters that share the slots, and returns the addresses of two.
func Cluster(t testing.TB) (nodes []*Server, url string) {
	t.Helper()
	var addrs []string
	for range 3 {
		s := Start(t, "--cluster-enabled", "yes", "--cluster-node-timeout", "2000")
		nodes, addrs = append(nodes, s), append(addrs, s.Addr)
	}
	args := append([]string{"--cluster", "create"}, addrs...)
	if out, err := exec.Command("redis-cli", append(args, "--cluster-replicas", "0", "--cluster-yes")...).CombinedOutput(); err != nil {
		t.Fatalf("make a cluster: %v: %s", err, out)
	}
	for _, s := range nodes {
		Eventually(t, "the cluster is whole", func() bool { return strings.Contains(s.try("CLUSTER", "INFO"), "cluster_state:ok") })
	}
	return nodes, "redis://" + strings.Join(addrs[:2], ",")
}

// Sentinels runs a master, a replica and three Sentinels that watch them.
func Sentinels(t testing.TB) (master, replica *Server, url string) {
	t.Helper()
	master = Start(t)
	replica = Start(t, "--replicaof", fmt.Sprintf("127.0.0.1 %d", master.Port))
	Eventually(t, "the replica follows", func() bool { return strings.Contains(replica.try("INFO", "replication"), "master_link_status:up") })
	var addrs []string
	var all []*Server
	for range 3 {
		s := &Server{t: t, dir: t.TempDir(), Port: freePort(t)}
		s.Addr = "127.0.0.1:" + strconv.Itoa(s.Port)
		path := filepath.Join(s.dir, "sentinel.conf")
		text := fmt.Sprintf("port %d\nbind 127.0.0.1\nsentinel monitor mymaster 127.0.0.1 %d 2\nsentinel down-after-milliseconds mymaster 1000\nsentinel failover-timeout mymaster 5000\n", s.Port, master.Port)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Kill)
		s.run("redis-server", path, "--sentinel")
		all, addrs = append(all, s), append(addrs, s.Addr)
	}
	for _, s := range all {
		Eventually(t, "the Sentinels know each other and the replica", func() bool {
			info := s.try("SENTINEL", "MASTER", "mymaster")
			return strings.Contains(info, "num-other-sentinels\n2") && strings.Contains(info, "num-slaves\n1")
		})
	}
	return master, replica, "redis://" + strings.Join(addrs, ",") + "?master_name=mymaster"
}

// Eventually waits for what must come true.
func Eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !f(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// Link is a TCP proxy before a server that can stop forwarding, as a firewall does
// that drops: nothing is closed and nothing comes.
type Link struct {
	Addr string
	to   string
	l    net.Listener

	mu      sync.Mutex
	changed *sync.Cond
	cut     bool
	closed  bool
	conns   map[net.Conn]bool
}

// Connect starts a link to an address.
func Connect(t testing.TB, to string) *Link {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	k := &Link{Addr: l.Addr().String(), to: to, l: l, conns: map[net.Conn]bool{}}
	k.changed = sync.NewCond(&k.mu)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { k.serve(c) })
		}
	})
	t.Cleanup(func() {
		k.mu.Lock()
		k.closed = true
		for c := range k.conns {
			_ = c.Close()
		}
		k.changed.Broadcast()
		k.mu.Unlock()
		_ = l.Close()
		wg.Wait()
	})
	return k
}

// Cut stops forwarding, or lets it go on.
func (k *Link) Cut(on bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cut = on
	k.changed.Broadcast()
}

func (k *Link) track(c net.Conn) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		_ = c.Close()
		return false
	}
	k.conns[c] = true
	return true
}

func (k *Link) forget(c net.Conn) {
	_ = c.Close()
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.conns, c)
}

func (k *Link) serve(in net.Conn) {
	if !k.track(in) {
		return
	}
	defer k.forget(in)
	out, err := net.Dial("tcp", k.to)
	if err != nil || !k.track(out) {
		return
	}
	defer k.forget(out)
	var wg sync.WaitGroup
	pipe := func(to, from net.Conn) {
		_, _ = io.Copy(writer{k, to}, from)
		_ = to.Close()
	}
	wg.Go(func() { pipe(out, in) })
	pipe(in, out)
	wg.Wait()
}

// writer holds what is written while the link is cut.
type writer struct {
	k  *Link
	to net.Conn
}

// Write waits for the link.
func (w writer) Write(p []byte) (int, error) {
	w.k.mu.Lock()
	for w.k.cut && !w.k.closed {
		w.k.changed.Wait()
	}
	w.k.mu.Unlock()
	return w.to.Write(p)
}
