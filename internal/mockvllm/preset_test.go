package mockvllm

import (
	"slices"
	"testing"
	"time"
)

// The times are test/vllm/pace.py's, of one run.
func TestSmol4TakesTheTimeThatTheRealReplicaTook(t *testing.T) {
	const tolerance = 0.2 // between runs of the real one, on a machine that others use
	for _, tt := range []struct {
		uncached, cached int
		want             time.Duration
	}{
		{128, 0, 57 * time.Millisecond},
		{512, 0, 212 * time.Millisecond},
		{2048, 0, 943 * time.Millisecond},
		{256, 2048, 152 * time.Millisecond},
		{1024, 2048, 616 * time.Millisecond},
		{512, 4096, 393 * time.Millisecond},
		{2048, 4096, 1717 * time.Millisecond},
	} {
		l := newLab(t, Presets()["smol4"])
		l.serve(Request{Prompt: ids(1, tt.cached+1)})
		began := l.now
		id := l.submit(Request{Prompt: slices.Concat(ids(1, tt.cached), ids(2, tt.uncached)), Output: ids(3, 1)})
		l.run()
		got := l.first[id] - began
		if ratio := got.Seconds() / tt.want.Seconds(); l.cached[id] != tt.cached || ratio < 1-tolerance || ratio > 1+tolerance {
			t.Errorf("%d tokens behind %d: %v with %d cached, the real replica took %v", tt.uncached, tt.cached, got, l.cached[id], tt.want)
		}
	}
}
