package trace

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/trace"
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

// newTracer returns one that is told of no collector, and stops at the end.
func newTracer(t testing.TB) *Tracer {
	t.Helper()
	t.Setenv("OTEL_TRACES_EXPORTER", "otlp")
	tracer, err := New(t.Context(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // there is nobody to wait for
		_ = tracer.Stop(ctx)
	})
	return tracer
}

// TestWhichTracesAreKept counts the sampled ones of a thousand requests.
func TestWhichTracesAreKept(t *testing.T) {
	f := func(name, sampler, argument, parent string, least, most int) {
		t.Run(name, func(t *testing.T) {
			t.Setenv("OTEL_TRACES_SAMPLER", sampler)
			t.Setenv("OTEL_TRACES_SAMPLER_ARG", argument)
			tracer := newTracer(t)
			h, kept := http.Header{}, 0
			if parent != "" {
				h.Set("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-"+parent)
			}
			for range 1000 {
				if place := tracer.Place(h); place.Sampled() {
					kept++
				}
			}
			if kept < least || kept > most {
				t.Errorf("%d of 1000 are kept, want %d to %d", kept, least, most)
			}
		})
	}
	f("a tenth by default", "", "", "", 40, 160) // 6 standard deviations
	f("half, by the argument alone", "", "0.5", "", 400, 600)
	f("none, by the argument alone", "", "0", "", 0, 0)
	f("a client's that is sampled", "", "", "01", 1000, 1000)
	f("a client's, whatever the argument", "", "0", "01", 1000, 1000)
	f("a client's that is not", "", "", "00", 0, 0)
	f("all if asked for", "parentbased_always_on", "", "", 1000, 1000)
	f("all but those that a client does not sample", "parentbased_always_on", "0.1", "00", 0, 0)
	f("all, whatever a client says", "always_on", "", "00", 1000, 1000)
	f("another share", "parentbased_traceidratio", "0.5", "", 400, 600)
	f("all of a ratio that is not said", " ParentBased_TraceIDRatio ", "", "", 1000, 1000)
	f("none", "always_off", "", "01", 0, 0)
	f("none that begins here", "parentbased_always_off", "", "", 0, 0)
	f("but those of clients", "parentbased_always_off", "", "01", 1000, 1000)
	f("by the id, not by the client: a low one", "traceidratio", "0.04", "00", 0, 0) // 0x0448… of 2⁶³
	f("a high share", "traceidratio", "0.04", "01", 0, 0)
}

func TestASamplerThatIsNoneIsNamed(t *testing.T) {
	for _, c := range []struct{ sampler, argument, want string }{
		{"sometimes", "", `OTEL_TRACES_SAMPLER: "sometimes"`},
		{"parentbased_", "", `OTEL_TRACES_SAMPLER: "parentbased_"`},
		{"", "half", `OTEL_TRACES_SAMPLER_ARG: "half"`},
		{"", "1.5", `OTEL_TRACES_SAMPLER_ARG: "1.5"`},
		{"traceidratio", "-1", `OTEL_TRACES_SAMPLER_ARG: "-1"`},
		{"traceidratio", "NaN", `OTEL_TRACES_SAMPLER_ARG: "NaN"`},
	} {
		t.Setenv("OTEL_TRACES_EXPORTER", "otlp")
		t.Setenv("OTEL_TRACES_SAMPLER", c.sampler)
		t.Setenv("OTEL_TRACES_SAMPLER_ARG", c.argument)
		if _, err := New(t.Context(), slog.New(slog.DiscardHandler)); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%q, %q: %v, want %s", c.sampler, c.argument, err, c.want)
		}
	}
}

// TestTheStateOfATraceGoesWithIt: a replica gets the state of the trace that it is
// asked to continue, and not of one that the client named in a form nobody can read.
func TestTheStateOfATraceGoesWithIt(t *testing.T) {
	const id, span = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	for _, sampler := range []string{"always_on", "always_off"} {
		t.Setenv("OTEL_TRACES_SAMPLER", sampler)
		tracer := newTracer(t)
		for parent, want := range map[string]string{
			"00-" + id + "-" + span + "-00":      "vendor=1",
			"00-" + id + "-" + span + "-01":      "vendor=1",
			"cc-" + id + "-" + span + "-01-more": "vendor=1",
			"":                                   "",
			"rubbish":                            "",
			"ff-" + id + "-" + span + "-01":      "",
			"00-00000000000000000000000000000000-" + span + "-01":        "",
			"00-" + id + "-0000000000000000-01":                          "",
			"00-0AF7651916CD43DD8448EB211C80319C-" + span + "-01":        "",
			"00-" + id + "-" + span + "-01-what-version-0-does-not-have": "",
		} {
			h := http.Header{"Traceparent": {parent}, "Tracestate": {"vendor=1"}}
			place := tracer.Place(h)
			var server trace.Span
			if place.Sampled() {
				_, server = tracer.StartServer(&place, "POST chat")
				defer server.End()
				if got := server.SpanContext().TraceState().String(); got != want {
					t.Errorf("%s, %q: the span's state is %q, want %q", sampler, parent, got, want)
				}
			}
			place.Inject(server, h)
			if got := h.Get("Tracestate"); got != want {
				t.Errorf("%s, %q: the state is %q, want %q", sampler, parent, got, want)
			}
			got := h.Get("Traceparent")
			if ID(h) != place.ID() || (place.ID() == id) != (want != "") || strings.Contains(got, span) {
				t.Errorf("%s, %q: the replica sees %q", sampler, parent, got)
			}
			if flags := map[string]string{"always_on": "-01", "always_off": "-00"}[sampler]; !strings.HasPrefix(got, "00-") || len(got) != 55 || !strings.HasSuffix(got, flags) {
				t.Errorf("%s, %q: the replica sees %q, want …%s", sampler, parent, got, flags)
			}
			if server != nil && got[3:52] != server.SpanContext().TraceID().String()+"-"+server.SpanContext().SpanID().String() {
				t.Errorf("%q: the replica sees %q, which is not the span", parent, got)
			}
		}
	}
}

// TestAttemptsOfARequestThatIsNotSampledAreOne: no span tells them apart.
func TestAttemptsOfARequestThatIsNotSampledAreOne(t *testing.T) {
	t.Setenv("OTEL_TRACES_SAMPLER", "always_off")
	tracer := newTracer(t)
	place := tracer.Place(http.Header{})
	id, first, second := place.ID(), http.Header{}, http.Header{}
	place.Inject(nil, first)
	place.Inject(nil, second)
	if a, b := first.Get("Traceparent"), second.Get("Traceparent"); a != b || ID(http.Header{"Traceparent": {a}}) != id || place.ID() != id {
		t.Errorf("%q, then %q, of the trace %s", a, b, id)
	}
}

// TestARequestThatIsNotSampledAllocatesItsHeader and nothing else.
func TestARequestThatIsNotSampledAllocatesItsHeader(t *testing.T) {
	t.Setenv("OTEL_TRACES_SAMPLER_ARG", "0")
	tracer := newTracer(t)
	in, out := http.Header{}, http.Header{}
	out["Traceparent"] = nil
	var place Place // a part of the exchange
	n := testing.AllocsPerRun(100, func() {
		place = tracer.Place(in)
		place.Inject(nil, out)
		_ = place.ID()
	})
	if n > 1 {
		t.Errorf("%v allocations", n)
	}
}

// TestHeadersThatComeTwice: a state in two lines is one list, and of two parents none
// is the parent.
func TestHeadersThatComeTwice(t *testing.T) {
	t.Setenv("OTEL_TRACES_SAMPLER", "always_off")
	tracer := newTracer(t)
	const id, rest = "0af7651916cd43dd8448eb211c80319c", "-b7ad6b7169203331-00"
	h := http.Header{"Traceparent": {"00-" + id + rest}, "Tracestate": {"a=1", "b=2"}}
	p := tracer.Place(h)
	p.Inject(nil, h)
	if got := strings.Join(h["Tracestate"], "|"); got != "a=1,b=2" {
		t.Errorf("the state is %q", got)
	}
	other := tracer.Place(http.Header{"Traceparent": {"00-" + id + rest, "00-1" + id[1:] + rest}})
	if other.ID() == id {
		t.Error("the first of two parents was taken")
	}
}
