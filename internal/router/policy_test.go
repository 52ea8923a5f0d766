package router

import (
	"math/rand/v2"
	"testing"

	"github.com/warmpath/warmpath/internal/prefix"
)

func candidates(r *rand.Rand, n int) []Candidate {
	c := make([]Candidate, n)
	for i := range c {
		c[i] = Candidate{Hash: r.Uint64(), Wait: r.Float64() * 2, Work: r.Float64(), Cached: r.IntN(4) * 512, InFlight: r.IntN(20), Pace: 0.5 + r.Float64()}
	}
	return c
}

func TestTheChoiceDoesNotDependOnTheOrderOfReplicas(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 2000 {
		c := candidates(r, 2+r.IntN(12))
		f := Fleet{Load: r.Float64(), MinWait: r.Float64(), Slack: 0.03 + r.Float64()/4, Home: prefix.Hash(r.Uint64()), Random: r.Uint64(), DecodeTokens: 100}
		for _, p := range []Policy{byPrefix{}, leastTokens{}} {
			i, _ := p.Choose(f, c)
			chosen := c[i]
			shuffled := append([]Candidate(nil), c...)
			r.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
			if j, _ := p.Choose(f, shuffled); shuffled[j] != chosen {
				t.Fatalf("%T: %+v, and in another order %+v", p, chosen, shuffled[j])
			}
		}
	}
}

func TestCostGrowsWithWaitWorkAndAnswersUnderWay(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	for range 2000 {
		c := candidates(r, 1)[0]
		f := Fleet{Load: r.Float64(), MinWait: r.Float64(), DecodeTokens: 100}
		w := f.weight()
		base := f.cost(&c, w)
		for name, worse := range map[string]Candidate{
			"wait": {Wait: c.Wait + 0.1, Work: c.Work, InFlight: c.InFlight, Pace: c.Pace},
			"work": {Wait: c.Wait, Work: c.Work + 0.1, InFlight: c.InFlight, Pace: c.Pace},
			"more": {Wait: c.Wait, Work: c.Work, InFlight: c.InFlight + 1, Pace: c.Pace},
			"fail": {Wait: c.Wait, Work: c.Work, InFlight: c.InFlight, Pace: c.Pace, Penalty: 1},
		} {
			if f.cost(&worse, w) <= base {
				t.Fatalf("%s costs nothing", name)
			}
		}
		if w < 1 || w > maxWeight {
			t.Fatalf("weight %v", w)
		}
	}
}

// TestOneReplicaMoreMovesFewSessions is bugs.md D11.
func TestOneReplicaMoreMovesFewSessions(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	four := make([]Candidate, 4)
	for i := range four {
		four[i] = Candidate{Hash: r.Uint64(), Pace: 1}
	}
	five := append(append([]Candidate(nil), four...), Candidate{Hash: r.Uint64(), Pace: 1})
	moved, counts := 0, [5]int{}
	for range 1000 {
		f := Fleet{Slack: 0.03, Home: prefix.Hash(r.Uint64())}
		i, _ := byPrefix{}.Choose(f, four)
		j, _ := byPrefix{}.Choose(f, five)
		counts[j]++
		if i != j {
			moved++
			if j != 4 {
				t.Fatal("a session moved between two replicas that stayed")
			}
		}
	}
	if moved > 300 || moved < 100 {
		t.Errorf("%d of 1000 sessions moved", moved)
	}
	for i, n := range counts {
		if n < 140 || n > 260 {
			t.Errorf("replica %d has %d of 1000 sessions", i, n)
		}
	}
}

func TestReasonsAreNamed(t *testing.T) {
	for name, c := range map[Reason][]Candidate{
		Cost:   {{Hash: 1, Work: 1}, {Hash: 2, Work: 2}},
		Cached: {{Hash: 1, Cached: 512}, {Hash: 2}},
		Home:   {{Hash: 1}, {Hash: 2}},
	} {
		if _, why := (byPrefix{}).Choose(Fleet{Slack: 0.03, Home: 7}, c); why != name {
			t.Errorf("%v: got %v", name, why)
		}
	}
	if len(Reasons()) != int(reasons) || Reasons()[reasons-1].String() == "" {
		t.Error("a reason has no name")
	}
}
