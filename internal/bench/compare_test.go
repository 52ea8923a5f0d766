package bench

import (
	"math"
	"math/rand/v2"
	"testing"
)

// drawnResult is a run with exponential times to first token of a mean.
func drawnResult(rnd *rand.Rand, mean float64, cached, failed int) *Result {
	r := &Result{CachedKnown: true}
	for i := range 300 {
		s := Sample{At: float64(i), TTFT: mean * rnd.ExpFloat64(), TPOT: 10, E2E: 100, Prompt: 1000, Cached: cached, Repeated: 500}
		if i%10 == 0 {
			s.Cached, s.Repeated = 0, 0 // begins a prefix
		}
		if i < failed {
			s = Sample{At: float64(i), Failure: "status 503"}
		}
		r.Samples = append(r.Samples, s)
	}
	return r
}

func TestTheScorecard(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 1))
	a, b := drawnResult(rnd, 100, 200, 0), drawnResult(rnd, 50, 600, 0)
	a.Engine = &EngineReport{KVPeak: .8, Samples: []EngineSample{{KV: .8}, {KV: .7}}}
	b.Engine = &EngineReport{KVPeak: .7, Samples: []EngineSample{{KV: .7}, {KV: .6}}}
	a.ReplicaStart, b.ReplicaStart = []float64{100, 102, 98}, []float64{50, 51}
	for i, want := range []struct {
		name   string
		change float64
		slack  float64
	}{{"TTFT P95", -.5, .2}, {"compute of repeated prefixes", -.5, 1e-9}, {"replica start", -.495, 1e-9}, {"peak of KV cache in use", -.1, 1e-9}, {"failed requests", 0, 0}} {
		s := Compare(a, b, 1)[i]
		if s.Name != want.name || math.Abs(s.Change-want.change) > want.slack || !s.Pass || s.NA != "" || s.Low > s.Change || s.High < s.Change {
			t.Errorf("%+v, want %v", s, want)
		}
	}
	for i, s := range Compare(b, a, 1)[:4] {
		if s.Pass || s.Sure {
			t.Errorf("%d: the worse one passes: %+v", i, s)
		}
	}
	worse := drawnResult(rnd, 50, 600, 15)
	if s := Compare(a, worse, 1)[4]; s.Pass || math.Abs(s.Change-.05) > 1e-9 || s.High < .05 {
		t.Errorf("failures: %+v", s)
	}
}

func TestWhatWasNotMeasuredDoesNotPass(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 1))
	a, b := drawnResult(rnd, 100, 0, 0), drawnResult(rnd, 100, 0, 300)
	a.CachedKnown = false
	for i, s := range Compare(a, b, 1)[:4] {
		if s.Pass || s.NA == "" {
			t.Errorf("%d: %+v", i, s)
		}
	}
}

// TestIntervalsCoverTheTruth draws pairs of equal runs: the interval of their change
// must hold no change nineteen times of twenty.
func TestIntervalsCoverTheTruth(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 3))
	const pairs = 20
	covered := 0
	for i := range pairs {
		a, b := drawnResult(rnd, 100, 0, 0), drawnResult(rnd, 100, 0, 0)
		a.Samples, b.Samples = a.Samples[:100], b.Samples[:100]
		c := comparison{a, b, rand.New(rand.NewPCG(uint64(i), 7))}
		s := c.relative("P50", "ms", 0, func(s []Sample) (float64, bool) {
			return quantileOf(s, .5, func(s *Sample) (float64, bool) { return s.TTFT, true })
		})
		if s.Low <= 0 && s.High >= 0 {
			covered++
		}
	}
	if covered < pairs*3/4 {
		t.Errorf("%d of %d intervals hold the truth", covered, pairs)
	}
}

func TestTheLimitIsNamed(t *testing.T) {
	cell := func(users int, rate, ttft float64, e *EngineReport) Cell {
		return Cell{Prompt: 1000, Concurrency: users, Throughput: rate, TTFT: Distribution{Count: 9, P95: ttft}, Engine: e}
	}
	calm := &EngineReport{KVPeak: .2, RunningPeak: 16}
	slow := cell(16, 105, 10, calm)
	slow.Client.Bottleneck = "too slow"
	for name, c := range map[string]struct {
		cells []Cell
		want  Row
	}{
		"grows":   {[]Cell{cell(1, 10, 1, calm), cell(8, 80, 2, calm)}, Row{Limit: NotReached}},
		"compute": {[]Cell{cell(1, 10, 1, calm), cell(8, 100, 500, calm), cell(16, 105, 900, calm)}, Row{Limit: Compute, Saturated: 8, Broken: 8}},
		"KV":      {[]Cell{cell(8, 100, 1, calm), cell(16, 105, 900, &EngineReport{KVPeak: .99, WaitingPeak: 7, RunningPeak: 9})}, Row{Limit: KVCapacity, Saturated: 8, Broken: 16}},
		"preempt": {[]Cell{cell(8, 100, 1, calm), cell(16, 60, 1, &EngineReport{KVPeak: .8, Preemptions: 3, RunningPeak: 16})}, Row{Limit: KVCapacity, Saturated: 8}},
		"batch":   {[]Cell{cell(8, 100, 1, calm), cell(16, 101, 1, &EngineReport{KVPeak: .2, WaitingPeak: 8, WaitingMean: 7, RunningPeak: 8})}, Row{Limit: Batch, Saturated: 8}},
		"client":  {[]Cell{cell(8, 100, 1, calm), slow}, Row{Limit: ClientSlow, Saturated: 8}},
		"blind":   {[]Cell{cell(8, 100, 1, nil), cell(16, 101, 1, nil)}, Row{Limit: Unknown, Saturated: 8}},
		"nothing": {nil, Row{Limit: NotReached}},
	} {
		got := Judge(c.cells, 400)
		if got.Limit != c.want.Limit || got.Saturated != c.want.Saturated || got.Broken != c.want.Broken || len(c.cells) > 0 && got.Why == "" {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
