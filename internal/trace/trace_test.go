package trace

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestTraceIDOfAHeader(t *testing.T) {
	const id = "0af7651916cd43dd8448eb211c80319c"
	for header, want := range map[string]string{
		"":                                       "",
		"00-" + id + "-b7ad6b7169203331-01":      id,
		"00-" + id + "-b7ad6b7169203331-00":      id,
		"cc-" + id + "-b7ad6b7169203331-01-more": id,
		"00-" + id + "-b7ad6b7169203331-0":       "",
		"00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01":   "",
		"00-0af7651916cd43dd8448eb211c80319\n-b7ad6b7169203331-01":  "",
		"00_0af7651916cd43dd8448eb211c80319c_b7ad6b7169203331_01_0": "",
	} {
		h := http.Header{}
		h.Set("Traceparent", header)
		if got := ID(h); got != want {
			t.Errorf("%q: %q, want %q", header, got, want)
		}
	}
}

// TestWhichTracesAreKept counts the recording spans of a thousand requests.
func TestWhichTracesAreKept(t *testing.T) {
	collector := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer collector.Close()
	f := func(name, sampler, argument, parent string, least, most int) {
		t.Run(name, func(t *testing.T) {
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
			t.Setenv("OTEL_TRACES_SAMPLER", sampler)
			t.Setenv("OTEL_TRACES_SAMPLER_ARG", argument)
			tracer, err := New(t.Context(), slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tracer.Stop(context.Background()) }()
			h, kept := http.Header{}, 0
			if parent != "" {
				h.Set("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-"+parent)
			}
			for range 1000 {
				_, span := tracer.StartServer(tracer.Extract(h), "POST chat")
				if span.IsRecording() {
					kept++
				}
				span.End()
			}
			if kept < least || kept > most {
				t.Errorf("%d of 1000 are kept, want %d to %d", kept, least, most)
			}
		})
	}
	f("a tenth by default", "", "", "", 40, 160) // 6 standard deviations
	f("a client's that is sampled", "", "", "01", 1000, 1000)
	f("a client's that is not", "", "", "00", 0, 0)
	f("all if asked for", "parentbased_always_on", "", "", 1000, 1000)
	f("another share", "parentbased_traceidratio", "0.5", "", 400, 600)
	f("none", "always_off", "", "01", 0, 0)
}

// TestTheStateOfATraceGoesWithIt: a replica gets the state of the trace that it is
// asked to continue, and not of one that the client named in a form nobody can read.
func TestTheStateOfATraceGoesWithIt(t *testing.T) {
	t.Setenv("OTEL_TRACES_EXPORTER", "otlp")
	tracer, err := New(t.Context(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tracer.Stop(context.Background()) }()
	const id, span = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	for parent, want := range map[string]string{
		"00-" + id + "-" + span + "-00": "vendor=1",
		"":                              "",
		"rubbish":                       "",
		"ff-" + id + "-" + span + "-01": "",
		"00-00000000000000000000000000000000-" + span + "-01":        "",
		"00-" + id + "-0000000000000000-01":                          "",
		"00-0AF7651916CD43DD8448EB211C80319C-" + span + "-01":        "",
		"00-" + id + "-" + span + "-01-what-version-0-does-not-have": "",
	} {
		h := http.Header{"Traceparent": {parent}, "Tracestate": {"vendor=1"}}
		ctx, server := tracer.StartServer(tracer.Extract(h), "POST chat")
		tracer.Inject(ctx, h)
		server.End()
		if got := h.Get("Tracestate"); got != want {
			t.Errorf("%q: the state is %q, want %q", parent, got, want)
		}
		if got := ID(h); got != server.SpanContext().TraceID().String() || (got == id) != (want != "") {
			t.Errorf("%q: the trace is %q", parent, got)
		}
	}
}
