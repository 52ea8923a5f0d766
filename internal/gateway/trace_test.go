package gateway_test

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/gateway"
	"github.com/warmpath/warmpath/internal/mockvllm"
)

// receiver is an OTLP collector that keeps what it gets.
type receiver struct {
	collector.UnimplementedTraceServiceServer
	mu    sync.Mutex
	spans []*tracepb.Span
	about map[string]string // the resource's attributes
}

// Export takes spans by gRPC.
func (c *receiver) Export(_ context.Context, r *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, rs := range r.ResourceSpans {
		c.about = attributes(rs.Resource.Attributes)
		for _, ss := range rs.ScopeSpans {
			c.spans = append(c.spans, ss.Spans...)
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// ServeHTTP takes spans by HTTP.
func (c *receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var in collector.ExportTraceServiceRequest
	if err := proto.Unmarshal(body, &in); err != nil || r.URL.Path != "/v1/traces" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	_, _ = c.Export(r.Context(), &in)
	w.Header().Set("Content-Type", "application/x-protobuf")
}

// of returns the spans of a trace, by their kind.
func (c *receiver) of(trace string, kind tracepb.Span_SpanKind) (list []*tracepb.Span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		if hex.EncodeToString(s.TraceId) == trace && s.Kind == kind {
			list = append(list, s)
		}
	}
	return list
}

func attributes(list []*common.KeyValue) map[string]string {
	m := map[string]string{}
	for _, kv := range list {
		m[kv.Key] = strings.Trim(kv.Value.String()[strings.Index(kv.Value.String(), ":")+1:], `"`)
	}
	return m
}

func events(s *tracepb.Span) (names []string) {
	for _, e := range s.Events {
		names = append(names, e.Name)
	}
	return names
}

const (
	clientTrace = "0af7651916cd43dd8448eb211c80319c"
	clientSpan  = "b7ad6b7169203331"
)

// TestTracesReachACollector has the first attempt turned away: one server span, two
// client spans, all of the client's trace, and the replicas see whose children they are.
func TestTracesReachACollector(t *testing.T) {
	f := func(protocol string, serve func(*testing.T, *receiver) string) {
		t.Run(protocol, func(t *testing.T) {
			c := &receiver{}
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", serve(t, c))
			t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
			t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
			t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
			list, urls := mocks(t, 2, nil)
			g := start(t, nil, urls...)
			list[0].SetFaults(mockvllm.Faults{Status: http.StatusServiceUnavailable})
			body := `{"model":"mock","stream":true,"stream_options":{"include_usage":true},"max_tokens":8,"messages":[{"role":"user","content":"swordfish"}]}`
			parent := "00-" + clientTrace + "-" + clientSpan + "-01"
			var attempts []*tracepb.Span
			var last *tracepb.Span
			tries := 0
			eventually(t, "a request is tried twice", func() bool {
				tries++
				g.must(chatPath, strings.Replace(body, "swordfish", fmt.Sprint("swordfish ", tries), 1), "Traceparent", parent, "Tracestate", "vendor=1")
				g.idle()
				return g.metric("warmpath_retries_total") > 0
			})
			eventually(t, "the spans of that one have come", func() bool {
				for _, server := range c.of(clientTrace, tracepb.Span_SPAN_KIND_SERVER) {
					attempts = nil
					for _, a := range c.of(clientTrace, tracepb.Span_SPAN_KIND_CLIENT) {
						if string(a.ParentSpanId) == string(server.SpanId) {
							attempts = append(attempts, a) // in the order in which they ended
						}
					}
					if last = server; len(attempts) == 2 {
						return true
					}
				}
				return false
			})
			if hex.EncodeToString(last.ParentSpanId) != clientSpan {
				t.Errorf("the server span's parent is %x", last.ParentSpanId)
			}
			if got := strings.Join(events(last), " "); got != "retry first_token" {
				t.Errorf("the server span has events %q", got)
			}
			if a := attributes(last.Attributes); a["http.response.status_code"] != "200" || a["gen_ai.request.model"] != "mock" || a["warmpath.attempts"] != "2" {
				t.Errorf("the server span has %v", a)
			}
			failed, ok := attempts[0], attempts[1]
			if failed.Status.Code != tracepb.Status_STATUS_CODE_ERROR || attributes(failed.Attributes)["error.type"] != "busy" {
				t.Errorf("the failed attempt is %v", failed)
			}
			a := attributes(ok.Attributes)
			for name, want := range map[string]string{
				"gen_ai.operation.name": "chat", "gen_ai.request.model": "mock", "gen_ai.usage.output_tokens": "8", "server.address": "127.0.0.1",
				"warmpath.replica": list[1].id, "http.request.resend_count": "1",
			} {
				if a[name] != want {
					t.Errorf("%s is %q, want %q", name, a[name], want)
				}
			}
			if ok.Name != "chat mock" || a["gen_ai.response.time_to_first_chunk"] == "" || a["gen_ai.usage.input_tokens"] == "" {
				t.Errorf("the attempt is %v", ok)
			}
			seen := list[1].Requests()
			if got := seen[len(seen)-1].Header.Get("Traceparent"); got != "00-"+clientTrace+"-"+hex.EncodeToString(ok.SpanId)+"-01" {
				t.Errorf("the replica saw %q", got)
			}
			if got := seen[len(seen)-1].Header.Get("Tracestate"); got != "vendor=1" {
				t.Errorf("the replica saw state %q", got)
			}
			g.logged("request_id", "trace_id="+clientTrace)
			if c.about["service.name"] != "warmpath" || c.about["deployment.environment.name"] != "test" {
				t.Errorf("the resource is %v", c.about)
			}
			if strings.Contains(ok.String()+last.String(), "swordfish") {
				t.Error("a span shows the prompt")
			}

			g.must(chatPath, body) // starts a trace of its own
			seen = list[1].Requests()
			if got := seen[len(seen)-1].Header.Get("Traceparent"); len(got) != 55 || strings.Contains(got, clientTrace) {
				t.Errorf("the replica saw %q of a request without a trace", got)
			}
			unsampled := strings.Repeat("2", 32)
			g.must(chatPath, body, "Traceparent", "00-"+unsampled+"-"+clientSpan+"-00") // the client does not sample
			seen = list[1].Requests()
			if got := seen[len(seen)-1].Header.Get("Traceparent"); !strings.HasPrefix(got, "00-"+unsampled) || !strings.HasSuffix(got, "-00") {
				t.Errorf("the replica saw %q of a request that is not sampled", got)
			}
			g.must(chatPath, body, "Traceparent", "00-"+strings.Repeat("1", 32)+"-"+clientSpan+"-01")
			eventually(t, "a later one has come", func() bool {
				return len(c.of(strings.Repeat("1", 32), tracepb.Span_SPAN_KIND_SERVER)) == 1
			})
			if n := len(c.of(unsampled, tracepb.Span_SPAN_KIND_SERVER)); n != 0 {
				t.Error("the one that is not sampled has come")
			}
		})
	}
	f("http/protobuf", func(t *testing.T, c *receiver) string {
		s := httptest.NewServer(c)
		t.Cleanup(s.Close)
		return s.URL
	})
	f("grpc", func(t *testing.T, c *receiver) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s := grpc.NewServer()
		collector.RegisterTraceServiceServer(s, c)
		go func() { _ = s.Serve(l) }()
		t.Cleanup(s.Stop)
		return "http://" + l.Addr().String()
	})
}

// TestWithoutACollectorHeadersPassAsTheyAre holds that tracing is off by default.
func TestWithoutACollectorHeadersPassAsTheyAre(t *testing.T) {
	list, urls := mocks(t, 1, nil)
	g := start(t, nil, urls...)
	parent := "00-" + clientTrace + "-" + clientSpan + "-01"
	g.must(chatPath, forms()[0].body("hi"), "Traceparent", parent)
	seen := list[0].Requests()
	if got := seen[len(seen)-1].Header.Get("Traceparent"); got != parent {
		t.Errorf("the replica saw %q", got)
	}
	g.logged("request_id", "trace_id="+clientTrace)
	g.must(chatPath, forms()[0].body("hi"))
	seen = list[0].Requests()
	if got := seen[len(seen)-1].Header.Get("Traceparent"); got != "" {
		t.Errorf("the replica saw %q", got)
	}
}

func TestRefusesExportersThatItDoesNotHave(t *testing.T) {
	f := func(name, value, says string) {
		t.Run(value, func(t *testing.T) {
			t.Setenv("OTEL_TRACES_EXPORTER", "otlp")
			t.Setenv(name, value)
			if err := newGateway(t); err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("got %v", err)
			}
		})
	}
	f("OTEL_TRACES_EXPORTER", "zipkin", "OTEL_TRACES_EXPORTER")
	f("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "OTEL_EXPORTER_OTLP_PROTOCOL")
}

// newGateway makes a gateway and returns why it could not.
func newGateway(t *testing.T) error {
	t.Helper()
	cfg := config.Default()
	cfg.Listen, cfg.Admin, cfg.Replica.URLs = "127.0.0.1:0", "127.0.0.1:0", []string{"http://127.0.0.1:1"}
	_, err := gateway.New(cfg, slog.New(slog.DiscardHandler))
	return err
}
