package router

import (
	"fmt"
	"math"
	"time"
)

// OverloadError is returned when a request would have to wait too long wherever it
// went. Nothing is queued in the gateway: whoever waits for an answer for half a
// minute is better told so at once.
type OverloadError struct {
	Wait time.Duration // the shortest that is predicted
	Max  time.Duration // that is allowed
}

// Error says how long the wait would be.
func (e *OverloadError) Error() string {
	return fmt.Sprintf("all replicas are busy: the shortest wait would be %v, and max_wait allows %v", e.Wait.Round(time.Second), e.Max)
}

// RetryAfter returns when the wait will be short enough, if nothing is added.
func (e *OverloadError) RetryAfter() time.Duration { return max(time.Second, e.Wait-e.Max) }

// unsampledPace is more than the fastest engines are above the reference pace.
const unsampledPace = 10

// overloaded returns an error if the wait is too long on every replica of r.chosen,
// as assess found it, of which shortest is the least. What was taken once is not refused
// when it is tried again. The work that is pending bounds the wait: an old request that
// is stuck is no queue. A replica whose pace nothing has shown yet may be unsampledPace
// times as fast as is assumed; answers that are not streamed never show it.
func (r *Router) overloaded(req *Request, shortest float64) error {
	if r.cfg.MaxWait == 0 || len(req.Tried) > 0 || seconds(shortest) <= r.cfg.MaxWait {
		return nil
	}
	least := math.Inf(1)
	for i, s := range r.chosen {
		wait := min(r.candidates[i].Wait, s.sum)
		if s.samples == 0 {
			wait /= unsampledPace
		}
		least = min(least, wait)
	}
	if wait := seconds(least); wait > r.cfg.MaxWait {
		return &OverloadError{Wait: wait, Max: r.cfg.MaxWait}
	}
	return nil
}
