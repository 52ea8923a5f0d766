package admin

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// This file remembers the last minutes of TTFT, so that the page has quantiles of
// now and a chart without a Prometheus beside the gateway.

const (
	sampleEvery = 5 * time.Second
	samples     = 120 // ten minutes
	window      = 12  // samples that a quantile is of: a minute
)

// history is the samples of the last minutes.
type history struct {
	mu   sync.Mutex
	ring []sample // the latest last
}

// sample is what a replica's counters stood at.
type sample map[string]reading

// reading is one replica's: TTFT's cumulative buckets over all models, and tokens.
type reading struct {
	bounds                    []float64
	counts                    []uint64
	prompt, predicted, cached float64
	gap                       map[string]float64 // by reason
}

// Run samples until ctx ends.
func (a *Admin) Run(ctx context.Context) {
	ticker := time.NewTicker(sampleEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			a.history.take(read(a.Gatherer))
		}
	}
}

func (h *history) take(s sample) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.ring) == samples {
		copy(h.ring, h.ring[1:])
		h.ring = h.ring[:samples-1]
	}
	h.ring = append(h.ring, s)
}

// list returns the samples with one of now behind them.
func (h *history) list(now sample) []sample {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append(append(make([]sample, 0, len(h.ring)+1), h.ring...), now)
}

// read reads what the page needs of the metrics.
func read(g prometheus.Gatherer) sample {
	s := sample{}
	families, err := g.Gather()
	if err != nil {
		return s // /metrics tells what is wrong
	}
	for _, f := range families {
		for _, m := range f.Metric {
			id := label(m, "replica")
			if id == "" {
				continue
			}
			r := s[id]
			switch f.GetName() {
			case "warmpath_ttft_seconds":
				r.add(m.GetHistogram())
			case "warmpath_prompt_tokens_total":
				r.prompt += m.GetCounter().GetValue()
			case "warmpath_predicted_tokens_total":
				r.predicted += m.GetCounter().GetValue()
			case "warmpath_cached_tokens_total":
				r.cached += m.GetCounter().GetValue()
			case "warmpath_gap_tokens_total":
				if r.gap == nil {
					r.gap = map[string]float64{}
				}
				r.gap[label(m, "reason")] += m.GetCounter().GetValue()
			default:
				continue
			}
			s[id] = r
		}
	}
	return s
}

func label(m *dto.Metric, name string) string {
	for _, l := range m.Label {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

// add adds a model's histogram.
func (r *reading) add(h *dto.Histogram) {
	if r.counts == nil {
		r.counts = make([]uint64, len(h.Bucket)+1)
		for _, b := range h.Bucket {
			r.bounds = append(r.bounds, b.GetUpperBound())
		}
	}
	for i, b := range h.Bucket {
		r.counts[i] += b.GetCumulativeCount()
	}
	r.counts[len(h.Bucket)] += h.GetSampleCount()
}

// total returns all replicas' readings as one.
func (s sample) total() (t reading) {
	t.gap = map[string]float64{}
	for _, r := range s {
		if t.counts == nil && r.counts != nil {
			t.bounds, t.counts = r.bounds, make([]uint64, len(r.counts))
		}
		for i, n := range r.counts {
			t.counts[i] += n
		}
		t.prompt, t.predicted, t.cached = t.prompt+r.prompt, t.predicted+r.predicted, t.cached+r.cached
		for reason, n := range r.gap {
			t.gap[reason] += n
		}
	}
	return t
}

// since returns the TTFT that came after an earlier sample. It is taken for each replica
// by itself: one that has left takes its counts away, and one that is back begins anew.
func (s sample) since(earlier sample) sample {
	came := sample{}
	for id, r := range s {
		came[id] = r.since(earlier[id])
	}
	return came
}

// since returns the TTFT that came after an earlier reading of the same replica.
func (r reading) since(earlier reading) reading {
	came := reading{bounds: r.bounds, counts: slices.Clone(r.counts)}
	if n := len(earlier.counts); n == 0 || n != len(r.counts) || earlier.counts[n-1] > r.counts[n-1] {
		return came
	}
	for i, n := range earlier.counts {
		came.counts[i] -= min(n, came.counts[i])
	}
	return came
}

// quantile returns the q-quantile of a reading's TTFT, in seconds, by linear
// interpolation within a bucket as Prometheus does it; NaN if nothing came.
func (r reading) quantile(q float64) float64 {
	n := len(r.bounds)
	if n == 0 || r.counts[n] == 0 {
		return math.NaN()
	}
	rank, below, lower := q*float64(r.counts[n]), 0.0, 0.0
	for i, upper := range r.bounds {
		c := float64(r.counts[i])
		if c >= rank {
			return lower + (upper-lower)*(rank-below)/max(1, c-below)
		}
		below, lower = c, upper
	}
	return r.bounds[n-1]
}

// curve returns a replica's P95 of the minute before each sample, -1 if nothing came.
func curve(list []sample, id string) []float64 {
	var out []float64
	for i := range list {
		v := list[i][id].since(list[max(0, i-window)][id]).quantile(.95)
		if math.IsNaN(v) {
			v = -1
		}
		out = append(out, v)
	}
	return out
}
