package gateway_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/gateway"
	"github.com/warmpath/warmpath/internal/mockvllm"
	"github.com/warmpath/warmpath/internal/replica"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must happen.
const patience = 10 * time.Second

// gate is a gateway under test and a client of it.
type gate struct {
	*gateway.Gateway
	t      testing.TB
	client *http.Client
	log    *logBuffer
}

// start runs a gateway over urls and waits until all of them are up.
func start(t testing.TB, change func(*config.Config), urls ...string) *gate {
	t.Helper()
	g := startUnready(t, change, urls...)
	eventually(t, "every replica is up", func() bool { return g.metric("warmpath_replica_up") == float64(len(urls)) })
	return g
}

// startUnready runs a gateway over urls and does not wait.
func startUnready(t testing.TB, change func(*config.Config), urls ...string) *gate {
	t.Helper()
	cfg := config.Default()
	cfg.Listen, cfg.Admin, cfg.Replica.URLs = "127.0.0.1:0", "127.0.0.1:0", urls
	cfg.Replica.ProbeInterval = 200 * time.Millisecond
	cfg.Proxy.DecisionHeaders = true
	if change != nil {
		change(cfg)
	}
	g, _ := prepare(t, cfg)
	g.Start()
	t.Cleanup(func() {
		g.client.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := g.Stop(ctx); err != nil {
			t.Errorf("stop: %v", err)
		}
		if strings.Contains(g.log.String(), "BUG:") {
			t.Errorf("the gateway's log has a bug:\n%s", g.log)
		}
	})
	return g
}

// prepare makes a gateway that does not run yet.
func prepare(t testing.TB, cfg *config.Config) (g *gate, run func(context.Context) error) {
	t.Helper()
	log := &logBuffer{}
	app, err := gateway.New(cfg, slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	if err != nil {
		t.Fatal(err)
	}
	return &gate{Gateway: app, t: t, log: log, client: newClient(t)}, app.Run
}

func newClient(t testing.TB) *http.Client {
	tr := &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// eventually waits for a condition that must come true.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	within(t, patience, what, f)
}

func within(t testing.TB, limit time.Duration, what string, f func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	for !f() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

// receive takes what must come from a channel.
func receive[T any](t testing.TB, what string, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(patience):
		t.Fatalf("not within %v: %s", patience, what)
	}
	return v
}

// do sends a request to the gateway; a nil body makes it a GET.
func (g *gate) do(path string, body []byte, header ...string) (*http.Response, error) {
	return g.doContext(g.t.Context(), path, body, header...)
}

func (g *gate) doContext(ctx context.Context, path string, body []byte, header ...string) (*http.Response, error) {
	method, reader := http.MethodGet, io.Reader(nil)
	if body != nil {
		method, reader = http.MethodPost, bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, g.Addr()+path, reader)
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return g.client.Do(req)
}

// answer is a whole answer.
type answer struct {
	status int
	header http.Header
	body   string
	err    error // why the body ended early
}

func whole(resp *http.Response) answer {
	body, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	return answer{resp.StatusCode, resp.Header, string(body), err}
}

// replica returns who gave the answer.
func (a answer) replica() string { return a.header.Get("X-Warmpath-Replica") }

// predicted returns the tokens that were predicted to be cached, and all.
func (a answer) predicted() (cached, prompt int) {
	_, _ = fmt.Sscanf(a.header.Get("X-Warmpath-Predicted"), "%d/%d", &cached, &prompt)
	return cached, prompt
}

// ask sends a request and reads the whole answer.
func (g *gate) ask(path, body string, header ...string) answer {
	g.t.Helper()
	resp, err := g.do(path, []byte(body), header...)
	if err != nil {
		g.t.Fatal(err)
	}
	return whole(resp)
}

// must is ask for what has to be answered with 200.
func (g *gate) must(path, body string, header ...string) answer {
	g.t.Helper()
	a := g.ask(path, body, header...)
	if a.status != http.StatusOK || a.err != nil {
		g.t.Fatalf("%s: status %d, %v: %s", path, a.status, a.err, a.body)
	}
	return a
}

func (g *gate) get(path string, header ...string) answer {
	g.t.Helper()
	resp, err := g.do(path, nil, header...)
	if err != nil {
		g.t.Fatal(err)
	}
	return whole(resp)
}

// admin reads a page of the admin address.
func (g *gate) admin(path string) answer {
	g.t.Helper()
	resp, err := g.client.Get(g.AdminAddr() + path)
	if err != nil {
		g.t.Fatal(err)
	}
	return whole(resp)
}

// metric returns the sum of a metric's series that have the labels, given as
// name, value, name, value.
func (g *gate) metric(name string, labels ...string) (sum float64) {
	g.t.Helper()
	for _, line := range g.series(name) {
		id, value, _ := cutLast(line, " ")
		match := true
		for i := 0; i+1 < len(labels); i += 2 {
			match = match && strings.Contains(id, labels[i]+"="+strconv.Quote(labels[i+1]))
		}
		if v, err := strconv.ParseFloat(value, 64); err == nil && match {
			sum += v
		}
	}
	return sum
}

// series returns the lines of a metric.
func (g *gate) series(name string) (lines []string) {
	g.t.Helper()
	for line := range strings.Lines(g.admin("/metrics").body) {
		if strings.HasPrefix(line, name+"{") || strings.HasPrefix(line, name+" ") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// idle waits until nothing is counted as under way, which must be so whenever
// every client has its answer or has gone.
func (g *gate) idle() {
	g.t.Helper()
	eventually(g.t, "nothing is in flight", func() bool {
		inflight := g.series("warmpath_replica_inflight")
		for _, line := range append(inflight, g.series("warmpath_replica_pending_tokens")...) {
			if _, v, _ := cutLast(line, " "); strings.HasPrefix(v, "-") {
				g.t.Fatalf("below zero: %s", line)
			}
		}
		return g.metric("warmpath_replica_inflight") == 0 && g.metric("warmpath_replica_pending_tokens") == 0
	})
}

// logged waits for a log line that has all the words, and returns it.
func (g *gate) logged(words ...string) (found string) {
	g.t.Helper()
	eventually(g.t, fmt.Sprintf("a log line with %q; the log is\n%s", words, g.log), func() bool {
		for line := range strings.Lines(g.log.String()) {
			all := true
			for _, w := range words {
				all = all && strings.Contains(line, w)
			}
			if all {
				found = line
				return true
			}
		}
		return false
	})
	return found
}

// logBuffer is a log that can be read while it is written.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// received is a request as it reached a worker.
type received struct {
	method, uri string
	header      http.Header
	length      int64
	chunked     bool
	body        string
}

// worker is a replica under the test's control byte by byte: it answers probes as
// vLLM does, and leaves requests to its handler, which runs after the body was read.
type worker struct {
	url     string
	id      string
	server  *httptest.Server
	sick    atomic.Bool                      // GET /health answers 503
	cold    atomic.Bool                      // the gateway's own requests are answered with 500
	warmUps atomic.Int32                     // that came
	early   atomic.Pointer[http.HandlerFunc] // if set, gets requests instead of the handler, their bodies unread
	mu      sync.Mutex
	got     []received
}

func newWorker(t testing.TB, handler http.HandlerFunc, models ...string) *worker {
	t.Helper()
	w := &worker{}
	w.server = httptest.NewServer(w.handler(handler, models...))
	t.Cleanup(w.server.Close)
	w.url, w.id = w.server.URL, strings.TrimPrefix(w.server.URL, "http://")
	return w
}

func (w *worker) handler(handler http.HandlerFunc, models ...string) http.Handler {
	if len(models) == 0 {
		models = []string{"m1"}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(rw http.ResponseWriter, _ *http.Request) {
		if w.sick.Load() {
			rw.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("GET /metrics", http.NotFound)
	mux.HandleFunc("GET /v1/models", func(rw http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(rw, cards(models...)) })
	mux.HandleFunc("/", func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Request-Id") == replica.WarmUpID {
			w.warmUps.Add(1)
			if w.cold.Load() {
				rw.WriteHeader(http.StatusInternalServerError)
			}
			return
		}
		if early := w.early.Load(); early != nil {
			(*early)(rw, r)
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		w.mu.Lock()
		w.got = append(w.got, received{r.Method, r.RequestURI, r.Header.Clone(), r.ContentLength, len(r.TransferEncoding) > 0, string(body)})
		w.mu.Unlock()
		handler(rw, r)
	})
	return mux
}

// answer has requests go to h, their bodies unread; nil gives them back to the handler.
func (w *worker) answer(h http.HandlerFunc) {
	if h == nil {
		w.early.Store(nil)
		return
	}
	w.early.Store(&h)
}

// cards is an answer to GET /v1/models.
func cards(models ...string) string {
	var list []string
	for _, m := range models {
		list = append(list, fmt.Sprintf(`{"id":%q,"object":"model","owned_by":"vllm","parent":null}`, m))
	}
	return `{"object":"list","data":[` + strings.Join(list, ",") + `]}`
}

func (w *worker) requests() []received {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]received(nil), w.got...)
}

// stream is an answer that a worker writes piece by piece.
type stream struct {
	t testing.TB
	w http.ResponseWriter
	r *http.Request
}

func newStream(t testing.TB, w http.ResponseWriter, r *http.Request) *stream {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	return &stream{t, w, r}
}

// send writes pieces and flushes after each.
func (s *stream) send(pieces ...string) {
	for _, p := range pieces {
		_, _ = io.WriteString(s.w, p)
		_ = http.NewResponseController(s.w).Flush()
	}
}

// wait waits for c; false means that the client has gone.
func (s *stream) wait(c <-chan struct{}) bool { return waitFor(s.r, c) }

func waitFor(r *http.Request, c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	case <-r.Context().Done():
		return false
	}
}

// reset ends the connection with a reset, as the death of a process does.
func reset(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	_ = conn.(*net.TCPConn).SetLinger(0)
	_ = conn.Close()
}

// The events of bugs.md.
const (
	roleEvent = `data: {"id":"c1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}` + "\n\n"
	finEvent  = `data: {"id":"c1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	doneEvent = "data: [DONE]\n\n"
	chatPath  = "/v1/chat/completions"
	streamReq = `{"model":"m1","stream":true,"messages":[{"role":"user","content":"hi"}]}`
	wholeReq  = `{"model":"m1","messages":[{"role":"user","content":"hi"}]}`
)

func tok(text string) string {
	return `data: {"id":"c1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":` + strconv.Quote(text) + `},"finish_reason":null}]}` + "\n\n"
}

func use(n int) string {
	return fmt.Sprintf(`data: {"id":"c1","object":"chat.completion.chunk","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":%d,"total_tokens":%d}}`, n, 5+n) + "\n\n"
}

// open sends a streamed request and returns its answer with the body unread.
func (g *gate) open(body string, header ...string) *http.Response {
	g.t.Helper()
	resp, err := g.do(chatPath, []byte(body), header...)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

// expect reads exactly what must come next of a body.
func expect(t testing.TB, body io.Reader, want string) {
	t.Helper()
	got := make(chan string, 1)
	go func() {
		buf := make([]byte, len(want))
		n, _ := io.ReadFull(body, buf)
		got <- string(buf[:n])
	}()
	if s := receive(t, "bytes of the answer", got); s != want {
		t.Fatalf("got %q, want %q", s, want)
	}
}

// mock is a mockvllm replica behind a real socket.
type mock struct {
	*mockvllm.Server
	url, id string
	http    *httptest.Server
}

// newMock starts a replica fast enough for tests.
func newMock(t testing.TB, change func(*mockvllm.Config)) *mock {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return newMockOn(t, l, change)
}

func newMockOn(t testing.TB, l net.Listener, change func(*mockvllm.Config)) *mock {
	t.Helper()
	cfg := mockvllm.DefaultConfig()
	cfg.StepBase, cfg.PrefillPerToken, cfg.DecodePerSeq = 100*time.Microsecond, time.Microsecond, 0
	if change != nil {
		change(&cfg)
	}
	m := &mock{Server: mockvllm.New(cfg)}
	m.http = &httptest.Server{Listener: l, Config: &http.Server{Handler: m.Handler(), ReadHeaderTimeout: time.Minute}}
	m.http.Start()
	m.url, m.id = m.http.URL, l.Addr().String()
	t.Cleanup(m.close)
	return m
}

func (m *mock) close() {
	m.Close()
	m.http.CloseClientConnections()
	m.http.Close()
}

// mocks starts n replicas.
func mocks(t testing.TB, n int, change func(*mockvllm.Config)) (list []*mock, urls []string) {
	t.Helper()
	for range n {
		m := newMock(t, change)
		list, urls = append(list, m), append(urls, m.url)
	}
	return list, urls
}

// object is JSON of any shape.
type object map[string]any

func parse(t testing.TB, text string) object {
	t.Helper()
	var o object
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		t.Fatalf("not JSON: %v: %s", err, text)
	}
	return o
}

// at follows a path of names into objects; a missing one gives nil.
func (o object) at(path ...string) any {
	var v any = map[string]any(o)
	for _, name := range path {
		m, _ := v.(map[string]any)
		v = m[name]
	}
	return v
}

// number is at for numbers, 0 if there is none.
func (o object) number(path ...string) int {
	f, _ := o.at(path...).(float64)
	return int(f)
}

// text is at for strings.
func (o object) text(path ...string) string {
	s, _ := o.at(path...).(string)
	return s
}

func quote(s string) string {
	b, _ := json.Marshal(s)
	return string(b)
}

// words returns about n bytes of text that differs by seed from its first word on.
func words(seed, n int) string {
	var b strings.Builder
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, "w%dx%d ", seed, i)
	}
	return b.String()
}

// replicas returns the entries of the admin address's /replicas.
func (g *gate) replicas() (list []object) {
	g.t.Helper()
	entries, _ := parse(g.t, g.admin("/replicas").body)["replicas"].([]any)
	for _, e := range entries {
		list = append(list, object(e.(map[string]any)))
	}
	return list
}
