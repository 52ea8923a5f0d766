// Package proxy carries a request to a replica and its answer back. [Proxy.serve]
// is the life of a request from top to bottom.
package proxy

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/warmpath/warmpath/internal/metrics"
	"github.com/warmpath/warmpath/internal/openai"
	"github.com/warmpath/warmpath/internal/replica"
	"github.com/warmpath/warmpath/internal/router"
)

// Config is the settings of a [Proxy].
type Config struct {
	// MaxBodyBytes bounds a request's body, which is held in memory until the answer ends.
	MaxBodyBytes int64 `yaml:"max_body_bytes"`
	// Attempts is on how many replicas a request is tried before its failure is the
	// client's, as long as no byte of an answer has come.
	Attempts int `yaml:"attempts"`
	// ConnectTimeout bounds the set-up of a connection to a replica.
	ConnectTimeout time.Duration `yaml:"connect_timeout"`
	// PolicyHeader lets a request choose its policy by the header X-Warmpath-Policy.
	// Load tests need it; clients should not have it.
	PolicyHeader bool `yaml:"policy_header"`
	// DecisionHeaders puts the reason of the choice and the predicted tokens on responses.
	DecisionHeaders bool `yaml:"decision_headers"`
}

// DefaultConfig returns the settings that suit most fleets.
func DefaultConfig() Config {
	return Config{MaxBodyBytes: 64 << 20, Attempts: 3, ConnectTimeout: 5 * time.Second}
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
	}
	return nil
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
	cfg       Config
	log       *slog.Logger
	pool      *replica.Pool
	router    *router.Router
	metrics   *metrics.Metrics
	transport *http.Transport
	policy    string // the default one's name
	policies  map[string]router.Policy

	tables  tables
	buffers buffers
	spare   sync.Pool // of *exchange
	copies  sync.Pool // of *[]byte, for answers on their way
}

// idleConnection is below the 5 s after which vLLM's server closes a connection
// that is not in use (VLLM_HTTP_TIMEOUT_KEEP_ALIVE): a request sent on one that
// is just being closed would be lost.
const idleConnection = 4 * time.Second

// New returns a proxy to the pool's replicas, of which the router chooses.
func New(cfg Config, policy string, log *slog.Logger, pool *replica.Pool, r *router.Router, m *metrics.Metrics) (*Proxy, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	p := &Proxy{
		cfg: cfg, log: log, pool: pool, router: r, metrics: m, policy: policy, policies: map[string]router.Policy{},
		transport: &http.Transport{
			DialContext:           dial(cfg.ConnectTimeout),
			MaxIdleConnsPerHost:   1024,
			IdleConnTimeout:       idleConnection,
			DisableCompression:    true, // what the engine sends is what the client gets
			ExpectContinueTimeout: time.Second,
			WriteBufferSize:       16 << 10,
			ReadBufferSize:        16 << 10,
			Protocols:             http1(),
		},
	}
	for _, name := range router.Policies() {
		var err error
		if p.policies[name], err = router.PolicyByName(name); err != nil {
			return nil, err
		}
	}
	p.tables.init(m)
	p.copies.New = func() any { b := make([]byte, 32<<10); return &b }
	p.spare.New = func() any { return newExchange(p) }
	return p, nil
}

// http1 is all that vLLM's server speaks.
func http1() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	return p
}

// Close drops the idle connections to replicas.
func (p *Proxy) Close() { p.transport.CloseIdleConnections() }

// passed are the endpoints whose bodies are only looked at for their model.
var passed = []string{
	"/v1/embeddings", "/v1/rerank", "/rerank", "/v2/rerank", "/v1/score", "/score", "/pooling", "/classify", "/v2/embed",
	"/tokenize", "/detokenize", "/v1/messages/count_tokens", "/v1/audio/transcriptions", "/v1/audio/translations",
}

// Handler returns the handler for clients.
func (p *Proxy) Handler() http.Handler {
	mux := chi.NewRouter()
	for path, endpoint := range map[string]openai.Endpoint{
		"/v1/chat/completions": openai.Chat,
		"/v1/completions":      openai.Completions,
		"/v1/responses":        openai.Responses,
		"/v1/messages":         openai.Messages,
	} {
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
		p.refuse(w, requestID(r), "not_found", &openai.Error{Status: http.StatusNotFound, Type: "invalid_request_error", Code: "not_found", Message: fmt.Sprintf("there is no endpoint %s %s", r.Method, r.URL.Path)})
	})
	mux.MethodNotAllowed(func(w http.ResponseWriter, r *http.Request) {
		for _, method := range [...]string{http.MethodGet, http.MethodPost} {
			if mux.Match(chi.NewRouteContext(), method, r.URL.Path) {
				w.Header().Add("Allow", method)
			}
		}
		p.refuse(w, requestID(r), "method", &openai.Error{Status: http.StatusMethodNotAllowed, Type: "invalid_request_error", Code: "method_not_allowed", Message: fmt.Sprintf("%s does not take %s", r.URL.Path, r.Method)})
	})
	return mux
}

// refuse answers with an error of the gateway's own.
func (p *Proxy) refuse(w http.ResponseWriter, id, reason string, e *openai.Error) {
	p.metrics.Refusal(reason)
	w.Header().Set(headerRequestID, id)
	e.Write(w)
}
