// Package admin serves what operators and their tools ask of a gateway: metrics,
// health, and what it believes about its replicas. It never shows a prompt.
package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/warmpath/warmpath/internal/replica"
	"github.com/warmpath/warmpath/internal/router"
)

// Admin is what the handler shows.
type Admin struct {
	Gatherer prometheus.Gatherer
	Pool     *replica.Pool
	Router   *router.Router
	Ready    func() bool // whether the gateway wants traffic
	Token    string      // opens the page, decisions, profiles and draining to other hosts; "" does not
	// Explain answers where a request would go that was meant for a path.
	Explain func(r *http.Request, path string) (*router.Decision, error)

	history history
}

// Handler returns the handler of the admin address. It refuses what changes
// state when a page of another site makes a browser on this host ask for it.
func (a *Admin) Handler() http.Handler {
	r := chi.NewRouter()
	r.Get("/healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	r.Get("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !a.Ready() {
			http.Error(w, "not ready: no replica is, the gateway is stopping, or it still learns from the others", http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ready\n"))
	})
	r.Get("/replicas", a.replicas)
	r.Group(func(r chi.Router) {
		r.Use(a.private)
		r.Get("/", a.overview)
		r.Get("/decisions", a.decisions)
		r.Get("/explain", func(w http.ResponseWriter, _ *http.Request) { a.render(w, "explain", explained{}) })
		r.Post("/explain", a.explain)
	})
	r.With(a.private).Post("/replicas/*", a.drain)
	r.Handle("/metrics", promhttp.HandlerFor(a.Gatherer, promhttp.HandlerOpts{EnableOpenMetrics: true}))
	r.Route("/debug/pprof", func(r chi.Router) {
		r.Use(a.private)
		r.HandleFunc("/", pprof.Index)
		r.Get("/cmdline", http.NotFound) // the command's flags may hold keys
		r.HandleFunc("/profile", pprof.Profile)
		r.HandleFunc("/symbol", pprof.Symbol)
		r.HandleFunc("/trace", pprof.Trace)
		r.HandleFunc("/{name}", pprof.Index)
	})
	return http.NewCrossOriginProtection().Handler(r)
}

// private admits this host and who has the token.
func (a *Admin) private(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		ip := net.ParseIP(host)
		switch {
		case a.knows(r.Header.Get("Authorization")):
			r.Header.Del("Authorization") // it is no client's
			next.ServeHTTP(w, r)
		case ip == nil || !ip.IsLoopback():
			http.Error(w, "only from this host, or with the token that admin_token sets", http.StatusForbidden)
		case !namesItself(r.Host):
			http.Error(w, "from this host only by 127.0.0.1, [::1] or localhost: another name may be that of a page in a browser, rebound to this address", http.StatusForbidden)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// namesItself reports whether a Host header is one that no other site's page can
// have, whatever its name resolves to: an address or localhost.
func namesItself(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = strings.Trim(hostport, "[]")
	}
	return strings.EqualFold(host, "localhost") || net.ParseIP(host) != nil
}

// knows compares in a time that tells neither the token nor its length.
func (a *Admin) knows(authorization string) bool {
	given, want := sha256.Sum256([]byte(authorization)), sha256.Sum256([]byte("Bearer "+a.Token))
	return a.Token != "" && subtle.ConstantTimeCompare(given[:], want[:]) == 1
}

// Replica is one entry of /replicas.
type Replica struct {
	ID            string   `json:"id"`
	URL           string   `json:"url"`
	Rank          *int     `json:"rank,omitempty"` // of several engines behind the URL
	Ready         bool     `json:"ready"`
	Sleeping      bool     `json:"sleeping"`
	State         string   `json:"state"`    // new, ready, marked (down by its traffic), down or leaving
	Draining      bool     `json:"draining"` // no new requests, because an operator said so
	Models        []string `json:"models"`
	InFlight      int      `json:"in_flight"`
	Decoding      int      `json:"decoding"`
	PendingTokens int      `json:"pending_tokens"`
	WaitSeconds   float64  `json:"wait_seconds"`    // of a new request
	Pace          float64  `json:"pace"`            // learned time for a second of reference work
	Penalty       float64  `json:"penalty_seconds"` // for failures a moment ago
	HeldBlocks    int64    `json:"held_blocks"`     // believed to be in its cache
	Capacity      int64    `json:"capacity_blocks"` // believed to be there for prefixes
	BlockSize     int      `json:"block_size"`      // as it told, 0 if it did not
	Blocks        int      `json:"blocks"`
	Running       float64  `json:"engine_running"`
	Waiting       float64  `json:"engine_waiting"`
	CacheUsage    float64  `json:"engine_cache_usage"`
	Prompt        float64  `json:"engine_prompt_tokens"`
	Cached        float64  `json:"engine_cached_tokens"` // of the prompt tokens
	WindowGap     *float64 `json:"window_gap,omitempty"` // see warmpath_window_gap_ratio
}

// drain is POST /replicas/{id}/drain and /replicas/{id}/undrain; an id may have
// slashes in it.
func (a *Admin) drain(w http.ResponseWriter, r *http.Request) {
	rest := strings.TrimPrefix(r.URL.Path, "/replicas/")
	id, on := strings.CutSuffix(rest, "/drain")
	if !on {
		var off bool
		if id, off = strings.CutSuffix(rest, "/undrain"); !off {
			http.Error(w, "POST /replicas/{id}/drain or /replicas/{id}/undrain", http.StatusNotFound)
			return
		}
	}
	replica := a.Pool.Replica(id)
	if replica == nil {
		http.Error(w, fmt.Sprintf("there is no replica %q: GET /replicas lists the ids", id), http.StatusNotFound)
		return
	}
	a.Pool.Drain(replica, on)
	w.WriteHeader(http.StatusNoContent)
}

func (a *Admin) replicas(w http.ResponseWriter, _ *http.Request) {
	answer(w, map[string]any{"replicas": a.list()})
}

// list returns the entries of /replicas.
func (a *Admin) list() []Replica {
	set := a.Pool.Set()
	states := map[*replica.Replica]router.State{}
	for _, s := range a.Router.States(time.Now()) {
		states[s.Replica] = s
	}
	list := make([]Replica, 0, len(set.Replicas))
	for _, r := range set.Replicas {
		f, s := r.Facts(), states[r]
		v := Replica{
			ID: r.ID, URL: r.URL.Redacted(), Ready: r.Ready(), Sleeping: f.Sleeping, State: r.State(), Draining: r.Draining(), Models: []string{},
			InFlight: s.InFlight, Decoding: s.Decoding, PendingTokens: s.PendingTokens, WaitSeconds: s.Wait, Pace: s.Pace, Penalty: s.Penalty,
			HeldBlocks: s.HeldBlocks, Capacity: s.Capacity, BlockSize: f.BlockSize, Blocks: f.Blocks, Running: f.Running, Waiting: f.Waiting, CacheUsage: f.Usage, Prompt: f.Prompt, Cached: f.Cached,
		}
		if s.Windowed {
			v.WindowGap = &s.WindowGap
		}
		if r.Rank >= 0 {
			v.Rank = &r.Rank
		}
		for _, m := range set.Models {
			for _, of := range m.Replicas {
				if of == r {
					v.Models = append(v.Models, m.Name)
				}
			}
		}
		list = append(list, v)
	}
	return list
}
