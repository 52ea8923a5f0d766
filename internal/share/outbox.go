package share

import (
	"slices"
	"sync"
	"time"

	"github.com/warmpath/warmpath/internal/prefix"
	"github.com/warmpath/warmpath/internal/replica"
	"github.com/warmpath/warmpath/internal/router"
)

// Bounds on what waits to be sent. When one is reached the older half is dropped.
const (
	maxLoad      = 1 << 14 // events
	maxLoadBytes = 1 << 20 // of their chains; beyond, they are told without
	maxHeld      = 1 << 13 // chains and sessions
	maxHeldBytes = 4 << 20 // of chains
	maxNotices   = 1 << 10
	maxTold      = 1 << 15 // in each of the two memories of what was told
)

// outbox takes the router's events, and gives them to the writer. Its lock is held
// for memory alone: the router's callers wait for it.
type outbox struct {
	loads, prefixes bool          // which channels there are
	wake            chan struct{} // has one while there is load to send

	mu        sync.Mutex
	load      []router.Event
	loadBytes int       // of their chains
	loadSince time.Time // when the oldest of these came
	open      []router.Event
	notices   []notice
	ordered   map[uint64]bool          // replicas that were drained or undrained here
	facts     map[uint64]replica.Facts // what was read here, by replica
	at        map[uint64]int           // where a lease is in open

	held       []router.Event // of Holds and Keeps; chains are its own
	heldBytes  int
	heldAt     map[fact]int  // where one is in held
	own        *prefix.Chain // the last copy of a chain
	ownOf      uint64        // whose prompt that is, by lease
	told, past map[fact]knowledge
	dropped    [2]int // records that nobody was told, by channel, since take
}

// fact names what a Holds or Keeps event is about.
type fact struct {
	replica uint64
	last    prefix.Hash
	cuts    int // 0 for a session
}

// knowledge is what was told of a fact.
type knowledge uint8

const (
	itself knowledge = 1 << iota
	itsPrompt
	itsAnswer
)

func newOutbox(loads, prefixes bool) *outbox {
	return &outbox{
		loads: loads, prefixes: prefixes, wake: make(chan struct{}, 1), at: map[uint64]int{}, facts: map[uint64]replica.Facts{}, ordered: map[uint64]bool{},
		heldAt: map[fact]int{}, told: map[fact]knowledge{}, past: map[fact]knowledge{},
	}
}

// report is the router's listener.
func (o *outbox) report(e router.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch e.Kind {
	case router.Holds, router.Keeps:
		if o.prefixes {
			o.hold(e)
		}
	case router.Dropped:
		if o.prefixes {
			o.withdraw(e)
		}
	default:
		if o.loads {
			o.account(e)
			o.push(e)
		}
	}
}

// notice keeps a word about a replica to be sent. Of an earlier one about the same it
// takes the place.
func (o *outbox) notice(n notice) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.loads {
		return
	}
	if n.kind != isUnwell {
		o.ordered[n.replica] = true
	}
	o.notices = slices.DeleteFunc(o.notices, n.replaces)
	if len(o.notices) < maxNotices {
		o.notices = append(o.notices, n)
	}
	o.rouse()
}

// orders reports whether an operator has ever drained or undrained a replica here.
func (o *outbox) orders(replica uint64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.ordered[replica]
}

// unsent takes words back that Redis did not take. What came since is newer.
func (o *outbox) unsent(list []notice) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, n := range o.notices {
		list = slices.DeleteFunc(list, n.replaces)
	}
	o.notices = append(list, o.notices...)
}

func (o *outbox) rouse() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// takeNotices returns the words that wait.
func (o *outbox) takeNotices() (list []notice) {
	o.mu.Lock()
	defer o.mu.Unlock()
	list, o.notices = o.notices, nil
	return list
}

// scraped keeps what a replica's metrics say to be sent.
func (o *outbox) scraped(hash uint64, f replica.Facts) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.loads {
		o.facts[hash] = f
	}
}

// takeFacts returns what was read since it was last called.
func (o *outbox) takeFacts() (facts map[uint64]replica.Facts) {
	o.mu.Lock()
	defer o.mu.Unlock()
	facts, o.facts = o.facts, map[uint64]replica.Facts{}
	return facts
}

// account keeps the list of requests under way.
func (o *outbox) account(e router.Event) {
	e.Chain = nil // it was told
	i, known := o.at[e.Lease]
	switch {
	case e.Kind == router.Routed && !known:
		o.at[e.Lease] = len(o.open)
		o.open = append(o.open, e)
	case e.Kind == router.FirstSeen && known:
		o.open[i].Kind = router.FirstSeen
	case e.Kind == router.Ended && known:
		last := len(o.open) - 1
		o.open[i] = o.open[last]
		o.at[o.open[i].Lease] = i
		o.open = o.open[:last]
		delete(o.at, e.Lease)
	}
}

func (o *outbox) push(e router.Event) {
	if len(o.load) >= maxLoad {
		o.dropped[loadChannel] += maxLoad / 2
		for i := range o.load[:maxLoad/2] {
			o.loadBytes -= chainBytes(o.load[i].Chain)
		}
		o.load = o.load[:copy(o.load, o.load[maxLoad/2:])]
	}
	if e.Chain != nil && (!o.prefixes || o.loadBytes >= maxLoadBytes) {
		e.Chain = nil
	}
	o.copyChain(&e)
	o.loadBytes += chainBytes(e.Chain)
	if len(o.load) == 0 {
		o.loadSince = time.Now()
		o.rouse()
	}
	o.load = append(o.load, e)
}

// hold keeps an event of the prefix channel, unless nothing of it is news.
func (o *outbox) hold(e router.Event) {
	news := itself
	f := fact{replica: e.Replica, last: e.Session}
	if e.Kind == router.Holds {
		if len(e.Chain.Cuts) == 0 {
			return
		}
		f = factOf(e)
		if e.Prompt > 0 {
			news |= itsPrompt
		}
		if e.Answer > 0 {
			news |= itsAnswer
		}
	}
	if i, waiting := o.heldAt[f]; waiting {
		w := &o.held[i]
		w.Kind, w.Known = e.Kind, w.Known && e.Known // it may have been withdrawn
		w.Factor, w.Prompt, w.Answer, w.Tokens = e.Factor, max(w.Prompt, e.Prompt), max(w.Answer, e.Answer), e.Tokens
		o.told[f] |= news
		return
	}
	if (o.told[f]|o.past[f])&news == news {
		return
	}
	if len(o.told) >= maxTold {
		o.turn()
	}
	o.keep(f, e)
	o.told[f] |= news
}

// factOf names what an event about a prompt, which has cuts, is about.
func factOf(e router.Event) fact {
	return fact{replica: e.Replica, last: e.Chain.Cuts[len(e.Chain.Cuts)-1].Hash, cuts: len(e.Chain.Cuts)}
}

// withdraw takes back that a replica holds a prompt, if anybody was or will be told.
func (o *outbox) withdraw(e router.Event) {
	if len(e.Chain.Cuts) == 0 {
		return
	}
	f := factOf(e)
	known := (o.told[f]|o.past[f])&itself != 0
	delete(o.told, f)
	delete(o.past, f)
	if i, waiting := o.heldAt[f]; waiting {
		o.held[i].Kind, o.held[i].Prompt, o.held[i].Answer = router.Dropped, 0, 0
	} else if known {
		o.keep(f, e)
	}
}

// keep puts an event at the end of what is to be sent.
func (o *outbox) keep(f fact, e router.Event) {
	if len(o.held) >= maxHeld || o.heldBytes >= maxHeldBytes {
		o.dropHeld(len(o.held) / 2)
	}
	o.copyChain(&e)
	o.heldBytes += chainBytes(e.Chain)
	o.heldAt[f] = len(o.held)
	o.held = append(o.held, e)
}

// copyChain makes an event's chain one of the outbox's own. What a request's routing and
// its holding say of one prompt is one copy, which nobody changes.
func (o *outbox) copyChain(e *router.Event) {
	if e.Chain == nil {
		return
	}
	last := len(e.Chain.Cuts) - 1
	if o.own == nil || o.ownOf != e.Lease || len(o.own.Cuts) != last+1 || o.own.Cuts[last] != e.Chain.Cuts[last] {
		o.own, o.ownOf = &prefix.Chain{Cuts: slices.Clone(e.Chain.Cuts), Tokens: e.Chain.Tokens, Exact: e.Chain.Exact}, e.Lease
	}
	e.Chain = o.own
}

const cutBytes = 16

func chainBytes(c *prefix.Chain) int {
	if c == nil {
		return 0
	}
	return cutBytes * len(c.Cuts)
}

// dropHeld forgets the oldest n events of the prefix channel, and that they were told.
func (o *outbox) dropHeld(n int) {
	o.dropped[prefixChannel] += n
	o.held = slices.Delete(o.held, 0, n)
	o.heldBytes = 0
	for f, i := range o.heldAt {
		if i < n {
			delete(o.heldAt, f)
			delete(o.told, f)
			delete(o.past, f)
		} else {
			o.heldAt[f] = i - n
		}
	}
	for i := range o.held {
		o.heldBytes += chainBytes(o.held[i].Chain)
	}
}

// turn forgets what was told before the last turn.
func (o *outbox) turn() { o.past, o.told = o.told, map[fact]knowledge{} }

// forgetTold has everything told again: Redis has lost it.
func (o *outbox) forgetTold() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.told, o.past = map[fact]knowledge{}, map[fact]knowledge{}
}

// rest is turn for the writer.
func (o *outbox) rest() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.turn()
}

// takeLoad returns the events that wait, and since when the oldest does. Spare is
// memory of an earlier call.
func (o *outbox) takeLoad(spare []router.Event) (events []router.Event, since time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	events, o.load, o.loadBytes = o.load, spare[:0], 0
	return events, o.loadSince
}

// takeOpen drops the events that wait, and returns in their stead the list of all
// requests under way, appended to spare.
func (o *outbox) takeOpen(spare []router.Event) []router.Event {
	o.mu.Lock()
	list := append(spare[:0], o.open...)
	o.load, o.loadBytes = o.load[:0], 0
	o.mu.Unlock()
	slices.SortFunc(list, func(a, b router.Event) int { // leases near each other are short
		if a.Lease < b.Lease {
			return -1
		}
		return 1
	})
	return list
}

// takeHeld returns the oldest events of the prefix channel, of about so many bytes.
func (o *outbox) takeHeld(bytes int) []router.Event {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := 0
	for ; n < len(o.held) && bytes > 0; n++ {
		size := chainBytes(o.held[n].Chain)
		bytes -= 32 + size
		o.heldBytes -= size
	}
	if n == len(o.held) { // as always, unless there is very much
		events := o.held
		o.held, o.heldAt = nil, map[fact]int{}
		return events
	}
	events := slices.Clone(o.held[:n])
	o.held = slices.Delete(o.held, 0, n)
	for f, i := range o.heldAt {
		if i < n {
			delete(o.heldAt, f)
		} else {
			o.heldAt[f] = i - n
		}
	}
	return events
}

// takeDropped returns how many records were dropped since it was last called.
func (o *outbox) takeDropped() (n [2]int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n, o.dropped = o.dropped, n
	return n
}

// waiting returns how many events wait.
func (o *outbox) waiting() (load, held int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.load), len(o.held)
}
