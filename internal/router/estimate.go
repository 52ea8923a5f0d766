package router

import (
	"math"
	"time"

	"github.com/warmpath/warmpath/internal/replica"
)

// This file is what the router believes about one replica's queue and speed. All
// of it is read off the traffic, on this machine's clock (routing.md §2).

// Prefill time at pace 1: linear in the tokens to compute, and each attends to
// all before it. The absolute scale cancels out of most decisions; the pace that
// is learned per replica carries the rest.
const (
	secondsPerToken   = 1.0 / 8000
	secondsPerContext = secondsPerToken / 50_000
)

// work returns the seconds that a replica of pace 1 takes to prefill n tokens
// behind cached ones.
func work(cached, n int) float64 {
	c, u := float64(cached), float64(max(1, n))
	return secondsPerToken*u + secondsPerContext*u*(c+u/2)
}

// Starting values and rates of what is learned.
const (
	startGap      = 0.020 // seconds between two chunks of an answer
	startOverhead = 0.030 // seconds until a first token that are neither wait nor work
	maxOverhead   = 0.5
	gapRate       = 0.1
	overheadRate  = 0.05
	overheadStep  = 0.1  // seconds that one miss counts at most: what stalls once is no overhead
	loadMemory    = 10.0 // seconds
	penaltyHalf   = 2.5  // seconds
	maxPenalty    = 10.0 // seconds
	minPace       = 1.0 / 64
	maxPace       = 64
)

// slot is the state of one replica. The router's lock guards it.
type slot struct {
	replica    *replica.Replica
	gone       bool    // the replica is, and its number may be another's
	head, tail *Lease  // requests not prefilled yet, in the order they were sent
	queued     int     // how many these are
	sum        float64 // seconds of work that they have
	tokens     int     // and uncached tokens
	decoding   int     // requests prefilled and not done
	last       time.Time
	doubt      doubt
	window     window

	pace     float64
	samples  int
	sampled  time.Time // the last one
	gap      float64
	overhead float64

	busy    float64 // requests in flight, averaged over the last seconds
	counted time.Time

	penalty   float64
	penalized time.Time
	load      float64 // seconds of work reserved per second, decaying
	loaded    time.Time
}

func newSlot(r *replica.Replica) *slot {
	return &slot{replica: r, pace: 1, gap: startGap, overhead: startOverhead}
}

// began returns when the engine can have begun with l, if l is the oldest pending.
func (s *slot) began(l *Lease) time.Time {
	if s.last.After(l.at) {
		return s.last
	}
	return l.at
}

// wait returns the seconds until the replica would begin with a new request: the
// work before it, less what has been done of the oldest, plus half a step if the
// engine is in one. An engine that makes no progress shows by the age of its
// oldest request, long before a probe notices.
func (s *slot) wait(now time.Time) float64 {
	s.expire(now)
	w := s.sum
	if h := s.head; h != nil {
		w -= min(0.95*h.work, now.Sub(s.began(h)).Seconds())
	}
	if s.decoding > 0 || s.sum > 0 {
		w += s.gap / 2
	}
	if h := s.head; h != nil {
		w = max(w, now.Sub(h.at).Seconds()/2)
	}
	return max(0, w)
}

// expire takes answers that are not streamed for prefilled when their work must
// be over: nothing else tells until they are done.
func (s *slot) expire(now time.Time) {
	for h := s.head; h != nil && !h.stream; h = s.head {
		end := s.began(h).Add(seconds(h.work))
		if end.After(now) {
			return
		}
		s.toDecoding(h)
		s.last = end
	}
}

func (s *slot) push(l *Lease) {
	l.before = s.tail
	if s.tail != nil {
		s.tail.after = l
	} else {
		s.head = l
	}
	s.tail = l
	s.queued++
	s.sum += l.work
	s.tokens += l.uncached
	l.state = pending
}

func (s *slot) unlink(l *Lease) {
	if l.before != nil {
		l.before.after = l.after
	} else {
		s.head = l.after
	}
	if l.after != nil {
		l.after.before = l.before
	} else {
		s.tail = l.before
	}
	l.before, l.after = nil, nil
	s.queued--
	s.sum -= l.work
	s.tokens -= l.uncached
	if s.head == nil {
		s.sum = 0 // no drift from rounding
	}
}

// remove takes a lease off the slot and ends it.
func (s *slot) remove(l *Lease) {
	if l.state == decoding {
		s.decoding--
	} else {
		s.unlink(l)
	}
	l.state = done
}

func (s *slot) toDecoding(l *Lease) {
	s.unlink(l)
	l.state = decoding
	s.decoding++
}

// sameStep is how close two first events must be to come from one engine step.
const sameStep = 5 * time.Millisecond

// fcfs is how much later a request must have been sent for its first event to
// prove that an earlier one was prefilled too.
const fcfs = 50 * time.Millisecond

// prefilled takes the first event of l.
func (s *slot) prefilled(l *Lease, now time.Time) {
	miss := now.Sub(l.at).Seconds() - l.predicted
	s.overhead += overheadRate * min(overheadStep, max(-overheadStep, miss))
	s.overhead = min(maxOverhead, max(0, s.overhead))
	s.samplePace(l, now)
	if l.state == pending {
		s.toDecoding(l)
	}
	for h := s.head; h != nil && h.at.Before(l.at.Add(-fcfs)); {
		next := h.after
		if !h.stream {
			s.toDecoding(h)
		}
		h = next
	}
	s.last = now
}

// samplePace compares the time since the first event before this one with the
// work that lay between them. That is time of prefill, not of waiting, since the
// engine works in order; the time to first token would contain the queue. Whether
// a prefill counts must not depend on how long it took, or only those that were
// held up would: it counts if its work should stand out from the overhead.
func (s *slot) samplePace(l *Lease, now time.Time) {
	elapsed := now.Sub(s.began(l)).Seconds()
	if l.state != pending || l != s.head || elapsed < sameStep.Seconds() || s.penalized.After(l.at) {
		return
	}
	if l.base*s.pace < 2*max(s.overhead, startOverhead) {
		return
	}
	if l.idle {
		elapsed = max(elapsed/4, elapsed-s.overhead)
	}
	s.samples++
	s.sampled = now
	rate, bound := min(0.2, 0.05*float64(l.uncached)/4096), math.Ln2
	if s.samples <= 16 { // the first ones find the scale
		rate, bound = max(rate, 1/float64(s.samples+1)), math.Log(8)
	}
	step := math.Log(elapsed / l.base / s.pace)
	s.pace *= math.Exp(rate * min(bound, max(-bound, step)))
	s.pace = min(maxPace, max(minPace, s.pace))
}

// paceNoise is how far a replica's pace must be from the fleet's, as a factor,
// before it counts: with neighbours on the same machine, samples of equal engines
// differ by as much. What is beyond it counts in full proportion.
const paceNoise = 1.5

// paceMemory halves what is left of a pace's difference to the fleet's while no
// prefill samples it: a replica that nobody is sent to for its pace is tried again.
const paceMemory = 30 * time.Second

// steadyPace returns the pace, drawn towards the fleet's by the noise of samples
// and by their age.
func (s *slot) steadyPace(fleet float64, now time.Time) float64 {
	if within := s.pace / fleet; within <= paceNoise && within >= 1/paceNoise {
		return fleet // it only comes nearer
	}
	away := math.Log(s.pace / fleet)
	away *= math.Exp2(-now.Sub(s.sampled).Seconds() / paceMemory.Seconds())
	return fleet * math.Exp(math.Copysign(max(0, math.Abs(away)-math.Log(paceNoise)), away))
}

// reserve counts work in the load.
func (s *slot) reserve(work float64, now time.Time) {
	s.load = s.loadAt(now) + work/loadMemory
	s.loaded = now
}

func (s *slot) loadAt(now time.Time) float64 {
	if s.load == 0 {
		return 0
	}
	return s.load * math.Exp(-now.Sub(s.loaded).Seconds()/loadMemory)
}

// count brings the average of requests in flight up to now. It is called before
// their number changes.
func (s *slot) count(now time.Time) {
	dt := now.Sub(s.counted).Seconds()
	if dt <= 0 {
		return
	}
	if inFlight := float64(s.queued + s.decoding); s.busy != inFlight {
		s.busy += (1 - math.Exp(-dt/loadMemory)) * (inFlight - s.busy)
	}
	s.counted = now
}

// penalize adds seconds to the replica's cost for a while.
func (s *slot) penalize(by float64, now time.Time) {
	s.penalty = min(maxPenalty, s.penaltyAt(now)+by)
	s.penalized = now
}

func (s *slot) penaltyAt(now time.Time) float64 {
	if s.penalty == 0 {
		return 0
	}
	return s.penalty * math.Exp2(-now.Sub(s.penalized).Seconds()/penaltyHalf)
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
