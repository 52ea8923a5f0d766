package share

import (
	"fmt"
	"slices"
	"testing"

	"github.com/warmpath/warmpath/internal/prefix"
	"github.com/warmpath/warmpath/internal/router"
)

func TestWhatWasToldIsNotToldAgainUnlessThereIsNews(t *testing.T) {
	o := newOutbox(true, true)
	held := func(prompt, answer int) int {
		o.report(router.Event{Kind: router.Holds, Replica: 1, Chain: chain(128, 1, 2, 3), Factor: 1, Prompt: prompt, Answer: answer})
		return len(o.takeHeld(1 << 20))
	}
	for i, step := range []struct{ prompt, answer, want int }{{0, 0, 1}, {0, 0, 0}, {400, 0, 1}, {0, 0, 0}, {400, 30, 1}, {401, 31, 0}} {
		if got := held(step.prompt, step.answer); got != step.want {
			t.Errorf("step %d: told %d times, want %d", i, got, step.want)
		}
	}
	o.rest()
	if held(400, 30) != 0 {
		t.Error("told again after one turn of the memory, which may just have begun")
	}
	o.rest()
	o.rest()
	if held(400, 30) != 1 {
		t.Error("not told again after two turns")
	}
	o.forgetTold()
	if held(0, 0) != 1 {
		t.Error("not told again after Redis lost it")
	}
	o.report(router.Event{Kind: router.Holds, Replica: 2, Chain: chain(128, 1, 2, 3), Factor: 1})
	o.report(router.Event{Kind: router.Holds, Replica: 2, Chain: chain(128, 1, 2, 3), Factor: 1, Prompt: 7})
	if got := o.takeHeld(1 << 20); len(got) != 1 || got[0].Prompt != 7 {
		t.Errorf("two in one batch became %+v", got)
	}
}

// TestWhatWaitsIsBounded while Redis takes nothing, and what is dropped is counted and
// told when it comes up again.
func TestWhatWaitsIsBounded(t *testing.T) {
	o := newOutbox(true, true)
	long := make([]prefix.Hash, 200)
	for i := range long {
		long[i] = prefix.Hash(i + 1)
	}
	const n = 100_000
	sent := 0
	for i := range n {
		o.report(router.Event{Kind: router.Routed, Replica: 1, Lease: uint64(i)})
		o.report(router.Event{Kind: router.Ended, Replica: 1, Lease: uint64(i)})
		c := chain(128, long...)
		c.Cuts[199].Hash = prefix.Hash(1_000_000 + i)
		o.report(router.Event{Kind: router.Holds, Replica: 1, Chain: c, Factor: 1})
		if load, held := o.waiting(); load > maxLoad || held > maxHeld || o.heldBytes > maxHeldBytes+cutBytes*200 || len(o.told)+len(o.past) > 2*maxTold {
			t.Fatalf("%d and %d events wait, %d bytes", load, held, o.heldBytes)
		}
	}
	dropped := o.takeDropped()
	load, _ := o.waiting()
	if dropped[loadChannel]+load != 2*n {
		t.Errorf("%d dropped and %d waiting of %d", dropped[loadChannel], load, 2*n)
	}
	for events := o.takeHeld(1 << 18); len(events) > 0; events = o.takeHeld(1 << 18) {
		sent += len(events)
	}
	if dropped[prefixChannel]+sent != n || o.heldBytes != 0 || len(o.heldAt) != 0 {
		t.Errorf("%d dropped and %d sent of %d, %d bytes left", dropped[prefixChannel], sent, n, o.heldBytes)
	}
	if list := o.takeOpen(nil); len(list) != 0 {
		t.Errorf("%d under way", len(list))
	}
	c := chain(128, long...)
	c.Cuts[199].Hash = 1_000_000 // the first, which was dropped
	o.report(router.Event{Kind: router.Holds, Replica: 1, Chain: c, Factor: 1})
	if len(o.takeHeld(1<<18)) != 1 {
		t.Error("what was dropped is never told")
	}
}

func TestTheListOfWhatIsUnderWay(t *testing.T) {
	o := newOutbox(true, true)
	for i := range uint64(5) {
		o.report(router.Event{Kind: router.Routed, Replica: i % 2, Lease: 10 - i, Tokens: int(i)})
	}
	o.report(router.Event{Kind: router.FirstSeen, Replica: 1, Lease: 9})
	o.report(router.Event{Kind: router.Ended, Replica: 0, Lease: 10})
	o.report(router.Event{Kind: router.Ended, Replica: 0, Lease: 10})
	o.report(router.Event{Kind: router.Ended, Replica: 0, Lease: 77})
	var got []string
	for _, e := range o.takeOpen(nil) {
		got = append(got, fmt.Sprint(e.Lease, e.Kind == router.FirstSeen))
	}
	if want := "[6 false 7 false 8 false 9 true]"; fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s", got, want)
	}
	if load, _ := o.waiting(); load != 0 {
		t.Error("the list does not stand in for what waited")
	}
}

// TestPromptsOfWorkAreBoundedAndToldOnce: beyond what may wait, work is told without
// them, and the list of what is under way has none.
func TestPromptsOfWorkAreBoundedAndToldOnce(t *testing.T) {
	long := make([]prefix.Hash, 200)
	report := func(o *outbox, lease int) {
		for i := range long {
			long[i] = prefix.Hash(1000*lease + i)
		}
		for _, kind := range []router.EventKind{router.Routed, router.Holds} {
			o.report(router.Event{Kind: kind, Replica: 1, Lease: uint64(lease), Chain: chain(128, long...), Factor: 1})
		}
	}
	o := newOutbox(true, true)
	const n = 2 * maxLoadBytes / (cutBytes * 200)
	for round := range 2 { // the memory is free again when it was taken
		for i := range n {
			report(o, 1+n*round+i)
		}
		with := 0
		events, _ := o.takeLoad(nil)
		for _, e := range events {
			if e.Chain != nil {
				with++
			}
		}
		if len(events) != n || with < n/2 || with > n/2+1 || o.loadBytes != 0 {
			t.Errorf("%d of %d events have a prompt, of %d; %d bytes are left", with, len(events), n, o.loadBytes)
		}
		held := o.takeHeld(1 << 30)
		if events[0].Chain != held[0].Chain {
			t.Error("a prompt is copied twice")
		}
	}
	for _, e := range o.takeOpen(nil) {
		if e.Chain != nil {
			t.Fatal("a prompt is kept for as long as its request takes")
		}
	}
	for i := range maxLoad + 1 { // the older half goes
		report(o, 1_000_000+i)
		o.takeHeld(1 << 30)
	}
	if load, _ := o.waiting(); load != maxLoad/2+1 || o.loadBytes != cutBytes*200 {
		t.Errorf("%d events and %d bytes wait", load, o.loadBytes)
	}
	o = newOutbox(true, false)
	report(o, 1)
	if events, _ := o.takeLoad(nil); len(events) != 1 || events[0].Chain != nil {
		t.Errorf("where prefixes are not shared, %+v is told", events)
	}
}

// TestWordsAboutReplicasAreKeptUntilTheyAreSent: the last one of a drain and its end
// holds, however long Redis is away and whatever failed in between.
func TestWordsAboutReplicasAreKeptUntilTheyAreSent(t *testing.T) {
	o := newOutbox(true, true)
	o.notice(notice{1, wasDrained})
	o.notice(notice{1, isUnwell})
	o.notice(notice{2, wasUndrained})
	failed := o.takeNotices()
	o.notice(notice{1, wasUndrained})
	o.unsent(failed)
	for range 5000 {
		o.notice(notice{3, isUnwell})
		o.notice(notice{2, wasDrained})
	}
	want := []notice{{1, isUnwell}, {1, wasUndrained}, {3, isUnwell}, {2, wasDrained}}
	if got := o.takeNotices(); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for i := range 2 * maxNotices {
		o.notice(notice{uint64(i), isUnwell})
	}
	if n := len(o.takeNotices()); n != maxNotices {
		t.Errorf("%d wait", n)
	}
}

// BenchmarkReport is what a request costs its router: three events of load and a new
// prompt of 100 KB.
func BenchmarkReport(b *testing.B) {
	o := newOutbox(true, true)
	c := chain(128)
	for i := range 75 {
		c.Cuts = append(c.Cuts, prefix.Cut{Hash: prefix.Hash(i), Tokens: int32(i)})
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		lease := uint64(i)
		c.Cuts[74].Hash = prefix.Hash(1000 + i)
		o.report(router.Event{Kind: router.Routed, Replica: 1, Lease: lease, Chain: c, Factor: 1})
		o.report(router.Event{Kind: router.Holds, Replica: 1, Lease: lease, Chain: c, Factor: 1})
		o.report(router.Event{Kind: router.FirstSeen, Replica: 1, Lease: lease})
		o.report(router.Event{Kind: router.Ended, Replica: 1, Lease: lease})
		if i%1000 == 999 {
			o.takeLoad(nil)
			o.takeHeld(1 << 22)
		}
	}
}

func TestWhatNeverCameIsTakenBackFromThoseWhoWereTold(t *testing.T) {
	o := newOutbox(true, true)
	holds := func(kind router.EventKind) {
		o.report(router.Event{Kind: kind, Replica: 1, Chain: chain(128, 1, 2, 3), Factor: 1})
	}
	take := func(want ...router.EventKind) {
		t.Helper()
		var got []router.EventKind
		for _, e := range o.takeHeld(1 << 20) {
			got = append(got, e.Kind)
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	holds(router.Dropped) // nobody was told
	take()
	holds(router.Holds)
	holds(router.Dropped) // before it was sent
	take(router.Dropped)
	holds(router.Holds)
	take(router.Holds)
	holds(router.Holds)
	take() // that is known
	holds(router.Dropped)
	take(router.Dropped)
	holds(router.Holds) // it is no longer known
	holds(router.Dropped)
	holds(router.Holds)
	take(router.Holds)
}
