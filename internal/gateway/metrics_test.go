package gateway_test

import (
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/config"
)

// TestFirstTokenIsNotTheFirstEvent sends a role, then keeps quiet, then tokens.
func TestFirstTokenIsNotTheFirstEvent(t *testing.T) {
	f := func(name, path, body, before, token, after string) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first, rest := make(chan struct{}), make(chan struct{})
			w := newWorker(t, func(w http.ResponseWriter, r *http.Request) {
				s := newStream(t, w, r)
				s.send(": ping\n\n", before)
				if s.wait(first) {
					s.send(token)
				}
				if s.wait(rest) {
					s.send(token, after)
				}
			})
			g := start(t, nil, w.url)
			began := time.Now()
			resp, err := g.do(path, []byte(body))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = resp.Body.Close() })
			expect(t, resp.Body, ": ping\n\n"+before)
			late := time.Since(began) // at most so much later than here the request arrived there
			pass(t, began, 150*time.Millisecond)
			if n := g.metric("warmpath_ttft_seconds_count"); n != 0 {
				t.Fatal("there is a first token already")
			}
			toFirst := time.Since(began)
			close(first)
			expect(t, resp.Body, token)
			read := time.Since(began)
			pass(t, began, 450*time.Millisecond)
			close(rest)
			expect(t, resp.Body, token+after)
			_, _ = io.Copy(io.Discard, resp.Body)
			g.idle()

			ttft := g.metric("warmpath_ttft_seconds_sum", "replica", w.id, "model", "m1")
			if ttft < (toFirst-late).Seconds() || ttft > read.Seconds() {
				t.Errorf("ttft is %v, the token came between %v and %v", ttft, toFirst-late, read)
			}
			if e2e := g.metric("warmpath_e2e_seconds_sum"); e2e < 0.45-late.Seconds() {
				t.Errorf("the whole took %v", e2e)
			}
			if n := g.metric("warmpath_ttft_seconds_count"); n != 1 {
				t.Errorf("%v first tokens", n)
			}
			if n := g.metric("warmpath_no_first_token_total"); n != 0 {
				t.Errorf("%v without a first token", n)
			}
			hops := g.metric("warmpath_hop_seconds_sum")
			if math.Abs(hops-ttft) > 1e-4 {
				t.Errorf("the hops sum to %v, ttft is %v: %q", hops, ttft, g.series("warmpath_hop_seconds_sum"))
			}
			for _, hop := range []string{"read", "choose", "connect", "headers", "first_event", "first_token"} {
				if n := g.metric("warmpath_hop_seconds_count", "hop", hop); n != 1 {
					t.Errorf("hop %s was seen %v times", hop, n)
				}
			}
			if n := g.metric("warmpath_ttft_error_seconds_count"); n != 1 {
				t.Errorf("%v predictions were compared", n)
			}
		})
	}
	reasoning := func(field string) string {
		return `data: {"choices":[{"index":0,"delta":{"` + field + `":"x"}}]}` + "\n\n"
	}
	f("chat", chatPath, streamReq, roleEvent, tok("a"), finEvent+use(2)+doneEvent)
	f("reasoning", chatPath, streamReq, roleEvent, reasoning("reasoning"), finEvent+doneEvent)
	f("reasoning_content", chatPath, streamReq, roleEvent, reasoning("reasoning_content"), finEvent+doneEvent)
	f("tool call", chatPath, streamReq, roleEvent, `data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"name":"f"}}]}}]}`+"\n\n", finEvent+doneEvent)
	f("completions", "/v1/completions", `{"model":"m1","stream":true,"prompt":"hi"}`, `data: {"choices":[{"index":0,"text":""}]}`+"\n\n", `data: {"choices":[{"index":0,"text":"a"}]}`+"\n\n", doneEvent)
	f("messages", "/v1/messages", `{"model":"m1","stream":true,"messages":[{"role":"user","content":"hi"}]}`,
		"event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"usage\":{\"input_tokens\":5,\"output_tokens\":0}}}\n\n"+
			"event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n",
		"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"a\"}}\n\n",
		"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n")
}

// pass waits until a time has passed since began.
func pass(t testing.TB, began time.Time, d time.Duration) {
	t.Helper()
	within(t, d+patience, "time passes", func() bool { return time.Since(began) >= d })
}

func TestWhyThereIsNoFirstToken(t *testing.T) {
	f := func(reason, body string, handler http.HandlerFunc) {
		t.Run(reason, func(t *testing.T) {
			w := newWorker(t, handler)
			g := start(t, nil, w.url)
			_ = g.ask(chatPath, body)
			g.idle()
			if n := g.metric("warmpath_no_first_token_total", "reason", reason, "replica", w.id, "model", "m1"); n != 1 || g.metric("warmpath_no_first_token_total") != 1 {
				t.Errorf("counted %q", g.series("warmpath_no_first_token_total"))
			}
			if n := g.metric("warmpath_ttft_seconds_count"); n != 0 {
				t.Errorf("%v first tokens", n)
			}
		})
	}
	f("not_streamed", wholeReq, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"choices":[{"message":{"content":"a"}}],"usage":{"prompt_tokens":5,"completion_tokens":1}}`)
	})
	f("refused", streamReq, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadRequest) })
	f("no_output", streamReq, func(w http.ResponseWriter, r *http.Request) { newStream(t, w, r).send(roleEvent, finEvent, doneEvent) })
	f("error", streamReq, func(w http.ResponseWriter, r *http.Request) {
		newStream(t, w, r).send(roleEvent, `data: {"error":{"message":"x"}}`+"\n\n", doneEvent)
	})
	f("error", streamReq, func(w http.ResponseWriter, r *http.Request) {
		newStream(t, w, r).send(roleEvent)
		reset(w)
	})
	f("error", streamReq, func(w http.ResponseWriter, _ *http.Request) { reset(w) })
}

func TestTokensAreCounted(t *testing.T) {
	f := func(name, body, usage string, prompt, cached, unreported float64) {
		t.Run(name, func(t *testing.T) {
			w := newWorker(t, func(w http.ResponseWriter, r *http.Request) {
				if strings.Contains(body, `"stream"`) {
					newStream(t, w, r).send(roleEvent, tok("a"), finEvent, `data: {"choices":[],"usage":`+usage+`}`+"\n\n", doneEvent)
					return
				}
				_, _ = io.WriteString(w, `{"choices":[{"message":{"content":"a"}}],"usage":`+usage+`}`)
			})
			g := start(t, nil, w.url)
			g.must(chatPath, body)
			g.idle()
			for metric, want := range map[string]float64{
				"warmpath_prompt_tokens_total": prompt, "warmpath_cached_tokens_total": cached, "warmpath_cached_unreported_total": unreported,
			} {
				if n := g.metric(metric, "replica", w.id); n != want {
					t.Errorf("%s is %v, want %v", metric, n, want)
				}
			}
		})
	}
	told := `{"prompt_tokens":100,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":48}}`
	silent := `{"prompt_tokens":100,"completion_tokens":3,"prompt_tokens_details":null}`
	none := `{"prompt_tokens":100,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":0}}`
	f("streamed", streamReq, told, 100, 48, 0)
	f("whole", wholeReq, told, 100, 48, 0)
	f("nothing cached", wholeReq, none, 100, 0, 0)
	f("not told, streamed", streamReq, silent, 100, 0, 1)
	f("not told, whole", wholeReq, silent, 100, 0, 1)
}

// TestHopsAddUpWhateverElseIsAsked: answers that are not streamed, that fail, that
// end before a token, or whose replica had to be asked again.
func TestHopsAddUpWhateverElseIsAsked(t *testing.T) {
	asked := 0
	w := newWorker(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != chatPath || r.Header.Get("X-Whole") != "" {
			time.Sleep(20 * time.Millisecond)
			_, _ = io.WriteString(w, `{}`)
			return
		}
		switch asked++; asked % 4 {
		case 1:
			newStream(t, w, r).send(roleEvent + finEvent + doneEvent)
		case 2:
			w.WriteHeader(http.StatusBadRequest)
		case 3:
			newStream(t, w, r).send(`data: {"error":{"message":"no"}}` + "\n\n")
		default:
			newStream(t, w, r).send(roleEvent + tok("a") + finEvent + doneEvent)
		}
	})
	g := start(t, nil, w.url)
	for range 8 {
		g.ask(chatPath, streamReq)
		g.ask(chatPath, wholeReq, "X-Whole", "1")
		g.ask("/tokenize", `{"prompt":"hi"}`)
	}
	g.idle()
	tokens := g.metric("warmpath_ttft_seconds_count")
	if tokens != 2 {
		t.Errorf("%v first tokens, want 2", tokens)
	}
	for _, hop := range []string{"read", "choose", "connect", "headers", "first_event", "first_token"} {
		if n := g.metric("warmpath_hop_seconds_count", "hop", hop); n != tokens {
			t.Errorf("hop %s was seen %v times, want %v", hop, n, tokens)
		}
	}
	if hops, ttft := g.metric("warmpath_hop_seconds_sum"), g.metric("warmpath_ttft_seconds_sum"); math.Abs(hops-ttft) > 1e-6 {
		t.Errorf("the hops sum to %v s, TTFT to %v s", hops, ttft)
	}
}

func TestClientsCannotMakeSeries(t *testing.T) {
	w := newWorker(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{}`) })
	g := start(t, nil, w.url)
	g.must(chatPath, wholeReq)
	g.must("/tokenize", `{"prompt":"x"}`)
	count := func() int { return strings.Count(g.admin("/metrics").body, "\nwarmpath_") }
	before := count()
	many(10_000, 16, func(i int) {
		body := fmt.Sprintf(`{"model":"made-up-%d","prompt":"x","input":"x","messages":[]}`, i)
		path := forwarded[i%len(forwarded)]
		if a := g.ask(path, body, "X-Session-Id", fmt.Sprint(i), "X-Warmpath-Policy", fmt.Sprint(i)); a.status != http.StatusNotFound {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	})
	for i := range 50 {
		_ = g.get(fmt.Sprintf("/v1/models/made-up-%d", i))
		_ = g.get(fmt.Sprintf("/v1/made-up/%d", i))
		_ = g.ask(fmt.Sprintf("/v1/made-up/%d", i), "{}")
	}
	if more := count() - before; more > 8 {
		t.Errorf("%d more series", more)
	}
	if strings.Contains(g.admin("/metrics").body, "made-up") {
		t.Error("a made-up name is on the metrics page")
	}
	if n := g.metric("warmpath_requests_total", "model", "other", "code", "404"); n != 10_000 {
		t.Errorf("%v requests for other models", n)
	}
	if n := g.metric("warmpath_refused_total", "reason", "unknown_model"); n != 10_050 {
		t.Errorf("%v refused", n)
	}
}

// TestSeriesOfAReplica holds that ratios have both sides from the first request on.
func TestSeriesOfAReplica(t *testing.T) {
	_, urls := mocks(t, 2, nil)
	g := start(t, func(c *config.Config) { c.Replica.WarmUp = false }, urls...)
	for i := range 20 {
		g.must(chatPath, forms()[0].body(words(i, 200)))
	}
	g.idle()
	for _, metric := range []string{"warmpath_prompt_tokens_total", "warmpath_predicted_tokens_total", "warmpath_cached_tokens_total", "warmpath_replica_up", "warmpath_replica_inflight", "warmpath_replica_pending_tokens", "warmpath_index_blocks"} {
		if n := len(g.series(metric)); n != 2 {
			t.Errorf("%s has %d series", metric, n)
		}
	}
	engine := 0.0
	for _, url := range urls {
		resp, err := g.client.Get(url + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(whole(resp).body) {
			if strings.HasPrefix(line, "vllm:prompt_tokens_total{") {
				var v float64
				_, text, _ := cutLast(strings.TrimSpace(line), " ")
				_, _ = fmt.Sscan(text, &v)
				engine += v
			}
		}
	}
	if n := g.metric("warmpath_prompt_tokens_total"); n != engine {
		t.Errorf("%v prompt tokens, the engines counted %v", n, engine)
	}
	for _, metric := range []string{"go_goroutines", "process_start_time_seconds"} {
		if len(g.series(metric)) != 1 {
			t.Errorf("no %s", metric)
		}
	}
}

func TestReplicasPage(t *testing.T) {
	list, urls := mocks(t, 2, nil)
	g := start(t, nil, urls...)
	g.must(chatPath, forms()[0].body(words(1, 4000)))
	held := 0
	for i, r := range g.replicas() {
		for name, want := range map[string]any{
			"id": list[i].id, "url": urls[i], "ready": true, "sleeping": false, "in_flight": 0.0, "decoding": 0.0, "pending_tokens": 0.0,
			"block_size": 16.0, "blocks": 4096.0, "capacity_blocks": 4095.0, "engine_running": 0.0, "engine_waiting": 0.0, "penalty_seconds": 0.0,
		} {
			if got := r.at(name); got != want {
				t.Errorf("%s is %v, want %v", name, got, want)
			}
		}
		if models := fmt.Sprint(r.at("models")); models != "[mock]" {
			t.Errorf("models are %s", models)
		}
		held += r.number("held_blocks")
		if strings.Contains(fmt.Sprint(r), "w1x") {
			t.Error("it shows a prompt")
		}
	}
	if held < 50 {
		t.Errorf("%d blocks are held", held)
	}
}

// TestAnswersThatDoNotEndWellAreCountedApart: the status was 200 in all of them.
func TestAnswersThatDoNotEndWellAreCountedApart(t *testing.T) {
	failed := `data: {"error":{"message":"engine died","type":"InternalServerError","code":500}}` + "\n\n"
	aborted := `data: {"id":"c1","choices":[{"index":0,"delta":{},"finish_reason":"abort"}]}` + "\n\n"
	for name, c := range map[string]struct {
		sent   string
		end    func(http.ResponseWriter)
		reason string // "" for an answer that ends well
	}{
		"whole":          {roleEvent + tok("a") + doneEvent, nil, ""},
		"connection cut": {roleEvent + tok("a"), reset, "cut_off"},
		"error event":    {roleEvent + tok("a") + failed + doneEvent, nil, "reported"},
		"aborted":        {roleEvent + tok("a") + aborted + doneEvent, nil, "reported"},
		"no last event":  {roleEvent + tok("a"), nil, "unfinished"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorker(t, func(w http.ResponseWriter, r *http.Request) {
				newStream(t, w, r).send(c.sent)
				if c.end != nil {
					c.end(w)
				}
			})
			g := start(t, nil, w.url)
			resp := g.open(streamReq)
			_, _ = io.Copy(io.Discard, resp.Body) // the cut one fails
			g.idle()
			for _, reason := range []string{"cut_off", "reported", "unfinished", "canceled"} {
				want := 0.0
				if reason == c.reason {
					want = 1
				}
				if n := g.metric("warmpath_broken_total", "reason", reason); n != want {
					t.Errorf("%s: %v, want %v", reason, n, want)
				}
			}
			whole := 0.0
			if c.reason == "" {
				whole = 1
			}
			if n := g.metric("warmpath_e2e_seconds_count"); n != whole {
				t.Errorf("%v answers that ended well, want %v", n, whole)
			}
		})
	}
}
