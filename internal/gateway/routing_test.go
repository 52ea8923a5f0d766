package gateway_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/mockvllm"
)

// form is how one endpoint is asked and answers.
type form struct {
	name, path string
	body       func(text string) string // with text as prompt
	next       func(text, answer, more string) string
	text       func(object) string
	cached     func(object) int
	prompt     func(object) int
}

func first(o object, list string) object {
	items, _ := o[list].([]any)
	if len(items) == 0 {
		return nil
	}
	m, _ := items[0].(map[string]any)
	return m
}

func chatCached(o object) int { return o.number("usage", "prompt_tokens_details", "cached_tokens") }
func chatPrompt(o object) int { return o.number("usage", "prompt_tokens") }

// forms are the endpoints that are routed by prefix.
func forms() []form {
	tokens := func(text string) string {
		ids, _ := json.Marshal(mockvllm.Encode(text))
		return string(ids)
	}
	completion := func(prompt string) string { return `{"model":"mock","max_tokens":64,"prompt":` + prompt + `}` }
	completionText := func(o object) string { return first(o, "choices").text("text") }
	return []form{
		{
			name: "chat", path: chatPath,
			body: func(text string) string {
				return `{"model":"mock","max_tokens":64,"messages":[{"role":"system","content":"be brief"},{"role":"user","content":` + quote(text) + `}]}`
			},
			next: func(text, answer, more string) string {
				return `{"model":"mock","max_tokens":64,"messages":[{"role":"system","content":"be brief"},{"role":"user","content":` + quote(text) + `},{"role":"assistant","content":` + quote(answer) + `},{"role":"user","content":` + quote(more) + `}]}`
			},
			text:   func(o object) string { return first(o, "choices").text("message", "content") },
			cached: chatCached, prompt: chatPrompt,
		},
		{
			name: "completions", path: "/v1/completions",
			body: func(text string) string { return completion(quote(text)) },
			next: func(text, answer, more string) string { return completion(quote(text + answer + more)) },
			text: completionText, cached: chatCached, prompt: chatPrompt,
		},
		{
			name: "completions by token", path: "/v1/completions",
			body: func(text string) string { return completion(tokens(text)) },
			next: func(text, answer, more string) string { return completion(tokens(text + answer + more)) },
			text: completionText, cached: chatCached, prompt: chatPrompt,
		},
		{
			name: "completions of a batch", path: "/v1/completions",
			body:   func(text string) string { return completion("[" + quote("one "+text) + "," + quote("two "+text) + "]") },
			cached: chatCached, prompt: chatPrompt,
		},
		{
			name: "responses", path: "/v1/responses",
			body: func(text string) string {
				return `{"model":"mock","max_output_tokens":64,"input":` + quote(text) + `}`
			},
			next: func(text, answer, more string) string {
				return `{"model":"mock","max_output_tokens":64,"input":[{"role":"user","content":` + quote(text) + `},{"role":"assistant","content":` + quote(answer) + `},{"role":"user","content":` + quote(more) + `}]}`
			},
			text: func(o object) string {
				part := first(o, "output")
				return first(part, "content").text("text")
			},
			cached: func(o object) int { return o.number("usage", "input_tokens_details", "cached_tokens") },
			prompt: func(o object) int { return o.number("usage", "input_tokens") },
		},
		{
			name: "messages", path: "/v1/messages",
			body: func(text string) string {
				return `{"model":"mock","max_tokens":64,"system":"be brief","messages":[{"role":"user","content":` + quote(text) + `}]}`
			},
			next: func(text, answer, more string) string {
				return `{"model":"mock","max_tokens":64,"system":"be brief","messages":[{"role":"user","content":` + quote(text) + `},{"role":"assistant","content":` + quote(answer) + `},{"role":"user","content":` + quote(more) + `}]}`
			},
			text:   func(o object) string { return first(o, "content").text("text") },
			cached: func(o object) int { return o.number("usage", "cache_read_input_tokens") },
			prompt: func(o object) int {
				return o.number("usage", "input_tokens") + o.number("usage", "cache_read_input_tokens") + o.number("usage", "cache_creation_input_tokens")
			},
		},
	}
}

// TestSecondTimeIsAHit asks the same twice, then goes on with the conversation.
func TestSecondTimeIsAHit(t *testing.T) {
	for _, f := range forms() {
		t.Run(f.name, func(t *testing.T) {
			_, urls := mocks(t, 3, nil)
			g := start(t, nil, urls...)
			text := words(1, 6000)
			one := g.must(f.path, f.body(text))
			if n := f.cached(parse(t, one.body)); n != 0 {
				t.Fatalf("a first prompt had %d tokens cached", n)
			}
			if cached, _ := one.predicted(); cached != 0 {
				t.Errorf("%d tokens were predicted of a first prompt", cached)
			}
			two := g.must(f.path, f.body(text))
			near(t, "the second time", f, one, two)
			if f.next == nil {
				return
			}
			three := g.must(f.path, f.next(text, f.text(parse(t, one.body)), " and now go on with it"))
			near(t, "the next turn", f, one, three)
			engine := f.cached(parse(t, three.body))
			if before := f.prompt(parse(t, one.body)); engine < before {
				t.Errorf("the engine had %d tokens of the next turn cached, the first turn alone has %d: the test's conversation is not one", engine, before)
			}
		})
	}
}

// near holds a prediction to what the engine reported.
func near(t *testing.T, what string, f form, before, after answer) {
	t.Helper()
	o := parse(t, after.body)
	engine, total := f.cached(o), f.prompt(o)
	predicted, prompt := after.predicted()
	if after.replica() != before.replica() {
		t.Errorf("%s: went to %s, not to %s, which has it", what, after.replica(), before.replica())
	}
	if engine == 0 {
		t.Errorf("%s: nothing was cached", what)
	}
	// Less is predicted where the prompt is one text: its end is not at a cut.
	if d := predicted - engine; d > 48 || d < -48-total/8 {
		t.Errorf("%s: predicted %d of %d tokens, the engine had %d of %d", what, predicted, prompt, engine, total)
	}
}

// TestSharedPromptSpreadsAndSessionsStay is many conversations that begin with the
// same long text: bugs.md D02, which asks for at most 1.5 x the mean on the busiest
// replica and for 90 % of later turns where their session's first one went.
// What it measures takes time that other work may take away, so it may try again; on
// a machine that has none to give it says nothing.
func TestSharedPromptSpreadsAndSessionsStay(t *testing.T) {
	const tries = 3
	for try := 1; ; try++ {
		late := lateness(t)
		wrong := sharedPrompt(t)
		if wrong == "" {
			return
		}
		share := late()
		t.Logf("try %d, %.0f %% of all timers late: %s", try, 100*share, wrong)
		switch {
		case try < tries:
		case share > 0.2:
			t.Skip("this machine is too busy to say")
		default:
			t.Fatalf("in none of %d tries", tries)
		}
	}
}

// lateness begins to measure how many timers fire 5 ms late or more; what it returns
// ends that.
func lateness(t testing.TB) (share func() float64) {
	stop, done := make(chan struct{}), make(chan float64)
	go func() {
		late, all := 0.0, 0.0
		for {
			began := time.Now()
			select {
			case <-stop:
				done <- late / max(1, all)
				return
			case <-time.After(2 * time.Millisecond):
			}
			if all++; time.Since(began) > 7*time.Millisecond {
				late++
			}
		}
	}()
	var once sync.Once
	end := func() (v float64) {
		once.Do(func() { close(stop); v = <-done })
		return v
	}
	t.Cleanup(func() { end() })
	return end
}

// sharedPrompt returns what was wrong, "" if nothing was.
func sharedPrompt(t *testing.T) (wrong string) {
	_, urls := mocks(t, 4, func(c *mockvllm.Config) { // an engine's pace: faster ones would measure this machine
		usual := mockvllm.DefaultConfig()
		c.StepBase, c.PrefillPerToken, c.DecodePerSeq = usual.StepBase, usual.PrefillPerToken, usual.DecodePerSeq
	})
	g := start(t, nil, urls...)
	system := words(0, 4<<10)
	const sessions, turns = 200, 5
	var mu sync.Mutex
	count, moved, stayed, predicted := map[string]int{}, map[string]int{}, 0, 0
	many(sessions, 50, func(i int) {
		turnsSoFar := []object{{"role": "system", "content": system}}
		home := ""
		for turn := range turns {
			turnsSoFar = append(turnsSoFar, object{"role": "user", "content": words(1000*i+turn+1, 300)})
			body, _ := json.Marshal(object{"model": "mock", "stream": true, "max_tokens": 8, "stream_options": object{"include_usage": true}, "messages": turnsSoFar})
			a := g.must(chatPath, string(body))
			turnsSoFar = append(turnsSoFar, object{"role": "assistant", "content": streamed(t, a.body)})
			mu.Lock()
			count[a.replica()]++
			if turn == 0 {
				home = a.replica()
			} else if a.replica() == home {
				stayed++
			} else {
				moved[a.header.Get("X-Warmpath-Reason")]++
			}
			if n, _ := a.predicted(); turn > 0 && n > 0 {
				predicted++
			}
			mu.Unlock()
		}
	})
	busiest := 0
	for _, n := range count {
		busiest = max(busiest, n)
	}
	t.Logf("requests %v, stayed %d", count, stayed)
	g.idle()
	cached, all, foretold := g.metric("warmpath_cached_tokens_total"), g.metric("warmpath_prompt_tokens_total"), g.metric("warmpath_predicted_tokens_total")
	later := sessions * (turns - 1)
	switch {
	case busiest > sessions*turns/4*3/2:
		return fmt.Sprintf("the busiest of four replicas got %d of %d requests: %v\n%s", busiest, sessions*turns, count, g.admin("/replicas").body)
	case stayed < later*9/10:
		return fmt.Sprintf("%d of %d later turns went where the first one did; the others moved for %v", stayed, later, moved)
	case predicted < later*9/10:
		return fmt.Sprintf("%d of %d later turns were predicted to hit", predicted, later)
	case cached/all < 0.7:
		return fmt.Sprintf("%.2f of all prompt tokens were cached", cached/all)
	case foretold < cached*0.9 || foretold > cached*1.1:
		return fmt.Sprintf("predicted %v tokens, cached were %v", foretold, cached)
	}
	return ""
}

// streamed returns the text of a streamed chat.
func streamed(t testing.TB, body string) (text string) {
	for line := range strings.Lines(body) {
		data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: ")
		if ok && data != "[DONE]" {
			text += first(parse(t, data), "choices").text("delta", "content")
		}
	}
	return text
}

func TestRestartedReplicaIsKnownToBeEmpty(t *testing.T) {
	m := newMock(t, nil)
	g := start(t, func(c *config.Config) { c.Replica.ScrapeInterval = 50 * time.Millisecond }, m.url)
	chat := forms()[0]
	body := chat.body(words(1, 6000))
	g.must(chat.path, body)
	near(t, "before", chat, g.must(chat.path, body), g.must(chat.path, body))
	if n := g.replicas()[0].number("held_blocks"); n == 0 {
		t.Fatal("it is believed to hold nothing")
	}

	m.close()
	eventually(t, "it is down", func() bool { return g.metric("warmpath_replica_up") == 0 })
	l, err := net.Listen("tcp", m.id)
	if err != nil {
		t.Fatal(err)
	}
	newMockOn(t, l, nil)
	eventually(t, "it is up again", func() bool { return g.metric("warmpath_replica_up") == 1 })
	eventually(t, "it is believed to hold nothing", func() bool { return g.replicas()[0].number("held_blocks") == 0 })
	a := g.must(chat.path, body)
	if predicted, _ := a.predicted(); predicted != 0 || chat.cached(parse(t, a.body)) != 0 {
		t.Errorf("predicted %d, cached %d", predicted, chat.cached(parse(t, a.body)))
	}
}

// TestRestartThatNoProbeSaw is a restart so short that no probe failed.
func TestRestartThatNoProbeSaw(t *testing.T) {
	m := newMock(t, nil)
	g := start(t, func(c *config.Config) {
		c.Replica.ScrapeInterval, c.Replica.ProbeInterval = 400*time.Millisecond, 400*time.Millisecond
	}, m.url)
	chat := forms()[0]
	body := chat.body(words(1, 6000))
	g.must(chat.path, body)
	resp, err := g.client.Post(m.url+"/reset_prefix_cache", "", nil) // then the counters go on, but the cache is empty
	if err != nil {
		t.Fatal(err)
	}
	whole(resp)
	if a := g.must(chat.path, body); chat.cached(parse(t, a.body)) != 0 {
		t.Fatal("the cache was not reset")
	}
	near(t, "after a shortfall it is there again", chat, g.must(chat.path, body), g.must(chat.path, body))
	m.close()
	l, err := net.Listen("tcp", m.id)
	if err != nil {
		t.Fatal(err)
	}
	newMockOn(t, l, nil)
	eventually(t, "it is believed to hold nothing", func() bool { return g.replicas()[0].number("held_blocks") == 0 })
}

func TestModelsHaveNothingInCommon(t *testing.T) {
	_, urls := mocks(t, 2, func(c *mockvllm.Config) { c.Model, c.Adapters = "m1", []string{"m1-a"} })
	g := start(t, nil, urls...)
	chat := forms()[0]
	ask := func(model string) answer {
		return g.must(chatPath, strings.Replace(chat.body(words(1, 4<<10)), `"mock"`, quote(model), 1))
	}
	ask("m1")
	a := ask("m1-a")
	if cached, _ := a.predicted(); cached != 0 || chat.cached(parse(t, a.body)) != 0 {
		t.Errorf("an adapter's first prompt: predicted %d, cached %d", cached, chat.cached(parse(t, a.body)))
	}
	for _, model := range []string{"m1", "m1-a"} {
		a := ask(model)
		if cached, _ := a.predicted(); cached == 0 || chat.cached(parse(t, a.body)) == 0 {
			t.Errorf("%s for the second time: predicted %d, cached %d", model, cached, chat.cached(parse(t, a.body)))
		}
	}
}

func TestContentInParts(t *testing.T) {
	list, urls := mocks(t, 2, nil)
	g := start(t, func(c *config.Config) { c.Replica.WarmUp = false }, urls...)
	body := func(image string) string {
		return `{"model":"mock","max_tokens":4,"messages":[{"role":"user","content":[{"type":"text","text":` + quote(words(1, 3000)) + `},{"type":"image_url","image_url":{"url":"data:image/png;base64,` + image + `"}}]}]}`
	}
	one := g.must(chatPath, body("AAAA"))
	two := g.must(chatPath, body("AAAA"))
	if cached, _ := two.predicted(); cached == 0 || one.replica() != two.replica() {
		t.Errorf("the same image and text: predicted %d on %s", cached, two.replica())
	}
	sent := 0
	for _, m := range list {
		for _, r := range m.Requests() {
			sent++
			if string(r.Body) != body("AAAA") {
				t.Errorf("the body became %s", r.Body)
			}
		}
	}
	if sent != 2 {
		t.Errorf("%d requests", sent)
	}
}

// TestResponsesGoOnWhereTheyAre holds that what only one process can continue or
// show goes to that process.
func TestResponsesGoOnWhereTheyAre(t *testing.T) {
	_, urls := mocks(t, 3, nil)
	g := start(t, nil, urls...)
	type made struct{ id, replica string }
	all := make([]made, 30)
	many(len(all), 10, func(i int) {
		body := fmt.Sprintf(`{"model":"mock","max_output_tokens":4,"stream":%v,"input":%s}`, i%2 == 0, quote(words(i, 800)))
		a := g.must("/v1/responses", body)
		id := ""
		if i%2 == 0 {
			_, rest, _ := strings.Cut(a.body, `"id":"resp_`)
			id, _, _ = strings.Cut(rest, `"`)
			id = "resp_" + id
		} else {
			id = parse(t, a.body).text("id")
		}
		all[i] = made{id, a.replica()}
	})
	used := map[string]bool{}
	for i, r := range all {
		used[r.replica] = true
		a := g.ask("/v1/responses", fmt.Sprintf(`{"model":"mock","max_output_tokens":4,"input":"go on","previous_response_id":%q}`, r.id))
		if a.status != 200 || a.replica() != r.replica {
			t.Fatalf("response %d of %s was continued at %s: %d %s", i, r.replica, a.replica(), a.status, a.body)
		}
		if cached, prompt := a.predicted(); prompt < 150 || cached == 0 {
			t.Errorf("response %d: predicted %d of %d tokens", i, cached, prompt)
		}
		a = g.get("/v1/responses/" + r.id)
		if a.status != 200 || a.replica() != r.replica || parse(t, a.body).text("id") != r.id {
			t.Fatalf("response %d of %s was asked for at %s: %d %s", i, r.replica, a.replica(), a.status, a.body)
		}
	}
	if len(used) < 2 {
		t.Errorf("all were made by %v: the test shows nothing", used)
	}
	if a := g.get("/v1/responses/resp_unknown"); a.status != 404 || a.replica() == "" {
		t.Errorf("an unknown one: %d from %q: %s", a.status, a.replica(), a.body)
	}
}

func TestSessionsStayWhateverTheySay(t *testing.T) {
	_, urls := mocks(t, 3, nil)
	f := func(name string, ask func(g *gate, session, text string) answer) {
		t.Run(name, func(t *testing.T) {
			g := start(t, nil, urls...)
			used := map[string]bool{}
			for s := range 12 {
				session := fmt.Sprintf("%s %d", name, s)
				home := ask(g, session, words(100*s, 400)).replica()
				used[home] = true
				for i := range 4 {
					if a := ask(g, session, words(100*s+i+1, 400)); a.replica() != home {
						t.Fatalf("session %d moved from %s to %s because of %s", s, home, a.replica(), a.header.Get("X-Warmpath-Reason"))
					}
				}
			}
			if len(used) < 2 {
				t.Errorf("all sessions were at %v", used)
			}
		})
	}
	body := func(text, more string) string {
		return `{"model":"mock","max_tokens":2,` + more + `"messages":[{"role":"user","content":` + quote(text) + `}]}`
	}
	f("header", func(g *gate, session, text string) answer {
		return g.must(chatPath, body(text, ""), "X-Session-Id", session)
	})
	f("user", func(g *gate, session, text string) answer {
		return g.must(chatPath, body(text, `"user":`+quote(session)+`,`))
	})
	f("session_id", func(g *gate, session, text string) answer {
		return g.must(chatPath, body(text, `"session_id":`+quote(session)+`,`))
	})
}

func TestModelsOfAllReplicas(t *testing.T) {
	handler := func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{}`) }
	one := newWorker(t, handler, "m1", "org/both")
	two := newWorker(t, handler, "org/both", "org/sub/m2")
	g := start(t, nil, one.url, two.url)
	list := parse(t, g.get("/v1/models").body)
	var names []string
	for _, m := range list["data"].([]any) {
		names = append(names, object(m.(map[string]any)).text("id"))
	}
	if got := strings.Join(names, " "); len(names) != 3 || !strings.Contains(got, "m1") || !strings.Contains(got, "org/both") || !strings.Contains(got, "org/sub/m2") || list.text("object") != "list" {
		t.Errorf("models: %v", list)
	}
	for path, id := range map[string]string{"m1": "m1", "org/both": "org/both", "org%2Fboth": "org/both", "org/sub/m2": "org/sub/m2", "org%2Fsub%2Fm2": "org/sub/m2"} {
		if a := g.get("/v1/models/" + path); a.status != 200 || parse(t, a.body).text("id") != id {
			t.Errorf("GET /v1/models/%s: %d %s", path, a.status, a.body)
		}
	}
	for model, may := range map[string][]string{"m1": {one.id}, "org/both": {one.id, two.id}, "org/sub/m2": {two.id}} {
		used := map[string]bool{}
		for i := range 12 {
			a := g.must(chatPath, fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":"question %d"}]}`, model, i))
			used[a.replica()] = true
		}
		for _, id := range may {
			if !used[id] {
				t.Errorf("%s serves %s and got nothing", id, model)
			}
			delete(used, id)
		}
		if len(used) > 0 {
			t.Errorf("%v got requests for %s", used, model)
		}
	}

	two.sick.Store(true)
	eventually(t, "one is down", func() bool { return g.metric("warmpath_replica_up") == 1 })
	if a := g.get("/v1/models"); strings.Contains(a.body, "org/sub/m2") || !strings.Contains(a.body, "org/both") {
		t.Errorf("models of what is up: %s", a.body)
	}
}

func TestPassedEndpoints(t *testing.T) {
	_, urls := mocks(t, 2, nil)
	g := start(t, nil, urls...)
	for path, body := range map[string]string{
		"/v1/embeddings":            `{"model":"mock","input":["a","b"]}`,
		"/v1/rerank":                `{"model":"mock","query":"a","documents":["a b","c"]}`,
		"/rerank":                   `{"model":"mock","query":"a","documents":["a b","c"]}`,
		"/v2/rerank":                `{"model":"mock","query":"a","documents":["a b","c"]}`,
		"/v1/score":                 `{"model":"mock","text_1":"a","text_2":["a b","c"]}`,
		"/score":                    `{"model":"mock","text_1":"a","text_2":"a b"}`,
		"/tokenize":                 `{"model":"mock","prompt":"a b c"}`,
		"/detokenize":               `{"model":"mock","tokens":[1,2]}`,
		"/v1/messages/count_tokens": `{"model":"mock","messages":[{"role":"user","content":"hi"}]}`,
	} {
		a := g.must(path, body)
		if parse(t, a.body)["error"] != nil || a.replica() == "" {
			t.Errorf("%s: %s from %q", path, a.body, a.replica())
		}
	}
	if n := g.metric("warmpath_requests_total", "endpoint", "other", "model", "mock", "code", "200"); n != 9 {
		t.Errorf("counted %v", n)
	}
	if n := g.metric("warmpath_ttft_seconds_count") + g.metric("warmpath_no_first_token_total"); n != 0 {
		t.Errorf("%v requests without generated tokens are missing a first token", n)
	}
	g.idle()
}

func TestPolicyHeader(t *testing.T) {
	_, urls := mocks(t, 3, nil)
	chat := forms()[0]
	body := strings.Replace(chat.body(words(1, 3000)), `"max_tokens":64`, `"max_tokens":2`, 1)
	spread := func(g *gate, policy string) map[string]int {
		count := map[string]int{}
		for range 12 {
			count[g.must(chat.path, body, "X-Warmpath-Policy", policy).replica()]++
		}
		return count
	}
	t.Run("not allowed", func(t *testing.T) {
		g := start(t, nil, urls...)
		if count := spread(g, "round-robin"); len(count) != 1 {
			t.Errorf("a client chose its policy: %v", count)
		}
		spread(g, "no-such-policy")
	})
	t.Run("allowed", func(t *testing.T) {
		g := start(t, func(c *config.Config) { c.Proxy.PolicyHeader = true }, urls...)
		for id, n := range spread(g, "round-robin") {
			if n != 4 {
				t.Errorf("round robin sent %d of 12 to %s", n, id)
			}
		}
		if count := spread(g, "prefix"); len(count) != 1 {
			t.Errorf("prefix: %v", count)
		}
		if count := spread(g, "random"); len(count) < 2 {
			t.Errorf("random: %v", count)
		}
		spread(g, "least-tokens")
		for policy, want := range map[string]float64{"round-robin": 12, "prefix": 12, "random": 12, "least-tokens": 12} {
			if n := g.metric("warmpath_decisions_total", "policy", policy); n != want {
				t.Errorf("%v decisions by %s", n, policy)
			}
		}
		refusal(t, g.ask(chat.path, body, "X-Warmpath-Policy", "no-such-policy"), 400, "invalid_request")
	})
	t.Run("configured", func(t *testing.T) {
		g := start(t, func(c *config.Config) { c.Router.Policy = "round-robin" }, urls...)
		last := ""
		for i := range 9 {
			id := g.must(chat.path, body).replica()
			if id == last {
				t.Fatalf("request %d went where the one before went", i)
			}
			last = id
		}
	})
}

// TestOneStallIsForgotten stalls one short prefill, as a compilation or a noisy
// neighbour does. The replica must not be taken for a slow one for ever.
func TestOneStallIsForgotten(t *testing.T) {
	list, urls := mocks(t, 2, nil)
	g := start(t, nil, urls...)
	list[0].SetFaults(mockvllm.Faults{Next: 1, HeaderDelay: 600 * time.Millisecond})
	count := map[string]int{}
	for i := range 300 {
		body := fmt.Sprintf(`{"model":"mock","stream":true,"max_tokens":2,"messages":[{"role":"user","content":%s}]}`, quote(words(i, 600)))
		count[g.must(chatPath, body).replica()]++
	}
	if n := count[list[0].id]; n < 60 {
		t.Errorf("after one stall it got %d of 300 requests: %s", n, g.admin("/replicas").body)
	}
}
