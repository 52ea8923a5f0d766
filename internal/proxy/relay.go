package proxy

import (
	"errors"
	"io"
	"net/http"
	"strconv"

	"github.com/warmpath/warmpath/internal/openai"
	"github.com/warmpath/warmpath/internal/replica"
	"github.com/warmpath/warmpath/internal/router"
)

// relay carries the answer to the client as it comes, and ends the lease.
func (x *exchange) relay(resp *http.Response) {
	defer resp.Body.Close()
	stream := isEventStream(resp.Header)
	x.err = nil // that of an attempt before
	x.meter.begin(x, resp.StatusCode, stream)
	x.meter.retryAfter = retryAfter(resp.Header)
	x.writeHead(resp, stream)

	buf := x.p.copies.Get().(*[]byte)
	defer x.p.copies.Put(buf)
	for {
		n, err := resp.Body.Read(*buf)
		if n > 0 {
			x.meter.take((*buf)[:n])
			if _, err := x.w.Write((*buf)[:n]); err != nil {
				x.finish(router.Canceled)
				return
			}
			if stream {
				x.w.(http.Flusher).Flush()
			}
		}
		switch {
		case err == nil:
		case err == io.EOF:
			end := x.meter.end()
			switch {
			case x.meter.failed:
				x.err = errReported
			case x.meter.unfinished:
				x.err = errUnfinished
			}
			x.finish(end)
			return
		case x.r.Context().Err() != nil:
			x.finish(router.Canceled)
			return
		default:
			x.cutOff(err, stream)
			return
		}
	}
}

// writeHead sends the answer's status and headers; of a stream at once, since the
// first event may be long in coming.
func (x *exchange) writeHead(resp *http.Response, stream bool) {
	h := x.w.Header()
	copyHeader(h, resp.Header)
	x.status = resp.StatusCode
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
	if stream { // so that no proxy in front holds events back
		if _, ok := h["Cache-Control"]; !ok {
			h["Cache-Control"] = noCache
		}
		if _, ok := h["X-Accel-Buffering"]; !ok {
			h["X-Accel-Buffering"] = noBuffering
		}
	}
	x.w.WriteHeader(resp.StatusCode)
	if stream {
		x.w.(http.Flusher).Flush()
	}
}

var noCache, noBuffering = []string{"no-cache"}, []string{"no"}

// For the log: the status was 200, the answer was not good.
var (
	errReported   = errors.New("the replica reported an error within its answer")
	errUnfinished = errors.New("the replica's stream ended without its last event")
)

// cutOff ends an answer that the replica broke off, so that the client cannot
// take it for a whole one.
func (x *exchange) cutOff(err error, stream bool) {
	x.err = err
	rep := x.lease.Replica()
	rep.Failed(replica.CutOff)
	x.p.log.Warn("replica broke an answer off", "replica", rep.ID, "request_id", x.id, "err", err)
	within := x.meter.scanner.Within() || !x.meter.reads // nobody watched where events end
	x.finish(router.Failed)
	if !stream || x.w.Header().Get("Content-Encoding") != "" { // plain text would not be read
		panic(http.ErrAbortHandler)
	}
	e := openai.Error{Type: "api_error", Code: "replica_lost", Message: "the replica broke the answer off"}
	event := e.Event(x.endpoint)
	if within {
		event = append([]byte("\n\n"), event...)
	}
	if _, err := x.w.Write(event); err == nil {
		x.w.(http.Flusher).Flush()
	}
}
