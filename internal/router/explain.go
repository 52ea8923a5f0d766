package router

import (
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
	r.describe(d, c, l.req, l.at)
	d.ID, d.Predicted = l.id, l.Predicted()
	if i := r.shadowed(c, l.req, l.at); i >= 0 {
		own, other := &r.candidates[c.index], &r.candidates[i]
		d.Shadow = r.chosen[i].replica
		l.shadow = Shadow{Replica: d.Shadow, Cached: other.Cached, Saved: (own.Wait + own.Work) - (other.Wait + other.Work)}
	}
}

// describe fills a decision with what it was made from.
func (r *Router) describe(d *Decision, c *choice, req *Request, now time.Time) {
	*d = Decision{
		Request: req.ID, At: now, Model: req.Model.Name, Policy: c.policy, Why: c.why, Chosen: r.chosen[c.index].replica,
		Tokens: c.total, Weight: c.fleet.weight(), Load: c.fleet.Load, Slack: c.fleet.Slack, Candidates: len(r.chosen),
	}
	for i := range r.chosen {
		if i != c.index && !d.dearer(c.fleet.cost(&r.candidates[i], d.Weight), maxCosts-1) {
			d.keep(r.costOf(&c.fleet, i, d.Weight), maxCosts-1)
		}
	}
	d.keep(r.costOf(&c.fleet, c.index, d.Weight), maxCosts)
}

func (r *Router) costOf(f *Fleet, i int, weight float64) CandidateCost {
	c := &r.candidates[i]
	return CandidateCost{
		Replica: r.chosen[i].replica, Cached: c.Cached, InFlight: c.InFlight, Wait: c.Wait, Work: c.Work, Evicted: c.Evicted,
		Credit: f.credit(c, weight), Decoding: f.sequences(c.Pace, float64(c.InFlight)), Penalty: c.Penalty, Total: f.cost(c, weight),
	}
}

// dearer reports whether n that cost no more than total are kept already.
func (d *Decision) dearer(total float64, n int) bool {
	return d.kept >= n && d.costs[d.kept-1].Total <= total
}

// keep puts a cost among the cheapest n.
func (d *Decision) keep(c CandidateCost, n int) {
	if d.dearer(c.Total, n) {
		return
	}
	d.kept = min(d.kept, n-1)
	i := d.kept
	for d.kept++; i > 0 && d.costs[i-1].Total > c.Total; i-- {
		d.costs[i] = d.costs[i-1]
	}
	d.costs[i] = c
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
	r.describe(d, &c, req, now)
	if i := r.shadowed(&c, req, now); i >= 0 {
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
func (r *Router) shadowed(c *choice, req *Request, now time.Time) int {
	if r.shadow == nil {
		return -1
	}
	i, _ := r.choose(r.shadow, c.fleet, req, c.previous, now)
	return i
}

// ShadowName returns the name of the shadow policy, "" if there is none.
func (r *Router) ShadowName() string { return r.cfg.Shadow }
