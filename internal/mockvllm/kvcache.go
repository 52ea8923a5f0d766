package mockvllm

import "slices"

// kvCache is vLLM's block pool: every block is either held by sequences (refs > 0) or in one free queue, and in both
// states it may carry the hash of the tokens it holds. A hash is dropped only when its block is handed out again, so
// the prefix of a finished request stays until there is pressure.
//
// Block 0 is vLLM's null block, which never holds tokens; here it is the sentinel of the free queue.
type kvCache struct {
	blocks []kvBlock
	byHash map[uint64]int32 // the oldest block of each hash
	free   int
}

type kvBlock struct {
	hash         uint64
	refs         int32
	hashed       bool
	prev, next   int32 // neighbours in the free queue while refs is 0
	older, newer int32 // ring of the blocks with the same hash
}

func newKVCache(blocks int) *kvCache {
	c := &kvCache{blocks: make([]kvBlock, blocks), byHash: map[uint64]int32{}}
	for b := int32(1); b < int32(blocks); b++ {
		c.enqueue(b, c.blocks[0].prev)
	}
	return c
}

// match appends to dst the cached blocks of the longest known prefix of hashes.
func (c *kvCache) match(dst []int32, hashes []uint64) []int32 {
	for _, h := range hashes {
		b, ok := c.byHash[h]
		if !ok {
			break
		}
		dst = append(dst, b)
	}
	return dst
}

// idle counts the blocks of a match that are in the free queue: taking them leaves fewer to hand out.
func (c *kvCache) idle(blocks []int32) int {
	n := 0
	for _, b := range blocks {
		if c.blocks[b].refs == 0 {
			n++
		}
	}
	return n
}

// hold adds a reference to a matched block.
func (c *kvCache) hold(b int32) {
	if c.blocks[b].refs == 0 {
		c.dequeue(b)
	}
	c.blocks[b].refs++
}

// alloc hands out the least recently freed block, forgetting what it held; ok is false when every block is held.
func (c *kvCache) alloc() (b int32, ok bool) {
	b = c.blocks[0].next
	if b == 0 {
		return 0, false
	}
	c.dequeue(b)
	c.forget(b)
	c.blocks[b].refs = 1
	return b, true
}

// commit gives a held block the hash of its tokens. Two sequences that computed the same tokens at the same time
// leave two blocks with one hash; the older one serves the hits.
func (c *kvCache) commit(b int32, hash uint64) {
	k := &c.blocks[b]
	k.hash, k.hashed = hash, true
	head, ok := c.byHash[hash]
	if !ok {
		c.byHash[hash] = b
		k.older, k.newer = b, b
		return
	}
	tail := c.blocks[head].older
	k.older, k.newer = tail, head
	c.blocks[tail].newer, c.blocks[head].older = b, b
}

// release drops one reference to each block of a table, tail first: of one sequence the deepest blocks are reused
// first. Blocks without a hash can never be hit and go to the front of the queue.
func (c *kvCache) release(table []int32) {
	for _, t := range slices.Backward(table) {
		k := &c.blocks[t]
		if k.refs <= 0 {
			panic("BUG: KV block released twice")
		}
		if k.refs--; k.refs > 0 {
			continue
		}
		if k.hashed {
			c.enqueue(t, c.blocks[0].prev)
		} else {
			c.enqueue(t, 0)
		}
	}
}

// reset forgets every hash. Like vLLM's it refuses while any block is held.
func (c *kvCache) reset() bool {
	if c.used() > 0 {
		return false
	}
	for i := range c.blocks {
		c.blocks[i].hashed = false
	}
	clear(c.byHash)
	return true
}

// usable is the number of blocks that can hold tokens.
func (c *kvCache) usable() int { return len(c.blocks) - 1 }

// used is the number of held blocks; cached blocks that nobody holds count as free.
func (c *kvCache) used() int { return c.usable() - c.free }

func (c *kvCache) forget(b int32) {
	k := &c.blocks[b]
	if !k.hashed {
		return
	}
	k.hashed = false
	if k.newer == b {
		delete(c.byHash, k.hash)
		return
	}
	if c.byHash[k.hash] == b {
		c.byHash[k.hash] = k.newer
	}
	c.blocks[k.older].newer, c.blocks[k.newer].older = k.newer, k.older
}

// enqueue puts a block into the free queue behind the block after.
func (c *kvCache) enqueue(b, after int32) {
	next := c.blocks[after].next
	c.blocks[b].prev, c.blocks[b].next = after, next
	c.blocks[after].next, c.blocks[next].prev = b, b
	c.free++
}

func (c *kvCache) dequeue(b int32) {
	k := &c.blocks[b]
	c.blocks[k.prev].next, c.blocks[k.next].prev = k.next, k.prev
	c.free--
}
