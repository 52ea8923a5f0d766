package plot

import "math"

// axis is the range of an axis and the values that are written at it.
type axis struct {
	low, high float64
	log       bool
	ticks     []float64
}

// has reports whether the axis has a place for the value.
func (a *axis) has(v float64) bool {
	return !math.IsNaN(v) && !math.IsInf(v, 0) && (!a.log || v > 0)
}

// place is where a value is, 0 being the low end and 1 the high one.
func (a *axis) place(v float64) float64 {
	if a.log {
		return math.Log(v/a.low) / math.Log(a.high/a.low)
	}
	return (v - a.low) / (a.high - a.low)
}

// axis makes the panel's Y axis from its values.
func (p *Panel) axis() *axis {
	a := &axis{low: math.Inf(1), high: math.Inf(-1), log: p.Log}
	for _, values := range p.Values {
		for _, v := range values {
			if a.has(v) {
				a.low, a.high = min(a.low, v), max(a.high, v)
			}
		}
	}
	if a.low > a.high { // no value at all
		a.low, a.high = 1, 1
	}
	if a.log {
		a.logarithmic()
	} else {
		a.linear(p.Share)
	}
	return a
}

// fewTicks is how many values an axis should have at least to be read.
const fewTicks = 4

// logarithmic widens the range to ticks at 1, 2 and 5 times powers of ten, or at the
// powers alone where these are many.
func (a *axis) logarithmic() {
	steps := []float64{1, 2, 5}
	if math.Log10(a.high/a.low) > fewTicks-1 {
		steps = []float64{1}
	}
	for e := math.Floor(math.Log10(a.low)); ; e++ {
		for _, s := range steps {
			t := s * math.Pow(10, e)
			if t <= a.low*(1+1e-9) {
				a.ticks = a.ticks[:0]
			}
			a.ticks = append(a.ticks, t)
			if t >= a.high*(1-1e-9) && len(a.ticks) > 1 {
				a.low, a.high = a.ticks[0], t
				return
			}
		}
	}
}

// linear widens the range to round numbers.
func (a *axis) linear(share bool) {
	if a.high-a.low < 0.05 { // what does not differ must not look as if it did
		a.low, a.high = a.low-0.05, a.high+0.05
		if a.low < 0 && a.low >= -0.05 {
			a.low = 0
		}
		if share {
			a.high = min(a.high, 1)
		}
	}
	step := math.Pow(10, math.Floor(math.Log10((a.high-a.low)/fewTicks)))
	for _, s := range []float64{5, 2} {
		if (a.high-a.low)/(step*s) >= fewTicks-1 {
			step *= s
			break
		}
	}
	first, last := math.Floor(a.low/step+1e-9), math.Ceil(a.high/step-1e-9)
	for i := first; i <= last; i++ {
		a.ticks = append(a.ticks, i*step)
	}
	a.low, a.high = first*step, last*step
}
