package gateway_test

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/config"
)

// inTurn makes the first request go to the first replica, and probes so seldom
// that only requests find out what is wrong with one.
func inTurn(c *config.Config) {
	c.Router.Policy = "round-robin"
	c.Replica.ProbeInterval = time.Hour
}

func TestFailedAttemptGoesElsewhereWithTheWholeBody(t *testing.T) {
	body := `{"model":"m1","messages":[{"role":"user","content":"` + words(1, 60<<10) + `"}]}`
	big := `{"model":"m1","messages":[{"role":"user","content":"` + words(1, 4<<20) + `"}]}`
	f := func(name, body, reason string, spoil func(*worker)) {
		t.Run(name, func(t *testing.T) {
			handler := func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"fine":true}`) }
			one, two := newWorker(t, handler), newWorker(t, handler)
			g := start(t, inTurn, one.url, two.url)
			spoil(one)
			a := g.must(chatPath, body)
			if a.body != `{"fine":true}` || a.replica() != two.id {
				t.Errorf("%s answered %s", a.replica(), a.body)
			}
			got := two.requests()
			if len(got) != 1 || got[0].body != body || got[0].length != int64(len(body)) {
				t.Errorf("the second worker got %d requests, not the body once", len(got))
			}
			if n := g.metric("warmpath_retries_total", "replica", one.id, "reason", reason); n != 1 {
				t.Errorf("retries: %q", g.series("warmpath_retries_total"))
			}
			if n := g.metric("warmpath_requests_total"); n != 1 {
				t.Errorf("counted %v times", n)
			}
			g.idle()
		})
	}
	half := func(end func(http.ResponseWriter)) func(*worker) {
		return func(w *worker) {
			w.answer(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.CopyN(io.Discard, r.Body, r.ContentLength/2)
				end(w)
			})
		}
	}
	abort := func(http.ResponseWriter) { panic(http.ErrAbortHandler) }
	busy := func(w http.ResponseWriter) { w.WriteHeader(http.StatusServiceUnavailable) }
	f("refused connection", body, "unreachable", func(w *worker) { w.server.Close() })
	f("closed after half the body", body, "error", half(abort))
	f("reset after half the body", body, "error", half(reset))
	f("closed after half of a big body", big, "error", half(abort))
	f("reset after half of a big body", big, "error", half(reset))
	f("503 after half of a big body", big, "busy", half(busy))
	f("503", body, "busy", func(w *worker) { w.answer(func(w http.ResponseWriter, _ *http.Request) { busy(w) }) })
}

func TestAttemptsAreBounded(t *testing.T) {
	var urls []string
	for range 5 {
		w := newWorker(t, nil)
		w.answer(func(w http.ResponseWriter, _ *http.Request) { reset(w) })
		urls = append(urls, w.url)
	}
	g := start(t, inTurn, urls...)
	refusal(t, g.ask(chatPath, wholeReq), http.StatusBadGateway, "replica_unreachable")
	if n := g.metric("warmpath_retries_total"); n != 2 {
		t.Errorf("tried again %v times, want 2", n)
	}
	if n := g.metric("warmpath_refused_total", "reason", "unreachable"); n != 1 {
		t.Errorf("refused: %q", g.series("warmpath_refused_total"))
	}
	g.idle()
}

func TestReplicaIsAskedAgainAfterOneFault(t *testing.T) {
	w := newWorker(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{}`) })
	g := start(t, nil, w.url)
	w.answer(func(w http.ResponseWriter, _ *http.Request) { reset(w) })
	refusal(t, g.ask(chatPath, wholeReq), http.StatusBadGateway, "replica_unreachable")
	w.answer(nil)
	g.must(chatPath, wholeReq)
}

func TestClientsMistakesDoNotCountAgainstAReplica(t *testing.T) {
	w := newWorker(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Bad") != "" {
			w.WriteHeader(http.StatusBadRequest)
		}
		_, _ = io.WriteString(w, `{}`)
	})
	g := start(t, nil, w.url)
	for range 50 {
		if a := g.ask(chatPath, wholeReq, "X-Bad", "1"); a.status != http.StatusBadRequest {
			t.Fatalf("got %d", a.status)
		}
	}
	g.must(chatPath, wholeReq)
	if p := g.replicas()[0].at("penalty_seconds"); p != 0.0 {
		t.Errorf("penalty %v", p)
	}
}

func TestDownIsNotUnknown(t *testing.T) {
	w := newWorker(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{}`) })
	g := start(t, nil, w.url)
	refusal(t, g.ask(chatPath, `{"model":"nope","messages":[]}`), http.StatusNotFound, "model_not_found")
	refusal(t, g.get("/v1/models/nope"), http.StatusNotFound, "model_not_found")
	w.sick.Store(true)
	eventually(t, "the replica is down", func() bool { return g.metric("warmpath_replica_up") == 0 })
	w.answer(func(w http.ResponseWriter, _ *http.Request) { reset(w) }) // it is tried nonetheless
	refusal(t, g.ask(chatPath, wholeReq), http.StatusServiceUnavailable, "no_replica_ready")
	refusal(t, g.get("/v1/models/m1"), http.StatusServiceUnavailable, "no_replica_ready")
	refusal(t, g.ask(chatPath, `{"model":"nope","messages":[]}`), http.StatusNotFound, "model_not_found")
	for reason, want := range map[string]float64{"unknown_model": 3, "not_ready": 2} {
		if n := g.metric("warmpath_refused_total", "reason", reason); n != want {
			t.Errorf("refused for %s: %v, want %v", reason, n, want)
		}
	}
	for code, want := range map[string]float64{"404": 2, "503": 1, "200": 0} {
		if n := g.metric("warmpath_requests_total", "code", code); n != want {
			t.Errorf("code %s: %v, want %v", code, n, want)
		}
	}
	w.answer(nil)
	w.sick.Store(false)
	eventually(t, "the replica is back", func() bool { return g.metric("warmpath_replica_up") == 1 })
	g.must(chatPath, wholeReq)
}

func TestNoTrafficBeforeAReplicaIsReady(t *testing.T) {
	w := newWorker(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{}`) })
	w.sick.Store(true)
	g := startUnready(t, nil, w.url)
	for range 20 {
		refusal(t, g.ask(chatPath, wholeReq), http.StatusServiceUnavailable, "no_replica_ready")
	}
	refusal(t, g.get("/v1/models"), http.StatusServiceUnavailable, "no_replica_ready")
	if a := g.admin("/readyz"); a.status != http.StatusServiceUnavailable {
		t.Errorf("readyz is %d", a.status)
	}
	if n := len(w.requests()); n != 0 {
		t.Errorf("the worker got %d requests", n)
	}
	w.sick.Store(false)
	eventually(t, "ready", func() bool { return g.admin("/readyz").status == http.StatusOK })
	g.must(chatPath, wholeReq)
}

// refusal holds an answer of the gateway's own to the API's form.
func refusal(t testing.TB, a answer, status int, code string) {
	t.Helper()
	if a.status != status || a.header.Get("Content-Type") != "application/json" {
		t.Errorf("got %d %q, want %d: %s", a.status, a.header.Get("Content-Type"), status, a.body)
		return
	}
	o := parse(t, a.body)
	if o.text("error", "code") != code || o.text("error", "message") == "" || o.text("error", "type") == "" {
		t.Errorf("got %s, want code %s", a.body, code)
	}
	if a.header.Get("X-Request-Id") == "" {
		t.Errorf("no request id on %d %s", status, code)
	}
	if (a.header.Get("Retry-After") != "") != (status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests) {
		t.Errorf("%d with Retry-After %q", status, a.header.Get("Retry-After"))
	}
}

func TestRefusalsAreInTheAPIsForm(t *testing.T) {
	w := newWorker(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{}`) })
	g := start(t, func(c *config.Config) { c.Proxy.MaxBodyBytes, c.Proxy.PolicyHeader = 64<<10, true }, w.url)
	long := `{"model":"m1","messages":[{"role":"user","content":"` + strings.Repeat("x", 64<<10) + `"}]}`

	refusal(t, g.ask(chatPath, `{"model":"m2","messages":[]}`), 404, "model_not_found")
	refusal(t, g.ask("/v1/embeddings", `{"model":"m2","input":"x"}`), 404, "model_not_found")
	refusal(t, g.ask("/v1/nothing", `{}`), 404, "not_found")
	refusal(t, g.get("/"), 404, "not_found")
	refusal(t, g.get("/health"), 404, "not_found") // engines' controls are not for clients
	refusal(t, g.get("/metrics"), 404, "not_found")
	refusal(t, g.ask("/sleep", `{}`), 404, "not_found")
	refusal(t, g.get(chatPath), 405, "method_not_allowed")
	refusal(t, g.ask("/v1/models", `{}`), 405, "method_not_allowed")
	for _, body := range []string{``, `{`, `[]`, `null`, `"x"`, `{"model":"m1",}`, `{"model":"m1","messages":[{"role":}]}`, `{"model":"m1"}`, `{"model":"m1","messages":[]} x`, `{"model":"m1","messages":"hi"}`, `{"model":"m1","messages":[{"content":"a`} {
		refusal(t, g.ask(chatPath, body), 400, "invalid_request")
	}
	refusal(t, g.ask("/v1/embeddings", `{"model"`), 400, "invalid_request")
	refusal(t, g.ask(chatPath, wholeReq, "X-Warmpath-Policy", "no-such"), 400, "invalid_request")
	refusal(t, g.ask(chatPath, long), 413, "request_too_large")
	if n := len(w.requests()); n != 0 {
		t.Errorf("the worker got %d requests", n)
	}

	if a := g.ask(chatPath, `{`, "X-Request-Id", "mine"); a.header.Get("X-Request-Id") != "mine" {
		t.Errorf("the request id became %q", a.header.Get("X-Request-Id"))
	}
	if a := g.get("/v1/nothing", "X-Request-Id", "mine"); a.header.Get("X-Request-Id") != "mine" {
		t.Errorf("the request id became %q", a.header.Get("X-Request-Id"))
	}
	if allow := g.get(chatPath).header.Get("Allow"); allow != "POST" {
		t.Errorf("405 with Allow %q (RFC 9110, 15.5.6)", allow)
	}
	g.idle()
}

// TestTooLargeBodies sends more than the limit in each way that HTTP has: the
// client gets the reason, not a broken connection.
func TestTooLargeBodies(t *testing.T) {
	const limit = 64 << 10
	w := newWorker(t, nil)
	g := start(t, func(c *config.Config) { c.Proxy.MaxBodyBytes = limit }, w.url)
	for _, size := range []int{limit + 1, 300 << 10, 20 << 20} {
		for _, chunked := range []bool{false, true} {
			var body io.Reader = strings.NewReader(strings.Repeat("x", size))
			if chunked {
				body = struct{ io.Reader }{body}
			}
			resp, err := g.client.Post(g.Addr()+chatPath, "application/json", body)
			if err != nil {
				t.Errorf("%d bytes, chunked %v: %v", size, chunked, err)
				continue
			}
			refusal(t, whole(resp), 413, "request_too_large")
		}
	}
	if n := len(w.requests()); n != 0 {
		t.Errorf("the worker got %d requests", n)
	}
}

func TestModelIsNeeded(t *testing.T) {
	handler := func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{}`) }
	f := func(name string, status int, one, two *worker) {
		t.Run(name, func(t *testing.T) {
			g := start(t, nil, one.url, two.url)
			a := g.ask(chatPath, `{"messages":[{"role":"user","content":"hi"}]}`)
			if a.status != status {
				t.Errorf("got %d %s", a.status, a.body)
			}
			if status != http.StatusOK {
				refusal(t, a, status, "invalid_request")
			}
			if a := g.ask("/tokenize", `{"prompt":"hi"}`); a.status != http.StatusOK { // any replica will do
				t.Errorf("got %d %s", a.status, a.body)
			}
		})
	}
	f("no model is everywhere", 400, newWorker(t, handler, "m1"), newWorker(t, handler, "m2"))
	f("the only one is meant", 200, newWorker(t, handler, "m1"), newWorker(t, handler, "m1"))
}

// TestABusyReplicaWhoseAnswerDoesNotEndIsLeftAtOnce: the next one is asked when the
// status is there, whatever becomes of the body.
func TestABusyReplicaWhoseAnswerDoesNotEndIsLeftAtOnce(t *testing.T) {
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	busy := newWorker(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		_ = http.NewResponseController(w).Flush()
		waitFor(r, release)
	})
	good := newWorker(t, func(w http.ResponseWriter, r *http.Request) {
		newStream(t, w, r).send(roleEvent + tok("a") + doneEvent)
	})
	g := start(t, inTurn, busy.url, good.url)
	for range 3 {
		if a := g.must(chatPath, streamReq); a.status != http.StatusOK {
			t.Fatalf("status %d", a.status)
		}
	}
	if len(busy.requests()) == 0 {
		t.Error("the busy replica was never asked")
	}
	g.idle()
}

// TestAModelOfAReplicaThatHasNotAnsweredYetIsNotUnknown: a client would give up on
// a 404.
func TestAModelOfAReplicaThatHasNotAnsweredYetIsNotUnknown(t *testing.T) {
	ok := newWorker(t, func(w http.ResponseWriter, r *http.Request) { newStream(t, w, r).send(tok("a") + doneEvent) })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close() // nobody is there
	g := startUnready(t, nil, ok.url, "http://"+l.Addr().String())
	eventually(t, "the gateway is ready", func() bool { return g.admin("/readyz").status == http.StatusOK })
	if a := g.ask(chatPath, strings.Replace(streamReq, `"m1"`, `"m2"`, 1)); a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") == "" {
		t.Errorf("a model that may come: status %d, %s", a.status, a.body)
	}
	if a := g.ask(chatPath, strings.Replace(streamReq, `"model":"m1",`, "", 1)); a.status != http.StatusOK {
		t.Errorf("no model, and one served by all that answered: status %d, %s", a.status, a.body)
	}
}

// TestWhatAnAttemptSaidIsForgottenWithIt: the first replica takes back an answer of
// which it had begun to tell, and the second does not answer. Nothing of the first
// answer counts for the second replica, or as the client's.
func TestWhatAnAttemptSaidIsForgottenWithIt(t *testing.T) {
	f := func(name, req, answer string) {
		t.Run(name, func(t *testing.T) {
			first := newWorker(t, func(w http.ResponseWriter, r *http.Request) {
				if strings.HasPrefix(answer, "{") {
					_, _ = io.WriteString(w, answer)
					return
				}
				newStream(t, w, r).send(answer)
			})
			second := newWorker(t, nil)
			second.answer(func(w http.ResponseWriter, _ *http.Request) { reset(w) })
			g := start(t, inTurn, first.url, second.url)
			g.ask(chatPath, req)
			g.idle()
			if n := g.metric("warmpath_ttft_seconds_count"); n != 0 {
				t.Errorf("%v first tokens: %q", n, g.series("warmpath_ttft_seconds_count"))
			}
			for _, hop := range []string{"headers", "first_event", "first_token"} {
				if n := g.metric("warmpath_hop_seconds_count", "hop", hop); n != 0 {
					t.Errorf("the hop %s was seen %v times: %q", hop, n, g.series("warmpath_hop_seconds_sum"))
				}
			}
			if n := g.metric("warmpath_prompt_tokens_total"); n != 0 {
				t.Errorf("%v prompt tokens", n)
			}
			if n := g.metric("warmpath_ttft_error_seconds_count"); n != 0 {
				t.Errorf("%v predictions were compared", n)
			}
			if n := g.metric("warmpath_no_first_token_total", "replica", second.id, "reason", "error"); n != 1 {
				t.Errorf("without a first token: %q", g.series("warmpath_no_first_token_total"))
			}
			for _, r := range g.replicas() {
				if r.at("id") == second.id && r.at("penalty_seconds") == 0.0 {
					t.Error("the second replica has no penalty")
				}
			}
			g.logged("msg=request", "replica="+second.id, "attempts=2")
		})
	}
	failure := `{"error":{"message":"out of memory","code":500}}`
	f("streamed", streamReq, tok("a")+use(1)+"data: "+failure+"\n\n")
	f("whole", wholeReq, `{"choices":[{"message":{"content":"a"},"finish_reason":"abort"}],"usage":{"prompt_tokens":5,"completion_tokens":1}}`)
}
