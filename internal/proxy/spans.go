package proxy

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.40.0"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/warmpath/warmpath/internal/openai"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/trace"
)

// This file is the spans of a request: one for the gateway's part of it, and one for
// each attempt. Without a tracer each of its functions returns at once.

// spans are those of one exchange; zero without a tracer.
type spans struct {
	place           trace.Place
	server, attempt oteltrace.Span       // nil if it is not sampled
	ctx             context.Context      // of the server span
	attributes      []attribute.KeyValue // room for those of one span: it copies them
}

// describe gives a span its attributes: all at once, when it ends, for it makes room
// anew at each call.
func (s *spans) describe(span oteltrace.Span, attributes []attribute.KeyValue) {
	span.SetAttributes(attributes...)
	clear(attributes)
	s.attributes = attributes[:0]
}

// Trace has requests make spans. Set it before the first one; nil makes none.
func (p *Proxy) Trace(t *trace.Tracer) { p.tracer = t }

// startSpan begins the request's span, which continues the client's trace.
func (x *exchange) startSpan() {
	if x.p.tracer == nil {
		return
	}
	x.spans.place = x.p.tracer.Place(x.r.Header)
	if !x.spans.place.Sampled() {
		return
	}
	// The path is one of a fixed few, but for a response's id.
	name := x.endpoint.String()
	x.spans.ctx, x.spans.server = x.p.tracer.StartServer(&x.spans.place, x.r.Method+" "+name)
}

// startAttempt begins the span of an attempt.
func (x *exchange) startAttempt() {
	if x.spans.server != nil {
		_, x.spans.attempt = x.p.tracer.StartClient(x.spans.ctx, operationOf(x.endpoint)+" "+x.model.Name)
	}
}

// operationOf returns the conventions' name for what an endpoint does.
func operationOf(e openai.Endpoint) string {
	switch e {
	case openai.Chat, openai.Responses, openai.Messages:
		return "chat"
	case openai.Completions:
		return "text_completion"
	}
	return "forward"
}

func port(u *url.URL) int {
	if n, err := strconv.Atoi(u.Port()); err == nil {
		return n
	}
	if u.Scheme == "https" {
		return 443
	}
	return 80
}

// inject has the replica continue the attempt's trace.
func (x *exchange) inject(h http.Header) {
	if x.p.tracer != nil {
		x.spans.place.Inject(x.spans.attempt, h)
	}
}

// endAttempt ends the span of an attempt.
func (x *exchange) endAttempt(end router.End) {
	span := x.spans.attempt
	if span == nil {
		return
	}
	x.spans.attempt = nil
	defer span.End()
	m, rep := &x.meter, x.lease.Replica()
	prompt, cached := x.lease.Tokens()
	list := append(x.spans.attributes,
		semconv.GenAIOperationNameKey.String(operationOf(x.endpoint)), semconv.GenAIProviderNameKey.String("vllm"), semconv.GenAIRequestModel(x.model.Name),
		semconv.ServerAddress(rep.URL.Hostname()), semconv.ServerPort(port(rep.URL)),
		attribute.String("warmpath.replica", rep.ID), attribute.String("warmpath.reason", x.lease.Why().String()), attribute.String("warmpath.policy", x.policy),
		attribute.Int("warmpath.prompt_tokens", prompt), attribute.Int("warmpath.predicted_tokens", cached),
	)
	if x.attempts > 1 {
		list = append(list, semconv.HTTPRequestResendCount(x.attempts-1))
	}
	if end == router.Completed || end == router.Canceled {
		if !m.firstToken.IsZero() {
			list = append(list, attribute.Float64("gen_ai.response.time_to_first_chunk", m.firstToken.Sub(x.chosen).Seconds()))
		}
		if m.responseID != "" {
			list = append(list, semconv.GenAIResponseID(m.responseID))
		}
		if u := &m.usage; u.Prompt > 0 {
			list = append(list, semconv.GenAIUsageInputTokens(u.Prompt), semconv.GenAIUsageOutputTokens(u.Completion))
			if u.CachedKnown {
				list = append(list, semconv.GenAIUsageCacheReadInputTokens(u.Cached))
			}
		}
	}
	if kind := failureOf(end); kind != "" {
		list = append(list, semconv.ErrorTypeKey.String(kind))
		span.SetStatus(codes.Error, kind)
	}
	x.spans.describe(span, list)
}

// failureOf names the ends that are failures, "" for the others.
func failureOf(end router.End) string {
	switch end {
	case router.Rejected:
		return "rejected"
	case router.Busy:
		return "busy"
	case router.Failed:
		return "failed"
	}
	return ""
}

// retried notes on the request's span that an attempt is made again.
func (x *exchange) retried() {
	if x.spans.server != nil {
		x.spans.server.AddEvent("retry", oteltrace.WithAttributes(attribute.Int("warmpath.attempts", x.attempts), attribute.String("warmpath.replica", x.meter.replica)))
	}
}

// endSpan ends the request's span.
func (x *exchange) endSpan(now time.Time) {
	span := x.spans.server
	if span == nil {
		x.spans.place = trace.Place{}
		return
	}
	list := append(x.spans.attributes,
		semconv.HTTPRequestMethodKey.String(x.r.Method), semconv.URLPath(x.r.URL.Path), semconv.HTTPResponseStatusCode(x.status), attribute.String("warmpath.request_id", x.id))
	if x.model != nil {
		list = append(list, semconv.GenAIRequestModel(x.model.Name), attribute.Int("warmpath.attempts", x.attempts))
	}
	if !x.meter.firstToken.IsZero() {
		span.AddEvent("first_token", oteltrace.WithTimestamp(x.meter.firstToken))
	}
	if x.status >= 500 {
		list = append(list, semconv.ErrorTypeKey.String(strconv.Itoa(x.status)))
		span.SetStatus(codes.Error, "")
	}
	if x.err != nil {
		span.SetStatus(codes.Error, x.err.Error())
	}
	x.spans.describe(span, list)
	span.End(oteltrace.WithTimestamp(now))
	x.spans = spans{attributes: x.spans.attributes}
}

// traceID returns the id of the request's trace for the log, "" if it has none.
func (x *exchange) traceID() string {
	if x.p.tracer != nil {
		return x.spans.place.ID()
	}
	return trace.ID(x.r.Header)
}
