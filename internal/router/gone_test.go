package router

import (
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/prefix"
	"github.com/warmpath/warmpath/internal/replica"
)

// replace has the replica at a slot leave for good, and another take its slot.
func (f *fleet) replace(slot int, id string) (old, young *replica.Replica) {
	old = f.model.Replicas[slot]
	old.Retire()
	f.r.Gone(old)
	young = replica.Virtual(id, slot)
	f.model.Replicas[slot] = young
	return old, young
}

// held returns how many tokens of a prompt each slot is believed to hold.
func (f *fleet) held(p *prefix.Prompt) (tokens []int) {
	f.t.Helper()
	d, err := f.r.Explain(&Request{Prompt: p, Model: f.model, Stream: true}, f.now)
	if err != nil {
		f.t.Fatal(err)
	}
	tokens = make([]int, len(f.model.Replicas))
	for _, c := range d.Costs() {
		tokens[c.Replica.Slot] = c.Cached
	}
	return tokens
}

// TestASlotLeaksNothingToItsNextReplica warms a replica in every way, ends or keeps its
// requests, and gives its slot to another.
func TestASlotLeaksNothingToItsNextReplica(t *testing.T) {
	f := newFleet(t, 2)
	f.r.Told(f.model.Replicas[1], replica.Facts{BlockSize: 128, Blocks: 500})
	story := f.prompt(conversation(text(30_000, 1), "one"))
	keep := func(kind string) *Request {
		return &Request{Prompt: story, Stream: true, Session: SessionKey("m", kind, "s"), Tried: f.model.Replicas[:1]}
	}
	ended, open := f.acquire(keep("ended")), f.acquire(keep("open"))
	ended.Prefilled(f.now)
	ended.Done(Outcome{End: Failed, Response: 77, Prompt: 5000}, f.now)
	if h := f.held(story); h[1] == 0 {
		t.Fatal("the slot holds nothing before either")
	}
	f.r.Apply(9, &Event{Kind: Routed, Replica: f.model.Replicas[1].Hash, Lease: 5, Work: 3, Tokens: 20_000}, f.now)

	old, young := f.replace(1, "young:80")
	f.r.Told(old, replica.Facts{BlockSize: 64, Blocks: 100}) // late, by whoever did not know
	f.r.Know(old)
	f.r.Emptied(old)
	f.r.Counted(old, replica.Facts{At: f.now, Prompt: 1, Cached: 1})
	clean := func(when string) {
		t.Helper()
		if h := f.held(story); h[1] != 0 {
			t.Errorf("%s: %d tokens are believed to be in the new replica's cache", when, h[1])
		}
		if cut := f.r.index.Lost(&story.Chains[0], 1); cut >= 0 {
			t.Errorf("%s: the new replica is believed to have lost what the old one held, to cut %d", when, cut)
		}
		f.r.Know(young)
		if w := f.r.slots[1].window; !w.since.IsZero() {
			t.Errorf("%s: the new replica's counters are held against the old one's, %+v", when, w)
		}
		for _, s := range f.r.States(f.now) {
			if s.Replica == old {
				t.Errorf("%s: the old replica is still there", when)
			}
			if s.Replica == young && (s.InFlight != 0 || s.PendingTokens != 0 || s.Wait != 0 || s.Pace != 1 || s.Penalty != 0 || s.HeldBlocks != 0 || s.Capacity != prefix.DefaultBlocks) {
				t.Errorf("%s: the new replica begins as %+v", when, s)
			}
		}
		if b := f.r.index.Block(1); b != prefix.DefaultBlock {
			t.Errorf("%s: blocks of %d tokens", when, b)
		}
	}
	clean("at once")
	open.Prefilled(f.now)
	clean("after the old one's prefill")
	open.Done(Outcome{End: Completed, Prefilled: true, Response: 78, Prompt: 9000, Cached: 5, CachedKnown: true, Completion: 50}, f.now)
	clean("after the old one's request")
	f.r.Apply(9, &Event{Kind: Ended, Replica: old.Hash, Lease: 5}, f.now)
	f.r.Apply(9, &Event{Kind: Holds, Replica: old.Hash, Chain: &story.Chains[0], Factor: 1}, f.now)
	f.r.Apply(9, &Event{Kind: Keeps, Replica: old.Hash, Session: SessionKey("m", "peer", "s")}, f.now)
	clean("after what another gateway says of the old one")
	for _, req := range []*Request{
		{Session: SessionKey("m", "ended", "s")},
		{Session: SessionKey("m", "open", "s")},
		{Session: SessionKey("m", "peer", "s")},
		{Previous: 77},
		{Previous: 78},
	} {
		req.Prompt = f.prompt(conversation(text(3000, 2), "two"))
		l := f.acquire(req)
		if _, cached := l.Tokens(); l.Why() == Session || cached != 0 {
			t.Errorf("%+v goes to %s for %s, of which %d tokens are there", req, l.Replica().ID, l.Why(), cached)
		}
		l.Done(Outcome{End: Canceled}, f.now)
	}
	f.idle()

	l := f.acquire(&Request{Prompt: story, Stream: true, Tried: f.model.Replicas[:1]})
	if l.Replica() != young {
		t.Fatal("the new replica gets nothing")
	}
	l.Prefilled(f.now)
	l.Done(Outcome{End: Completed, Prefilled: true}, f.now)
	if h := f.held(story); h[1] == 0 {
		t.Error("what the new replica computed is not believed to be there")
	}
	f.idle()
}

// TestTheSameAddressAgain has a replica leave for good and one come to its address, in
// another slot, while other gateways speak of it.
func TestTheSameAddressAgain(t *testing.T) {
	f := newFleet(t, 3)
	hash := f.model.Replicas[1].Hash
	f.r.Know(f.model.Replicas[1])
	f.r.Open(9, []Event{{Kind: FirstSeen, Replica: hash, Lease: 5}, {Kind: FirstSeen, Replica: hash, Lease: 6}}, f.now)
	old, young := f.replace(1, "young:80")
	f.r.Know(young)
	again := replica.Virtual(old.ID, 3)
	f.model.Replicas = append(f.model.Replicas, again)
	f.r.Open(9, []Event{{Kind: FirstSeen, Replica: hash, Lease: 5}}, f.now)
	f.r.Know(again)
	inflight := func() int {
		for _, s := range f.r.States(f.now) {
			if s.Replica == again {
				return s.InFlight
			}
		}
		t.Fatal("it is not known")
		return 0
	}
	if inflight() != 0 {
		t.Error("what was told before it was known counts")
	}
	f.r.Open(9, []Event{{Kind: FirstSeen, Replica: hash, Lease: 5}, {Kind: FirstSeen, Replica: hash, Lease: 7}}, f.now)
	if n := inflight(); n != 2 {
		t.Errorf("%d in flight, want 2", n)
	}
	f.r.Gone(old) // told twice, and late
	if f.r.slots[1] == nil || f.r.slots[1].replica != young {
		t.Error("the one that has its slot went with it")
	}
	if n := inflight(); n != 2 {
		t.Errorf("%d in flight after the old one has gone again", n)
	}
	f.r.Open(9, nil, f.now)
	f.idle()
	f.pass(time.Second)
}

// TestSlotsThatAreUsedAgainTakeNoMemory replaces replicas that hold much.
func TestSlotsThatAreUsedAgainTakeNoMemory(t *testing.T) {
	f := newFleet(t, 2)
	var first int64
	for i := range 40 {
		for j := range 20 {
			f.serve(&Request{Prompt: f.prompt(conversation(text(8000, uint64(100*i+j)), "one"))})
		}
		f.replace(i%2, "another:80")
		if i == 3 {
			first = f.r.IndexBytes()
		}
	}
	if n := f.r.IndexBytes(); n > 2*first {
		t.Errorf("the index takes %d bytes, it took %d", n, first)
	}
	f.idle()
}
