// Package share lets gateways over the same replicas know what each other does,
// by two streams in Redis. The load channel tells within milliseconds which requests
// are under way; the prefix channel, some times a second, what replicas hold and
// where sessions belong. What a gateway does is told by its router and what others
// do is applied to it (routing.md §3).
//
// No request ever waits for Redis: events go to bounded memory, and what is read is
// applied as it comes. While Redis cannot be used a gateway routes by what it knows
// itself, and what it believed of the others' load fades.
package share

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/redis/go-redis/v9"

	"github.com/warmpath/warmpath/internal/metrics"
	"github.com/warmpath/warmpath/internal/replica"
	"github.com/warmpath/warmpath/internal/router"
)

// Config is the settings of sharing. Without a URL nothing is shared.
type Config struct {
	// URL is where Redis is: redis://user:password@host:port/db, rediss:// for TLS;
	// several hosts are a Cluster, or Sentinels if there is a master_name.
	URL string `yaml:"url"`
	// Password is instead of one in the URL.
	Password string `yaml:"password"`
	// CAFile has the certificates of authorities to trust beside the system's.
	CAFile string `yaml:"ca_file"`
	// Namespace separates fleets that use the same Redis.
	Namespace string `yaml:"namespace"`
	// WarmStart is how long a gateway that starts may take to learn from the others
	// before it is ready.
	WarmStart time.Duration `yaml:"warm_start"`
	// Channels is what is shared: Both, or one of them, to measure its worth.
	Channels string `yaml:"channels"`
}

// The values of [Config.Channels].
const (
	Both   = "both"
	Load   = "load"
	Prefix = "prefix"
)

// DefaultConfig returns the settings that suit most fleets; nothing is shared.
func DefaultConfig() Config {
	return Config{Namespace: "default", WarmStart: 3 * time.Second, Channels: Both}
}

// Validate reports the first setting that cannot work.
func (c *Config) Validate() error {
	if c.Channels != Both && c.Channels != Load && c.Channels != Prefix {
		return fmt.Errorf("redis.channels must be both, load or prefix, not %q", c.Channels)
	}
	if c.WarmStart < 0 {
		return fmt.Errorf("warm_start must not be negative, but is %v", c.WarmStart)
	}
	for _, b := range []byte(c.Namespace) {
		if b <= ' ' || b > '~' || b == '{' || b == '}' {
			return fmt.Errorf("redis.namespace %q must be of printable ASCII characters without spaces and braces", c.Namespace)
		}
	}
	if c.Namespace == "" {
		return errors.New("redis.namespace must not be empty")
	}
	if c.URL == "" {
		return nil
	}
	if _, err := c.options(); err != nil {
		return fmt.Errorf("redis: %w", err)
	}
	return nil
}

const (
	loadChannel   = metrics.LoadChannel
	prefixChannel = metrics.PrefixChannel
)

// Pool is what sharing needs of a [replica.Pool]; tests have replicas without a network.
type Pool interface {
	Set() *replica.Set
	Owned(func(*replica.Replica) bool)
	Heard(*replica.Replica, replica.Facts)
}

// owns reports whether it is this gateway that reads a replica's metrics: each of
// the gateways that live ranks highest by a hash for its part of the replicas.
func (s *Share) owns(r *replica.Replica) bool {
	members := s.members.Load()
	if members == nil {
		return true
	}
	mine := rank(s.id, r.Hash)
	return !slices.ContainsFunc(*members, func(id uint64) bool { return rank(id, r.Hash) > mine })
}

func rank(gateway, replica uint64) uint64 {
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:], gateway)
	binary.LittleEndian.PutUint64(b[8:], replica)
	return xxhash.Sum64(b[:])
}

// Share exchanges what one gateway knows with the others. Make it with [New], run it
// with [Share.Run].
type Share struct {
	cfg     Config
	log     *slog.Logger
	pool    Pool
	members atomic.Pointer[[]uint64] // the gateways that live, this one included
	router  *router.Router
	metrics *metrics.Share
	client  redis.UniversalClient
	id      uint64    // random, new with every start
	keys    [2]string // of the streams, by channel
	lease   string    // the key that says to operators that this gateway lives
	out     *outbox
	echoes  echoes
	ready   atomic.Bool
	running atomic.Bool
	warmed  chan struct{} // closed when the warm start is over
	trouble trouble
}

// New returns a share of what the router does and learns about the
// pool's replicas. It connects in [Share.Run].
func New(cfg Config, log *slog.Logger, m *metrics.Share, pool Pool, r *router.Router) (*Share, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	options, err := cfg.options()
	if err != nil {
		return nil, err
	}
	s := &Share{
		cfg: cfg, log: log, pool: pool, router: r, metrics: m, client: redis.NewUniversalClient(options),
		out: newOutbox(cfg.Channels != Prefix, cfg.Channels != Load), warmed: make(chan struct{}),
		trouble: trouble{log: log},
	}
	var id [8]byte
	_, _ = rand.Read(id[:]) // it never fails
	s.id = binary.LittleEndian.Uint64(id[:])
	// One hash tag, so that a Cluster keeps all keys in one place.
	prefix := fmt.Sprintf("wp:%d:{%s}:", version, cfg.Namespace)
	s.keys = [2]string{loadChannel: prefix + "load", prefixChannel: prefix + "prefix"}
	s.lease = fmt.Sprintf("%sgw:%016x", prefix, s.id)
	r.Report(s.out.report)
	if cfg.Channels != Prefix {
		pool.Owned(s.owns)
	}
	return s, nil
}

// Notice tells the others what became known of a replica, if it concerns them.
func (s *Share) Notice(e replica.Event) {
	switch e.Kind {
	case replica.Scraped:
		s.out.scraped(e.Replica.Hash, e.Facts)
	case replica.Unwell:
		s.out.notice(notice{e.Replica.Hash, isUnwell})
	case replica.Drained:
		s.out.notice(notice{e.Replica.Hash, wasDrained})
	case replica.Undrained:
		s.out.notice(notice{e.Replica.Hash, wasUndrained})
	}
}

// Run shares until ctx ends; then it tells the others that this gateway leaves.
func (s *Share) Run(ctx context.Context) {
	s.running.Store(true)
	var wg sync.WaitGroup
	wg.Go(func() { s.wait(ctx) })
	wg.Go(func() { newHearing(s).run(ctx) })
	newTelling(s).run(ctx)
	_ = s.client.Close() // which ends a reading that waits for news
	wg.Wait()
}

// wait makes the gateway ready when the warm start is over or takes too long.
func (s *Share) wait(ctx context.Context) {
	limit := time.NewTimer(s.cfg.WarmStart)
	defer limit.Stop()
	select {
	case <-ctx.Done():
		return
	case <-s.warmed:
	case <-limit.C:
		if s.cfg.WarmStart > 0 {
			s.log.Warn("the warm start took too long: beginning with what this gateway learns itself", "warm_start", s.cfg.WarmStart)
		}
	}
	s.ready.Store(true)
}

// Close ends what New began, if Run was never called.
func (s *Share) Close() {
	if !s.running.Load() { // Run still has to say that this gateway leaves
		_ = s.client.Close()
	}
}

// Ready reports whether the warm start is over.
func (s *Share) Ready() bool { return s.ready.Load() }

// echoes knows when batches of the load channel were sent, to measure how late they
// are heard. No other machine's clock enters it.
type echoes struct {
	mu   sync.Mutex
	sent [256]struct {
		number uint64
		at     time.Time
	}
}

func (e *echoes) note(number uint64, at time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	slot := &e.sent[number%uint64(len(e.sent))]
	slot.number, slot.at = number, at
}

// heard returns how long ago the oldest event of a batch of one's own came up.
func (e *echoes) heard(number uint64) (time.Duration, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	slot := &e.sent[number%uint64(len(e.sent))]
	if slot.number != number || slot.at.IsZero() {
		return 0, false
	}
	return time.Since(slot.at), true
}

// complainEvery is the time between two log lines about the same trouble.
const complainEvery = 30 * time.Second

// trouble logs that Redis cannot be used: at once, and then seldom.
type trouble struct {
	log  *slog.Logger
	mu   sync.Mutex
	last time.Time
}

func (t *trouble) complain(what string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := time.Now(); t.last.IsZero() || now.Sub(t.last) >= complainEvery {
		t.last = now
		t.log.Warn("Redis cannot be used: requests are routed by what this gateway knows itself", "doing", what, "err", err, "advice", advice(err))
	}
}

// Times between two tries to use Redis again.
const (
	firstPause   = 50 * time.Millisecond
	longestPause = 2 * time.Second
)

// backoff grows the pauses between tries, and spreads them so that gateways do not
// come back in step.
type backoff struct{ failures int }

func (b *backoff) next() time.Duration {
	d := min(longestPause, firstPause<<min(b.failures, 10))
	b.failures++
	return jitter(d)
}

func (b *backoff) reset() { b.failures = 0 }

// pause waits, and reports whether ctx still goes on.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
