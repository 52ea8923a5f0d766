package gateway_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/config"
)

const errorEvent = `data: {"error":{"message":"engine died","type":"InternalServerError","code":500}}` + "\n\n"

// fine answers with a short stream, or a short whole.
func fine(t testing.TB) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		newStream(t, w, r).send(roleEvent, tok("a"), finEvent, doneEvent)
	}
}

// TestNothingOfAFailureIsSeenBeforeTheFirstByte has the first of two replicas fail in
// each way that leaves the client without a byte of an answer: the second answers.
func TestNothingOfAFailureIsSeenBeforeTheFirstByte(t *testing.T) {
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	silent := func(w http.ResponseWriter, r *http.Request) { waitFor(r, release) }
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	head := func(then func(*stream)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			s := newStream(t, w, r)
			s.send("")
			then(s)
		}
	}
	quick := func(c *config.Config) {
		inTurn(c)
		c.Proxy.HeaderTimeout, c.Proxy.EventTimeout = 300*time.Millisecond, 300*time.Millisecond
	}
	f := func(name, body, fault, retry string, first http.HandlerFunc) {
		t.Run(name, func(t *testing.T) {
			bad, good := newWorker(t, first), newWorker(t, fine(t))
			g := start(t, quick, bad.url, good.url)
			a := g.must(chatPath, body)
			if want := roleEvent + tok("a") + finEvent + doneEvent; a.body != want {
				t.Errorf("got %q", a.body)
			}
			if len(bad.requests()) != 1 || len(good.requests()) != 1 {
				t.Errorf("%d and %d requests", len(bad.requests()), len(good.requests()))
			}
			if n := g.metric("warmpath_retries_total", "replica", bad.id, "reason", retry); n != 1 {
				t.Errorf("retries: %q", g.series("warmpath_retries_total"))
			}
			want := 1.0
			if fault == "" {
				want = 0
			}
			if n := g.metric("warmpath_replica_faults_total"); n != want || n != g.metric("warmpath_replica_faults_total", "replica", bad.id, "fault", fault) {
				t.Errorf("faults: %q, want one %s", g.series("warmpath_replica_faults_total"), fault)
			}
			g.idle()
		})
	}
	f("500", streamReq, "error", "error", status(500))
	f("502", streamReq, "error", "error", status(502))
	f("429", streamReq, "", "busy", status(429))
	f("503", streamReq, "", "busy", status(503))
	f("no head", streamReq, "late", "late", silent)
	f("no head of a whole answer", wholeReq, "late", "late", silent)
	f("no event", streamReq, "late", "late", head(func(s *stream) { s.wait(release) }))
	f("reset before the head", streamReq, "reset", "error", func(w http.ResponseWriter, _ *http.Request) { reset(w) })
	f("reset after the head", streamReq, "cut_off", "error", head(func(s *stream) { reset(s.w) }))
	f("a stream without events", streamReq, "cut_off", "error", head(func(*stream) {}))
	f("an error for a first event", streamReq, "aborted", "error", head(func(s *stream) { s.send(errorEvent, doneEvent) }))
	f("half a whole answer", wholeReq, "cut_off", "error", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, `{"choices":[{"mess`)
		_ = http.NewResponseController(w).Flush()
		reset(w)
	})
	f("a whole answer that was given up", wholeReq, "aborted", "error", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"choices":[{"message":{"content":""},"finish_reason":"abort"}]}`)
	})
}

// TestWhatNoAttemptCouldSave says what the client gets when all replicas fail.
func TestWhatNoAttemptCouldSave(t *testing.T) {
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	f := func(name string, handler http.HandlerFunc, check func(*testing.T, answer)) {
		t.Run(name, func(t *testing.T) {
			one, two := newWorker(t, handler), newWorker(t, handler)
			g := start(t, func(c *config.Config) {
				inTurn(c)
				c.Proxy.HeaderTimeout, c.Proxy.EventTimeout = 100*time.Millisecond, 100*time.Millisecond
			}, one.url, two.url)
			a := g.ask(chatPath, streamReq)
			check(t, a)
			if n := len(one.requests()) + len(two.requests()); n != 2 {
				t.Errorf("%d attempts", n)
			}
			g.idle()
		})
	}
	f("the last answer is passed on", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(500)
		_, _ = io.WriteString(w, "why")
	}, func(t *testing.T, a answer) {
		if a.status != 500 || a.body != "why" {
			t.Errorf("got %d %s", a.status, a.body)
		}
	})
	f("no head", func(_ http.ResponseWriter, r *http.Request) { waitFor(r, release) }, func(t *testing.T, a answer) {
		refusal(t, a, http.StatusGatewayTimeout, "replica_timeout")
		if a.header.Get("X-Should-Retry") != "false" {
			t.Error("it has taken its whole time: clients should not send it again at once")
		}
	})
	f("no event", func(w http.ResponseWriter, r *http.Request) {
		s := newStream(t, w, r)
		s.send("")
		s.wait(release)
	}, func(t *testing.T, a answer) {
		if a.status != 200 || !strings.HasPrefix(a.body, `data: {"error":{"code":"replica_timeout"`) || a.err != nil {
			t.Errorf("got %d %q %v", a.status, a.body, a.err)
		}
	})
}

// TestSilenceInMidStreamEnds also holds that the time of a stream is not bounded, and
// that a client who is waited for is no silence of its replica.
func TestSilenceInMidStreamEnds(t *testing.T) {
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	w := newWorker(t, func(w http.ResponseWriter, r *http.Request) {
		s := newStream(t, w, r)
		for range 8 {
			s.send(tok("a"))
			pass(t, time.Now(), 50*time.Millisecond)
		}
		s.wait(release)
	})
	g := start(t, func(c *config.Config) { c.Proxy.EventTimeout = 200 * time.Millisecond }, w.url)
	a := g.must(chatPath, streamReq)
	if rest, ok := strings.CutPrefix(a.body, strings.Repeat(tok("a"), 8)); !ok || !strings.HasPrefix(rest, `data: {"error":{`) {
		t.Errorf("got %q", a.body)
	}
	if n := g.metric("warmpath_replica_faults_total", "fault", "late"); n != 1 {
		t.Errorf("faults: %q", g.series("warmpath_replica_faults_total"))
	}
	g.idle()
}

// TestAFrozenReplicasRequestsGoElsewhere: what waits there is not left waiting when
// a probe finds it out; what has begun to come is.
func TestAFrozenReplicasRequestsGoElsewhere(t *testing.T) {
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	waiting := make(chan struct{}, 8)
	frozen := newWorker(t, func(w http.ResponseWriter, r *http.Request) {
		s := newStream(t, w, r)
		if r.Header.Get("X-Begin") != "" {
			s.send(tok("a"))
		} else {
			s.send("")
		}
		waiting <- struct{}{}
		if s.wait(release) {
			s.send(tok("b"), doneEvent)
		}
	})
	spare := newWorker(t, fine(t))
	spare.sick.Store(true)
	g := startUnready(t, nil, frozen.url, spare.url)
	eventually(t, "one is up", func() bool { return g.metric("warmpath_replica_up") == 1 })

	begun := g.open(streamReq, "X-Begin", "1")
	expect(t, begun.Body, tok("a"))
	answers := make(chan answer, 5)
	for range cap(answers) {
		go func() {
			resp, err := g.do(chatPath, []byte(streamReq))
			if err != nil {
				answers <- answer{err: err}
				return
			}
			answers <- whole(resp)
		}()
	}
	for range 6 {
		receive(t, "requests at the replica", waiting)
	}
	spare.sick.Store(false)
	eventually(t, "two are up", func() bool { return g.metric("warmpath_replica_up") == 2 })
	frozen.sick.Store(true)
	for range cap(answers) {
		if a := receive(t, "an answer", answers); a.err != nil || !strings.HasSuffix(a.body, doneEvent) {
			t.Errorf("got %d %q %v", a.status, a.body, a.err)
		}
	}
	if n := len(spare.requests()); n != 5 {
		t.Errorf("the spare got %d requests", n)
	}
	if n := g.metric("warmpath_retries_total", "reason", "late"); n != 5 {
		t.Errorf("retries: %q", g.series("warmpath_retries_total"))
	}
	select {
	case release <- struct{}{}:
	case <-time.After(patience):
		t.Fatal("the stream that had begun is gone")
	}
	expect(t, begun.Body, tok("b")+doneEvent)
	g.idle()
}

// TestWhenAllAreDownOneIsTried holds that a gateway which is wrong about its
// replicas does not refuse what they would answer.
func TestWhenAllAreDownOneIsTried(t *testing.T) {
	w := newWorker(t, fine(t))
	g := start(t, nil, w.url)
	w.sick.Store(true)
	eventually(t, "it is down", func() bool { return g.metric("warmpath_replica_up") == 0 })
	g.must(chatPath, streamReq)
	if state := g.replicas()[0].text("state"); state != "down" {
		t.Errorf("a request's success brought it back, not a probe: %s", state)
	}
}

// TestReplicaThatOnlyPassesHealthChecksGetsNothing.
func TestReplicaThatOnlyPassesHealthChecksGetsNothing(t *testing.T) {
	bad, good := newWorker(t, fine(t)), newWorker(t, fine(t))
	bad.cold.Store(true)
	g := startUnready(t, nil, bad.url, good.url)
	eventually(t, "one is up", func() bool { return g.metric("warmpath_replica_up") == 1 })
	for range 10 {
		g.must(chatPath, streamReq)
	}
	if n := len(bad.requests()); n != 0 {
		t.Errorf("it got %d requests", n)
	}
	bad.cold.Store(false)
	eventually(t, "two are up", func() bool { return g.metric("warmpath_replica_up") == 2 })
	if bad.warmUps.Load() < 2 || good.warmUps.Load() != 1 {
		t.Errorf("%d and %d requests of the gateway's own", bad.warmUps.Load(), good.warmUps.Load())
	}
}

// TestFailingReplicaLeavesTheRotation and comes back, although its health checks say
// nothing.
func TestFailingReplicaLeavesTheRotation(t *testing.T) {
	bad, good := newWorker(t, fine(t)), newWorker(t, fine(t))
	g := start(t, func(c *config.Config) { c.Router.Policy = "round-robin" }, bad.url, good.url)
	bad.cold.Store(true)
	bad.answer(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) })
	for range 20 {
		g.must(chatPath, streamReq)
	}
	eventually(t, "it is out", func() bool { return g.metric("warmpath_replica_up", "replica", bad.id) == 0 })
	n := g.metric("warmpath_retries_total")
	for range 10 {
		g.must(chatPath, streamReq)
	}
	if more := g.metric("warmpath_retries_total") - n; more != 0 {
		t.Errorf("tried %v times while it is out", more)
	}
	bad.answer(nil)
	bad.cold.Store(false)
	eventually(t, "it is back", func() bool { return g.metric("warmpath_replica_up") == 2 })
}

// TestBusyIsNoFault: replicas that ask for less are spared for a while, not taken out.
func TestBusyIsNoFault(t *testing.T) {
	for _, status := range []int{429, 503} {
		w := newWorker(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(status)
		})
		g := start(t, nil, w.url)
		for range 10 {
			if a := g.ask(chatPath, streamReq); a.status != status {
				t.Fatalf("got %d", a.status)
			}
		}
		o := g.replicas()[0]
		if p, _ := o.at("penalty_seconds").(float64); o.text("state") != "ready" || p < 0.5 {
			t.Errorf("state %s, penalty %v", o.text("state"), p)
		}
	}
}

// TestRetriesAreASmallShareOfRequests however many fail.
func TestRetriesAreASmallShareOfRequests(t *testing.T) {
	var attempts atomic.Int32
	handler := func(w http.ResponseWriter, _ *http.Request) {
		attempts.Add(1)
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	one, two := newWorker(t, handler), newWorker(t, handler)
	g := start(t, func(c *config.Config) { c.Proxy.RetryBudget = 0.1 }, one.url, two.url)
	const saved = 500 // in the budget, at the start
	many(2*saved, 16, func(int) {
		if a := g.ask(chatPath, streamReq); a.status != 503 || a.header.Get("Retry-After") != "" {
			t.Errorf("got %d %s", a.status, a.body) // the replica's own
		}
	})
	if n := int(attempts.Load()) - 2*saved; n < saved || n > saved+2*saved/10+1 {
		t.Errorf("%d attempts beyond the first for %d requests", n, 2*saved)
	}
	if left := g.metric("warmpath_retry_budget"); left < 0 || left > 2 {
		t.Errorf("%v attempts are left", left)
	}
	g.idle()
}

// TestConnectionThatDiedIdleIsNoFault.
func TestConnectionThatDiedIdleIsNoFault(t *testing.T) {
	w := newWorker(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{}`) })
	g := start(t, inTurn, w.url)
	for range 20 {
		g.must(chatPath, wholeReq)
		w.server.CloseClientConnections()
	}
	if n := g.metric("warmpath_replica_faults_total") + g.metric("warmpath_retries_total"); n != 0 {
		t.Errorf("faults: %q", g.series("warmpath_replica_faults_total"))
	}
}

// TestUnfinishedStreamIsNotSilentlyShort: it ends regularly, but for its last event.
func TestUnfinishedStreamIsNotSilentlyShort(t *testing.T) {
	w := newWorker(t, func(w http.ResponseWriter, r *http.Request) { newStream(t, w, r).send(roleEvent, tok("a")) })
	g := start(t, nil, w.url)
	a := g.must(chatPath, streamReq)
	if rest, ok := strings.CutPrefix(a.body, roleEvent+tok("a")); !ok || !strings.HasPrefix(rest, `data: {"error":{`) {
		t.Errorf("got %q", a.body)
	}
	if n := g.metric("warmpath_broken_total", "reason", "unfinished"); n != 1 {
		t.Errorf("broken: %q", g.series("warmpath_broken_total"))
	}
}

// TestDrainedReplica gets nothing new, and what it has goes on.
func TestDrainedReplica(t *testing.T) {
	end := make(chan struct{})
	one := newWorker(t, func(w http.ResponseWriter, r *http.Request) {
		s := newStream(t, w, r)
		s.send(tok("a"))
		if s.wait(end) {
			s.send(doneEvent)
		}
	})
	two := newWorker(t, fine(t))
	g := start(t, inTurn, one.url, two.url)
	resp := g.open(streamReq)
	expect(t, resp.Body, tok("a"))
	post := func(path string, header ...string) int {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, g.AdminAddr()+path, nil)
		for i := 0; i+1 < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		resp, err := g.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	if s := post("/replicas/nobody:1/drain"); s != 404 {
		t.Errorf("a replica that is not there: %d", s)
	}
	if s := post("/replicas/" + one.id + "/drown"); s != 404 {
		t.Errorf("something else: %d", s)
	}
	if s := post("/replicas/"+one.id+"/drain", "Sec-Fetch-Site", "cross-site"); s != 403 {
		t.Errorf("a web page may drain replicas: %d", s)
	}
	if s := post("/replicas/" + one.id + "/drain"); s != 204 {
		t.Fatalf("drain: %d", s)
	}
	if o := g.replicas()[0]; o.at("draining") != true || o.at("ready") != false || o.number("in_flight") != 1 {
		t.Errorf("%v", o)
	}
	for range 10 {
		if a := g.must(chatPath, streamReq); a.replica() != two.id {
			t.Errorf("%s answered", a.replica())
		}
	}
	close(end)
	expect(t, resp.Body, doneEvent)
	if s := post("/replicas/" + one.id + "/undrain"); s != 204 {
		t.Fatalf("undrain: %d", s)
	}
	for range 4 {
		g.must(chatPath, streamReq)
	}
	if n := len(one.requests()); n < 2 {
		t.Errorf("it is not back: %d requests", n)
	}
	g.idle()
}

// TestOneHungReplicaDoesNotHoldUpTheOthersRequests (and everybody has an answer).
func TestOneHungReplicaDoesNotHoldUpTheOthersRequests(t *testing.T) {
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	hung := newWorker(t, func(_ http.ResponseWriter, r *http.Request) { waitFor(r, release) })
	quick := newWorker(t, fine(t))
	g := start(t, func(c *config.Config) { c.Proxy.HeaderTimeout = 500 * time.Millisecond }, hung.url, quick.url)
	hung.cold.Store(true)
	var slow atomic.Int32
	began := time.Now()
	many(100, 20, func(i int) {
		at := time.Now()
		a := g.ask(chatPath, strings.Replace(streamReq, "hi", fmt.Sprint("hi ", i), 1))
		if a.status != 200 || a.err != nil {
			t.Errorf("got %d %s %v", a.status, a.body, a.err)
		}
		if time.Since(at) > 400*time.Millisecond {
			slow.Add(1)
		}
	})
	if took := time.Since(began); took > 8*time.Second {
		t.Errorf("all took %v", took)
	}
	if n := slow.Load(); n > 40 {
		t.Errorf("%d of 100 were held up", n)
	}
	eventually(t, "the hung one is out", func() bool { return g.metric("warmpath_replica_up", "replica", hung.id) == 0 })
	g.idle()
}

// TestGoneClientIsItsOwnOutcomeWhenAnAttemptFails leaves while the second attempt is
// under way.
func TestGoneClientIsItsOwnOutcomeWhenAnAttemptFails(t *testing.T) {
	at := make(chan struct{})
	bad := newWorker(t, nil)
	bad.answer(func(w http.ResponseWriter, _ *http.Request) { reset(w) })
	good := newWorker(t, func(_ http.ResponseWriter, r *http.Request) {
		close(at)
		<-r.Context().Done()
	})
	g := start(t, inTurn, bad.url, good.url)
	ctx, leave := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := g.doContext(ctx, chatPath, []byte(streamReq))
		ended <- err
	}()
	receive(t, "the second attempt", at)
	leave()
	_ = receive(t, "the end", ended)
	eventually(t, "it is counted", func() bool { return g.metric("warmpath_requests_total", "code", "499") == 1 })
	if n := g.metric("warmpath_replica_faults_total", "replica", good.id); n != 0 {
		t.Errorf("the second was blamed: %v", n)
	}
	g.idle()
}

// TestProbesLeaveAloneWhatIsCounted: streams stay counted through many probes.
func TestProbesLeaveAloneWhatIsCounted(t *testing.T) {
	release := make(chan struct{})
	w := newWorker(t, func(w http.ResponseWriter, r *http.Request) {
		s := newStream(t, w, r)
		s.send(tok("a"))
		if s.wait(release) {
			s.send(doneEvent)
		}
	})
	g := start(t, func(c *config.Config) {
		c.Replica.ProbeInterval, c.Replica.ScrapeInterval = 10*time.Millisecond, 10*time.Millisecond
	}, w.url)
	var open []*http.Response
	for range 8 {
		resp := g.open(streamReq)
		expect(t, resp.Body, tok("a"))
		open = append(open, resp)
	}
	for range 30 {
		if n := g.metric("warmpath_replica_inflight"); n != 8 {
			t.Fatalf("%v in flight", n)
		}
		pass(t, time.Now(), 10*time.Millisecond)
	}
	close(release)
	for _, resp := range open {
		expect(t, resp.Body, doneEvent)
	}
	g.idle()
}

// TestWhatHasNoAttemptLeftWaitsForItsReplica: to be taken from one that is down would
// do it no good.
func TestWhatHasNoAttemptLeftWaitsForItsReplica(t *testing.T) {
	release, waiting := make(chan struct{}), make(chan struct{}, 1)
	frozen := newWorker(t, func(w http.ResponseWriter, r *http.Request) {
		s := newStream(t, w, r)
		s.send("")
		waiting <- struct{}{}
		if s.wait(release) {
			s.send(tok("a"), doneEvent)
		}
	})
	g := start(t, func(c *config.Config) {
		inTurn(c)
		c.Proxy.Attempts = 1
		c.Replica.ProbeInterval = 50 * time.Millisecond
	}, frozen.url, newWorker(t, fine(t)).url)
	resp := g.open(streamReq)
	receive(t, "the request", waiting)
	frozen.sick.Store(true)
	eventually(t, "it is down", func() bool { return g.metric("warmpath_replica_up") == 1 })
	pass(t, time.Now(), 600*time.Millisecond) // two looks
	close(release)
	if a := whole(resp); a.body != tok("a")+doneEvent {
		t.Errorf("got %q, %v", a.body, a.err)
	}
}
