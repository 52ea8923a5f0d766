package gateway_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/config"
)

// TestClientGone leaves in each phase of a request: the worker sees it at once and
// nothing stays counted.
func TestClientGone(t *testing.T) {
	f := func(name, body string, sent ...string) {
		t.Run(name, func(t *testing.T) {
			at, gone := make(chan struct{}), make(chan struct{})
			w := newWorker(t, func(w http.ResponseWriter, r *http.Request) {
				if len(sent) > 0 {
					newStream(t, w, r).send(sent...)
				} else {
					close(at)
				}
				<-r.Context().Done()
				close(gone)
			})
			g := start(t, nil, w.url)
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			ended := make(chan error, 1)
			go func() {
				resp, err := g.doContext(ctx, chatPath, []byte(body))
				if err == nil {
					_, _ = io.CopyN(io.Discard, resp.Body, int64(len(strings.Join(sent, ""))))
					close(at)
					_, err = io.Copy(io.Discard, resp.Body)
					_ = resp.Body.Close()
				}
				ended <- err
			}()
			receive(t, "the phase to leave in", at)
			eventually(t, "one in flight", func() bool { return g.metric("warmpath_replica_inflight") == 1 })
			leave()
			began := time.Now()
			receive(t, "the end at the worker", gone)
			if took := time.Since(began); took > time.Second {
				t.Errorf("the worker was told after %v", took)
			}
			_ = receive(t, "the end at the client", ended)
			g.idle()
			code, reason := "499", 1.0
			if len(sent) > 0 {
				code = "200" // that was sent already
			}
			if strings.Contains(strings.Join(sent, ""), `"content":"a"`) {
				reason = 0 // it had its first token
			}
			if n := g.metric("warmpath_requests_total", "code", code); n != 1 {
				t.Errorf("%v requests with code %s: %q", n, code, g.series("warmpath_requests_total"))
			}
			if n := g.metric("warmpath_no_first_token_total", "reason", "canceled"); n != reason {
				t.Errorf("canceled before the first token: %v, want %v", n, reason)
			}
			if n := g.metric("warmpath_retries_total"); n != 0 {
				t.Errorf("tried again %v times for nobody", n)
			}
			if p := g.replicas()[0].number("penalty_seconds"); p != 0 {
				t.Errorf("the replica was blamed: %v", p)
			}
		})
	}
	f("answer pending", wholeReq)
	f("headers pending", streamReq)
	f("after the headers", streamReq, "")
	f("after the role", streamReq, roleEvent)
	f("in mid stream", streamReq, roleEvent, tok("a"))
}

// TestNothingLeaks aborts half of many requests at random moments, on both sides.
func TestNothingLeaks(t *testing.T) {
	handler := func(w http.ResponseWriter, r *http.Request) {
		pause := func() bool {
			timer := time.NewTimer(time.Duration(rand.IntN(3)) * time.Millisecond)
			defer timer.Stop()
			select {
			case <-timer.C:
				return true
			case <-r.Context().Done():
				return false
			}
		}
		if !pause() {
			return
		}
		s := newStream(t, w, r)
		s.send(roleEvent)
		for range 4 {
			if !pause() {
				return
			}
			s.send(tok("a"))
		}
		if rand.IntN(10) == 0 {
			panic(http.ErrAbortHandler)
		}
		s.send(finEvent, use(4), doneEvent)
	}
	one, two, three := newWorker(t, handler), newWorker(t, handler), newWorker(t, handler)
	three.sick.Store(true)
	g := startUnready(t, nil, one.url, two.url, three.url)
	eventually(t, "two are up", func() bool { return g.metric("warmpath_replica_up") == 2 })

	many(500, 25, func(i int) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		if i%2 == 0 {
			timer := time.AfterFunc(time.Duration(rand.IntN(12_000))*time.Microsecond, cancel)
			defer timer.Stop()
		}
		body := fmt.Sprintf(`{"model":"m1","stream":true,"messages":[{"role":"user","content":"question %d"}]}`, i)
		if resp, err := g.doContext(ctx, chatPath, []byte(body)); err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
	})
	g.idle()
	if n := g.metric("warmpath_requests_total"); n > 500 || n < 250 {
		t.Errorf("%v requests were counted", n)
	}
	if n := len(three.requests()); n != 0 {
		t.Errorf("a worker that is not ready got %d requests", n)
	}

	three.sick.Store(false)
	eventually(t, "three are up", func() bool { return g.metric("warmpath_replica_up") == 3 })
	many(90, 9, func(i int) {
		body := fmt.Sprintf(`{"model":"m1","stream":true,"messages":[{"role":"user","content":"another %d"}]}`, i)
		_ = g.ask(chatPath, body)
	})
	if n := len(three.requests()); n < 15 || n > 50 {
		t.Errorf("the fresh worker got %d of 90 requests: %s", n, g.admin("/replicas").body)
	}
	g.idle()
}

// many calls f with 0 to n-1, some at a time.
func many(n, atOnce int, f func(i int)) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			f(i)
		})
	}
	wg.Wait()
}

func TestStopLetsStreamsEnd(t *testing.T) {
	end := make(chan struct{})
	w := newWorker(t, func(w http.ResponseWriter, r *http.Request) {
		s := newStream(t, w, r)
		s.send(roleEvent, tok("a"))
		if s.wait(end) {
			s.send(tok("b"), finEvent, doneEvent)
		}
	})
	g := start(t, nil, w.url)
	if a := g.admin("/readyz"); a.status != 200 {
		t.Fatalf("not ready: %s", a.body)
	}
	resp := g.open(streamReq)
	expect(t, resp.Body, roleEvent+tok("a"))

	stopped := make(chan error, 1)
	go func() { stopped <- g.Stop(t.Context()) }()
	within(t, time.Second, "not ready any more", func() bool { return g.admin("/readyz").status == http.StatusServiceUnavailable })
	if a := g.admin("/healthz"); a.status != 200 {
		t.Errorf("not alive while it drains: %s", a.body)
	}
	close(end)
	expect(t, resp.Body, tok("b")+finEvent+doneEvent)
	if rest, err := io.ReadAll(resp.Body); len(rest) > 0 || err != nil {
		t.Errorf("after the stream: %q, %v", rest, err)
	}
	if err := receive(t, "the end of Stop", stopped); err != nil {
		t.Error(err)
	}
}

func TestStopCutsOffWhatTakesTooLong(t *testing.T) {
	gone := make(chan struct{})
	w := newWorker(t, func(w http.ResponseWriter, r *http.Request) {
		newStream(t, w, r).send(roleEvent, tok("a"))
		<-r.Context().Done()
		close(gone)
	})
	g := start(t, nil, w.url)
	resp := g.open(streamReq)
	expect(t, resp.Body, roleEvent+tok("a"))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := g.Stop(ctx); err == nil {
		t.Error("nobody is told that an answer was cut off")
	}
	rest, err := io.ReadAll(resp.Body)
	if err != nil || !strings.HasPrefix(string(rest), `data: {"error":{"code":"stopping"`) || strings.Contains(string(rest), "[DONE]") {
		t.Errorf("the client cannot tell why its answer ended: %q, %v", rest, err)
	}
	receive(t, "the end at the worker", gone)
}

func TestRunStopsWithItsContext(t *testing.T) {
	w := newWorker(t, func(http.ResponseWriter, *http.Request) {})
	cfg := func(c *config.Config) { c.DrainTimeout = time.Second }
	g := start(t, cfg, w.url)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := g.Stop(ctx); err != nil { // nothing is under way
		t.Error(err)
	}
	if err := g.Stop(t.Context()); err != nil {
		t.Errorf("a second Stop: %v", err)
	}
}

// TestConnectionsThatTheWorkerCloses sends POSTs just when the worker's server
// closes the connection that they would go on.
func TestConnectionsThatTheWorkerCloses(t *testing.T) {
	const idle = 5 * time.Millisecond
	for _, size := range []int{100, 60 << 10, 256 << 10} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			w := &worker{}
			w.server = httptest.NewUnstartedServer(w.handler(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{}`) }))
			w.server.Config.IdleTimeout = idle
			w.server.Start()
			t.Cleanup(w.server.Close)
			g := start(t, nil, w.server.URL)
			body := `{"model":"m1","messages":[{"role":"user","content":"` + strings.Repeat("x", size) + `"}]}`
			for i := range 60 {
				if a := g.ask(chatPath, body); a.status != 200 || a.body != "{}" {
					t.Fatalf("request %d: %d %s\n%s", i, a.status, a.body, g.log)
				}
				timer := time.NewTimer(idle - 500*time.Microsecond + time.Duration(rand.IntN(1000))*time.Microsecond)
				<-timer.C
			}
			if n := len(w.requests()); n != 60 {
				t.Errorf("the worker got %d requests, want 60", n)
			}
			g.idle()
		})
	}
}
