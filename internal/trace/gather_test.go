package trace

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"
)

// counter counts the spans that come.
type counter struct {
	sdk.SpanProcessor
	n int
}

func (c *counter) OnEnd(sdk.ReadOnlySpan)         { c.n++ }
func (c *counter) Shutdown(context.Context) error { return nil }

func TestSpansArePassedOnTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		next := &counter{}
		g := newGather(next, sdk.DefaultMaxQueueSize)
		came := func(want int) {
			t.Helper()
			synctest.Wait()
			if g.mu.Lock(); next.n != want {
				t.Errorf("%d spans have come, want %d", next.n, want)
			}
			g.mu.Unlock()
		}
		end := func(n int) {
			for range n {
				g.OnEnd(nil)
			}
		}
		end(gatherSpans - 1)
		came(0)
		end(2)
		came(gatherSpans)
		time.Sleep(gatherTime)
		came(gatherSpans + 1)
		time.Sleep(10 * gatherTime)
		end(1) // the time begins with the first
		time.Sleep(gatherTime - 1)
		came(gatherSpans + 1)
		time.Sleep(time.Nanosecond)
		came(gatherSpans + 2)
		end(3)
		if err := g.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		came(gatherSpans + 5)
	})
}

func TestSpansArePassedOnBeforeTheyOverflowTheQueue(t *testing.T) {
	for value, want := range map[string]int{"": gatherSpans, "5": 5, "1": 1, "4096": gatherSpans, "0": gatherSpans, "many": gatherSpans} {
		t.Setenv("OTEL_BSP_MAX_QUEUE_SIZE", value)
		synctest.Test(t, func(t *testing.T) {
			next := &counter{}
			g := newGather(next, queueSize())
			for range want - 1 {
				g.OnEnd(nil)
			}
			if next.n != 0 {
				t.Errorf("%q: %d spans have come, one by one", value, next.n)
			}
			if g.OnEnd(nil); next.n != want {
				t.Errorf("%q: %d of %d spans have come", value, next.n, want)
			}
			g.late.Stop()
		})
	}
}
