package proxy

import (
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/warmpath/warmpath/internal/openai"
)

// This file is how long the gateway waits for clients, and how much of theirs it
// takes in at a time.

// admit counts the request among those under way, or refuses it for their number.
func (x *exchange) admit() bool {
	n := x.p.inFlight.Add(1)
	if limit := int64(x.p.cfg.MaxInFlight); limit == 0 || n <= limit {
		return true
	}
	x.refuse("in_flight", &openai.Error{
		Status: http.StatusTooManyRequests, Type: "rate_limit_error", Code: "too_many_requests", RetryAfter: time.Second,
		Message: "the gateway has as many requests under way as its max_in_flight allows",
	})
	return false
}

// upload reads a request's body as long as its client keeps sending.
type upload struct {
	from    io.Reader
	control *http.ResponseController
	timeout time.Duration // 0 for none
	until   time.Time     // the deadline that is set
}

// Read reads what there is, and waits for it no longer than the timeout. The
// deadline is moved when a quarter of it is over, not each time.
func (u *upload) Read(p []byte) (int, error) {
	if u.timeout > 0 {
		if now := time.Now(); u.until.Sub(now) < u.timeout*3/4 {
			u.until = now.Add(u.timeout)
			_ = u.control.SetReadDeadline(u.until) // without one, it waits
		}
	}
	return u.from.Read(p)
}

// done ends the reading. Of a whole body, the connection is only watched for its end
// from here on; the rest of another is not waited for any longer than it was.
func (u *upload) done(whole bool) {
	if whole && !u.until.IsZero() {
		_ = u.control.SetReadDeadline(time.Time{})
	}
	*u = upload{}
}

// isTimeout reports whether a read or write failed for its deadline.
func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }

// allowBody gives the client time to send a body that nobody will read: net/http waits
// for what is left of it before it answers.
func (p *Proxy) allowBody(w http.ResponseWriter, r *http.Request) {
	if p.cfg.UploadTimeout > 0 && r.ContentLength != 0 {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(p.cfg.UploadTimeout)) // without one, it waits
	}
}

// multiplexed reports whether the request is a stream of a connection that has others.
// Its deadlines are of another kind: they end the stream when they pass, also while
// nothing is being read or written.
func multiplexed(r *http.Request) bool { return r.ProtoMajor > 1 }

// allowWrite gives the client time to take what is written to it next, and last.
func (p *Proxy) allowWrite(w http.ResponseWriter) {
	if p.cfg.WriteTimeout > 0 {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(p.cfg.WriteTimeout)) // without one, it waits
	}
}

// allow gives the client time to take what comes next: the whole time, or at least
// three quarters of it, since the deadline is not moved for every event.
func (x *exchange) allow(now time.Time) {
	if x.p.cfg.WriteTimeout > 0 && (multiplexed(x.r) || now.Sub(x.allowed) > x.p.cfg.WriteTimeout/4) {
		x.allowed = now
		_ = x.control.SetWriteDeadline(now.Add(x.p.cfg.WriteTimeout)) // without one, it waits
	}
}

// rest is between two writes: the client owes nothing while its replica is silent.
func (x *exchange) rest() {
	if x.p.cfg.WriteTimeout > 0 && multiplexed(x.r) {
		_ = x.control.SetWriteDeadline(time.Time{})
	}
}

// late reports whether the client has not taken the last write in its time. Over
// HTTP/2 the write's own error only says that the stream has ended.
func (x *exchange) late() bool {
	timeout := x.p.cfg.WriteTimeout
	return timeout > 0 && multiplexed(x.r) && time.Since(x.allowed) >= timeout
}

// dropBody gives the request's body back as soon as nobody needs it.
func (x *exchange) dropBody() {
	if x.body != nil {
		x.body.release()
		x.body, x.openai = nil, openai.Request{}
	}
}

// write gives the client a piece of the answer, at the time that is now.
func (x *exchange) write(piece []byte, flush bool, now time.Time) error {
	x.allow(now)
	x.headHeld = false
	x.attempt.heard.Store(0) // it is the client who is waited for
	if !x.attempt.spent.Swap(true) {
		x.dropBody() // it will not be sent again
	}
	_, err := x.w.Write(piece)
	if err == nil && flush {
		err = x.control.Flush()
	}
	x.rest()
	x.p.watch.hears(&x.attempt)
	return err
}
