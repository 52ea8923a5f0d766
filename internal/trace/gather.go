package trace

import (
	"context"
	"os"
	"strconv"
	"sync"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"
)

// The SDK's batches are filled by a goroutine that each span wakes. Where few requests
// are sampled it sleeps before each, and to wake it costs more than the span. So spans
// come to it so many at a time, or so late at most.
const (
	gatherSpans = 64
	gatherTime  = 100 * time.Millisecond
)

// gather holds spans back for a moment.
type gather struct {
	sdk.SpanProcessor // gets them together

	most  int
	mu    sync.Mutex
	spans []sdk.ReadOnlySpan
	late  *time.Timer
}

// newGather returns a processor before another, whose queue has room for so many.
func newGather(next sdk.SpanProcessor, queue int) *gather {
	g := &gather{SpanProcessor: next, most: min(queue, gatherSpans)}
	g.late = time.AfterFunc(gatherTime, g.pass)
	return g
}

// queueSize returns the room of the SDK's queue as the environment has it.
func queueSize() int {
	if n, err := strconv.Atoi(os.Getenv("OTEL_BSP_MAX_QUEUE_SIZE")); err == nil && n > 0 {
		return n
	}
	return sdk.DefaultMaxQueueSize
}

// OnEnd takes a span that is over.
func (g *gather) OnEnd(s sdk.ReadOnlySpan) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.spans = append(g.spans, s)
	switch len(g.spans) {
	case g.most:
		g.passLocked()
	case 1:
		g.late.Reset(gatherTime)
	}
}

func (g *gather) pass() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.passLocked()
}

func (g *gather) passLocked() {
	for _, s := range g.spans {
		g.SpanProcessor.OnEnd(s) // does not block
	}
	clear(g.spans)
	g.spans = g.spans[:0]
}

// Shutdown passes on what there is, and ends both.
func (g *gather) Shutdown(ctx context.Context) error {
	g.late.Stop()
	g.pass()
	return g.SpanProcessor.Shutdown(ctx)
}

// ForceFlush passes on what there is, and flushes the other.
func (g *gather) ForceFlush(ctx context.Context) error {
	g.pass()
	return g.SpanProcessor.ForceFlush(ctx)
}
