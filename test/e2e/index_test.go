//go:build e2e

package e2e

import (
	"runtime"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/prefix"
)

// TestIndexKeepsItsLimit has ten million prompts go through an index that has
// room for a few hundred thousand: a gateway that runs for months must neither
// grow nor become slow.
func TestIndexKeepsItsLimit(t *testing.T) {
	const (
		prompts  = 10_000_000
		cuts     = 16
		slots    = 8
		limit    = 256 << 20
		sample   = 100_000 // prompts timed at each end
		maxHeap  = limit * 3 / 2
		maxDrift = 3
	)
	var mem runtime.MemStats
	heap := func() uint64 {
		runtime.ReadMemStats(&mem)
		return mem.HeapInuse
	}
	runtime.GC()
	before := heap()

	x := prefix.NewIndex(limit)
	for s := range slots {
		x.SetSlot(s, 16, 1<<30) // the limit is to bound it, not the replicas' caches
	}
	c := &prefix.Chain{Cuts: make([]prefix.Cut, cuts)}
	var first, last time.Duration
	var peak uint64
	var most int64
	began, since := time.Now(), time.Now()
	for i := range prompts {
		for j := range c.Cuts {
			// Odd multiples permute the numbers: no two hashes are equal.
			c.Cuts[j] = prefix.Cut{Hash: prefix.Hash(uint64(i*cuts+j+1) * 0x9E3779B97F4A7C15), Tokens: int32(128 * (j + 1))}
		}
		x.Confirm(c, i%slots, 1)
		if n := x.Bytes(); n > limit {
			t.Fatalf("%d bytes after %d prompts, limit %d", n, i+1, limit)
		} else if n > most {
			most = n
		}
		if (i+1)%sample == 0 {
			each := time.Since(since) / sample
			if first == 0 {
				first = each
			}
			if i < prompts*4/5 || last == 0 || each < last { // the least of the last fifth: other work on the machine is not the index's
				last = each
			}
			peak = max(peak, heap())
			since = time.Now()
		}
	}
	took := time.Since(began)
	runtime.GC()
	held := heap() - before
	t.Logf("%d prompts of %d cuts in %.0f s; at the beginning %v for one, at the end %v", prompts, cuts, took.Seconds(), first, last)
	t.Logf("limit %d MiB: at most %d by its own count, %d of heap in use at the end, %d at most with garbage", limit>>20, most>>20, held>>20, peak>>20)
	if most < limit*9/10 {
		t.Errorf("the index took %d bytes at most: the limit of %d was not tested", most, limit)
	}
	if held > maxHeap {
		t.Errorf("%d bytes of heap in use, want at most %d", held, maxHeap)
	}
	if last > maxDrift*first {
		t.Errorf("%v for a prompt at the end, %v at the beginning: want at most %d times", last, first, maxDrift)
	}
	runtime.KeepAlive(x)
}
