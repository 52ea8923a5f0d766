package gateway_test

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/mockvllm"
	"github.com/warmpath/warmpath/test/redistest"
)

// roster is a file of replicas.
type roster struct {
	t    testing.TB
	path string
}

func newRoster(t testing.TB, urls ...string) roster {
	t.Helper()
	r := roster{t, filepath.Join(t.TempDir(), "replicas.txt")}
	r.name(urls...)
	return r
}

func (r roster) name(urls ...string) {
	r.t.Helper()
	if err := os.WriteFile(r.path+".new", []byte(strings.Join(urls, "\n")), 0o600); err != nil {
		r.t.Fatal(err)
	}
	if err := os.Rename(r.path+".new", r.path); err != nil {
		r.t.Fatal(err)
	}
}

func (r roster) url() string { return "file:" + r.path }

// up waits until so many replicas are.
func (g *gate) up(n int) {
	g.t.Helper()
	eventually(g.t, fmt.Sprintf("%d replicas are up", n), func() bool { return g.metric("warmpath_replica_up") == float64(n) })
}

// state returns what /replicas says of a replica, "" if nothing.
func (g *gate) state(id string) string {
	g.t.Helper()
	for _, r := range g.replicas() {
		if r.text("id") == id {
			return r.text("state")
		}
	}
	return ""
}

// crowd is clients that hold conversations of four turns, one after another.
type crowd struct {
	g    *gate
	stop chan struct{}
	wg   sync.WaitGroup
	mu   sync.Mutex
	all  []served
	bad  []string
}

// served is one answer.
type served struct {
	at             time.Time
	replica        string
	later          bool // it is not a conversation's first
	cached, prompt int
}

func newCrowd(g *gate, clients int) *crowd {
	c := &crowd{g: g, stop: make(chan struct{})}
	for i := range clients {
		c.wg.Go(func() {
			for n := i; ; n += clients {
				if !c.converse(n) {
					return
				}
			}
		})
	}
	return c
}

func (c *crowd) converse(n int) bool {
	turns := []string{words(n, 3000)}
	for turn := range 4 {
		select {
		case <-c.stop:
			return false
		default:
		}
		resp, err := c.g.do(chatPath, []byte(talk(turns...)))
		if err != nil {
			return c.failed(err.Error())
		}
		a := whole(resp)
		if a.err != nil || a.status != http.StatusOK {
			return c.failed(fmt.Sprintf("status %d, %v: %s", a.status, a.err, a.body))
		}
		var body object
		if err := json.Unmarshal([]byte(a.body), &body); err != nil {
			return c.failed(err.Error())
		}
		c.mu.Lock()
		c.all = append(c.all, served{time.Now(), a.replica(), turn > 0, chatCached(body), chatPrompt(body)})
		c.mu.Unlock()
		turns = append(turns, "yes", fmt.Sprint("and then, ", turn, "?"))
	}
	return true
}

func (c *crowd) failed(why string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bad = append(c.bad, why)
	return true
}

// since returns what was served from a time on: the share of each replica, and the hit
// rate of turns that are not a conversation's first.
func (c *crowd) since(t time.Time) (share map[string]float64, hit float64, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	share = map[string]float64{}
	cached, prompt := 0, 0
	for _, s := range slices.Backward(c.all) {
		if s.at.Before(t) {
			break
		}
		n++
		share[s.replica]++
		if s.later {
			cached, prompt = cached+s.cached, prompt+s.prompt
		}
	}
	for id := range share {
		share[id] /= float64(n)
	}
	return share, float64(cached) / float64(max(1, prompt)), n
}

func (c *crowd) end() (failed []string, requests int) {
	close(c.stop)
	c.wg.Wait()
	return c.bad, len(c.all) + len(c.bad)
}

// TestScaleOutAndIn adds two replicas to three under load, and takes away an old one
// and a new one.
func TestScaleOutAndIn(t *testing.T) {
	slow := func(c *mockvllm.Config) { c.StepBase, c.PrefillPerToken = 2*time.Millisecond, 20*time.Microsecond }
	list, urls := mocks(t, 5, slow)
	r := newRoster(t, urls[:3]...)
	g := startUnready(t, nil, r.url())
	g.up(3)
	c := newCrowd(g, 12)
	pass(t, time.Now(), 2*time.Second)
	_, before, n := c.since(time.Now().Add(-time.Second))

	began := time.Now()
	r.name(urls...)
	within(t, 30*time.Second, "each new replica takes half of a fair share, over a second", func() bool {
		share, _, n := c.since(time.Now().Add(-time.Second))
		return n >= 20 && share[list[3].id] >= 0.1 && share[list[4].id] >= 0.1
	})
	took := time.Since(began)
	settled := time.Now()
	pass(t, settled, 2*time.Second)
	_, more, _ := c.since(settled.Add(time.Second))

	left := []*mock{list[0], list[3]}
	began = time.Now()
	r.name(urls[1], urls[2], urls[4])
	eventually(t, "two leave, and have nothing under way", func() bool {
		over := 0
		for _, m := range left {
			if g.state(m.id) == "leaving" && m.Stats().InFlight == 0 {
				over++
			}
		}
		return over == 2
	})
	drained := time.Since(began)
	empty := time.Now()
	pass(t, empty, time.Second)
	if share, _, _ := c.since(empty); share[left[0].id]+share[left[1].id] > 0 {
		t.Errorf("requests went to replicas that have left: %v", share)
	}
	for _, m := range left {
		m.close()
	}
	settled = time.Now()
	pass(t, settled, 2*time.Second)
	_, after, _ := c.since(settled)
	failed, requests := c.end()
	t.Logf("%d requests, %d/s before, %d failed; new replicas had their share after %v, old ones were empty after %v; hit rate of later turns %.3f, %.3f with more, %.3f with fewer",
		requests, n, len(failed), took, drained, before, more, after)
	if len(failed) > 0 {
		t.Errorf("%d failed, the first: %s", len(failed), failed[0])
	}
	if took > 10*time.Second {
		t.Errorf("the new replicas took %v to have their share", took)
	}
	for name, hit := range map[string]float64{"before": before, "with more": more, "with fewer": after} {
		if hit < 0.8 {
			t.Errorf("the hit rate of later turns %s is %.3f", name, hit)
		}
	}
	g.idle()
	g.up(3)
}

// TestAnAnswerGoesOnWhereItsReplicaLeaves: the rest of a stream comes, and the next
// request goes elsewhere.
func TestAnAnswerGoesOnWhereItsReplicaLeaves(t *testing.T) {
	release := make(chan struct{})
	leaver := newWorker(t, func(w http.ResponseWriter, r *http.Request) {
		s := newStream(t, w, r)
		s.send(roleEvent, tok("a"))
		if s.wait(release) {
			s.send(tok("b"), finEvent, doneEvent)
		}
	})
	other := newWorker(t, func(w http.ResponseWriter, r *http.Request) {
		newStream(t, w, r).send(roleEvent, tok("other"), finEvent, doneEvent)
	})
	r := newRoster(t, leaver.url)
	g := startUnready(t, nil, r.url())
	g.up(1)
	resp := g.open(streamReq)
	expect(t, resp.Body, roleEvent+tok("a"))
	r.name(other.url)
	eventually(t, "it leaves, the other is there", func() bool {
		return g.state(leaver.id) == "leaving" && g.state(other.id) == "ready"
	})
	if a := g.must(chatPath, streamReq); a.replica() != other.id {
		t.Errorf("a request went to %s", a.replica())
	}
	if n := g.metric("warmpath_replica_inflight", "replica", leaver.id); n != 1 {
		t.Errorf("%v in flight at the one that leaves", n)
	}
	close(release)
	expect(t, resp.Body, tok("b")+finEvent+doneEvent)
	g.idle()
}

// TestNoReplicaIsDiscoveredYet starts before there is a file.
func TestNoReplicaIsDiscoveredYet(t *testing.T) {
	w := newWorker(t, func(w http.ResponseWriter, r *http.Request) {
		newStream(t, w, r).send(roleEvent, tok("a"), finEvent, doneEvent)
	})
	r := roster{t, filepath.Join(t.TempDir(), "replicas.txt")}
	g := startUnready(t, nil, r.url())
	g.logged("replicas cannot be discovered", "no such file")
	if a := g.ask(chatPath, streamReq); a.status != http.StatusServiceUnavailable || g.Ready() {
		t.Errorf("status %d, ready %v", a.status, g.Ready())
	}
	if g.metric("warmpath_discovery_up") != 0 || g.metric("warmpath_discovery_failures_total") == 0 {
		t.Errorf("%q", g.series("warmpath_discovery_up"))
	}
	r.name(w.url)
	g.up(1)
	g.must(chatPath, streamReq)
	if g.metric("warmpath_discovery_up") != 1 || g.metric("warmpath_discovery_replicas", "source", r.url()) != 1 {
		t.Errorf("%q", g.series("warmpath_discovery_replicas"))
	}
	if a := g.ask(chatPath, strings.Replace(streamReq, "m1", "m2", 1)); a.status != http.StatusNotFound {
		t.Errorf("a model that nobody has: %d", a.status)
	}
}

// TestGatewaysThatSeeOtherReplicas share what concerns the ones they both see, by
// address and not by number, and what comes later too.
func TestGatewaysThatSeeOtherReplicas(t *testing.T) {
	redis := redistest.Start(t)
	list, urls := mocks(t, 4, nil)
	rosters := []roster{newRoster(t, urls[0], urls[1], urls[2]), newRoster(t, urls[3], urls[2])}
	var gates []*gate
	for i, r := range rosters {
		g := startUnready(t, func(c *config.Config) { c.Redis.URL = "redis://" + redis.Addr }, r.url())
		g.up([]int{3, 2}[i])
		gates = append(gates, g)
	}
	for _, g := range gates {
		g.meets(1)
		eventually(t, "it is ready", g.Ready)
	}
	for i := range 8 { // nobody may take one's second replica for the other's
		body := talk(words(i, 4000))
		where := gates[i%2].must(chatPath, body).replica()
		settle(t)
		both := where == list[2].id
		a := gates[(i+1)%2].must(chatPath, body)
		if cached, _ := a.predicted(); both != (cached > 800) { // the system prompt is everywhere
			t.Errorf("prompt %d is at %s; the other gateway sends it to %s and predicts %d cached tokens", i, where, a.replica(), cached)
		}
		if cached := chatCached(parse(t, a.body)); both && a.replica() != where || !both && cached > 800 {
			t.Errorf("prompt %d is at %s, the other gateway sends it to %s, where %d tokens are cached", i, where, a.replica(), cached)
		}
	}
	for _, r := range rosters {
		r.name(urls...)
	}
	for _, g := range gates {
		g.up(4)
	}
	body := talk(words(99, 4000))
	where := gates[0].must(chatPath, body).replica()
	settle(t)
	if a := gates[1].must(chatPath, body); a.replica() != where {
		t.Errorf("what %s holds is asked of %s", where, a.replica())
	}
}

// eitherListener takes connections with TLS and without.
type eitherListener struct {
	net.Listener
	tls *tls.Config
}

func (l eitherListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return &eitherConn{Conn: c, tls: l.tls}, err
}

// eitherConn becomes what its first byte says.
type eitherConn struct {
	net.Conn
	tls   *tls.Config
	first sync.Once
}

// begunConn is a connection of which something has been read.
type begunConn struct {
	net.Conn
	r io.Reader
}

func (c begunConn) Read(p []byte) (int, error) { return c.r.Read(p) }

func (c *eitherConn) Read(p []byte) (n int, err error) {
	c.first.Do(func() {
		var head [1]byte
		if n, _ := io.ReadFull(c.Conn, head[:]); n == 0 {
			return
		}
		whole := begunConn{c.Conn, io.MultiReader(bytes.NewReader(head[:]), c.Conn)}
		if c.Conn = whole; head[0] == 22 { // a handshake
			c.Conn = tls.Server(whole, c.tls)
		}
	})
	return c.Conn.Read(p)
}

// TestAnAddressThatChangesItsScheme is there twice for a while, under one name.
func TestAnAddressThatChangesItsScheme(t *testing.T) {
	secure := httptest.NewTLSServer(nil)
	secure.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m := newMockOn(t, eitherListener{l, &tls.Config{Certificates: secure.TLS.Certificates}}, nil)
	r := newRoster(t, m.url)
	g := startUnready(t, func(c *config.Config) { c.Replica.TLSInsecure = true }, r.url())
	g.up(1)
	g.must(chatPath, talk("hello"))
	r.name("https://" + m.id)
	eventually(t, "both are known", func() bool { return len(g.replicas()) == 2 })
	g.up(1)
	if a := g.must(chatPath, talk("hello")); a.replica() != m.id {
		t.Errorf("%s answers", a.replica())
	}
	for _, name := range []string{"warmpath_replica_up", "warmpath_replica_inflight", "warmpath_index_blocks"} {
		if series := g.series(name); len(series) != 1 {
			t.Errorf("%s: %q", name, series)
		}
	}
}
