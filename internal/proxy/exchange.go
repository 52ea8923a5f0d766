package proxy

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/warmpath/warmpath/internal/metrics"
	"github.com/warmpath/warmpath/internal/openai"
	"github.com/warmpath/warmpath/internal/prefix"
	"github.com/warmpath/warmpath/internal/replica"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/upstream"
)

// exchange is one request and its answer. It is used for one after another; what
// its begin does not set, its end has reset.
type exchange struct {
	p        *Proxy
	w        http.ResponseWriter
	r        *http.Request
	endpoint openai.Endpoint
	id       string
	control  *http.ResponseController // of w
	upload   upload
	body     *body

	openai openai.Request
	prompt prefix.Prompt
	req    router.Request
	model  *replica.Model
	policy string

	lease     *router.Lease // of the attempt under way, nil between two
	attempt   attempt       // the same for the watch
	desperate bool          // its replica is believed to be down, as all are
	ended     router.End    // of the last attempt
	access    *access
	share     share
	target    *metrics.Target
	meter     meter
	spans     spans
	unasked   unasked

	arrived, read, chosen time.Time
	sent                  time.Time
	connected             time.Duration // since chosen; 0 before there is a connection
	out                   upstream.Request
	attempts              int
	allowed               time.Time // when the client was last given time for a write
	status                int       // sent to the client, 0 if none was
	headHeld              bool      // in memory, to go out with what comes next
	err                   error     // for the log
}

func newExchange(p *Proxy) *exchange {
	x := &exchange{p: p}
	x.attempt.x = x
	x.meter.scanner.OnData = x.meter.event
	x.out.Header, x.out.Connected = http.Header{}, x.onConnection
	return x
}

// handle returns the handler of an endpoint.
func (p *Proxy) handle(endpoint openai.Endpoint) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		x := p.spare.Get().(*exchange)
		x.begin(w, r, endpoint)
		defer x.leave()
		p.serve(x)
	}
}

// leave ends the exchange, also when a panic is on its way: it becomes an error
// answer or, if an answer has begun, the end of the connection.
func (x *exchange) leave() {
	v := recover()
	if v != nil && v != http.ErrAbortHandler { //nolint:errorlint // net/http compares with the sentinel itself
		x.p.log.Error("BUG: panic while serving", "panic", v, "request_id", x.id, "stack", string(debug.Stack()))
		if x.status == 0 {
			x.refuse("bug", &openai.Error{Status: http.StatusInternalServerError, Type: "api_error", Code: "internal_error", Message: "the gateway failed"})
			v = nil
		}
	}
	x.end()
	if v != nil {
		panic(http.ErrAbortHandler)
	}
}

// serve is the life of a request.
func (p *Proxy) serve(x *exchange) {
	if !x.admit() || !x.enter() || !x.readBody() || !x.understand() || !x.hold() {
		return
	}
	for x.choose() {
		resp, err := x.send()
		if err == nil {
			err = x.relay(resp)
		}
		if err == nil || !x.again(err) {
			return
		}
	}
}

func (x *exchange) begin(w http.ResponseWriter, r *http.Request, endpoint openai.Endpoint) {
	x.arrived = time.Now()
	x.w, x.r, x.endpoint = w, r, endpoint
	x.control = http.NewResponseController(w)
	x.id = requestID(r)
	x.allowed = x.arrived // by Handler
	x.startSpan()
	x.access = x.p.access.Load()
	if x.access.keys != nil {
		x.share.key = keyOf(r)
	}
}

// requestID returns the client's name for its request, or makes one.
func requestID(r *http.Request) string {
	if id := r.Header.Get(headerRequestID); isID(id) {
		return id
	}
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// end gives back everything, in whatever state the request ended.
func (x *exchange) end() {
	if x.lease != nil { // the handler was left by a panic
		x.finish(router.Failed)
	}
	x.account()
	x.p.inFlight.Add(-1)
	x.share.end()
	x.dropBody()
	tried := x.req.Tried
	clear(tried)
	x.w, x.r, x.control, x.access, x.model, x.target = nil, nil, nil, nil, nil, nil
	x.openai = openai.Request{}
	x.out.Body, x.out.Hold = nil, nil
	clear(x.out.Header)
	x.req = router.Request{Tried: tried[:0]}
	x.read, x.chosen, x.sent = time.Time{}, time.Time{}, time.Time{}
	x.attempts, x.connected, x.desperate = 0, 0, false
	x.status, x.headHeld, x.err, x.policy = 0, false, nil, ""
	x.prompt.Reset()
	x.meter.reset()
	x.unasked.reset()
	x.p.spare.Put(x)
}

// refuse answers with an error of the gateway's own, unless the client has gone. In
// a stream of which the head is out, that is an event.
func (x *exchange) refuse(reason string, e *openai.Error) {
	if x.r.Context().Err() != nil {
		x.gone()
		return
	}
	x.tell(reason, e)
}

// tell is refuse for a client that is known to be there.
func (x *exchange) tell(reason string, e *openai.Error) {
	x.err, e.Endpoint = e, formOf(x.r)
	if x.status != 0 {
		x.p.metrics.Refusal(reason)
		_ = x.write(e.Event(x.endpoint), true, time.Now()) // the client has gone if this fails
		return
	}
	x.status = e.Status
	x.p.refuse(x.w, x.id, reason, e)
}

// statusClientGone is what logs and metrics show when the client left before
// there was a status.
const statusClientGone = 499

// readBody reads the whole body into memory, where it stays for every attempt.
func (x *exchange) readBody() bool {
	var err error
	x.upload = upload{from: x.r.Body, control: x.control, timeout: x.p.cfg.UploadTimeout}
	if !multiplexed(x.r) && x.r.ContentLength != 0 {
		x.upload.until = x.arrived.Add(x.upload.timeout) // by Handler
	}
	x.body, err = x.p.buffers.readBody(&x.upload, x.r.ContentLength, x.p.cfg.MaxBodyBytes)
	x.upload.done(err == nil)
	x.read = time.Now()
	switch {
	case err == nil:
		return true
	case errors.Is(err, errTooLarge):
		x.refuse("too_large", &openai.Error{
			Status: http.StatusRequestEntityTooLarge, Type: "invalid_request_error", Code: "request_too_large",
			Message: "the request body is larger than " + strconv.FormatInt(x.p.cfg.MaxBodyBytes, 10) + " bytes, the limit that the gateway's max_body_bytes sets",
		})
	case errors.Is(err, errNoRoom):
		x.refuse("buffer_full", bufferFull())
	case isTimeout(err):
		// The rest of the body may still come. To net/http, the client has gone.
		if !multiplexed(x.r) {
			x.w.Header().Set("Connection", "close")
		}
		x.tell("slow_upload", &openai.Error{
			Status: http.StatusRequestTimeout, Type: "invalid_request_error", Code: "request_timeout",
			Message: "nothing of the request body came for " + x.p.cfg.UploadTimeout.String() + ", which the gateway's upload_timeout allows",
		})
	default: // it ended before its length, and so did the connection most likely
		x.refuse("body", &openai.Error{Status: http.StatusBadRequest, Type: "invalid_request_error", Code: "invalid_request", Message: "the request body could not be read"})
	}
	return false
}

func bufferFull() *openai.Error {
	return &openai.Error{
		Status: http.StatusServiceUnavailable, Type: "service_unavailable", Code: "buffer_full", RetryAfter: time.Second,
		Message: "the gateway holds as many bytes of requests as its max_buffered_bytes allows",
	}
}

// understand finds in the body what routing needs: the model, the prompt's
// identity, the session.
func (x *exchange) understand() bool {
	var err error
	if isForm(x.r) {
		x.openai.Model = formModel(x.r.Header.Get("Content-Type"), x.body.data)
	} else if len(x.body.data) > 0 || x.endpoint != openai.Other {
		x.openai, err = openai.Parse(x.endpoint, x.body.data)
	}
	if e := (*openai.Error)(nil); errors.As(err, &e) {
		x.refuse("bad_request", e)
		return false
	}
	if !x.findModel() {
		return false
	}
	salted := x.takesSalt() && x.saltPrompt()
	if err := x.prompt.Read(&x.openai); err != nil {
		x.refuse("bad_request", openai.Invalid(x.body.data))
		return false
	}
	if salted && x.sendSalt() != nil {
		x.refuse("buffer_full", bufferFull())
		return false
	}
	x.req.Prompt, x.req.Model, x.req.Stream, x.req.NoCache = &x.prompt, x.model, x.openai.Stream, x.openai.ReadsNoCache
	if len(x.id) <= maxKeptID {
		x.req.ID = x.id
	}
	if x.endpoint == openai.Other {
		x.prompt.Tokens = len(x.body.data) / bytesPerToken
		x.req.Policy, x.policy = x.p.policies[router.LeastTokensPolicy], router.LeastTokensPolicy
		if id := chi.URLParam(x.r, "id"); id != "" {
			x.req.Previous = responseKey(id)
		}
		return true
	}
	if x.openai.Previous != "" {
		x.req.Previous = responseKey(x.openai.Previous)
	}
	x.req.Session = x.session()
	x.askUsage()
	return x.choosePolicy()
}

// maxKeptID is the longest request id that is kept with a decision: a client's may be
// as long as a header.
const maxKeptID = 128

// bytesPerToken is an estimate for bodies that are not understood.
const bytesPerToken = 4

// findModel finds the model that the body names among those that replicas serve.
func (x *exchange) findModel() bool {
	set := x.p.pool.Set()
	if x.model = set.Model(x.openai.Model); x.model != nil {
		return true
	}
	switch {
	case x.openai.Model == "" && x.endpoint == openai.Other && set.Known():
		x.model = set.Any()
		return true
	case !set.Complete:
		x.refuse("not_ready", unavailable("the model may be that of a replica which has not answered yet"))
	case x.openai.Model == "":
		x.refuse("bad_request", &openai.Error{Status: http.StatusBadRequest, Type: "invalid_request_error", Code: "invalid_request", Param: "model", Message: "you must provide a model: GET /v1/models lists them"})
	default:
		x.refuse("unknown_model", modelNotFound(x.openai.Model))
	}
	return false
}

func modelNotFound(name string) *openai.Error {
	return &openai.Error{Status: http.StatusNotFound, Type: "invalid_request_error", Code: "model_not_found", Param: "model", Message: "the model '" + short(name) + "' does not exist: GET /v1/models lists those that do"}
}

func unavailable(message string) *openai.Error {
	return &openai.Error{Status: http.StatusServiceUnavailable, Type: "service_unavailable", Code: "no_replica_ready", RetryAfter: time.Second, Message: message}
}

// session returns the key of the session that the request belongs to, 0 if none.
func (x *exchange) session() prefix.Hash {
	switch {
	case x.r.Header.Get(HeaderSession) != "":
		return router.SessionKey(x.model.Name, "session", x.r.Header.Get(HeaderSession))
	case x.openai.Session != "":
		return router.SessionKey(x.model.Name, "session", x.openai.Session)
	case x.openai.User != "":
		return router.SessionKey(x.model.Name, "user", x.openai.User)
	}
	return 0
}

func (x *exchange) choosePolicy() bool {
	x.policy = x.p.policy
	name := x.r.Header.Get(HeaderPolicy)
	if name == "" || !x.p.cfg.PolicyHeader {
		return true
	}
	policy, ok := x.p.policies[name]
	if !ok {
		_, err := router.PolicyByName(name)
		x.refuse("bad_request", &openai.Error{Status: http.StatusBadRequest, Type: "invalid_request_error", Code: "invalid_request", Message: HeaderPolicy + ": " + err.Error()})
		return false
	}
	x.req.Policy, x.policy = policy, name
	return true
}

// choose takes a lease on a replica for the next attempt.
func (x *exchange) choose() bool {
	x.chosen = time.Now()
	x.connected = 0
	x.meter.restart()
	lease, err := x.p.router.Acquire(&x.req, x.chosen)
	overload := (*router.OverloadError)(nil)
	switch {
	case err == nil:
	case errors.As(err, &overload):
		x.refuse("overloaded", &openai.Error{Status: http.StatusTooManyRequests, Type: "rate_limit_error", Code: "overloaded", RetryAfter: overload.RetryAfter(), Message: overload.Error()})
		return false
	default:
		message := "no replica that serves '" + x.model.Name + "' is ready"
		if len(x.req.Tried) > 0 {
			message = "every ready replica failed to answer"
		}
		x.refuse("not_ready", unavailable(message))
		return false
	}
	x.lease = lease
	x.meter.follow(lease)
	if x.attempts++; x.attempts == 1 {
		x.p.budget.earn()
	}
	x.desperate = !lease.Replica().Ready()
	x.share.keep(lease.Tokens())
	x.target = x.p.tables.target(lease.Replica(), x.model)
	x.p.tables.decision(x.policy, lease.Why()).Inc()
	x.countShadow()
	return true
}

// send makes the attempt: it returns the answer's head.
func (x *exchange) send() (*upstream.Response, error) {
	rep := x.lease.Replica()
	x.startAttempt()
	ctx := x.p.watch.begin(x.r.Context(), &x.attempt)
	x.prepare(rep)
	resp, err := x.p.host(rep).Do(ctx, &x.out)
	x.sent = time.Now()
	if err == nil && resp.Status < 200 {
		resp.Close()
		return nil, fmt.Errorf("status %d, which ends no request", resp.Status)
	}
	x.attempt.begun.Store(err == nil)
	x.p.watch.hears(&x.attempt)
	return resp, x.attempt.cause(err)
}

// onConnection is called when the attempt has a connection, and again if that was lost.
func (x *exchange) onConnection(bool) {
	if x.connected == 0 {
		x.connected = max(1, time.Since(x.chosen))
	}
}

// prepare makes the request to a replica: the client's, byte for byte, without
// what concerns only its connection to the gateway.
func (x *exchange) prepare(rep *replica.Replica) {
	u := url.URL{Path: rep.URL.Path + x.r.URL.Path, RawQuery: x.r.URL.RawQuery}
	if x.r.URL.RawPath != "" {
		u.RawPath = rep.URL.EscapedPath() + x.r.URL.RawPath
	}
	header := x.out.Header
	clear(header)
	copyHeader(header, x.r.Header)
	for _, name := range [...]string{"Host", "Content-Length", "Expect", HeaderPolicy} {
		delete(header, name)
	}
	x.access.authorize(header)
	header["Accept-Encoding"] = identity
	header[headerRequestID] = []string{x.id}
	x.inject(header)
	if rep.Rank >= 0 {
		header[headerRank] = []string{strconv.Itoa(rep.Rank)}
	}
	x.out.Method, x.out.Target, x.out.Host = x.r.Method, u.RequestURI(), rep.URL.Host
	x.out.Body, x.out.Hold = x.body.data, x.body.use
}

var identity = []string{"identity"}

// finish ends the lease.
func (x *exchange) finish(end router.End) {
	x.p.watch.end(&x.attempt)
	x.lease.Done(x.meter.outcome(end), time.Now())
	x.meter.gap = x.lease.Gap()
	x.endAttempt(end)
	x.lease, x.ended = nil, end
}

// account writes the metrics and the log line of a request that is over.
func (x *exchange) account() {
	now := time.Now()
	x.p.tables.request(x.model, x.endpoint, x.status).Inc()
	if x.share.key != nil {
		x.p.tables.key(x.share.key, x.status).Inc()
	}
	x.meter.record(x, now)
	trace := x.traceID()
	x.endSpan(now)
	if !x.p.log.Enabled(context.Background(), slog.LevelInfo) {
		return
	}
	level := slog.LevelInfo
	attrs := make([]slog.Attr, 0, 17)
	attrs = append(attrs, slog.String("request_id", x.id), slog.String("path", x.r.URL.Path), slog.Int("status", x.status), slog.Duration("took", now.Sub(x.arrived)))
	if trace != "" {
		attrs = append(attrs, slog.String("trace_id", trace))
	}
	if x.share.key != nil {
		attrs = append(attrs, slog.String("key", x.share.key.Name))
	}
	if x.target != nil {
		attrs = append(attrs, slog.String("model", x.model.Name), slog.String("replica", x.meter.replica), slog.Int("attempts", x.attempts))
		if !x.meter.firstToken.IsZero() {
			attrs = append(attrs, slog.Duration("ttft", x.meter.firstToken.Sub(x.arrived)))
		}
		attrs = append(attrs, slog.String("reason", x.meter.why.String()))
		if u := &x.meter.usage; u.Prompt > 0 {
			attrs = append(attrs, slog.Int("prompt_tokens", u.Prompt), slog.Int("completion_tokens", u.Completion))
			if u.CachedKnown {
				attrs = append(attrs, slog.Int("cached_tokens", u.Cached), slog.Int("predicted_tokens", x.meter.predicted))
			}
		}
	}
	if x.err != nil {
		attrs = append(attrs, slog.String("err", x.err.Error()))
		if x.status >= 500 {
			level = slog.LevelWarn
		}
	}
	x.p.log.LogAttrs(context.Background(), level, "request", attrs...)
}
