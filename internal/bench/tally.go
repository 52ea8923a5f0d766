package bench

import (
	"slices"
	"time"
)

// Tally adds answers up. Times are those that the clock showed.
type Tally struct {
	TTFT []time.Duration // of each request that succeeded, from when it was due
	TPOT []time.Duration // of those with more than one token and usage
	Late []time.Duration // of every request that was sent

	Prompt, Cached, Output int  // tokens, of those that succeeded
	CachedKnown            bool // some answer said how many were cached, maybe none

	Replicas map[string]int // by name: requests that succeeded, 0 of one that only failed
	Failures map[Failure]int
	Dropped  int   // turns that were not sent because one before them failed
	Err      error // of the first failure
}

// Add counts an answer; dropped is as in Loop.Done.
func (t *Tally) Add(a Answer, dropped int) {
	t.Late = append(t.Late, a.Late)
	t.count(a.Replica, a.Failure == None)
	if a.Failure != None {
		if t.Failures == nil {
			t.Failures = map[Failure]int{}
		}
		t.Failures[a.Failure]++
		t.Dropped += dropped
		if t.Err == nil {
			t.Err = a.Err
		}
		return
	}
	t.TTFT = append(t.TTFT, a.TTFT())
	if tpot, ok := a.TPOT(); ok {
		t.TPOT = append(t.TPOT, tpot)
	}
	t.Prompt += a.Usage.Prompt
	t.Cached += a.Usage.Cached
	t.Output += a.Usage.Completion
	t.CachedKnown = t.CachedKnown || a.Usage.CachedKnown
}

// count notes which replica answered, if that is known.
func (t *Tally) count(replica string, succeeded bool) {
	if replica == "" {
		return
	}
	if t.Replicas == nil {
		t.Replicas = map[string]int{}
	}
	n := t.Replicas[replica]
	if succeeded {
		n++
	}
	t.Replicas[replica] = n
}

// Failed returns how many requests failed.
func (t *Tally) Failed() int {
	n := 0
	for _, k := range t.Failures {
		n += k
	}
	return n
}

// LateP99 is what one request in a hundred was sent later than.
func (t *Tally) LateP99() time.Duration { return Quantile(t.Late, .99) }

// Quantile returns the q-quantile of times in any order, 0 of none.
func Quantile(times []time.Duration, q float64) time.Duration {
	if len(times) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(times))
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}
