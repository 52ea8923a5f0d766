// Package discovery finds out which replicas there are and follows it while they
// come and go: addresses that are given, a file, DNS, and the EndpointSlices of a
// Service in Kubernetes. It knows addresses alone; whether somebody answers there,
// and what, its users find out.
package discovery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

// Source looks for replicas in one place.
type Source interface {
	// Run sends what it finds until ctx ends, and returns then. The first set without
	// an error says that the source is complete. It may send what it has sent before.
	Run(ctx context.Context, send func(Update))
}

// Update is what a source has found: always the full set.
type Update struct {
	URLs []*url.URL // base URLs of replicas, in an order that all gateways see
	Err  error      // why nothing is known
}

// Set is what all sources together have found.
type Set struct {
	URLs     []*url.URL // none twice, in the order of the places
	Complete bool       // every source has found something
}

// settle is how long more news are waited for when some have come: a rollout changes
// several slices at once.
const settle = 100 * time.Millisecond

// maxReplicas bounds what one source can find: a set of more is nobody's fleet.
const maxReplicas = 4096

// errNothing is what a source shows that finds no replica.
var errNothing = errors.New("it has no replica")

// Finder merges what sources find. Make it with [New], run it with [Finder.Run].
type Finder struct {
	log     *slog.Logger
	changed chan struct{}

	mu     sync.Mutex // guards what places have found
	places []*place
}

// place is where replicas are looked for.
type place struct {
	name     string
	source   Source // nil if the address itself was given
	found    []*url.URL
	complete bool
	failing  bool
	failures int
}

// New returns a finder over places: base URLs of replicas, and URLs of sources as
// docs/configuration.md lists them.
func New(places []string, log *slog.Logger) (*Finder, error) {
	f := &Finder{log: log, changed: make(chan struct{}, 1)}
	for _, text := range places {
		p, err := parse(text)
		if err != nil {
			return nil, err
		}
		for _, other := range f.places {
			if p.name == other.name || p.source == nil && other.source == nil && ID(p.found[0]) == ID(other.found[0]) {
				return nil, fmt.Errorf("replica %s is named twice", p.name)
			}
		}
		f.places = append(f.places, p)
	}
	return f, nil
}

// parse reads one place.
func parse(text string) (*place, error) {
	p := &place{name: text}
	var err error
	switch scheme, _, _ := strings.Cut(text, ":"); scheme {
	case "file":
		p.source, err = newFile(text)
	case "dns", "dns+srv":
		p.source, err = newDNS(text)
	case "kubernetes":
		p.source, err = newKubernetes(text)
	default:
		var u *url.URL
		u, err = parseURL(text)
		p.found, p.complete = []*url.URL{u}, true
		if err == nil {
			p.name = u.String()
		}
	}
	return p, err
}

// Set returns what is known by now.
func (f *Finder) Set() Set {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := Set{Complete: true}
	seen := map[string]bool{}
	for _, p := range f.places {
		s.Complete = s.Complete && p.complete
		for _, u := range p.found {
			if !seen[ID(u)] {
				seen[ID(u)] = true
				s.URLs = append(s.URLs, u)
			}
		}
	}
	return s
}

// Run looks for replicas until ctx ends, and calls use with each new set. It returns
// when all looking has ended.
func (f *Finder) Run(ctx context.Context, use func(Set)) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, p := range f.places {
		if p.source != nil {
			wg.Go(func() { p.source.Run(ctx, func(u Update) { f.take(p, u) }) })
		}
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.changed:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(settle):
		}
		select {
		case <-f.changed: // it came meanwhile
		default:
		}
		use(f.Set())
	}
}

// take keeps what a source has found. A source that fails, or finds nobody, is not
// believed: its last set stays.
func (f *Finder) take(p *place, u Update) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if u.Err == nil && len(u.URLs) == 0 {
		u.Err = errNothing
	}
	if n := len(u.URLs); n > maxReplicas {
		u.Err = fmt.Errorf("it has %d replicas, which is more than %d", n, maxReplicas)
	}
	log := f.log.With("source", p.name)
	if u.Err != nil {
		p.failures++
		if !p.failing {
			log.Warn("replicas cannot be discovered: the last ones found stay", "err", u.Err, "replicas", len(p.found))
		}
		p.failing = true
		return
	}
	if p.failing {
		log.Info("replicas are discovered again", "replicas", len(u.URLs))
	}
	p.failing = false
	if p.complete && slices.EqualFunc(p.found, u.URLs, func(a, b *url.URL) bool { return *a == *b }) {
		return
	}
	p.found, p.complete = u.URLs, true
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

// Status is how one source does.
type Status struct {
	Source   string
	Replicas int  // in its last good set
	OK       bool // what it said last was such a set
	Failures int  // how often it was not
}

// Status returns how the sources do; addresses that were given are none.
func (f *Finder) Status() (list []Status) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.places {
		if p.source != nil {
			list = append(list, Status{Source: p.name, Replicas: len(p.found), OK: p.complete && !p.failing, Failures: p.failures})
		}
	}
	return list
}
