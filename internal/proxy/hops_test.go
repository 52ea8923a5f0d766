package proxy

import (
	"context"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/warmpath/warmpath/internal/metrics"
	"github.com/warmpath/warmpath/internal/replica"
	"github.com/warmpath/warmpath/internal/router"
)

// phases are delays of a request's way, each of another length.
var phases = map[string]time.Duration{
	"read": 40 * time.Millisecond, "choose": 110 * time.Millisecond, "connect": 30 * time.Millisecond,
	"headers": 50 * time.Millisecond, "first_event": 60 * time.Millisecond, "first_token": 70 * time.Millisecond,
}

// TestEachHopShowsItsDelay has a delay in every phase. A busy machine makes phases
// longer now and then, so the nearest of some requests counts for each.
func TestEachHopShowsItsDelay(t *testing.T) {
	nearest := map[string]float64{}
	for range 8 {
		off := 0.0
		for hop, got := range delayed(t) {
			d := math.Abs(got - phases[hop].Seconds())
			if best, ok := nearest[hop]; !ok || d < best {
				nearest[hop] = d
			}
		}
		for _, d := range nearest {
			off = max(off, d)
		}
		if off <= .005 {
			break
		}
	}
	if len(nearest) != len(phases) {
		t.Errorf("hops were %v", nearest)
	}
	for hop, d := range nearest {
		if d > .005 {
			t.Errorf("%s is off by %v s", hop, d)
		}
	}
}

// delayed makes one request and returns what each hop took, in seconds. The first
// replica that is asked turns it away.
func delayed(t *testing.T) map[string]float64 {
	t.Helper()
	var asked atomic.Int32
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"m1","object":"model"}]}`)
	})
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if asked.Add(1) == 1 { // with its connection it takes the delay of choose
			time.Sleep(phases["choose"] - phases["connect"])
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		time.Sleep(phases["headers"])
		w.Header().Set("Content-Type", "text/event-stream")
		for _, s := range []struct {
			after time.Duration
			event string
		}{
			{0, ": here\n\n"},
			{phases["first_event"], `{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}`},
			{phases["first_token"], `{"choices":[{"index":0,"delta":{"content":"a"}}]}`},
			{0, "[DONE]"},
		} {
			time.Sleep(s.after)
			if !strings.HasPrefix(s.event, ":") {
				s.event = "data: " + s.event + "\n\n"
			}
			_, _ = io.WriteString(w, s.event)
			_ = http.NewResponseController(w).Flush()
		}
	})
	cfg := replica.DefaultConfig()
	cfg.WarmUp = false
	for range 2 {
		s := httptest.NewServer(mux)
		defer s.Close()
		cfg.URLs = append(cfg.URLs, s.URL)
	}
	log := slog.New(slog.DiscardHandler)
	pool, err := replica.New(cfg, log, func(replica.Event) {})
	if err != nil {
		t.Fatal(err)
	}
	route, err := router.New(router.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	p, err := New(DefaultConfig(), router.PrefixPolicy, log, pool, route, metrics.New(reg))
	if err != nil {
		t.Fatal(err)
	}
	dial := p.upstream.Dial
	p.upstream.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
		time.Sleep(phases["connect"])
		return dial(ctx, network, addr)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); pool.Run(ctx) }()
	defer func() { cancel(); <-done; p.Close() }()
	front := httptest.NewServer(p.Handler())
	defer front.Close()
	for deadline := time.Now().Add(10 * time.Second); !pool.Ready() || !allReady(pool); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the replicas are not ready")
		}
	}

	body := `{"model":"m1","stream":true,"messages":[{"role":"user","content":"hi"}]}`
	r, w := io.Pipe()
	go func() {
		_, _ = io.WriteString(w, body[:10])
		time.Sleep(phases["read"])
		_, _ = io.WriteString(w, body[10:])
		_ = w.Close()
	}()
	resp, err := http.Post(front.URL+"/v1/chat/completions", "application/json", r)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	front.Close() // waits for the accounting

	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	took, sum, ttft := map[string]float64{}, 0.0, 0.0
	for _, f := range families {
		for _, m := range f.Metric {
			v := m.GetHistogram().GetSampleSum()
			switch {
			case m.GetHistogram().GetSampleCount() == 0:
			case f.GetName() == "warmpath_hop_seconds":
				took[m.Label[0].GetValue()] = v
				sum += v
			case f.GetName() == "warmpath_ttft_seconds":
				ttft += v
			}
		}
	}
	if math.Abs(sum-ttft) > 1e-6 {
		t.Errorf("the hops sum to %v, TTFT is %v", sum, ttft)
	}
	return took
}

func allReady(p *replica.Pool) bool {
	for _, r := range p.Set().Replicas {
		if !r.Ready() {
			return false
		}
	}
	return true
}
