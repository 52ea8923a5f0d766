package replica

import (
	"math/rand/v2"
	"time"
)

// This file is what an endpoint's health is, and what traffic says of it between
// two probes. Traffic can only mark an endpoint down; a probe brings it back.

// Fault is a way in which a request shows that its replica is not well. What a
// client does wrong is none, nor is its leaving, nor that a replica is busy.
type Fault uint8

// The faults.
const (
	Refused Fault = iota // there was no connection to be had
	Reset                // the connection broke before the answer's head
	Late                 // nothing came for longer than is allowed
	Errored              // the answer was a 5xx
	CutOff               // the answer broke off, or ended without its last event
	Aborted              // the answer said that it was given up
	faults
)

// String returns the fault's word for metrics.
func (f Fault) String() string {
	return [...]string{"refused", "reset", "late", "error", "cut_off", "aborted"}[f]
}

// Faults returns every fault, for metrics that are made in advance.
func Faults() []Fault {
	all := make([]Fault, faults)
	for i := range all {
		all[i] = Fault(i)
	}
	return all
}

// The states of an endpoint.
const (
	fresh  int32 = iota // it has not been ready yet
	ready               // it may be sent to
	marked              // traffic says that it is not well; a probe will tell
	down                // the last probe failed
)

var stateNames = [...]string{"new", "ready", "marked", "down"}

// Rules of marking down. One refused connection says that nobody is there. Other
// faults may be one request's own, so it takes several without a success between.
// A mark is short the first time and grows while marks follow each other, so that
// an engine which only looks well does not come and go.
const (
	markAfter   = 3
	firstHold   = 500 * time.Millisecond
	longestHold = 10 * time.Second
	markMemory  = time.Minute
)

// shortestPause is the least time between two probes of an endpoint that is ready.
const shortestPause = 100 * time.Millisecond

// Failed says that a request showed a fault of the replica. It does not wait.
func (r *Replica) Failed(f Fault) {
	e := r.endpoint
	if n := e.faults.Add(1); f == Refused || n >= markAfter {
		e.state.CompareAndSwap(ready, marked)
	}
	e.probeSoon()
}

// Doubt has the replica probed soon: somebody else found that it is not well, which
// is no proof that it is not from here.
func (r *Replica) Doubt() { r.endpoint.probeSoon() }

// unwell tells of every replica behind the endpoint.
func (e *endpoint) unwell() {
	for _, r := range e.replicas {
		e.pool.notify(Event{Kind: Unwell, Replica: r})
	}
}

// Succeeded says that a request got its whole answer from the replica.
func (r *Replica) Succeeded() {
	if r.endpoint.faults.Load() != 0 {
		r.endpoint.faults.Store(0)
	}
}

// Ready reports whether the replica may be given requests.
func (r *Replica) Ready() bool {
	return r.endpoint.state.Load() == ready && r.willing()
}

// LastResort reports whether the replica is believed to be down, but has been ready
// before. Where no replica is ready, to try such a one is better than to refuse.
func (r *Replica) LastResort() bool {
	s := r.endpoint.state.Load()
	return (s == marked || s == down) && r.willing()
}

// Lost reports whether what was sent to the replica and has no answer yet is better
// sent to another: a probe failed, or it was put to sleep, which leaves requests queued.
func (r *Replica) Lost() bool { return r.endpoint.state.Load() == down || r.sleeping.Load() }

func (r *Replica) willing() bool { return !r.Leaving() && !r.draining.Load() && !r.sleeping.Load() }

// State returns a word for what is believed of the replica's server: new, ready,
// marked (down by traffic) or down; or leaving, if it is not discovered any more.
func (r *Replica) State() string {
	if r.Leaving() {
		return "leaving"
	}
	return stateNames[r.endpoint.state.Load()]
}

// Drain keeps new requests away from the replica, or lets them come again. Those
// under way go on.
func (r *Replica) Drain(on bool) { r.draining.Store(on) }

// Draining reports whether new requests are kept away.
func (r *Replica) Draining() bool { return r.draining.Load() }

// wait returns how long a probe has to wait, for which it is time or which traffic
// asks for: requests that fail in a row must not make as many probes, and an
// endpoint that is marked down again and again is left alone for its hold.
func (e *endpoint) wait(now time.Time, asked bool) time.Duration {
	switch s := e.state.Load(); {
	case s == ready && asked:
		return e.probed.Add(shortestPause).Sub(now)
	case s == marked:
		if e.hold.IsZero() {
			if now.Sub(e.markedAt) > markMemory {
				e.marks = 0
			}
			e.hold, e.markedAt = now.Add(holdOf(e.marks)), now
			e.marks++
			e.pool.log.Warn("replica is marked down by failing requests", "replica", e.id)
			e.unwell()
		}
		return e.hold.Sub(now)
	case asked: // it is looked for anyway
		return e.next.Sub(now)
	}
	return 0
}

// holdOf returns how long an endpoint that was marked n times lately is left alone.
func holdOf(n int) time.Duration {
	if n == 0 {
		return 0
	}
	return spread(min(longestHold, firstHold<<min(n-1, 10)))
}

// spread returns a time around d, so that gateways do not probe in step.
func spread(d time.Duration) time.Duration { return d*3/4 + rand.N(d/2+1) }
