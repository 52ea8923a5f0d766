package gateway_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/test/redistest"
)

// sharing makes a gateway share over a Redis URL.
func sharing(url string) func(*config.Config) {
	return func(c *config.Config) { c.Redis.URL = url }
}

// startSharing runs gateways that share and waits until they know each other.
func startSharing(t testing.TB, n int, url string, replicas ...string) (gates []*gate) {
	t.Helper()
	for range n {
		gates = append(gates, start(t, sharing(url), replicas...))
	}
	for _, g := range gates {
		g.meets(n - 1)
		eventually(t, "the gateway is ready", g.Ready)
	}
	return gates
}

func (g *gate) meets(n int) {
	g.t.Helper()
	eventually(g.t, fmt.Sprintf("%d others are known", n), func() bool { return g.metric("warmpath_share_peers") == float64(n) })
}

// works waits until Redis can be used in both directions.
func (g *gate) works() {
	g.t.Helper()
	eventually(g.t, "Redis is used again", func() bool { return g.metric("warmpath_share_up") == 2 })
}

// talk is a chat request: a system prompt, turns so far and a question.
func talk(turns ...string) string {
	messages := []object{{"role": "system", "content": words(1, 2000)}}
	for i, text := range turns {
		role := "user"
		if i%2 == 1 {
			role = "assistant"
		}
		messages = append(messages, object{"role": role, "content": text})
	}
	body, _ := json.Marshal(object{"model": "mock", "max_tokens": 4, "messages": messages})
	return string(body)
}

// settle gives prefixes the time to get about.
func settle(t testing.TB) { pass(t, time.Now(), 400*time.Millisecond) }

func TestWhatOneGatewayLearnsTheOtherUses(t *testing.T) {
	redis := redistest.Start(t)
	_, urls := mocks(t, 8, nil)
	gates := startSharing(t, 2, "redis://"+redis.Addr, urls...)
	const prompts = 24
	where := make([]string, prompts)
	for i := range where {
		where[i] = gates[i%2].must(chatPath, talk(words(100+i, 8000))).replica()
	}
	settle(t)
	cached, all := 0, 0
	for i := range where {
		a := gates[(i+1)%2].must(chatPath, talk(words(100+i, 8000), "yes", "and then?"))
		if a.replica() != where[i] {
			t.Errorf("prompt %d goes on at %s, it is held by %s", i, a.replica(), where[i])
		}
		cached, all = cached+chatCached(parse(t, a.body)), all+chatPrompt(parse(t, a.body))
	}
	if hit := float64(cached) / float64(all); hit < 0.95 {
		t.Errorf("hit rate %.3f at the other gateway", hit)
	}
	if n := gates[0].metric("warmpath_share_skipped_total"); n != 0 {
		t.Errorf("skipped: %q", gates[0].series("warmpath_share_skipped_total"))
	}
}

// TestLoadOfTheOthersCountsWhileTheyLive: it is there within milliseconds, ends with the
// request, with the gateway that stops, and with one that is heard no more.
func TestLoadOfTheOthersCountsWhileTheyLive(t *testing.T) {
	redis := redistest.Start(t)
	link := redistest.Connect(t, redis.Addr)
	release := make(chan struct{})
	w := newWorker(t, func(w http.ResponseWriter, r *http.Request) {
		s := newStream(t, w, r)
		s.send(roleEvent)
		if s.wait(release) {
			s.send(tok("a"), doneEvent)
		}
	})
	t.Cleanup(func() { close(release) })
	watcher := start(t, sharing("redis://"+redis.Addr), w.url)
	mortal := start(t, sharing("redis://"+link.Addr), w.url)
	watcher.meets(1)
	mortal.meets(1)
	sees := func(n float64, within time.Duration) {
		t.Helper()
		began := time.Now()
		eventually(t, fmt.Sprintf("%v in flight", n), func() bool { return watcher.metric("warmpath_replica_inflight") == n })
		if took := time.Since(began); took > within {
			t.Errorf("%v in flight were known after %v, want %v", n, took, within)
		}
	}
	var open []*http.Response
	for range 5 {
		open = append(open, mortal.open(streamReq))
	}
	sees(5, time.Second)
	_ = open[0].Body.Close()
	sees(4, time.Second)

	link.Cut(true)
	sees(0, 6*time.Second)
	watcher.meets(0)
	link.Cut(false)
	sees(4, 10*time.Second)
	watcher.meets(1)
	for _, r := range open {
		_ = r.Body.Close()
	}
	sees(0, 2*time.Second)
	mortal.idle()
}

func TestSessionsAndResponsesGoOnAtTheOtherGateway(t *testing.T) {
	redis := redistest.Start(t)
	_, urls := mocks(t, 4, nil)
	gates := startSharing(t, 2, "redis://"+redis.Addr, urls...)
	type turn struct{ id, replica string }
	var firsts []turn
	for i := range 12 {
		a := gates[0].must("/v1/responses", `{"model":"mock","max_output_tokens":8,"input":`+quote(words(i, 300))+`}`, "X-Session-Id", fmt.Sprint("s", i))
		firsts = append(firsts, turn{parse(t, a.body).text("id"), a.replica()})
	}
	settle(t)
	for i, f := range firsts {
		a := gates[1].ask("/v1/responses", `{"model":"mock","max_output_tokens":8,"input":"more","previous_response_id":`+quote(f.id)+`}`)
		if a.status != http.StatusOK || a.replica() != f.replica {
			t.Errorf("response %d goes on at %s with %d, it is at %s", i, a.replica(), a.status, f.replica)
		}
		if a := gates[1].must(chatPath, talk("anything"), "X-Session-Id", fmt.Sprint("s", i)); a.replica() != f.replica {
			t.Errorf("session %d goes on at %s, it belongs to %s", i, a.replica(), f.replica)
		}
	}
}

// TestANewGatewayStartsWarm, be it that Redis lost everything in the meantime.
func TestANewGatewayStartsWarm(t *testing.T) {
	redis := redistest.Start(t)
	_, urls := mocks(t, 8, nil)
	url := "redis://" + redis.Addr
	old := startSharing(t, 1, url, urls...)[0]
	teach := func(from int) (where []string) {
		for i := range 16 {
			where = append(where, old.must(chatPath, talk(words(from+i, 8000))).replica())
		}
		settle(t)
		return where
	}
	knows := func(from int, where []string) {
		t.Helper()
		fresh := startUnready(t, sharing(url), urls...)
		eventually(t, "the new gateway is ready", fresh.Ready)
		for i := range where {
			if a := fresh.must(chatPath, talk(words(from+i, 8000), "yes", "and then?")); a.replica() != where[i] {
				t.Errorf("prompt %d goes to %s, %s holds it", i, a.replica(), where[i])
			}
		}
		fresh.logged("warm start")
	}
	where := teach(100)
	knows(100, where)

	redis.Do("FLUSHALL")
	for since := time.Now(); ; { // the old one looks every 5 s; what is in use is told again from then on
		noticed := redis.Do("KEYS", "*prefix*") != ""
		for i := range where {
			old.must(chatPath, talk(words(100+i, 8000)))
		}
		settle(t)
		if noticed {
			break
		}
		if time.Since(since) > 30*time.Second {
			t.Fatal("nothing is told again")
		}
	}
	knows(100, where)
}

func TestAGatewayWithoutRedisBeginsAnyway(t *testing.T) {
	redis := redistest.Start(t)
	_, urls := mocks(t, 2, nil)
	for _, c := range []struct {
		name string
		stop func()
	}{{"frozen", redis.Freeze}, {"dead", redis.Kill}} {
		t.Run(c.name, func(t *testing.T) {
			c.stop()
			g := startUnready(t, func(c *config.Config) { c.Redis.URL, c.Redis.WarmStart = "redis://"+redis.Addr, time.Second }, urls...)
			began := time.Now()
			eventually(t, "it is ready", g.Ready)
			if took := time.Since(began); took < 500*time.Millisecond || took > 4*time.Second {
				t.Errorf("ready after %v", took)
			}
			g.logged("warm start took too long")
			g.must(chatPath, talk("hi"))
		})
	}
}

// load sends chats through gateways until stop is closed, turns of one alternating
// between the gateways, and holds that none fails.
type chatter struct {
	t     *testing.T
	gates []*gate
	stop  chan struct{}
	wg    sync.WaitGroup

	mu          sync.Mutex
	took        []time.Duration
	cached, all int
	failed      int
}

func chat(t *testing.T, clients int, gates ...*gate) *chatter {
	c := &chatter{t: t, gates: gates, stop: make(chan struct{})}
	for i := range clients {
		c.wg.Go(func() { c.client(i) })
	}
	return c
}

func (c *chatter) client(i int) {
	for session := 0; ; session++ {
		turns := []string{words(1000*i+session, 4000)}
		for n := range 4 {
			select {
			case <-c.stop:
				return
			default:
			}
			began := time.Now()
			resp, err := c.gates[(i+n)%len(c.gates)].do(chatPath, []byte(talk(turns...)))
			var text []byte
			if err == nil {
				text, err = io.ReadAll(resp.Body)
				_ = resp.Body.Close()
			}
			c.note(err == nil && resp.StatusCode == http.StatusOK, time.Since(began), string(text), n)
			turns = append(turns, "yes", "and then?")
			pass(c.t, time.Now(), 300*time.Millisecond)
		}
	}
}

func (c *chatter) note(ok bool, took time.Duration, text string, turn int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !ok {
		c.failed++
		return
	}
	c.took = append(c.took, took)
	if turn > 0 {
		o := parse(c.t, text)
		c.cached, c.all = c.cached+chatCached(o), c.all+chatPrompt(o)
	}
}

// since returns what came since the last call: how many requests, the 99th percentile
// of their time, the share of follow-ups' tokens that was cached.
func (c *chatter) since() (n int, p99 time.Duration, hit float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n = len(c.took); n > 0 {
		slices.Sort(c.took)
		p99 = c.took[n*99/100]
	}
	if c.all > 0 {
		hit = float64(c.cached) / float64(c.all)
	}
	c.took, c.cached, c.all = nil, 0, 0
	return n, p99, hit
}

func (c *chatter) end() {
	c.t.Helper()
	close(c.stop)
	c.wg.Wait()
	if c.failed > 0 {
		c.t.Errorf("%d requests failed", c.failed)
	}
}

// trouble is how long Redis is in each.
var trouble = flag.Duration("trouble", 4*time.Second, "how long Redis is in each trouble; from 10s on, in one after another")

// TestRedisInTroubleCostsNoRequest breaks Redis in every way that it has under load: no
// request fails or waits, one log line says so, and it is used again afterwards. Beside
// it, gateways whose Redis is well take the same load, so that the times of both have
// what else the machine does in them.
func TestRedisInTroubleCostsNoRequest(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes half a minute")
	}
	long, room := *trouble >= 10*time.Second, 100*time.Millisecond // other tests run at the same time
	if long {
		room = 30 * time.Millisecond
	}
	f := func(name string, breakIt, mend func(*redistest.Server, *redistest.Link), seen bool, args ...string) {
		t.Run(name, func(t *testing.T) {
			if !long {
				t.Parallel()
			}
			redis := redistest.Start(t, args...)
			link := redistest.Connect(t, redis.Addr)
			_, urls := mocks(t, 4, nil)
			gates := startSharing(t, 2, "redis://"+link.Addr, urls...)
			_, urls = mocks(t, 4, nil)
			others := startSharing(t, 2, "redis://"+redistest.Start(t).Addr, urls...)
			c, control := chat(t, 8, gates...), chat(t, 8, others...)
			pass(t, time.Now(), 2*time.Second)
			_, before, good := c.since()
			control.since()

			breakIt(redis, link)
			pass(t, time.Now(), *trouble)
			n, during, _ := c.since()
			_, beside, _ := control.since()
			if seen {
				for _, g := range gates {
					if g.metric("warmpath_share_up") == 2 {
						t.Error("no gauge says that Redis cannot be used")
					}
					if lines := strings.Count(g.log.String(), "Redis cannot be used"); lines < 1 || lines > 1+int(*trouble/(30*time.Second)) {
						t.Errorf("%d log lines", lines)
					}
				}
			}
			mend(redis, link)
			for _, g := range gates {
				g.works()
				g.meets(1)
			}
			pass(t, time.Now(), time.Second) // follow-ups of what was not told are over
			c.since()
			pass(t, time.Now(), 2*time.Second)
			_, _, after := c.since()
			c.end()
			control.end()
			t.Logf("%d requests meanwhile; P99 %v before, %v meanwhile, %v where Redis is well; cached of follow-ups %.3f before and %.3f after", n, before, during, beside, good, after)
			// A request that waited for Redis would wait half a second at least.
			if most := beside + beside/4 + room; n < 50 || during > most {
				t.Errorf("%d requests while Redis was in trouble, P99 %v, want %v at most", n, during, most)
			}
			if after < good-0.02 {
				t.Errorf("cached of follow-ups: %.3f before, %.3f after", good, after)
			}
			for _, g := range gates {
				g.idle()
			}
		})
	}
	nothing := func(*redistest.Server, *redistest.Link) {}
	f("DEBUG SLEEP", func(s *redistest.Server, _ *redistest.Link) { go s.Sleep(int(trouble.Seconds())) }, nothing, true)
	f("frozen", func(s *redistest.Server, _ *redistest.Link) { s.Freeze() }, func(s *redistest.Server, _ *redistest.Link) { s.Thaw() }, true)
	f("killed", func(s *redistest.Server, _ *redistest.Link) { s.Kill() }, func(s *redistest.Server, _ *redistest.Link) { s.Restart() }, true)
	f("FLUSHALL", func(s *redistest.Server, _ *redistest.Link) { s.Do("FLUSHALL") }, nothing, false)
	f("a link that drops", func(_ *redistest.Server, l *redistest.Link) { l.Cut(true) }, func(_ *redistest.Server, l *redistest.Link) { l.Cut(false) }, true)
	f("full", func(s *redistest.Server, _ *redistest.Link) { s.Do("CONFIG", "SET", "maxmemory", "1") },
		func(s *redistest.Server, _ *redistest.Link) { s.Do("CONFIG", "SET", "maxmemory", "0") }, true, "--maxmemory-policy", "noeviction")
	f("evicting", func(s *redistest.Server, _ *redistest.Link) { s.Do("CONFIG", "SET", "maxmemory", "1500000") },
		func(s *redistest.Server, _ *redistest.Link) { s.Do("CONFIG", "SET", "maxmemory", "0") }, false, "--maxmemory-policy", "allkeys-lru")
	f("a replica", func(s *redistest.Server, _ *redistest.Link) { s.Do("REPLICAOF", "127.0.0.1", "1") },
		func(s *redistest.Server, _ *redistest.Link) { s.Do("REPLICAOF", "NO", "ONE") }, true)
	f("a password", func(s *redistest.Server, _ *redistest.Link) {
		s.Do("ACL", "SETUSER", "default", "resetpass", ">secret")
		s.Try("-a", "secret", "CLIENT", "KILL", "TYPE", "normal")
	}, func(s *redistest.Server, _ *redistest.Link) {
		s.Do("-a", "secret", "--no-auth-warning", "ACL", "SETUSER", "default", "nopass")
	}, true)
}

// TestSharingOverTLS, as a user with a password: with the server's authority in a file
// it works, and with another one or none the log says what to do, and nothing is shared.
func TestSharingOverTLS(t *testing.T) {
	ours, another := newAuthority(t), newAuthority(t)
	cert, key := ours.sign("redis", "redis.test")
	redis, addr := redistest.StartTLS(t, cert, key, ours.file)
	redis.Do("ACL", "SETUSER", "gateways", "on", ">s3cret", "~wp:*", "resetchannels", "-@all",
		"+xadd", "+xread", "+xrevrange", "+xinfo", "+expire", "+set", "+del")
	_, urls := mocks(t, 2, nil)
	over := func(ca string) func(*config.Config) {
		return func(c *config.Config) {
			c.Redis.URL, c.Redis.Password, c.Redis.CAFile, c.Redis.WarmStart = "rediss://gateways@"+addr, "s3cret", ca, time.Second
		}
	}
	trusting := []*gate{start(t, over(ours.file), urls...), start(t, over(ours.file), urls...)}
	for _, g := range trusting {
		g.meets(1)
		g.works()
	}
	held := trusting[0].must(chatPath, talk(words(1, 8000))).replica()
	settle(t)
	if a := trusting[1].must(chatPath, talk(words(1, 8000), "yes", "and then?")); a.replica() != held {
		t.Errorf("it goes on at %s, %s holds it", a.replica(), held)
	}
	for name, ca := range map[string]string{"another authority": another.file, "none": ""} {
		t.Run(name, func(t *testing.T) {
			g := startUnready(t, over(ca), urls...)
			eventually(t, "it begins anyway", g.Ready)
			g.must(chatPath, talk("hi"))
			g.logged("Redis cannot be used", "-redis-ca")
			if up := g.metric("warmpath_share_up"); up != 0 {
				t.Errorf("warmpath_share_up is %v", up)
			}
			if strings.Contains(g.log.String(), "s3cret") {
				t.Error("the password is in the log")
			}
		})
	}
}

// TestEveryKeyExpires, is in one place of a Cluster, and is found without a search.
func TestEveryKeyExpires(t *testing.T) {
	redis := redistest.Start(t)
	_, urls := mocks(t, 2, nil)
	gates := startSharing(t, 2, "redis://"+redis.Addr, urls...)
	gates[0].must(chatPath, talk("hi"))
	settle(t)
	keys := strings.Fields(redis.Do("KEYS", "*"))
	if len(keys) != 4 {
		t.Errorf("keys: %q", keys)
	}
	for _, key := range keys {
		if !strings.HasPrefix(key, "wp:1:{default}:") {
			t.Errorf("key %s", key)
		}
		redis.Do("PERSIST", key) // as if the command that sets it had been lost
	}
	for _, key := range keys {
		eventually(t, key+" expires", func() bool { return !strings.HasPrefix(redis.Do("TTL", key), "-") })
	}
	stats := strings.ToLower(redis.Do("INFO", "commandstats"))
	stats = strings.ReplaceAll(stats, "cmdstat_keys:calls=1,", "") // this test's own
	for _, c := range []string{"cmdstat_keys", "cmdstat_scan", "cmdstat_eval"} {
		if strings.Contains(stats, c) {
			t.Errorf("%s is used", c)
		}
	}
}

// TestNamespacesAreApart.
func TestNamespacesAreApart(t *testing.T) {
	redis := redistest.Start(t)
	_, urls := mocks(t, 2, nil)
	one := start(t, func(c *config.Config) { c.Redis.URL, c.Redis.Namespace = "redis://"+redis.Addr, "a" }, urls...)
	two := start(t, func(c *config.Config) { c.Redis.URL, c.Redis.Namespace = "redis://"+redis.Addr, "b" }, urls...)
	one.must(chatPath, talk("hi"))
	settle(t)
	if n := two.metric("warmpath_share_received_bytes_total", "channel", "prefix"); n != 0 {
		t.Errorf("%v bytes of another fleet came", n)
	}
}

// TestStrangersInTheStreamDoNoHarm writes what no gateway of this version writes.
func TestStrangersInTheStreamDoNoHarm(t *testing.T) {
	redis := redistest.Start(t)
	_, urls := mocks(t, 2, nil)
	g := startSharing(t, 1, "redis://"+redis.Addr, urls...)[0]
	for _, stream := range []string{"wp:1:{default}:load", "wp:1:{default}:prefix"} {
		for _, data := range []string{"", "\x01", "\x02later", "\x01aaaabbbbbbbb\x01\xff\xff\xff", strings.Repeat("\x01", 5000)} {
			redis.Do("XADD", stream, "*", "d", data)
		}
		redis.Do("XADD", stream, "*", "other", "field")
	}
	eventually(t, "they are counted", func() bool { return g.metric("warmpath_share_skipped_total") == 14 })
	if n := g.metric("warmpath_share_skipped_total", "reason", "version"); n != 2 {
		t.Errorf("skipped: %q", g.series("warmpath_share_skipped_total"))
	}
	g.must(chatPath, talk("hi"))
	g.works()
}

// TestRollingRestartKeepsFollowUpsAtHome replaces both gateways, one after the other.
func TestRollingRestartKeepsFollowUpsAtHome(t *testing.T) {
	redis := redistest.Start(t)
	_, urls := mocks(t, 8, nil)
	url := "redis://" + redis.Addr
	gates := startSharing(t, 2, url, urls...)
	const sessions = 40
	hit := func(turn int) float64 {
		cached, all := 0, 0
		for i := range sessions {
			turns := []string{words(100+i, 4000)}
			for range turn {
				turns = append(turns, "yes", "and then?")
			}
			o := parse(t, gates[i%2].must(chatPath, talk(turns...)).body)
			cached, all = cached+chatCached(o), all+chatPrompt(o)
		}
		settle(t)
		return float64(cached) / float64(all)
	}
	hit(0)
	before := hit(1)
	for i := range gates {
		if err := gates[i].Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		within(t, 2*time.Second, "its leaving is known before silence tells", func() bool { return gates[1-i].metric("warmpath_share_peers") == 0 })
		gates[i] = start(t, sharing(url), urls...)
		eventually(t, "the new gateway is ready", gates[i].Ready)
		if during := hit(2 + i); during < 0.95*before {
			t.Errorf("cached after gateway %d was replaced: %.3f, %.3f before", i, during, before)
		}
	}
}

// TestDrainsAndBadNewsGetAbout: a drain at one gateway holds at all, at one that starts
// later too; what one finds to be down another probes at once and believes if it is so.
func TestDrainsAndBadNewsGetAbout(t *testing.T) {
	redis := redistest.Start(t)
	url := "redis://" + redis.Addr
	one, two := newWorker(t, fine(t)), newWorker(t, fine(t))
	seldom := func(c *config.Config) {
		c.Redis.URL, c.Replica.ProbeInterval, c.Router.Policy = url, time.Hour, "round-robin"
	}
	a, b := start(t, seldom, one.url, two.url), start(t, seldom, one.url, two.url)
	a.meets(1)
	b.meets(1)
	order := func(g *gate, what string) {
		t.Helper()
		resp, err := g.client.Post(g.AdminAddr()+"/replicas/"+one.id+"/"+what, "", nil)
		if err != nil || whole(resp).status != http.StatusNoContent {
			t.Fatal(err)
		}
	}
	up := func(g *gate, n float64) {
		t.Helper()
		eventually(t, fmt.Sprintf("%v are up", n), func() bool { return g.metric("warmpath_replica_up") == n })
	}
	order(a, "drain")
	up(b, 1)
	late := startUnready(t, seldom, one.url, two.url)
	eventually(t, "the third is ready", late.Ready)
	up(late, 1)
	order(b, "undrain")
	up(a, 2)
	up(late, 2)

	one.sick.Store(true)
	one.answer(func(w http.ResponseWriter, _ *http.Request) { reset(w) })
	for range 20 {
		a.must(chatPath, streamReq)
	}
	up(a, 1)
	up(b, 1)
	if n := b.metric("warmpath_retries_total"); n != 0 {
		t.Errorf("the other found out by %v requests of its own", n)
	}
}

// TestDrainsAreNotLostWhileAGatewayIsCutOff: what an operator orders at one gateway holds
// at the other, be it that the first could not tell it or the second not hear it.
func TestDrainsAreNotLostWhileAGatewayIsCutOff(t *testing.T) {
	redis := redistest.Start(t)
	link := redistest.Connect(t, redis.Addr)
	one, two := newWorker(t, fine(t)), newWorker(t, fine(t))
	over := func(addr string) *gate {
		return start(t, func(c *config.Config) { c.Redis.URL, c.Replica.ProbeInterval = "redis://"+addr, time.Hour }, one.url, two.url)
	}
	there, away := over(redis.Addr), over(link.Addr)
	there.meets(1)
	away.meets(1)
	order := func(g *gate, what string) {
		t.Helper()
		resp, err := g.client.Post(g.AdminAddr()+"/replicas/"+one.id+"/"+what, "", nil)
		if err != nil || whole(resp).status != http.StatusNoContent {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		what string
		at   *gate
		up   float64
	}{{"drain", there, 1}, {"undrain", there, 2}, {"drain", away, 1}, {"undrain", away, 2}} {
		link.Cut(true)
		there.meets(0) // it was silent for 3 s: its load is of the past
		eventually(t, "it notices", func() bool { return away.metric("warmpath_share_up") == 0 })
		order(c.at, c.what)
		pass(t, time.Now(), 700*time.Millisecond)
		link.Cut(false)
		for _, g := range []*gate{there, away} {
			eventually(t, fmt.Sprintf("the %s is known (cut off: the one ordered %v, this one %v)", c.what, c.at == away, g == away), func() bool { return g.metric("warmpath_replica_up") == c.up })
			g.works()
			g.meets(1)
		}
		if n := there.metric("warmpath_replica_up"); n != c.up {
			t.Errorf("%s: %v are up in the end", c.what, n)
		}
	}
}

// TestEachReplicasMetricsAreReadByOneGateway, of three; when that one goes another does.
func TestEachReplicasMetricsAreReadByOneGateway(t *testing.T) {
	redis := redistest.Start(t)
	var reads atomic.Int32
	var urls []string
	for range 4 {
		m := newMock(t, nil)
		target, err := url.Parse(m.url)
		if err != nil {
			t.Fatal(err)
		}
		front := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
			if r.In.URL.Path == "/metrics" {
				reads.Add(1)
			}
			r.SetURL(target)
		}})
		t.Cleanup(front.Close)
		urls = append(urls, front.URL)
	}
	t.Cleanup(http.DefaultTransport.(*http.Transport).CloseIdleConnections) // the proxies'
	var gates []*gate
	for range 3 {
		gates = append(gates, start(t, func(c *config.Config) {
			c.Redis.URL, c.Replica.ProbeInterval, c.Replica.ScrapeInterval = "redis://"+redis.Addr, 100*time.Millisecond, time.Second
		}, urls...))
	}
	rate := func() float64 {
		pass(t, time.Now(), 2*time.Second) // until all have settled
		reads.Store(0)
		pass(t, time.Now(), 4*time.Second)
		return float64(reads.Load()) / 4 / float64(len(urls))
	}
	for _, g := range gates {
		g.meets(2)
	}
	if n := rate(); n < 0.5 || n > 1.5 {
		t.Errorf("each replica's metrics are read %.2f times a second by three gateways, want about once", n)
	}
	for _, g := range gates[1:] {
		if err := g.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := rate(); n < 0.5 || n > 1.5 {
		t.Errorf("each replica's metrics are read %.2f times a second by the one that is left", n)
	}
}
