package replica

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/warmpath/warmpath/internal/certs"
	"github.com/warmpath/warmpath/internal/discovery"
)

// Config is the settings of a [Pool].
type Config struct {
	// URLs are the replicas' base addresses, as http://host:port, of which a path is
	// kept, and the URLs of sources that know more of them, as [discovery.New] takes.
	URLs []string `yaml:"urls"`
	// ProbeInterval is the time between two probes of a replica. One that begins to
	// fail is probed more often at first.
	ProbeInterval time.Duration `yaml:"probe_interval"`
	// ProbeTimeout bounds each request of a probe.
	ProbeTimeout time.Duration `yaml:"probe_timeout"`
	// ScrapeInterval is the time between two readings of a replica's metrics.
	ScrapeInterval time.Duration `yaml:"scrape_interval"`
	// Key is sent as bearer token with probes, for replicas started with an API key,
	// and with requests as proxy.replica_auth says.
	Key string `yaml:"key"`
	// WarmUp has a replica that is new, or comes back, answer one tiny request before
	// it is given clients' requests: health checks pass while an engine cannot answer.
	WarmUp bool `yaml:"warm_up"`

	// TLSCA is a PEM file with the authorities that sign replicas' certificates; ""
	// is the system's.
	TLSCA string `yaml:"tls_ca"`
	// TLSCert and TLSKey are the gateway's own certificate, for replicas that ask.
	TLSCert string `yaml:"tls_cert"`
	TLSKey  string `yaml:"tls_key"`
	// TLSServerName is the name that certificates of replicas must have; "" is the
	// host in their address.
	TLSServerName string `yaml:"tls_server_name"`
	// TLSInsecure accepts any certificate.
	TLSInsecure bool `yaml:"tls_insecure"`
}

// DefaultConfig returns the settings that suit most fleets.
func DefaultConfig() Config {
	return Config{ProbeInterval: 2 * time.Second, ProbeTimeout: 5 * time.Second, ScrapeInterval: 5 * time.Second, WarmUp: true}
}

// Validate reports the first setting that cannot work.
func (c *Config) Validate() error {
	if len(c.URLs) == 0 {
		return errors.New("no replicas: name at least one with -replica http://host:port (replica.urls in the file), or try -demo 3")
	}
	if _, err := discovery.New(c.URLs, slog.New(slog.DiscardHandler)); err != nil {
		return err
	}
	switch {
	case c.ProbeInterval <= 0:
		return fmt.Errorf("probe_interval must be above 0, not %v", c.ProbeInterval)
	case c.ProbeTimeout <= 0:
		return fmt.Errorf("probe_timeout must be above 0, not %v", c.ProbeTimeout)
	case c.ScrapeInterval <= 0:
		return fmt.Errorf("scrape_interval must be above 0, not %v", c.ScrapeInterval)
	}
	return c.checkTLS()
}

// Kind says what an [Event] is about.
type Kind uint8

// The kinds of events.
const (
	Told      Kind = iota // the replica told its block size and count
	Emptied               // its KV cache is empty: it restarted, slept or was reset
	Scraped               // its metrics were read, here
	Counted               // its metrics were read, here or by another gateway
	Unwell                // its requests or a probe show that it is not well
	Drained               // an operator keeps requests away from it
	Undrained             // or lets them come again
	Gone                  // it has left for good: its slot will be another's
)

// Event is something that became known of a replica.
type Event struct {
	Kind    Kind
	Replica *Replica
	Facts   Facts
}

// Pool watches the replicas that there are. Make it with [New], run it with [Pool.Run].
type Pool struct {
	cfg    Config
	log    *slog.Logger
	notify func(Event)
	client *http.Client
	finder *discovery.Finder

	tls         *tls.Config
	certificate certs.Pair
	key         atomic.Pointer[string]

	set  atomic.Pointer[Set]
	owns atomic.Pointer[func(*Replica) bool]

	mu        sync.Mutex  // guards all below, and the making of a Set
	endpoints []*endpoint // as they were found, then those that leave
	complete  bool        // every source has told
	replicas  []*Replica  // by slot; nil where one is free
	names     []string    // of models, by index less 1
}

// New returns a pool over the replicas whose addresses are given, none of them ready
// yet; [Pool.Run] discovers others. Events go to notify, which must not block; it is
// called from several goroutines.
func New(cfg Config, log *slog.Logger, notify func(Event)) (*Pool, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	p := &Pool{cfg: cfg, log: log, notify: notify}
	p.SetKey(cfg.Key)
	var err error
	if p.finder, err = discovery.New(cfg.URLs, log); err != nil {
		return nil, err
	}
	if p.tls, err = p.newTLS(&cfg); err != nil {
		return nil, err
	}
	use, err := p.ReadCertificate(cfg)
	if err != nil {
		return nil, err
	}
	use()
	p.client = &http.Client{
		Timeout: cfg.ProbeTimeout,
		Transport: &http.Transport{ // its own connections: probes do not queue behind traffic
			DialContext:     (&net.Dialer{Timeout: cfg.ProbeTimeout}).DialContext,
			IdleConnTimeout: 4 * time.Second, // below the engine's 5 s, whatever the interval
			TLSClientConfig: p.TLS(),
		},
		// Requests are not redirected either: an address that only redirects is no replica.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	p.arrange(p.finder.Set())
	return p, nil
}

// Run discovers and probes until ctx ends, and returns when all of it has ended.
func (p *Pool) Run(ctx context.Context) {
	var wg sync.WaitGroup
	sets := make(chan discovery.Set)
	wg.Go(func() {
		p.finder.Run(ctx, func(set discovery.Set) {
			select {
			case sets <- set:
			case <-ctx.Done():
			}
		})
	})
	tick := time.NewTicker(retireEvery)
	defer tick.Stop()
	for {
		for _, e := range p.unwatched() {
			ctx, cancel := context.WithCancel(ctx)
			e.stop = cancel
			wg.Go(func() {
				defer close(e.stopped)
				e.watch(ctx)
			})
		}
		select {
		case <-ctx.Done():
			wg.Wait()
			for _, e := range p.all() {
				e.stop()
			}
			p.client.CloseIdleConnections()
			return
		case set := <-sets:
			p.arrange(set)
		case now := <-tick.C:
			p.retire(now)
		}
	}
}

// Set returns the current view.
func (p *Pool) Set() *Set { return p.set.Load() }

// Replica returns the replica of that ID, or nil.
func (p *Pool) Replica(id string) *Replica {
	for _, r := range p.Set().Replicas {
		if r.ID == id {
			return r
		}
	}
	return nil
}

// Owned leaves the reading of metrics to other gateways, but for the replicas that
// owns says are this one's, as long as the others tell by [Pool.Heard].
func (p *Pool) Owned(owns func(*Replica) bool) { p.owns.Store(&owns) }

// Heard takes what another gateway read on a replica's metrics page a moment ago.
func (p *Pool) Heard(r *Replica, f Facts) {
	f.At = time.Now()
	r.endpoint.telling.Lock()
	defer r.endpoint.telling.Unlock()
	if old := r.facts.Load(); old == nil || old.Start == f.Start && f.Prompt < old.Prompt && f.At.Sub(old.At) < p.cfg.ScrapeInterval {
		return // it never told here, or what was read here is newer
	}
	r.endpoint.publish(r, f)
}

// Drain is [Replica.Drain] by an operator, which is an event.
func (p *Pool) Drain(r *Replica, on bool) {
	r.Drain(on)
	kind := Undrained
	if on {
		kind = Drained
	}
	p.notify(Event{Kind: kind, Replica: r})
}

// Ready reports whether any replica can answer.
func (p *Pool) Ready() bool {
	return p.Set().any.Ready()
}

// publish makes a new Set. The caller holds mu, or nobody else has the pool yet.
func (p *Pool) publish() {
	set := &Set{byName: map[uint64]*Model{}, Complete: p.complete}
	for i, name := range p.names {
		m := &Model{Name: name, Index: i + 1}
		set.Models = append(set.Models, m)
		set.byName[xxhash.Sum64String(name)] = m
	}
	var staying []*Replica
	for _, e := range p.endpoints {
		set.Replicas = append(set.Replicas, e.replicas...)
		if e.leaving.Load() {
			continue
		}
		staying = append(staying, e.replicas...)
		if e.models == nil {
			set.Complete = false
		} else {
			set.told += len(e.replicas)
		}
		for _, card := range e.models {
			if m := set.Model(card.id); m != nil {
				m.Card, m.Adapter = card.raw, card.adapter
				m.Replicas = append(m.Replicas, e.replicas...)
			}
		}
	}
	set.any = &Model{Replicas: staying}
	p.set.Store(set)
}

// learn takes an endpoint's models and count of engines, 0 if that is not told.
func (p *Pool) learn(e *endpoint, models []card, ranks int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	same := func(a, b card) bool { return bytes.Equal(a.lasting, b.lasting) }
	if slices.EqualFunc(models, e.models, same) && (ranks == 0 || ranks == len(e.replicas)) {
		return
	}
	for _, m := range models {
		if !slices.Contains(p.names, m.id) {
			p.names = append(p.names, m.id)
		}
	}
	e.models = models
	if ranks > 0 {
		e.setRanks(ranks)
	}
	p.publish()
}
