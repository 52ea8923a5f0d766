package lab

import (
	"slices"
	"time"
)

// Result is what a simulation showed.
type Result struct {
	Policy   string
	TTFT     []time.Duration // of each request, in the order of ending
	Sent     []time.Duration // when each of these was sent
	TPOT     []time.Duration // of those with more than one token
	Misses   []time.Duration // between the expected first token and the real one, of those that were expected
	Prompt   int             // tokens of all prompts
	Cached   int             // of these, found in caches
	Computed uint64          // prompt tokens that engines computed, preempted ones again
	Output   int
	Load     []int // requests by replica
	Arrivals []Arrival
	Span     time.Duration
}

func (r *Result) add(f *flight, now time.Duration) {
	r.TTFT = append(r.TTFT, f.first-f.sent)
	r.Sent = append(r.Sent, f.sent)
	if n := f.Answer.Tokens; n > 1 {
		r.TPOT = append(r.TPOT, (now-f.first)/time.Duration(n-1))
	}
	if f.expects > 0 {
		r.Misses = append(r.Misses, (f.first - f.sent - f.expects).Abs())
	}
	r.Prompt += f.tokens
	r.Cached += f.cached
	r.Output += f.Answer.Tokens
}

// Arrival says when a request came and which replica it went to.
type Arrival struct {
	At      time.Duration
	Replica int
}

// Summary is a result in numbers; times are in seconds.
type Summary struct {
	Policy     string  `json:"policy"`
	Requests   int     `json:"requests"`
	Mean       float64 `json:"ttft_mean"`
	P50        float64 `json:"ttft_p50"`
	P95        float64 `json:"ttft_p95"`
	P99        float64 `json:"ttft_p99"`
	Hit        float64 `json:"hit"`        // share of prompt tokens that were cached
	Recomputed uint64  `json:"recomputed"` // prompt tokens computed
	TPOT95     float64 `json:"tpot_p95"`
	Imbalance  float64 `json:"imbalance"`  // most requests of a replica over the mean
	Throughput float64 `json:"throughput"` // output tokens a second
	Slow       float64 `json:"slow"`       // share of requests over the SLO
}

// Summarize reduces a result; slo is the time to first token to be kept.
func (r *Result) Summarize(slo time.Duration) Summary {
	s := Summary{Policy: r.Policy, Requests: len(r.TTFT), Recomputed: r.Computed}
	if len(r.TTFT) == 0 {
		return s
	}
	sorted := slices.Sorted(slices.Values(r.TTFT))
	total, slow := time.Duration(0), 0
	for _, t := range sorted {
		total += t
		if t > slo {
			slow++
		}
	}
	n := float64(len(sorted))
	s.Mean, s.Slow = total.Seconds()/n, float64(slow)/n
	s.P50, s.P95, s.P99 = quantile(sorted, .5), quantile(sorted, .95), quantile(sorted, .99)
	s.TPOT95 = quantile(slices.Sorted(slices.Values(r.TPOT)), .95)
	s.Hit = float64(r.Cached) / float64(r.Prompt)
	s.Throughput = float64(r.Output) / r.Span.Seconds()
	s.Imbalance = float64(slices.Max(r.Load)) * float64(len(r.Load)) / n
	return s
}

func quantile(sorted []time.Duration, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))].Seconds()
}
