package router

import (
	"math"
	"time"

	"github.com/warmpath/warmpath/internal/prefix"
	"github.com/warmpath/warmpath/internal/replica"
)

// This file is what routers that share their replicas tell each other. A router
// that knows only its own requests believes idle what another has just filled.

// EventKind says what an [Event] tells.
type EventKind uint8

// The kinds of events. The first three are about load and worth knowing within
// milliseconds; the others may be late (routing.md §3.1).
const (
	Routed    EventKind = iota // a request was given to the replica
	FirstSeen                  // its prefill has ended
	Ended                      // it is over, whether its prefill had ended or not
	Holds                      // the replica has, or is about to have, a prompt in its cache
	Dropped                    // what Holds said before will not come: the request ended before its prefill
	Keeps                      // a session, or what continues a response, belongs to the replica
)

// Event is something that one router did.
type Event struct {
	Kind    EventKind
	Replica uint64 // its [replica.Replica.Hash]

	// Of the load kinds.
	Lease  uint64  // counts up within the sender
	Work   float64 // seconds of prefill, at the replica's pace
	Tokens int     // uncached prompt tokens
	Stream bool    // its prefill's end will be seen

	// Of Holds and Dropped, and of a Routed that has much work: then it says Holds too.
	Chain  *prefix.Chain // valid during the call alone
	Factor float64       // the sender's tokens for each that the chain counts

	// Of Holds and Dropped.
	Known  bool // the Routed of the same request has said so
	Prompt int  // what the engine counted in all of it, 0 if it is not known
	Answer int  // tokens that it generated behind it, 0 if they are not known

	// Of Keeps; Tokens are those that the response left at the replica.
	Session prefix.Hash
}

// Bounds on what one event can say; a request's work is an hour at the very most.
const (
	maxEventWork   = 3600.0
	maxEventTokens = 1 << 24
)

// plausible reports whether a router can have said that. What others say enters
// sums that a single bad number would spoil for ever.
func (e *Event) plausible() bool {
	whole := func(n int) bool { return n >= 0 && n <= maxEventTokens }
	if !(e.Work >= 0 && e.Work <= maxEventWork) || !whole(e.Tokens) || !whole(e.Prompt) || !whole(e.Answer) {
		return false
	}
	if e.Chain == nil {
		return e.Kind != Holds && e.Kind != Dropped
	}
	return e.Factor >= minFactor && e.Factor <= maxFactor && (e.Prompt == 0 || plausible(e.Prompt, e.Chain))
}

// share is what a router knows of the others. The router's lock guards it.
type share struct {
	report func(Event)                  // nil if nobody listens
	leases map[uint64]map[uint64]*Lease // the others' requests under way, by peer and lease
	index  int                          // of this router among all, from 0
	count  int                          // how many there are, 0 or 1 if it is alone
	lag    time.Duration                // until it knows what another has sent
}

// maxPeerLeases bounds what is kept of one other router.
const maxPeerLeases = 1 << 16

// slack returns within what costs of new prompts count as equal.
func (s *share) slack() time.Duration {
	if s.count < 2 {
		return slack
	}
	return min(maxSlack, max(slack, slackLags*s.lag))
}

// mine reports whether the i-th replica that could take a request is of this
// router's part. Routers agree on that as far as they see the same replicas as ready.
func (s *share) mine(i int) bool { return s.count > 1 && i%s.count == s.index }

// Report makes the router tell what it does. It calls to with its lock held: to
// must not block, nor call the router. Set it before the first request.
func (r *Router) Report(to func(Event)) { r.share.report = to }

// Peers tells the router that it is number index, from 0, of count that share the
// replicas, in an order that all of them know, and how late their loads are known.
func (r *Router) Peers(index, count int, lag time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.share.index, r.share.count, r.share.lag = index, count, lag
}

// Apply takes an event of another router, which peer names.
func (r *Router) Apply(peer uint64, e *Event, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.byHash[e.Replica]
	if s == nil || !e.plausible() {
		return // it does not serve here, or not yet
	}
	switch e.Kind {
	case Routed:
		r.routedBy(peer, s, e, now)
	case FirstSeen:
		if l := r.share.leases[peer][e.Lease]; l != nil && l.state == pending {
			l.slot.toDecoding(l)
			l.slot.last = r.moment(now)
		}
	case Ended:
		if l := r.share.leases[peer][e.Lease]; l != nil {
			r.endedBy(peer, l, now)
		}
	case Holds:
		slot := s.at()
		if !e.Known || !r.holdsAll(e.Chain, slot) {
			r.heldBy(e, slot)
		}
		if e.Prompt > 0 {
			r.index.Learn(e.Chain, slot, e.Prompt)
		}
		if e.Answer > 0 {
			r.index.Answered(e.Chain, slot, e.Answer)
		}
	case Dropped:
		r.index.Withdraw(e.Chain, s.at())
	case Keeps:
		r.sessions.put(e.Session, session{slot: s, tokens: e.Tokens, at: now})
	}
}

// routedBy counts a request that another router has sent, unless it is counted
// already: what is read twice does no harm.
func (r *Router) routedBy(peer uint64, s *slot, e *Event, now time.Time) *Lease {
	of := r.share.leases[peer]
	if l := of[e.Lease]; l != nil || len(of) >= maxPeerLeases {
		return l
	}
	if of == nil {
		of = map[uint64]*Lease{}
		r.share.leases[peer] = of
	}
	at := r.moment(now)
	l := &Lease{router: r, slot: s, id: e.Lease, at: at, stream: e.Stream, uncached: e.Tokens, work: e.Work}
	if e.Chain != nil {
		r.overlap(l, e)
	}
	s.count(at, &r.memory)
	s.push(l)
	s.reserve(l.work)
	of[e.Lease] = l
	return l
}

// overlap takes from a lease of another router what its replica holds, or is about to
// hold, by what that router did not know yet. In a burst of one new prompt each router
// has every replica compute it, as far as it knows; the engine does so once. Counted as
// often as told, it would send all of the burst where fewer routers have begun.
func (r *Router) overlap(l *Lease, e *Event) {
	slot := l.slot.at()
	known := r.index.Find(e.Chain, &r.matches)
	total := int(known.Tokens) + int(e.Factor*float64(e.Chain.Tokens-e.Chain.UpTo(known.Cut)))
	cached := r.usable(slot, int(r.matches.Of(slot).Tokens), total)
	if left := total - cached; left < l.uncached {
		l.work *= work(cached, left) / work(max(0, total-l.uncached), l.uncached)
		l.uncached = left
	}
	r.heldBy(e, slot)
}

// heldBy takes another's word that a slot holds a prompt.
func (r *Router) heldBy(e *Event, slot int) {
	r.index.Reserve(e.Chain, slot, e.Factor)
	r.index.Confirm(e.Chain, slot, e.Factor)
}

// holdsAll reports whether a slot is believed to hold a chain to its last cut.
func (r *Router) holdsAll(c *prefix.Chain, slot int) bool {
	r.index.Find(c, &r.matches)
	return int(r.matches.Of(slot).Cut) == len(c.Cuts)-1
}

func (r *Router) endedBy(peer uint64, l *Lease, now time.Time) {
	l.slot.count(r.moment(now), &r.memory)
	l.slot.remove(l)
	delete(r.share.leases[peer], l.id)
	if len(r.share.leases[peer]) == 0 {
		delete(r.share.leases, peer)
	}
}

// Open takes the whole list of another router's requests under way: Routed for each
// whose prefill has not ended, FirstSeen for the others. What of its events was lost
// is made good by it; an empty list forgets the router's load.
func (r *Router) Open(peer uint64, open []Event, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	listed := make(map[uint64]bool, len(open))
	for i := range open {
		e := &open[i]
		s := r.byHash[e.Replica]
		if s == nil || !e.plausible() {
			continue
		}
		listed[e.Lease] = true
		l := r.share.leases[peer][e.Lease]
		if l != nil && l.slot.gone { // it is back at the same address
			r.endedBy(peer, l, now)
			l = nil
		}
		if l != nil && l.slot != s {
			continue // not of this router's making
		}
		if l == nil {
			if l = r.routedBy(peer, s, e, now); l == nil {
				continue
			}
		}
		if e.Kind == FirstSeen && l.state == pending {
			s.toDecoding(l)
		} else if e.Kind == Routed {
			l.stream = e.Stream // after Fade
		}
	}
	for id, l := range r.share.leases[peer] {
		if !listed[id] {
			r.endedBy(peer, l, now)
		}
	}
}

// fadeHalf is the time in which half of the others' requests count as over, while
// nothing is heard of them.
const fadeHalf = 10 * time.Second

// Fade lets the load of all other routers go while nothing can be heard of them, as
// time passes since the last call: prefills count as ended when their work must be
// done, and of the requests whose prefill has ended, half in fadeHalf.
func (r *Router) Fade(passed time.Duration, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, of := range r.share.leases {
		for _, l := range of {
			l.stream = false // nobody will tell
		}
	}
	over := 1 - math.Exp2(-passed.Seconds()/fadeHalf.Seconds())
	for peer, of := range r.share.leases {
		for _, l := range of {
			l.slot.expire(r.moment(now))
			if l.state == decoding && r.random.Float64() < over {
				r.endedBy(peer, l, now)
			}
		}
	}
}

// Know makes the router take others' events about a replica from now on, though no
// request of its own has considered it yet.
func (r *Router) Know(rep *replica.Replica) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !rep.Gone() {
		r.slot(rep)
	}
}

// tellWork is the work, in seconds, from which others are told at once what prompt it is
// spent on. An engine cannot do more than 1/tellWork of such prompts in a second, which
// bounds what there is to tell. With 0.05 the lab's gateways make copies of one hot prompt
// later than one gateway does.
const tellWork = 0.02

// tellRouted reports the choice, and what will be held by it.
func (l *Lease) tellRouted() {
	e := Event{Kind: Routed, Work: l.work, Tokens: l.uncached, Stream: l.stream}
	if p := l.req.Prompt; l.work >= tellWork && len(p.Chains) == 1 && len(p.Chains[0].Cuts) > 0 && l.req.Previous == 0 && !l.req.NoCache {
		e.Chain, e.Factor = &p.Chains[0], l.router.model(l.req.Model).factorOf(&p.Chains[0])
	}
	l.tell(e)
	l.tellPrompt(Event{Kind: Holds, Known: e.Chain != nil})
}

// tell reports an event of a lease.
func (l *Lease) tell(e Event) {
	if l.router.share.report == nil {
		return
	}
	e.Replica, e.Lease = l.slot.replica.Hash, l.id
	l.router.share.report(e)
}

// tellPrompt reports an event about the whole prompt of a lease.
func (l *Lease) tellPrompt(e Event) {
	if l.router.share.report == nil {
		return
	}
	m := l.router.model(l.req.Model)
	for i := range l.req.Prompt.Chains {
		e.Chain = &l.req.Prompt.Chains[i]
		e.Factor = m.factorOf(e.Chain)
		l.tell(e)
	}
}

// tellKept reports that a session, or what continues a response, belongs to the
// replica of a lease.
func (l *Lease) tellKept(session prefix.Hash, tokens int) {
	l.tell(Event{Kind: Keeps, Session: session, Tokens: tokens})
}
