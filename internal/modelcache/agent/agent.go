// Package agent is the node's model cache as a server: it keeps a list of models
// present, says which are ready, and hands out leases that keep a running engine's
// weights on the disk.
//
// It keeps nothing in memory that a restart must not lose: pins and leases are files
// in the store.
package agent

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/warmpath/warmpath/internal/modelcache"
	"github.com/warmpath/warmpath/internal/modelcache/manifest"
)

// Config is how an agent keeps models.
type Config struct {
	// Pin is the name of the agent's pins. Models that have such a pin and are no longer
	// on the list lose it.
	Pin string
	// Check is the time between two looks at a model that is present.
	Check time.Duration
	// Retry is the pause after a first failure; it doubles up to Check.
	Retry time.Duration
	// Scrub is the time between two verifications of all that is here; 0 is never.
	Scrub time.Duration
}

// DefaultConfig suits a node with a few models.
func DefaultConfig() Config {
	return Config{Pin: "serve", Check: 30 * time.Second, Retry: time.Second, Scrub: 24 * time.Hour}
}

// prewarms is how many models are pulled at once. A pull uses all connections as it
// is; two keep them busy while one verifies.
const prewarms = 2

// Agent keeps models present.
type Agent struct {
	cfg   Config
	cache *modelcache.Cache
	log   *slog.Logger
	wants []*want
	slots chan struct{}
	scrub scrubs
}

// want is a model on the list.
type want struct {
	modelcache.Model
	mu       sync.Mutex // guards what follows
	ready    bool
	err      error
	progress *modelcache.Progress
}

// New returns an agent for a list of models.
func New(cache *modelcache.Cache, models []modelcache.Model, cfg Config, log *slog.Logger) *Agent {
	a := &Agent{cfg: cfg, cache: cache, log: log, slots: make(chan struct{}, prewarms)}
	for _, m := range models {
		if a.find(m.Digest) == nil {
			a.wants = append(a.wants, &want{Model: m, progress: &modelcache.Progress{}})
		}
	}
	return a
}

// Run keeps the models until ctx ends, and returns when everything has stopped.
func (a *Agent) Run(ctx context.Context) {
	a.dropPins(ctx)
	var running sync.WaitGroup
	for _, w := range a.wants {
		running.Go(func() { a.keep(ctx, w) })
	}
	if a.cfg.Scrub > 0 {
		running.Go(func() { a.verifyAll(ctx) })
	}
	running.Wait()
}

// dropPins removes the agent's pins from models that are not on its list.
func (a *Agent) dropPins(ctx context.Context) {
	entries, err := a.cache.Store().Entries()
	if err != nil {
		a.log.Error("pins cannot be read", "err", err)
		return
	}
	for _, e := range entries {
		if slices.Contains(e.Pins, a.cfg.Pin) && a.find(e.Model) == nil {
			_, err := a.cache.Store().Unpin(ctx, e.Model, a.cfg.Pin)
			a.log.Info("no longer on the list", "digest", e.Model, "source", e.Source, "err", err)
		}
	}
}

func (a *Agent) find(digest manifest.Digest) *want {
	for _, w := range a.wants {
		if w.Digest == digest {
			return w
		}
	}
	return nil
}

// keep makes a model present and looks after it.
func (a *Agent) keep(ctx context.Context, w *want) {
	delay := a.cfg.Retry
	for {
		err := a.ensure(ctx, w)
		if ctx.Err() != nil {
			return
		}
		next := a.cfg.Check
		if err != nil {
			a.log.Error("not ready", "digest", w.Digest, "source", w.Name, "err", err)
			next, delay = delay, min(2*delay, a.cfg.Check)
		} else {
			delay = a.cfg.Retry
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(next):
		}
	}
}

// ensure makes a model present. One that is there is ready without waiting for the
// pulls of others; one that is damaged is not ready while it is repaired.
func (a *Agent) ensure(ctx context.Context, w *want) error {
	err := a.cache.Store().Use(ctx, w.Digest, a.cfg.Pin)
	if err == nil {
		w.set(nil)
		return nil
	}
	w.notReady()
	select {
	case a.slots <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-a.slots }()
	progress := &modelcache.Progress{}
	w.mu.Lock()
	w.progress = progress
	w.mu.Unlock()
	_, err = a.cache.Ensure(ctx, w.Model, a.cfg.Pin, progress)
	w.set(err)
	return err
}

func (w *want) set(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ready, w.err = err == nil, err
}

func (w *want) notReady() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ready = false
}

// scrubs is what verifications found.
type scrubs struct {
	mu     sync.Mutex // guards what follows
	faults int64
	last   time.Time
}

// verifyAll hashes everything now and then. What is wrong is marked; keep replaces
// it where the model is on the list, the next pull does elsewhere.
func (a *Agent) verifyAll(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(a.cfg.Scrub):
		}
		entries, err := a.cache.Store().Entries()
		if err != nil {
			a.log.Error("the cache cannot be listed", "err", err)
			continue
		}
		var published []manifest.Digest
		for _, e := range entries {
			if e.Published {
				published = append(published, e.Model)
			}
		}
		report, err := a.cache.Store().Verify(ctx, published, nil)
		if err != nil {
			a.log.Error("verification ended early", "err", err)
			continue
		}
		for _, f := range report.Faults {
			a.log.Error("bad file", "digest", f.Model, "file", f.Path, "err", f.Why)
		}
		a.scrub.mu.Lock()
		a.scrub.faults += int64(len(report.Faults))
		a.scrub.last = time.Now()
		a.scrub.mu.Unlock()
	}
}
