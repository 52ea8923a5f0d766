package trace

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"net/http"
	"strings"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Place is where a request stands in a trace: below its client's span, or at the
// beginning. Most are not sampled, and need no more than a traceparent for the replica.
// It must not move while a header that Inject has written is in use.
type Place struct {
	from    trace.SpanContext // the client's; without a span id where the trace begins here
	sampled bool
	state   string    // the header tracestate, "" for none
	parent  [1]string // the header traceparent as last injected
}

// Place returns where a request with these headers stands.
func (t *Tracer) Place(h http.Header) Place {
	p := Place{from: fromHeader(h)}
	if p.from.IsValid() {
		p.state = p.from.TraceState().String()
	} else {
		p.from = trace.NewSpanContext(trace.SpanContextConfig{TraceID: newTraceID()})
	}
	p.sampled = t.sampler.keeps(p.from)
	return p
}

// fromHeader returns what headers say of a client's span, an invalid one if that is
// nothing or cannot be read.
func fromHeader(h http.Header) trace.SpanContext {
	if len(h["Traceparent"]) != 1 {
		return trace.SpanContext{} // of two, none is the parent
	}
	if state := h["Tracestate"]; len(state) > 1 { // one list, of which the carrier has the first line
		h = http.Header{"Traceparent": h["Traceparent"], "Tracestate": {strings.Join(state, ",")}}
	}
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.HeaderCarrier(h))
	return trace.SpanContextFromContext(ctx)
}

// Sampled reports whether the request is to have spans.
func (p *Place) Sampled() bool { return p.sampled }

// ID returns the id of the trace, as the log has it; "" if there is none.
func (p *Place) ID() string {
	if len(p.parent[0]) > 0 {
		return p.parent[0][3:35]
	}
	if !p.from.HasTraceID() {
		return ""
	}
	return p.from.TraceID().String()
}

// Inject has the headers of an attempt say whose child it is, in the place of what a
// client sent: the state of a trace that could not be read belongs to no other. That
// is span, or nil if the request is not sampled.
func (p *Place) Inject(span trace.Span, h http.Header) {
	switch {
	case span != nil:
		p.parent[0] = traceparent(span.SpanContext())
	case p.parent[0] == "": // else the attempt before it had the same
		at := trace.SpanContextConfig{TraceID: p.from.TraceID(), SpanID: newSpanID(), TraceFlags: p.from.TraceFlags() &^ trace.FlagsSampled}
		p.parent[0] = traceparent(trace.NewSpanContext(at))
	}
	h["Traceparent"] = p.parent[:]
	if p.state == "" {
		delete(h, "Tracestate")
	} else {
		h["Tracestate"] = []string{p.state}
	}
}

// traceparent writes the header of that name, version 00.
func traceparent(c trace.SpanContext) string {
	b := append(make([]byte, 0, 55), "00-"...)
	id, span := c.TraceID(), c.SpanID()
	b = append(hex.AppendEncode(b, id[:]), '-')
	b = append(hex.AppendEncode(b, span[:]), '-')
	b = hex.AppendEncode(b, []byte{byte(c.TraceFlags() & (trace.FlagsSampled | trace.FlagsRandom))})
	return string(b)
}

// begun is the key of the id of a trace that begins here, in a span's context: whether
// it is sampled was said of this id.
type begun struct{}

// ids gives spans their ids.
type ids struct{}

// NewIDs returns those of a trace's first span.
func (ids) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	id, ok := ctx.Value(begun{}).(trace.TraceID)
	if !ok {
		id = newTraceID()
	}
	return id, newSpanID()
}

// NewSpanID returns that of a further one.
func (ids) NewSpanID(context.Context, trace.TraceID) trace.SpanID { return newSpanID() }

func newTraceID() (id trace.TraceID) {
	for !id.IsValid() {
		binary.NativeEndian.PutUint64(id[:8], rand.Uint64())
		binary.NativeEndian.PutUint64(id[8:], rand.Uint64())
	}
	return id
}

func newSpanID() (id trace.SpanID) {
	for !id.IsValid() {
		binary.NativeEndian.PutUint64(id[:], rand.Uint64())
	}
	return id
}
