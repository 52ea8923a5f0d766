package gateway_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/config"
)

// raw opens a connection to the gateway and sends bytes.
func (g *gate) raw(text string) net.Conn {
	g.t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(g.Addr(), "http://"))
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = c.Close() })
	if _, err := io.WriteString(c, text); err != nil {
		g.t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(patience))
	return c
}

func post(length int, body string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: g\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", chatPath, length, body)
}

// TestUploadThatStopsIsEnded, and one that only is slow is not.
func TestUploadThatStopsIsEnded(t *testing.T) {
	w := newWorker(t, fine(t))
	g := start(t, func(c *config.Config) { c.Proxy.UploadTimeout = 200 * time.Millisecond }, w.url)

	c := g.raw(post(len(streamReq), streamReq[:10]))
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	refusal(t, whole(resp), http.StatusRequestTimeout, "request_timeout")
	if n := g.metric("warmpath_refused_total", "reason", "slow_upload"); n != 1 {
		t.Errorf("refused: %q", g.series("warmpath_refused_total"))
	}

	c = g.raw(post(len(streamReq), ""))
	for _, b := range []byte(streamReq) {
		pass(t, time.Now(), 8*time.Millisecond) // half a second in all
		if _, err := c.Write([]byte{b}); err != nil {
			t.Fatal(err)
		}
	}
	if resp, err = http.ReadResponse(bufio.NewReader(c), nil); err != nil {
		t.Fatal(err)
	}
	if a := whole(resp); a.status != 200 {
		t.Errorf("a slow upload got %d %s", a.status, a.body)
	}

	// The time is only that of the upload.
	slow := newWorker(t, func(w http.ResponseWriter, r *http.Request) {
		pass(t, time.Now(), 600*time.Millisecond)
		fine(t)(w, r)
	})
	g = start(t, func(c *config.Config) { c.Proxy.UploadTimeout = 200 * time.Millisecond }, slow.url)
	for range 2 { // also on a connection that is used again
		if a := g.must(chatPath, streamReq); !strings.HasSuffix(a.body, doneEvent) {
			t.Errorf("got %q", a.body)
		}
	}
	g.idle()
}

// TestBodiesThatNobodyReadsAreNotWaitedForLong: net/http reads what is left of a
// body before it answers.
func TestBodiesThatNobodyReadsAreNotWaitedForLong(t *testing.T) {
	w := newWorker(t, fine(t))
	keys := twoKeys(t, "")
	g := start(t, func(c *config.Config) {
		keys(c)
		c.Proxy.UploadTimeout, c.Proxy.MaxBodyBytes = 200*time.Millisecond, 1<<10
	}, w.url)
	for name, f := range map[string]struct {
		head   string
		status int
	}{
		"without a key":     {"POST " + chatPath + " HTTP/1.1\r\nContent-Length: 1000\r\n", 401},
		"of unknown length": {"POST " + chatPath + " HTTP/1.1\r\nTransfer-Encoding: chunked\r\n", 401},
		"no such path":      {"POST /nothing HTTP/1.1\r\nContent-Length: 1000\r\nX-Api-Key: " + keyA + "\r\n", 404},
		"another method":    {"PUT " + chatPath + " HTTP/1.1\r\nContent-Length: 1000\r\nX-Api-Key: " + keyA + "\r\n", 405},
		"too large":         {"POST " + chatPath + " HTTP/1.1\r\nContent-Length: 2000\r\nX-Api-Key: " + keyA + "\r\n", 413},
		"of a GET":          {"GET /v1/models HTTP/1.1\r\nContent-Length: 1000\r\nX-Api-Key: " + keyA + "\r\n", 200},
	} {
		t.Run(name, func(t *testing.T) {
			c := g.raw(f.head + "Host: g\r\n\r\n")
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatal(err)
			}
			if got := whole(resp); got.status != f.status {
				t.Errorf("%d %s", got.status, got.body)
			}
		})
	}
}

// TestClientThatDoesNotReadIsEnded: it holds neither memory nor its share of a
// replica for ever, and the replica is not blamed.
func TestClientThatDoesNotReadIsEnded(t *testing.T) {
	gone, sent := make(chan struct{}), make(chan int, 1)
	event := tok(strings.Repeat("x", 32<<10))
	w := newWorker(t, func(w http.ResponseWriter, r *http.Request) {
		s := newStream(t, w, r)
		n := 0
		for ; r.Context().Err() == nil && n < 200<<20; n += len(event) {
			s.send(event)
		}
		<-r.Context().Done()
		sent <- n
		close(gone)
	})
	g := start(t, func(c *config.Config) {
		c.Proxy.WriteTimeout, c.Proxy.EventTimeout = 500*time.Millisecond, 100*time.Millisecond
	}, w.url)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	_ = g.raw(post(len(streamReq), streamReq))
	receive(t, "the end at the replica", gone)
	g.idle()
	runtime.ReadMemStats(&after)
	if n := <-sent; n > 40<<20 {
		t.Errorf("the replica could send %d bytes to nobody", n)
	}
	if grown := int64(after.HeapInuse) - int64(before.HeapInuse); grown > 8<<20 {
		t.Errorf("%d bytes more in use", grown)
	}
	if n := g.metric("warmpath_broken_total", "reason", "slow_client"); n != 1 {
		t.Errorf("broken: %q", g.series("warmpath_broken_total"))
	}
	if n := g.metric("warmpath_replica_faults_total"); n != 0 {
		t.Errorf("the replica was blamed: %q", g.series("warmpath_replica_faults_total"))
	}
}

// TestSlowReaderGetsItsAnswer: what is bounded is how long it takes nothing.
func TestSlowReaderGetsItsAnswer(t *testing.T) {
	w := newWorker(t, func(w http.ResponseWriter, r *http.Request) {
		s := newStream(t, w, r)
		for range 10 {
			s.send(tok("a"))
			pass(t, time.Now(), 60*time.Millisecond)
		}
		s.send(doneEvent)
	})
	g := start(t, func(c *config.Config) { c.Proxy.WriteTimeout = 200 * time.Millisecond }, w.url)
	for range 2 { // the second on the connection of the first
		if a := g.must(chatPath, streamReq); !strings.HasSuffix(a.body, doneEvent) || a.err != nil {
			t.Errorf("got %q, %v", a.body, a.err)
		}
		pass(t, time.Now(), 300*time.Millisecond)
	}
	for range 2 {
		g.get("/v1/models")
		pass(t, time.Now(), 300*time.Millisecond)
	}
}

func TestRequestsUnderWayAreBounded(t *testing.T) {
	end := make(chan struct{})
	w := newWorker(t, func(w http.ResponseWriter, r *http.Request) {
		s := newStream(t, w, r)
		s.send(tok("a"))
		if s.wait(end) {
			s.send(doneEvent)
		}
	})
	g := start(t, func(c *config.Config) { c.Proxy.MaxInFlight = 3 }, w.url)
	var open []*http.Response
	for range 3 {
		resp := g.open(streamReq)
		expect(t, resp.Body, tok("a"))
		open = append(open, resp)
	}
	if n := g.metric("warmpath_inflight"); n != 3 {
		t.Errorf("%v under way", n)
	}
	refusal(t, g.ask(chatPath, streamReq), http.StatusTooManyRequests, "too_many_requests")
	if n := g.metric("warmpath_refused_total", "reason", "in_flight"); n != 1 {
		t.Errorf("refused: %q", g.series("warmpath_refused_total"))
	}
	close(end)
	for _, resp := range open {
		expect(t, resp.Body, doneEvent)
	}
	g.idle()
	eventually(t, "none is under way", func() bool { return g.metric("warmpath_inflight") == 0 })
	g.must(chatPath, streamReq)
}

// TestBodiesAreBoundedTogether, by what has come of them and not by what was said.
func TestBodiesAreBoundedTogether(t *testing.T) {
	w := newWorker(t, fine(t))
	const limit = 4 << 20
	g := start(t, func(c *config.Config) { c.Proxy.MaxBodyBytes, c.Proxy.MaxBufferedBytes = limit, limit }, w.url)
	var silent []net.Conn
	for range 8 { // they say that they will send 3 MB, and send nothing
		silent = append(silent, g.raw(post(3<<20, "")))
	}
	g.must(chatPath, streamReq)
	for _, c := range silent {
		_ = c.Close()
	}
	eventually(t, "nothing is held", func() bool { return g.metric("warmpath_buffered_bytes") == 0 })
	held := g.raw(post(limit, strings.Repeat(" ", limit-1))) // all but a byte
	eventually(t, "the body is there", func() bool { return g.metric("warmpath_buffered_bytes") == limit })
	for _, chunked := range []bool{false, true} {
		var body io.Reader = strings.NewReader(streamReq)
		if chunked {
			body = struct{ io.Reader }{body}
		}
		resp, err := g.client.Post(g.Addr()+chatPath, "application/json", body)
		if err != nil {
			t.Fatal(err)
		}
		refusal(t, whole(resp), http.StatusServiceUnavailable, "buffer_full")
	}
	_ = held.Close()
	eventually(t, "there is room", func() bool { return g.ask(chatPath, streamReq).status == 200 })
	g.idle()
}

// TestQueuesThatAreTooLongRefuse asks for more prefill than the one replica gets done.
func TestQueuesThatAreTooLongRefuse(t *testing.T) {
	m := newMock(t, nil)
	g := start(t, func(c *config.Config) { c.Router.MaxWait = time.Second }, m.url)
	body := func(seed, n int) string {
		return `{"model":"mock","stream":true,"max_tokens":1,"messages":[{"role":"user","content":` + quote(words(seed, n)) + `}]}`
	}
	for i := range 4 { // its pace becomes known
		g.must(chatPath, body(i, 40<<10))
	}
	m.sleepWith(t, true)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	var refused answer
	for i := range 200 {
		resp, err := g.doContext(ctx, chatPath, []byte(body(100+i, 100<<10)))
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != 200 {
			refused = whole(resp)
			break
		}
		t.Cleanup(func() { _ = resp.Body.Close() })
	}
	refusal(t, refused, http.StatusTooManyRequests, "overloaded")
	if n := g.metric("warmpath_refused_total", "reason", "overloaded"); n != 1 {
		t.Errorf("refused: %q", g.series("warmpath_refused_total"))
	}
	leave()
	m.sleepWith(t, false)
	g.idle()
	eventually(t, "it is taken again", func() bool { return g.ask(chatPath, body(1, 1000)).status == 200 })
}

// sleepWith pauses a mock's engine, so that requests queue.
func (m *mock) sleepWith(t testing.TB, asleep bool) {
	path := "/wake_up"
	if asleep {
		path = "/sleep?level=0"
	}
	resp, err := http.Post(m.url+path, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
}

// TestDraining is the life of a gateway that is told to stop: it says so, still serves,
// then refuses, lets answers end, and ends those that take too long with an error.
func TestDraining(t *testing.T) {
	end := make(chan struct{})
	w := newWorker(t, func(w http.ResponseWriter, r *http.Request) {
		s := newStream(t, w, r)
		s.send(tok("a"))
		if r.Header.Get("X-Long") != "" && !s.wait(end) || r.Header.Get("X-Longer") != "" && !s.wait(nil) {
			return
		}
		s.send(doneEvent)
	})
	cfg := config.Default()
	cfg.Listen, cfg.Admin, cfg.Replica.URLs = "127.0.0.1:0", "127.0.0.1:0", []string{w.url}
	cfg.DrainDelay, cfg.DrainTimeout = 500*time.Millisecond, 500*time.Millisecond
	g, run := prepare(t, cfg)
	ctx, stop := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- run(ctx) }()
	eventually(t, "ready", func() bool { return g.admin("/readyz").status == 200 })
	long, longer := g.open(streamReq, "X-Long", "1"), g.open(streamReq, "X-Longer", "1")
	expect(t, long.Body, tok("a"))
	expect(t, longer.Body, tok("a"))

	stop()
	began := time.Now()
	within(t, 300*time.Millisecond, "not ready", func() bool { return g.admin("/readyz").status == http.StatusServiceUnavailable })
	if resp := g.open(streamReq); !resp.Close {
		t.Error("the client may come back on the same connection")
	}
	if took := time.Since(began); took > cfg.DrainDelay {
		t.Fatalf("too slow to tell: %v", took)
	}
	eventually(t, "refused", func() bool {
		c, err := net.Dial("tcp", strings.TrimPrefix(g.Addr(), "http://"))
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	})
	if took := time.Since(began); took < cfg.DrainDelay {
		t.Errorf("refused after %v", took)
	}
	close(end)
	expect(t, long.Body, doneEvent)
	if a := whole(longer); a.err != nil || !strings.HasPrefix(a.body, `data: {"error":{"code":"stopping"`) {
		t.Errorf("the last one ended with %q, %v", a.body, a.err)
	}
	if err := receive(t, "the end of Run", stopped); err == nil {
		t.Error("nobody is told that an answer was cut off")
	}
}
