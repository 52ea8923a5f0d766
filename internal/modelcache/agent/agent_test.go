package agent

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/warmpath/warmpath/internal/modelcache"
	"github.com/warmpath/warmpath/internal/modelcache/fetch"
	"github.com/warmpath/warmpath/internal/modelcache/manifest"
	"github.com/warmpath/warmpath/internal/modelcache/source"
	"github.com/warmpath/warmpath/internal/modelcache/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// node is a cache's directory and models to put into it.
type node struct {
	dir, origin string
	models      []modelcache.Model
}

func newNode(t *testing.T, names ...string) *node {
	t.Helper()
	n := &node{dir: t.TempDir(), origin: t.TempDir()}
	for _, name := range names {
		dir := filepath.Join(n.origin, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "weights"), bytes.Repeat([]byte(name), 1000), 0o644); err != nil {
			t.Fatal(err)
		}
		from, err := source.New(dir, "", source.Config{}, os.LookupEnv)
		if err != nil {
			t.Fatal(err)
		}
		m, err := modelcache.Digest(t.Context(), from)
		if err != nil {
			t.Fatal(err)
		}
		n.models = append(n.models, modelcache.Model{Digest: m.Digest(), Name: name, Source: from})
	}
	return n
}

// start runs an agent over some of the models, until stop.
func (n *node) start(t *testing.T, cfg Config, models ...modelcache.Model) (srv *httptest.Server, cache *modelcache.Cache, stop func()) {
	t.Helper()
	s, err := store.Open(store.Config{Path: n.dir, MaxBytes: 1 << 30, High: 1, Low: 1})
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	cache = modelcache.New(s, fetch.DefaultConfig(), log)
	a := New(cache, models, cfg, log)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { a.Run(ctx); close(done) }()
	srv = httptest.NewServer(a.Handler())
	return srv, cache, func() {
		srv.Close()
		cancel()
		<-done
		_ = s.Close()
	}
}

func fast() Config {
	return Config{Pin: "serve", Check: 5 * time.Millisecond, Retry: time.Millisecond}
}

// call sends a request and decodes its answer.
func call(t *testing.T, srv *httptest.Server, method, path, body string, into any) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, srv.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := srv.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err == nil && into != nil {
		if s, ok := into.(*string); ok {
			*s = string(text)
		} else {
			err = json.Unmarshal(text, into)
		}
	}
	if err != nil {
		t.Fatalf("%s %s: %v in %q", method, path, err, text)
	}
	return resp.StatusCode
}

// await polls until a path answers with a code.
func await(t *testing.T, srv *httptest.Server, path string, code int) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		var text string
		if got := call(t, srv, http.MethodGet, path, "", &text); got == code {
			return
		} else if time.Now().After(deadline) {
			t.Fatalf("%s answers %d, not %d: %s", path, got, code, text)
		}
	}
}

func TestListedModelsBecomeReadyAndStay(t *testing.T) {
	n := newNode(t, "a", "b")
	missing := filepath.Join(n.origin, "b")
	if err := os.Rename(missing, missing+".later"); err != nil {
		t.Fatal(err)
	}
	srv, cache, stop := n.start(t, fast(), n.models...)
	defer stop()
	await(t, srv, "/models/"+string(n.models[0].Digest)+"/ready", http.StatusOK)
	var all []status
	if code := call(t, srv, http.MethodGet, "/readyz", "", &all); code != http.StatusServiceUnavailable {
		t.Errorf("readyz answers %d while a model's source is missing", code)
	}
	if err := os.Rename(missing+".later", missing); err != nil {
		t.Fatal(err)
	}
	await(t, srv, "/readyz", http.StatusOK)
	var ready []status
	call(t, srv, http.MethodGet, "/readyz", "", &ready)
	for i, s := range ready {
		if s.Path != cache.Store().ModelPath(n.models[i].Digest) || s.Error != "" {
			t.Errorf("%+v", s)
		}
		if err := cache.Store().Evict(t.Context(), s.Digest); err == nil || !strings.Contains(err.Error(), "pinned by serve") {
			t.Errorf("evict: %v", err)
		}
	}
	// What is damaged is repaired without anybody asking.
	file := ready[0].Path + "/weights"
	if err := errors.Join(os.Chmod(file, 0o644), os.Truncate(file, 5)); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		if info, err := os.Stat(file); err == nil && info.Size() == 1000 {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("the file is not repaired: %v", err)
		}
	}
}

func TestLeasesKeepAModelAcrossARestart(t *testing.T) {
	n := newNode(t, "a", "b")
	digest := n.models[0].Digest
	srv, _, stop := n.start(t, fast(), n.models...)
	var lease struct {
		ID, Path string
		Expires  time.Time
	}
	// The lease waits for the pull.
	if code := call(t, srv, http.MethodPost, "/leases", `{"digest":"`+string(digest)+`","holder":"pod-a","ttl":"1h"}`, &lease); code != http.StatusOK || lease.ID == "" {
		t.Fatalf("%d, %+v", code, lease)
	}
	if _, err := os.Stat(lease.Path + "/weights"); err != nil {
		t.Error(err)
	}
	await(t, srv, "/readyz", http.StatusOK)
	stop()

	srv, cache, stop := n.start(t, fast(), n.models[1]) // a is no longer listed
	defer stop()
	await(t, srv, "/readyz", http.StatusOK)
	e, err := cache.Store().Entries()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(e, func(e *store.Entry) bool { return e.Model == digest })
	if i < 0 || len(e[i].Pins) != 0 || len(e[i].Leases) != 1 {
		t.Fatalf("after the restart: %+v", e)
	}
	if err := cache.Store().Evict(t.Context(), digest); err == nil || !strings.Contains(err.Error(), "leased by pod-a") {
		t.Errorf("evict: %v", err)
	}
	before := lease.Expires
	if code := call(t, srv, http.MethodPut, "/leases/"+lease.ID, `{"ttl":"2h"}`, &lease); code != http.StatusOK || !lease.Expires.After(before) {
		t.Errorf("renew: %d, %+v", code, lease)
	}
	if code := call(t, srv, http.MethodDelete, "/leases/"+lease.ID, "", nil); code != http.StatusNoContent {
		t.Errorf("release: %d", code)
	}
	if code := call(t, srv, http.MethodDelete, "/leases/"+lease.ID, "", nil); code != http.StatusNotFound {
		t.Errorf("release again: %d", code)
	}
	if err := cache.Store().Evict(t.Context(), digest); err != nil {
		t.Error(err)
	}
}

func TestBadRequestsAreRefused(t *testing.T) {
	n := newNode(t, "a")
	srv, _, stop := n.start(t, fast(), n.models...)
	defer stop()
	await(t, srv, "/readyz", http.StatusOK)
	digest := string(n.models[0].Digest)
	other := "sha256:" + strings.Repeat("0", 64)
	for _, c := range []struct {
		method, path, body string
		code               int
	}{
		{http.MethodPost, "/leases", "", 400},
		{http.MethodPost, "/leases", "{", 400},
		{http.MethodPost, "/leases", `{"digest":"` + digest + `","holder":"h","ttl":"1m"} {}`, 400},
		{http.MethodPost, "/leases", `{"digest":"` + digest + `","holder":"h","ttl":60}`, 400},
		{http.MethodPost, "/leases", `{"digest":"../../x","holder":"h","ttl":"1m"}`, 400},
		{http.MethodPost, "/leases", `{"digest":"` + digest + `","ttl":"1m"}`, 400},
		{http.MethodPost, "/leases", `{"digest":"` + digest + `","holder":"h"}`, 400},
		{http.MethodPost, "/leases", `{"digest":"` + digest + `","holder":"h","ttl":"-1m"}`, 400},
		{http.MethodPost, "/leases", `{"digest":"` + digest + `","holder":"h","ttl":"1000h"}`, 400},
		{http.MethodPost, "/leases", `{"digest":"` + digest + `","holder":"h","ttl":"1m","more":1}`, 400},
		{http.MethodPost, "/leases", `{"digest":"` + digest + `","holder":"` + strings.Repeat("h", maxRequestBytes) + `","ttl":"1m"}`, 400},
		{http.MethodPost, "/leases", `{"digest":"` + other + `","holder":"h","ttl":"1m"}`, 404},
		{http.MethodPut, "/leases/nothing", `{"ttl":"1m"}`, 404},
		{http.MethodPut, "/leases/..%2f..%2fx", `{"ttl":"1m"}`, 404},
		{http.MethodGet, "/models/" + other + "/ready", "", 404},
		{http.MethodGet, "/models/x/ready", "", 400},
		{http.MethodGet, "/healthz", "", 200},
	} {
		var text string
		if code := call(t, srv, c.method, c.path, c.body, &text); code != c.code {
			t.Errorf("%s %s %.80s: %d, %s", c.method, c.path, c.body, code, text)
		}
	}
}

func TestMetricsTellWhatIsOnTheDisk(t *testing.T) {
	n := newNode(t, "a", "b")
	cfg := fast()
	cfg.Scrub = time.Millisecond
	srv, cache, stop := n.start(t, cfg, n.models...)
	defer stop()
	await(t, srv, "/readyz", http.StatusOK)
	other := newNode(t, "c").models[0]
	if _, err := cache.Ensure(t.Context(), other, "", nil); err != nil {
		t.Fatal(err)
	}
	// A bit flips in a model that nobody looks after; the scrub finds it.
	file := cache.Store().ModelPath(other.Digest) + "/weights"
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	damaged := bytes.Repeat([]byte("c"), 1000)
	damaged[7] ^= 1
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, damaged, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(file, info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"warmpath_modelcache_models 3", "warmpath_modelcache_pins 2", "warmpath_modelcache_leases 0", "warmpath_modelcache_used_bytes 3000",
		`warmpath_modelcache_ensures_total{result="miss"} 3`, "warmpath_modelcache_received_bytes_total 3000", "warmpath_modelcache_evictions_total 0",
		`warmpath_modelcache_ready{digest="` + string(n.models[0].Digest) + `"} 1`, `warmpath_modelcache_bad_files_total{where="source"} 0`,
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		var text string
		call(t, srv, http.MethodGet, "/metrics", "", &text)
		found := !strings.Contains(text, `warmpath_modelcache_bad_files_total{where="disk"} 0`)
		if found {
			for _, w := range want {
				if !strings.Contains(text, w+"\n") {
					t.Errorf("no %s in\n%s", w, text)
				}
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the scrub finds nothing:\n%s", text)
		}
	}
	if err := cache.Store().Use(t.Context(), other.Digest, ""); err == nil {
		t.Error("what the scrub found bad is used")
	}
}

// stuck is a source that never answers.
type stuck struct{}

// List waits.
func (stuck) List(ctx context.Context, _ func(source.Object) bool) error {
	<-ctx.Done()
	return ctx.Err()
}

// Open waits.
func (stuck) Open(ctx context.Context, _ string, _, _ int64, _ string) (*source.Body, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// stuckModels are far more than are pulled at once.
func stuckModels() []modelcache.Model {
	models := make([]modelcache.Model, 20*prewarms)
	for i := range models {
		models[i] = modelcache.Model{Digest: manifest.SumDigest(bytes.Repeat([]byte{byte(i)}, 32)), Name: "stuck", Source: stuck{}}
	}
	return models
}

func TestAPresentModelIsReadyWhileOthersArePulled(t *testing.T) {
	n := newNode(t, "a")
	srv, _, stop := n.start(t, fast(), n.models...)
	await(t, srv, "/readyz", http.StatusOK)
	stop()
	others := stuckModels() // with it in their midst: chance has no say in who comes first
	srv, _, stop = n.start(t, fast(), slices.Insert(others, len(others)/2, n.models[0])...)
	defer stop()
	await(t, srv, "/models/"+string(n.models[0].Digest)+"/ready", http.StatusOK)
}

// held is a source that answers when it is let go.
type held struct {
	source.Source
	hold *atomic.Bool
}

// Open waits.
func (h held) Open(ctx context.Context, path string, offset, length int64, version string) (*source.Body, error) {
	for h.hold.Load() && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	return h.Source.Open(ctx, path, offset, length, version)
}

// TestADamagedModelIsNotReadyUntilItIsRepaired looks while the repair is under way.
func TestADamagedModelIsNotReadyUntilItIsRepaired(t *testing.T) {
	n := newNode(t, "a")
	var hold atomic.Bool
	n.models[0].Source = held{n.models[0].Source, &hold}
	srv, cache, stop := n.start(t, fast(), n.models...)
	defer stop()
	await(t, srv, "/readyz", http.StatusOK)
	hold.Store(true)
	file := cache.Store().ModelPath(n.models[0].Digest) + "/weights"
	if err := errors.Join(os.Chmod(file, 0o644), os.Truncate(file, 5)); err != nil {
		t.Fatal(err)
	}
	await(t, srv, "/readyz", http.StatusServiceUnavailable)
	hold.Store(false)
	await(t, srv, "/readyz", http.StatusOK)
}

// TestABadLeaseIsRefusedBeforeThePull asks for a model that will not come.
func TestABadLeaseIsRefusedBeforeThePull(t *testing.T) {
	n := newNode(t)
	models := stuckModels()
	srv, _, stop := n.start(t, fast(), models...)
	defer stop()
	var text string
	if code := call(t, srv, http.MethodPost, "/leases", `{"digest":"`+string(models[0].Digest)+`","holder":"h"}`, &text); code != http.StatusBadRequest || !strings.Contains(text, "ttl") {
		t.Errorf("%d, %s", code, text)
	}
}

// pipes is a listener whose connections are in memory.
type pipes chan net.Conn

// Accept waits for a connection.
func (p pipes) Accept() (net.Conn, error) {
	c, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

// Close ends Accept.
func (p pipes) Close() error { close(p); return nil }

// Addr is nowhere.
func (p pipes) Addr() net.Addr { return &net.UnixAddr{} }

// TestAClientThatSendsNothingIsLeft sends a request's header and half of its body.
func TestAClientThatSendsNothingIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := store.Open(store.Config{Path: t.TempDir(), MaxBytes: 1 << 30, High: 1, Low: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = s.Close() }()
		log := slog.New(slog.DiscardHandler)
		srv := &http.Server{Handler: New(modelcache.New(s, fetch.DefaultConfig(), log), nil, fast(), log).Handler()}
		ln := make(pipes)
		go func() { _ = srv.Serve(ln) }()
		defer func() { _ = srv.Close() }()
		client, served := net.Pipe()
		ln <- served
		began := time.Now()
		if _, err := io.WriteString(client, "POST /leases HTTP/1.1\r\nHost: node\r\nContent-Length: 100\r\n\r\n{"); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(client), nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		_ = client.Close()
		if took := time.Since(began); resp.StatusCode != http.StatusBadRequest || took != bodyTimeout {
			t.Errorf("%s after %v", resp.Status, took)
		}
	})
}
