package proxy

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// Why the watch ends an attempt.
var (
	errLate     = errors.New("the replica sent nothing for too long")
	errLost     = errors.New("the replica is down or asleep")
	errStopping = errors.New("the gateway is stopping")
)

// watch looks after attempts under way: one goroutine for all of them, so that an
// event costs no timer. It ends an attempt whose replica is silent for too long, or
// is lost before anything of the answer has reached the client.
type watch struct {
	headerTimeout, eventTimeout time.Duration // 0 for none

	began time.Time
	now   atomic.Int64 // of the last look, since began; never 0

	mu       sync.Mutex
	first    *attempt
	stopping bool
}

// attempt is one request at one replica, as the watch sees it.
type attempt struct {
	before, after *attempt // in the watch's list, guarded by its lock
	x             *exchange
	ctx           context.Context
	cancel        context.CancelCauseFunc // nil if not under way

	heard atomic.Int64 // when the replica was last heard of, by the watch's clock; 0 while the client is waited for
	begun atomic.Bool  // the answer's head has come
	spent atomic.Bool  // something of the answer has reached the client: no other replica can be asked
}

// begin starts to watch an attempt, whose context it returns.
func (w *watch) begin(parent context.Context, a *attempt) context.Context {
	ctx, cancel := context.WithCancelCause(parent)
	a.ctx, a.cancel = ctx, cancel
	a.begun.Store(false)
	a.spent.Store(false)
	a.heard.Store(w.now.Load())
	w.mu.Lock()
	defer w.mu.Unlock()
	a.before, a.after = nil, w.first
	if w.first != nil {
		w.first.before = a
	}
	w.first = a
	if w.stopping {
		cancel(errStopping)
	}
	return ctx
}

// end stops to watch an attempt. Calls after the first do nothing.
func (w *watch) end(a *attempt) {
	if a.cancel == nil {
		return
	}
	w.mu.Lock()
	if a.before != nil {
		a.before.after = a.after
	} else {
		w.first = a.after
	}
	if a.after != nil {
		a.after.before = a.before
	}
	a.before, a.after = nil, nil
	w.mu.Unlock()
	a.cancel(context.Canceled)
	a.ctx, a.cancel = nil, nil
}

// cause returns why the attempt was ended, if it was, instead of what that did to
// its connection.
func (a *attempt) cause(err error) error {
	if err != nil && a.ctx.Err() != nil {
		return context.Cause(a.ctx)
	}
	return err
}

// hears notes that the attempt is waiting for its replica from now on.
func (w *watch) hears(a *attempt) { a.heard.Store(w.now.Load()) }

// run looks at all attempts again and again until ctx ends.
func (w *watch) run(ctx context.Context) {
	ticker := time.NewTicker(w.interval())
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			w.look()
		}
	}
}

// interval is a part of the shortest timeout.
func (w *watch) interval() time.Duration {
	d := 250 * time.Millisecond
	for _, timeout := range [...]time.Duration{w.headerTimeout, w.eventTimeout} {
		if timeout > 0 {
			d = min(d, timeout/4)
		}
	}
	return max(d, 5*time.Millisecond)
}

// tick sets the clock.
func (w *watch) tick() int64 {
	now := max(1, int64(time.Since(w.began)))
	w.now.Store(now)
	return now
}

func (w *watch) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.tick()
	for a := w.first; a != nil; a = a.after {
		if err := w.verdict(a, now); err != nil {
			a.cancel(err)
		}
	}
}

// verdict returns why an attempt has to end, or nil. The caller holds the lock, so
// the attempt's exchange does not change its replica meanwhile.
func (w *watch) verdict(a *attempt, now int64) error {
	timeout := w.headerTimeout
	if a.begun.Load() {
		timeout = w.eventTimeout
	}
	heard := a.heard.Load()
	switch {
	case timeout > 0 && heard > 0 && now-heard > int64(timeout):
		return errLate
	case !a.spent.Load() && a.x.lease.Replica().Lost() && a.x.mayMove():
		return errLost
	}
	return nil
}

// stop ends every attempt, those to come included.
func (w *watch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopping = true
	for a := w.first; a != nil; a = a.after {
		a.cancel(errStopping)
	}
}
