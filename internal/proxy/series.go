package proxy

import (
	"context"
	"time"

	"github.com/warmpath/warmpath/internal/replica"
)

// This file ends the series of replicas that have left: in a fleet that scales, each
// address is a new one.

const (
	// keepSeries is how long the series of a replica that has left are kept: long
	// enough for every server that scrapes to have seen their last values.
	keepSeries = 15 * time.Minute
	sweepEvery = time.Minute
)

// sweepSeries forgets replicas that have left, until ctx ends.
func (p *Proxy) sweepSeries(ctx context.Context) {
	ticker := time.NewTicker(sweepEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			p.tables.sweep(p.pool.Set().Replicas, now)
		}
	}
}

// sweep forgets the replicas that have been out of the set for keepSeries.
func (t *tables) sweep(current []*replica.Replica, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	here, ids := map[int]bool{}, map[string]bool{}
	for _, r := range current {
		here[r.Slot], ids[r.ID] = true, true
	}
	for slot, r := range t.replicas {
		since, missed := t.left[slot]
		switch {
		case r == nil:
		case here[slot]:
			delete(t.left, slot)
		case !missed:
			t.left[slot] = now
		case now.Sub(since) >= keepSeries:
			delete(t.left, slot)
			t.replicas[slot] = nil
			t.targets.set(slot, nil)
			if !ids[t.ids[slot]] { // else the series are another engine's behind the same address by now
				t.metrics.Forget(t.ids[slot])
			}
		}
	}
}
