package gateway_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/proxy"
)

// TestUsageIsAskedForAndTakenOutAgain has an engine that tells usage to who asks. The
// client must get what it would have got, in pieces of any size.
func TestUsageIsAskedForAndTakenOutAgain(t *testing.T) {
	const added = `,"stream_options":{"include_usage":true}`
	usage := `data: {"id":"c1","choices":[],"usage":{"prompt_tokens":20,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":16}}}` + "\n\n"
	f := func(name, mode, path, body string, asked bool, before, after string) {
		for _, size := range []int{1, 7, 1 << 20} {
			t.Run(fmt.Sprint(name, " in pieces of ", size), func(t *testing.T) {
				var w *worker
				w = newWorker(t, func(rw http.ResponseWriter, r *http.Request) {
					text := before + after
					seen := w.requests()
					if strings.Contains(seen[len(seen)-1].body, `"include_usage":true`) {
						text = before + usage + after
					}
					s := newStream(t, rw, r)
					for i := 0; i < len(text); i += size {
						s.send(text[i:min(i+size, len(text))])
					}
				})
				g := start(t, func(c *config.Config) { c.Proxy.Usage = mode }, w.url)
				a := g.must(path, body)
				g.idle()
				seen := w.requests()
				got, want := seen[len(seen)-1].body, body
				if asked {
					i := strings.LastIndex(body, "}")
					want = body[:i] + added + body[i:]
				}
				if got != want {
					t.Errorf("the replica got %q, want %q", got, want)
				}
				want = before + after
				if !asked && strings.Contains(body, `"include_usage":true`) {
					want = before + usage + after
				}
				if a.body != want {
					t.Errorf("the client got %q, want %q", a.body, want)
				}
				counted := 0.0
				if strings.Contains(got, `"include_usage":true`) {
					counted = 20
				}
				if n := g.metric("warmpath_prompt_tokens_total"); n != counted {
					t.Errorf("%v prompt tokens were counted, want %v", n, counted)
				}
			})
		}
	}
	before, after := ": ping\n\n"+roleEvent+tok("a")+tok(`"usage"`)+finEvent, doneEvent
	f("asked", proxy.UsageAsk, chatPath, streamReq, true, before, after)
	f("room behind the brace", proxy.UsageAsk, chatPath, streamReq+" \n", true, before, after)
	f("completions", proxy.UsageAsk, "/v1/completions", `{"model":"m1","stream":true,"prompt":"hi"}`, true, `data: {"choices":[{"index":0,"text":"a"}]}`+"\n\n", after)
	f("a long prompt", proxy.UsageAsk, chatPath, `{"model":"m1","stream":true,"messages":[{"role":"user","content":"`+strings.Repeat("x", 4096-73)+`"}]}`, true, before, after)
	f("carriage returns", proxy.UsageAsk, chatPath, streamReq, true, strings.ReplaceAll(before, "\n", "\r\n"), after)
	f("something behind the end", proxy.UsageAsk, chatPath, streamReq, true, before, doneEvent+": bye\n")
	f("the client asks itself", proxy.UsageAsk, chatPath, `{"model":"m1","stream":true,"stream_options":{"include_usage":true},"messages":[]}`, false, before, after)
	f("the client does not want it", proxy.UsageAsk, chatPath, `{"model":"m1","stream":true,"stream_options":{"include_usage":false},"messages":[]}`, false, before, after)
	f("the client says nothing in particular", proxy.UsageAsk, chatPath, `{"model":"m1","stream":true,"stream_options":null,"messages":[]}`, false, before, after)
	f("watched", proxy.UsageWatch, chatPath, streamReq, false, before, after)
}

// TestAStreamWithALengthIsWhole, though it is not as long as it was.
func TestAStreamWithALengthIsWhole(t *testing.T) {
	usage := `data: {"id":"c1","choices":[],"usage":{"prompt_tokens":20,"completion_tokens":3}}` + "\n\n"
	w := newWorker(t, func(w http.ResponseWriter, _ *http.Request) {
		text := tok("a") + usage + doneEvent
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("Content-Length", fmt.Sprint(len(text)))
		_, _ = io.WriteString(w, text)
	})
	g := start(t, func(c *config.Config) { c.Proxy.Usage = proxy.UsageAsk }, w.url)
	if got := g.must(chatPath, streamReq); got.body != tok("a")+doneEvent {
		t.Errorf("the client got %q", got.body)
	}
	g.idle()
}
