package admin

import (
	"math"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func TestQuantilesOfAWindow(t *testing.T) {
	reg := prometheus.NewRegistry()
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "warmpath_ttft_seconds", Buckets: []float64{.1, .2, .4, .8}}, []string{"replica", "model"})
	reg.MustRegister(h)
	observe := func(n int, v float64, model string) {
		for range n {
			h.WithLabelValues("a:1", model).Observe(v)
		}
	}
	now := func() reading { return read(reg)["a:1"] }
	f := func(what string, q float64, from, to reading, want float64) {
		t.Helper()
		if got := to.since(from).quantile(q); math.Abs(got-want) > 1e-9 && !(math.IsNaN(got) && math.IsNaN(want)) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	f("nothing", .95, reading{}, reading{}, math.NaN())
	observe(50, .05, "m")
	observe(50, .15, "n")
	first := now()
	f("half", .5, reading{}, first, .1)
	f("between", .75, reading{}, first, .15)
	f("nothing since", .5, first, first, math.NaN())
	observe(100, .3, "m")
	f("the window alone", .5, first, now(), .3)
	observe(1000, 5, "m")
	f("beyond the last bucket", .99, first, now(), .8)
	f("the counters began anew", .5, now(), first, .1)
}

// TestTheFleetsQuantilesWhenAReplicaLeaves: the series of one that left go, with more
// in some buckets than what came elsewhere since.
func TestTheFleetsQuantilesWhenAReplicaLeaves(t *testing.T) {
	of := func(fast, slow uint64) reading { // up to 0.1 s and up to 0.8 s
		return reading{bounds: []float64{.1, .8}, counts: []uint64{fast, fast + slow, fast + slow}}
	}
	before := sample{"left": of(100, 0), "stays": of(10, 10)}
	for name, c := range map[string]struct {
		now  sample
		want float64
	}{
		"it is there":            {sample{"left": of(100, 0), "stays": of(10, 30)}, .45},
		"it left":                {sample{"stays": of(10, 30)}, .45},
		"it left, more came":     {sample{"stays": of(10, 210)}, .45},
		"another came":           {sample{"stays": of(10, 10), "new": of(0, 20)}, .45},
		"it came back":           {sample{"left": of(0, 20), "stays": of(10, 10)}, .45},
		"it left, nothing else":  {sample{"stays": of(10, 10)}, math.NaN()},
		"all left":               {sample{}, math.NaN()},
		"what is there is older": {before, math.NaN()},
	} {
		got := fleet(before, c.now).P50
		if got == nil != math.IsNaN(c.want) || got != nil && math.Abs(*got-c.want) > 1e-9 {
			t.Errorf("%s: the median is %v, want %v", name, shown(got), c.want)
		}
	}
}

func shown(v *float64) any {
	if v == nil {
		return "none"
	}
	return *v
}

func TestHistoryIsBounded(t *testing.T) {
	var h history
	for i := range 3 * samples {
		h.take(sample{"a": {prompt: float64(i)}})
	}
	list := h.list(sample{"a": {prompt: -1}})
	if len(list) != samples+1 || list[0]["a"].prompt != 2*samples || list[samples]["a"].prompt != -1 {
		t.Errorf("%d samples, the first is %v", len(list), list[0])
	}
}
