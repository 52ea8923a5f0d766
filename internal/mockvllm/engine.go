package mockvllm

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"
)

// Idle is the next time that [Engine.Step] reports when nothing can run until somebody submits, aborts or resumes.
const Idle = time.Duration(math.MaxInt64)

var (
	// ErrEmptyPrompt says that a request has no prompt token.
	ErrEmptyPrompt = errors.New("prompt is empty")
	// ErrTooLong says that prompt and output together exceed Config.MaxModelLen.
	ErrTooLong = errors.New("prompt and output exceed the maximum model length")
)

// Request is one sequence for the engine.
type Request struct {
	Prompt []uint32 // token ids; the engine copies them
	// Output holds the tokens to generate, known in advance because there is no model; the caller must not change it
	// while the request lives. With no output the request ends with its prefill, like an embedding.
	Output []uint32

	Adapter string // LoRA adapter: part of the hash of every block
	Salt    string // cache_salt: part of the hash of the first block, thereby of the chain

	NoCacheRead bool // no prefix lookup, as vLLM does when asked for prompt logprobs
}

// Event tells of one sequence at the end of a step: its prefill ended, it has one more token, or both.
type Event struct {
	ID        uint64
	Generated int  // output tokens so far
	Cached    int  // prompt tokens found in the cache when the request was first scheduled
	Finished  bool // the blocks are free again and the engine has forgotten the request
}

// Counters tell what an engine has done and what it holds. Totals never decrease.
type Counters struct {
	PromptTokens    uint64 // tokens of prompts whose prefill ended
	CachedTokens    uint64 // of those, found in the cache
	ComputedTokens  uint64 // tokens prefilled, including those computed again after a preemption
	GeneratedTokens uint64
	Preemptions     uint64
	QueriedTokens   uint64 // prompt tokens looked up in the cache
	HitTokens       uint64 // of those, found

	Running, Waiting      int
	UsedBlocks, MaxBlocks int // held by sequences, and the most that can be
}

// KVUsage is the share of blocks held by sequences, 0 to 1.
func (c Counters) KVUsage() float64 { return float64(c.UsedBlocks) / float64(c.MaxBlocks) }

// Engine is vLLM's scheduler and KV cache as a state machine: no goroutine, no clock, no I/O, not safe for concurrent
// use. The owner submits requests and calls [Engine.Step] at the times that Step returns.
type Engine struct {
	cfg      Config
	kv       *kvCache
	byID     map[uint64]*sequence
	lastID   uint64
	waiting  []*sequence // first come, first served; preempted ones in front
	running  []*sequence // in order of admission; a partial prefill can only be the last
	batch    []*sequence // computed by the step under way
	end      time.Duration
	busy     bool
	paused   bool
	counters Counters

	events []Event
	hits   []int32
	buf    []byte
}

// sequence is a request on its way. computed runs ahead of the truth by the step under way, as in vLLM: scheduling a
// chunk commits its blocks at once. The last token sampled is never computed unless another one follows it.
type sequence struct {
	Request
	id        uint64
	tokens    []uint32 // prompt and what has been generated
	hashes    []uint64 // of the full blocks of tokens
	blocks    []int32
	committed int // blocks that carry their hash
	computed  int // tokens whose KV is stored
	cached    int // tokens hit when first scheduled
	looked    bool
	prefilled bool
	gone      bool // finished or aborted
}

func (s *sequence) generated() int { return len(s.tokens) - len(s.Prompt) }

// NewEngine returns an empty engine. Sizes left at zero take their defaults.
func NewEngine(cfg Config) *Engine {
	cfg = cfg.withDefaults()
	return &Engine{cfg: cfg, kv: newKVCache(cfg.Blocks), byID: map[uint64]*sequence{}}
}

// NewPooled returns n engines that share one KV cache of n times the blocks: what none of them can have, and a bound on
// what routing between them can reach. A step on one sees what the others have scheduled.
func NewPooled(cfg Config, n int) []*Engine {
	cfg = cfg.withDefaults()
	kv := newKVCache(n*(cfg.Blocks-1) + 1)
	engines := make([]*Engine, n)
	for i := range engines {
		engines[i] = &Engine{cfg: cfg, kv: kv, byID: map[uint64]*sequence{}}
	}
	return engines
}

// Submit puts a request at the end of the queue and returns its id. It starts at the first step scheduled after this
// call: when the engine was idle the owner must call [Engine.Step] now.
func (e *Engine) Submit(r Request) (uint64, error) {
	switch {
	case len(r.Prompt) == 0:
		return 0, ErrEmptyPrompt
	case len(r.Prompt)+len(r.Output) > e.cfg.MaxModelLen:
		return 0, ErrTooLong
	}
	e.lastID++
	s := &sequence{Request: r, id: e.lastID}
	s.tokens = append(make([]uint32, 0, len(r.Prompt)+len(r.Output)), r.Prompt...)
	s.Prompt = s.tokens[:len(r.Prompt):len(r.Prompt)]
	e.hash(s)
	e.byID[s.id] = s
	e.waiting = append(e.waiting, s)
	return s.id, nil
}

// Abort ends a request wherever it is and frees its blocks; it reports whether the engine knew it. What the request
// had computed stays cached.
func (e *Engine) Abort(id uint64) bool {
	s, ok := e.byID[id]
	if !ok {
		return false
	}
	same := func(o *sequence) bool { return o == s }
	e.waiting = slices.DeleteFunc(e.waiting, same)
	e.running = slices.DeleteFunc(e.running, same)
	e.drop(s)
	return true
}

// Pause lets the step under way end and schedules no other until [Engine.Resume]; requests queue meanwhile.
func (e *Engine) Pause() { e.paused = true }

// Resume ends a pause; the owner must call [Engine.Step] now.
func (e *Engine) Resume() { e.paused = false }

// ResetCache forgets every cached prefix, unless a sequence holds a block.
func (e *Engine) ResetCache() bool { return e.kv.reset() }

// Counters returns a snapshot.
func (e *Engine) Counters() Counters {
	c := e.counters
	c.Running, c.Waiting = len(e.running), len(e.waiting)
	c.UsedBlocks, c.MaxBlocks = e.kv.used(), e.kv.usable()
	return c
}

// Backlog returns the time that the engine needs for all prefill it has taken on, with the cache as it is now, and for
// the rest of the step under way. It is the truth that routing estimates.
func (e *Engine) Backlog(now time.Duration) time.Duration {
	var sum time.Duration
	if e.busy {
		sum = max(0, e.end-now)
	}
	for _, s := range e.running {
		if n := len(s.Prompt) - s.computed; n > 0 {
			sum += e.PrefillCost(s.computed, n)
		}
	}
	for _, s := range e.waiting {
		cached := e.Cached(s.hashes, len(s.tokens))
		sum += e.PrefillCost(cached, len(s.tokens)-cached)
	}
	return sum
}

// PrefillCost returns the time of prefilling n tokens behind cached ones, without the fixed part of its steps.
func (e *Engine) PrefillCost(cached, n int) time.Duration {
	pairs := float64(n)*float64(cached) + float64(n)*float64(n+1)/2
	return time.Duration(n)*e.cfg.PrefillPerToken + time.Duration(pairs*e.cfg.AttentionPerPair)
}

// Hashes returns the chain of a request's blocks.
func (e *Engine) Hashes(r Request) []uint64 {
	s := &sequence{Request: r, tokens: r.Prompt}
	e.hash(s)
	return s.hashes
}

// Cached returns how many of a prompt's tokens would be found in the cache now; hashes are its [Engine.Hashes].
func (e *Engine) Cached(hashes []uint64, tokens int) int {
	e.hits = e.kv.match(e.hits[:0], hashes[:min(len(hashes), (tokens-1)/e.cfg.BlockSize)])
	return len(e.hits) * e.cfg.BlockSize
}

// Step ends the step under way if now has reached its end, returns what it produced, and schedules the next one. next
// is when that one ends, or [Idle]. Calling it too early does nothing. The events are valid until the next call.
func (e *Engine) Step(now time.Duration) (events []Event, next time.Duration) {
	if e.busy && now < e.end {
		return nil, e.end
	}
	e.events = e.events[:0]
	if e.busy {
		e.complete()
	}
	cost := e.schedule()
	if e.busy = len(e.batch) > 0; !e.busy {
		return e.events, Idle
	}
	e.end = now + cost
	return e.events, e.end
}

// schedule fills the next batch and returns the time it takes.
func (e *Engine) schedule() time.Duration {
	e.batch = e.batch[:0]
	if e.paused {
		return 0
	}
	budget := e.cfg.MaxBatchedTokens
	cost := e.cfg.StepBase
	preempted := false
	for i := 0; i < len(e.running) && budget > 0; i++ {
		s := e.running[i]
		n := min(len(s.tokens)-s.computed, budget)
		for i < len(e.running) && !e.grow(s, s.computed+n) {
			e.preempt()
			preempted = true
		}
		if i == len(e.running) {
			break // s itself was the last one
		}
		cost += e.compute(s, n)
		budget -= n
	}
	for !preempted && budget > 0 && len(e.waiting) > 0 && len(e.running) < e.cfg.MaxSeqs {
		s := e.waiting[0]
		if !e.admit(s) {
			break // nobody overtakes
		}
		e.waiting[0], e.waiting = nil, e.waiting[1:]
		e.running = append(e.running, s)
		n := min(len(s.tokens)-s.computed, budget)
		if !e.grow(s, s.computed+n) {
			panic("BUG: no block for a sequence that fits")
		}
		cost += e.compute(s, n)
		budget -= n
	}
	return cost
}

// admit takes the cached blocks of a waiting sequence's prefix, if there is room for all that is not cached. A hit is
// at most one token short of the prompt, since the last token must be computed to sample the next.
func (e *Engine) admit(s *sequence) bool {
	e.hits = e.hits[:0]
	if !s.NoCacheRead {
		e.hits = e.kv.match(e.hits, s.hashes[:(len(s.tokens)-1)/e.cfg.BlockSize])
	}
	if e.blocksFor(len(s.tokens))-len(e.hits)+e.kv.idle(e.hits) > e.kv.free {
		return false
	}
	for _, b := range e.hits {
		e.kv.hold(b)
	}
	s.blocks = append(s.blocks, e.hits...)
	s.committed = len(e.hits)
	s.computed = len(e.hits) * e.cfg.BlockSize
	if !s.looked {
		s.looked, s.cached = true, s.computed
		if !s.NoCacheRead {
			e.counters.QueriedTokens += uint64(len(s.Prompt))
			e.counters.HitTokens += uint64(s.cached)
		}
	}
	return true
}

// grow gives a sequence blocks for its first n tokens; false when there are none left.
func (e *Engine) grow(s *sequence, n int) bool {
	need := e.blocksFor(n) - len(s.blocks)
	if need > e.kv.free {
		return false
	}
	for range need {
		b, _ := e.kv.alloc()
		s.blocks = append(s.blocks, b)
	}
	return true
}

// preempt takes the last running sequence's blocks; it will be recomputed before anybody else is admitted.
func (e *Engine) preempt() {
	last := len(e.running) - 1
	s := e.running[last]
	e.running = e.running[:last]
	e.kv.release(s.blocks)
	s.blocks, s.committed, s.computed = s.blocks[:0], 0, 0
	e.waiting = slices.Insert(e.waiting, 0, s)
	e.counters.Preemptions++
}

// compute puts the next n tokens of a sequence into the batch, commits the blocks they fill and returns their cost.
func (e *Engine) compute(s *sequence, n int) time.Duration {
	var cost time.Duration
	if s.prefilled && n == 1 && s.computed >= len(s.Prompt) {
		cost = e.cfg.DecodePerSeq
	} else {
		cost = time.Duration(n) * e.cfg.PrefillPerToken
		e.counters.ComputedTokens += uint64(n)
	}
	pairs := float64(n)*float64(s.computed) + float64(n)*float64(n+1)/2
	cost += time.Duration(pairs * e.cfg.AttentionPerPair)
	s.computed += n
	for ; s.committed < s.computed/e.cfg.BlockSize; s.committed++ {
		e.kv.commit(s.blocks[s.committed], s.hashes[s.committed])
	}
	e.batch = append(e.batch, s)
	return cost
}

// complete samples a token for every sequence whose tokens are all computed.
func (e *Engine) complete() {
	for _, s := range e.batch {
		if s.gone || s.computed < len(s.tokens) {
			continue
		}
		if !s.prefilled {
			s.prefilled = true
			e.counters.PromptTokens += uint64(len(s.Prompt))
			e.counters.CachedTokens += uint64(s.cached)
		}
		if g := s.generated(); g < len(s.Output) {
			s.tokens = append(s.tokens, s.Output[g])
			e.hash(s)
			e.counters.GeneratedTokens++
		}
		ev := Event{ID: s.id, Generated: s.generated(), Cached: s.cached, Finished: s.generated() == len(s.Output)}
		if ev.Finished {
			e.drop(s)
		}
		e.events = append(e.events, ev)
	}
	e.running = slices.DeleteFunc(e.running, func(s *sequence) bool { return s.gone })
}

func (e *Engine) drop(s *sequence) {
	e.kv.release(s.blocks)
	s.blocks, s.gone = nil, true
	delete(e.byID, s.id)
}

// hash extends the chain over the full blocks of a sequence: each hash covers its parent, the adapter and the tokens.
func (e *Engine) hash(s *sequence) {
	size := e.cfg.BlockSize
	for n := len(s.hashes); (n+1)*size <= len(s.tokens); n++ {
		parent := xxhash.Sum64String(s.Salt)
		if n > 0 {
			parent = s.hashes[n-1]
		}
		e.buf = binary.LittleEndian.AppendUint64(e.buf[:0], parent)
		e.buf = binary.LittleEndian.AppendUint64(e.buf, xxhash.Sum64String(s.Adapter))
		for _, t := range s.tokens[n*size : (n+1)*size] {
			e.buf = binary.LittleEndian.AppendUint32(e.buf, t)
		}
		s.hashes = append(s.hashes, xxhash.Sum64(e.buf))
	}
}

func (e *Engine) blocksFor(tokens int) int { return (tokens + e.cfg.BlockSize - 1) / e.cfg.BlockSize }
