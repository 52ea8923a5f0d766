package bench

import "fmt"

// LimitsReport is what a sweep over prompt lengths and concurrencies found.
type LimitsReport struct {
	Cells []Cell `json:"cells"`
	Rows  []Row  `json:"rows"`
}

// Cell is one point of the sweep.
type Cell struct {
	Prompt      int           `json:"prompt_tokens"` // of each request
	Output      int           `json:"output_tokens"`
	Concurrency int           `json:"concurrency"`
	OK          int           `json:"ok"`
	Failed      int           `json:"failed"`
	Seconds     float64       `json:"seconds"`
	Throughput  float64       `json:"tokens_per_second"` // prompt and output
	OutputRate  float64       `json:"output_tokens_per_second"`
	TTFT        Distribution  `json:"ttft"`
	TPOT        Distribution  `json:"tpot"`
	Client      Cost          `json:"client"`
	Engine      *EngineReport `json:"engine,omitempty"`
}

// Limit is what kept throughput from growing.
type Limit string

// The limits. Unknown stands for a sweep without the engine's metrics.
const (
	NotReached Limit = "not reached"
	ClientSlow Limit = "client"
	KVCapacity Limit = "KV capacity"
	Batch      Limit = "batch size"
	Compute    Limit = "compute"
	Unknown    Limit = "unknown (no engine metrics)"
)

// Row is what was found for one prompt length.
type Row struct {
	Prompt int `json:"prompt_tokens"`
	// Saturated is the least concurrency whose throughput no higher one beats by more
	// than a tenth, 0 if it still grew.
	Saturated int     `json:"saturated_at"`
	Peak      float64 `json:"peak_tokens_per_second"`
	// Broken is the least concurrency at which TTFT P95 is above what was asked for,
	// 0 if none was.
	Broken int    `json:"ttft_breaks_at"`
	Limit  Limit  `json:"limit"`
	Why    string `json:"why"`
}

// grows is the gain in throughput that counts as growth: less is noise.
const grows = 1.1

// Judge finds, for the cells of one prompt length in order of concurrency, where
// throughput stops growing, where TTFT P95 exceeds most milliseconds, and why.
func Judge(cells []Cell, most float64) Row {
	row := Row{Limit: NotReached}
	if len(cells) == 0 {
		return row
	}
	row.Prompt = cells[0].Prompt
	for _, c := range cells {
		row.Peak = max(row.Peak, c.Throughput)
		if row.Broken == 0 && most > 0 && c.TTFT.Count > 0 && c.TTFT.P95 > most {
			row.Broken = c.Concurrency
		}
	}
	last := cells[len(cells)-1]
	for i, c := range cells[:len(cells)-1] {
		if c.Throughput*grows >= row.Peak {
			row.Saturated = c.Concurrency
			row.Limit, row.Why = name(cells[i+1:])
			return row
		}
	}
	row.Why = fmt.Sprintf("throughput still grew at concurrency %d", last.Concurrency)
	return row
}

// name says what held back the cells beyond the point of saturation.
func name(beyond []Cell) (Limit, string) {
	last := beyond[len(beyond)-1]
	for _, c := range beyond {
		if c.Client.Bottleneck != "" {
			return ClientSlow, fmt.Sprintf("at concurrency %d the client was too slow: %s", c.Concurrency, c.Client.Bottleneck)
		}
	}
	if last.Engine == nil {
		return Unknown, "give -engine to read the engine's metrics"
	}
	for _, c := range beyond {
		if e := c.Engine; e != nil && (e.Preemptions > 0 || e.KVPeak > 0.9 && e.WaitingPeak > 0) {
			return KVCapacity, fmt.Sprintf("at concurrency %d the KV cache was %.0f %% full, %.0f requests waited and %.0f were preempted", c.Concurrency, 100*e.KVPeak, e.WaitingPeak, e.Preemptions)
		}
	}
	// Requests that wait while half the cache is free wait for a place in the batch. Some
	// always wait for the step that runs when they come, so those do not count.
	if e := last.Engine; e.RunningPeak < 0.9*float64(last.Concurrency) && e.WaitingMean >= 1 {
		return Batch, fmt.Sprintf("never more than %.0f of %d requests ran at once, with the KV cache %.0f %% full: --max-num-seqs", e.RunningPeak, last.Concurrency, 100*e.KVPeak)
	}
	return Compute, fmt.Sprintf("%.0f of %d requests ran at once and no queue but the engine's steps held them back", last.Engine.RunningPeak, last.Concurrency)
}
