package router

import (
	"time"

	"github.com/warmpath/warmpath/internal/replica"
)

// This file closes the loop where answers do not tell what was cached: by the
// engine's own counters, for all requests of a window together (routing.md C8). What
// is compared is shares of the prompts, not sums: then it does not matter how well
// tokens are estimated, nor that other gateways send their part of the requests to
// the same replica, as long as they route alike.

// A window is long enough for requests that are counted here before they are there,
// or the other way round, not to matter; one without enough to judge by ends at most.
const (
	windowLeast  = 15 * time.Second
	windowMost   = time.Minute
	windowTokens = 50_000 // predicted to be cached
)

// Steps of the capacity believed, by the share of what was predicted that was
// not cached (routing.md C8).
const (
	gapTooMuch = 0.05
	gapLittle  = 0.01
	maxShrink  = 0.3
	growth     = 1.03
)

// window is what was predicted for one replica since a reading of its counters.
type window struct {
	since          time.Time // of the reading, zero before there was one
	prompt, cached float64   // the counters then
	generation     uint16    // of the cache then

	tokens, predicted float64 // of the prompts computed since, and of these believed to be cached
	told, untold      float64 // tokens of prompts whose answers ended since, by whether these told

	gap    float64 // of the last window that could be judged
	judged time.Time
}

// ended takes a request whose answer is over. It may have been computed in an earlier
// window: that answers are long does not mean that they do not tell.
func (w *window) ended(l *Lease, told bool) {
	switch {
	case l.req.NoCache:
	case told:
		w.told += float64(l.tokens)
	default:
		w.untold += float64(l.tokens)
	}
}

// count takes a request whose prefill is over.
func (w *window) count(l *Lease) {
	if !l.req.NoCache {
		w.tokens += float64(l.tokens)
		w.predicted += float64(l.cached)
	}
}

// Counted takes a reading of a replica's counters of prompt tokens, here or by
// another gateway. Where most answers tell what was cached it does nothing: each of
// them corrects more than a window does.
func (r *Router) Counted(rep *replica.Replica, f replica.Facts) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if rep.Gone() {
		return
	}
	w := &r.slot(rep).window
	generation := r.index.Generation(rep.Slot)
	age := f.At.Sub(w.since)
	switch {
	case w.since.IsZero(), generation != w.generation, f.Prompt < w.prompt, f.Cached < w.cached:
	case age < windowLeast, w.predicted < windowTokens && age < windowMost:
		return
	case w.predicted < windowTokens, w.told >= w.untold, f.Prompt == w.prompt, f.Cached == 0: // the engine does not count them, or has no cache
	default:
		w.gap, w.judged = 1-(f.Cached-w.cached)/(f.Prompt-w.prompt)/(w.predicted/w.tokens), f.At
		r.resize(rep.Slot, w.gap)
	}
	*w = window{since: f.At, prompt: f.Prompt, cached: f.Cached, generation: generation, gap: w.gap, judged: w.judged}
}

// resize corrects the capacity that a replica is believed to have.
func (r *Router) resize(slot int, gap float64) {
	switch {
	case gap > gapTooMuch:
		r.index.Resize(slot, 1-min(maxShrink, gap))
	case gap < gapLittle && r.index.Blocks(slot) > r.index.Capacity(slot)*9/10: // it may have room for more
		r.index.Resize(slot, growth)
	}
}

// windowGap returns the gap of the last window that could be judged, if that is not long ago.
func (w *window) windowGap(now time.Time) (gap float64, known bool) {
	return w.gap, !w.judged.IsZero() && now.Sub(w.judged) < 2*windowMost
}
