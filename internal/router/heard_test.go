package router

import (
	"strings"
	"testing"
	"time"
)

// TestWhatAnotherGatewayLearnedIsKnownHere: how long a prompt really is, and that its
// answer is held behind it.
func TestWhatAnotherGatewayLearnedIsKnownHere(t *testing.T) {
	p := newPair(t, 2)
	text := strings.Repeat("a long story. ", 400)
	first := p.one.prompt(`{"messages":[{"role":"user","content":"` + text + `"}]}`)
	estimated := int(first.Chains[0].Tokens)
	l := p.one.acquire(&Request{Stream: true, Prompt: first})
	l.Prefilled(p.one.now)
	l.Done(Outcome{End: Completed, Prefilled: true, Prompt: estimated * 2, Completion: 161, Gap: time.Millisecond}, p.one.now)
	p.deliver()

	again := p.two.acquire(&Request{Prompt: p.two.prompt(`{"messages":[{"role":"user","content":"` + text + `"}]}`)})
	if tokens, _ := again.Tokens(); tokens < estimated*2 || tokens > estimated*2+10 { // what closes a prompt is no part of its cuts
		t.Errorf("the prompt counts %d tokens, the engine of another gateway's request counted %d", tokens, estimated*2)
	}
	next := p.two.acquire(&Request{Prompt: p.two.prompt(`{"messages":[{"role":"user","content":"` + text + `"},{"role":"assistant","content":"` + strings.Repeat("and so on. ", 60) + `"},{"role":"user","content":"more"}]}`)})
	if _, cached := next.Tokens(); cached < estimated*2+100 || next.Replica().Slot != l.Replica().Slot {
		t.Errorf("the next turn finds %d tokens at %d, the turn before left %d with its answer at %d", cached, next.Replica().Slot, estimated*2+160, l.Replica().Slot)
	}
}

// TestAnothersLoadCountsInTheFleets: own work weighs as much as the whole fleet is
// loaded, whoever sent it.
func TestAnothersLoadCountsInTheFleets(t *testing.T) {
	p := newPair(t, 2)
	hash := p.two.model.Replicas[0].Hash
	before := p.two.r.byHash[hash].load
	for i := range uint64(4) {
		p.two.r.Apply(1, &Event{Kind: Routed, Replica: hash, Lease: i + 1, Work: 2, Tokens: 1000, Stream: true}, p.two.now)
		p.two.r.Apply(2, &Event{Kind: Routed, Replica: hash, Lease: i + 1, Work: 2, Tokens: 1000, Stream: true}, p.two.now)
	}
	s := p.two.r.byHash[hash]
	if got := s.load - before; got < 1.5 || got > 1.7 {
		t.Errorf("16 s of work raise the load by %.2f, want 16/10", got)
	}
	if s.queued != 8 {
		t.Errorf("%d are queued, two gateways with the same numbers sent 8", s.queued)
	}
	p.two.pass(time.Second)
	p.two.r.Apply(1, &Event{Kind: FirstSeen, Replica: hash, Lease: 1}, p.two.now)
	if s.last != p.two.r.moment(p.two.now) {
		t.Error("the replica went on with its queue a second ago, for all that is known here")
	}
}
