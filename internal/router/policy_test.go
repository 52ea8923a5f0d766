package router

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/prefix"
)

func candidates(r *rand.Rand, n int) []Candidate {
	c := make([]Candidate, n)
	for i := range c {
		c[i] = Candidate{
			Hash: r.Uint64(), Wait: r.Float64() * 2, Work: r.Float64(), Cached: r.IntN(4) * 512, InFlight: r.IntN(20), Pace: 0.5 + r.Float64(),
			Busy: r.Float64() * 20, Evicted: r.Float64() * float64(r.IntN(2)), Missing: r.Float64() * float64(r.IntN(2)), Mine: r.IntN(2) == 0,
		}
	}
	return c
}

func TestTheChoiceDoesNotDependOnTheOrderOfReplicas(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 2000 {
		c := candidates(r, 2+r.IntN(12))
		f := Fleet{
			Load: r.Float64(), MinWait: r.Float64(), Slack: 0.03 + r.Float64()/4, Home: prefix.Hash(r.Uint64()), Random: r.Uint64(), DecodeTokens: 100,
			Held: r.Float64() * 20, HeldWait: r.Float64(), Branches: r.IntN(40),
		}
		for _, p := range []Policy{byPrefix{}, leastTokens{}} {
			f.Price(c)
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
		f.Price([]Candidate{c})
		w, base := f.Weight, f.Least
		for name, add := range map[string]func(*Candidate){
			"wait":     func(c *Candidate) { c.Wait += 0.1 },
			"work":     func(c *Candidate) { c.Work += 0.1 },
			"evicted":  func(c *Candidate) { c.Evicted += 0.1 },
			"inflight": func(c *Candidate) { c.InFlight++ },
			"penalty":  func(c *Candidate) { c.Penalty++ },
		} {
			worse := c
			add(&worse)
			fleet := f
			if fleet.Price([]Candidate{worse}); fleet.Least <= base {
				t.Fatalf("%s costs nothing", name)
			}
		}
		if w < 1 || w > maxWeight {
			t.Fatalf("weight %v", w)
		}
	}
}

// TestACopyIsWorthWhatItsHoldersAreBusier: by answers under way, by their queues, and
// by both with every use; never more than it costs.
func TestACopyIsWorthWhatItsHoldersAreBusier(t *testing.T) {
	c := Candidate{Pace: 1, Missing: 1}
	f := func(held, wait float64, branches int, want float64) {
		t.Helper()
		fleet := Fleet{DecodeTokens: 100, Held: held, HeldWait: wait, Branches: branches, Weight: 2}
		if got := fleet.credit(&c); math.Abs(got-want) > 1e-9 {
			t.Errorf("holders with %v under way and %v s to wait, %d continuations: %v s, want %v", held, wait, branches, got, want)
		}
	}
	f(0, 0, 50, 0)
	f(4, 0, 10, 10*copyGain*4*100*decodeTime)
	f(0, 0.5, 10, 10*copyWait*0.5)
	f(4, 0.5, 10, 10*(copyGain*4*100*decodeTime+copyWait*0.5))
	f(4, 0.5, 0, 0)          // nobody shares it
	f(40, 5, 1000, 2)        // all the work, at its weight
	f(0, 0.001, 1e6, 0.0256) // a copy has no more uses than maxUses
	if c.Missing = 0; true {
		f(4, 0.5, 10, 0) // it is there
	}
}

func TestSlackGrowsWithTheLagBetweenGateways(t *testing.T) {
	for _, c := range []struct {
		count     int
		lag, want time.Duration
	}{
		{0, time.Second, slack}, {1, time.Second, slack}, {2, 0, slack}, {2, 20 * time.Millisecond, 60 * time.Millisecond}, {8, time.Minute, maxSlack},
	} {
		if got := (&share{count: c.count, lag: c.lag}).slack(); got != c.want {
			t.Errorf("%d gateways, %v apart: %v, want %v", c.count, c.lag, got, c.want)
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
		f.Price(four)
		i, _ := byPrefix{}.Choose(f, four)
		f.Price(five)
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
		f := Fleet{Slack: 0.03, Home: 7}
		f.Price(c)
		if _, why := (byPrefix{}).Choose(f, c); why != name {
			t.Errorf("%v: got %v", name, why)
		}
	}
	if len(Reasons()) != int(reasons) || Reasons()[reasons-1].String() == "" {
		t.Error("a reason has no name")
	}
}
