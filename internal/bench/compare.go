package bench

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// Score is one line of a comparison: a figure of a baseline and of a candidate.
type Score struct {
	Name string  `json:"name"`
	Unit string  `json:"unit"`
	Goal string  `json:"goal,omitempty"` // "" is no goal: the line only informs
	A    float64 `json:"baseline"`
	B    float64 `json:"candidate"`
	// Change is of B against A: relative, but for shares the difference. Low and High
	// bound it with 95 % confidence.
	Change float64 `json:"change"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
	Share  bool    `json:"share,omitempty"`     // Change is a difference of shares
	NA     string  `json:"not_known,omitempty"` // why there is no figure
	Pass   bool    `json:"pass"`                // Change meets the goal
	Sure   bool    `json:"sure"`                // and so does all of its interval
}

// The goals that the project set itself: relative changes at most.
const (
	ttftGoal    = -0.20
	computeGoal = -0.30
	startGoal   = -0.40
)

// resamples is how often intervals are drawn: their bounds then move by less than a
// twentieth of their width from seed to seed.
const resamples = 1000

// Compare holds a candidate against a baseline: the scorecard of the five goals,
// then figures without goals. Intervals are bootstrapped from the requests, in
// blocks of neighbours, because requests that queue behind each other are not
// independent. The same seed gives the same intervals.
func Compare(a, b *Result, seed uint64) []Score {
	c := comparison{a, b, rand.New(rand.NewPCG(seed, 7))}
	ttft := func(q float64) statistic {
		return func(s []Sample) (float64, bool) {
			return quantileOf(s, q, func(s *Sample) (float64, bool) { return s.TTFT, s.Failure == "" })
		}
	}
	tpot := func(s []Sample) (float64, bool) {
		return quantileOf(s, .5, func(s *Sample) (float64, bool) { return s.TPOT, s.Failure == "" && s.TPOT > 0 })
	}
	e2e := func(s []Sample) (float64, bool) {
		return quantileOf(s, .95, func(s *Sample) (float64, bool) { return s.E2E, s.Failure == "" })
	}
	return []Score{
		c.relative("TTFT P95", "ms", ttftGoal, ttft(.95)),
		c.compute(),
		c.start(),
		c.memory(),
		c.failures(),
		c.relative("TTFT P50", "ms", 0, ttft(.5)),
		c.relative("TPOT P50", "ms", 0, tpot),
		c.relative("end to end P95", "ms", 0, e2e),
	}
}

type comparison struct {
	a, b *Result
	rnd  *rand.Rand
}

// statistic is a figure of some requests; false if they have none.
type statistic func([]Sample) (float64, bool)

func quantileOf(samples []Sample, q float64, value func(*Sample) (float64, bool)) (float64, bool) {
	var values []float64
	for i := range samples {
		if v, ok := value(&samples[i]); ok {
			values = append(values, v)
		}
	}
	if len(values) == 0 {
		return 0, false
	}
	slices.Sort(values)
	return values[min(len(values)-1, int(q*float64(len(values))))], true
}

// ordered are samples in order of time, so that neighbours are neighbours.
func ordered(samples []Sample) []Sample {
	sorted := slices.Clone(samples)
	slices.SortStableFunc(sorted, func(x, y Sample) int {
		switch {
		case x.At < y.At:
			return -1
		case x.At > y.At:
			return 1
		}
		return 0
	})
	return sorted
}

// blocks draws as many values as there are, in blocks of neighbours.
func blocks[T any](rnd *rand.Rand, from, into []T) []T {
	into = into[:0]
	size := max(1, int(math.Sqrt(float64(len(from)))))
	for len(into) < len(from) {
		at := rnd.IntN(len(from))
		for i := range min(size, len(from)-len(into)) {
			into = append(into, from[(at+i)%len(from)])
		}
	}
	return into
}

// interval is the 95 % interval of drawn changes.
func interval(changes []float64) (low, high float64) {
	slices.Sort(changes)
	n := len(changes)
	return changes[int(.025*float64(n))], changes[min(n-1, int(.975*float64(n)))]
}

// change is B against A.
func change(a, b float64, share bool) (float64, bool) {
	switch {
	case share:
		return b - a, true
	case a == 0:
		return 0, b == 0
	}
	return b/a - 1, true
}

// finish fills in a line from its figures and drawn changes.
func (s *Score) finish(goal float64, changes []float64) {
	var ok bool
	if s.Change, ok = change(s.A, s.B, s.Share); !ok {
		s.NA = "the baseline is 0"
		return
	}
	s.Low, s.High = s.Change, s.Change
	if len(changes) > 0 {
		s.Low, s.High = interval(changes)
	}
	if s.Goal != "" {
		s.Pass, s.Sure = s.Change <= goal, s.High <= goal
	}
}

// relative compares a statistic of requests; a goal of 0 is none.
func (c *comparison) relative(name, unit string, goal float64, f statistic) Score {
	s := Score{Name: name, Unit: unit}
	if goal != 0 {
		s.Goal = fmt.Sprintf("≤ %+.0f %%", 100*goal)
	}
	return c.drawn(s, goal, f)
}

func (c *comparison) drawn(s Score, goal float64, f statistic) Score {
	a, b := ordered(c.a.Samples), ordered(c.b.Samples)
	var okA, okB bool
	if s.A, okA = f(a); okA {
		s.B, okB = f(b)
	}
	if !okA || !okB {
		s.NA = "no request tells it"
		return s
	}
	var changes []float64
	var intoA, intoB []Sample
	for range resamples {
		intoA, intoB = blocks(c.rnd, a, intoA), blocks(c.rnd, b, intoB)
		x, okX := f(intoA)
		y, okY := f(intoB)
		if d, ok := change(x, y, s.Share); ok && okX && okY {
			changes = append(changes, d)
		}
	}
	s.finish(goal, changes)
	return s
}

// compute is the prompt tokens that were computed for a request whose beginning an
// earlier one had; of all requests, if the load did not note which these are.
func (c *comparison) compute() Score {
	s := Score{Name: "compute of repeated prefixes", Unit: "prompt tokens/request", Goal: fmt.Sprintf("≤ %+.0f %%", 100*computeGoal)}
	if !c.a.CachedKnown || !c.b.CachedKnown {
		s.NA = "no usage told cached tokens (vLLM: --enable-prompt-tokens-details)"
		return s
	}
	noted := func(x Sample) bool { return x.Repeated > 0 }
	all := !slices.ContainsFunc(c.a.Samples, noted) || !slices.ContainsFunc(c.b.Samples, noted)
	if all {
		s.Name = "compute of prompts"
	}
	return c.drawn(s, computeGoal, func(samples []Sample) (float64, bool) {
		total, n := 0, 0
		for i := range samples {
			if x := &samples[i]; x.Failure == "" && (all || x.Repeated > 0) {
				total += x.Prompt - x.Cached
				n++
			}
		}
		return float64(total) / float64(max(1, n)), n > 0
	})
}

func (c *comparison) start() Score {
	s := Score{Name: "replica start", Unit: "s", Goal: fmt.Sprintf("≤ %+.0f %%", 100*startGoal)}
	a, b := c.a.ReplicaStart, c.b.ReplicaStart
	if len(a) == 0 || len(b) == 0 {
		s.NA = "not measured: give -replica-start to both runs"
		return s
	}
	s.A, s.B = mean(a), mean(b)
	var changes []float64
	for range resamples {
		if d, ok := change(mean(drawn(c.rnd, a)), mean(drawn(c.rnd, b)), false); ok {
			changes = append(changes, d)
		}
	}
	s.finish(startGoal, changes)
	return s
}

func mean(values []float64) float64 {
	total := 0.0
	for _, v := range values {
		total += v
	}
	return total / float64(len(values))
}

// drawn draws as many values as there are, each by itself.
func drawn(rnd *rand.Rand, from []float64) []float64 {
	into := make([]float64, len(from))
	for i := range into {
		into[i] = from[rnd.IntN(len(from))]
	}
	return into
}

// memory is the peak of GPU memory, if both runs were told, or of the KV cache's
// use.
func (c *comparison) memory() Score {
	s := Score{Name: "peak of GPU memory", Unit: "GiB", Goal: "not higher"}
	if c.a.MemoryPeak > 0 && c.b.MemoryPeak > 0 {
		s.A, s.B = c.a.MemoryPeak, c.b.MemoryPeak
		s.finish(0, nil)
		return s
	}
	s.Name, s.Unit, s.Share = "peak of KV cache in use", "share", true
	if c.a.Engine == nil || c.b.Engine == nil || len(c.a.Engine.Samples) == 0 || len(c.b.Engine.Samples) == 0 {
		s.NA = "not measured: give -engine or -memory-peak to both runs"
		return s
	}
	s.A, s.B = c.a.Engine.KVPeak, c.b.Engine.KVPeak
	peak := func(samples []EngineSample) float64 {
		most := 0.0
		for _, x := range samples {
			most = max(most, x.KV)
		}
		return most
	}
	var changes []float64
	var intoA, intoB []EngineSample
	for range resamples {
		intoA, intoB = blocks(c.rnd, c.a.Engine.Samples, intoA), blocks(c.rnd, c.b.Engine.Samples, intoB)
		changes = append(changes, peak(intoB)-peak(intoA))
	}
	s.finish(0, changes)
	return s
}

func (c *comparison) failures() Score {
	s := Score{Name: "failed requests", Unit: "share", Goal: "not higher", Share: true}
	return c.drawn(s, 0, func(samples []Sample) (float64, bool) {
		n, bad := 0, 0
		for i := range samples {
			if samples[i].Failure == string(Stopped) {
				continue
			}
			n++
			if samples[i].Failure != "" {
				bad++
			}
		}
		return float64(bad) / float64(max(1, n)), n > 0
	})
}
