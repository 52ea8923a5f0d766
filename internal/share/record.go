package share

import (
	"encoding/binary"
	"errors"
	"math"

	"github.com/warmpath/warmpath/internal/prefix"
	"github.com/warmpath/warmpath/internal/replica"
	"github.com/warmpath/warmpath/internal/router"
)

// This file is the format of what gateways tell each other. A stream's entry is one
// batch: a head and records, of one gateway and channel. A batch can be read without
// any other, so that a stream may be trimmed anywhere.
//
//	head    version 1 byte | cut rule 4 | gateway 8 | number of the batch, uvarint
//	replica uvarint: n > 0 is the batch's nth, 0 is the next one and followed by its hash, 8
//	lease   varint: less the lease before it in the batch
//	record  1 byte, and then
//	  routed      replica, lease, µs of work, tokens·2 + streamed
//	  routed for  as routed, and then as holds without its replica: what the work is spent on
//	  first seen  replica, lease
//	  ended       replica, lease
//	  open        how many requests are under way, and routed or first seen for each: all there are
//	  leave       (nothing)
//	  holds       replica, flags 1 byte (1 exact, 2 dropped, 4 known), factor 4, tokens, prompt, answer, n cuts of the
//	              chain before it in the batch, m cuts more: hash 8, tokens more than the last's
//	  keeps       replica, session 8, tokens
//	  notice      replica, kind 1 byte
//	  facts       replica, tokens in a block, blocks, sleeping 1 byte, start 8, running 8, waiting 8,
//	              usage 8, prompt tokens 8, cached ones 8: IEEE 754
//
// Numbers are uvarints where nothing else is said, fixed ones little-endian.
const version = 1

const (
	opRouted byte = iota + 1
	opFirstSeen
	opEnded
	opOpen
	opLeave
	opHolds
	opKeeps
	opNotice
	opFacts
	opRoutedFor
)

// Flags of holds.
const (
	isExact   byte = 1
	isDropped byte = 2
	isKnown   byte = 4
)

// Kinds of notices.
const (
	isUnwell     byte = iota // it should be probed
	wasDrained               // an operator keeps requests away from it
	wasUndrained             // or lets them come again
	isDrained                // the first is still so: told once a second to those that start
	noticeKinds
)

// notice is a word about a replica.
type notice struct {
	replica uint64
	kind    byte
}

// replaces reports whether n makes an earlier word of no use.
func (n notice) replaces(earlier notice) bool {
	return n.replica == earlier.replica && (n.kind == isUnwell) == (earlier.kind == isUnwell)
}

// Bounds on what another's batch may claim. They are far above what is real.
const (
	maxReplicas   = 1 << 12
	maxCuts       = 1 << 15
	maxBatchCuts  = 1 << 20 // of all its chains together
	maxTokens     = 1 << 27
	maxWork       = 24 * 3600 * 1e6 // µs
	minFactor     = 1.0 / 64
	maxFactor     = 64
	headLength    = 1 + 4 + 8
	maxBatchBytes = 4 << 20
)

// batch is one on its way out.
type batch struct {
	data     []byte
	records  int
	replicas map[uint64]uint64 // by hash: number, from 1
	lease    uint64
	chain    []prefix.Cut // of the last Holds
}

func newBatch(gateway, number uint64) *batch {
	b := &batch{replicas: map[uint64]uint64{}}
	b.data = append(b.data, version)
	b.data = binary.LittleEndian.AppendUint32(b.data, prefix.Rules())
	b.data = binary.LittleEndian.AppendUint64(b.data, gateway)
	b.data = binary.AppendUvarint(b.data, number)
	return b
}

func (b *batch) replica(hash uint64) {
	if n := b.replicas[hash]; n > 0 {
		b.data = binary.AppendUvarint(b.data, n)
		return
	}
	b.replicas[hash] = uint64(len(b.replicas) + 1)
	b.data = append(b.data, 0)
	b.data = binary.LittleEndian.AppendUint64(b.data, hash)
}

func (b *batch) number(n int) { b.data = binary.AppendUvarint(b.data, uint64(max(0, n))) }

// load adds an event of the load channel.
func (b *batch) load(e *router.Event) {
	b.records++
	op := [...]byte{router.Routed: opRouted, router.FirstSeen: opFirstSeen, router.Ended: opEnded}[e.Kind]
	if e.Chain != nil {
		op = opRoutedFor
	}
	b.data = append(b.data, op)
	b.replica(e.Replica)
	b.data = binary.AppendVarint(b.data, int64(e.Lease-b.lease))
	b.lease = e.Lease
	if e.Kind == router.Routed {
		b.number(int(min(e.Work*1e6, maxWork)))
		tokens := min(e.Tokens, maxTokens) * 2
		if e.Stream {
			tokens++
		}
		b.number(tokens)
	}
	if e.Chain != nil {
		b.prompt(e)
	}
}

// loads adds events of the load channel, and lets go of their chains.
func (b *batch) loads(events []router.Event) {
	for i := range events {
		b.load(&events[i])
	}
	clear(events)
}

// open adds the list of all requests under way.
func (b *batch) open(list []router.Event) {
	b.records++
	b.data = append(b.data, opOpen)
	b.number(len(list))
	for i := range list {
		b.load(&list[i])
	}
}

func (b *batch) leave() {
	b.records++
	b.data = append(b.data, opLeave)
}

// holds adds what a replica holds.
func (b *batch) holds(e *router.Event) {
	b.records++
	b.data = append(b.data, opHolds)
	b.replica(e.Replica)
	b.prompt(e)
}

// prompt adds what an event says of a prompt.
func (b *batch) prompt(e *router.Event) {
	c := e.Chain
	flags := byte(0)
	if c.Exact {
		flags |= isExact
	}
	if e.Kind == router.Dropped {
		flags |= isDropped
	}
	if e.Known {
		flags |= isKnown
	}
	b.data = append(b.data, flags)
	b.data = binary.LittleEndian.AppendUint32(b.data, math.Float32bits(float32(e.Factor)))
	b.number(int(c.Tokens))
	b.number(e.Prompt)
	b.number(e.Answer)
	same := 0
	for same < min(len(c.Cuts), len(b.chain)) && c.Cuts[same] == b.chain[same] {
		same++
	}
	b.number(same)
	b.number(len(c.Cuts) - same)
	tokens := int32(0)
	if same > 0 {
		tokens = c.Cuts[same-1].Tokens
	}
	for _, cut := range c.Cuts[same:] {
		b.data = binary.LittleEndian.AppendUint64(b.data, uint64(cut.Hash))
		b.number(int(cut.Tokens - tokens))
		tokens = cut.Tokens
	}
	b.chain = c.Cuts
}

// keeps adds where a session belongs.
func (b *batch) keeps(e *router.Event) {
	b.records++
	b.data = append(b.data, opKeeps)
	b.replica(e.Replica)
	b.data = binary.LittleEndian.AppendUint64(b.data, uint64(e.Session))
	b.number(e.Tokens)
}

func (b *batch) notices(list []notice) {
	for _, n := range list {
		b.records++
		b.data = append(b.data, opNotice)
		b.replica(n.replica)
		b.data = append(b.data, n.kind)
	}
}

func (b *batch) facts(hash uint64, f replica.Facts) {
	b.records++
	b.data = append(b.data, opFacts)
	b.replica(hash)
	b.number(f.BlockSize)
	b.number(f.Blocks)
	sleeping := byte(0)
	if f.Sleeping {
		sleeping = 1
	}
	b.data = append(b.data, sleeping)
	for _, v := range [...]float64{f.Start, f.Running, f.Waiting, f.Usage, f.Prompt, f.Cached} {
		b.data = binary.LittleEndian.AppendUint64(b.data, math.Float64bits(v))
	}
}

func (r *reader) facts() (hash uint64, f replica.Facts) {
	hash = r.replica()
	f.BlockSize, f.Blocks = int(r.uvarint(math.MaxInt32)), int(r.uvarint(math.MaxInt32))
	f.Sleeping = r.byte() == 1
	for _, v := range [...]*float64{&f.Start, &f.Running, &f.Waiting, &f.Usage, &f.Prompt, &f.Cached} {
		*v = math.Float64frombits(r.uint64())
		if !(*v >= 0 && *v <= math.MaxFloat64) {
			r.failed = true
		}
	}
	return hash, f
}

// head is what a batch says of itself.
type head struct {
	rule    uint32
	gateway uint64
	number  uint64
}

var (
	errVersion   = errors.New("it has a format of another version")
	errMalformed = errors.New("it cannot be read")
)

// listener takes what a batch holds. What it is given is valid during the call alone.
type listener interface {
	event(*router.Event)
	open([]router.Event)
	leave()
	notice(notice)
	facts(hash uint64, f replica.Facts)
}

// reader reads a batch. Its methods return zeros once it has failed.
type reader struct {
	data     []byte
	failed   bool
	replicas []uint64
	lease    uint64
	chain    prefix.Chain
	cuts     int // of all chains
}

// readHead returns a batch's head and a reader of its records.
func readHead(data []byte) (h head, r *reader, err error) {
	if len(data) == 0 || len(data) > maxBatchBytes {
		return h, nil, errMalformed
	}
	if data[0] != version {
		return h, nil, errVersion
	}
	if len(data) < headLength {
		return h, nil, errMalformed
	}
	h.rule, h.gateway = binary.LittleEndian.Uint32(data[1:]), binary.LittleEndian.Uint64(data[5:])
	r = &reader{data: data[headLength:]}
	h.number = r.uvarint(math.MaxUint64)
	if r.failed {
		return h, nil, errMalformed
	}
	return h, r, nil
}

// records tells all records to l, up to the first that cannot be read, and returns
// how many there were.
func (r *reader) records(l listener) (n int, err error) {
	for len(r.data) > 0 {
		op := r.byte()
		e := router.Event{}
		switch op {
		case opRouted, opFirstSeen, opEnded:
			r.load(op, &e)
		case opRoutedFor:
			r.load(opRouted, &e)
			if r.prompt(&e) { // it is what begins, nothing was dropped
				r.failed = true
			}
		case opOpen:
			list := r.list()
			if !r.failed {
				l.open(list)
			}
		case opLeave:
			l.leave()
		case opHolds:
			e.Kind, e.Replica = router.Holds, r.replica()
			if r.prompt(&e) {
				e.Kind = router.Dropped
			}
		case opKeeps:
			e.Kind, e.Replica = router.Keeps, r.replica()
			e.Session = prefix.Hash(r.uint64())
			e.Tokens = int(r.uvarint(maxTokens))
		case opNotice:
			n := notice{r.replica(), r.byte()}
			if r.failed = r.failed || n.kind >= noticeKinds; !r.failed {
				l.notice(n)
			}
		case opFacts:
			hash, f := r.facts()
			if !r.failed {
				l.facts(hash, f)
			}
		default:
			r.failed = true
		}
		if r.failed {
			return n, errMalformed
		}
		if op <= opEnded || op == opHolds || op == opKeeps || op == opRoutedFor {
			l.event(&e)
		}
		n++
	}
	return n, nil
}

func (r *reader) load(op byte, e *router.Event) {
	e.Replica = r.replica()
	r.lease += uint64(r.varint())
	e.Lease = r.lease
	switch op {
	case opRouted:
		e.Kind = router.Routed
		e.Work = float64(r.uvarint(maxWork)) / 1e6
		tokens := r.uvarint(2*maxTokens + 1)
		e.Tokens, e.Stream = int(tokens/2), tokens%2 == 1
	case opFirstSeen:
		e.Kind = router.FirstSeen
	default:
		e.Kind = router.Ended
	}
}

func (r *reader) list() (list []router.Event) {
	n := r.uvarint(uint64(len(r.data)) / 3) // what each takes at least
	for range n {
		op := r.byte()
		if op != opRouted && op != opFirstSeen {
			r.failed = true
			return nil
		}
		var e router.Event
		r.load(op, &e)
		if r.failed {
			return nil
		}
		list = append(list, e)
	}
	return list
}

// prompt reads what an event says of a prompt, and reports whether that was dropped.
func (r *reader) prompt(e *router.Event) (dropped bool) {
	flags := r.byte()
	r.chain.Exact, e.Known = flags&isExact != 0, flags&isKnown != 0
	e.Factor = float64(math.Float32frombits(r.uint32()))
	r.chain.Tokens = int32(r.uvarint(maxTokens))
	e.Prompt, e.Answer = int(r.uvarint(maxTokens)), int(r.uvarint(maxTokens))
	same := r.uvarint(uint64(len(r.chain.Cuts)))
	more := r.uvarint(uint64(min(maxCuts, len(r.data)/9)))
	r.cuts += int(same + more)
	if !(e.Factor >= minFactor && e.Factor <= maxFactor) || same+more > maxCuts || r.cuts > maxBatchCuts {
		r.failed = true
	}
	if r.failed {
		return false
	}
	r.chain.Cuts = r.chain.Cuts[:same]
	tokens := r.chain.UpTo(int32(same) - 1)
	for range more {
		hash := prefix.Hash(r.uint64())
		tokens += int32(r.uvarint(uint64(maxTokens - tokens)))
		r.chain.Cuts = append(r.chain.Cuts, prefix.Cut{Hash: hash, Tokens: tokens})
	}
	if r.chain.Tokens < tokens { // the whole has no fewer than its beginning
		r.failed = true
	}
	e.Chain = &r.chain
	return flags&isDropped != 0
}

func (r *reader) replica() uint64 {
	n := r.uvarint(uint64(len(r.replicas)))
	switch {
	case r.failed:
		return 0
	case n > 0:
		return r.replicas[n-1]
	case len(r.replicas) == maxReplicas:
		r.failed = true
		return 0
	}
	hash := r.uint64()
	r.replicas = append(r.replicas, hash)
	return hash
}

// take returns the next n bytes, or zeros if there are not so many.
func (r *reader) take(n int) []byte {
	if len(r.data) < n || r.failed {
		r.failed, r.data = true, nil
		return make([]byte, n)
	}
	b := r.data[:n]
	r.data = r.data[n:]
	return b
}

func (r *reader) byte() byte     { return r.take(1)[0] }
func (r *reader) uint32() uint32 { return binary.LittleEndian.Uint32(r.take(4)) }
func (r *reader) uint64() uint64 { return binary.LittleEndian.Uint64(r.take(8)) }

// uvarint reads a number that is not above limit.
func (r *reader) uvarint(limit uint64) uint64 {
	v, n := binary.Uvarint(r.data)
	if n <= 0 || v > limit {
		r.failed = true
		return 0
	}
	r.take(n)
	return v
}

func (r *reader) varint() int64 {
	v, n := binary.Varint(r.data)
	if n <= 0 {
		r.failed = true
		return 0
	}
	r.take(n)
	return v
}
