package bench

import (
	"context"
	"sync"
	"time"
)

// Turn is one request of a schedule, and what follows it in its session.
type Turn struct {
	At time.Duration // when it is due after the start; a later turn's is not looked at
	// Call makes the request shortly before it is due; said holds the answers to the
	// session's earlier turns.
	Call func(said []Answer) Call
	// Next is due Think after the end of this turn's answer. It is not sent if this
	// one fails: nobody would go on with a talk whose answer they did not get.
	Next  *Turn
	Think time.Duration
}

// Loop sends a schedule in an open loop: when requests are due does not depend on
// how fast the server answers, but for the later turns of a session.
type Loop struct {
	Send func(context.Context, Call) Answer
	// InFlight bounds the requests under way, those about to be sent included. One
	// that has to wait for another's end is sent late, and says so.
	InFlight int
	// Done gets each answer, one at a time, and how many turns will not be sent
	// because of its failure.
	Done func(a Answer, dropped int)

	slots chan struct{}
	mu    sync.Mutex // serialises Done
}

// lead is how long before a request is due its body is made. It is more than the
// largest prompt takes.
const lead = 50 * time.Millisecond

// Run sends the turns, which are in the order in which they are due, and returns
// when the last answer has ended or, with the answers under way cut, when ctx is
// over. It returns how long that took.
func (l *Loop) Run(ctx context.Context, turns []*Turn) time.Duration {
	l.slots = make(chan struct{}, max(1, l.InFlight))
	start := time.Now().Add(lead) // so that the first is not late
	var sessions sync.WaitGroup
	for _, t := range turns {
		due := start.Add(t.At)
		if !sleepUntil(ctx, due.Add(-lead)) || !l.acquire(ctx) {
			break
		}
		sessions.Go(func() { l.session(ctx, t, start, due) })
	}
	sessions.Wait()
	return time.Since(start)
}

// session sends a turn, for which it has a slot, and those that follow.
func (l *Loop) session(ctx context.Context, t *Turn, start, due time.Time) {
	var said []Answer
	for {
		call := t.Call(said)
		ok := sleepUntil(ctx, due)
		if ok && len(said) > 0 {
			ok = l.acquire(ctx)
		}
		if !ok {
			if len(said) == 0 {
				l.release()
			}
			return
		}
		a := l.Send(ctx, call)
		l.release()
		a.At, a.Late = due.Sub(start), a.Sent.Sub(due)
		l.done(a, t)
		if t.Next == nil || a.Failure != None {
			return
		}
		said = append(said, a)
		due = a.Sent.Add(a.Took + t.Think)
		t = t.Next
	}
}

func (l *Loop) acquire(ctx context.Context) bool {
	select {
	case l.slots <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (l *Loop) release() { <-l.slots }

func (l *Loop) done(a Answer, t *Turn) {
	dropped := 0
	if a.Failure != None {
		dropped = t.following()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.Done(a, dropped)
}

// Closed sends in a closed loop: a number of users, each of which sends its next
// request when the answer to its last one has ended. A server that stalls is sent
// less, so what a closed loop shows is throughput at a concurrency, not what users
// who come by themselves would wait; use [Loop] for that.
type Closed struct {
	Send  func(context.Context, Call) Answer
	Users int
	// Next hands out the sessions, one at a time; nil ends the run.
	Next func() *Turn
	// Done is as in [Loop].
	Done func(a Answer, dropped int)

	mu sync.Mutex // serialises Next and Done
}

// Run sends until Next or ctx ends it and the answers under way have ended. It
// returns how long that took.
func (c *Closed) Run(ctx context.Context) time.Duration {
	start := time.Now()
	var users sync.WaitGroup
	for range max(1, c.Users) {
		users.Go(func() {
			for t := c.next(ctx); t != nil; t = c.next(ctx) {
				c.session(ctx, t, start)
			}
		})
	}
	users.Wait()
	return time.Since(start)
}

func (c *Closed) next(ctx context.Context) *Turn {
	if ctx.Err() != nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.Next()
}

// session sends a turn and those that follow. A request is due when the user is
// done thinking, so none is late.
func (c *Closed) session(ctx context.Context, t *Turn, start time.Time) {
	var said []Answer
	for {
		a := c.Send(ctx, t.Call(said))
		a.At = a.Sent.Sub(start)
		dropped := 0
		if a.Failure != None {
			dropped = t.following()
		}
		c.mu.Lock()
		c.Done(a, dropped)
		c.mu.Unlock()
		if t.Next == nil || a.Failure != None || !sleepUntil(ctx, a.Sent.Add(a.Took+t.Think)) {
			return
		}
		said = append(said, a)
		t = t.Next
	}
}

// following returns how many turns come after this one.
func (t *Turn) following() int {
	n := 0
	for t = t.Next; t != nil; t = t.Next {
		n++
	}
	return n
}

func sleepUntil(ctx context.Context, at time.Time) bool {
	wait := time.Until(at)
	if wait <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
