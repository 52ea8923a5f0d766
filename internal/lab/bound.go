package lab

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/warmpath/warmpath/internal/mockvllm"
	"github.com/warmpath/warmpath/internal/prefix"
	"github.com/warmpath/warmpath/internal/router"
)

// enginesOf returns the scenario's engines.
func enginesOf(s Scenario) []*mockvllm.Engine {
	if s.Policy == pooled {
		return mockvllm.NewPooled(s.Engine, s.Replicas)
	}
	engines := make([]*mockvllm.Engine, s.Replicas)
	for i := range engines {
		cfg := s.Engine
		if i < len(s.Slow) {
			cfg = cfg.Stretch(s.Slow[i])
		}
		engines[i] = mockvllm.NewEngine(cfg)
	}
	return engines
}

// The bounds: no gateway can know what they know. The oracle is our own cost with
// the truth of each engine's queue and cache in place of estimates, and without
// what only an index of many prompts tells (copies of shared beginnings, ages of
// what would be evicted). Pooled balances queues over one cache for all.
const (
	oracle = "oracle"
	pooled = "pooled"
)

// bound routes by the engines' true state.
type bound struct {
	s       Scenario
	engines []*mockvllm.Engine
	random  *rand.Rand
	load    float64 // seconds of work a second and replica, averaged over ten seconds
	loaded  time.Duration
}

// loadMemory is that of the router, in seconds.
const loadMemory = 10

func (b *bound) choose(now time.Duration, f *flight) int {
	prompt := tokenIDs(f.Runs, f.tokens)
	hashes := b.engines[0].Hashes(mockvllm.Request{Prompt: prompt})
	b.load *= math.Exp(-(now - b.loaded).Seconds() / loadMemory)
	b.loaded = now
	fleet := router.Fleet{MinWait: math.Inf(1), Load: b.load, DecodeTokens: float64(router.DefaultConfig().DecodeTokens), Home: prefix.Hash(f.Session), Random: b.random.Uint64()}
	candidates := make([]router.Candidate, len(b.engines))
	for i, e := range b.engines {
		c := &candidates[i]
		counters := e.Counters()
		c.Hash, c.Pace = mix(uint64(i), 3), float64(b.s.Engine.PrefillPerToken)/125_000 // against the router's reference of 8,000 tokens/s
		c.Wait, c.Cached = e.Backlog(now).Seconds(), e.Cached(hashes, f.tokens)
		c.Work = e.PrefillCost(c.Cached, f.tokens-c.Cached).Seconds()
		c.InFlight = counters.Running + counters.Waiting
		fleet.MinWait = min(fleet.MinWait, c.Wait)
	}
	if b.s.Policy == pooled {
		for i := range candidates {
			candidates[i].Work = 0
		}
	}
	policy, err := router.PolicyByName(router.PrefixPolicy)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	fleet.Price(candidates)
	i, _ := policy.Choose(fleet, candidates)
	b.load += candidates[i].Work / loadMemory / float64(len(b.engines))
	return i
}

func (*bound) prefilled(time.Duration, *flight) {}
func (*bound) done(time.Duration, *flight)      {}
