package mockvllm

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestStatusFaultStrikesTheNextRequestsOnly(t *testing.T) {
	r := newReplica(t, nil)
	r.SetFaults(Faults{Status: 503, RetryAfter: 1500 * time.Millisecond, Next: 2})
	body := chatBody("x", `,"max_tokens":1`)
	if status, _ := r.text("/health", ""); status != 200 {
		t.Errorf("health: %d", status)
	}
	for i, want := range []int{503, 503, 200} {
		resp, err := r.do("/v1/chat/completions", body)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want || want == 503 && resp.Header.Get("Retry-After") != "2" {
			t.Errorf("request %d: %d, headers %v", i, resp.StatusCode, resp.Header)
		}
	}
}

func TestProbabilityIsRepeatable(t *testing.T) {
	run := func() (hits int, pattern string) {
		var p faultPlan
		p.set(Faults{Status: 500, Probability: 0.25})
		for range 400 {
			if p.take().Status != 0 {
				hits++
				pattern += "x"
			} else {
				pattern += "."
			}
		}
		return hits, pattern
	}
	hits, first := run()
	if _, second := run(); first != second {
		t.Error("two runs differ")
	}
	if hits < 70 || hits > 130 {
		t.Errorf("%d of 400 hit", hits)
	}
}

func TestCutResetsTheConnection(t *testing.T) {
	r := newReplica(t, nil)
	stream := chatBody("x", `,"max_tokens":9,"stream":true`)
	r.SetFaults(Faults{Cut: true})
	if _, err := r.do("/v1/chat/completions", stream); !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, io.EOF) {
		t.Errorf("cut at once: %v", err)
	}
	for _, after := range []int{1, 4} {
		r.SetFaults(Faults{Cut: true, After: after})
		resp, err := r.do("/v1/chat/completions", stream)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if n := strings.Count(string(b), "data: "); err == nil || n != after {
			t.Errorf("%d events before the cut, want %d (%v)", n, after, err)
		}
	}
	resp, err := r.do("/v1/chat/completions", chatBody("x", `,"max_tokens":9`))
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(resp.Body); err == nil || len(b) == 0 {
		t.Errorf("whole answer: %v after %d bytes", err, len(b))
	}
	_ = resp.Body.Close()
	if st := r.Stats(); st.Running+st.Waiting != 0 {
		t.Errorf("engine still works: %+v", st.Counters)
	}
}

func TestErrorInTheStreamIsFollowedByDone(t *testing.T) {
	r := newReplica(t, nil)
	for _, after := range []int{0, 2} {
		r.SetFaults(Faults{Error: true, After: after})
		events := r.events("/v1/chat/completions", chatBody("x", `,"stream":true`))
		if len(events) != after+2 || events[after+1].data != "[DONE]" {
			t.Fatalf("after %d: events %v", after, events)
		}
		parse(t, events[after].data).want("error.code", 500)
	}
	events := r.events("/v1/messages", chatBody("x", `,"stream":true`))
	if last := events[len(events)-1]; last.name != "error" {
		t.Errorf("messages end with %v", last)
	}
	if status, _ := r.text("/v1/chat/completions", chatBody("x", "")); status != 500 {
		t.Errorf("not streamed: status %d", status)
	}
}

func TestAbortLooksLikeACleanEnd(t *testing.T) {
	r := newReplica(t, nil)
	r.SetFaults(Faults{Abort: true, After: 2})
	events := r.events("/v1/chat/completions", chatBody("x", `,"stream":true,"max_tokens":20`))
	if len(events) != 5 { // role, two tokens, end, [DONE]
		t.Fatalf("events %v", events)
	}
	parse(t, events[3].data).want("choices.0.finish_reason", "abort")
	r.SetFaults(Faults{Abort: true})
	v := r.json("/v1/completions", `{"prompt":["a","b"],"max_tokens":20}`)
	v.want("choices.1.finish_reason", "abort")
	v.want("choices.1.text", "")
}

func TestHangLastsUntilTheServerCloses(t *testing.T) {
	for _, after := range []int{0, 3} {
		r := newReplica(t, nil)
		r.SetFaults(Faults{Hang: true, After: after})
		answered := make(chan int, 1)
		go func() {
			resp, err := r.do("/v1/chat/completions", chatBody("x", `,"stream":true`))
			if err != nil {
				answered <- 0
				return
			}
			defer resp.Body.Close()
			b, _ := io.ReadAll(resp.Body)
			answered <- strings.Count(string(b), "data: ")
		}()
		select {
		case n := <-answered:
			t.Fatalf("answered with %d events", n)
		case <-time.After(30 * time.Millisecond):
		}
		r.Close()
		if n := <-answered; n != after {
			t.Errorf("%d events, want %d", n, after)
		}
	}
}

func TestDelaysComeBeforeHeadersAndBetweenEvents(t *testing.T) {
	r := newReplica(t, nil)
	r.SetFaults(Faults{HeaderDelay: 30 * time.Millisecond, EventDelay: 10 * time.Millisecond})
	start := time.Now()
	resp, err := r.do("/v1/chat/completions", chatBody("x", `,"stream":true,"max_tokens":2`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if d := time.Since(start); d < 30*time.Millisecond {
		t.Errorf("headers after %v", d)
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(start); d < 60*time.Millisecond {
		t.Errorf("four events took %v", d)
	}
}

func TestFaultsOverHTTP(t *testing.T) {
	r := newReplica(t, nil)
	if status, text := r.text("/mock/faults", `{"loading":true,"event_delay":"5ms","retry_after":"1s"}`); status != 200 {
		t.Fatalf("%d %s", status, text)
	}
	if status, _ := r.text("/health", ""); status != http.StatusServiceUnavailable {
		t.Errorf("health is %d while loading", status)
	}
	if f := r.faults.take(); f.EventDelay != 5*time.Millisecond || f.RetryAfter != time.Second {
		t.Errorf("faults %+v", f)
	}
	for _, bad := range []string{`{"statsu":500}`, `{"event_delay":5}`, `{"event_delay":"5"}`, `[`} {
		if status, _ := r.text("/mock/faults", bad); status != 400 {
			t.Errorf("%s: status %d", bad, status)
		}
	}
	r.text("/mock/faults", `{}`)
	if status, _ := r.text("/health", ""); status != 200 {
		t.Errorf("health is %d after healing", status)
	}
}
