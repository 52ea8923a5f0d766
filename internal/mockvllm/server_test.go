package mockvllm

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// replica is a server behind real HTTP, fast enough for tests.
type replica struct {
	*Server
	t   *testing.T
	url string
}

func newReplica(t *testing.T, change func(*Config)) *replica {
	cfg := DefaultConfig()
	cfg.StepBase, cfg.PrefillPerToken, cfg.DecodePerSeq = 100*time.Microsecond, 0, 0
	if change != nil {
		change(&cfg)
	}
	s := New(cfg)
	ts := httptest.NewServer(s.Handler())
	t.Cleanup(func() {
		s.Close()
		ts.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	return &replica{s, t, ts.URL}
}

// do sends a request; a body makes it a POST of JSON.
func (r *replica) do(path, body string, header ...string) (*http.Response, error) {
	r.t.Helper()
	method := http.MethodGet
	if body != "" {
		method = http.MethodPost
	}
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.url+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return http.DefaultClient.Do(req)
}

// text returns status and whole body.
func (r *replica) text(path, body string, header ...string) (int, string) {
	r.t.Helper()
	resp, err := r.do(path, body, header...)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// json returns the decoded body of a 200.
func (r *replica) json(path, body string, header ...string) value {
	r.t.Helper()
	status, text := r.text(path, body, header...)
	if status != http.StatusOK {
		r.t.Fatalf("%s: status %d: %s", path, status, text)
	}
	return parse(r.t, text)
}

// value is decoded JSON that tests reach into with a dotted path.
type value struct {
	t *testing.T
	v any
}

func parse(t *testing.T, text string) value {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	return value{t, v}
}

func (v value) at(path string) any {
	cur := v.v
	for key := range strings.SplitSeq(path, ".") {
		switch c := cur.(type) {
		case map[string]any:
			cur = c[key]
		case []any:
			var i int
			if _, err := fmt.Sscan(key, &i); err != nil || i >= len(c) {
				return nil
			}
			cur = c[i]
		default:
			return nil
		}
	}
	return cur
}

func (v value) want(path string, want any) {
	v.t.Helper()
	if got := v.at(path); fmt.Sprint(got) != fmt.Sprint(want) {
		v.t.Errorf("%s is %v, want %v", path, got, want)
	}
}

func (v value) num(path string) int {
	f, _ := v.at(path).(float64)
	return int(f)
}

// event is one server-sent event.
type event struct{ name, data string }

func readEvents(t *testing.T, text string) []event {
	t.Helper()
	var events []event
	for block := range strings.SplitSeq(strings.TrimSuffix(text, "\n\n"), "\n\n") {
		var e event
		for line := range strings.SplitSeq(block, "\n") {
			if name, ok := strings.CutPrefix(line, "event: "); ok {
				e.name = name
			} else if data, ok := strings.CutPrefix(line, "data: "); ok {
				e.data = data
			} else {
				t.Fatalf("unexpected line %q", line)
			}
		}
		events = append(events, e)
	}
	return events
}

func (r *replica) events(path, body string, header ...string) []event {
	r.t.Helper()
	status, text := r.text(path, body, header...)
	if status != http.StatusOK {
		r.t.Fatalf("%s: status %d: %s", path, status, text)
	}
	return readEvents(r.t, text)
}

func chatBody(content, more string) string {
	c, _ := json.Marshal(content)
	return `{"messages":[{"role":"user","content":` + string(c) + `}]` + more + `}`
}

func TestChatAnswersWithUsage(t *testing.T) {
	r := newReplica(t, nil)
	v := r.json("/v1/chat/completions", chatBody("hello", `,"max_tokens":5`), "X-Request-Id", "abc")
	v.want("id", "chatcmpl-abc")
	v.want("object", "chat.completion")
	v.want("model", "mock")
	v.want("choices.0.message.role", "assistant")
	v.want("choices.0.finish_reason", "length")
	v.want("usage.completion_tokens", 5)
	v.want("usage.prompt_tokens_details.cached_tokens", 0)
	if words := strings.Fields(v.at("choices.0.message.content").(string)); len(words) != 5 {
		t.Errorf("%d words for 5 tokens", len(words))
	}
	if v.num("usage.total_tokens") != v.num("usage.prompt_tokens")+5 {
		t.Errorf("usage does not add up: %v", v.at("usage"))
	}
	v = r.json("/v1/chat/completions", chatBody("hello", `,"n":2`))
	v.want("choices.1.index", 1)
	v.want("choices.1.finish_reason", "stop")
	v.want("usage.completion_tokens", 2*defaultOutput)
}

func TestPromptTokensDetailsCanBeOff(t *testing.T) {
	r := newReplica(t, func(c *Config) { c.PromptTokensDetails = false })
	v := r.json("/v1/chat/completions", chatBody("hello", `,"max_tokens":1`))
	if d, ok := v.at("usage").(map[string]any)["prompt_tokens_details"]; !ok || d != nil {
		t.Errorf("details are %v, want null", d)
	}
	v = r.json("/v1/messages", chatBody("hello", `,"max_tokens":1`))
	if _, ok := v.at("usage").(map[string]any)["cache_read_input_tokens"]; ok {
		t.Error("cache_read_input_tokens is told")
	}
}

func TestChatStreamHasRoleTokensUsageAndDone(t *testing.T) {
	r := newReplica(t, nil)
	const more = `,"stream":true,"max_tokens":3`
	for _, tt := range []struct {
		options       string
		events, usage int
	}{
		{``, 5, 0},
		{`,"stream_options":{"include_usage":true}`, 6, 1},
		{`,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`, 6, 5},
	} {
		events := r.events("/v1/chat/completions", chatBody("hello", more+tt.options))
		if len(events) != tt.events || events[len(events)-1].data != "[DONE]" {
			t.Fatalf("events %v", events)
		}
		parse(t, events[0].data).want("choices.0.delta", "map[content: role:assistant]")
		usage := 0
		for i, e := range events[:len(events)-1] {
			v := parse(t, e.data)
			v.want("object", "chat.completion.chunk")
			if v.at("usage") != nil {
				usage++
			}
			if i >= 1 && i <= 3 && v.at("choices.0.delta.content") == "" {
				t.Errorf("event %d has no text", i)
			}
		}
		parse(t, events[3].data).want("choices.0.finish_reason", "length")
		if usage != tt.usage {
			t.Errorf("%q: usage in %d chunks, want %d", tt.options, usage, tt.usage)
		}
		if tt.usage > 0 {
			last := parse(t, events[4].data)
			last.want("choices", "[]")
			last.want("usage.completion_tokens", 3)
		}
	}
	events := r.events("/v1/chat/completions", chatBody("hello", `,"stream":true,"n":2`))
	if len(events) != 2+2*defaultOutput+2+1 {
		t.Errorf("%d events for two answers", len(events))
	}
	last := parse(t, events[len(events)-2].data)
	last.want("choices.0.finish_reason", "stop")
	last.want("choices.0.delta.content", "")
}

func TestCompletionsTakeTextAndTokens(t *testing.T) {
	r := newReplica(t, nil)
	for prompt, want := range map[string]struct{ choices, tokens int }{
		`"hello world"`:              {1, 2},
		`["hello world","x"]`:        {2, 3},
		`[1,2,3]`:                    {1, 3},
		`[[1,2,3],[4],[2147483647]]`: {3, 5},
	} {
		v := r.json("/v1/completions", `{"max_tokens":2,"prompt":`+prompt+`}`)
		v.want("object", "text_completion")
		v.want("usage.prompt_tokens", want.tokens)
		v.want("usage.completion_tokens", 2*want.choices)
		if n := len(v.at("choices").([]any)); n != want.choices {
			t.Errorf("%s: %d choices", prompt, n)
		}
	}
	events := r.events("/v1/completions", `{"prompt":"hi","max_tokens":2,"stream":true,"stream_options":{"include_usage":true}}`)
	if len(events) != 4 || events[3].data != "[DONE]" {
		t.Fatalf("events %v", events)
	}
	parse(t, events[1].data).want("choices.0.finish_reason", "length")
	parse(t, events[2].data).want("usage.total_tokens", 3)
}

func TestCompletionsReturnTokenIDs(t *testing.T) {
	r := newReplica(t, nil)
	whole := r.json("/v1/completions", `{"prompt":[[7,8],[9]],"max_tokens":3,"return_token_ids":true}`)
	whole.want("choices.0.prompt_token_ids.1", 8)
	whole.want("choices.1.prompt_token_ids.0", 9)
	events := r.events("/v1/completions", `{"prompt":[7,8],"max_tokens":3,"return_token_ids":true,"stream":true}`)
	for i := range 3 {
		chunk := parse(t, events[i].data)
		chunk.want("choices.0.token_ids.0", whole.at(fmt.Sprintf("choices.0.token_ids.%d", i)))
		if first := strings.Contains(events[i].data, "prompt_token_ids"); first != (i == 0) {
			t.Errorf("chunk %d: prompt_token_ids: %v", i, first)
		}
	}
	if _, text := r.text("/v1/completions", `{"prompt":[7,8],"max_tokens":3}`); strings.Contains(text, "token_ids") {
		t.Errorf("not asked for: %s", text)
	}
}

func TestNextTurnHitsPromptAndAnswer(t *testing.T) {
	const block = 16
	long := strings.Repeat(english, 3)
	quote := func(s string) string { b, _ := json.Marshal(s); return string(b) }
	t.Run("chat", func(t *testing.T) {
		r := newReplica(t, nil)
		v := r.json("/v1/chat/completions", chatBody(long, `,"max_tokens":100`))
		stored := v.num("usage.total_tokens") - 1
		next := r.json("/v1/chat/completions", `{"max_tokens":1,"messages":[{"role":"user","content":`+quote(long)+
			`},{"role":"assistant","content":`+quote(v.at("choices.0.message.content").(string))+`},{"role":"user","content":"go on"}]}`)
		next.want("usage.prompt_tokens_details.cached_tokens", stored/block*block)
	})
	t.Run("completions", func(t *testing.T) {
		r := newReplica(t, nil)
		v := r.json("/v1/completions", `{"max_tokens":100,"prompt":`+quote(long)+`}`)
		stored := v.num("usage.total_tokens") - 1
		next := r.json("/v1/completions", `{"max_tokens":1,"prompt":`+quote(long+v.at("choices.0.text").(string)+" and so on")+`}`)
		next.want("usage.prompt_tokens_details.cached_tokens", stored/block*block)
	})
	t.Run("responses", func(t *testing.T) {
		r := newReplica(t, nil)
		v := r.json("/v1/responses", `{"max_output_tokens":100,"input":`+quote(long)+`}`)
		stored := v.num("usage.total_tokens") - 1
		next := r.json("/v1/responses", `{"input":[{"role":"user","content":[{"type":"input_text","text":"go on"}]}],"previous_response_id":`+quote(v.at("id").(string))+`}`)
		next.want("usage.input_tokens_details.cached_tokens", stored/block*block)
	})
	t.Run("messages", func(t *testing.T) {
		r := newReplica(t, nil)
		v := r.json("/v1/messages", chatBody(long, `,"max_tokens":100`))
		stored := v.num("usage.input_tokens") + 100 - 1
		next := r.json("/v1/messages", `{"max_tokens":1,"messages":[{"role":"user","content":`+quote(long)+
			`},{"role":"assistant","content":[{"type":"text","text":`+quote(v.at("content.0.text").(string))+`}]},{"role":"user","content":"go on"}]}`)
		next.want("usage.cache_read_input_tokens", stored/block*block)
	})
}

func TestResponsesAreKeptInThisProcessOnly(t *testing.T) {
	r, other := newReplica(t, nil), newReplica(t, nil)
	events := r.events("/v1/responses", `{"input":"hello","instructions":"be brief","max_output_tokens":2,"stream":true}`)
	var names []string
	for i, e := range events {
		names = append(names, e.name)
		v := parse(t, e.data)
		v.want("type", e.name)
		v.want("sequence_number", i)
	}
	want := "response.created response.in_progress response.output_item.added response.content_part.added " +
		"response.output_text.delta response.output_text.delta " +
		"response.output_text.done response.content_part.done response.output_item.done response.completed"
	if got := strings.Join(names, " "); got != want {
		t.Errorf("events %s", got)
	}
	done := parse(t, events[len(events)-1].data)
	done.want("response.usage.output_tokens", 2)
	done.want("response.usage.input_tokens_details.cached_tokens", 0)
	done.want("response.status", "incomplete")

	id := done.at("response.id").(string)
	r.json("/v1/responses/"+id, "").want("output", done.at("response.output"))
	follow := `{"input":"go on","previous_response_id":"` + id + `"}`
	r.json("/v1/responses", follow).want("status", "completed")
	for _, body := range []string{"", follow} {
		path := "/v1/responses"
		if body == "" {
			path += "/" + id
		}
		status, text := other.text(path, body)
		v := parse(t, text)
		v.want("error.param", "response_id")
		v.want("error.code", 404)
		if status != 404 {
			t.Errorf("%s of another process: status %d", path, status)
		}
	}
}

func TestMessagesSpeakAnthropic(t *testing.T) {
	r := newReplica(t, nil)
	body := `{"system":[{"type":"text","text":"be brief"}],"messages":[{"role":"user","content":"` + english + `"}],"max_tokens":2`
	v := r.json("/v1/messages", body+`}`)
	v.want("type", "message")
	v.want("stop_reason", "max_tokens")
	v.want("usage.cache_read_input_tokens", 0)
	total := v.num("usage.input_tokens")
	r.json("/v1/messages/count_tokens", body+`}`).want("input_tokens", total)

	events := r.events("/v1/messages", body+`,"stream":true}`)
	var names []string
	for _, e := range events {
		names = append(names, e.name)
		parse(t, e.data).want("type", e.name)
	}
	want := "message_start content_block_start content_block_delta content_block_delta content_block_stop message_delta message_stop"
	if got := strings.Join(names, " "); got != want {
		t.Fatalf("events %s", got)
	}
	start := parse(t, events[0].data)
	cached := start.num("message.usage.cache_read_input_tokens")
	if cached == 0 || start.num("message.usage.input_tokens")+cached != total {
		t.Errorf("usage %v of %d tokens", start.at("message.usage"), total)
	}
	parse(t, events[5].data).want("usage.output_tokens", 2)

	_, text := r.text("/v1/messages", `{"model":"nope","messages":[{"role":"user","content":"x"}]}`)
	v = parse(t, text)
	v.want("type", "error")
	v.want("error.type", "NotFoundError")
}

func TestPoolingAndTokens(t *testing.T) {
	r := newReplica(t, nil)
	v := r.json("/v1/embeddings", `{"input":["hello world","x"]}`)
	v.want("usage.prompt_tokens", 3)
	if n := len(v.at("data.1.embedding").([]any)); n != dimensions {
		t.Errorf("%d dimensions", n)
	}
	if s, _ := r.json("/v1/embeddings", `{"input":"x","encoding_format":"base64"}`).at("data.0.embedding").(string); s == "" {
		t.Error("embedding is not base64")
	}
	v = r.json("/v1/rerank", `{"query":"warm cache","documents":["cold disk",{"text":"warm cache"}],"top_n":1}`)
	v.want("results.0.index", 1)
	v.want("results.0.document.text", "warm cache")
	v = r.json("/v1/score", `{"text_1":"warm cache","text_2":["warm cache","x"]}`)
	v.want("data.0.score", 1)
	v.want("data.1.score", 0)

	v = r.json("/tokenize", `{"prompt":"hello odd world","return_token_strs":true}`)
	v.want("count", 3)
	v.want("token_strs", "[hello  odd  world]")
	v.want("max_model_len", 32768)
	ids, _ := json.Marshal(v.at("tokens"))
	r.json("/detokenize", `{"tokens":`+string(ids)+`}`).want("prompt", "hello odd world")
	chat := r.json("/tokenize", chatBody("hello", ""))
	r.json("/v1/chat/completions", chatBody("hello", `,"max_tokens":1`)).want("usage.prompt_tokens", chat.num("count"))
}

func TestRefusals(t *testing.T) {
	r := newReplica(t, func(c *Config) { c.MaxModelLen = 100 })
	for _, tt := range []struct {
		name, path, body string
		header           []string
		status           int
		kind, param      string
	}{
		{name: "wrong model", path: "/v1/chat/completions", body: chatBody("x", `,"model":"nope"`), status: 404, kind: "NotFoundError", param: "model"},
		{name: "bad JSON", path: "/v1/chat/completions", body: `{`, status: 400, kind: "Bad Request"},
		{name: "no JSON type", path: "/v1/completions", body: `{"prompt":"x"}`, header: []string{"Content-Type", "text/plain"}, status: 400, kind: "Bad Request"},
		{name: "no messages", path: "/v1/chat/completions", body: `{}`, status: 400, kind: "BadRequestError", param: "messages"},
		{name: "too long", path: "/v1/completions", body: `{"max_tokens":1,"prompt":"` + strings.Repeat("word ", 100) + `"}`, status: 400, kind: "BadRequestError", param: "input_tokens"},
		{name: "too much asked", path: "/v1/completions", body: `{"max_tokens":100,"prompt":"x"}`, status: 400, kind: "BadRequestError", param: "input_tokens"},
		{name: "nothing asked", path: "/v1/completions", body: `{"max_tokens":0,"prompt":"x"}`, status: 400, kind: "BadRequestError", param: "max_tokens"},
		{name: "empty prompt", path: "/v1/completions", body: `{"prompt":""}`, status: 400, kind: "BadRequestError", param: "prompt"},
		{name: "one empty prompt of several", path: "/v1/completions", body: `{"prompt":[[1],[]]}`, status: 400, kind: "BadRequestError", param: "prompt"},
		{name: "no prompt", path: "/v1/completions", body: `{}`, status: 400, kind: "BadRequestError", param: "prompt"},
		{name: "options without stream", path: "/v1/completions", body: `{"prompt":"x","stream_options":{}}`, status: 400, kind: "BadRequestError", param: "stream_options"},
		{name: "salt with a slash", path: "/v1/completions", body: `{"prompt":"x","cache_salt":"a/b"}`, status: 400, kind: "BadRequestError", param: "cache_salt"},
		{name: "long embedding", path: "/v1/embeddings", body: `{"input":"` + strings.Repeat("word ", 200) + `"}`, status: 400, kind: "BadRequestError", param: "input_tokens"},
		{name: "unknown path", path: "/v1/nothing", body: `{}`, status: 404, kind: "NotFoundError"},
	} {
		status, text := r.text(tt.path, tt.body, tt.header...)
		v := parse(t, text)
		param := any(nil)
		if tt.param != "" {
			param = tt.param
		}
		if status != tt.status || v.at("error.type") != tt.kind || v.at("error.param") != param || v.num("error.code") != tt.status {
			t.Errorf("%s: status %d: %s", tt.name, status, text)
		}
	}
	if c := r.Stats(); c.Running+c.Waiting+c.UsedBlocks+c.InFlight != 0 {
		t.Errorf("left over: %+v", c)
	}
}

func TestAdaptersAreCardsWithPrefixesOfTheirOwn(t *testing.T) {
	r := newReplica(t, func(c *Config) { c.Model, c.Adapters = "base", []string{"tuned"} })
	v := r.json("/v1/models", "")
	v.want("data.0.id", "base")
	v.want("data.0.max_model_len", 32768)
	v.want("data.1.parent", "base")
	v.want("data.1.max_model_len", nil)
	for _, tt := range []struct {
		model string
		hit   bool
	}{{"base", false}, {"tuned", false}, {"tuned", true}, {"base", true}} {
		v := r.json("/v1/chat/completions", chatBody(english, `,"max_tokens":1,"model":"`+tt.model+`"`))
		v.want("model", tt.model)
		if hit := v.num("usage.prompt_tokens_details.cached_tokens") > 0; hit != tt.hit {
			t.Errorf("%s: hit %v, want %v", tt.model, hit, tt.hit)
		}
	}
}

func TestDisconnectAbortsTheRequest(t *testing.T) {
	s := New(Config{StepBase: time.Millisecond, Blocks: 8192})
	handlers := make(chan struct{}, 1)
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.Handler().ServeHTTP(w, r)
		handlers <- struct{}{}
	}))
	defer ts.Close()
	defer s.Close()
	for _, stream := range []bool{true, false} {
		ctx, cancel := context.WithCancel(t.Context())
		body := chatBody("hello", fmt.Sprintf(`,"max_tokens":30000,"stream":%v`, stream))
		req, _ := http.NewRequestWithContext(ctx, http.MethodPost, ts.URL+"/v1/chat/completions", strings.NewReader(body))
		req.Header.Set("Content-Type", "application/json")
		if stream {
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil {
				t.Fatal(err)
			}
			cancel()
			resp.Body.Close()
		} else {
			time.AfterFunc(20*time.Millisecond, cancel)
			if _, err := http.DefaultClient.Do(req); err == nil {
				t.Fatal("answered")
			}
		}
		<-handlers
	}
	st := s.Stats()
	if st.Finished["abort"] != 2 || st.Running+st.Waiting+st.UsedBlocks != 0 {
		t.Errorf("after the clients left: %+v", st)
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestCloseEndsStreamsWithAbort(t *testing.T) {
	s := New(Config{StepBase: time.Millisecond})
	ts := httptest.NewServer(s.Handler())
	defer ts.Close()
	resp, err := http.Post(ts.URL+"/v1/chat/completions", "application/json", strings.NewReader(chatBody("hello", `,"max_tokens":30000,"stream":true`)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	in := bufio.NewReader(resp.Body)
	if _, err := in.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	s.Close()
	rest, err := io.ReadAll(in)
	if err != nil || !strings.Contains(string(rest), `"finish_reason":"abort"`) || !strings.HasSuffix(string(rest), "data: [DONE]\n\n") {
		t.Errorf("%v, stream ends with %q", err, rest[max(0, len(rest)-300):])
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestRealTimeFollowsTheEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultConfig()
		s := New(cfg)
		defer s.Close()
		ask := func() (int, time.Duration) {
			start := time.Now()
			rec := httptest.NewRecorder()
			req := httptest.NewRequest(http.MethodPost, "/v1/chat/completions", strings.NewReader(chatBody(english, `,"max_tokens":4`)))
			req.Header.Set("Content-Type", "application/json")
			s.Handler().ServeHTTP(rec, req)
			v := parse(t, rec.Body.String())
			return v.num("usage.prompt_tokens") - v.num("usage.prompt_tokens_details.cached_tokens"), time.Since(start)
		}
		decode := 3 * (cfg.StepBase + cfg.DecodePerSeq)
		cold, took := ask()
		if want := cfg.StepBase + time.Duration(cold)*cfg.PrefillPerToken + decode; took != want {
			t.Errorf("cold: %v, want %v", took, want)
		}
		warm, took := ask()
		if want := cfg.StepBase + time.Duration(warm)*cfg.PrefillPerToken + decode; took != want || warm > cfg.BlockSize {
			t.Errorf("warm: %v for %d tokens, want %v", took, warm, want)
		}
	})
}

// TestLateTimersDoNotAddUp: each step begins when the one before it was over, not
// when the operating system said so. One of three tries is enough on a busy machine.
func TestLateTimersDoNotAddUp(t *testing.T) {
	const step, tokens, slack = time.Millisecond, 400, 20 * time.Millisecond
	r := newReplica(t, func(c *Config) { c.StepBase, c.DecodePerSeq = step, 0 })
	var took time.Duration
	for try := range 3 {
		start := time.Now()
		r.json("/v1/completions", fmt.Sprintf(`{"prompt":[%d],"max_tokens":%d}`, try, tokens))
		if took = time.Since(start); took < tokens*step {
			t.Errorf("%d steps of %v took only %v", tokens, step, took)
		}
		if took <= tokens*step+slack {
			return
		}
	}
	t.Errorf("%d steps of %v took %v", tokens, step, took)
}

// TestAStopIsNotCaughtUp: a replica whose process or machine stands still loses that
// time, as an engine does, and does not make up for it at once when it goes on.
func TestAStopIsNotCaughtUp(t *testing.T) {
	const step, tokens, stop = 5 * time.Millisecond, 60, 300 * time.Millisecond
	r := newReplica(t, func(c *Config) { c.StepBase, c.DecodePerSeq = step, 0 })
	start := time.Now()
	resp, err := r.do("/v1/completions", fmt.Sprintf(`{"prompt":[1],"max_tokens":%d,"stream":true}`, tokens))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	in := bufio.NewReader(resp.Body)
	if _, err := in.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	r.mu.Lock() // stops the driver, in real time: virtual time waits for locks
	time.Sleep(stop)
	r.mu.Unlock()
	if _, err := io.Copy(io.Discard, in); err != nil {
		t.Fatal(err)
	}
	// The step under way at the stop is all that may pass meanwhile.
	if took, least := time.Since(start), tokens*step+stop-step; took < least {
		t.Errorf("%d steps of %v and a stop of %v took %v, want at least %v", tokens, step, stop, took, least)
	}
}

func TestOnlyALittleLatenessIsCaughtUp(t *testing.T) {
	const next = time.Second
	for now, want := range map[time.Duration]time.Duration{
		next - time.Millisecond:      next - time.Millisecond, // woken by new work
		next:                         next,
		next + time.Millisecond:      next,
		next + catchUp - 1:           next,
		next + catchUp:               next + catchUp,
		next + 2500*time.Millisecond: next + 2500*time.Millisecond,
	} {
		if got := stepTime(now, next); got != want {
			t.Errorf("a step that ends after %v, heard of after %v: %v, want %v", next, now, got, want)
		}
	}
	if got := stepTime(next, Idle); got != next {
		t.Errorf("work for an idle engine after %v begins after %v", next, got)
	}
}

func TestStretchScalesEveryTime(t *testing.T) {
	c := DefaultConfig()
	c.AttentionPerPair = 0.5
	got := c.Stretch(4)
	if got.StepBase != 4*c.StepBase || got.PrefillPerToken != 4*c.PrefillPerToken || got.DecodePerSeq != 4*c.DecodePerSeq || got.AttentionPerPair != 2 {
		t.Errorf("got %+v", got)
	}
	if c.StepBase != DefaultConfig().StepBase || got.Blocks != c.Blocks {
		t.Errorf("something else changed: %+v, %+v", c, got)
	}
}

func TestSleepQueuesRequestsAndLosesTheCache(t *testing.T) {
	r := newReplica(t, nil)
	body := chatBody(english, `,"max_tokens":1`)
	r.json("/v1/chat/completions", body)
	r.json("/sleep?level=1", " ").want("level", 1)
	r.json("/is_sleeping", "").want("is_sleeping", true)
	if _, text := r.text("/metrics", ""); !strings.Contains(text, `sleep_state="weights_offloaded"} 1`) {
		t.Error("metrics do not tell the sleep")
	}
	answer := make(chan string, 1)
	go func() {
		resp, err := r.do("/v1/chat/completions", body)
		if err != nil {
			answer <- err.Error()
			return
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		answer <- string(b)
	}()
	for r.Stats().Waiting == 0 {
		select {
		case v := <-answer:
			t.Fatalf("answered asleep: %s", v)
		case <-time.After(time.Millisecond):
		}
	}
	r.json("/wake_up", " ").want("status", "awake")
	parse(t, <-answer).want("usage.prompt_tokens_details.cached_tokens", 0)
	r.json("/is_sleeping", "").want("is_sleeping", false)

	r.json("/reset_prefix_cache", " ").want("success", true)
	r.json("/v1/chat/completions", body).want("usage.prompt_tokens_details.cached_tokens", 0)
}

func TestControlEndpoints(t *testing.T) {
	r := newReplica(t, nil)
	for _, path := range []string{"/health", "/ping"} {
		if status, text := r.text(path, ""); status != 200 || text != "" {
			t.Errorf("%s: %d %q", path, status, text)
		}
	}
	r.json("/version", "").want("version", version)
	r.json("/load", "").want("server_load", 0)
}

func TestMetricsHaveVLLMsNames(t *testing.T) {
	r := newReplica(t, func(c *Config) { c.Model = "m" })
	for range 2 {
		r.json("/v1/completions", `{"prompt":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17],"max_tokens":3}`)
	}
	_, text := r.text("/metrics", "")
	for _, line := range []string{
		`vllm:num_requests_running{engine="0",model_name="m"} 0`,
		`vllm:num_requests_waiting{engine="0",model_name="m"} 0`,
		`vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0`,
		`vllm:prefix_cache_queries_total{engine="0",model_name="m"} 34`,
		`vllm:prefix_cache_hits_total{engine="0",model_name="m"} 16`,
		`vllm:prompt_tokens_total{engine="0",model_name="m"} 34`,
		`vllm:prompt_tokens_cached_total{engine="0",model_name="m"} 16`,
		`vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_compute"} 18`,
		`vllm:generation_tokens_total{engine="0",model_name="m"} 6`,
		`vllm:num_preemptions_total{engine="0",model_name="m"} 0`,
		`vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 2`,
		`vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 2`,
		`vllm:e2e_request_latency_seconds_count{engine="0",model_name="m"} 2`,
		`vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="awake"} 1`,
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("no line %s", line)
		}
	}
	for _, part := range []string{`block_size="16"`, `num_gpu_blocks="4096"`, "process_start_time_seconds "} {
		if !strings.Contains(text, part) {
			t.Errorf("no %s", part)
		}
	}
	_, other := newReplica(t, nil).text("/metrics", "")
	start := func(s string) string { _, v, _ := strings.Cut(s, "\nprocess_start_time_seconds "); return v }
	if start(text) == start(other) {
		t.Error("two servers of one process have one start time")
	}
}

func TestRequestsAreKeptAsReceived(t *testing.T) {
	r := newReplica(t, func(c *Config) { c.KeepRequests = 2 })
	for _, path := range []string{"/v1/completions", "/v1/chat/completions", "/v1/nonsense", "/v1/embeddings"} {
		r.text(path, `{ "not":  "touched" }`, "X-Test", path)
	}
	got := r.Requests()
	if len(got) != 2 || got[0].Path != "/v1/chat/completions" || got[1].Header.Get("X-Test") != "/v1/embeddings" ||
		string(got[1].Body) != `{ "not":  "touched" }` || got[1].Method != http.MethodPost {
		t.Errorf("kept %+v", got)
	}
}
