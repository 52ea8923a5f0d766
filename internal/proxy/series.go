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
	here := map[string]bool{}
	for _, r := range current {
		here[r.ID] = true
	}
	for id := range t.replicas {
		since, missed := t.left[id]
		switch {
		case here[id]:
			delete(t.left, id)
		case !missed:
			t.left[id] = now
		case now.Sub(since) >= keepSeries:
			delete(t.left, id)
			delete(t.replicas, id)
			t.forget(id)
			t.metrics.Forget(id)
		}
	}
}

// forget drops the rows of a replica. The caller holds the lock.
func (t *tables) forget(id string) {
	rows := t.targets.rows.Load()
	for slot := 0; rows != nil && slot < len(*rows); slot++ {
		if of := (*rows)[slot].of; of != nil && of.ID == id {
			t.targets.set(slot, targets{})
		}
	}
}
