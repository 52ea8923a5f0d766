package share

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"

	"github.com/warmpath/warmpath/internal/metrics"
	"github.com/warmpath/warmpath/internal/prefix"
	"github.com/warmpath/warmpath/internal/replica"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/test/redistest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// member is a router that shares, over replicas that no network stands behind.
type member struct {
	*Share
	router *router.Router
	model  *replica.Model
	log    *lines
}

// still is a pool that nothing happens in.
type still struct{ set *replica.Set }

func (s still) Set() *replica.Set                   { return s.set }
func (still) Owned(func(*replica.Replica) bool)     {}
func (still) Heard(*replica.Replica, replica.Facts) {}

// lines is a log that can be read while it is written.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// newMember makes a member of a fleet of n replicas.
func newMember(t testing.TB, url string, n int, set ...func(*Config)) *member {
	t.Helper()
	m := &member{model: &replica.Model{Name: "m"}, log: &lines{}}
	for i := range n {
		m.model.Replicas = append(m.model.Replicas, replica.Virtual(fmt.Sprintf("r%d:80", i), i))
	}
	var err error
	if m.router, err = router.New(router.DefaultConfig()); err != nil {
		t.Fatal(err)
	}
	for _, r := range m.model.Replicas {
		m.router.Told(r, replica.Facts{BlockSize: 16, Blocks: 10_000})
	}
	cfg := DefaultConfig()
	cfg.URL = url
	for _, f := range set {
		f(&cfg)
	}
	pool := still{&replica.Set{Replicas: m.model.Replicas, Complete: true}}
	m.Share, err = New(cfg, slog.New(slog.NewTextHandler(m.log, nil)), metrics.NewShare(prometheus.NewRegistry()), pool, m.router)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// join starts a member. Leave may be called early.
func join(t testing.TB, url string, n int, set ...func(*Config)) (m *member, leave func()) {
	t.Helper()
	m = newMember(t, url, n, set...)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { m.Run(ctx); close(ended) }()
	leave = sync.OnceFunc(func() { cancel(); <-ended })
	t.Cleanup(leave)
	return m, leave
}

// value reads a metric.
func value(m prometheus.Metric) float64 {
	var d dto.Metric
	_ = m.Write(&d)
	return d.GetGauge().GetValue() + d.GetCounter().GetValue()
}

// meet waits until each knows all others.
func meet(t testing.TB, members ...*member) {
	t.Helper()
	for _, m := range members {
		redistest.Eventually(t, "all members are known", func() bool { return m.Ready() && value(m.metrics.Peers) == float64(len(members)-1) })
	}
}

func (m *member) inFlight() (n int) {
	for _, s := range m.router.States(time.Now()) {
		n += s.InFlight
	}
	return n
}

func (m *member) acquire(t testing.TB, p *prefix.Prompt) *router.Lease {
	t.Helper()
	l, err := m.router.Acquire(&router.Request{Prompt: p, Model: m.model, Stream: true}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestABurstSpreadsAndIsComputedOnceOnEachReplica has four gateways choose for
// 500 requests of one new beginning within ten milliseconds.
func TestABurstSpreadsAndIsComputedOnceOnEachReplica(t *testing.T) {
	const gateways, replicas, requests = 4, 8, 500
	redis := redistest.Start(t)
	var members []*member
	for range gateways {
		m, _ := join(t, "redis://"+redis.Addr, replicas)
		members = append(members, m)
	}
	meet(t, members...)
	common := chain(128)
	for i := range 64 {
		common.Cuts = append(common.Cuts, prefix.Cut{Hash: prefix.Hash(i + 1), Tokens: int32(128 * (i + 1))})
	}
	ask := func(i int) *prefix.Prompt {
		c := prefix.Chain{Tokens: 8212}
		c.Cuts = append(append(c.Cuts, common.Cuts...), prefix.Cut{Hash: prefix.Hash(1000 + i), Tokens: 8212})
		return &prefix.Prompt{Chains: []prefix.Chain{c}, Tokens: 8212, Home: prefix.Hash(1000 + i)}
	}
	began := time.Now()
	leases := make([]*router.Lease, requests)
	var wg sync.WaitGroup
	for g, m := range members {
		wg.Go(func() {
			for i := g; i < requests; i += gateways {
				for time.Since(began) < time.Duration(i)*20*time.Microsecond {
					time.Sleep(100 * time.Microsecond) // the burst's own pace
				}
				leases[i] = m.acquire(t, ask(i))
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	counts := map[int]int{}
	cold := map[int]bool{}
	busiest := 0
	for _, l := range leases {
		slot := l.Replica().Slot
		counts[slot]++
		cold[slot] = true
		busiest = max(busiest, counts[slot])
	}
	hit := 1 - float64(len(cold))/requests // what each computes once, the others find
	t.Logf("chosen within %v: busiest %.2f × the mean, hit rate %.3f", took, float64(busiest)*replicas/requests, hit)
	if hit < 0.97 || float64(busiest)*replicas/requests > 1.5 {
		t.Errorf("busiest %d of %d: %v, hit rate %.3f", busiest, requests, counts, hit)
	}
	for _, m := range members {
		redistest.Eventually(t, "all load is known everywhere", func() bool { return m.inFlight() == requests })
	}
	for _, l := range leases {
		l.Done(router.Outcome{End: router.Canceled}, time.Now())
	}
	for _, m := range members {
		redistest.Eventually(t, "nothing is left", func() bool { return m.inFlight() == 0 })
	}
}

// TestLeavingIsToldAtOnce, long before silence would tell.
func TestLeavingIsToldAtOnce(t *testing.T) {
	redis := redistest.Start(t)
	one, _ := join(t, "redis://"+redis.Addr, 2)
	two, leave := join(t, "redis://"+redis.Addr, 2)
	meet(t, one, two)
	two.acquire(t, new(prefix.Prompt)) // it is never done
	redistest.Eventually(t, "the load is known", func() bool { return one.inFlight() == 1 })
	began := time.Now()
	leave()
	redistest.Eventually(t, "the load is gone", func() bool { return one.inFlight() == 0 })
	if took := time.Since(began); took > silence/2 {
		t.Errorf("it took %v", took)
	}
}

// TestLoadIsKnownWithinMilliseconds prints the lag; its bound leaves room for a busy machine.
func TestLoadIsKnownWithinMilliseconds(t *testing.T) {
	redis := redistest.Start(t)
	one, _ := join(t, "redis://"+redis.Addr, 2)
	two, _ := join(t, "redis://"+redis.Addr, 2)
	meet(t, one, two)
	var all time.Duration
	const n = 20
	for range n {
		began := time.Now()
		l := one.acquire(t, new(prefix.Prompt))
		for two.inFlight() != 1 {
			if time.Since(began) > 5*time.Second {
				t.Fatal("it is not known")
			}
			time.Sleep(100 * time.Microsecond)
		}
		all += time.Since(began)
		l.Done(router.Outcome{End: router.Canceled}, time.Now())
		for two.inFlight() != 0 {
			time.Sleep(100 * time.Microsecond)
		}
	}
	t.Logf("known after %v on average", all/n)
	if all/n > 200*time.Millisecond {
		t.Errorf("known after %v on average", all/n)
	}
}

// TestGatewaysOverAClusterAndOverSentinels, with a failover of the latter.
func TestGatewaysOverAClusterAndOverSentinels(t *testing.T) {
	works := func(t *testing.T, one, two *member) {
		t.Helper()
		l := one.acquire(t, new(prefix.Prompt))
		redistest.Eventually(t, "the load is known", func() bool { return two.inFlight() == 1 })
		l.Done(router.Outcome{End: router.Canceled}, time.Now())
		redistest.Eventually(t, "the load is gone", func() bool { return two.inFlight() == 0 })
	}
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		nodes, url := redistest.Cluster(t)
		one, _ := join(t, url, 2)
		two, _ := join(t, url, 2)
		meet(t, one, two)
		works(t, one, two)
		with := 0
		for _, n := range nodes {
			if n.Do("DBSIZE") != "0" {
				with++
			}
		}
		if with != 1 {
			t.Errorf("keys on %d nodes, want one", with)
		}
	})
	t.Run("sentinels", func(t *testing.T) {
		t.Parallel()
		master, replica, url := redistest.Sentinels(t)
		one, _ := join(t, url, 2)
		two, _ := join(t, url, 2)
		meet(t, one, two)
		works(t, one, two)
		master.Kill()
		redistest.Eventually(t, "the replica is the master", func() bool { return strings.Contains(replica.Try("ROLE"), "master") })
		for _, m := range []*member{one, two} {
			redistest.Eventually(t, "Redis is used again", func() bool { return value(m.metrics.Hearing) == 1 && value(m.metrics.Telling) == 1 })
		}
		meet(t, one, two)
		works(t, one, two)
	})
}
