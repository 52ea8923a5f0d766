package router

import (
	"time"

	"github.com/warmpath/warmpath/internal/prefix"
	"github.com/warmpath/warmpath/internal/replica"
)

// Lease is one request's share of one replica, from the choice until the answer
// has ended. Its methods may be called from one goroutine at a time.
type Lease struct {
	router *Router
	slot   *slot
	req    *Request
	why    Reason
	id     uint64 // counts up within the router

	// Guarded by the router's lock.
	state         state
	before, after *Lease // in the slot's queue

	at        moment
	stream    bool
	tokens    int     // of the whole prompt
	cached    int     // of these, predicted to be in the replica's cache
	uncached  int     // the others
	base      float64 // seconds of work at pace 1
	work      float64 // at the replica's pace
	predicted float64 // seconds until the prefill ends
	idle      bool    // the replica had nothing to do
	answer    int     // of cached, tokens that the replica generated in an earlier turn
	cut       int32   // the last one of the chain that the replica held, -1 for none
	longest   int     // the slot that held the most
	best      holding // what that was
	lost      int32   // the last cut of the chain that the replica would hold had it not been emptied, -1 for none
	gap       Gap
	shadow    Shadow
	clock     uint64 // the index's, when it was made
	used      uint64 // by the same clock, when what the replica held of the last chain had been used before, 0 for never

	generation uint16 // of the slot's cache
}

type state uint8

const (
	pending state = iota
	decoding
	done
)

// reserve makes the lease of what was chosen and counts it on the slot.
func (r *Router) reserve(req *Request, of *choice) *Lease {
	m, s, c := r.model(req.Model), r.chosen[of.index], &r.candidates[of.index]
	at := s.at()
	r.leases++
	l := &Lease{
		router: r, slot: s, req: req, why: of.why, id: r.leases, at: of.now, stream: req.Stream,
		tokens: of.total, cached: c.Cached, uncached: of.total - c.Cached, base: work(c.Cached, of.total-c.Cached),
		generation: r.index.Generation(at), work: c.Work, idle: s.inFlight() == 0,
		longest: r.chosen[of.longest].at(), cut: r.held[at].cuts - 1, lost: -1, clock: r.index.Clock(),
	}
	l.best = r.held[l.longest]
	if len(req.Prompt.Chains) == 1 {
		l.lost = r.index.Lost(&req.Prompt.Chains[0], at)
	}
	if c.Cached > 0 {
		l.answer = min(c.Cached, r.held[at].answer)
	}
	l.predicted = s.overhead + c.Wait + l.work
	s.push(l) // its averages were brought up to now by assess
	s.replica.Hold()
	s.reserve(l.work)
	r.index.Pin(at, s.inFlight()) // each has a block that is not full
	for i := range req.Prompt.Chains {
		chain := &req.Prompt.Chains[i]
		l.used = r.index.Reserve(chain, at, m.factorOf(chain))
	}
	l.tellRouted()
	return l
}

// Replica returns the replica that was chosen.
func (l *Lease) Replica() *replica.Replica { return l.slot.replica }

// Why returns why it was chosen.
func (l *Lease) Why() Reason { return l.why }

// Tokens returns how many tokens the prompt is believed to have, and how many of
// them the replica is predicted to find in its cache.
func (l *Lease) Tokens() (prompt, cached int) { return l.tokens, l.cached }

// Predicted returns when the prefill is expected to end, counted from the choice.
func (l *Lease) Predicted() time.Duration { return seconds(l.predicted) }

// Prefilled says that the first event of the answer has come, of whatever kind:
// the prefill is over and the prompt is in the replica's cache.
func (l *Lease) Prefilled(now time.Time) {
	r := l.router
	r.mu.Lock()
	defer r.mu.Unlock()
	if l.state == done {
		return
	}
	at := r.moment(now)
	l.slot.prefilled(l, at)
	if d := r.last.at(l.id); d.ID == l.id {
		d.Prefill = time.Duration(at - l.at)
	}
	l.tell(Event{Kind: FirstSeen})
	l.confirm()
}

func (l *Lease) confirm() {
	r := l.router
	if l.emptied() {
		return
	}
	l.slot.window.count(l)
	m := r.model(l.req.Model)
	for i := range l.req.Prompt.Chains {
		c := &l.req.Prompt.Chains[i]
		r.index.Confirm(c, l.slot.at(), m.factorOf(c))
	}
}

// emptied reports whether the replica's cache was emptied since the choice, or the
// replica is gone.
func (l *Lease) emptied() bool {
	return l.slot.gone || l.router.index.Generation(l.slot.at()) != l.generation
}

// End says how a request ended.
type End uint8

// The ways a request ends.
const (
	Completed End = iota // with a whole answer
	Canceled             // the client left
	Rejected             // the replica refused it for what it asks (4xx)
	Busy                 // the replica refused it for its load (429, 503)
	Failed               // the replica failed
)

// Outcome is what became of a request.
type Outcome struct {
	End        End
	Prefilled  bool          // its prefill is known to have ended
	RetryAfter time.Duration // what a Busy replica asked for

	// What the engine reported, zero if it did not.
	Prompt, Cached, Completion int
	CachedKnown                bool
	Gap                        time.Duration // mean time between two chunks of the answer
	Response                   prefix.Hash   // the key of the response's id, if it can be continued
}

// Penalties in seconds: a failing replica must not look fast because it answers
// soon, nor be shut out for long by one fault (routing.md §2.2).
const (
	failedPenalty = 2.0
	busyPenalty   = 1.0
)

// Done ends the lease. It must be called once; later calls do nothing.
func (l *Lease) Done(o Outcome, now time.Time) {
	r := l.router
	r.mu.Lock()
	defer r.mu.Unlock()
	if l.state == done {
		return
	}
	s, at := l.slot, r.moment(now)
	s.count(at, &r.memory)
	s.remove(l)
	s.replica.Release()
	r.last.learn(l, &o)
	l.tell(Event{Kind: Ended})
	if o.End == Completed && !o.Prefilled {
		l.confirm() // an answer that was not streamed
	} else if !o.Prefilled && !l.emptied() {
		gone := false
		for i := range l.req.Prompt.Chains {
			gone = r.index.Undo(&l.req.Prompt.Chains[i], s.at()) || gone
		}
		if gone {
			l.tellPrompt(Event{Kind: Dropped})
		}
	}
	switch {
	case o.End == Failed && !o.Prefilled:
		s.penalize(failedPenalty, at)
	case o.End == Busy:
		by := busyPenalty
		if o.RetryAfter > 0 {
			by = min(by, o.RetryAfter.Seconds())
		}
		s.penalize(by, at)
	}
	if o.Gap > 0 {
		s.gap += gapRate * (o.Gap.Seconds() - s.gap)
	}
	if o.End == Completed {
		s.window.ended(l, o.CachedKnown)
		l.learn(&o)
	}
	if o.Response != 0 {
		r.sessions.put(o.Response, session{slot: s, tokens: o.Prompt + o.Completion, at: now})
		l.tellKept(o.Response, o.Prompt+o.Completion)
	}
}

// Bounds and rates of what is learned about a model's tokens.
const (
	factorRate = 0.05
	minFactor  = 0.25
	maxFactor  = 4
	carryRate  = 0.1
)

// plausible reports whether an engine can have counted so many tokens in a chain.
// What it says enters numbers that all replicas share.
func plausible(tokens int, c *prefix.Chain) bool {
	if c.Exact {
		return tokens == int(c.Tokens)
	}
	return float64(tokens) > minFactor/2*float64(c.Tokens) && float64(tokens) < 2*maxFactor*float64(c.Tokens)
}

// learn compares what the engine reported with what was believed.
func (l *Lease) learn(o *Outcome) {
	if len(l.req.Prompt.Chains) != 1 || l.req.Previous != 0 || l.emptied() || !plausible(o.Prompt, &l.req.Prompt.Chains[0]) {
		return
	}
	r, s := l.router, l.slot.at()
	m := r.model(l.req.Model)
	c := &l.req.Prompt.Chains[0]
	if !c.Exact && c.Tokens > 0 {
		m.samples++
		ratio := float64(o.Prompt) / float64(c.Tokens)
		m.factor += max(factorRate, 1/float64(m.samples)) * (ratio - m.factor)
		m.factor = min(maxFactor, max(minFactor, m.factor))
	}
	r.index.Learn(c, s, o.Prompt)
	answer := max(0, o.Completion-1) // the last token was never computed with
	if answer > 0 {
		r.index.Answered(c, s, answer)
	}
	l.tellPrompt(Event{Kind: Holds, Prompt: o.Prompt, Answer: answer})
	if o.CachedKnown && !l.req.NoCache {
		l.compare(o, m, c)
	}
}

// compare holds what the engine found in its cache against what was believed.
func (l *Lease) compare(o *Outcome, m *modelState, c *prefix.Chain) {
	r, s := l.router, l.slot.at()
	// What was held, in tokens as they are known by now: at the time of choice, the
	// model's tokens per byte may have been a guess.
	block := r.index.Block(s)
	tokens, exact := r.index.TokensAt(c, l.cut)
	held := r.usable(s, tokens, o.Prompt)
	tolerance := max(2*block, o.Prompt/16)
	if !exact {
		tolerance = max(tolerance, held/4) // where in the prompt the cut is, is a guess
	}
	lost := held - o.Cached
	if lost <= tolerance {
		lost = 0
	}
	switch {
	case l.answer >= block && lost == 0:
		// What is missing may be the answer, which templates may render otherwise.
		share := float64(o.Cached-held) / float64(l.answer)
		m.carry += carryRate * (min(1, max(0, share)) - m.carry)
		l.slot.doubt.kept(o.Cached)
	case lost > 0:
		r.index.Shortfall(s, l.used)
		l.slot.doubt.contradicted(l.used, l.clock, o.Cached)
	case o.Cached > held+tolerance:
		r.index.Surplus(s, (o.Cached-held)/block)
	case held > 0:
		r.index.Held(s, l.used)
		l.slot.doubt.kept(o.Cached)
	}
	l.measure(o.Prompt, o.Cached, held, lost, tolerance)
}
