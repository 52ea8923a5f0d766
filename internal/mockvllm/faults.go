package mockvllm

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"
)

// Faults tell how a server misbehaves. Except for Loading they strike inference requests only; the zero value is a
// healthy server. As JSON the names are lower case with underscores and durations are strings such as "150ms".
type Faults struct {
	// Next limits the faults to that many requests, after which the server is healthy again; 0 means all.
	Next int `json:"next"`
	// Probability lets a request be spared; 0 means 1. Draws come from a fixed seed set by [Server.SetFaults].
	Probability float64 `json:"probability"`

	Status      int           `json:"status"`       // answer with this HTTP status and an error
	RetryAfter  time.Duration `json:"retry_after"`  // Retry-After beside Status, rounded up to seconds
	HeaderDelay time.Duration `json:"header_delay"` // before anything else
	EventDelay  time.Duration `json:"event_delay"`  // between the events of a stream

	// After is how many stream events are sent before Cut, Garbage, Error or Hang strikes, or how many tokens before
	// Abort. With 0 Cut, Garbage and Hang strike before any byte. Answers that are not streamed are cut in the middle of the body when After
	// is above 0.
	After int  `json:"after"`
	Cut   bool `json:"cut"` // reset the connection
	// Garbage is Cut after some bytes that are no HTTP or no event.
	Garbage bool `json:"garbage"`
	Error   bool `json:"error"` // error event and [DONE]; status 500 if not streamed
	Hang    bool `json:"hang"`  // no further byte until the client or the server goes
	Abort   bool `json:"abort"` // finish_reason abort in a clean-looking answer

	Loading bool `json:"loading"` // GET /health and /ping answer 503
}

// UnmarshalJSON refuses unknown names, so that a test's typing error does not pass for health.
func (f *Faults) UnmarshalJSON(b []byte) error {
	type plain Faults
	wire := struct {
		*plain
		RetryAfter  duration `json:"retry_after"`
		HeaderDelay duration `json:"header_delay"`
		EventDelay  duration `json:"event_delay"`
	}{plain: (*plain)(f)}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&wire); err != nil {
		return err
	}
	f.RetryAfter, f.HeaderDelay, f.EventDelay = time.Duration(wire.RetryAfter), time.Duration(wire.HeaderDelay), time.Duration(wire.EventDelay)
	return nil
}

// duration is a time.Duration written as text.
type duration time.Duration

// UnmarshalText reads a duration as Go writes it.
func (d *duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	*d = duration(v)
	return err
}

// SetFaults replaces the faults from the next request on.
func (s *Server) SetFaults(f Faults) { s.faults.set(f) }

// setFaults is POST /mock/faults.
func (s *Server) setFaults(w http.ResponseWriter, r *http.Request) {
	var f Faults
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(body, &f)
	}
	if err != nil {
		http.Error(w, fmt.Sprintf("decode faults: %v", err), http.StatusBadRequest)
		return
	}
	s.SetFaults(f)
}

// faultPlan deals the configured faults to requests.
type faultPlan struct {
	mu     sync.Mutex
	faults Faults
	rand   *rand.Rand
}

func (p *faultPlan) set(f Faults) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults, p.rand = f, rand.New(rand.NewPCG(1, 2))
}

// take returns the faults of one more request.
func (p *faultPlan) take() Faults {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.faults
	if f.Probability > 0 && p.rand.Float64() >= f.Probability {
		return Faults{}
	}
	if f.Next == 1 {
		p.faults = Faults{Loading: f.Loading}
	} else if f.Next > 1 {
		p.faults.Next--
	}
	return f
}

func (p *faultPlan) loading() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.faults.Loading
}

// Received is a request as it reached the server.
type Received struct {
	Method string
	Path   string
	Header http.Header
	Body   []byte
}

// Requests returns the last requests for inference, pooling or tokens, oldest first; probes and controls are not among
// them. Config.KeepRequests bounds them.
func (s *Server) Requests() []Received { return s.received.list() }

// ring keeps the last requests.
type ring struct {
	mu   sync.Mutex
	max  int
	kept []Received
	next int // where the next one goes once the ring is full
}

func (r *ring) add(v Received) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.max <= 0:
	case len(r.kept) < r.max:
		r.kept = append(r.kept, v)
	default:
		r.kept[r.next] = v
		r.next = (r.next + 1) % r.max
	}
}

func (r *ring) list() []Received {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append(append([]Received(nil), r.kept[r.next:]...), r.kept[:r.next]...)
}
