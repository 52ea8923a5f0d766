package replica

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server answers probes as it is told to.
type server struct {
	*httptest.Server
	health, modelsStatus int
	completions          int // status of the gateway's own requests
	models, metrics      string
	requests             []string
	warmUps              []string
}

func newServer(t *testing.T) *server {
	s := &server{health: 200, modelsStatus: 200, completions: 200, models: models("m"), metrics: page(t)}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.requests = append(s.requests, r.URL.Path+" "+r.Header.Get("Authorization"))
		switch {
		case strings.HasSuffix(r.URL.Path, "/health"):
			w.WriteHeader(s.health)
		case r.Method == http.MethodPost:
			body, _ := io.ReadAll(r.Body)
			s.warmUps = append(s.warmUps, r.URL.Path+" rank "+r.Header.Get("X-Data-Parallel-Rank")+" "+r.Header.Get("X-Request-Id")+" "+string(body))
			w.WriteHeader(s.completions)
		case strings.HasSuffix(r.URL.Path, "/v1/models"):
			w.WriteHeader(s.modelsStatus)
			_, _ = io.WriteString(w, s.models)
		case s.metrics == "":
			http.NotFound(w, r)
		default:
			_, _ = io.WriteString(w, s.metrics)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

// models is a list of models as vLLM 0.32 sends it, with times and ids that are
// new each time. "adapter<base" is an adapter.
func models(names ...string) string {
	var cards []string
	for _, name := range names {
		id, base, adapter := strings.Cut(name, "<")
		parent := "null"
		if adapter {
			parent = `"` + base + `"`
		}
		now := time.Now().UnixNano()
		cards = append(cards, fmt.Sprintf(`{"id":%q,"object":"model","created":%d,"owned_by":"vllm","root":"/models/m","parent":%s,"max_model_len":8192,"permission":[{"id":"modelperm-%x","created":%d}]}`, id, now, parent, now, now))
	}
	return `{"object":"list","data":[` + strings.Join(cards, ",") + `]}`
}

// page is what a vLLM 0.32 said on GET /metrics, without most histogram buckets.
func page(t testing.TB) string {
	text, err := os.ReadFile("testdata/vllm-0.32-metrics.txt")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// engines makes a page of several engines of a page of one.
func engines(page string, labels ...string) string {
	var b strings.Builder
	for line := range strings.Lines(page) {
		if !strings.Contains(line, `engine="0"`) {
			b.WriteString(line)
			continue
		}
		for _, l := range labels {
			b.WriteString(strings.ReplaceAll(line, `engine="0"`, `engine="`+l+`"`))
		}
	}
	return b.String()
}

// set replaces the value of a metric, given by the beginning of its line.
func set(page, metric, value string) string {
	at := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(metric) + `(\{[^}]*\})? .*$`)
	return at.ReplaceAllString(page, metric+"${1} "+value)
}

// fixture is a pool whose endpoints the test probes itself.
type fixture struct {
	*testing.T
	*Pool
	mu     sync.Mutex
	events []string
	counts []float64 // of prompt tokens, as they were told
	log    bytes.Buffer
}

func newFixture(t *testing.T, cfg Config) *fixture {
	f := &fixture{T: t}
	p, err := New(cfg, slog.New(slog.NewTextHandler(&f.log, nil)), func(e Event) {
		f.mu.Lock()
		defer f.mu.Unlock()
		name := strings.Replace(e.Replica.ID, e.Replica.URL.Host, "host", 1)
		switch e.Kind {
		case Told:
			f.events = append(f.events, fmt.Sprintf("%s told %dx%d", name, e.Facts.Blocks, e.Facts.BlockSize))
		case Emptied:
			f.events = append(f.events, name+" emptied")
		case Counted:
			f.counts = append(f.counts, e.Facts.Prompt)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	f.Pool = p
	t.Cleanup(p.client.CloseIdleConnections)
	return f
}

// over returns a fixture over servers that are always scraped.
func over(t *testing.T, servers ...*server) *fixture {
	cfg := DefaultConfig()
	cfg.ScrapeInterval = 1
	for _, s := range servers {
		cfg.URLs = append(cfg.URLs, s.URL)
	}
	return newFixture(t, cfg)
}

// probe probes all endpoints once and returns the last error.
func (f *fixture) probe() (last error) {
	for _, e := range f.endpoints {
		was := e.state.Load()
		err := e.probe(context.Background())
		e.report(was, err)
		if err != nil {
			last = err
		}
	}
	return last
}

// wantEvents checks the events since it was last called.
func (f *fixture) wantEvents(want ...string) {
	f.Helper()
	if !slices.Equal(f.events, want) {
		f.Errorf("events %q, want %q", f.events, want)
	}
	f.events = nil
}

func (f *fixture) wantReady(want bool) {
	f.Helper()
	for _, r := range f.Set().Replicas {
		if r.Ready() != want {
			f.Errorf("%s: ready %v, want %v", r.ID, r.Ready(), want)
		}
	}
	if f.Ready() != want {
		f.Errorf("pool: ready %v, want %v", f.Ready(), want)
	}
}

// ids returns replicas by their ids, without the host.
func ids(replicas []*Replica) string {
	var list []string
	for _, r := range replicas {
		list = append(list, fmt.Sprintf("%s rank %d slot %d", strings.TrimPrefix(r.ID, r.URL.Host), r.Rank, r.Slot))
	}
	return strings.Join(list, ", ")
}
