package router

import (
	"errors"
	"fmt"
	"math"
	"math/bits"

	"github.com/cespare/xxhash/v2"

	"github.com/warmpath/warmpath/internal/prefix"
)

// This file is the decision: what a request is expected to cost on each replica,
// and which replica it goes to.

// Candidate is a replica that could take a request, as a policy sees it.
type Candidate struct {
	Hash     uint64  // of the replica's name, the same in every gateway
	Wait     float64 // seconds until the replica would begin to prefill the request
	Work     float64 // seconds that it would then prefill
	Cached   int     // prompt tokens that it is believed to hold
	InFlight int     // requests that it generates answers to, or is about to
	Pace     float64 // its time for a unit of work, 1 being the reference
	Penalty  float64 // seconds added for failures a moment ago
	Busy     float64 // InFlight averaged over the last seconds
	// Evicted is the work that it would take to compute again what the request would
	// push out of the cache, weighed by how much sooner that is likely to be needed
	// than what it would push out elsewhere.
	Evicted float64
	age     uint64 // of what it would push out first; for Evicted
	// Missing is the part of Work that is spent on a beginning which many prompts
	// share and this replica does not hold.
	Missing float64
	// Total is what it costs altogether, in seconds; [Fleet.Price] leaves it.
	Total float64
	// Mine is true on this gateway's part of the replicas, if others share them and
	// the request has no history: among equals it takes these.
	Mine bool
}

// Fleet is what a policy sees of all candidates together.
type Fleet struct {
	Load     float64     // seconds of prefill reserved per second and ready replica
	MinWait  float64     // the least Wait of any candidate
	Slack    float64     // seconds within which costs count as equal
	Home     prefix.Hash // tells sessions apart
	Sequence uint64      // of the decision, counting up
	Random   uint64
	Held     float64 // Busy of the replicas that hold the shared beginning, on average
	HeldWait float64 // the least Wait of any of them
	Branches int     // how many ways the shared beginning goes on; 0 if there is none
	// DecodeTokens is how many tokens of a neighbour's answer a unit of waiting is
	// weighed against; see [Config.DecodeTokens].
	DecodeTokens float64

	// Of [Fleet.Price].
	Weight float64 // on the candidates' Work and Evicted
	Least  float64 // the least Total of any candidate
}

// Reason says why a candidate was chosen.
type Reason uint8

// The reasons, in the words that metrics and headers use.
const (
	Cost      Reason = iota // it costs the least by more than the slack
	Cached                  // among equals, it holds the longest prefix
	Home                    // among equals with as long a prefix, the session hashes to it
	Part                    // among equals with as long a prefix, it is of this gateway's part
	Only                    // there was no other
	Session                 // the session is there
	LeastWait               // it has the least to do
	Turn                    // it was its turn
	Chance                  // at random
	reasons                 // how many there are
)

// String returns the reason's word.
func (r Reason) String() string {
	return [...]string{"cost", "cached", "home", "part", "only", "session", "least_wait", "turn", "chance"}[r]
}

// Reasons returns every reason, for metrics that are made in advance.
func Reasons() []Reason {
	all := make([]Reason, reasons)
	for i := range all {
		all[i] = Reason(i)
	}
	return all
}

// Policy chooses among candidates, of which there is at least one and which have their
// price. It is pure: it has no clock, does no I/O and takes no locks.
type Policy interface {
	Choose(f Fleet, c []Candidate) (index int, why Reason)
}

// The policies by name.
const (
	PrefixPolicy      = "prefix"
	LeastTokensPolicy = "least-tokens"
	RoundRobinPolicy  = "round-robin"
	RandomPolicy      = "random"
)

// Policies lists the names that [PolicyByName] knows.
func Policies() []string {
	return []string{PrefixPolicy, LeastTokensPolicy, RoundRobinPolicy, RandomPolicy}
}

var errPolicy = errors.New("no such policy")

// PolicyByName returns the policy of that name.
func PolicyByName(name string) (Policy, error) {
	switch name {
	case PrefixPolicy:
		return byPrefix{}, nil
	case LeastTokensPolicy:
		return leastTokens{}, nil
	case RoundRobinPolicy:
		return roundRobin{}, nil
	case RandomPolicy:
		return random{}, nil
	}
	return nil, fmt.Errorf("%w: %q; there are %v", errPolicy, name, Policies())
}

// PolicyName returns the name of a policy.
func PolicyName(p Policy) string {
	switch p.(type) {
	case byPrefix:
		return PrefixPolicy
	case leastTokens:
		return LeastTokensPolicy
	case roundRobin:
		return RoundRobinPolicy
	case random:
		return RandomPolicy
	}
	return ""
}

// byPrefix sends a request where it costs the fleet the least (routing.md §2.2).
type byPrefix struct{}

// The constants of the cost. Sweeps over five workloads and three loads chose
// them (routing.md §0.3, §2.2).
const (
	loadFull   = 0.4  // the fleet's load from which own work weighs its most
	loadWeight = 3    // what a loaded fleet adds to that weight
	waitUnit   = 0.2  // seconds of least wait that add the weight once more
	maxWeight  = 16   // no matter how congested
	decodeTime = 5e-5 // seconds that one more sequence adds to a step, at pace 1
)

// weight is how much heavier the request's own work counts than its wait. Own
// work delays everyone who comes after, and the more so the fuller the fleet is:
// routing by wait + work alone is selfish and loses on many shared prompts.
func (f *Fleet) weight() float64 {
	return min(maxWeight, (1+loadWeight*min(1, f.Load/loadFull))*(1+f.MinWait/waitUnit))
}

// Price leaves what each candidate costs in it, and the weight and the least in f.
func (f *Fleet) Price(candidates []Candidate) {
	f.Weight = f.weight()
	least := math.Inf(1)
	for i := range candidates {
		c := &candidates[i]
		c.Total = c.Wait + f.Weight*(c.Work+c.Evicted) - f.credit(c) + f.sequences(c.Pace, float64(c.InFlight)) + c.Penalty
		least = min(least, c.Total)
	}
	f.Least = least
}

// sequences is what n answers under way at a replica cost those who share its steps.
func (f *Fleet) sequences(pace, n float64) float64 {
	return f.DecodeTokens * decodeTime * pace * n
}

// The constants of the credit. The lab chose them: with copyGain 1 sessions under
// few system prompts stay on the first replicas that computed these, with 8 many
// shared prompts are copied so often that caches lose more than queues gain;
// copyWait from 0.02 to 0.2 is level.
const (
	copyGain = 3
	copyWait = 0.1 // of each second that the holders' queues are longer
	maxUses  = 256 // that a copy is reckoned to have
)

// credit is what the work on a shared beginning pays back. A system prompt that
// all sessions have makes its first replica the cheapest for every one of them,
// and the others stay idle. Computing it once more costs once, and lets all the
// later sessions choose; that is worth what the holders are busier than this
// replica, and their queues longer, each time the copy will be used. It never pays
// more than it costs.
func (f *Fleet) credit(c *Candidate) float64 {
	if c.Missing == 0 || f.Branches == 0 {
		return 0
	}
	each := copyGain*f.sequences(c.Pace, max(0, f.Held-c.Busy)) + copyWait*max(0, f.HeldWait-c.Wait)
	return min(f.Weight*c.Missing, float64(min(f.Branches, maxUses))*each)
}

// Choose takes the cheapest. Costs within the slack are equal; among those it
// takes the longest cached prefix, then its own part of the replicas, so that
// gateways that know of each other late do not all take the same, then the replica
// that the session's hash ranks highest, so that those that know the same agree.
func (byPrefix) Choose(f Fleet, c []Candidate) (int, Reason) {
	best, rank, why := -1, uint64(0), Cost
	for i := range c {
		if c[i].Total > f.Least+f.Slack {
			continue
		}
		r := rendezvous(f.Home, c[i].Hash)
		switch {
		case best < 0:
		case c[i].Cached > c[best].Cached:
			why = Cached
		case c[i].Cached < c[best].Cached:
			why = Cached
			continue
		case c[i].Mine != c[best].Mine:
			if why != Cached {
				why = Part
			}
			if c[best].Mine {
				continue
			}
		case r > rank || r == rank && c[i].Hash > c[best].Hash:
			if why == Cost {
				why = Home
			}
		default:
			if why == Cost {
				why = Home
			}
			continue
		}
		best, rank = i, r
	}
	return best, why
}

// rendezvous ranks replicas for a key: each key has its own order, and a replica
// that comes or goes moves only the keys that it is first for.
func rendezvous(key prefix.Hash, replica uint64) uint64 {
	h := uint64(key) ^ bits.RotateLeft64(replica, 31)
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd // MurmurHash3's finaliser
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// leastTokens sends a request where the fewest uncached tokens are pending, in
// seconds of that replica's own pace.
type leastTokens struct{}

// Choose takes the least busy, among equals one at random.
func (leastTokens) Choose(f Fleet, c []Candidate) (int, Reason) {
	best := 0
	for i := range c {
		a, b := c[i].Wait+c[i].Penalty, c[best].Wait+c[best].Penalty
		if a < b || a == b && (c[i].InFlight < c[best].InFlight ||
			c[i].InFlight == c[best].InFlight && rendezvous(prefix.Hash(f.Random), c[i].Hash) > rendezvous(prefix.Hash(f.Random), c[best].Hash)) {
			best = i
		}
	}
	return best, LeastWait
}

// roundRobin takes the replicas in turn.
type roundRobin struct{}

// Choose takes the next.
func (roundRobin) Choose(f Fleet, c []Candidate) (int, Reason) {
	return int(f.Sequence % uint64(len(c))), Turn
}

// random takes any replica.
type random struct{}

// Choose takes one.
func (random) Choose(f Fleet, c []Candidate) (int, Reason) {
	return int(f.Random % uint64(len(c))), Chance
}

// SessionKey is the identity by which a session is remembered: what names it (a
// header, user, a response's id) within a model.
func SessionKey(model, kind, name string) prefix.Hash {
	d := xxhash.New()
	for _, s := range [...]string{model, kind, name} {
		_, _ = d.WriteString(s)
		_, _ = d.WriteString("\x00")
	}
	return prefix.Hash(d.Sum64())
}
