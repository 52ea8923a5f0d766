package mockvllm

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// lab drives an engine in virtual time and notes what became of each request.
type lab struct {
	*Engine
	t      *testing.T
	now    time.Duration
	first  map[uint64]time.Duration
	done   map[uint64]time.Duration
	cached map[uint64]int
	tokens map[uint64]int
}

func newLab(t *testing.T, cfg Config) *lab {
	return &lab{
		Engine: NewEngine(cfg), t: t,
		first: map[uint64]time.Duration{}, done: map[uint64]time.Duration{}, cached: map[uint64]int{}, tokens: map[uint64]int{},
	}
}

// step waits for the end of the step under way and schedules the next; false when the engine is idle.
func (l *lab) step() bool {
	l.t.Helper()
	events, next := l.Step(l.now)
	for _, ev := range events {
		if _, ok := l.first[ev.ID]; !ok {
			l.first[ev.ID] = l.now
		} else if ev.Generated != l.tokens[ev.ID]+1 {
			l.t.Fatalf("request %d jumps from %d to %d tokens", ev.ID, l.tokens[ev.ID], ev.Generated)
		}
		l.cached[ev.ID], l.tokens[ev.ID] = ev.Cached, ev.Generated
		if ev.Finished {
			l.done[ev.ID] = l.now
		}
	}
	l.check()
	if next == Idle {
		return false
	}
	l.now = next
	return true
}

func (l *lab) run() {
	l.t.Helper()
	for l.step() {
	}
	if c := l.Counters(); c.Running+c.Waiting+c.UsedBlocks != 0 {
		l.t.Fatalf("idle with %+v", c)
	}
}

func (l *lab) submit(r Request) uint64 {
	l.t.Helper()
	id, err := l.Submit(r)
	if err != nil {
		l.t.Fatal(err)
	}
	return id
}

// serve submits one request, runs it to its end and returns how many tokens were cached.
func (l *lab) serve(r Request) int {
	l.t.Helper()
	id := l.submit(r)
	l.run()
	return l.cached[id]
}

// check holds the pool's invariants against the sequences and both lists of blocks.
func (l *lab) check() {
	l.t.Helper()
	refs := make([]int32, len(l.kv.blocks))
	for _, s := range l.running {
		for _, b := range s.blocks {
			refs[b]++
		}
		if s.computed > len(s.blocks)*l.cfg.BlockSize || s.committed > len(s.hashes) {
			l.t.Fatalf("sequence %d computed %d tokens in %d blocks", s.id, s.computed, len(s.blocks))
		}
	}
	free := 0
	for b := l.kv.blocks[0].next; b != 0; b = l.kv.blocks[b].next {
		free++
		refs[b]--
	}
	if free != l.kv.free {
		l.t.Fatalf("free queue has %d blocks, counted %d", free, l.kv.free)
	}
	hashed := 0
	for b := 1; b < len(refs); b++ {
		k := l.kv.blocks[b]
		if want := max(refs[b], 0); k.refs != want || refs[b] == 0 {
			l.t.Fatalf("block %d has %d references, sequences hold %d", b, k.refs, refs[b])
		}
		if k.hashed {
			hashed++
		}
	}
	for h, head := range l.kv.byHash {
		for b := head; ; {
			k := l.kv.blocks[b]
			if !k.hashed || k.hash != h {
				l.t.Fatalf("block %d is listed under a hash it does not have", b)
			}
			hashed--
			if b = k.newer; b == head {
				break
			}
		}
	}
	if hashed != 0 {
		l.t.Fatalf("%d hashed blocks are not listed", hashed)
	}
}

// ids returns n token ids of a text of their own.
func ids(text, n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(text<<16 + i)
	}
	return out
}

func TestRepeatedPromptHitsAllFullBlocksButTheLastToken(t *testing.T) {
	for _, tt := range []struct{ prompt, want int }{{1, 0}, {16, 0}, {17, 16}, {32, 16}, {33, 32}, {160, 144}, {175, 160}} {
		l := newLab(t, Config{})
		r := Request{Prompt: ids(1, tt.prompt), Output: ids(2, 1)}
		if got := l.serve(r); got != 0 {
			t.Errorf("prompt of %d: %d cached in an empty cache", tt.prompt, got)
		}
		if got := l.serve(r); got != tt.want {
			t.Errorf("prompt of %d: %d cached, want %d", tt.prompt, got, tt.want)
		}
		c := l.Counters()
		if c.PromptTokens != uint64(2*tt.prompt) || c.CachedTokens != uint64(tt.want) || c.HitTokens != c.CachedTokens ||
			c.ComputedTokens != c.PromptTokens-c.CachedTokens || c.GeneratedTokens != 2 {
			t.Errorf("prompt of %d: counters %+v", tt.prompt, c)
		}
	}
}

func TestGeneratedTokensAreCachedExceptTheLastSampled(t *testing.T) {
	for _, tt := range []struct{ output, want int }{{1, 16}, {16, 16}, {17, 32}, {32, 32}, {33, 48}} {
		l := newLab(t, Config{})
		r := Request{Prompt: ids(1, 16), Output: ids(2, tt.output)}
		l.serve(r)
		next := slices.Concat(r.Prompt, r.Output, ids(3, 40))
		if got := l.serve(Request{Prompt: next}); got != tt.want {
			t.Errorf("answer of %d tokens: next turn hits %d, want %d", tt.output, got, tt.want)
		}
	}
}

func TestEvictionTakesTheTailOfTheLeastRecentlyUsedFirst(t *testing.T) {
	const B = 16
	for _, tt := range []struct {
		name           string
		intruder, a, b int // blocks of the intruder; cached blocks of a, of b
		touchAFirst    bool
	}{
		{name: "never used blocks go first", intruder: 2, a: 3, b: 3},
		{name: "then the tail of the oldest", intruder: 4, a: 2, b: 3},
		{name: "then all of it", intruder: 6, a: 0, b: 3},
		{name: "then the tail of the next", intruder: 8, a: 0, b: 2},
		{name: "a hit makes it the youngest", intruder: 4, a: 3, b: 2, touchAFirst: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, probe := range []struct{ text, want int }{{1, tt.a}, {2, tt.b}} {
				l := newLab(t, Config{Blocks: 1 + 10})
				a, b := Request{Prompt: ids(1, 4*B)}, Request{Prompt: ids(2, 4*B)}
				l.serve(a)
				l.serve(b)
				if tt.touchAFirst {
					l.serve(a)
				}
				l.serve(Request{Prompt: ids(3, tt.intruder*B)})
				if got := l.serve(Request{Prompt: ids(probe.text, 4*B)}); got != probe.want*B {
					t.Errorf("text %d hits %d tokens, want %d", probe.text, got, probe.want*B)
				}
			}
		})
	}
}

// A hit takes the block that was committed first, and makes it the youngest: what lay between the two copies in the
// queue is then next to go.
func TestOldestCopyOfABlockServesTheHits(t *testing.T) {
	const B = 16
	l := newLab(t, Config{Blocks: 1 + 10})
	a, x := Request{Prompt: ids(1, 2*B)}, Request{Prompt: ids(2, 2*B)}
	l.serve(a)
	l.serve(x)
	copied := a
	copied.NoCacheRead = true
	l.serve(copied)
	if got := l.serve(Request{Prompt: ids(1, 2*B+1)}); got != 2*B {
		t.Fatalf("%d tokens cached, want %d", got, 2*B)
	}
	l.serve(Request{Prompt: ids(3, 5*B)}) // four blocks that were never used, and one more
	if got := l.serve(Request{Prompt: ids(2, 2*B+1)}); got != B {
		t.Errorf("%d tokens cached of what lay between the copies, want %d", got, B)
	}
	if got := l.serve(Request{Prompt: ids(1, 2*B+1)}); got != 2*B {
		t.Errorf("%d tokens cached of what was copied, want %d", got, 2*B)
	}
}

func TestRunningRequestsPinTheirBlocks(t *testing.T) {
	l := newLab(t, Config{Blocks: 1 + 8, StepBase: time.Millisecond})
	a := l.submit(Request{Prompt: ids(1, 64), Output: ids(2, 40)})
	l.step()
	b := l.submit(Request{Prompt: ids(3, 80)}) // 5 blocks; 4 are free
	l.step()
	if c := l.Counters(); c.Running != 1 || c.Waiting != 1 {
		t.Fatalf("a prompt that does not fit was admitted: %+v", c)
	}
	if l.ResetCache() {
		t.Fatal("cache was reset while a request held blocks")
	}
	l.run()
	if l.done[b] <= l.done[a] {
		t.Errorf("b done at %v, before a at %v", l.done[b], l.done[a])
	}
	if !l.ResetCache() {
		t.Error("idle cache was not reset")
	}
	if got := l.serve(Request{Prompt: ids(1, 64)}); got != 0 {
		t.Errorf("%d tokens cached after a reset", got)
	}
}

func TestSharedPrefixCountsFreeBlocksOnce(t *testing.T) {
	l := newLab(t, Config{Blocks: 1 + 6})
	l.serve(Request{Prompt: ids(1, 64)})
	// 4 blocks lie in the free queue; 3 are hit, so 3 are left for the 3 that are new.
	if got := l.serve(Request{Prompt: slices.Concat(ids(1, 48), ids(2, 48))}); got != 48 {
		t.Errorf("%d tokens cached, want 48", got)
	}
}

func TestStepTime(t *testing.T) {
	cfg := Config{StepBase: 10 * time.Millisecond, PrefillPerToken: time.Millisecond, DecodePerSeq: 100 * time.Microsecond, MaxBatchedTokens: 32}
	ms := time.Millisecond
	t.Run("prompts are chunked in order of arrival", func(t *testing.T) {
		l := newLab(t, cfg)
		a, b, c := l.submit(Request{Prompt: ids(1, 48)}), l.submit(Request{Prompt: ids(2, 32)}), l.submit(Request{Prompt: ids(3, 1)})
		l.run()
		// 32 of a; 16 of a and 16 of b; 16 of b and c.
		if l.done[a] != 84*ms || l.done[b] != 84*ms+27*ms || l.done[c] != l.done[b] {
			t.Errorf("done at %v, %v, %v", l.done[a], l.done[b], l.done[c])
		}
	})
	t.Run("decodes go on beside a long prefill", func(t *testing.T) {
		l := newLab(t, cfg)
		a := l.submit(Request{Prompt: ids(1, 8), Output: ids(9, 4)})
		l.step()
		b := l.submit(Request{Prompt: ids(2, 62)})
		l.run()
		step := 10*ms + 31*ms + 100*time.Microsecond // one token of a, 31 of b
		if l.done[b] != 18*ms+2*step || l.first[a] != 18*ms || l.done[a] != l.done[b]+10*ms+100*time.Microsecond {
			t.Errorf("a from %v to %v, b done at %v", l.first[a], l.done[a], l.done[b])
		}
	})
	t.Run("a prefix committed in the same step is hit by the request behind", func(t *testing.T) {
		l := newLab(t, cfg)
		a, b := l.submit(Request{Prompt: ids(1, 17)}), l.submit(Request{Prompt: ids(1, 17)})
		l.run()
		if l.cached[b] != 16 || l.done[a] != 28*ms || l.done[b] != 28*ms {
			t.Errorf("%d cached, done at %v and %v", l.cached[b], l.done[a], l.done[b])
		}
	})
	t.Run("attention grows with the context", func(t *testing.T) {
		l := newLab(t, Config{AttentionPerPair: 1000, MaxBatchedTokens: 10})
		a := l.submit(Request{Prompt: ids(1, 20)})
		l.run()
		if want := 20 * 21 / 2 * time.Microsecond; l.done[a] != want {
			t.Errorf("prefill took %v, want %v however it is chunked", l.done[a], want)
		}
	})
	t.Run("stepping early does nothing", func(t *testing.T) {
		l := newLab(t, cfg)
		l.submit(Request{Prompt: ids(1, 8)})
		_, end := l.Step(0)
		if events, next := l.Step(end - 1); len(events) != 0 || next != end {
			t.Errorf("got %v, next %v, want %v", events, next, end)
		}
	})
}

func TestLastRunningIsPreemptedWhenADecodeNeedsABlock(t *testing.T) {
	l := newLab(t, Config{Blocks: 1 + 4, StepBase: time.Millisecond})
	a := l.submit(Request{Prompt: ids(1, 16), Output: ids(2, 40)})
	b := l.submit(Request{Prompt: ids(3, 16), Output: ids(4, 40)})
	c := l.submit(Request{Prompt: ids(5, 40)})
	l.run()
	if got := l.Counters().Preemptions; got != 1 {
		t.Errorf("%d preemptions, want 1", got)
	}
	if l.done[a] >= l.done[b] || l.done[b] >= l.done[c] {
		t.Errorf("done at %v, %v, %v: the preempted request was overtaken", l.done[a], l.done[b], l.done[c])
	}
	if l.tokens[b] != 40 || l.cached[b] != 0 {
		t.Errorf("preempted request has %d tokens, %d cached", l.tokens[b], l.cached[b])
	}
}

func TestAbortFreesEverything(t *testing.T) {
	for _, steps := range []int{0, 1, 3, 6} { // waiting, in its first chunk, at the end of the prefill, decoding
		l := newLab(t, Config{MaxBatchedTokens: 32, StepBase: time.Millisecond})
		id := l.submit(Request{Prompt: ids(1, 96), Output: ids(2, 100)})
		for range steps {
			l.step()
		}
		if !l.Abort(id) || l.Abort(id) {
			t.Error("abort must know the request once")
		}
		l.run()
		if _, ok := l.done[id]; ok {
			t.Errorf("after %d steps: aborted request finished", steps)
		}
		if got, want := l.serve(Request{Prompt: ids(1, 96)}), min(steps*32, 80); got != want {
			t.Errorf("after %d steps: %d tokens of the aborted request cached, want %d", steps, got, want)
		}
	}
}

func TestPausedEngineQueues(t *testing.T) {
	l := newLab(t, Config{})
	l.Pause()
	id := l.submit(Request{Prompt: ids(1, 8)})
	if l.step() || l.Counters().Waiting != 1 {
		t.Fatal("paused engine scheduled a request")
	}
	l.Resume()
	l.run()
	if _, ok := l.done[id]; !ok {
		t.Error("request was lost")
	}
}

func TestWhatSeparatesPrefixes(t *testing.T) {
	l := newLab(t, Config{})
	base := Request{Prompt: ids(1, 64)}
	l.serve(base)
	for name, change := range map[string]func(*Request){
		"adapter":    func(r *Request) { r.Adapter = "a" },
		"salt":       func(r *Request) { r.Salt = "s" },
		"first id":   func(r *Request) { r.Prompt[0]++ },
		"no reading": func(r *Request) { r.NoCacheRead = true },
	} {
		r := Request{Prompt: slices.Clone(base.Prompt)}
		change(&r)
		if got := l.serve(r); got != 0 {
			t.Errorf("%s: %d tokens cached, want 0", name, got)
		}
	}
	if got := l.serve(base); got != 48 {
		t.Errorf("%d tokens cached, want 48", got)
	}
}

func TestSubmitRefusesWhatCannotRun(t *testing.T) {
	e := NewEngine(Config{Blocks: 1 + 2})
	for _, tt := range []struct {
		r    Request
		want error
	}{
		{Request{}, ErrEmptyPrompt},
		{Request{Prompt: ids(1, 33)}, ErrTooLong},
		{Request{Prompt: ids(1, 16), Output: ids(1, 17)}, ErrTooLong},
		{Request{Prompt: ids(1, 16), Output: ids(1, 16)}, nil},
	} {
		if _, err := e.Submit(tt.r); !errors.Is(err, tt.want) {
			t.Errorf("%d+%d tokens: %v, want %v", len(tt.r.Prompt), len(tt.r.Output), err, tt.want)
		}
	}
}

func TestInvariantsUnderRandomLoad(t *testing.T) {
	for seed := range uint64(40) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		l := newLab(t, Config{
			BlockSize: 1 + rnd.IntN(8), Blocks: 8 + rnd.IntN(40), MaxBatchedTokens: 1 + rnd.IntN(64), MaxSeqs: 1 + rnd.IntN(8),
			StepBase: time.Millisecond,
		})
		want := map[uint64]int{}
		for range 300 {
			switch rnd.IntN(5) {
			case 0, 1:
				r := Request{Prompt: ids(rnd.IntN(3), 1+rnd.IntN(60)), Output: ids(10+rnd.IntN(2), rnd.IntN(40))}
				if id, err := l.Submit(r); err == nil {
					want[id] = len(r.Output)
				}
			case 2:
				for id := range want {
					if l.Abort(id) {
						delete(want, id)
					}
					break
				}
			default:
				l.step()
			}
		}
		l.run()
		for id, n := range want {
			if _, ok := l.done[id]; !ok || l.tokens[id] != n {
				t.Fatalf("seed %d: request %d ended %v with %d of %d tokens", seed, id, ok, l.tokens[id], n)
			}
		}
	}
}

func BenchmarkDecodeStep(b *testing.B) {
	const seqs = 64
	e := NewEngine(Config{Blocks: 1 << 16})
	output := make([]uint32, 16000)
	now, next := time.Duration(0), Idle
	b.ReportAllocs()
	for b.Loop() {
		if next == Idle {
			for i := range seqs {
				if _, err := e.Submit(Request{Prompt: ids(i, 64), Output: output}); err != nil {
					b.Fatal(err)
				}
			}
		}
		_, next = e.Step(now)
		now = min(next, now+time.Second)
	}
	b.ReportMetric(float64(b.Elapsed())/float64(b.N)/seqs, "ns/token")
}
