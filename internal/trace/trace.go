// Package trace makes OpenTelemetry spans of requests: one for the gateway's part
// and one for each attempt at a replica, in the words of the semantic conventions for
// HTTP and generative AI. The standard OTEL_… variables of the environment set it up;
// where none names an exporter it is off, and a nil [Tracer] costs nothing.
package trace

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.40.0"
	"go.opentelemetry.io/otel/trace"
)

// Tracer makes spans and exports them in the background. A nil one makes none.
type Tracer struct {
	provider *sdk.TracerProvider
	tracer   trace.Tracer
	sampler  sampler
}

// enabled reports whether the environment names an exporter of traces.
func enabled() (bool, error) {
	if strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") {
		return false, nil
	}
	switch exporter := os.Getenv("OTEL_TRACES_EXPORTER"); exporter {
	case "none":
		return false, nil
	case "otlp":
		return true, nil
	case "":
		return first("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT") != "", nil
	default:
		return false, fmt.Errorf("OTEL_TRACES_EXPORTER: %q is not otlp or none", exporter)
	}
}

// first returns the first variable that is set.
func first(names ...string) string {
	for _, name := range names {
		if v := os.Getenv(name); v != "" {
			return v
		}
	}
	return ""
}

// New returns the tracer that the environment asks for, nil if it asks for none. What
// the exporter cannot deliver goes to the log. Stop it at the end.
func New(ctx context.Context, log *slog.Logger) (*Tracer, error) {
	on, err := enabled()
	if !on {
		return nil, err
	}
	keep, err := samplerOf(os.Getenv("OTEL_TRACES_SAMPLER"), os.Getenv("OTEL_TRACES_SAMPLER_ARG"))
	if err != nil {
		return nil, err
	}
	var exports otlptrace.Client
	switch protocol := first("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"); protocol {
	case "", "http/protobuf":
		exports = otlptracehttp.NewClient()
	case "grpc":
		exports = otlptracegrpc.NewClient()
	default:
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL: %q is not http/protobuf or grpc", protocol)
	}
	exporter, err := otlptrace.New(ctx, exports)
	if err != nil {
		return nil, fmt.Errorf("OTEL exporter: %w", err)
	}
	// The SDK knows but one place for errors, and by default prints there.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("traces are not delivered", "err", err) }))
	about, err := resource.New(ctx, resource.WithAttributes(semconv.ServiceName("warmpath")), resource.WithTelemetrySDK(), resource.WithHost(), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	// The sampler is asked before there is a span. The batches are as OTEL_BSP_… say.
	batches := newGather(sdk.NewBatchSpanProcessor(exporter), queueSize())
	p := sdk.NewTracerProvider(sdk.WithSpanProcessor(batches), sdk.WithResource(about), sdk.WithSampler(sdk.AlwaysSample()), sdk.WithIDGenerator(ids{}))
	return &Tracer{provider: p, tracer: p.Tracer("github.com/warmpath/warmpath"), sampler: keep}, nil
}

// Stop exports what is left, within ctx, and ends the tracer.
func (t *Tracer) Stop(ctx context.Context) error {
	if t == nil {
		return nil
	}
	return t.provider.Shutdown(ctx)
}

// StartServer begins the span of a sampled request: a child of its client's.
func (t *Tracer) StartServer(p *Place, name string) (context.Context, trace.Span) {
	ctx := context.Background()
	if p.from.HasSpanID() {
		ctx = trace.ContextWithRemoteSpanContext(ctx, p.from)
	} else {
		ctx = context.WithValue(ctx, begun{}, p.from.TraceID())
	}
	return t.tracer.Start(ctx, name, server...)
}

// StartClient begins the span of a request to somebody else.
func (t *Tracer) StartClient(parent context.Context, name string) (context.Context, trace.Span) {
	return t.tracer.Start(parent, name, client...)
}

// Options are made once: each would be allocated for each span.
var (
	server = []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindServer)}
	client = []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindClient)}
)

// ID returns the trace id of a traceparent header as a client sent it, "" if that has
// none. It allocates nothing.
func ID(h http.Header) string {
	v := h.Get("Traceparent")
	if len(v) < 55 || v[2] != '-' || v[35] != '-' {
		return ""
	}
	id := v[3:35]
	for i := range len(id) {
		if c := id[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return ""
		}
	}
	return id
}
