package router

import (
	"time"

	"github.com/warmpath/warmpath/internal/prefix"
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

	// Of Holds and Dropped.
	Chain  *prefix.Chain // valid during the call alone
	Factor float64       // the sender's tokens for each that the chain counts
	Prompt int           // what the engine counted in all of it, 0 if it is not known
	Answer int           // tokens that it generated behind it, 0 if they are not known
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
	return e.Kind < Holds || e.Chain != nil && e.Factor >= minFactor && e.Factor <= maxFactor && (e.Prompt == 0 || plausible(e.Prompt, e.Chain))
}

// share is what a router knows of the others. The router's lock guards it.
type share struct {
	report func(Event)          // nil if nobody listens
	leases map[peerLease]*Lease // the others' requests under way
	index  int                  // of this router among all, from 0
	count  int                  // how many there are, 0 or 1 if it is alone
	lag    time.Duration        // until it knows what another has sent
}

// peerLease names a lease of another router.
type peerLease struct{ peer, lease uint64 }

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
	key := peerLease{peer, e.Lease}
	switch e.Kind {
	case Routed:
		if r.share.leases[key] != nil {
			return // it was told before
		}
		l := &Lease{router: r, slot: s, at: now, stream: e.Stream, uncached: e.Tokens, work: e.Work}
		s.count(now)
		s.push(l)
		s.reserve(l.work, now)
		r.share.leases[key] = l
	case FirstSeen:
		if l := r.share.leases[key]; l != nil && l.state == pending {
			s.toDecoding(l)
			s.last = now
		}
	case Ended:
		if l := r.share.leases[key]; l != nil {
			s.count(now)
			s.remove(l)
			delete(r.share.leases, key)
		}
	case Holds:
		slot := s.replica.Slot
		r.index.Reserve(e.Chain, slot, e.Factor)
		r.index.Confirm(e.Chain, slot, e.Factor)
		if e.Prompt > 0 {
			r.index.Learn(e.Chain, slot, e.Prompt)
		}
		if e.Answer > 0 {
			r.index.Answered(e.Chain, slot, e.Answer)
		}
	case Dropped:
		r.index.Withdraw(e.Chain, s.replica.Slot)
	}
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
