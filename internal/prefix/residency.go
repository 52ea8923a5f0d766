package prefix

import (
	"math"
	"slices"
)

// This file is what happens to what slots hold: touching, charging, evicting,
// and what real answers teach.

// charge counts the engine blocks that a segment takes: the full blocks that end
// within it, so that a path takes what its tokens fill and no more.
func (x *Index) charge(t *slot, g *segment, e *edge) {
	blocks := x.blocksAt(t, g, e, g.depth)
	t.listOf(g).used += int64(blocks - g.blocks)
	g.blocks = blocks
}

func (x *Index) blocksAt(t *slot, g *segment, e *edge, depth int32) int32 {
	if depth == 0 {
		return 0
	}
	end := e.tokens[depth-1]
	if depth == int32(len(e.hash)) && depth == g.depth {
		end += g.answer
	}
	return max(0, end/t.block-e.from/t.block)
}

// recharge counts all that a slot holds again, in blocks of another size: what was
// heard of it before it told its own is not worth less.
func (x *Index) recharge(t *slot) {
	for t.lost.oldest != none {
		x.drop(&t.lost, t.lost.oldest)
	}
	for at := t.newest; at != none; {
		g := x.segs.get(at)
		x.charge(t, g, x.edges.get(g.edge))
		at = g.older
	}
	x.evict(t)
}

func (x *Index) push(t *lru, id int32) {
	g := x.segs.get(id)
	g.newer, g.older = none, t.newest
	if t.newest != none {
		x.segs.get(t.newest).newer = id
	} else {
		t.oldest, t.since = id, g.stamp
	}
	t.newest = id
}

func (x *Index) unlink(t *lru, id int32) {
	g := x.segs.get(id)
	if g.newer != none {
		x.segs.get(g.newer).older = g.older
	} else {
		t.newest = g.older
	}
	if g.older != none {
		x.segs.get(g.older).newer = g.newer
		return
	}
	t.oldest = g.newer
	if t.oldest != none {
		t.since = x.segs.get(t.oldest).stamp
	}
}

// insertNewer puts a segment just before another in a list.
func (x *Index) insertNewer(t *lru, than, id int32) {
	p, g := x.segs.get(than), x.segs.get(id)
	g.older, g.newer = than, p.newer
	if p.newer != none {
		x.segs.get(p.newer).older = id
	} else {
		t.newest = id
	}
	p.newer = id
}

// evict makes a slot fit its capacity, the oldest first and from the far end. What
// was lost counts as long as the slot would still hold it.
func (x *Index) evict(t *slot) {
	for t.lost.oldest != none && t.used+t.lost.used > t.capacity {
		x.drop(&t.lost, t.lost.oldest)
	}
	for over := t.used + t.pinned - t.capacity; over > 0 && t.oldest != none; over = t.used + t.pinned - t.capacity {
		x.shorten(t, t.oldest, over)
	}
}

// Pin tells how many blocks of a slot requests under way take beyond the whole
// blocks of their prompts; it counts from the slot's next touch on.
func (x *Index) Pin(s int, blocks int) {
	x.grow(s)
	x.slots[s].pinned = int64(blocks)
}

// Pressure returns how many tokens a slot would have to evict to take so many new
// ones, and how long ago what it would evict first was used, in touches of the
// whole index. Without eviction the age is that of the index.
func (x *Index) Pressure(s int, tokens int) (evicted int, age uint64) {
	x.grow(s)
	t := &x.slots[s]
	room := t.capacity - t.used - t.pinned
	if int64(tokens) < (room+1)*int64(t.block) || t.oldest == none {
		return 0, x.clock
	}
	need := int64(tokens)/int64(t.block) - room
	return int(min(need, t.used)) * int(t.block), x.clock - t.since
}

// shorten takes at least the given number of blocks off a segment's far end, or
// all of it.
func (x *Index) shorten(t *slot, id int32, blocks int64) {
	g := x.segs.get(id)
	e := x.edges.get(g.edge)
	keep := int32(max(0, int64(g.blocks)-blocks))
	if g.answer > 0 {
		end := e.tokens[len(e.tokens)-1]
		g.answer = max(0, (e.from/t.block+keep)*t.block-end)
		if x.charge(t, g, e); g.blocks <= keep {
			return
		}
	}
	lo, hi := int32(0), g.depth-1 // the greatest depth that takes no more than keep
	for lo < hi {
		mid := (lo + hi + 1) / 2
		if x.blocksAt(t, g, e, mid) <= keep {
			lo = mid
		} else {
			hi = mid - 1
		}
	}
	if lo == 0 || keep == 0 {
		x.drop(&t.lru, id)
		return
	}
	x.cutTo(t, g, e, lo)
}

// cutTo lowers a segment's depth, which must be above 0.
func (x *Index) cutTo(t *slot, g *segment, e *edge, depth int32) {
	g.depth, g.confirmed, g.answer = depth, min(g.confirmed, depth), 0
	x.charge(t, g, e)
}

// drop removes a segment of a list.
func (x *Index) drop(t *lru, id int32) {
	x.unlink(t, id)
	t.used -= int64(x.segs.get(id).blocks)
	x.free(id)
}

// free gives a segment back, and the edges that nobody holds any more.
func (x *Index) free(id int32) {
	g := x.segs.get(id)
	e := x.edges.get(g.edge)
	if e.segs == id {
		e.segs = g.next
	} else {
		at := e.segs
		for x.segs.get(at).next != id {
			at = x.segs.get(at).next
		}
		x.segs.get(at).next = g.next
	}
	x.prune(g.edge)
	x.segs.give(id)
}

// prune removes an edge that nobody holds and no other edge hangs on, and those
// before it of which that becomes true.
func (x *Index) prune(at int32) {
	for at != none {
		e := x.edges.get(at)
		if e.segs != none || e.children > 0 {
			return
		}
		parent := e.parent
		delete(x.byHead, head{parent, e.hash[0]})
		x.cuts -= int64(len(e.hash))
		*e = edge{}
		x.edges.give(at)
		if at = parent; at != none {
			x.edges.get(at).children--
		}
	}
}

// trim keeps the whole index below its limit, at the cost of whoever has the
// least recently used segment.
func (x *Index) trim() {
	for x.Bytes() > x.limit {
		if x.stale != none {
			x.reclaim()
			continue
		}
		if i := slices.IndexFunc(x.slots, func(t slot) bool { return t.lost.oldest != none }); i >= 0 {
			x.drop(&x.slots[i].lost, x.slots[i].lost.oldest)
			continue
		}
		victim := none
		for s := range x.slots {
			if t := &x.slots[s]; t.oldest != none && (victim == none || t.since < x.slots[victim].since) {
				victim = s
			}
		}
		if victim == none {
			return
		}
		x.drop(&x.slots[victim].lru, x.slots[victim].oldest)
	}
}

// Reset takes notice that a slot holds nothing any more: its replica restarted, slept,
// emptied its cache or left. It takes the same short time however much that was.
// What it did hold is remembered for [Index.Lost].
func (x *Index) Reset(s int) {
	x.grow(s)
	t := &x.slots[s]
	if t.lost.oldest != none {
		x.segs.get(t.lost.oldest).older = x.stale
		x.stale = t.lost.newest
	}
	t.lost, t.lru = t.lru, emptyLRU
	t.capacity = t.nominal
	t.generation++
}

// Free forgets a slot, and what it told of itself too: it may be another replica's.
func (x *Index) Free(s int) {
	x.Reset(s)
	x.Reset(s) // what it lost is not the other's to have lost
	x.slots[s] = newSlot(x.slots[s].generation)
}

// reclaim frees a few of the segments that resets left behind.
func (x *Index) reclaim() {
	for n := 0; n < 64 && x.stale != none; n++ {
		id := x.stale
		x.stale = x.segs.get(id).older
		x.free(id)
	}
}

// follow leaves the part of c's path that exists in x.path, with the slot's
// segments, as far as it has any.
func (x *Index) follow(c *Chain, s int) {
	x.grow(s)
	x.path = x.path[:0]
	for i, parent := 0, int32(none); i < len(c.Cuts); parent = x.path[len(x.path)-1].edge {
		id, k := x.at(c, i, parent)
		if k == 0 {
			return
		}
		seg := x.find(id, s, x.slots[s].generation)
		if seg == none {
			return
		}
		i += k
		x.path = append(x.path, step{edge: id, seg: seg, cut: int32(i - 1)})
		if k < len(x.edges.get(id).hash) {
			return
		}
	}
}

// followAll is follow for callers who need all of c; it returns the last step, or
// nil if the path ends before.
func (x *Index) followAll(c *Chain, s int) *step {
	x.follow(c, s)
	if n := len(x.path); n > 0 && x.path[n-1].cut == int32(len(c.Cuts)-1) {
		return &x.path[n-1]
	}
	return nil
}

// Undo takes back a [Index.Reserve] whose request never began to be computed. It
// reports whether any of c counts as held by that no longer.
func (x *Index) Undo(c *Chain, s int) (gone bool) {
	x.follow(c, s)
	t := &x.slots[s]
	for _, st := range slices.Backward(x.path) {
		id := st.seg
		g := x.segs.get(id)
		g.pending = max(0, g.pending-1)
		switch {
		case g.pending > 0 || g.confirmed == g.depth:
		case g.confirmed == 0:
			x.drop(&t.lru, id)
			gone = true
		default:
			x.cutTo(t, g, x.edges.get(g.edge), g.confirmed)
			gone = true
		}
	}
	return gone
}

// Withdraw takes back that slot s holds c, as far as no other touch says it.
func (x *Index) Withdraw(c *Chain, s int) {
	x.follow(c, s)
	for _, st := range slices.Backward(x.path) {
		if g := x.segs.get(st.seg); g.before != 0 || g.pending > 0 {
			return
		}
		x.drop(&x.slots[s].lru, st.seg)
	}
}

// learnedShare is how much of an error an edge takes that other prompts have taught
// about, against one of which nothing is known yet.
const learnedShare = 0.25

// Learn takes the number of tokens that an engine counted in the whole of c. What
// was wrong is shared out over the edges behind the last place whose count is exact,
// by their tokens: a beginning that many prompts share moves a little with each, to
// what fits all of them.
func (x *Index) Learn(c *Chain, s int, tokens int) {
	end := x.followAll(c, s)
	if end == nil {
		return
	}
	first, base, total := 0, int32(0), int32(0)
	for i, st := range x.path {
		e := x.edges.get(st.edge)
		total += e.upTo(len(e.tokens))
		if e.exact && i < len(x.path)-1 && total < int32(tokens) {
			first, base = i+1, total
		}
	}
	last := x.edges.get(end.edge)
	if last.exact && total == int32(tokens) {
		return
	}
	weights := 0.0
	for _, st := range x.path[first:] {
		weights += x.edges.get(st.edge).flexibility()
	}
	missing, from := float64(int32(tokens)-total), base
	t := &x.slots[s]
	for i, st := range x.path[first:] {
		e := x.edges.get(st.edge)
		now := e.upTo(len(e.tokens))
		then := now + int32(math.Round(missing*e.flexibility()/weights))
		if first+i == len(x.path)-1 {
			then = int32(tokens) - from // no drift from rounding
		}
		then = max(0, then)
		ratio := float64(then) / float64(max(1, now))
		for j := range e.tokens {
			e.tokens[j] = from + int32(math.Round(float64(e.upTo(j+1))*ratio))
		}
		e.from, from = from, from+then
		e.tokens[len(e.tokens)-1] = from
		e.learned = true
		x.charge(t, x.segs.get(st.seg), e)
	}
	last.exact = true
	x.evict(t)
}

// flexibility is an edge's weight when an error is shared out.
func (e *edge) flexibility() float64 {
	n := float64(max(1, e.upTo(len(e.tokens))))
	if e.learned {
		n *= learnedShare
	}
	return n
}

// Answered records that slot s generated tokens behind c and caches them too.
func (x *Index) Answered(c *Chain, s int, tokens int) {
	end := x.followAll(c, s)
	if end == nil {
		return
	}
	g, e := x.segs.get(end.seg), x.edges.get(end.edge)
	if g.depth == int32(len(e.hash)) {
		g.answer = int32(tokens)
		x.charge(&x.slots[s], g, e)
		x.evict(&x.slots[s])
	}
}

// Shortfall takes proof that slot s had evicted a part of a prompt when a request for
// it arrived there; used is what that request's [Index.Reserve] returned. The engine
// evicts the least recently used first, so everything that it had used until then is
// gone too, and its cache for prefixes is no larger than what is left (routing.md C7).
func (x *Index) Shortfall(s int, used uint64) {
	x.grow(s)
	t := &x.slots[s]
	if used == 0 {
		return
	}
	for t.oldest != none && t.since <= used {
		x.drop(&t.lru, t.oldest)
	}
	t.capacity = max(t.used, t.nominal/8, 1)
}

// Clock counts the touches of all slots.
func (x *Index) Clock() uint64 { return x.clock }

// Surplus takes proof that slot s held more than was believed, by so many blocks:
// it has room for these at least.
func (x *Index) Surplus(s int, blocks int) {
	x.grow(s)
	t := &x.slots[s]
	t.capacity = max(t.capacity, min(t.nominal, t.capacity+int64(blocks)))
}

// Resize takes evidence of many requests together: below 1, that slot s held but so
// much of what was believed, and has no room for more; above 1, that it has room for
// so many times more. It stays within an eighth of what the slot tells and four times that.
func (x *Index) Resize(s int, times float64) {
	x.grow(s)
	t := &x.slots[s]
	blocks := t.capacity + 1
	if times < 1 {
		blocks = min(t.capacity, t.used)
	}
	t.capacity = max(1, t.nominal/8, min(4*t.nominal, int64(float64(blocks)*times)))
	x.evict(t)
}

// TokensAt returns how many tokens there are up to a cut of c, and whether an engine
// has counted just these; 0 if the cut is not known.
func (x *Index) TokensAt(c *Chain, cut int32) (tokens int, exact bool) {
	sum := 0
	for i, parent := 0, int32(none); i <= int(cut); {
		id, k := x.at(c, i, parent)
		if k == 0 {
			return 0, false
		}
		parent = id
		e := x.edges.get(id)
		k = min(k, int(cut)-i+1)
		sum += int(e.upTo(k))
		i += k
		exact = e.exact && k == len(e.tokens)
	}
	return sum, exact
}

// Held takes proof that slot s held what was predicted of a prompt; used is what its
// request's [Index.Reserve] returned. If that is long ago, the slot has more room than
// believed, by 1 %: with twice that the growth between two shortfalls costs more than it finds.
func (x *Index) Held(s int, used uint64) {
	x.grow(s)
	t := &x.slots[s]
	if used == 0 || t.oldest == none || t.capacity >= 4*t.nominal {
		return
	}
	if used < t.since+(x.clock-t.since)/10 {
		t.capacity += max(1, t.capacity/100)
	}
}
