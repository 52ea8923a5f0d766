package bench

import (
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Distribution is a distribution of times in milliseconds. Count says how many
// there were: figures of none are zero and mean nothing.
type Distribution struct {
	Count int64   `json:"count"`
	Mean  float64 `json:"mean"`
	Min   float64 `json:"min"`
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P95   float64 `json:"p95"`
	P99   float64 `json:"p99"`
	P999  float64 `json:"p99_9"`
	Max   float64 `json:"max"`
	// HDR is the histogram in HdrHistogram's compressed form V2, in microseconds, for
	// every other quantile and for adding up.
	HDR string `json:"hdr,omitempty"`
}

// Times are counted from a microsecond to a day, to three digits: a quantile is
// within a thousandth of the true one.
const (
	leastTime = 1
	mostTime  = int64(24 * time.Hour / time.Microsecond)
	digits    = 3
)

// times collects a distribution in little memory.
type times struct{ h *hdrhistogram.Histogram }

func (t *times) add(d time.Duration) {
	if t.h == nil {
		t.h = hdrhistogram.New(leastTime, mostTime, digits)
	}
	us := min(max(int64((d+time.Microsecond/2)/time.Microsecond), 0), mostTime)
	if err := t.h.RecordValue(us); err != nil {
		panic("BUG: a time within the bounds must be countable: " + err.Error())
	}
}

// distribution reduces what was collected.
func (t *times) distribution() Distribution {
	if t.h == nil {
		return Distribution{}
	}
	ms := func(us int64) float64 { return float64(us) / 1000 }
	at := func(percent float64) float64 { return ms(t.h.ValueAtPercentile(percent)) }
	d := Distribution{
		Count: t.h.TotalCount(), Mean: t.h.Mean() / 1000, Min: ms(t.h.Min()), Max: ms(t.h.Max()),
		P50: at(50), P90: at(90), P95: at(95), P99: at(99), P999: at(99.9),
	}
	packed, err := t.h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	if err != nil {
		panic("BUG: a histogram must be representable: " + err.Error())
	}
	d.HDR = string(packed)
	return d
}

// Quantiles reads the given percentiles, in milliseconds, from the histogram.
func (d Distribution) Quantiles(percents ...float64) ([]float64, error) {
	h, err := hdrhistogram.Decode([]byte(d.HDR))
	if err != nil {
		return nil, fmt.Errorf("histogram of %d times: %w", d.Count, err)
	}
	out := make([]float64, len(percents))
	for i, p := range percents {
		out[i] = float64(h.ValueAtPercentile(p)) / 1000
	}
	return out, nil
}
