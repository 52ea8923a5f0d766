package bench

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// timed is what a server of known timing sends: a piece, and when after the
// request. Times are the server's own, so what a busy machine adds is left out.
type timed struct {
	at    time.Duration
	piece string
}

// play serves the pieces and notes when each was really written.
func play(pieces []timed, wrote *[]time.Duration) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		start := time.Now()
		w.Header().Set("Content-Type", "text/event-stream")
		*wrote = nil
		for _, p := range pieces {
			time.Sleep(time.Until(start.Add(p.at)))
			*wrote = append(*wrote, time.Since(start))
			_, _ = w.Write([]byte(p.piece))
			_ = http.NewResponseController(w).Flush()
		}
	}
}

func token(text string) string {
	return fmt.Sprintf(`data: {"choices":[{"index":0,"delta":{"content":%q},"finish_reason":null}]}`+"\n\n", text)
}

func thought(field, text string) string {
	return fmt.Sprintf(`data: {"choices":[{"index":0,"delta":{%q:%q}}]}`+"\n\n", field, text)
}

func tokens(prompt, completion int) string {
	return fmt.Sprintf(`data: {"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}`+"\n\n", prompt, completion)
}

const fin = `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"

// TestKnownTimingIsMeasured has each way in which a client goes wrong as a stream
// whose first and last token's places and token counts are known.
func TestKnownTimingIsMeasured(t *testing.T) {
	const unit = time.Millisecond
	steps := func(from, gap time.Duration, n int, piece string) (out []timed) {
		for i := range n {
			out = append(out, timed{from + time.Duration(i)*gap, piece})
		}
		return out
	}
	then := func(lists ...[]timed) (out []timed) {
		for _, l := range lists {
			out = append(out, l...)
		}
		return out
	}
	at := func(d time.Duration, pieces ...string) []timed { return []timed{{d, strings.Join(pieces, "")}} }
	for name, c := range map[string]struct {
		pieces            []timed
		first, said, last int // index of the piece; -1 is none
		completion, parts int // tokens by usage, and the denominator of TPOT
	}{
		"a role chunk is no token": {
			then(at(5*unit, role), steps(100*unit, 20*unit, 5, token("a")), at(190*unit, fin, tokens(5, 5), done)), 1, 1, 5, 5, 4,
		},
		"a chunk may carry several tokens": {
			then(at(0, role), steps(50*unit, 10*unit, 10, token("four of them now")), at(145*unit, fin, tokens(5, 40), done)), 1, 1, 10, 40, 39,
		},
		"the first chunk's tokens are no gap": {
			then(at(0, role), at(20*unit, `data: {"choices":[{"delta":{"content":"a b c d"}}],"usage":{"prompt_tokens":5,"completion_tokens":4}}`+"\n\n"), steps(40*unit, 10*unit, 4, token("x")), at(80*unit, fin, tokens(5, 8), done)), 1, 1, 5, 8, 4,
		},
		"reasoning is generated, but not the answer": {
			then(at(0, role), steps(20*unit, 10*unit, 6, thought("reasoning_content", "hm")), at(110*unit, token("4")), at(110*unit, fin, tokens(5, 7), done)), 1, 7, 7, 7, 6,
		},
		"reasoning by its newer name, cut by length": {
			then(at(0, role), steps(20*unit, 10*unit, 6, thought("reasoning", "hm")), at(80*unit, strings.Replace(fin, "stop", "length", 1), tokens(5, 6), done)), 1, -1, 6, 6, 5,
		},
		"usage and the end come later and are no token": {
			then(at(20*unit, token("a")), at(40*unit, token("b")), at(80*unit, fin), at(120*unit, tokens(5, 2)), at(130*unit, done)), 0, 0, 1, 2, 1,
		},
		"CRLF and keep-alive comments": {
			then(at(0, ": ping\r\n\r\n:\r\n\r\n"), at(10*unit, crlf(role)), at(30*unit, ": ping\r\n\r\n"), steps(60*unit, 20*unit, 3, crlf(token("a"))), at(105*unit, ":\r\n\r\n", crlf(fin+tokens(5, 3)+done))), 3, 3, 5, 3, 2,
		},
		"data: without a space, null content": {
			then(at(0, tight(`data: {"choices":[{"delta":{"role":"assistant","content":null}}]}`+"\n\n")), steps(50*unit, 10*unit, 3, tight(token("a"))), at(75*unit, tight(fin+tokens(5, 3)+done))), 1, 1, 3, 3, 2,
		},
		"one token has no TPOT": {
			then(at(30*unit, token("a")), at(40*unit, fin, tokens(5, 1), done)), 0, 0, 0, 1, 0,
		},
	} {
		var wrote []time.Duration
		client := serve(t, play(c.pieces, &wrote), Config{})
		client.Send(t.Context(), call) // opens the connection
		var a Answer
		close2 := func(got, want time.Duration) bool { return (got - want).Abs() <= 2*time.Millisecond }
		// A machine that is busy with other work may hold up one try.
		for range 20 {
			a = client.Send(t.Context(), call)
			if close2(a.First, wrote[c.first]) && close2(a.Last, wrote[c.last]) {
				break
			}
		}
		if a.Failure != None || !close2(a.First, wrote[c.first]) || !close2(a.Last, wrote[c.last]) {
			t.Errorf("%s: %v; first %v, last %v, want %v and %v", name, a.Err, a.First, a.Last, wrote[c.first], wrote[c.last])
		}
		if c.said < 0 && a.Said != 0 || c.said >= 0 && (a.Said-a.First-(wrote[c.said]-wrote[c.first])).Abs() > 4*time.Millisecond {
			t.Errorf("%s: the answer began after %v", name, a.Said)
		}
		tpot, ok := a.TPOT()
		if ok != (c.parts > 0) || ok && tpot != (a.Last-a.First)/time.Duration(c.parts) {
			t.Errorf("%s: TPOT %v, %v", name, tpot, ok)
		}
		if a.Usage.Completion != c.completion || a.Usage.Prompt != 5 {
			t.Errorf("%s: usage %+v", name, a.Usage)
		}
	}
}

func crlf(s string) string  { return strings.ReplaceAll(s, "\n", "\r\n") }
func tight(s string) string { return strings.ReplaceAll(s, "data: ", "data:") }

// TestFailuresAreInNoFigureOfSuccess: a stream that fails early is short, and would
// improve every latency just when the server fails.
func TestFailuresAreInNoFigureOfSuccess(t *testing.T) {
	n := 0
	client := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		switch n++; n % 10 {
		case 1:
			write(w, role, token("a"), token("b"), `data: {"error":{"message":"engine died","code":500}}`+"\n\n", done)
		case 2:
			write(w, role, token("a"), token("b"), `data: {"error":"engine died"}`+"\n\n", done)
		case 3:
			w.WriteHeader(http.StatusTooManyRequests)
		default:
			write(w, role, "5ms", token("a"), token("b"), token("c"), fin, tokens(5, 3), done)
		}
	}, Config{})
	var r Recorder
	left := 100
	loop := Closed{Send: client.Send, Users: 1, Done: r.Add, Next: func() *Turn {
		if left--; left < 0 {
			return nil
		}
		return &Turn{Call: func([]Answer) Call { return call }}
	}}
	loop.Run(t.Context())
	got := r.Result()
	if got.Attempted != 100 || got.OK != 70 || got.Failed != 30 || got.Failures["error event"] != 20 || got.Failures["status 429"] != 10 || !strings.Contains(got.FirstFail, "engine died") {
		t.Errorf("%d attempted, %d ok, %v, %q", got.Attempted, got.OK, got.Failures, got.FirstFail)
	}
	if got.TTFT.Count != 70 || got.OutputTokens != 210 || got.TTFT.Min < 5 || got.Late.Count != 100 || math.Abs(got.FailureRate()-0.3) > 1e-9 {
		t.Errorf("TTFT of %d, least %v ms; %d tokens", got.TTFT.Count, got.TTFT.Min, got.OutputTokens)
	}
}

// TestWaitingInTheClientIsReported is a client that may send one request at a time
// to a server that takes 500 ms, at ten a second.
func TestWaitingInTheClientIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r Recorder
		l := Loop{Send: server(500 * time.Millisecond), InFlight: 1, Done: r.Add}
		l.Run(t.Context(), every(100*time.Millisecond, 8))
		got := r.Result()
		if math.Abs(got.E2E.Mean-1900) > 3 || math.Abs(got.Served.Mean-500) > 1 || math.Abs(got.Late.Max-2800) > 3 {
			t.Errorf("end to end %.0f ms, served in %.0f, late by at most %.0f; want 1900, 500 and 2800", got.E2E.Mean, got.Served.Mean, got.Late.Max)
		}
	})
}

func TestAClosedLoopHasItsNumberOfUsers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r Recorder
		left := 10
		c := Closed{Send: server(time.Second), Users: 4, Done: r.Add, Next: func() *Turn {
			if left--; left < 0 {
				return nil
			}
			return &Turn{Call: fixed(""), Think: time.Second, Next: &Turn{Call: fixed("")}}
		}}
		if took := c.Run(t.Context()); took != 9*time.Second || r.Result().OK != 20 {
			t.Errorf("%d answers after %v, want 20 in three rounds of 3 s", r.Result().OK, took)
		}
	})
}

// TestNothingIsDividedByNothing: answers of one token, and none at all, leave a file
// that is valid JSON and says how many samples a figure has.
func TestNothingIsDividedByNothing(t *testing.T) {
	now := time.Now()
	var r, none Recorder
	for i := range 20 {
		a := Answer{Sent: now, First: 10 * time.Millisecond, Last: 30 * time.Millisecond, Took: 40 * time.Millisecond}
		if a.Usage.Completion = 3; i%4 == 0 {
			a.Usage.Completion, a.Last = 1, a.First
		}
		r.Add(a, 0)
	}
	got := r.Result()
	if got.TPOT.Count != 15 || math.Abs(got.TPOT.Mean-10) > .02 || got.TTFT.Count != 20 {
		t.Errorf("TPOT %+v", got.TPOT)
	}
	for _, result := range []*Result{got, none.Result()} {
		data, err := json.Marshal([]*Result{result})
		if err != nil {
			t.Fatal(err)
		}
		if back, err := Parse("x", data); err != nil || back[0].TPOT != result.TPOT {
			t.Errorf("%v: %s", err, data)
		}
	}
	if q, err := got.TPOT.Quantiles(50, 99); err != nil || math.Abs(q[0]-10) > .02 {
		t.Errorf("%v, %v", q, err)
	}
}

func TestWarmUpIsInNoFigure(t *testing.T) {
	start := time.Now()
	r := Recorder{Warm: time.Second, SLO: SLO{TTFT: 100 * time.Millisecond}}
	for i := range 10 {
		r.Add(Answer{Sent: start, At: time.Duration(i) * 250 * time.Millisecond, First: time.Duration(i) * 20 * time.Millisecond, Took: time.Second / 4}, 0)
	}
	got := r.Result()
	if got.WarmUp != 4 || got.Attempted != 6 || got.Good != 2 || math.Abs(got.Seconds-1.5) > 1e-9 || math.Abs(got.GoodPerSecond-2/1.5) > 1e-9 {
		t.Errorf("%d warm, %d measured in %v s, %d good, %v/s", got.WarmUp, got.Attempted, got.Seconds, got.Good, got.GoodPerSecond)
	}
}

func TestFilesOfAnotherKindAreRefused(t *testing.T) {
	for text, want := range map[string]string{`{}`: "no file of bench results", `[]`: "no result", `[{"version":9}]`: "version 1", `[null]`: "version 1"} {
		if _, err := Parse("x.json", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
