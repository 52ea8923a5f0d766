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

// moment is a time in nanoseconds since the router was made. A decision reckons with
// some for every replica, which takes a [time.Time] many times as long.
type moment int64

// never is before all that happens, and not so long ago that what lies between overflows.
const never moment = math.MinInt64 / 2

// since returns the seconds from another moment to m.
func (m moment) since(other moment) float64 { return float64(m-other) * 1e-9 }

// plus returns the moment that many seconds after m.
func (m moment) plus(s float64) moment { return m + moment(seconds(s)) }

// slot is the state of one replica. The router's lock guards it. What every decision
// reads comes first, in one line of the CPU's cache, and then what it reads of a queue.
type slot struct {
	hash     uint64  // the replica's
	number   int32   // its slot
	queued   int32   // requests not prefilled yet
	decoding int32   // requests prefilled and not done
	busy     float64 // requests in flight, averaged over the last seconds
	load     float64 // seconds of work reserved per second, decaying
	counted  moment  // up to when busy and load are
	gap      float64
	pace     float64
	penalty  float64

	head, tail *Lease  // the queued, in the order they were sent
	sum        float64 // seconds of work that they have
	tokens     int     // and uncached tokens
	last       moment  // when the replica was last seen to go on with its queue
	penalized  moment
	sampled    moment // when pace last was
	samples    int

	overhead float64
	replica  *replica.Replica
	gone     bool // the replica is, and its number may be another's
	doubt    doubt
	window   window
}

func newSlot(r *replica.Replica) *slot {
	return &slot{
		replica: r, hash: r.Hash, number: int32(r.Slot), pace: 1, gap: startGap, overhead: startOverhead,
		counted: never, sampled: never, penalized: never, last: never,
	}
}

// at returns the slot's number.
func (s *slot) at() int { return int(s.number) }

// inFlight returns how many requests the replica was given that are not done.
func (s *slot) inFlight() int { return int(s.queued + s.decoding) }

// began returns when the engine can have begun with l, if l is the oldest pending.
func (s *slot) began(l *Lease) moment { return max(s.last, l.at) }

// wait returns the seconds until the replica would begin with a new request: the
// work before it, less what has been done of the oldest, plus half a step if the
// engine is in one. An engine that makes no progress shows by the age of its
// oldest request, long before a probe notices.
func (s *slot) wait(now moment) float64 {
	switch {
	case s.queued > 0:
		return s.queue(now)
	case s.decoding > 0:
		return s.gap / 2
	}
	return 0
}

// queue is wait where requests are queued.
func (s *slot) queue(now moment) float64 {
	if s.expire(now); s.head == nil {
		return s.wait(now)
	}
	h := s.head
	left := s.sum - min(0.95*h.work, now.since(s.began(h)))
	if s.decoding > 0 || s.sum > 0 {
		left += s.gap / 2
	}
	return max(0, left, now.since(h.at)/2)
}

// expire takes answers that are not streamed for prefilled when their work must
// be over: nothing else tells until they are done.
func (s *slot) expire(now moment) {
	for h := s.head; h != nil && !h.stream; h = s.head {
		end := s.began(h).plus(h.work)
		if end > now {
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

// sameStep is how many seconds apart two first events must be at most to come from one
// engine step.
const sameStep = 0.005

// fcfs is how much later a request must have been sent for its first event to
// prove that an earlier one was prefilled too.
const fcfs = moment(50 * time.Millisecond)

// prefilled takes the first event of l.
func (s *slot) prefilled(l *Lease, now moment) {
	miss := now.since(l.at) - l.predicted
	s.overhead += overheadRate * min(overheadStep, max(-overheadStep, miss))
	s.overhead = min(maxOverhead, max(0, s.overhead))
	s.samplePace(l, now)
	if l.state == pending {
		s.toDecoding(l)
	}
	for h := s.head; h != nil && h.at < l.at-fcfs; {
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
func (s *slot) samplePace(l *Lease, now moment) {
	elapsed := now.since(s.began(l))
	if l.state != pending || l != s.head || elapsed < sameStep || s.penalized > l.at {
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

// paceMemory is the seconds that halve what is left of a pace's difference to the fleet's
// while no prefill samples it: a replica that nobody is sent to for its pace is tried again.
const paceMemory = 30.0

// paceForgotten is the seconds after which nothing is left of any difference that paces
// can have: log(maxPace/minPace) halved five times is below log(paceNoise).
const paceForgotten = 5 * paceMemory

// steadyPace returns the pace, drawn towards the fleet's by the noise of samples
// and by their age.
func (s *slot) steadyPace(fleet float64, now moment) float64 {
	if s.pace <= fleet*paceNoise && s.pace*paceNoise >= fleet {
		return fleet // it only comes nearer
	}
	return s.ownPace(fleet, now)
}

// ownPace is steadyPace beyond the noise.
func (s *slot) ownPace(fleet float64, now moment) float64 {
	age := now.since(s.sampled)
	if age > paceForgotten {
		return fleet
	}
	away := math.Log(s.pace/fleet) * math.Exp2(-age/paceMemory)
	return fleet * math.Exp(math.Copysign(max(0, math.Abs(away)-math.Log(paceNoise)), away))
}

// memory is how much of an average is left after some time. It keeps the last answer: a
// decision asks it for every replica, most of which the one before brought up to the same
// moment.
type memory struct {
	passed moment
	left   float64
}

func (m *memory) after(passed moment) float64 {
	if passed == m.passed {
		return m.left
	}
	return m.reckon(passed)
}

func (m *memory) reckon(passed moment) float64 {
	m.passed, m.left = passed, math.Exp(-passed.since(0)/loadMemory)
	return m.left
}

// forgotten is below what any average is still told from 0.
const forgotten = 1e-15

// count brings the averages of load and of requests in flight up to now. It is called
// before either changes.
func (s *slot) count(now moment, m *memory) {
	passed := now - s.counted
	if passed <= 0 {
		return
	}
	s.counted = now
	inFlight := float64(s.queued + s.decoding)
	if s.busy == inFlight && s.load == 0 {
		return
	}
	left := m.after(passed)
	s.busy = inFlight + left*(s.busy-inFlight)
	s.load *= left
	if s.load < forgotten {
		s.load = 0
	}
	if s.busy < forgotten {
		s.busy = 0
	}
}

// reserve counts work in the load.
func (s *slot) reserve(work float64) { s.load += work / loadMemory }

// penalize adds seconds to the replica's cost for a while.
func (s *slot) penalize(by float64, now moment) {
	s.penalty = min(maxPenalty, s.penaltyAt(now)+by)
	s.penalized = now
}

func (s *slot) penaltyAt(now moment) float64 {
	if s.penalty == 0 {
		return 0
	}
	return s.penalty * math.Exp2(-now.since(s.penalized)/penaltyHalf)
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
