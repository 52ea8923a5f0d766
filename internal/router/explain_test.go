package router

import (
	"fmt"
	"math"
	"testing"
)

func TestExplainIsTheNextDecisionAndChangesNothing(t *testing.T) {
	for _, name := range []string{PrefixPolicy, LeastTokensPolicy, RoundRobinPolicy} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, 4)
			policy, err := PolicyByName(name)
			if err != nil {
				t.Fatal(err)
			}
			f.r.policy = policy
			for i := range 50 {
				request := func() *Request {
					return &Request{Prompt: f.prompt(conversation(text(4000, uint64(i%5)), fmt.Sprint("question ", i))), Model: f.model}
				}
				before := f.r.States(f.now)
				d, err := f.r.Explain(request(), f.now)
				if err != nil {
					t.Fatal(err)
				}
				for range 3 {
					if _, err := f.r.Explain(request(), f.now); err != nil {
						t.Fatal(err)
					}
				}
				for j, s := range f.r.States(f.now) {
					if j < len(before) && s != before[j] {
						t.Fatalf("explaining changed %+v to %+v", before[j], s)
					}
				}
				if d.ID != 0 || len(d.Costs()) != 4 || d.Candidates != 4 || PolicyName(d.Policy) != name {
					t.Fatalf("the decision is %+v", d)
				}
				l := f.acquire(request())
				if name != LeastTokensPolicy && l.Replica() != d.Chosen || l.Why() != d.Why { // its ties are broken at random
					t.Fatalf("%d went to %s (%v), explained was %s (%v)", i, l.Replica().ID, l.Why(), d.Chosen.ID, d.Why)
				}
				f.pass(l.Predicted())
				l.Prefilled(f.now)
				l.Done(Outcome{End: Completed, Prefilled: true}, f.now)
			}
		})
	}
}

func TestDecisionsAreKeptWithWhatCameOfThem(t *testing.T) {
	f := newFleet(t, 40)
	for i := range 600 {
		f.serve(&Request{Prompt: f.prompt(conversation(text(3000, 1), fmt.Sprint(i))), ID: fmt.Sprint("request ", i)})
	}
	list := f.r.Decisions(1000)
	if len(list) != 512 {
		t.Fatalf("%d are kept", len(list))
	}
	for i, d := range list {
		if want := fmt.Sprint("request ", 599-i); d.Request != want || !d.Over || d.Prefill <= 0 {
			t.Fatalf("entry %d is %s, over is %v, its prefill took %v", i, d.Request, d.Over, d.Prefill)
		}
		chosen, last := false, math.Inf(-1)
		for _, c := range d.Costs() {
			chosen = chosen || c.Replica == d.Chosen
			if c.Total < last {
				t.Fatalf("costs are not in order: %v after %v", c.Total, last)
			}
			last = c.Total
			parts := c.Wait + d.Weight*(c.Work+c.Evicted) - c.Credit + c.Decoding + c.Penalty
			if math.Abs(parts-c.Total) > 1e-9 {
				t.Fatalf("the parts add up to %v, the cost is %v", parts, c.Total)
			}
		}
		if !chosen || len(d.Costs()) != maxCosts || d.Candidates != 40 {
			t.Fatalf("%d of %d candidates are kept, the chosen one among them is %v", len(d.Costs()), d.Candidates, chosen)
		}
	}
	if n := len(f.r.Decisions(3)); n != 3 {
		t.Errorf("asked for 3, got %d", n)
	}
}

func TestRecordingADecisionAllocatesNothing(t *testing.T) {
	f := newFleet(t, 20)
	f.serve(&Request{})
	req := &Request{Prompt: f.prompt(conversation(text(3000, 1), "a")), Model: f.model}
	l := f.acquire(req)
	f.r.gather(req)
	c, err := f.r.decide(req, f.now)
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() { f.r.record(l, &c) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestAShadowPolicyOnlyWatches routes by turns and asks what prefixes would have saved.
func TestAShadowPolicyOnlyWatches(t *testing.T) {
	f := newFleet(t, 2)
	f.r.policy, f.r.shadow = roundRobin{}, byPrefix{}
	body := conversation(text(30_000, 1), "question")
	first := f.serve(&Request{Prompt: f.prompt(body)})
	second := f.serve(&Request{Prompt: f.prompt(body)})
	if second.Replica() == first.Replica() || second.Why() != Turn {
		t.Fatalf("it went to %s by %v", second.Replica().ID, second.Why())
	}
	s := second.Shadow()
	if s.Replica != first.Replica() || s.Cached < 5000 || s.Saved < 0.5 {
		t.Errorf("the shadow is %+v", s)
	}
	if d := f.r.Decisions(1)[0]; d.Shadow != first.Replica() || d.Chosen != second.Replica() {
		t.Errorf("the decision has %v", d.Shadow)
	}
	f.idle()
}
