package proxy

import (
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/warmpath/warmpath/internal/openai"
	"github.com/warmpath/warmpath/internal/replica"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/upstream"
)

// relay carries the answer to the client as it comes, and ends the lease. It fails
// if nothing of the answer has reached the client, so that another replica may be
// asked; then the lease goes on. What has come by now goes out in one piece: a stream's
// head with the first event, and its last event with the end.
func (x *exchange) relay(resp *upstream.Response) error {
	defer resp.Close()
	stream := isEventStream(resp.Header)
	if turnsAway(resp.Status) && x.another() {
		return &turnedAway{status: resp.Status, retryAfter: retryAfter(resp.Header)}
	}
	if x.status != 0 && (resp.Status != http.StatusOK || !stream || resp.Header.Get("Content-Encoding") != "") {
		return &turnedAway{status: resp.Status, retryAfter: retryAfter(resp.Header), misfit: true}
	}
	x.err = nil // that of an attempt before
	x.meter.begin(x, resp.Status, stream)
	x.meter.retryAfter = retryAfter(resp.Header)
	x.unasked.restart()

	var piece []byte
	var err error
	if stream { // the head goes out at once if the first event may be long in coming
		x.writeHead(resp, !resp.Ready())
		piece, err = resp.Next()
	} else if piece, err = x.readFirst(resp); err != nil && !errors.Is(err, io.EOF) {
		return x.over(err, stream)
	}
	now := x.meter.take(piece)
	if x.meter.spoiled(err) && x.another() {
		return &turnedAway{status: http.StatusOK}
	}
	if !stream {
		x.writeHead(resp, false)
	}
	for {
		ended := errors.Is(err, io.EOF)
		if stream {
			piece = x.unasked.pass(piece)
			if ended {
				piece = append(piece, x.unasked.rest()...)
			}
		}
		if len(piece) > 0 {
			if err := x.write(piece, stream && !ended, now); err != nil {
				x.left(err)
				return nil
			}
		} else if stream && !ended {
			x.flushHead() // what came with it is held back
		}
		if ended {
			resp.Close() // before the attempt's end, which would break its connection off
		}
		if err != nil {
			return x.over(err, stream)
		}
		piece, err = resp.Next()
		now = x.meter.take(piece)
	}
}

// shortAnswer is the longest answer that is read whole before any of it is passed on.
const shortAnswer = 32 << 10

// readFirst reads the beginning of an answer that is not streamed: the whole of one
// that is known to be short, so that another replica can be asked if it breaks off.
func (x *exchange) readFirst(resp *upstream.Response) ([]byte, error) {
	first, err := resp.Next()
	if err != nil || resp.Length < 0 || resp.Length > shortAnswer {
		return first, err
	}
	whole := append(make([]byte, 0, resp.Length), first...)
	for err == nil {
		var piece []byte
		piece, err = resp.Next()
		whole = append(whole, piece...)
	}
	return whole, err
}

// left ends an exchange whose client takes no more of its answer.
func (x *exchange) left(err error) {
	if isTimeout(err) || x.late() {
		x.err = errSlow
	}
	x.finish(router.Canceled)
}

// over is at the end of what came of the answer. Like relay, it fails if another
// replica may be asked.
func (x *exchange) over(err error, stream bool) error {
	if errors.Is(err, io.EOF) {
		return x.whole(stream)
	}
	if x.r.Context().Err() != nil {
		x.finish(router.Canceled)
		return nil
	}
	err = x.attempt.cause(err)
	if !x.attempt.spent.Load() {
		return err
	}
	x.cutOff(err, stream)
	return nil
}

// whole is at the regular end of the answer's body.
func (x *exchange) whole(stream bool) error {
	end := x.meter.end()
	switch {
	case end != router.Failed:
		if end == router.Completed {
			x.lease.Replica().Succeeded()
		}
		x.finish(end)
	case x.meter.failed:
		x.err = errReported
		x.fail(replica.Aborted)
	case !x.meter.unfinished:
		x.fail(replica.Errored)
	case !x.attempt.spent.Load():
		return errUnfinished
	default:
		x.cutOff(errUnfinished, stream)
	}
	x.allow(time.Now()) // for what net/http writes last
	return nil
}

// writeHead sends the answer's status and headers: at once, or with what is written next.
func (x *exchange) writeHead(resp *upstream.Response, atOnce bool) {
	if x.status != 0 { // that of an attempt before will do: nothing of its answer came
		if atOnce {
			x.flushHead()
		}
		return
	}
	h := x.w.Header()
	connection, ours := h["Connection"]
	copyHeader(h, resp.Header)
	if ours {
		h["Connection"] = connection // the gateway's own word to its client
	}
	x.status = resp.Status
	rep := x.lease.Replica()
	h[HeaderReplica] = []string{rep.ID}
	if _, ok := h[headerRequestID]; !ok {
		h[headerRequestID] = []string{x.id}
	}
	if x.p.cfg.DecisionHeaders {
		prompt, cached := x.lease.Tokens()
		h[HeaderReason] = []string{x.lease.Why().String()}
		h[HeaderPredicted] = []string{strconv.Itoa(cached) + "/" + strconv.Itoa(prompt)}
	}
	if x.meter.stream { // so that no proxy in front holds events back
		delete(h, "Content-Length") // an event may be taken out, or added, or be another replica's
		if _, ok := h["Cache-Control"]; !ok {
			h["Cache-Control"] = noCache
		}
		if _, ok := h["X-Accel-Buffering"]; !ok {
			h["X-Accel-Buffering"] = noBuffering
		}
	}
	x.allow(time.Now())
	x.w.WriteHeader(resp.Status)
	x.headHeld = true
	if atOnce {
		x.flushHead()
	}
	x.rest()
}

// flushHead sends the answer's head if that waits for what is written next.
func (x *exchange) flushHead() {
	if x.headHeld {
		x.headHeld = false
		_ = x.control.Flush() // the next write tells
	}
}

var noCache, noBuffering = []string{"no-cache"}, []string{"no"}

// For the log: the status was 200, the answer was not good.
var (
	errReported   = errors.New("the replica reported an error within its answer")
	errUnfinished = errors.New("the replica's stream ended without its last event")
	errSlow       = errors.New("the client did not read its answer")
)

// cutOff ends an answer that broke off, so that the client cannot take it for a
// whole one.
func (x *exchange) cutOff(err error, stream bool) {
	x.err = err
	within := x.meter.scanner.Within() || !x.meter.reads // nobody watched where events end
	e := openai.Error{Type: "api_error", Code: "replica_lost", Message: "the replica broke the answer off"}
	if errors.Is(err, errStopping) {
		e.Code, e.Message = "stopping", "the gateway is stopping and could not wait for the end of the answer"
		x.finish(router.Canceled)
	} else {
		rep := x.lease.Replica()
		x.p.log.Warn("replica broke an answer off", "replica", rep.ID, "request_id", x.id, "err", err)
		x.fail(x.faultOf(err))
	}
	if !stream || x.w.Header().Get("Content-Encoding") != "" { // plain text would not be read
		panic(http.ErrAbortHandler)
	}
	event := e.Event(x.endpoint)
	if within {
		event = append([]byte("\n\n"), event...)
	}
	_ = x.write(event, true, time.Now()) // the client has gone if this fails
}
