package proxy

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/openai"
	"github.com/warmpath/warmpath/internal/router"
)

// TestWithoutATracerNothingIsAllocated goes through everything that a request calls.
func TestWithoutATracerNothingIsAllocated(t *testing.T) {
	x := newExchange(&Proxy{})
	x.r, x.endpoint = httptest.NewRequest(http.MethodPost, "/v1/chat/completions", nil), openai.Chat
	x.r.Header.Set("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	header := http.Header{}
	now := time.Now()
	n := testing.AllocsPerRun(100, func() {
		x.startSpan()
		x.startAttempt()
		x.inject(header)
		x.endAttempt(router.Completed)
		x.retried()
		if x.traceID() == "" {
			t.Fatal("the log would not have the trace")
		}
		x.endSpan(now)
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}
