package router

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/prefix"
	"github.com/warmpath/warmpath/internal/replica"
)

// pair is two routers over the same replicas; what the first does reaches the
// second when the test says so.
type pair struct {
	one, two *fleet
	told     []Event
}

func newPair(t *testing.T, n int) *pair {
	p := &pair{one: newFleet(t, n), two: newFleet(t, n)}
	for _, f := range []*fleet{p.one, p.two} {
		for _, rep := range f.model.Replicas {
			f.r.Told(rep, replica.Facts{BlockSize: 16, Blocks: 10_000})
		}
	}
	p.one.r.Report(func(e Event) {
		event := e
		if e.Chain != nil { // it is valid during the call alone
			chain := prefix.Chain{Cuts: append([]prefix.Cut(nil), e.Chain.Cuts...), Tokens: e.Chain.Tokens, Exact: e.Chain.Exact}
			event.Chain = &chain
		}
		p.told = append(p.told, event)
	})
	return p
}

// deliver brings the second up to the first, except for the kinds that are lost.
func (p *pair) deliver(lost ...EventKind) {
	for i := range p.told {
		skip := false
		for _, kind := range lost {
			skip = skip || p.told[i].Kind == kind
		}
		if !skip {
			p.two.r.Apply(1, &p.told[i], p.one.now)
		}
	}
	p.told = p.told[:0]
}

func TestWhatAnotherGatewayHasSentCountsHereUntilItIsOver(t *testing.T) {
	p := newPair(t, 3)
	long := p.one.prompt(`{"messages":[{"role":"user","content":"` + strings.Repeat("a long story. ", 4000) + `"}]}`)
	lease := p.one.acquire(&Request{Prompt: long, Stream: true})
	p.deliver()
	busy := func() State { return p.two.r.States(p.one.now)[lease.Replica().Slot] }
	if s := busy(); s.InFlight != 1 || s.Decoding != 0 || s.Wait < 0.9*lease.Predicted().Seconds()-startOverhead || s.PendingTokens == 0 {
		t.Errorf("after it was routed: %+v", s)
	}
	if got := p.two.acquire(&Request{Prompt: p.two.prompt(`{"messages":[{"role":"user","content":"short"}]}`)}); got.Replica().Slot == lease.Replica().Slot {
		t.Error("a new prompt goes where another gateway has just sent a long one")
	} else {
		got.Done(Outcome{End: Canceled}, p.one.now)
	}
	p.one.pass(time.Second)
	lease.Prefilled(p.one.now)
	p.deliver()
	if s := busy(); s.InFlight != 1 || s.Decoding != 1 || s.PendingTokens != 0 {
		t.Errorf("after its prefill: %+v", s)
	}
	lease.Done(Outcome{End: Completed, Prefilled: true, Prompt: 14_000, Completion: 20}, p.one.now)
	p.deliver()
	if s := busy(); s.InFlight != 0 {
		t.Errorf("after its end: %+v", s)
	}
	p.two.idle()
}

// TestOnePromptThatManyGatewaysSendIsOnePrefill: each of them had it computed as far as
// it knew; the engine does so once.
func TestOnePromptThatManyGatewaysSendIsOnePrefill(t *testing.T) {
	body := func(question string) string {
		return `{"messages":[{"role":"system","content":"` + strings.Repeat("a long story. ", 4000) + `"},{"role":"user","content":"` + question + `"}]}`
	}
	for _, c := range []struct {
		name  string
		ask   func(*Request)
		once  bool
		other string // what the second sends
	}{
		{"the same beginning", nil, true, body("and then?")},
		{"another prompt", nil, false, `{"messages":[{"role":"user","content":"` + strings.Repeat("another story. ", 4000) + `"}]}`},
		{"the engine must not look into its cache", func(r *Request) { r.NoCache = true }, false, body("and then?")},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPair(t, 1)
			ask := func(f *fleet, body string) *Lease {
				r := &Request{Prompt: f.prompt(body), Stream: true}
				if c.ask != nil {
					c.ask(r)
				}
				return f.acquire(r)
			}
			own := ask(p.two, body("how does it begin?"))
			work := p.two.r.States(p.two.now)[0].Wait
			told := ask(p.one, c.other)
			p.deliver(Holds) // which comes later
			both := p.two.r.States(p.two.now)[0]
			if once := both.Wait < 1.1*work; once != c.once {
				t.Errorf("%.3f s before it, %.3f s and %d tokens after it", work, both.Wait, both.PendingTokens)
			}
			if c.once { // so is a third's, by what the two told
				if _, cached := ask(p.two, body("and in the end?")).Tokens(); cached < 14_000 {
					t.Errorf("%d tokens are believed to be cached", cached)
				}
				return
			}
			own.Done(Outcome{End: Canceled}, p.two.now)
			told.Done(Outcome{End: Canceled}, p.one.now)
			p.deliver()
			p.two.idle()
		})
	}
}

// TestThePromptComesWithTheWork, so that others find it before the prefix channel has told.
func TestThePromptComesWithTheWork(t *testing.T) {
	p := newPair(t, 4)
	body := `{"messages":[{"role":"user","content":"` + strings.Repeat("a long story. ", 4000) + `"}]}`
	sent := p.one.acquire(&Request{Prompt: p.one.prompt(body), Stream: true})
	p.deliver(Holds)
	got := p.two.acquire(&Request{Prompt: p.two.prompt(body), Stream: true})
	if _, cached := got.Tokens(); got.Replica().Slot != sent.Replica().Slot || cached < 10_000 {
		t.Errorf("it goes to replica %d with %d tokens cached; replica %d is computing it", got.Replica().Slot, cached, sent.Replica().Slot)
	}
	short := p.one.acquire(&Request{Prompt: p.one.prompt(`{"messages":[{"role":"user","content":"short"}]}`)})
	for _, e := range p.told {
		if e.Kind == Routed && e.Lease == short.id && e.Chain != nil {
			t.Error("little work is told with its prompt")
		}
	}
}

func TestWhatAnotherGatewaysReplicasHoldIsFoundHere(t *testing.T) {
	p := newPair(t, 4)
	body := `{"messages":[{"role":"system","content":"` + strings.Repeat("Be brief and kind. ", 300) + `"},{"role":"user","content":"hello"}]}`
	held := p.one.serve(&Request{Prompt: p.one.prompt(body)})
	p.deliver()
	got := p.two.acquire(&Request{Prompt: p.two.prompt(body)})
	if _, cached := got.Tokens(); got.Replica().Slot != held.Replica().Slot || cached < 1000 {
		t.Errorf("it goes to replica %d with %d tokens, replica %d holds it", got.Replica().Slot, cached, held.Replica().Slot)
	}
}

func TestEventsThatAreLostOrStrangeDoNoHarm(t *testing.T) {
	for _, lost := range [][]EventKind{{Routed}, {FirstSeen}, {Holds}, {Routed, FirstSeen}} {
		p := newPair(t, 2)
		p.one.serve(&Request{Prompt: p.one.prompt(`{"messages":[{"role":"user","content":"hello"}]}`)})
		p.deliver(lost...)
		p.two.idle()
	}
	p := newPair(t, 2)
	known := p.two.model.Replicas[0].Hash
	for _, e := range []Event{{Kind: Routed, Replica: 99}, {Kind: Ended, Replica: known, Lease: 5}, {Kind: FirstSeen, Replica: known, Lease: 5}, {Kind: 200, Replica: known}} {
		p.two.r.Apply(1, &e, p.one.now)
	}
	again := Event{Kind: Routed, Replica: known, Lease: 7, Work: 1, Tokens: 100}
	p.two.r.Apply(1, &again, p.one.now)
	p.two.r.Apply(1, &again, p.one.now) // a stream that is read twice
	p.two.r.Apply(1, &Event{Kind: Ended, Replica: known, Lease: 7}, p.one.now)
	p.two.idle()
}

// TestNothingOfAnotherGatewayLeaks: whatever the order in which requests end, the
// others' account is empty when all have.
func TestNothingOfAnotherGatewayLeaks(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 1))
	p := newPair(t, 4)
	var open []*Lease
	for i := range 3000 {
		p.one.pass(time.Duration(rnd.IntN(20)) * time.Millisecond)
		if len(open) == 0 || rnd.IntN(2) == 0 {
			open = append(open, p.one.acquire(&Request{Stream: rnd.IntN(2) == 0, Prompt: p.one.prompt(fmt.Sprintf(`{"messages":[{"role":"user","content":"%d"}]}`, i%50))}))
		} else {
			j := rnd.IntN(len(open))
			l := open[j]
			open = append(open[:j], open[j+1:]...)
			prefilled := rnd.IntN(2) == 0
			if prefilled {
				l.Prefilled(p.one.now)
			}
			l.Done(Outcome{End: End(rnd.IntN(5)), Prefilled: prefilled}, p.one.now)
		}
		if rnd.IntN(10) == 0 {
			p.deliver()
		}
	}
	for _, l := range open {
		l.Done(Outcome{End: Canceled}, p.one.now)
	}
	p.deliver()
	p.two.idle()
	if n := len(p.two.r.share.leases); n > 0 {
		t.Errorf("%d leases of the other are left", n)
	}
}

func TestEachGatewayPrefersItsPartOfTheReplicas(t *testing.T) {
	const gateways, replicas = 3, 8
	for g := range gateways {
		f := newFleet(t, replicas)
		f.r.Peers(g, gateways, 20*time.Millisecond)
		ask := func(i int) *Lease {
			return f.acquire(&Request{Prompt: f.prompt(fmt.Sprintf(`{"messages":[{"role":"user","content":"%d of %d"}]}`, i, g))})
		}
		for i := range 200 {
			l := ask(i)
			if slot := l.Replica().Slot; slot%gateways != g || l.Why() != Part {
				t.Fatalf("gateway %d sends a new prompt to replica %d of an idle fleet, for %v", g, slot, l.Why())
			}
			l.Done(Outcome{End: Canceled}, f.now)
			f.pass(time.Second)
		}
		busy := map[int]bool{}
		for i := range 300 { // more than its part takes: the others are not forbidden
			busy[ask(1000+i).Replica().Slot] = true
		}
		if len(busy) != replicas {
			t.Errorf("a burst at gateway %d reaches %d of %d replicas", g, len(busy), replicas)
		}
	}
	f := newFleet(t, replicas)
	f.r.Peers(0, 1, 0)
	seen := map[int]bool{}
	for i := range 200 {
		l := f.acquire(&Request{Prompt: f.prompt(fmt.Sprintf(`{"messages":[{"role":"user","content":"%d"}]}`, i))})
		seen[l.Replica().Slot] = true
		l.Done(Outcome{End: Canceled}, f.now)
		f.pass(time.Second)
	}
	if len(seen) != replicas {
		t.Errorf("a gateway that is alone uses %d of %d replicas", len(seen), replicas)
	}
}

// TestAHistoryDoesNotLeaveForAnotherPart: parts are for new prompts.
func TestAHistoryDoesNotLeaveForAnotherPart(t *testing.T) {
	f := newFleet(t, 4)
	body := `{"messages":[{"role":"user","content":"` + strings.Repeat("a long story. ", 2000) + `"}]}`
	held := f.serve(&Request{Prompt: f.prompt(body)}).Replica()
	for g := range 4 {
		f.r.Peers(g, 4, 20*time.Millisecond)
		l := f.acquire(&Request{Prompt: f.prompt(body)})
		if l.Replica() != held {
			t.Errorf("gateway %d sends it to %d, %d holds it", g, l.Replica().Slot, held.Slot)
		}
		l.Done(Outcome{End: Canceled}, f.now)
		f.pass(time.Second)
	}
}

// TestWhatWasNeverComputedIsNotHeldAnywhere: a request that ended before its prefill
// leaves nothing at the others.
func TestWhatWasNeverComputedIsNotHeldAnywhere(t *testing.T) {
	for _, end := range []End{Canceled, Rejected, Busy, Failed} {
		p := newPair(t, 3)
		body := `{"messages":[{"role":"user","content":"` + strings.Repeat("a long story. ", 400) + `"}]}`
		l := p.one.acquire(&Request{Stream: true, Prompt: p.one.prompt(body)})
		l.Done(Outcome{End: end}, p.one.now)
		p.deliver()
		got := p.two.acquire(&Request{Prompt: p.two.prompt(body)})
		if _, cached := got.Tokens(); cached > 0 {
			t.Errorf("%v: another gateway predicts %d cached tokens", end, cached)
		}
		got.Done(Outcome{End: Canceled}, p.one.now)
		held := p.one.serve(&Request{Prompt: p.one.prompt(body)}).Replica() // it is computed after all
		p.deliver()
		for range 3 { // and not forgotten when one more is canceled
			l := p.one.acquire(&Request{Stream: true, Prompt: p.one.prompt(body)})
			l.Done(Outcome{End: end}, p.one.now)
			p.deliver()
		}
		p.two.pass(time.Minute)
		got = p.two.acquire(&Request{Prompt: p.two.prompt(body)})
		if _, cached := got.Tokens(); got.Replica() != held && got.Replica().Hash != held.Hash || cached == 0 {
			t.Errorf("%v: another gateway has forgotten what is held", end)
		}
	}
}

func TestWhatNoRouterCanHaveSaidIsNotTaken(t *testing.T) {
	p := newPair(t, 2)
	known := p.two.model.Replicas[0].Hash
	chain := &prefix.Chain{Cuts: []prefix.Cut{{Hash: 1, Tokens: 2000}}, Tokens: 2000}
	for _, e := range []Event{
		{Kind: Routed, Lease: 1, Work: math.NaN()},
		{Kind: Routed, Lease: 2, Work: math.Inf(1)},
		{Kind: Routed, Lease: 3, Work: -1},
		{Kind: Routed, Lease: 4, Work: 1e12},
		{Kind: Routed, Lease: 5, Work: 1, Tokens: -5},
		{Kind: Holds},
		{Kind: Holds, Chain: chain},
		{Kind: Dropped},
		{Kind: Holds, Chain: chain, Factor: math.NaN()},
		{Kind: Holds, Chain: chain, Factor: 1, Prompt: 5_000_000},
		{Kind: Holds, Chain: chain, Factor: 1, Answer: -1},
	} {
		e.Replica = known
		p.two.r.Apply(1, &e, p.one.now)
	}
	for _, s := range p.two.r.States(p.one.now) {
		if s.InFlight != 0 || s.Wait != 0 || s.HeldBlocks != 0 {
			t.Errorf("%+v", s)
		}
	}
}

// BenchmarkAcquire is one decision: a prompt of 512 blocks that a few replicas hold
// in part, from the lookup to the reservation, and its end.
func BenchmarkAcquire(b *testing.B) {
	for _, n := range []int{2, 8, 64, 256} {
		b.Run(fmt.Sprintf("replicas=%d", n), func(b *testing.B) {
			r, err := New(DefaultConfig())
			if err != nil {
				b.Fatal(err)
			}
			model := &replica.Model{Name: "m", Index: 1}
			for i := range n {
				rep := replica.Virtual(fmt.Sprintf("r%d:80", i), i)
				model.Replicas = append(model.Replicas, rep)
				r.Told(rep, replica.Facts{BlockSize: 16, Blocks: 1 << 20})
			}
			const system, tails = 256, 1000
			prompts := make([]*prefix.Prompt, tails)
			for i := range prompts {
				c := prefix.Chain{Tokens: 512 * 16}
				for j := range 512 {
					hash := prefix.Hash(j + 1)
					if j >= system {
						hash = prefix.Hash(1_000_000*(i+1) + j)
					}
					c.Cuts = append(c.Cuts, prefix.Cut{Hash: hash, Tokens: int32(16 * (j + 1))})
				}
				prompts[i] = &prefix.Prompt{Chains: []prefix.Chain{c}, Tokens: int(c.Tokens), Home: prefix.Hash(i)}
			}
			now := epoch
			one := func(i int) {
				l, err := r.Acquire(&Request{Prompt: prompts[i%tails], Model: model, Stream: true}, now)
				if err != nil {
					b.Fatal(err)
				}
				now = now.Add(time.Millisecond)
				l.Prefilled(now)
				l.Done(Outcome{End: Completed, Prefilled: true}, now)
			}
			for i := range tails {
				one(i)
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				i++
				one(i)
			}
		})
	}
}

// list is what the first router's account of its own requests would be.
func openList(leases ...*Lease) (list []Event) {
	for _, l := range leases {
		e := Event{Kind: Routed, Replica: l.Replica().Hash, Lease: l.id, Work: l.work, Tokens: l.uncached, Stream: l.stream}
		if l.state == decoding {
			e.Kind = FirstSeen
		}
		list = append(list, e)
	}
	return list
}

func (f *fleet) load() (queued, decoding int) {
	for _, s := range f.r.States(f.now) {
		queued, decoding = queued+s.InFlight-s.Decoding, decoding+s.Decoding
	}
	return queued, decoding
}

// TestTheListOfAnothersRequestsMakesGoodWhatWasLost: events of every kind are lost,
// and the router joins late.
func TestTheListOfAnothersRequestsMakesGoodWhatWasLost(t *testing.T) {
	p := newPair(t, 3)
	ask := func(i int) *Lease {
		return p.one.acquire(&Request{Stream: true, Prompt: p.one.prompt(fmt.Sprintf(`{"messages":[{"role":"user","content":"%d"}]}`, i))})
	}
	known, gone, waits, seen := ask(1), ask(2), ask(3), ask(4)
	p.deliver()
	unknown, unknownSeen := ask(5), ask(6)
	gone.Done(Outcome{End: Canceled}, p.one.now)
	seen.Prefilled(p.one.now)
	unknownSeen.Prefilled(p.one.now)
	p.told = p.told[:0] // all of that is lost
	list := openList(known, waits, seen, unknown, unknownSeen)
	for range 2 { // a list that comes twice does no harm
		p.two.r.Open(1, list, p.one.now)
		if queued, decoding := p.two.load(); queued != 3 || decoding != 2 {
			t.Errorf("%d queued and %d decoding, want 3 and 2", queued, decoding)
		}
	}
	p.two.r.Open(2, nil, p.one.now) // of a third
	if queued, decoding := p.two.load(); queued+decoding != 5 {
		t.Errorf("%d and %d after another's empty list", queued, decoding)
	}
	p.two.r.Open(1, nil, p.one.now)
	p.two.idle()
}

// TestLoadThatNothingIsHeardOfFades, and comes back with the next list.
func TestLoadThatNothingIsHeardOfFades(t *testing.T) {
	p := newPair(t, 2)
	var leases []*Lease
	for i := range 64 {
		leases = append(leases, p.one.acquire(&Request{Stream: true, Prompt: p.one.prompt(fmt.Sprintf(`{"messages":[{"role":"user","content":"%d"}]}`, i))}))
	}
	p.deliver()
	own := p.two.acquire(&Request{Stream: true})
	p.two.pass(fadeHalf)
	p.two.r.Fade(fadeHalf, p.two.now)
	if queued, decoding := p.two.load(); queued > 1 || decoding < 20 || decoding > 44 {
		t.Errorf("after the half-life %d are queued and %d decoding of 64", queued, decoding)
	}
	for range 20 {
		p.two.r.Fade(fadeHalf, p.two.now)
	}
	if queued, decoding := p.two.load(); queued+decoding != 1 {
		t.Errorf("%d and %d are left beside its own", queued, decoding)
	}
	p.two.r.Open(1, openList(leases...), p.two.now)
	if queued, decoding := p.two.load(); queued+decoding != 65 {
		t.Errorf("%d and %d after the list", queued, decoding)
	}
	p.two.r.Open(1, nil, p.two.now)
	own.Done(Outcome{End: Canceled}, p.two.now)
	p.two.idle()
}

// TestSessionsAndResponsesAreFoundAtAnotherGateway, whatever that knows of prefixes.
func TestSessionsAndResponsesAreFoundAtAnotherGateway(t *testing.T) {
	p := newPair(t, 4)
	for i := range 20 {
		session, response := prefix.Hash(1000+i), prefix.Hash(2000+i)
		first := p.one.acquire(&Request{Session: session})
		first.Done(Outcome{End: Completed, Prefilled: true, Prompt: 100, Completion: 10, Response: response}, p.one.now)
		p.deliver(Holds)
		for _, req := range []*Request{{Session: session}, {Previous: response}} {
			got := p.two.acquire(req)
			if got.Replica().Slot != first.Replica().Slot || got.Why() != Session {
				t.Errorf("%+v goes to %d for %v, the first went to %d", req, got.Replica().Slot, got.Why(), first.Replica().Slot)
			}
			got.Done(Outcome{End: Canceled}, p.two.now)
		}
	}
}

// TestWhatIsHeardBeforeTheFirstRequestCounts.
func TestWhatIsHeardBeforeTheFirstRequestCounts(t *testing.T) {
	p := newPair(t, 2)
	body := `{"messages":[{"role":"user","content":"` + strings.Repeat("a long story. ", 400) + `"}]}`
	held := p.one.serve(&Request{Prompt: p.one.prompt(body)})
	fresh := newFleet(t, 2)
	for _, rep := range fresh.model.Replicas {
		fresh.r.Know(rep)
	}
	for i := range p.told {
		fresh.r.Apply(1, &p.told[i], p.one.now)
	}
	for _, rep := range fresh.model.Replicas { // what it tells of its blocks comes later
		fresh.r.Told(rep, replica.Facts{BlockSize: 128, Blocks: 1000})
	}
	got := fresh.acquire(&Request{Prompt: fresh.prompt(body)})
	if _, cached := got.Tokens(); cached < 1000 || got.Replica().Slot != held.Replica().Slot {
		t.Errorf("%d tokens predicted on %d, %d holds them", cached, got.Replica().Slot, held.Replica().Slot)
	}
}

// BenchmarkAcquireWhereAllAreBusy is one decision where every replica has much to
// consider: it holds what all prompts share, its cache is full, it generates answers and
// has a queue, and every other one is slow.
func BenchmarkAcquireWhereAllAreBusy(b *testing.B) {
	for _, n := range []int{2, 256} {
		b.Run(fmt.Sprintf("replicas=%d", n), func(b *testing.B) {
			r, err := New(DefaultConfig())
			if err != nil {
				b.Fatal(err)
			}
			const system, cuts, tails, blocks = 64, 128, 40, 2048
			prompts := make([]*prefix.Prompt, tails*n)
			for i := range prompts {
				c := prefix.Chain{Tokens: cuts * 16}
				for j := range cuts {
					hash := prefix.Hash(j + 1)
					if j >= system {
						hash = prefix.Hash(1_000_000*(i+1) + j)
					}
					c.Cuts = append(c.Cuts, prefix.Cut{Hash: hash, Tokens: int32(16 * (j + 1))})
				}
				prompts[i] = &prefix.Prompt{Chains: []prefix.Chain{c}, Tokens: int(c.Tokens), Home: prefix.Hash(i)}
			}
			model, now := &replica.Model{Name: "m", Index: 1}, epoch
			acquire := func(m *replica.Model, i int) *Lease {
				l, err := r.Acquire(&Request{Prompt: prompts[i], Model: m, Stream: true}, now)
				if err != nil {
					b.Fatal(err)
				}
				return l
			}
			for i := range n {
				rep := replica.Virtual(fmt.Sprintf("r%d:80", i), i)
				model.Replicas = append(model.Replicas, rep)
				r.Told(rep, replica.Facts{BlockSize: 16, Blocks: blocks})
			}
			for j := range tails {
				for i, rep := range model.Replicas {
					l := acquire(&replica.Model{Name: "m", Index: 1, Replicas: []*replica.Replica{rep}}, i*tails+j)
					if j == tails-1 {
						continue // it waits
					}
					l.Prefilled(now.Add(seconds(l.work + float64(i%2)*l.base)))
					if j < tails-4 {
						l.Done(Outcome{End: Completed, Prefilled: true}, now)
					}
				}
				now = now.Add(time.Second)
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				i++
				l := acquire(model, i%len(prompts))
				now = now.Add(100 * time.Microsecond)
				l.Prefilled(now)
				l.Done(Outcome{End: Completed, Prefilled: true}, now)
			}
		})
	}
}
