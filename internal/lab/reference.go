package lab

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/warmpath/warmpath/internal/mockvllm"
	"github.com/warmpath/warmpath/internal/prefix"
	"github.com/warmpath/warmpath/internal/router"
)

// This file is the rules of other gateways, as their sources and defaults read in
// August 2026. They run on the same index and the same arrivals as ours; what is
// compared is the rule.

// references are the rules by name.
var references = []string{"least-requests", "session", "chwbl", "sglang", "sglang-lib", "llm-d", "dynamo"}

// bounds are not rules that a gateway could have: oracle is our own with the truth
// instead of estimates, pooled has one cache for all replicas and only balances
// their queues.
var bounds = []string{oracle, pooled}

// Policies lists every policy that can be simulated.
func Policies() []string { return slices.Concat(router.Policies(), references, bounds) }

// Ours is the policy that the others are there to be compared with, Pooled the bound
// of what a fleet with one cache would do.
const (
	Ours   = router.PrefixPolicy
	Pooled = pooled
)

// IsBound reports whether a policy is a bound, which no gateway could follow.
func IsBound(policy string) bool { return slices.Contains(bounds, policy) }

func newBalancer(s Scenario, engines []*mockvllm.Engine, gateway int) (balancer, error) {
	rnd := rand.New(rand.NewPCG(s.Seed, 77+uint64(gateway)<<8))
	if slices.Contains(router.Policies(), s.Policy) {
		return newRouted(s, engines, gateway)
	}
	if slices.Contains(bounds, s.Policy) {
		return &bound{s: s, engines: engines, random: rnd}, nil
	}
	b := newReference(s, engines, rnd)
	for i := range s.Replicas {
		b.index.SetSlot(i, s.Engine.BlockSize, s.told())
	}
	switch s.Policy {
	case "least-requests":
		b.rule = (*reference).leastRequests
	case "session":
		b.rule = (*reference).session
	case "chwbl":
		b.rule = (*reference).boundedLoads
	case "sglang":
		b.rule = thresholds(0.3, 64, 1.5)
	case "sglang-lib":
		b.rule = thresholds(0.5, 32, 1.1)
	case "llm-d":
		b.rule = (*reference).weights
	case "dynamo":
		b.rule = (*reference).blocks
	default:
		return nil, fmt.Errorf("no policy %q; there are %v", s.Policy, Policies())
	}
	if s.Policy == "sglang" || s.Policy == "sglang-lib" { // their tree forgets by age and total size, not by replica
		for i := range s.Replicas {
			b.index.SetSlot(i, s.Engine.BlockSize, 1<<40)
		}
	}
	return b, nil
}

// reference is a rule with what rules keep account of.
type reference struct {
	s       Scenario
	engines []*mockvllm.Engine
	rnd     *rand.Rand
	index   *prefix.Index
	rule    func(*reference, *flight, *prefix.Chain) int

	count   []int // requests in flight, by replica
	pending []int // uncached prompt tokens sent and not prefilled
	active  []int // tokens of all sequences in flight
	matches prefix.Matches
	ring    []node // of boundedLoads
}

// node is a place of a replica on a ring of hashes.
type node struct {
	at      uint64
	replica int
}

func newReference(s Scenario, engines []*mockvllm.Engine, rnd *rand.Rand) *reference {
	n := s.Replicas
	return &reference{
		s: s, engines: engines, rnd: rnd, index: prefix.NewIndex(1 << 40),
		count: make([]int, n), pending: make([]int, n), active: make([]int, n),
	}
}

// sent is what a flight counted for.
type sent struct {
	chain    *prefix.Chain
	uncached int
}

func (b *reference) choose(_ time.Duration, f *flight) int {
	chain := chainOf(f.Request, 1)
	b.index.Find(&chain, &b.matches)
	i := b.rule(b, f, &chain)
	state := &sent{chain: &chain, uncached: f.tokens - int(b.matches.Of(i).Tokens)}
	f.state = state
	b.index.Reserve(&chain, i, 1)
	b.count[i]++
	b.pending[i] += state.uncached
	b.active[i] += f.tokens
	return i
}

func (b *reference) prefilled(_ time.Duration, f *flight) {
	state := f.state.(*sent)
	b.index.Confirm(state.chain, f.replica, 1)
	b.pending[f.replica] -= state.uncached
}

func (b *reference) done(_ time.Duration, f *flight) {
	b.count[f.replica]--
	b.active[f.replica] -= f.tokens
}

// least returns the replica for which cost is the least, among equals one at random.
func (b *reference) least(cost func(i int) float64) int {
	best, least, equals := 0, math.Inf(1), 0
	for i := range b.s.Replicas {
		switch c := cost(i); {
		case c < least:
			best, least, equals = i, c, 1
		case c == least:
			if equals++; b.rnd.IntN(equals) == 0 {
				best = i
			}
		}
	}
	return best
}

func (b *reference) leastRequests(*flight, *prefix.Chain) int {
	return b.least(func(i int) float64 { return float64(b.count[i]) })
}

// session keeps a session where its hash puts it.
func (b *reference) session(f *flight, _ *prefix.Chain) int {
	return int(mix(f.Session, 9) % uint64(b.s.Replicas))
}

// boundedLoads is KubeAI's PrefixHash: consistent hashing of the first 100
// characters of the first user message (not the system prompt), 256 virtual nodes
// each, and on along the ring while a replica has more than 125 % of the mean.
func (b *reference) boundedLoads(f *flight, _ *prefix.Chain) int {
	key := f.Session
	if len(f.Runs) == 1 {
		key = uint64(f.Runs[0].ID)
	}
	total := 0
	for _, n := range b.count {
		total += n
	}
	bound := 1.25 * float64(total+1) / float64(b.s.Replicas)
	if b.ring == nil {
		for i := range b.s.Replicas {
			for v := range 256 {
				b.ring = append(b.ring, node{mix(uint64(i)<<16|uint64(v), 5), i})
			}
		}
		slices.SortFunc(b.ring, func(x, y node) int { return cmp.Compare(x.at, y.at) })
	}
	from, _ := slices.BinarySearchFunc(b.ring, mix(key, 6), func(n node, at uint64) int { return cmp.Compare(n.at, at) })
	for i := range b.ring {
		if n := b.ring[(from+i)%len(b.ring)]; float64(b.count[n.replica]+1) <= bound {
			return n.replica
		}
	}
	return b.ring[from%len(b.ring)].replica
}

// thresholds is the sglang router's cache_aware: when the loads differ by more
// than both thresholds, the least loaded; else who holds the largest share of the
// prompt if it is above the threshold, else the least loaded.
func thresholds(share float64, abs int, rel float64) func(*reference, *flight, *prefix.Chain) int {
	return func(b *reference, f *flight, c *prefix.Chain) int {
		low, high := slices.Min(b.count), slices.Max(b.count)
		if high-low > abs && float64(high) > rel*float64(low) {
			return b.leastRequests(f, c)
		}
		most := int32(0)
		for i := range b.s.Replicas {
			most = max(most, b.matches.Of(i).Tokens)
		}
		if float64(most) <= share*float64(f.tokens) {
			return b.leastRequests(f, c)
		}
		return b.least(func(i int) float64 {
			if b.matches.Of(i).Tokens < most {
				return math.Inf(1)
			}
			return float64(b.count[i])
		})
	}
}

// weights is llm-d's default profile: queue 2, KV cache utilisation 2, prefix 3,
// each scored from 0 to 1; the highest sum, ties at random.
func (b *reference) weights(f *flight, _ *prefix.Chain) int {
	waiting := make([]int, b.s.Replicas)
	for i, e := range b.engines {
		waiting[i] = e.Counters().Waiting
	}
	low, high := slices.Min(waiting), slices.Max(waiting)
	return b.least(func(i int) float64 {
		queue := 1.0
		if high > low {
			queue = float64(high-waiting[i]) / float64(high-low)
		}
		return -(2*queue + 2*(1-b.engines[i].Counters().KVUsage()) + 3*float64(b.matches.Of(i).Tokens)/float64(f.tokens))
	})
}

// blocks is Dynamo's cost: prefill blocks to compute with those pending, and
// blocks of active sequences.
func (b *reference) blocks(f *flight, _ *prefix.Chain) int {
	size := float64(b.s.Engine.BlockSize)
	return b.least(func(i int) float64 {
		prefill := float64(b.pending[i] + f.tokens - int(b.matches.Of(i).Tokens))
		return max(0, prefill)/size + float64(b.active[i])/size
	})
}
