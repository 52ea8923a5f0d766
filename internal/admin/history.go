package admin

import (
	"context"
	"math"
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

// quantile returns the q-quantile of what came between two readings, in seconds, by
// linear interpolation within a bucket as Prometheus does it; NaN if nothing came.
func quantile(q float64, from, to reading) float64 {
	since := func(i int) float64 {
		if i < len(from.counts) && from.counts[len(from.counts)-1] <= to.counts[len(to.counts)-1] {
			return float64(to.counts[i] - from.counts[i])
		}
		return float64(to.counts[i])
	}
	n := len(to.bounds)
	if n == 0 || since(n) == 0 {
		return math.NaN()
	}
	rank, below, lower := q*since(n), 0.0, 0.0
	for i, upper := range to.bounds {
		if c := since(i); c >= rank {
			return lower + (upper-lower)*(rank-below)/max(1, c-below)
		}
		below, lower = since(i), upper
	}
	return to.bounds[n-1]
}

// curve returns a replica's P95 of the minute before each sample, -1 if nothing came.
func curve(list []sample, id string) []float64 {
	var out []float64
	for i := range list {
		v := quantile(.95, list[max(0, i-window)][id], list[i][id])
		if math.IsNaN(v) {
			v = -1
		}
		out = append(out, v)
	}
	return out
}
