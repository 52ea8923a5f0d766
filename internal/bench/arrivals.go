package bench

import (
	"math/rand/v2"
	"time"
)

// Arrivals returns the times after the start at which requests are due, one after
// another.
type Arrivals func() time.Duration

// Constant has requests come at a rate a second, evenly.
func Constant(rate float64) Arrivals {
	n := 0
	return func() time.Duration {
		n++
		return seconds(float64(n-1) / rate)
	}
}

// Poisson has requests come at a mean rate a second, independently of each other,
// as those of many users do.
func Poisson(rate float64, rnd *rand.Rand) Arrivals {
	at := 0.0
	return func() time.Duration {
		at += rnd.ExpFloat64() / rate
		return seconds(at)
	}
}

// Bursts has requests come at a mean rate a second, size of them at once.
func Bursts(rate float64, size int) Arrivals {
	n := 0
	return func() time.Duration {
		n++
		return seconds(float64((n-1)/size*size) / rate)
	}
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
