package prefix

import (
	"math"
	"slices"
	"unsafe"
)

// Index knows which beginnings of prompts each slot's KV cache holds. It is a
// compressed radix tree over cut hashes: an edge is a run of cuts without a
// branch, a segment says how far along an edge one slot holds it. Every chain's
// end is the end of an edge, so that what is learned about whole prompts has a
// place.
//
// A slot holds a beginning without gaps: segments of a path are inserted and
// touched together, the deeper counting as the older, and eviction takes the
// oldest from its far end, as the engine's tail-first free queue does.
//
// An Index is not safe for concurrent use. No method blocks or does I/O, and
// none allocates per cut.
type Index struct {
	edges  arena[edge]
	segs   arena[segment]
	byHead map[head]int32
	slots  []slot
	stale  int32  // list, by older, of segments that a second reset left behind
	clock  uint64 // of touches
	cuts   int64  // in all edges
	limit  int64  // bytes
	path   []step
}

// head names an edge: the one before it, or none, and the hash of its first cut. A
// path through the tree goes down by it, whatever hashes a chain has: one that stands
// in two places, as a collision that somebody has made does, leads to two edges.
type head struct {
	parent int32
	hash   Hash
}

type edge struct {
	hash []Hash
	// tokens are those up to each cut, from those before the first. What is learned of
	// an edge does not reach the edges behind it, so that a place in a prompt is the
	// sum of what the edges before it take, and not what is written here.
	tokens []int32
	from   int32
	// learned is true if the tokens were adjusted to what an engine counted, exact
	// if all up to the last cut were just what it counted, the last time it did.
	learned, exact bool
	parent         int32 // the edge before this one, or none
	children       int32
	segs           int32 // list of segments, by next
}

// upTo returns the tokens of the edge's first k cuts.
func (e *edge) upTo(k int) int32 { return e.tokens[k-1] - e.from }

type segment struct {
	stamp, before    uint64 // the last touch and the one before it
	edge             int32
	depth, confirmed int32 // cuts held; of these, known to have been computed
	answer           int32 // tokens generated behind the whole edge, held too
	blocks           int32 // charged to the slot
	next             int32 // in the edge's list
	newer, older     int32 // in the slot's list
	slot             int32
	generation       uint16
	pending          int16 // requests under way whose touch is not confirmed
}

type slot struct {
	lru            // what it holds
	lost       lru // what it held when its cache was emptied, and has not held since
	generation uint16
	block      int32 // tokens in an engine block
	nominal    int64 // blocks the engine says it has
	capacity   int64 // blocks it is believed to have for prefixes
	pinned     int64 // of these, held by what requests under way have beyond whole blocks
}

// lru is a list of a slot's segments by their last use, and the blocks they take.
type lru struct {
	newest, oldest int32
	since          uint64 // the stamp of the oldest
	used           int64
}

var emptyLRU = lru{newest: none, oldest: none}

// newSlot is a slot of which nothing was told.
func newSlot(generation uint16) slot {
	return slot{generation: generation, lru: emptyLRU, lost: emptyLRU, block: DefaultBlock, nominal: DefaultBlocks, capacity: DefaultBlocks}
}

// listOf returns the list that has a segment, nil if that is stale.
func (t *slot) listOf(g *segment) *lru {
	switch g.generation {
	case t.generation:
		return &t.lru
	case t.generation - 1:
		return &t.lost
	}
	return nil
}

type step struct {
	edge, seg int32
	cut       int32 // the chain's cut at the edge's end
}

// Match is what a slot holds of a chain.
type Match struct {
	Cut    int32 // the last cut held, -1 for none
	Tokens int32 // up to it
	Answer int32 // tokens of a generated answer that follow it, held too
}

// Matches is what all slots hold of a chain: [Index.Find] fills it. It is used again and
// again, since to clear it takes as long as there are holders, not slots.
type Matches struct {
	Holders []int32 // the slots that hold any of the chain
	BySlot  []Match // slots beyond its end hold nothing
}

// Of returns what a slot holds.
func (m *Matches) Of(slot int) Match {
	if slot >= len(m.BySlot) {
		return Match{Cut: none}
	}
	return m.BySlot[slot]
}

// clear forgets the last chain, and makes room for so many slots.
func (m *Matches) clear(slots int) {
	for _, s := range m.Holders {
		m.BySlot[s] = Match{Cut: none}
	}
	m.Holders = m.Holders[:0]
	for len(m.BySlot) < slots {
		m.BySlot = append(m.BySlot, Match{Cut: none})
	}
}

// Known is what the index knows of a chain, whoever holds it.
type Known struct {
	Cut    int32 // the last cut that any chain before had in common with it, -1 for none
	Tokens int32 // up to it
	// Shared is how many tokens at the beginning are common to many prompts, and
	// Branches how many different ways these go on.
	Shared   int32
	Branches int32
}

// manyBranches is from how many different continuations on a beginning counts as
// shared by many prompts, and not as the history of a session that was retried.
const manyBranches = 4

// DefaultBlock is an engine's usual block size in tokens, assumed until it tells.
const DefaultBlock = 16

// DefaultBlocks is the capacity assumed of a replica that does not tell its own:
// half a million tokens, about what an 80 GB GPU has left beside an 8B model.
const DefaultBlocks = 32768

const none = -1

// NewIndex returns an empty index that keeps its memory below limit bytes.
func NewIndex(limit int64) *Index {
	return &Index{byHead: make(map[head]int32), limit: limit, stale: none}
}

// SetSlot tells a slot's block size in tokens and its capacity in blocks. Slots
// that were never set have the defaults.
func (x *Index) SetSlot(s int, block, blocks int) {
	x.grow(s)
	t := &x.slots[s]
	if block > 0 && int32(block) != t.block {
		t.block = int32(block)
		x.recharge(t)
	}
	if blocks > 0 && int64(blocks) != t.nominal {
		t.nominal, t.capacity = int64(blocks), int64(blocks)
		x.evict(t)
	}
}

func (x *Index) grow(s int) {
	for len(x.slots) <= s {
		x.slots = append(x.slots, newSlot(0))
	}
}

// Generation changes with every [Index.Reset] of a slot: what was reserved in an
// earlier one is gone, and must not be confirmed or undone in this one.
func (x *Index) Generation(s int) uint16 {
	x.grow(s)
	return x.slots[s].generation
}

// Block returns the slot's block size in tokens.
func (x *Index) Block(s int) int {
	x.grow(s)
	return int(x.slots[s].block)
}

// Find fills matches with what each slot holds of c, and returns what is known of it at
// all.
func (x *Index) Find(c *Chain, matches *Matches) (known Known) {
	matches.clear(len(x.slots))
	known.Cut = none
	parent := int32(none)
	for i, base := 0, int32(0); i < len(c.Cuts); base = known.Tokens {
		id, k := x.at(c, i, parent)
		if k == 0 {
			break
		}
		e := x.edges.get(id)
		known.Cut, known.Tokens = int32(i+k-1), base+e.upTo(k)
		for id := e.segs; id != none; {
			g := x.segs.get(id)
			id = g.next
			if g.generation != x.slots[g.slot].generation {
				continue
			}
			m := &matches.BySlot[g.slot]
			if m.Cut != int32(i-1) {
				continue // it does not hold all that comes before
			}
			if i == 0 {
				matches.Holders = append(matches.Holders, g.slot)
			}
			d := min(int(g.depth), k)
			m.Cut, m.Tokens, m.Answer = int32(i+d-1), base+e.upTo(d), 0
			if d == len(e.hash) {
				m.Answer = g.answer
			}
		}
		if k < len(e.hash) {
			break
		}
		if e.children >= manyBranches {
			known.Shared, known.Branches = known.Tokens, e.children
		}
		i, parent = i+k, id
	}
	return known
}

// Lost returns the last cut of c that slot s would hold if its cache had not been
// emptied, the last time that it was; -1 for none.
func (x *Index) Lost(c *Chain, s int) (cut int32) {
	x.grow(s)
	t := &x.slots[s]
	cut = none
	if t.lost.oldest == none {
		return cut
	}
	for i, parent := 0, int32(none); i < len(c.Cuts); {
		id, k := x.at(c, i, parent)
		if k == 0 {
			return cut
		}
		parent = id
		depth := 0
		for _, generation := range [...]uint16{t.generation, t.generation - 1} {
			if at := x.find(id, s, generation); at != none {
				depth = max(depth, min(k, int(x.segs.get(at).depth)))
			}
		}
		if i += depth; depth > 0 {
			cut = int32(i - 1)
		}
		if depth < len(x.edges.get(id).hash) {
			return cut
		}
	}
	return cut
}

// at returns the edge behind parent that begins at cut i of c, and how many of its cuts
// are c's. Hashes stand for everything before them, so that a binary search is enough.
func (x *Index) at(c *Chain, i int, parent int32) (id int32, k int) {
	id, ok := x.byHead[head{parent, c.Cuts[i].Hash}]
	if !ok {
		return none, 0
	}
	hash := x.edges.get(id).hash
	lo, hi := 1, min(len(hash), len(c.Cuts)-i)
	if hash[hi-1] == c.Cuts[i+hi-1].Hash {
		return id, hi
	}
	for hi--; lo < hi; {
		mid := (lo + hi + 1) / 2
		if hash[mid-1] == c.Cuts[i+mid-1].Hash {
			lo = mid
		} else {
			hi = mid - 1
		}
	}
	return id, lo
}

// Reserve records that slot s is about to compute all of c. It must be followed
// by one call of [Index.Confirm] or [Index.Undo]. Tokens beyond what is known are
// the chain's own times factor. It returns when the far end of what the slot held of c
// was last used, by the index's count of touches, 0 if it never was. That is for
// [Index.Shortfall] and [Index.Held]: until they are called, other requests for the
// same may have touched it.
func (x *Index) Reserve(c *Chain, s int, factor float64) (used uint64) {
	held := false
	x.touch(c, s, factor, func(g *segment) {
		begun := g.stamp != 0
		if g.pending == 0 { // else the last touch is one of those under way
			g.before = g.stamp
		}
		g.pending++
		if begun && !held { // the far end comes first
			held, used = true, g.before
		}
	})
	return used
}

// Confirm records that slot s has computed all of c.
func (x *Index) Confirm(c *Chain, s int, factor float64) {
	x.touch(c, s, factor, func(g *segment) {
		g.pending = max(0, g.pending-1)
		g.confirmed = g.depth
	})
}

func (x *Index) touch(c *Chain, s int, factor float64, mark func(*segment)) {
	if len(c.Cuts) == 0 {
		return
	}
	x.grow(s)
	x.insert(c, factor)
	x.clock++
	t := &x.slots[s]
	for _, st := range slices.Backward(x.path) {
		id := x.segmentOf(st.edge, s)
		g, e := x.segs.get(id), x.edges.get(st.edge)
		if g.depth < int32(len(e.hash)) {
			g.depth, g.answer = int32(len(e.hash)), 0
		}
		mark(g)
		g.stamp = x.clock
		x.charge(t, g, e)
		x.unlink(&t.lru, id)
		x.push(&t.lru, id)
	}
	x.evict(t)
	x.reclaim()
	x.trim()
}

// insert makes the path of c exist, its end an edge's end, and leaves it in x.path.
func (x *Index) insert(c *Chain, factor float64) {
	x.path = x.path[:0]
	tokens, estimated := int32(0), int32(0) // known, and in the chain's own count, up to cut i
	parent := int32(none)
	for i := 0; i < len(c.Cuts); {
		id, k := x.at(c, i, parent)
		switch {
		case k == 0:
			id, k = x.newEdge(parent, c, i, tokens, estimated, factor), len(c.Cuts)-i
		case k < len(x.edges.get(id).hash):
			id = x.split(id, k)
		}
		i += k
		x.path = append(x.path, step{edge: id, seg: none, cut: int32(i - 1)})
		tokens, estimated, parent = tokens+x.edges.get(id).upTo(k), c.Cuts[i-1].Tokens, id
	}
}

func (x *Index) newEdge(parent int32, c *Chain, i int, tokens, estimated int32, factor float64) int32 {
	id := x.edges.take()
	e := x.edges.get(id)
	cuts := c.Cuts[i:]
	*e = edge{hash: make([]Hash, len(cuts)), tokens: make([]int32, len(cuts)), from: tokens, parent: parent, segs: none}
	if parent != none {
		x.edges.get(parent).children++
	}
	for j := range cuts {
		e.hash[j] = cuts[j].Hash
		e.tokens[j] = tokens + int32(math.Round(float64(cuts[j].Tokens-estimated)*factor))
	}
	x.byHead[head{parent, e.hash[0]}] = id
	x.cuts += int64(len(cuts))
	return id
}

// split gives the first k cuts of an edge to an edge of their own before it, and
// returns that.
func (x *Index) split(id int32, k int) (upper int32) {
	upper = x.edges.take()
	f, e := x.edges.get(upper), x.edges.get(id)
	*f = edge{
		hash: append([]Hash(nil), e.hash[:k]...), tokens: append([]int32(nil), e.tokens[:k]...),
		from: e.from, learned: e.learned, parent: e.parent, children: 1, segs: none,
	}
	e.hash, e.tokens = append([]Hash(nil), e.hash[k:]...), append([]int32(nil), e.tokens[k:]...)
	e.from, e.parent = f.tokens[k-1], upper
	x.byHead[head{f.parent, f.hash[0]}], x.byHead[head{upper, e.hash[0]}] = upper, id

	at := e.segs
	e.segs = none
	for at != none {
		g := x.segs.get(at)
		next := g.next
		t := &x.slots[g.slot]
		list := t.listOf(g)
		switch {
		case g.depth <= int32(k): // all of it lies in the upper part
			g.edge, g.next, f.segs = upper, f.segs, at
		case list != nil:
			h := x.addSegment(upper, int(g.slot))
			n := x.segs.get(h)
			n.stamp, n.before, n.pending, n.generation = g.stamp, g.before, g.pending, g.generation
			n.depth, n.confirmed = int32(k), min(g.confirmed, int32(k))
			x.insertNewer(list, at, h)
			x.charge(t, n, f)
			fallthrough
		default:
			g.depth, g.confirmed = g.depth-int32(k), max(0, g.confirmed-int32(k))
			g.next, e.segs = e.segs, at
		}
		if list != nil {
			x.charge(t, g, x.edges.get(g.edge))
		}
		at = next
	}
	x.prune(id) // nobody may have held its second part
	return upper
}

// segmentOf returns the slot's segment on an edge, a new one of depth 0 if it has none.
func (x *Index) segmentOf(id int32, s int) int32 {
	t := &x.slots[s]
	if at := x.find(id, s, t.generation); at != none {
		return at
	}
	at := x.addSegment(id, s)
	x.push(&t.lru, at)
	if lost := x.find(id, s, t.generation-1); lost != none {
		x.drop(&t.lost, lost)
	}
	return at
}

// find returns the segment on an edge that a slot's cache of a generation has, or none.
// The segment comes to the front of its edge's list: a request asks for it several times.
func (x *Index) find(id int32, s int, generation uint16) int32 {
	e, before := x.edges.get(id), int32(none)
	for at := e.segs; at != none; {
		g := x.segs.get(at)
		if int(g.slot) == s && g.generation == generation {
			if before != none {
				x.segs.get(before).next, g.next, e.segs = g.next, e.segs, at
			}
			return at
		}
		before, at = at, g.next
	}
	return none
}

func (x *Index) addSegment(id int32, s int) int32 {
	at := x.segs.take()
	e := x.edges.get(id)
	*x.segs.get(at) = segment{edge: id, next: e.segs, newer: none, older: none, slot: int32(s), generation: x.slots[s].generation}
	e.segs = at
	return at
}

// Sizes that the index counts itself by; a map entry takes some 48 bytes.
const (
	edgeBytes    = int64(unsafe.Sizeof(edge{})) + 48
	segmentBytes = int64(unsafe.Sizeof(segment{}))
	cutBytes     = int64(unsafe.Sizeof(Hash(0)) + unsafe.Sizeof(int32(0)))
)

// Bytes returns the memory that the index takes.
func (x *Index) Bytes() int64 {
	return int64(x.edges.live)*edgeBytes + int64(x.segs.live)*segmentBytes + x.cuts*cutBytes
}

// Blocks returns how many engine blocks the index believes slot s to hold.
func (x *Index) Blocks(s int) int64 {
	x.grow(s)
	return x.slots[s].used
}

// Capacity returns how many blocks of prefixes slot s is believed to have room for.
func (x *Index) Capacity(s int) int64 {
	x.grow(s)
	return x.slots[s].capacity
}
