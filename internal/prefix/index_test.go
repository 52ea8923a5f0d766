package prefix

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// chainOf makes a chain whose cuts stand for the given words, tokens each.
func chainOf(tokens int32, words ...int) *Chain {
	c := &Chain{}
	h := Hash(14695981039346656037)
	for i, w := range words {
		h = (h ^ Hash(w+1)) * 1099511628211
		h ^= h >> 29
		c.Cuts = append(c.Cuts, Cut{h, tokens * int32(i+1)})
	}
	c.Tokens = tokens * int32(len(words))
	return c
}

func (x *Index) heldBy(c *Chain, s int) int {
	x.grow(s)
	m := new(Matches)
	x.Find(c, m)
	return int(m.Of(s).Cut) + 1
}

// checkList verifies one of a slot's lists, and counts its segments.
func (x *Index) checkList(t *testing.T, s int, list *lru, generation uint16, segments *int) {
	t.Helper()
	used, newer := int64(0), int32(none)
	for id := list.newest; id != none; id = x.segs.get(id).older {
		g := x.segs.get(id)
		e := x.edges.get(g.edge)
		if g.newer != newer || int(g.slot) != s || g.generation != generation {
			t.Fatalf("slot %d: broken list at segment %d: %+v", s, id, *g)
		}
		if g.depth < 1 || int(g.depth) > len(e.hash) || g.confirmed > g.depth {
			t.Fatalf("slot %d: bad depth: %+v on %d cuts", s, *g, len(e.hash))
		}
		if at := x.find(g.edge, s, generation); at != id {
			t.Fatalf("slot %d: segment %d is not the edge's (%d)", s, id, at)
		}
		if e.parent != none && list == &x.slots[s].lru {
			p := x.find(e.parent, s, generation)
			if p == none || int(x.segs.get(p).depth) != len(x.edges.get(e.parent).hash) {
				t.Fatalf("slot %d holds an edge but not all before it", s)
			}
			if x.segs.get(p).stamp < g.stamp {
				t.Fatalf("slot %d: an edge is older than one below it", s)
			}
		}
		if list == &x.slots[s].lost && x.find(g.edge, s, generation+1) != none {
			t.Fatalf("slot %d: what is lost is held", s)
		}
		used += int64(g.blocks)
		newer = id
		*segments++
	}
	if list.oldest != none && list.since != x.segs.get(list.oldest).stamp {
		t.Fatalf("slot %d: the oldest is of %d, not %d", s, x.segs.get(list.oldest).stamp, list.since)
	}
	if list.oldest != newer || used != list.used {
		t.Fatalf("slot %d: used %d, charged %d; the oldest is %d, not %d", s, list.used, used, newer, list.oldest)
	}
}

// check verifies what must hold between any two calls.
func (x *Index) check(t *testing.T) {
	t.Helper()
	segments := 0
	for s := range x.slots {
		x.checkList(t, s, &x.slots[s].lru, x.slots[s].generation, &segments)
		x.checkList(t, s, &x.slots[s].lost, x.slots[s].generation-1, &segments)
		if used := x.slots[s].used; used > x.slots[s].capacity {
			t.Fatalf("slot %d: %d blocks in a capacity of %d", s, used, x.slots[s].capacity)
		}
	}
	stale := 0
	for id := x.stale; id != none; id = x.segs.get(id).older {
		stale++
	}
	if int32(segments+stale) != x.segs.live {
		t.Fatalf("%d segments in lists, %d stale, %d live", segments, stale, x.segs.live)
	}
	cuts, children := int64(0), int32(0)
	for h, id := range x.byHead {
		e := x.edges.get(id)
		if (head{e.parent, e.hash[0]}) != h || e.segs == none && e.children == 0 {
			t.Fatalf("edge %d is lost or empty", id)
		}
		cuts += int64(len(e.hash))
		children += e.children
		if e.parent == none {
			children++
		}
	}
	if int32(len(x.byHead)) != x.edges.live || children != x.edges.live || cuts != x.cuts {
		t.Fatalf("%d edges by head, %d by parents, %d live; %d cuts of %d", len(x.byHead), children, x.edges.live, cuts, x.cuts)
	}
}

func words(r *rand.Rand, alphabet, most int) []int {
	w := make([]int, 1+r.IntN(most))
	for i := range w {
		w[i] = r.IntN(alphabet)
	}
	return w
}

// TestHoldsWhatANaiveSetHolds compares the tree with sets of prefixes, without
// eviction, over random touches, failures and resets.
func TestHoldsWhatANaiveSetHolds(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	const slots = 5
	x := NewIndex(1 << 40)
	for s := range slots {
		x.SetSlot(s, 16, 1<<40)
	}
	held, lost := make([]map[Hash]bool, slots), make([]map[Hash]bool, slots)
	for s := range held {
		held[s], lost[s] = map[Hash]bool{}, map[Hash]bool{}
	}
	for i := range 20000 {
		c, s := chainOf(7, words(r, 3, 12)...), r.IntN(slots)
		switch r.IntN(50) {
		case 0:
			x.Reset(s)
			held[s], lost[s] = map[Hash]bool{}, held[s]
		case 1, 2:
			// Nothing else of this slot is pending: a failed request leaves what was.
			x.Reserve(c, s, 1)
			x.Undo(c, s)
			for _, cut := range c.Cuts {
				delete(lost[s], cut.Hash) // another use has come since
			}
		default:
			x.Reserve(c, s, 1)
			x.Confirm(c, s, 1)
			for _, cut := range c.Cuts {
				held[s][cut.Hash] = true
			}
		}
		probe := chainOf(7, words(r, 3, 14)...)
		m := new(Matches)
		x.Find(probe, m)
		for s := range slots {
			want := 0
			for want < len(probe.Cuts) && held[s][probe.Cuts[want].Hash] {
				want++
			}
			if int(m.Of(s).Cut)+1 != want {
				t.Fatalf("step %d, slot %d: %d cuts held, want %d", i, s, m.Of(s).Cut+1, want)
			}
			before := 0
			for before < len(probe.Cuts) && (held[s][probe.Cuts[before].Hash] || lost[s][probe.Cuts[before].Hash]) {
				before++
			}
			if got := max(want, int(x.Lost(probe, s))+1); got != before {
				t.Fatalf("step %d, slot %d: it would hold %d cuts, want %d", i, s, got, before)
			}
			if want > 0 && m.Of(s).Tokens != int32(7*want) {
				t.Fatalf("step %d: %d tokens at cut %d", i, m.Of(s).Tokens, want)
			}
		}
		if i%500 == 0 {
			x.check(t)
		}
	}
	x.check(t)
}

// TestStaysConsistentUnderPressure runs every operation at random against small
// slots and a small limit.
func TestStaysConsistentUnderPressure(t *testing.T) {
	for seed := range uint64(8) {
		r := rand.New(rand.NewPCG(seed, 3))
		x := NewIndex(40_000)
		for s := range 4 {
			x.SetSlot(s, 16, 20+s*10)
		}
		type open struct {
			c *Chain
			s int
		}
		var pending []open
		for i := range 6000 {
			c, s := chainOf(13, words(r, 3, 20)...), r.IntN(4)
			switch r.IntN(20) {
			case 0:
				x.Reset(s)
			case 1:
				x.Learn(c, s, 1+r.IntN(400))
			case 2:
				x.Answered(c, s, r.IntN(300))
			case 3:
				x.Shortfall(s, r.Uint64N(x.clock+1))
			case 4:
				x.Held(s, r.Uint64N(x.clock+1))
			case 5:
				x.SetSlot(s, 16, 10+r.IntN(50))
			case 6, 7, 8, 9:
				if len(pending) > 0 {
					k := r.IntN(len(pending))
					p := pending[k]
					pending = append(pending[:k], pending[k+1:]...)
					if r.IntN(3) == 0 {
						x.Undo(p.c, p.s)
					} else {
						x.Confirm(p.c, p.s, 1)
					}
				}
			default:
				x.Reserve(c, s, 0.5+r.Float64())
				pending = append(pending, open{c, s})
			}
			if x.Bytes() > x.limit {
				t.Fatalf("seed %d step %d: %d bytes over the limit", seed, i, x.Bytes())
			}
			// What one slot's answers teach may move another's charges; the other is
			// held to its capacity when it is next touched.
			x.Confirm(chainOf(13, 1), s, 1)
			if x.slots[s].used > x.slots[s].capacity {
				t.Fatalf("seed %d step %d: slot %d over its capacity", seed, i, s)
			}
		}
		for s := range 4 {
			x.Reset(s)
			x.Reset(s)
		}
		for x.stale != none {
			x.reclaim()
		}
		if x.edges.live != 0 || x.segs.live != 0 || x.cuts != 0 || len(x.byHead) != 0 {
			t.Fatalf("seed %d: %d edges, %d segments, %d cuts left after all was reset", seed, x.edges.live, x.segs.live, x.cuts)
		}
	}
}

func TestEvictsTheOldestFromItsFarEnd(t *testing.T) {
	x := NewIndex(1 << 30)
	x.SetSlot(0, 16, 10)
	a, b := chainOf(16, 1, 2, 3, 4, 5, 6), chainOf(16, 7, 8, 9)
	x.Confirm(a, 0, 1) // 6 blocks
	x.Confirm(b, 0, 1) // 3
	c := chainOf(16, 10, 11, 12)
	x.Confirm(c, 0, 1) // 3 more: two too many
	if got := x.heldBy(a, 0); got != 4 {
		t.Errorf("the oldest keeps %d of its 6 cuts, want 4", got)
	}
	if x.heldBy(b, 0) != 3 || x.heldBy(c, 0) != 3 {
		t.Error("something newer was evicted")
	}
	x.check(t)
}

func TestCountsWholeEngineBlocksAlongAPath(t *testing.T) {
	x := NewIndex(1 << 30)
	x.SetSlot(0, 128, 1000)
	// A system prompt of 910 tokens and questions of 25: 7 full blocks, whoever asks.
	for q := range 5 {
		c := chainOf(910, 1)
		c.Cuts = append(c.Cuts, Cut{Hash(1000 + q), 935})
		x.Confirm(c, 0, 1)
	}
	if got := x.Blocks(0); got != 7 {
		t.Errorf("%d blocks, want 7", got)
	}
	// Of 1,010: the eighth block holds the end of the system prompt and a question.
	x.Reset(0)
	for q := range 5 {
		c := chainOf(1010, 2)
		c.Cuts = append(c.Cuts, Cut{Hash(2000 + q), 1035})
		x.Confirm(c, 0, 1)
	}
	if got := x.Blocks(0); got != 7+5 {
		t.Errorf("%d blocks, want 12", got)
	}
}

func TestABlockSizeThatIsToldLateForgetsNothing(t *testing.T) {
	x := NewIndex(1 << 30)
	x.Confirm(chainOf(64, 1, 2, 3, 4), 0, 1)
	x.Confirm(chainOf(64, 1, 2, 7), 0, 1)
	before := x.Blocks(0)
	x.SetSlot(0, 128, 1000)
	if got := x.Blocks(0); before != 20 || got != 2 {
		t.Errorf("%d blocks of 16 tokens became %d of 128, want 20 and 2", before, got)
	}
	if x.heldBy(chainOf(64, 1, 2, 3, 4), 0) != 4 {
		t.Error("what was held is forgotten")
	}
	x.check(t)
}

func TestAFailedRequestLeavesWhatOthersNeed(t *testing.T) {
	x := NewIndex(1 << 30)
	a, b := chainOf(16, 1, 2, 3), chainOf(16, 1, 2, 4)
	x.Reserve(a, 0, 1)
	x.Reserve(b, 0, 1)
	x.Undo(a, 0)
	if x.heldBy(b, 0) != 3 {
		t.Errorf("b holds %d cuts while it is under way, want 3", x.heldBy(b, 0))
	}
	if x.heldBy(a, 0) != 2 {
		t.Errorf("a holds %d cuts after it failed, want the 2 it shares", x.heldBy(a, 0))
	}
	x.Undo(b, 0)
	if x.heldBy(b, 0) != 0 {
		t.Errorf("b holds %d cuts after it failed too", x.heldBy(b, 0))
	}
	x.check(t)
}

func TestAnEngineCountCorrectsEstimates(t *testing.T) {
	x := NewIndex(1 << 30)
	first := chainOf(100, 1, 2, 3, 4)
	x.Confirm(first, 0, 1)
	x.Learn(first, 0, 200) // half of what was thought
	m := new(Matches)
	if x.Find(chainOf(100, 1, 2, 9), m); m.Of(0).Tokens != 100 {
		t.Errorf("%d tokens at the second cut, want 100", m.Of(0).Tokens)
	}
	next := chainOf(100, 1, 2, 3, 4, 5)
	x.Confirm(next, 0, 1)
	x.Learn(next, 0, 290)
	if known := x.Find(next, m); known.Tokens != 290 {
		t.Errorf("%d tokens in all, want 290", known.Tokens)
	}
	if x.Find(first, m); m.Of(0).Tokens != 200 {
		t.Errorf("what was exact moved to %d", m.Of(0).Tokens)
	}
}

func TestAShortfallRemovesAllThatWasUsedBefore(t *testing.T) {
	x := NewIndex(1 << 30)
	x.SetSlot(0, 16, 100)
	old, mid, recent := chainOf(16, 1, 1), chainOf(16, 2, 2), chainOf(16, 3, 3)
	for _, c := range []*Chain{old, mid, recent} {
		x.Reserve(c, 0, 1)
		x.Confirm(c, 0, 1)
	}
	used := x.Reserve(mid, 0, 1) // asked again, and the engine says it had nothing of it
	x.Confirm(mid, 0, 1)
	x.Shortfall(0, used)
	if x.heldBy(old, 0) != 0 || x.heldBy(recent, 0) != 2 || x.heldBy(mid, 0) != 2 {
		t.Errorf("old %d, mid %d, recent %d cuts held; want 0, 2, 2", x.heldBy(old, 0), x.heldBy(mid, 0), x.heldBy(recent, 0))
	}
	if got := x.Capacity(0); got != 12 { // an eighth of nominal at least
		t.Errorf("capacity %d, want 12", got)
	}
	x.check(t)
}

func TestAnAnswerIsHeldBehindItsPrompt(t *testing.T) {
	x := NewIndex(1 << 30)
	c := chainOf(20, 1, 2)
	x.Confirm(c, 3, 1)
	x.Answered(c, 3, 55)
	next := chainOf(20, 1, 2, 3, 4)
	m := new(Matches)
	x.Find(next, m)
	if m.Of(3).Tokens != 40 || m.Of(3).Answer != 55 {
		t.Errorf("got %+v", m.Of(3))
	}
	if m.Of(2).Cut != none || m.Of(2).Answer != 0 {
		t.Errorf("another slot: %+v", m.Of(2))
	}
}

// TestMemoryIsBounded inserts distinct prompts without end. The long form, ten
// million, is part of make e2e.
func TestMemoryIsBounded(t *testing.T) {
	soak(t, 100_000, 4<<20)
}

func soak(t *testing.T, prompts int, limit int64) {
	x := NewIndex(limit)
	for s := range 8 {
		x.SetSlot(s, 16, 1<<30) // so that it is the limit that bounds
	}
	c := &Chain{Cuts: make([]Cut, 16)}
	for i := range prompts {
		for j := range c.Cuts {
			c.Cuts[j] = Cut{Hash(uint64(i*16+j+1) * 0x9E3779B97F4A7C15), int32(128 * (j + 1))}
		}
		x.Confirm(c, i%8, 1)
		if x.Bytes() > limit {
			t.Fatalf("%d bytes after %d prompts, limit %d", x.Bytes(), i+1, limit)
		}
	}
	if x.Bytes() < limit*9/10 {
		t.Errorf("%d bytes at the end: the limit of %d was never reached", x.Bytes(), limit)
	}
	if x.heldBy(c, (prompts-1)%8) != 16 {
		t.Error("the newest prompt is not held")
	}
}

func BenchmarkFindAndReserve(b *testing.B) {
	for _, cuts := range []int{75, 136, 512, 8192} {
		b.Run(fmt.Sprint(cuts), func(b *testing.B) {
			x := NewIndex(1 << 30)
			w := make([]int, cuts)
			for i := range w {
				w[i] = i
			}
			c := chainOf(16, w...)
			for s := range 12 {
				x.Confirm(c, s, 1)
			}
			for s := range 40 {
				x.Confirm(chainOf(16, w[:cuts/4]...), 12+s, 1)
			}
			m := new(Matches)
			x.grow(255)
			b.ReportAllocs()
			for b.Loop() {
				x.Find(c, m)
				x.Reserve(c, 3, 1)
			}
		})
	}
}

// TestAnAnswerIsJudgedByTheUseBeforeItsRequest: others ask for the same prompt before
// the first answer tells that it found nothing, or all.
func TestAnAnswerIsJudgedByTheUseBeforeItsRequest(t *testing.T) {
	for name, others := range map[string]func(x *Index, c *Chain){
		"no others": func(*Index, *Chain) {},
		"others in its queue": func(x *Index, c *Chain) {
			x.Reserve(c, 0, 1)
			x.Reserve(c, 0, 1)
			x.Confirm(c, 0, 1)
		},
		"others while it decodes": func(x *Index, c *Chain) {
			x.Confirm(c, 0, 1)
			x.Reserve(c, 0, 1)
			x.Confirm(c, 0, 1)
			x.Reserve(c, 0, 1)
		},
		"others that go on from its beginning": func(x *Index, c *Chain) {
			x.Confirm(c, 0, 1)
			x.Reserve(chainOf(16, 1, 2, 3), 0, 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := NewIndex(1 << 30)
			x.SetSlot(0, 16, 1000)
			c := chainOf(16, 1, 1)
			x.Confirm(c, 0, 1)
			for i := range 50 {
				x.Confirm(chainOf(16, 100+i, 7), 0, 1)
			}
			used := x.Reserve(c, 0, 1)
			others(x, c)
			x.Held(0, used)
			if got := x.Capacity(0); got != 1010 {
				t.Errorf("capacity %d after the oldest was found, want 1010", got)
			}
			x.Shortfall(0, used)
			if got := x.heldBy(chainOf(16, 100, 7), 0); got != 2 || x.heldBy(c, 0) != 2 {
				t.Errorf("what was used since was dropped: %d blocks are left", x.Blocks(0))
			}
			x.check(t)
		})
	}
}

// TestOnlyWhatWasComputedBeforeCanBeMissing: what a request under way is about to
// compute was never used, though its beginning was.
func TestOnlyWhatWasComputedBeforeCanBeMissing(t *testing.T) {
	x := NewIndex(1 << 30)
	x.Confirm(chainOf(16, 1, 2), 0, 1)
	x.Confirm(chainOf(16, 9, 9), 0, 1)
	if used := x.Reserve(chainOf(16, 1, 2, 3), 0, 1); used != 1 {
		t.Errorf("the beginning was used at %d, want 1", used)
	}
	if used := x.Reserve(chainOf(16, 1, 2, 3), 0, 1); used != 0 {
		t.Errorf("what is still to be computed was used at %d", used)
	}
	if used := x.Reserve(chainOf(16, 7), 0, 1); used != 0 {
		t.Errorf("what is new was used at %d", used)
	}
}

// TestWhatWasReservedBeforeAResetTouchesNothingAfterIt is for callers: they see it
// by the generation.
func TestWhatWasReservedBeforeAResetTouchesNothingAfterIt(t *testing.T) {
	x := NewIndex(1 << 30)
	before := x.Generation(3)
	if x.Reset(3); x.Generation(3) == before || x.Generation(2) != 0 {
		t.Error("a reset does not show in its slot alone")
	}
}

// TestWhatIsLearnedOfABeginningHoldsForAllThatFollowIt: prompts that were read
// while tokens were still misjudged are not wrong for ever.
func TestWhatIsLearnedOfABeginningHoldsForAllThatFollowIt(t *testing.T) {
	x := NewIndex(1 << 20)
	chain := func(tail Hash) *Chain {
		return &Chain{Cuts: []Cut{{1, 200}, {2, 400}, {tail, 600}}, Tokens: 600}
	}
	a, b := chain(10), chain(20)
	for _, c := range []*Chain{a, b} {
		x.Reserve(c, 0, 1)
		x.Confirm(c, 0, 1)
	}
	x.Learn(a, 0, 300) // half of what was thought: the first 400 are 200
	m := new(Matches)
	at := func(c *Chain, cut int32) int { n, _ := x.TokensAt(c, cut); return n }
	if known := x.Find(b, m); known.Tokens != 400 || m.Of(0).Tokens != 400 || at(b, 1) != 200 || at(b, 2) != 400 {
		t.Errorf("the other prompt counts %+v, %+v, its beginning %d: want 200 for the beginning, and its own 200 as they were", known, m.Of(0), at(b, 1))
	}
	x.Learn(b, 0, 290)
	if known := x.Find(b, m); known.Tokens != 290 || m.Of(0).Tokens != 290 {
		t.Errorf("after its own count %+v, %+v, want 290", known, m.Of(0))
	}
	if known := x.Find(a, m); known.Tokens < 270 || known.Tokens > 310 {
		t.Errorf("the first prompt counts %d, want some 300", known.Tokens)
	}
	x.Learn(a, 0, 300)
	if known := x.Find(a, m); known.Tokens != 300 {
		t.Errorf("the first prompt counts %d after it was counted again, want 300", known.Tokens)
	}
}

// TestADenseTailDoesNotMisjudgeTheBeginningForGood: tails of other scripts than the
// beginning that they share have more tokens than were estimated. What many prompts
// say of the beginning wins in the end.
func TestADenseTailDoesNotMisjudgeTheBeginningForGood(t *testing.T) {
	const beginning, tail = 8000, 2000 // really; the tail is estimated at half
	x := NewIndex(1 << 20)
	chain := func(i int) *Chain {
		return &Chain{Cuts: []Cut{{1, 4000}, {2, beginning}, {Hash(10 + i), beginning + tail/2}}, Tokens: beginning + tail/2}
	}
	m := new(Matches)
	for i := range 40 {
		c := chain(i)
		x.Reserve(c, 0, 1)
		x.Confirm(c, 0, 1)
		x.Learn(c, 0, beginning+tail)
		if known := x.Find(c, m); known.Tokens != beginning+tail {
			t.Fatalf("prompt %d counts %d after it was counted", i, known.Tokens)
		}
		if n, exact := x.TokensAt(c, 1); n < 7900 || n > 9300 || exact {
			t.Fatalf("after %d prompts the beginning counts %d (exact: %v), really %d", i+1, n, exact, beginning)
		}
	}
	short := &Chain{Cuts: []Cut{{1, 4000}, {2, beginning}, {9, beginning + 100}}, Tokens: beginning + 100}
	x.Reserve(short, 0, 1)
	x.Confirm(short, 0, 1)
	for range 20 { // it says nearly all there is to say about the beginning
		x.Learn(short, 0, beginning+100)
	}
	if n, _ := x.TokensAt(short, 2); n != beginning+100 {
		t.Errorf("the short prompt counts %d, want %d", n, beginning+100)
	}
	if n, _ := x.TokensAt(short, 1); n < 7900 || n > beginning+100 {
		t.Errorf("the beginning counts %d, really %d", n, beginning)
	}
}

// TestAnExactCountIsCorrectedWhenItsBeginningMoves: A's count held while its
// beginning was a guess; that is counted itself later.
func TestAnExactCountIsCorrectedWhenItsBeginningMoves(t *testing.T) {
	x := NewIndex(1 << 20)
	a := &Chain{Cuts: []Cut{{1, 200}, {2, 400}, {10, 600}}, Tokens: 600}
	front := &Chain{Cuts: a.Cuts[:2], Tokens: 400}
	for _, c := range []*Chain{front, a} {
		x.Reserve(c, 0, 1)
		x.Confirm(c, 0, 1)
	}
	x.Learn(a, 0, 300)
	x.Learn(front, 0, 250)
	x.Learn(a, 0, 300)
	if n, exact := x.TokensAt(a, 2); n != 300 || !exact {
		t.Errorf("all of it counts %d (exact: %v), want 300", n, exact)
	}
	if n, exact := x.TokensAt(a, 1); n != 250 || !exact {
		t.Errorf("its beginning counts %d (exact: %v), want 250", n, exact)
	}
}

// TestWhatWasLostIsRememberedAsLongAsItWouldBeHeld empties a cache of a hundred
// blocks and fills it again.
func TestWhatWasLostIsRememberedAsLongAsItWouldBeHeld(t *testing.T) {
	x := NewIndex(1 << 30)
	x.SetSlot(0, 16, 100)
	old, shorter := chainOf(16, 1, 2, 3, 4), chainOf(16, 1, 2)
	x.Confirm(old, 0, 1)
	f := func(what string, c *Chain, held, lost int) {
		t.Helper()
		if h, l := x.heldBy(c, 0), int(x.Lost(c, 0))+1; h != held || max(h, l) != lost {
			t.Errorf("%s: it holds %d cuts and would hold %d, want %d and %d", what, h, l, held, lost)
		}
		x.check(t)
	}
	f("before", old, 4, 4)
	x.Reset(0)
	f("emptied", old, 0, 4)
	f("emptied, another slot's", chainOf(16, 9), 0, 0)
	x.Confirm(shorter, 0, 1) // splits what is lost
	f("a part computed again", old, 2, 4)
	x.Confirm(chainOf(16, 1, 2, 3, 7), 0, 1)
	f("more of it", old, 3, 4)
	for i := range 48 {
		x.Confirm(chainOf(16, 100+i, 7), 0, 1)
	}
	f("the cache is full again", old, 3, 3)
	x.Reset(0)
	x.Reset(0)
	f("emptied twice", shorter, 0, 0)
}

// TestHashesThatRepeatDoNoHarm has chains in which one hash stands in two places, as a
// collision that a client has made or what another gateway tells may have it.
func TestHashesThatRepeatDoNoHarm(t *testing.T) {
	of := func(hashes ...Hash) *Chain {
		c := &Chain{}
		for i, h := range hashes {
			c.Cuts = append(c.Cuts, Cut{h, int32(100 * (i + 1))})
		}
		c.Tokens = int32(100 * len(hashes))
		return c
	}
	t.Run("in one chain", func(t *testing.T) {
		x := NewIndex(1 << 20)
		x.Reserve(of(1), 0, 1)
		x.Reserve(of(1, 1), 1, 1)
		x.check(t)
		x.Withdraw(of(1, 1), 1)
		x.Undo(of(1, 1), 1)
		x.check(t)
	})
	type reserved struct {
		chain      *Chain
		slot       int
		generation uint16
	}
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		x := NewIndex(1 << 14)
		var open []reserved
		matches := new(Matches)
		for range 300 {
			var hashes []Hash
			for range 1 + rnd.IntN(5) {
				hashes = append(hashes, Hash(1+rnd.IntN(4)))
			}
			c, s := of(hashes...), rnd.IntN(3)
			switch rnd.IntN(9) {
			case 0, 1:
				x.Reserve(c, s, 1)
				open = append(open, reserved{c, s, x.Generation(s)})
			case 2, 3:
				if len(open) == 0 {
					continue
				}
				was := open[0]
				if open = open[1:]; x.Generation(was.slot) != was.generation {
					continue
				}
				if rnd.IntN(2) == 0 {
					x.Confirm(was.chain, was.slot, 1)
				} else {
					x.Undo(was.chain, was.slot)
				}
			case 4: // as another gateway tells it
				x.Reserve(c, s, 1)
				x.Confirm(c, s, 1)
				x.Withdraw(c, s)
			case 5:
				x.Learn(c, s, 10+rnd.IntN(1000))
			case 6:
				x.Shortfall(s, uint64(rnd.IntN(500)))
			case 7:
				x.Answered(c, s, rnd.IntN(100))
			default:
				x.Find(c, matches)
				x.Lost(c, s)
				if rnd.IntN(20) == 0 {
					x.Reset(s)
				}
			}
		}
		for s := range x.slots {
			x.Free(s)
		}
		for x.stale != none {
			x.reclaim()
		}
		if x.edges.live != 0 || x.segs.live != 0 || x.cuts != 0 || len(x.byHead) != 0 {
			t.Fatalf("seed %d: %d edges, %d segments, %d cuts and %d heads are left of nothing", seed, x.edges.live, x.segs.live, x.cuts, len(x.byHead))
		}
	}
}

// TestAsManySlotsAsThereAre has slots whose numbers differ in their high bits alone.
func TestAsManySlotsAsThereAre(t *testing.T) {
	x := NewIndex(1 << 30)
	c := chainOf(16, 1, 2, 3)
	for _, s := range []int{3, 3 + 1<<8, 3 + 1<<16} {
		x.Reserve(c, s, 1)
		x.Confirm(c, s, 1)
		if n := x.heldBy(c, s); n != 3 {
			t.Errorf("slot %d holds %d cuts, of 3", s, n)
		}
		x.check(t)
		x.Reset(s)
	}
}
