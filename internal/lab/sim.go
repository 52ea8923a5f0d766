package lab

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/warmpath/warmpath/internal/mockvllm"
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
}

// flight is a request on its way.
type flight struct {
	*Request
	sent    time.Duration
	replica int
	first   time.Duration
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

// event is an arrival, or the end of an engine's step.
type event struct {
	at      time.Duration
	order   uint64 // of events at the same time
	arrival *Request
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
	by      balancer
	result  Result
}

// Simulate runs the requests through the scenario.
func Simulate(s Scenario, requests []*Request) (*Result, error) {
	f := &fleet{s: s, result: Result{Policy: s.Policy, Load: make([]int, s.Replicas)}}
	for range s.Replicas {
		f.engines = append(f.engines, mockvllm.NewEngine(s.Engine))
		f.next = append(f.next, mockvllm.Idle)
		f.flights = append(f.flights, map[uint64]*flight{})
	}
	var err error
	if f.by, err = newBalancer(s, f.engines, rand.New(rand.NewPCG(s.Seed, 77))); err != nil {
		return nil, err
	}
	for _, r := range requests {
		f.push(event{at: r.At, arrival: r})
	}
	for f.events.Len() > 0 {
		e := heap.Pop(&f.events).(event)
		switch {
		case e.arrival != nil:
			if err := f.arrive(e.at, e.arrival); err != nil {
				return nil, err
			}
		case f.next[e.replica] == e.at:
			f.step(e.at, e.replica)
		}
		f.result.Span = e.at
	}
	for _, e := range f.engines {
		f.result.Computed += e.Counters().ComputedTokens
	}
	return &f.result, nil
}

func (f *fleet) push(e event) {
	f.order++
	e.order = f.order
	heap.Push(&f.events, e)
}

func (f *fleet) arrive(now time.Duration, r *Request) error {
	fl := &flight{Request: r, sent: now, tokens: r.Tokens()}
	fl.replica = f.by.choose(now, fl)
	f.result.Load[fl.replica]++
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
			f.by.prefilled(now, fl)
		}
		if !e.Finished {
			continue
		}
		delete(f.flights[replica], e.ID)
		f.by.done(now, fl)
		f.result.add(fl, now)
		if n := fl.Next; n != nil {
			f.push(event{at: now + fl.Think, arrival: n})
		}
	}
	if f.next[replica] = next; next != mockvllm.Idle {
		f.push(event{at: next, replica: replica})
	}
}
