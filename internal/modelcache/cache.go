// Package modelcache makes models present on a node's disk: fetched once, proven by
// their digest, kept while they are used.
//
// It joins the parts: manifest says what a model is, source moves bytes, store keeps
// them, fetch downloads.
package modelcache

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/internal/modelcache/fetch"
	"github.com/warmpath/warmpath/internal/modelcache/manifest"
	"github.com/warmpath/warmpath/internal/modelcache/source"
	"github.com/warmpath/warmpath/internal/modelcache/store"
)

// ErrDigest means that a source does not have what was expected.
var ErrDigest = errors.New("the content is not what the digest says")

// Model is what a cache is asked for.
type Model struct {
	// Digest is the manifest's, and the one value that is trusted.
	Digest manifest.Digest
	// Name is for people.
	Name   string
	Source source.Source
	// Manifest is known already if it is not nil.
	Manifest *manifest.Manifest
}

// Progress is how far a pull has come.
type Progress struct {
	total, present, received atomic.Int64
	shared                   atomic.Pointer[Progress] // of the pull that is waited for, if any
}

// Read returns the bytes that are on the disk and the model's, 0 until they are known.
// It may be called while the pull runs.
func (p *Progress) Read() (present, total int64) {
	if shared := p.shared.Load(); shared != nil {
		return shared.Read()
	}
	return p.present.Load(), p.total.Load()
}

func (p *Progress) follow(shared *Progress) { p.shared.Store(shared) }

// Result is what Ensure did.
type Result struct {
	// Path is the model's directory.
	Path string
	// Hit tells that the model was there.
	Hit bool
	// Downloaded is the bytes that the source sent for this pull.
	Downloaded int64
	// Evicted are the models that had to go.
	Evicted []manifest.Digest
}

// Counts is what a cache has done since it was made.
type Counts struct {
	Hits, Misses, Errors, BadFiles, Evictions, Downloaded int64
}

// Cache pulls models into a store.
type Cache struct {
	store   *store.Store
	fetch   *fetch.Fetcher
	log     *slog.Logger
	flights flights

	mu     sync.Mutex // guards counts
	counts Counts
}

// New returns a cache over a store, which stays the caller's to close.
func New(s *store.Store, cfg fetch.Config, log *slog.Logger) *Cache {
	if !s.Locks() {
		log.Warn("file locks do nothing on the cache's file system: downloads are neither shared nor resumed")
	}
	return &Cache{store: s, fetch: fetch.New(cfg), log: log}
}

// Store returns the store.
func (c *Cache) Store() *store.Store { return c.store }

// Counts returns what the cache has done.
func (c *Cache) Counts() Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	counts := c.counts
	counts.Downloaded = c.fetch.Received()
	return counts
}

func (c *Cache) count(f func(*Counts)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(&c.counts)
}

// pulls is how often a model is pulled for one Ensure before it gives up: something
// may evict or damage it between its publication and its use.
const pulls = 3

// Ensure makes a model present and, if pin is not "", pins it under that name. What is
// here is used without asking the source: the digest says all. Callers in this
// process share one pull, which ends when the last of them has left; pulls of other
// processes are waited for. progress may be nil.
func (c *Cache) Ensure(ctx context.Context, m Model, pin string, progress *Progress) (Result, error) {
	if pin != "" {
		if err := store.CheckName(pin); err != nil {
			return Result{}, fmt.Errorf("pin: %w", err)
		}
	}
	if progress == nil {
		progress = &Progress{}
	}
	result := Result{Path: c.store.ModelPath(m.Digest), Hit: true}
	for range pulls {
		err := c.store.Use(ctx, m.Digest, pin)
		if err == nil {
			c.count(func(n *Counts) {
				if result.Hit {
					n.Hits++
				} else {
					n.Misses++
				}
			})
			return result, nil
		}
		if !errors.Is(err, store.ErrAbsent) {
			return result, c.failed(err)
		}
		result.Hit = false
		pulled, err := c.flights.do(ctx, m.Digest, progress, func(ctx context.Context, shared *Progress) (Result, error) {
			return c.pull(ctx, m, shared)
		})
		result.Downloaded += pulled.Downloaded
		result.Evicted = append(result.Evicted, pulled.Evicted...)
		if err != nil {
			return result, c.failed(err)
		}
	}
	return result, c.failed(fmt.Errorf("%s was pulled %d times and evicted or damaged before it could be used", m.Digest, pulls))
}

func (c *Cache) failed(err error) error {
	c.count(func(n *Counts) { n.Errors++ })
	return err
}

// pull makes a model present, alone on this node.
func (c *Cache) pull(ctx context.Context, m Model, progress *Progress) (Result, error) {
	result := Result{}
	unlock, err := c.store.LockModel(ctx, m.Digest)
	if err != nil {
		return result, err
	}
	defer unlock()
	if c.store.Use(ctx, m.Digest, "") == nil {
		return result, nil // another process was faster
	}
	began := time.Now()
	contents, err := c.contents(ctx, m)
	if err != nil {
		return result, err
	}
	plan := &store.Plan{Model: m.Digest, Source: m.Name}
	for _, o := range contents {
		plan.Parts = append(plan.Parts, o.part)
	}
	progress.total.Store(plan.Bytes())
	evicted, err := c.store.Reserve(ctx, plan)
	for _, e := range evicted {
		c.log.Info("evicted", "digest", e.Model, "source", e.Source, "bytes", e.Bytes, "last_use", e.LastUse)
		result.Evicted = append(result.Evicted, e.Model)
	}
	c.count(func(n *Counts) { n.Evictions += int64(len(evicted)) })
	if err != nil {
		return result, err
	}
	if contents[0].digest == "" {
		err = c.pullUnlisted(ctx, m, contents, progress)
	} else {
		err = c.pullListed(ctx, m, contents, progress)
	}
	result.Downloaded = progress.received.Load()
	if err == nil {
		c.log.Info("pulled", "digest", m.Digest, "source", m.Name, "bytes", plan.Bytes(), "downloaded", result.Downloaded, "took", time.Since(began).Round(time.Millisecond))
	}
	return result, err
}

// content is one file of a model that is to be pulled.
type content struct {
	source.Object
	part   store.Part
	digest manifest.Digest // "" if only the whole model's is known
}

// contents finds out what a model consists of: from the manifest that is here or at
// the source, else from the source's listing.
func (c *Cache) contents(ctx context.Context, m Model) ([]content, error) {
	files := m.Manifest
	if files == nil {
		known, err := c.store.Rescue(ctx, m.Digest)
		switch {
		case err == nil:
			files = known
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		}
	}
	if files == nil {
		found, err := c.publishedManifest(ctx, m)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return c.listing(ctx, m)
		case err != nil:
			return nil, err
		}
		files = found
	}
	contents := make([]content, 0, len(files.Files))
	for _, f := range files.Files {
		if err := c.store.RescueBlob(ctx, f.Digest, f.Size); err != nil {
			return nil, err
		}
		contents = append(contents, content{
			Object: source.Object{Path: f.Path, Size: f.Size}, digest: f.Digest,
			part: store.Part{Name: c.store.PartName(f.Digest.Hex()), Size: f.Size},
		})
	}
	return contents, nil
}
