package router

import (
	"math"
	"time"

	"github.com/warmpath/warmpath/internal/replica"
)

// This file is why requests went where they went: what the last decisions were made
// from, and what one would be made from now.

// CandidateCost is what a request would cost on one replica, and of what that is made.
// Times are in seconds.
type CandidateCost struct {
	Replica  *replica.Replica
	Cached   int // prompt tokens that it is believed to hold
	InFlight int
	Wait     float64 // until its prefill would begin
	Work     float64 // that it would then prefill
	Evicted  float64 // work to compute again what it would push out
	Credit   float64 // for making a copy of a shared beginning
	Decoding float64 // what it would cost those whose answers are under way
	Penalty  float64
	Total    float64 // with the fleet's weight on work and evicted
}

// maxCosts is how many candidates a decision keeps: the cheapest, and the chosen one.
const maxCosts = 16

// Decision is one choice of a replica. It has numbers and names of the gateway's own;
// nothing of a prompt.
type Decision struct {
	ID      uint64 // counts up within the router; 0 for one that was not carried out
	Request string // the request's id
	At      time.Time
	Model   string
	Policy  Policy
	Why     Reason
	Chosen  *replica.Replica
	Shadow  *replica.Replica // what the shadow policy would have chosen, nil without one

	Tokens     int     // of the prompt
	Weight     float64 // on work and evicted
	Load       float64 // seconds of prefill reserved per second and replica
	Slack      float64 // seconds within which costs count as equal
	Candidates int     // of which Costs has the cheapest

	costs [maxCosts]CandidateCost
	kept  int

	// What came of it, when it is over.
	Over      bool
	End       End
	Cached    int // tokens that the replica reported
	Reported  bool
	Prefill   time.Duration // from the choice to the first event, 0 if there was none
	Predicted time.Duration // what that was expected to be
}

// Costs returns the candidates kept, the cheapest first.
func (d *Decision) Costs() []CandidateCost { return d.costs[:d.kept] }

// decisions keeps the last ones. The router's lock guards it.
type decisions struct{ ring [512]Decision }

func (k *decisions) at(id uint64) *Decision { return &k.ring[id%uint64(len(k.ring))] }

// record keeps the decision that a lease came of. It allocates nothing.
func (r *Router) record(l *Lease, c *choice) {
	d := r.last.at(l.id)
	r.describe(d, c, l.req)
	d.ID, d.Predicted = l.id, l.Predicted()
	if i := r.shadowed(c, l.req); i >= 0 {
		own, other := &r.candidates[c.index], &r.candidates[i]
		d.Shadow = r.chosen[i].replica
		l.shadow = Shadow{Replica: d.Shadow, Cached: other.Cached, Saved: (own.Wait + own.Work) - (other.Wait + other.Work)}
	}
}

// describe fills a decision with what it was made from.
func (r *Router) describe(d *Decision, c *choice, req *Request) {
	*d = Decision{
		Request: req.ID, At: c.at, Model: req.Model.Name, Policy: c.policy, Why: c.why, Chosen: r.chosen[c.index].replica,
		Tokens: c.total, Weight: c.fleet.Weight, Load: c.fleet.Load, Slack: c.fleet.Slack, Candidates: len(r.chosen),
	}
	candidates := r.candidates[:len(r.chosen)]
	var cheapest [maxCosts]int // of the others, the cheapest first; then the chosen one too
	n, enough := 0, math.Inf(1)
	for i := range candidates {
		if candidates[i].Total >= enough || i == c.index {
			continue
		}
		n = insert(&cheapest, min(n, maxCosts-2), i, candidates)
		if n == maxCosts-1 {
			enough = candidates[cheapest[n-1]].Total
		}
	}
	n = insert(&cheapest, n, c.index, candidates)
	for k, i := range cheapest[:n] {
		d.costs[k] = r.costOf(&c.fleet, i)
	}
	d.kept = n
}

// insert puts a candidate among n by its total, behind those that cost as much.
func insert(cheapest *[maxCosts]int, n, candidate int, candidates []Candidate) int {
	at := n
	for ; at > 0 && candidates[cheapest[at-1]].Total > candidates[candidate].Total; at-- {
		cheapest[at] = cheapest[at-1]
	}
	cheapest[at] = candidate
	return n + 1
}

func (r *Router) costOf(f *Fleet, i int) CandidateCost {
	c := &r.candidates[i]
	return CandidateCost{
		Replica: r.chosen[i].replica, Cached: c.Cached, InFlight: c.InFlight, Wait: c.Wait, Work: c.Work, Evicted: c.Evicted,
		Credit: f.credit(c), Decoding: f.sequences(c.Pace, float64(c.InFlight)), Penalty: c.Penalty, Total: c.Total,
	}
}

// learn notes what came of a lease.
func (k *decisions) learn(l *Lease, o *Outcome) {
	if d := k.at(l.id); d.ID == l.id {
		d.Over, d.End, d.Cached, d.Reported = true, o.End, o.Cached, o.CachedKnown
	}
}

// Decisions returns the last n decisions, the latest first.
func (r *Router) Decisions(n int) []Decision {
	r.mu.Lock()
	defer r.mu.Unlock()
	n = min(n, len(r.last.ring), int(min(r.leases, 1<<30)))
	list := make([]Decision, 0, n)
	for id := r.leases; len(list) < n; id-- {
		list = append(list, *r.last.at(id))
	}
	return list
}

// Explain returns the decision that Acquire would make. Nothing is reserved, and
// nothing that later decisions depend on changes.
func (r *Router) Explain(req *Request, now time.Time) (*Decision, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, err := r.decide(req, now)
	if err != nil {
		return nil, err
	}
	r.sequence--
	d := &Decision{}
	r.describe(d, &c, req)
	if i := r.shadowed(&c, req); i >= 0 {
		d.Shadow = r.chosen[i].replica
	}
	s := r.chosen[c.index]
	d.Predicted = seconds(s.overhead + r.candidates[c.index].Wait + r.candidates[c.index].Work)
	return d, nil
}

// Shadow is what the shadow policy would have done with a request.
type Shadow struct {
	Replica *replica.Replica // nil without such a policy
	Cached  int              // prompt tokens that it is believed to hold
	// Saved is by how many seconds the first token would have come sooner, as far as
	// wait and work tell; below 0 it would have come later.
	Saved float64
}

// Shadow returns what the shadow policy would have done.
func (l *Lease) Shadow() Shadow { return l.shadow }

// shadowed returns which of r.chosen the shadow policy takes, -1 without one.
func (r *Router) shadowed(c *choice, req *Request) int {
	if r.shadow == nil {
		return -1
	}
	i, _ := r.choose(r.shadow, c, req)
	return i
}

// ShadowName returns the name of the shadow policy, "" if there is none.
func (r *Router) ShadowName() string { return r.cfg.Shadow }
