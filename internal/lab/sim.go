package lab

import (
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/warmpath/warmpath/internal/mockvllm"
	"github.com/warmpath/warmpath/internal/router"
)

// Scenario is a fleet and what routes to it.
type Scenario struct {
	Replicas int
	Engine   mockvllm.Config
	Policy   string
	Seed     uint64
	// Wrong multiplies the tokens that gateways estimate before engines have told
	// them; 1 is right.
	Wrong float64
	// NoUsage makes engines tell nothing about tokens.
	NoUsage bool
	// Slow is how many times longer each replica's steps take, by replica; those that
	// are not named take 1.
	Slow []float64
	// Joins is when each replica is there to be chosen, by replica; those that are not
	// named are from the beginning. Only our own policies know of it.
	Joins []time.Duration
	// Capacity multiplies the blocks that replicas tell of their caches; 0 is 1, below
	// 0 they tell nothing.
	Capacity float64
	// Custom is a policy of no name, to be used instead of Policy.
	Custom router.Policy
	// Gateways is how many there are in front of the replicas, each with a view of its
	// own; requests come to them at random. 0 is 1.
	Gateways int
	// LoadLag and PrefixLag are how late a gateway learns what another has sent, with
	// the prompt if it is much work, and what replicas hold; [Never] is not at all. Only our own policies share.
	LoadLag, PrefixLag time.Duration
}

// told is how many blocks a replica says it has.
func (s *Scenario) told() int {
	switch {
	case s.Capacity < 0:
		return 0
	case s.Capacity == 0:
		return s.Engine.Blocks
	}
	return int(float64(s.Engine.Blocks) * s.Capacity)
}

// Never is the lag of what is not shared.
const Never = time.Duration(math.MaxInt64)

// flight is a request on its way.
type flight struct {
	*Request
	sent    time.Duration
	gateway int
	replica int
	first   time.Duration
	expects time.Duration // until the first token, by the balancer; 0 if it does not say
	cached  int
	tokens  int
	state   any // the balancer's own
}

// balancer is what routes: the gateway's router or a rule of another's.
type balancer interface {
	choose(now time.Duration, f *flight) (replica int)
	prefilled(now time.Duration, f *flight)
	done(now time.Duration, f *flight)
}

// event is an arrival, the end of an engine's step or a gateway's word to the others.
type event struct {
	at      time.Duration
	order   uint64 // of events at the same time
	arrival *Request
	word    *router.Event
	from    int // of word
	replica int
}

type queue []event

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].order < q[j].order
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }

// Push is for container/heap.
func (q *queue) Push(x any) { *q = append(*q, x.(event)) }

// Pop is for container/heap.
func (q *queue) Pop() any {
	old := *q
	x := old[len(old)-1]
	*q = old[:len(old)-1]
	return x
}

// fleet is a simulation under way.
type fleet struct {
	s       Scenario
	engines []*mockvllm.Engine
	next    []time.Duration // when an engine's step ends
	flights []map[uint64]*flight
	events  queue
	order   uint64
	by      []balancer // by gateway
	random  *rand.Rand
	now     time.Duration
	result  Result
}

// Simulate runs the requests through the scenario.
func Simulate(s Scenario, requests []*Request) (*Result, error) {
	f := &fleet{
		s: s, result: Result{Policy: s.Policy, Load: make([]int, s.Replicas)}, random: rand.New(rand.NewPCG(s.Seed, 78)),
		engines: enginesOf(s), flights: make([]map[uint64]*flight, s.Replicas), next: make([]time.Duration, s.Replicas),
	}
	for i := range f.engines {
		f.flights[i], f.next[i] = map[uint64]*flight{}, mockvllm.Idle
	}
	gateways := max(1, s.Gateways)
	if IsBound(s.Policy) {
		gateways = 1 // they see all there is
	}
	for g := range gateways {
		b, err := newBalancer(s, f.engines, g)
		if err != nil {
			return nil, err
		}
		f.by = append(f.by, b)
		if own, ok := b.(*routed); ok && s.Gateways > 1 {
			if s.LoadLag != Never {
				own.router.Peers(g, s.Gateways, s.LoadLag)
			}
			own.router.Report(func(e router.Event) { f.share(g, e) })
		}
	}
	for _, r := range requests {
		f.push(event{at: r.At, arrival: r})
	}
	for f.events.Len() > 0 {
		e := heap.Pop(&f.events).(event)
		f.now = e.at
		switch {
		case e.arrival != nil:
			if err := f.arrive(e.at, e.arrival); err != nil {
				return nil, err
			}
		case e.word != nil:
			f.hear(e)
			continue
		case f.next[e.replica] == e.at:
			f.step(e.at, e.replica)
		}
		f.result.Span = e.at
	}
	for i, e := range f.engines {
		if n := len(f.flights[i]); n > 0 {
			return nil, fmt.Errorf("BUG: %d requests were never answered", n)
		}
		f.result.Computed += e.Counters().ComputedTokens
	}
	return &f.result, nil
}

// share sends a gateway's word to the others.
func (f *fleet) share(from int, e router.Event) {
	lag := f.s.LoadLag
	if e.Kind >= router.Holds {
		lag = f.s.PrefixLag
	}
	if e.Kind == router.Routed && f.s.PrefixLag == Never {
		e.Chain = nil // as the load channel has none without the prefix channel
	}
	if lag == Never {
		return
	}
	if e.Chain != nil { // it is the sender's again when this returns
		c := *e.Chain
		c.Cuts, c.Answers = slices.Clone(c.Cuts), slices.Clone(c.Answers)
		e.Chain = &c
	}
	f.push(event{at: f.now + lag, word: &e, from: from})
}

// hear tells every gateway but the sender.
func (f *fleet) hear(e event) {
	for g, b := range f.by {
		if own, ok := b.(*routed); ok && g != e.from {
			own.router.Apply(uint64(e.from), e.word, epoch.Add(e.at))
		}
	}
}

func (f *fleet) push(e event) {
	f.order++
	e.order = f.order
	heap.Push(&f.events, e)
}

func (f *fleet) arrive(now time.Duration, r *Request) error {
	fl := &flight{Request: r, sent: now, tokens: r.Tokens(), gateway: f.random.IntN(len(f.by))}
	fl.replica = f.by[fl.gateway].choose(now, fl)
	f.result.Load[fl.replica]++
	f.result.Arrivals = append(f.result.Arrivals, Arrival{now, fl.replica})
	id, err := f.engines[fl.replica].Submit(mockvllm.Request{Prompt: tokenIDs(r.Runs, fl.tokens), Output: tokenIDs([]Run{r.Answer}, r.Answer.Tokens)})
	if err != nil {
		return fmt.Errorf("a request of %d tokens: %w", fl.tokens, err)
	}
	f.flights[fl.replica][id] = fl
	if f.next[fl.replica] == mockvllm.Idle {
		f.step(now, fl.replica)
	}
	return nil
}

func tokenIDs(runs []Run, n int) []uint32 {
	ids := make([]uint32, 0, n)
	for _, run := range runs {
		for j := range run.Tokens {
			ids = append(ids, run.ID*maxRun+uint32(j))
		}
	}
	return ids
}

func (f *fleet) step(now time.Duration, replica int) {
	events, next := f.engines[replica].Step(now)
	for _, e := range events {
		fl := f.flights[replica][e.ID]
		if fl.first == 0 {
			fl.first, fl.cached = now, e.Cached
			f.by[fl.gateway].prefilled(now, fl)
		}
		if !e.Finished {
			continue
		}
		delete(f.flights[replica], e.ID)
		f.by[fl.gateway].done(now, fl)
		f.result.add(fl, now)
		if n := fl.Next; n != nil {
			f.push(event{at: now + fl.Think, arrival: n})
		}
	}
	if f.next[replica] = next; next != mockvllm.Idle {
		f.push(event{at: next, replica: replica})
	}
}
