package gateway_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/config"
)

func TestEventsReachTheClientOneByOne(t *testing.T) {
	for _, contentType := range []string{"text/event-stream;charset=utf-8", "Text/Event-Stream", "text/event-stream ; charset=utf-8"} {
		t.Run(contentType, func(t *testing.T) {
			next := make(chan struct{})
			w := newWorker(t, func(w http.ResponseWriter, r *http.Request) {
				s := newStream(t, w, r)
				w.Header().Set("Content-Type", contentType)
				s.send("") // the headers
				for _, piece := range []string{": ping\n\n", ":\n\n", roleEvent, tok("a"), tok("b"), finEvent, doneEvent} {
					if !s.wait(next) {
						return
					}
					s.send(piece)
				}
			})
			g := start(t, nil, w.url)
			resp := g.open(streamReq)
			for _, piece := range []string{": ping\n\n", ":\n\n", roleEvent, tok("a"), tok("b"), finEvent, doneEvent} {
				next <- struct{}{} // the next event is written only when this one was read
				began := time.Now()
				expect(t, resp.Body, piece)
				if late := time.Since(began); late > time.Second {
					t.Errorf("%q took %v", piece, late)
				}
			}
			if rest, err := io.ReadAll(resp.Body); len(rest) > 0 || err != nil {
				t.Errorf("after the stream: %q, %v", rest, err)
			}
		})
	}
}

// TestMeterReadsWhatPasses sends streams in ways that must not matter, and looks
// at the client's bytes and at what the gateway read from them.
func TestMeterReadsWhatPasses(t *testing.T) {
	normal := roleEvent + tok("a") + finEvent + use(7) + doneEvent
	cut := strings.Index(normal, `"usage"`) + 3
	bytewise := strings.Split(normal, "")
	tight := strings.ReplaceAll(normal, "data: ", "data:")
	crlf := strings.ReplaceAll(normal, "\n", "\r\n")
	comments := ": ping\n\n:\n\n" + roleEvent + ": half way\n\n" + tok("a") + finEvent + use(7) + doneEvent
	empty := `data: {"choices":[]}` + "\n\n" + `data: {"choices":null}` + "\n\n" + `data: {}` + "\n\n" + normal
	f := func(name string, pieces ...string) {
		t.Run(name, func(t *testing.T) {
			w := newWorker(t, func(w http.ResponseWriter, r *http.Request) { newStream(t, w, r).send(pieces...) })
			g := start(t, nil, w.url)
			a := g.must(chatPath, streamReq)
			if want := strings.Join(pieces, ""); a.body != want {
				t.Errorf("the client got %q, the worker sent %q", a.body, want)
			}
			line := g.logged("msg=request", "status=200", "prompt_tokens=5", "completion_tokens=7")
			if strings.Contains(line, "err=") {
				t.Errorf("a good stream has an error: %s", line)
			}
			for metric, want := range map[string]float64{
				"warmpath_requests_total": 1, "warmpath_ttft_seconds_count": 1, "warmpath_tpot_seconds_count": 1,
				"warmpath_no_first_token_total": 0, "warmpath_prompt_tokens_total": 5, "warmpath_e2e_seconds_count": 1,
			} {
				if got := g.metric(metric); got != want {
					t.Errorf("%s is %v, want %v", metric, got, want)
				}
			}
			g.idle()
		})
	}
	f("one byte per write", bytewise...)
	f("all in one write", normal)
	f("cut inside usage", normal[:cut], normal[cut:])
	f("no space after the colon", tight[:cut], tight[cut:])
	f("CR LF", strings.SplitAfter(crlf, "\r")...)
	f("comments", comments)
	f("chunks without choices", empty)
}

func TestLongEventsPass(t *testing.T) {
	for _, size := range []int{70 << 10, 3 << 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			sent := roleEvent + tok(strings.Repeat("x", size)) + finEvent + use(9) + doneEvent
			w := newWorker(t, func(w http.ResponseWriter, r *http.Request) { newStream(t, w, r).send(sent) })
			g := start(t, nil, w.url)
			if a := g.must(chatPath, streamReq); a.body != sent {
				t.Errorf("the client got %d bytes, the worker sent %d", len(a.body), len(sent))
			}
			g.logged("msg=request", "completion_tokens=9")
		})
	}
}

// TestCutOffStreamDoesNotLookWhole also holds that nothing is sent again to
// another replica once a byte of an answer has gone out.
func TestCutOffStreamDoesNotLookWhole(t *testing.T) {
	sent := roleEvent + tok("a") + tok("b")
	f := func(name, sent string, end func(http.ResponseWriter)) {
		t.Run(name, func(t *testing.T) {
			die := make(chan struct{})
			handler := func(w http.ResponseWriter, r *http.Request) {
				s := newStream(t, w, r)
				s.send(sent)
				s.wait(die)
				end(w)
			}
			one, two := newWorker(t, handler), newWorker(t, handler)
			g := start(t, nil, one.url, two.url)
			resp := g.open(streamReq)
			expect(t, resp.Body, sent)
			close(die)
			rest, err := io.ReadAll(resp.Body)
			if strings.Contains(string(rest), "[DONE]") {
				t.Errorf("the end was made up: %q", rest)
			}
			if err == nil && !strings.Contains(string(rest), `data: {"error":{`) {
				t.Errorf("the client cannot tell: the answer ends with %q", rest)
			}
			if n := len(one.requests()) + len(two.requests()); n != 1 {
				t.Errorf("%d requests reached the workers, want 1", n)
			}
			g.logged("msg=request", "err=")
			g.idle()
			if n := g.metric("warmpath_tpot_seconds_count"); n != 0 {
				t.Errorf("%v times per token of a broken answer", n)
			}
			if n := g.metric("warmpath_requests_total"); n != 1 {
				t.Errorf("counted %v times", n)
			}
			if n := strings.Count(g.log.String(), "goroutine"); n != 0 {
				t.Errorf("the log has a stack trace:\n%s", g.log)
			}
		})
	}
	f("reset", sent, reset)
	f("no last chunk", sent, func(http.ResponseWriter) { panic(http.ErrAbortHandler) })
	f("reset inside an event", sent+`data: {"id":"c1","cho`, reset)
}

func TestCutOffAnswerIsAborted(t *testing.T) {
	f := func(name string, length int) {
		t.Run(name, func(t *testing.T) {
			w := newWorker(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				if length > 0 {
					w.Header().Set("Content-Length", fmt.Sprint(length))
				}
				_, _ = io.WriteString(w, `{"choices":[{"mess`)
				_ = http.NewResponseController(w).Flush()
				reset(w)
			})
			g := start(t, nil, w.url)
			if resp, err := g.do(chatPath, []byte(wholeReq)); err == nil {
				a := whole(resp)
				if length > 0 { // nothing of it had to go out
					refusal(t, a, http.StatusBadGateway, "replica_unreachable")
					return
				}
				if a.err == nil {
					t.Errorf("the client takes %q for a whole answer", a.body)
				}
				if !strings.HasPrefix(`{"choices":[{"mess`, a.body) {
					t.Errorf("extra bytes: %q", a.body)
				}
			}
			g.idle()
			g.logged("msg=request", "err=")
			if strings.Contains(g.log.String(), "goroutine") {
				t.Errorf("the log has a stack trace:\n%s", g.log)
			}
			if n := g.metric("warmpath_requests_total"); n != 1 {
				t.Errorf("counted %v times", n)
			}
		})
	}
	f("with a length", 1000)
	f("chunked", 0)
}

func TestErrorEventIsAFailure(t *testing.T) {
	first, rest := roleEvent+tok("a"), `data: {"error":{"message":"engine died","type":"InternalServerError","code":500}}`+"\n\n"+doneEvent
	read := make(chan struct{})
	handler := func(w http.ResponseWriter, r *http.Request) {
		s := newStream(t, w, r)
		s.send(first)
		if s.wait(read) {
			s.send(rest)
		}
	}
	one, two := newWorker(t, handler), newWorker(t, handler)
	g := start(t, nil, one.url, two.url)
	resp := g.open(streamReq)
	expect(t, resp.Body, first)
	close(read)
	if a := whole(resp); a.body != rest || a.err != nil {
		t.Errorf("the client got %q, %v", a.body, a.err)
	}
	if n := len(one.requests()) + len(two.requests()); n != 1 {
		t.Errorf("%d requests reached the workers, want 1", n)
	}
	g.logged("msg=request", "err=")
	if n := g.metric("warmpath_tpot_seconds_count"); n != 0 {
		t.Errorf("%v times per token of a failed answer", n)
	}
}

func TestErrorAnswersPassUnchanged(t *testing.T) {
	const body = `{"error":{"message":"context too long","type":"BadRequestError","code":400}}` // no newline at its end
	for _, status := range []int{400, 404, 422, 429, 500, 502, 503} {
		for name, request := range map[string]string{"stream": streamReq, "whole": wholeReq} {
			t.Run(fmt.Sprint(status, " ", name), func(t *testing.T) {
				w := newWorker(t, func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Content-Type", "application/json")
					if status == 429 || status == 503 {
						w.Header().Set("Retry-After", "3")
					}
					w.WriteHeader(status)
					_, _ = io.WriteString(w, body)
				})
				g := start(t, nil, w.url)
				a := g.ask(chatPath, request)
				if a.status != status || a.body != body || a.header.Get("Content-Type") != "application/json" {
					t.Errorf("got %d %q %s", a.status, a.header.Get("Content-Type"), a.body)
				}
				if got := a.header.Get("Retry-After"); (got == "3") != (status == 429 || status == 503) {
					t.Errorf("Retry-After is %q", got)
				}
				if n := len(w.requests()); n != 1 {
					t.Errorf("sent %d times", n)
				}
				if n := g.metric("warmpath_requests_total", "code", fmt.Sprint(status)); n != 1 {
					t.Errorf("counted %v times", n)
				}
				if n := g.metric("warmpath_no_first_token_total", "reason", "refused"); n != 1 {
					t.Errorf("no first token: counted %v times", n)
				}
				g.idle()
			})
		}
	}
}

func TestStreamsAreNotCompressed(t *testing.T) {
	next := make(chan struct{})
	w := newWorker(t, func(w http.ResponseWriter, r *http.Request) {
		s := newStream(t, w, r)
		s.send(roleEvent, tok("a"))
		if s.wait(next) {
			s.send(finEvent, use(7), doneEvent)
		}
	})
	g := start(t, nil, w.url)
	resp := g.open(streamReq, "Accept-Encoding", "gzip, br")
	expect(t, resp.Body, roleEvent+tok("a"))
	close(next)
	expect(t, resp.Body, finEvent+use(7)+doneEvent)
	if e := resp.Header.Get("Content-Encoding"); e != "" {
		t.Errorf("plain bytes are called %s", e)
	}
	if e := w.requests()[0].header.Get("Accept-Encoding"); strings.Contains(e, "gzip") || strings.Contains(e, "br") {
		t.Errorf("the worker was asked for %q", e)
	}
	g.logged("msg=request", "completion_tokens=7")
}

// zipped is a stream of events in gzip, each flushed.
func zipped(w io.Writer, end bool, events ...string) {
	z := gzip.NewWriter(w)
	for _, e := range events {
		_, _ = io.WriteString(z, e)
		_ = z.Flush()
	}
	if end {
		_ = z.Close()
	}
}

func TestStreamThatIsCompressedAnyway(t *testing.T) {
	next := make(chan struct{})
	w := newWorker(t, func(w http.ResponseWriter, r *http.Request) {
		s := newStream(t, w, r)
		w.Header().Set("Content-Encoding", "gzip")
		var b bytes.Buffer
		zipped(&b, true, roleEvent, tok("a"), finEvent, use(7), doneEvent)
		half := b.Len() / 2
		s.send(string(b.Next(half)))
		if s.wait(next) {
			s.send(b.String())
		}
	})
	g := start(t, nil, w.url)
	resp := g.open(streamReq, "Accept-Encoding", "gzip, br")
	one := make([]byte, 1)
	if _, err := io.ReadFull(resp.Body, one); err != nil { // it comes before the worker goes on
		t.Fatal(err)
	}
	close(next)
	z, err := gzip.NewReader(io.MultiReader(bytes.NewReader(one), resp.Body))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if want := roleEvent + tok("a") + finEvent + use(7) + doneEvent; string(text) != want || err != nil {
		t.Errorf("got %q, %v", text, err)
	}
	if resp.Header.Get("Content-Encoding") != "gzip" {
		t.Error("the header does not match the bytes")
	}
	g.idle()
	if n := g.metric("warmpath_prompt_tokens_total"); n != 0 {
		t.Errorf("%v prompt tokens were read from gzip", n)
	}
}

func TestCutOffCompressedStreamGetsNoPlainText(t *testing.T) {
	var b bytes.Buffer
	zipped(&b, false, roleEvent, tok("a"))
	sent := b.String()
	w := newWorker(t, func(w http.ResponseWriter, r *http.Request) {
		s := newStream(t, w, r)
		w.Header().Set("Content-Encoding", "gzip")
		s.send(sent)
		reset(w)
	})
	g := start(t, nil, w.url)
	if resp, err := g.do(chatPath, []byte(streamReq)); err == nil {
		if a := whole(resp); a.err == nil || !strings.HasPrefix(sent, a.body) {
			t.Errorf("the client got %q, %v", a.body, a.err)
		}
	}
	g.idle()
}

func TestStreamHeadersForProxiesInFront(t *testing.T) {
	own := false
	w := newWorker(t, func(w http.ResponseWriter, r *http.Request) {
		if own {
			w.Header().Set("Cache-Control", "no-store")
			w.Header().Set("X-Accel-Buffering", "yes")
		}
		newStream(t, w, r).send(doneEvent)
	})
	g := start(t, nil, w.url)
	for _, want := range [][2]string{{"no-cache", "no"}, {"no-store", "yes"}} {
		h := g.must(chatPath, streamReq).header
		if got := [2]string{h.Get("Cache-Control"), h.Get("X-Accel-Buffering")}; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		own = true
	}
	if h := g.must(chatPath, wholeReq).header; h.Get("X-Request-Id") == "" {
		t.Error("no request id")
	}
}

// TestNoTotalTimeLimit holds a stream and an answer longer than every timeout
// that the gateway has, scaled down.
func TestNoTotalTimeLimit(t *testing.T) {
	over := make(chan struct{})
	w := newWorker(t, func(w http.ResponseWriter, r *http.Request) {
		if !strings.Contains(r.Header.Get("Accept"), "event-stream") {
			if waitFor(r, over) {
				_, _ = io.WriteString(w, `{}`)
			}
			return
		}
		s := newStream(t, w, r)
		s.send(roleEvent)
		if s.wait(over) {
			s.send(doneEvent)
		}
	})
	g := start(t, func(c *config.Config) {
		c.Proxy.ConnectTimeout, c.Replica.ProbeTimeout, c.Replica.ProbeInterval = 300*time.Millisecond, 300*time.Millisecond, 50*time.Millisecond
	}, w.url)
	resp := g.open(streamReq, "Accept", "text/event-stream")
	expect(t, resp.Body, roleEvent)
	pending := make(chan answer, 1)
	go func() { pending <- g.ask(chatPath, wholeReq) }()
	began := time.Now()
	eventually(t, "three times the limits", func() bool { return time.Since(began) > time.Second })
	close(over)
	expect(t, resp.Body, doneEvent)
	if a := receive(t, "the answer", pending); a.status != 200 || a.body != "{}" {
		t.Errorf("got %d %s", a.status, a.body)
	}
}
