// Package proxy carries a request to a replica and its answer back. [Proxy.serve]
// is the life of a request from top to bottom.
package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/warmpath/warmpath/internal/metrics"
	"github.com/warmpath/warmpath/internal/openai"
	"github.com/warmpath/warmpath/internal/replica"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/trace"
	"github.com/warmpath/warmpath/internal/upstream"
)

// Config is the settings of a [Proxy].
type Config struct {
	// MaxBodyBytes bounds a request's body, which is held in memory until the answer ends.
	MaxBodyBytes int64 `yaml:"max_body_bytes"`
	// Attempts is on how many replicas a request is tried before its failure is the
	// client's, as long as no byte of an answer has come.
	Attempts int `yaml:"attempts"`
	// RetryTime is how long after its arrival a request may still be tried on another
	// replica.
	RetryTime time.Duration `yaml:"retry_time"`
	// RetryBudget bounds the attempts beyond the first of all requests together, as a
	// share of the requests; 0 does not. When a whole fleet is failing, attempts that are
	// made again would keep it down.
	RetryBudget float64 `yaml:"retry_budget"`
	// HeaderTimeout bounds the time until a replica's answer begins. An answer that is
	// not streamed begins when it is whole. 0 is for ever.
	HeaderTimeout time.Duration `yaml:"header_timeout"`
	// EventTimeout bounds a replica's silence within an answer: before the first event,
	// which is the time of the queue and the prefill, and between two. 0 is for ever.
	EventTimeout time.Duration `yaml:"event_timeout"`
	// UploadTimeout bounds a client's silence while it sends its request; 0 does not.
	UploadTimeout time.Duration `yaml:"upload_timeout"`
	// WriteTimeout bounds how long a client may not take what is written to it; 0 does not.
	WriteTimeout time.Duration `yaml:"write_timeout"`
	// MaxInFlight bounds the requests under way; 0 does not.
	MaxInFlight int `yaml:"max_in_flight"`
	// MaxBufferedBytes bounds the bodies of all requests under way together; 0 does not.
	MaxBufferedBytes int64 `yaml:"max_buffered_bytes"`
	// ConnectTimeout bounds the set-up of a connection to a replica.
	ConnectTimeout time.Duration `yaml:"connect_timeout"`
	// MaxURLBytes bounds a request's path and query.
	MaxURLBytes int `yaml:"max_url_bytes"`
	// ReplicaAuth is how requests to replicas prove themselves; see [AuthAuto].
	ReplicaAuth string `yaml:"replica_auth"`
	// PolicyHeader lets a request choose its policy by the header X-Warmpath-Policy.
	// Load tests need it; clients should not have it.
	PolicyHeader bool `yaml:"policy_header"`
	// Usage is how the engine's count of tokens is come by: [UsageWatch] or [UsageAsk].
	Usage string `yaml:"usage"`
	// MetricModels is how many models have series of their own; the others share the
	// name "other".
	MetricModels int `yaml:"metric_models"`
	// DecisionHeaders puts the reason of the choice and the predicted tokens on responses.
	DecisionHeaders bool `yaml:"decision_headers"`
}

// DefaultConfig returns the settings that suit most fleets.
func DefaultConfig() Config {
	return Config{
		MaxBodyBytes: 64 << 20, MaxBufferedBytes: 1 << 30, MaxInFlight: 10_000,
		Attempts: 3, RetryTime: 2 * time.Minute, RetryBudget: 0.2,
		ConnectTimeout: 5 * time.Second, HeaderTimeout: 15 * time.Minute, EventTimeout: 5 * time.Minute,
		UploadTimeout: 30 * time.Second, WriteTimeout: time.Minute, MetricModels: 100, Usage: UsageWatch, MaxURLBytes: 8 << 10, ReplicaAuth: AuthAuto,
	}
}

// Validate reports the first setting that cannot work.
func (c *Config) Validate() error {
	switch {
	case c.MaxBodyBytes < 1<<10:
		return fmt.Errorf("max_body_bytes must be at least 1 KiB, not %d bytes", c.MaxBodyBytes)
	case c.Attempts < 1:
		return fmt.Errorf("attempts must be at least 1, not %d", c.Attempts)
	case c.ConnectTimeout <= 0:
		return errors.New("connect_timeout must be above 0")
	case c.RetryTime < 0:
		return fmt.Errorf("retry_time must not be negative, but is %v", c.RetryTime)
	case !(c.RetryBudget >= 0 && c.RetryBudget <= 10):
		return fmt.Errorf("retry_budget must be a share from 0 to 10, not %v", c.RetryBudget)
	case c.HeaderTimeout < 0:
		return fmt.Errorf("header_timeout must not be negative, but is %v", c.HeaderTimeout)
	case c.EventTimeout < 0:
		return fmt.Errorf("event_timeout must not be negative, but is %v", c.EventTimeout)
	case c.UploadTimeout < 0:
		return fmt.Errorf("upload_timeout must not be negative, but is %v", c.UploadTimeout)
	case c.WriteTimeout < 0:
		return fmt.Errorf("write_timeout must not be negative, but is %v", c.WriteTimeout)
	case c.MaxInFlight < 0:
		return fmt.Errorf("max_in_flight must not be negative, but is %d", c.MaxInFlight)
	case c.Usage != UsageWatch && c.Usage != UsageAsk:
		return fmt.Errorf("usage must be %s or %s, not %q", UsageWatch, UsageAsk, c.Usage)
	case c.MetricModels < 0:
		return fmt.Errorf("metric_models must not be negative, but is %d", c.MetricModels)
	case c.MaxBufferedBytes != 0 && c.MaxBufferedBytes < c.MaxBodyBytes:
		return fmt.Errorf("max_buffered_bytes must be at least max_body_bytes, %d, not %d", c.MaxBodyBytes, c.MaxBufferedBytes)
	case c.MaxURLBytes < 1<<8:
		return fmt.Errorf("max_url_bytes must be at least 256, not %d", c.MaxURLBytes)
	}
	return checkAuth(c.ReplicaAuth)
}

// Headers of the gateway's own.
const (
	HeaderReplica   = "X-Warmpath-Replica"   // on answers: who gave it
	HeaderReason    = "X-Warmpath-Reason"    // on answers, if asked for: why that replica
	HeaderPredicted = "X-Warmpath-Predicted" // on answers, if asked for: tokens predicted to be cached, of all
	HeaderPolicy    = "X-Warmpath-Policy"    // on requests, if allowed: the policy to use
	HeaderSession   = "X-Session-Id"         // on requests: the session, which stays on its replica
	headerRequestID = "X-Request-Id"
	headerRank      = "X-Data-Parallel-Rank"
)

// Proxy answers clients. Make it with [New]; it is safe for concurrent use.
type Proxy struct {
	cfg      Config
	log      *slog.Logger
	pool     *replica.Pool
	router   *router.Router
	metrics  *metrics.Metrics
	upstream upstream.Client
	policy   string // the default one's name
	policies map[string]router.Policy
	shadow   *metrics.Shadow // nil without a shadow policy
	tracer   *trace.Tracer   // nil for no spans
	access   atomic.Pointer[access]

	watch    watch
	budget   *budget
	inFlight atomic.Int64
	hosts    hosts

	tables  tables
	buffers buffers
	spare   sync.Pool // of *exchange
}

// idleConnection is below the 5 s after which vLLM's server closes a connection
// that is not in use (VLLM_HTTP_TIMEOUT_KEEP_ALIVE): a request sent on one that
// is just being closed would be lost.
const idleConnection = 4 * time.Second

// keepAlive is the time between two signs of life on a silent connection: a host
// that has vanished is found out during a long prefill too.
const keepAlive = 30 * time.Second

// New returns a proxy to the pool's replicas, of which the router chooses.
func New(cfg Config, policy string, log *slog.Logger, pool *replica.Pool, r *router.Router, m *metrics.Metrics) (*Proxy, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	p := &Proxy{
		cfg: cfg, log: log, pool: pool, router: r, metrics: m, policy: policy, policies: map[string]router.Policy{}, budget: newBudget(cfg.RetryBudget),
		upstream: upstream.Client{
			Dial:             (&net.Dialer{Timeout: cfg.ConnectTimeout, KeepAlive: keepAlive}).DialContext,
			TLS:              pool.TLS(),
			HandshakeTimeout: cfg.ConnectTimeout,
			IdleTimeout:      idleConnection,
			MaxIdle:          1024,
		},
	}
	p.buffers.limit = cfg.MaxBufferedBytes
	p.watch.headerTimeout, p.watch.eventTimeout, p.watch.began = cfg.HeaderTimeout, cfg.EventTimeout, time.Now()
	p.watch.tick()
	for _, name := range router.Policies() {
		var err error
		if p.policies[name], err = router.PolicyByName(name); err != nil {
			return nil, err
		}
	}
	p.SetAccess(nil, "")
	p.tables.init(m, cfg.MetricModels)
	if name := r.ShadowName(); name != "" {
		p.shadow = m.Shadow(name)
	}
	p.spare.New = func() any { return newExchange(p) }
	return p, nil
}

// Run looks after the requests under way until ctx ends.
func (p *Proxy) Run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { p.sweepSeries(ctx) })
	p.watch.run(ctx)
	wg.Wait()
}

// EndAll ends every answer under way, with an error that its client can read.
func (p *Proxy) EndAll() { p.watch.stop() }

// Load is what the proxy holds at a moment.
type Load struct {
	InFlight      int64   // requests under way
	BufferedBytes int64   // of their bodies
	Connections   int64   // open to replicas
	RetryBudget   float64 // attempts beyond the first that are left
}

// Load returns what the proxy holds now.
func (p *Proxy) Load() Load {
	return Load{InFlight: p.inFlight.Load(), BufferedBytes: p.buffers.used.Load(), Connections: p.upstream.Open(), RetryBudget: p.budget.remaining()}
}

// Close drops the idle connections to replicas.
func (p *Proxy) Close() { p.hosts.close() }

// passed are the endpoints whose bodies are only looked at for their model.
var passed = []string{
	"/v1/embeddings", "/v1/rerank", "/rerank", "/v2/rerank", "/v1/score", "/score", "/pooling", "/classify", "/v2/embed",
	"/tokenize", "/detokenize", "/v1/messages/count_tokens", "/v1/audio/transcriptions", "/v1/audio/translations",
}

// Handler returns the handler for clients.
func (p *Proxy) Handler() http.Handler {
	mux := chi.NewRouter()
	for path, endpoint := range endpoints {
		mux.Post(path, p.handle(endpoint))
	}
	for _, path := range passed {
		mux.Post(path, p.handle(openai.Other))
	}
	mux.Get("/v1/responses/{id}", p.handle(openai.Other))
	mux.Post("/v1/responses/{id}/cancel", p.handle(openai.Other))
	mux.Get("/v1/models", p.models)
	mux.Get("/v1/models/*", p.model)
	mux.NotFound(func(w http.ResponseWriter, r *http.Request) {
		p.refuse(w, requestID(r), "not_found", &openai.Error{Status: http.StatusNotFound, Type: "invalid_request_error", Code: "not_found", Endpoint: formOf(r), Message: fmt.Sprintf("there is no endpoint %s %s", r.Method, r.URL.Path)})
	})
	mux.MethodNotAllowed(func(w http.ResponseWriter, r *http.Request) {
		for _, method := range [...]string{http.MethodGet, http.MethodPost} {
			if mux.Match(chi.NewRouteContext(), method, r.URL.Path) {
				w.Header().Add("Allow", method)
			}
		}
		p.refuse(w, requestID(r), "method", &openai.Error{Status: http.StatusMethodNotAllowed, Type: "invalid_request_error", Code: "method_not_allowed", Endpoint: formOf(r), Message: fmt.Sprintf("%s does not take %s", r.URL.Path, r.Method)})
	})
	guarded := p.guard(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !multiplexed(r) {
			p.allowWrite(w) // a connection may still have the deadline of an answer before
			p.allowBody(w, r)
		}
		guarded.ServeHTTP(w, r)
	})
}

// refuse answers with an error of the gateway's own.
func (p *Proxy) refuse(w http.ResponseWriter, id, reason string, e *openai.Error) {
	p.metrics.Refusal(reason)
	p.allowWrite(w)
	w.Header().Set(headerRequestID, id)
	e.Write(w)
}
