package proxy

import (
	"bytes"
	"errors"
	"io"
	"time"

	"github.com/warmpath/warmpath/internal/metrics"
	"github.com/warmpath/warmpath/internal/openai"
	"github.com/warmpath/warmpath/internal/prefix"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/sse"
)

// meter reads an answer on its way: when it came, what it says of tokens, and
// whether it is whole.
type meter struct {
	x       *exchange
	scanner sse.Scanner
	whole   bytes.Buffer // an answer that is not streamed, up to answerLimit
	stream  bool
	status  int
	reads   bool // this endpoint's answers are understood

	now                             time.Time // of the piece being read
	firstEvent, firstToken, lastOne time.Time
	events                          int // with tokens
	usage                           openai.Usage
	failed, last, unfinished        bool
	batch                           bool // the engine's usage tells of one prompt of several
	responseID                      string
	retryAfter                      time.Duration

	// Copied from the lease, which is over when they are written down.
	replica   string
	predicted int
	why       router.Reason
	prefill   time.Duration
	gap       router.Gap
}

// answerLimit is the longest answer whose usage is read if it is not streamed.
const answerLimit = 4 << 20

func (m *meter) reset() {
	scanner, whole := m.scanner, m.whole
	scanner.Reset()
	whole.Reset()
	if whole.Cap() > 64<<10 {
		whole = bytes.Buffer{}
	}
	*m = meter{scanner: scanner, whole: whole}
}

// restart forgets the answer of the attempt before, if there was one. Who gave it
// stays for the log, should there be no other.
func (m *meter) restart() {
	replica, why := m.replica, m.why
	m.reset()
	m.replica, m.why = replica, why
}

// follow takes what was expected of the attempt that a lease is for.
func (m *meter) follow(l *router.Lease) {
	m.replica, m.why, m.prefill = l.Replica().ID, l.Why(), l.Predicted()
	_, m.predicted = l.Tokens()
}

// begin is at the head of the attempt's answer.
func (m *meter) begin(x *exchange, status int, stream bool) {
	m.x, m.status, m.stream = x, status, stream
	m.reads = x.endpoint != openai.Other && status < 300
	m.batch = len(x.prompt.Chains) > 1
}

// take reads a piece of the answer, and returns when it came: now.
func (m *meter) take(piece []byte) time.Time {
	m.now = time.Now()
	switch {
	case !m.reads || len(piece) == 0:
	case m.stream:
		m.scanner.Feed(piece)
	case m.whole.Len()+len(piece) <= answerLimit:
		m.whole.Write(piece)
	}
	return m.now
}

// event reads an event of a stream.
func (m *meter) event(data []byte) {
	if !m.firstToken.IsZero() && openai.Plain(data) {
		m.lastOne = m.now
		m.events++
		return
	}
	e := openai.ParseEvent(data)
	if m.firstEvent.IsZero() && !e.Preamble {
		m.firstEvent = m.now
		m.x.lease.Prefilled(m.now)
		m.x.share.keep(0, 0)
	}
	if e.Token {
		if m.firstToken.IsZero() {
			m.firstToken = m.now
		}
		m.lastOne = m.now
		m.events++
	}
	m.understand(&e)
}

func (m *meter) understand(e *openai.Event) {
	if e.UsageSeen {
		u := e.Usage
		if u.Prompt == 0 { // a closing event may count the answer alone
			u.Prompt, u.Cached, u.CachedKnown = m.usage.Prompt, m.usage.Cached, m.usage.CachedKnown
		}
		m.usage = u
	}
	m.failed = m.failed || e.Failed || e.Aborted
	m.last = m.last || e.Last
	if e.ID != "" {
		m.responseID = e.ID
	}
}

// end is at the answer's regular end, and tells how the request ended.
func (m *meter) end() router.End {
	switch {
	case isBusy(m.status):
		return router.Busy
	case isFault(m.status):
		return router.Failed
	case m.status >= 400:
		return router.Rejected
	}
	m.readWhole()
	// A stream in which no event was found may be one that cannot be read.
	m.unfinished = m.reads && m.stream && !m.last && (!m.firstEvent.IsZero() || !m.x.attempt.spent.Load())
	if m.failed || m.unfinished {
		return router.Failed
	}
	return router.Completed
}

// readWhole reads an answer that is not streamed, at its end.
func (m *meter) readWhole() {
	if m.reads && !m.stream && m.whole.Len() > 0 {
		e := openai.ParseAnswer(m.whole.Bytes())
		m.understand(&e)
		m.whole.Reset()
	}
}

// spoiled reports whether the first piece of an answer, and the error that came with
// it, show that the replica gave it up.
func (m *meter) spoiled(err error) bool {
	if errors.Is(err, io.EOF) {
		m.readWhole()
	}
	return m.failed && m.status < 300
}

// outcome is what the router learns.
func (m *meter) outcome(end router.End) router.Outcome {
	o := router.Outcome{
		End: end, Prefilled: !m.firstEvent.IsZero(), RetryAfter: m.retryAfter,
		Prompt: m.usage.Prompt, Cached: m.usage.Cached, Completion: m.usage.Completion, CachedKnown: m.usage.CachedKnown,
	}
	if m.events > 1 {
		o.Gap = m.lastOne.Sub(m.firstToken) / time.Duration(m.events-1)
	}
	if m.x != nil && m.x.endpoint == openai.Responses && end == router.Completed && m.responseID != "" {
		o.Response = responseKey(m.responseID)
	}
	return o
}

func responseKey(id string) prefix.Hash { return router.SessionKey("", "response", id) }

// record writes the request's metrics.
func (m *meter) record(x *exchange, now time.Time) {
	t := x.target
	if t == nil {
		return
	}
	mm := x.p.metrics
	if x.connected > 0 && len(x.req.Tried) == 0 {
		mm.Overhead.Observe((x.chosen.Sub(x.read) + x.connected).Seconds())
	}
	if x.endpoint == openai.Other {
		return
	}
	if !m.firstEvent.IsZero() {
		mm.PrefillError((m.firstEvent.Sub(x.chosen) - m.prefill).Seconds())
	}
	if m.firstToken.IsZero() {
		t.NoFirstToken[m.whyNoToken(x)].Inc()
	} else {
		t.TTFT.Observe(m.firstToken.Sub(x.arrived).Seconds())
		m.recordHops(x, t)
		if n := m.usage.Completion; n > 1 && m.last && !m.failed {
			t.TPOT.Observe(m.lastOne.Sub(m.firstToken).Seconds() / float64(n-1))
		}
	}
	switch {
	case !m.reads:
	case x.ended == router.Completed:
		t.E2E.Observe(now.Sub(x.arrived).Seconds())
	default:
		t.Broken[m.whyBroken(x)].Inc()
	}
	if m.usage.Prompt > 0 && !m.batch {
		t.Prompt.Add(float64(m.usage.Prompt))
		if m.usage.CachedKnown {
			t.Predicted.Add(float64(m.predicted))
			t.Cached.Add(float64(m.usage.Cached))
			m.recordGap(t)
		} else {
			t.CachedUnreported.Inc()
		}
	}
}

// recordHops writes the parts of a time to first token. Requests without one have none:
// the headers of an answer that is not streamed come when all of it is generated.
func (m *meter) recordHops(x *exchange, t *metrics.Target) {
	hop := &x.p.metrics.Hop
	hop[metrics.Read].Observe(x.read.Sub(x.arrived).Seconds())
	hop[metrics.Choose].Observe(x.chosen.Sub(x.read).Seconds())
	hop[metrics.Connect].Observe(x.connected.Seconds())
	hop[metrics.Headers].Observe((x.sent.Sub(x.chosen) - x.connected).Seconds())
	hop[metrics.FirstEvent].Observe(m.firstEvent.Sub(x.sent).Seconds())
	t.FirstToken.Observe(m.firstToken.Sub(m.firstEvent).Seconds())
}

func (m *meter) recordGap(t *metrics.Target) {
	g := &m.gap
	for reason, tokens := range [...]int{
		metrics.GapNew: g.New, metrics.GapElsewhere: g.Elsewhere, metrics.GapRestart: g.Restart, metrics.GapEvicted: g.Evicted, metrics.GapUnknown: g.Unknown, metrics.GapMismatch: g.Mismatch,
	} {
		t.Gap[reason].Add(float64(tokens))
	}
}

func (m *meter) whyBroken(x *exchange) int {
	switch {
	case errors.Is(x.err, errSlow):
		return metrics.Slow
	case errors.Is(x.err, errStopping):
		return metrics.Stopped
	case x.ended == router.Canceled:
		return metrics.Left
	case m.failed:
		return metrics.Reported
	case m.unfinished:
		return metrics.Unfinished
	}
	return metrics.CutOff
}

func (m *meter) whyNoToken(x *exchange) int {
	switch {
	case x.r.Context().Err() != nil:
		return metrics.Canceled
	case m.failed || x.err != nil:
		return metrics.Errored
	case x.status >= 300:
		return metrics.Refused
	case !m.stream:
		return metrics.NotStreamed
	}
	return metrics.NoOutput
}
