package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// says writes an event down as the words of what it says.
func says(e Event) string {
	var words []string
	for _, w := range []struct {
		is   bool
		word string
	}{{e.Token, "token"}, {e.Preamble, "preamble"}, {e.Failed, "failed"}, {e.Aborted, "aborted"}, {e.Last, "last"}, {e.ID != "", "id"}} {
		if w.is {
			words = append(words, w.word)
		}
	}
	if e.UsageSeen {
		cached := "?"
		if e.Usage.CachedKnown {
			cached = fmt.Sprint(e.Usage.Cached)
		}
		words = append(words, fmt.Sprintf("usage %d+%d cached %s", e.Usage.Prompt, e.Usage.Completion, cached))
	}
	return strings.Join(words, ", ")
}

// The files hold what vLLM 0.32 sent, but for some repetitions.
func TestUnderstandsTheStreamsOfVLLM(t *testing.T) {
	for name, want := range map[string][]string{
		"chat": {"", "token", "token", "token", "usage 31+3 cached 0", "last"},
		"chat-continuous-usage": {
			"usage 31+0 cached ?", "token, usage 31+1 cached ?", "token, usage 31+2 cached ?", "usage 31+2 cached 0", "last",
		},
		"chat-tool":     {"", "token", "token", "token", "token", "last"},
		"completions":   {"token", "token", "usage 2+2 cached 0", "last"},
		"messages":      {"usage 31+0 cached ?", "", "token", "token", "token", "", "usage 31+3 cached 0", "last"},
		"messages-tool": {"usage 33+0 cached ?", "token", "token", "token", "", "usage 33+40 cached 0", "last"},
		"responses": {
			"preamble, id", "preamble, id", "", "", "token", "token", "token", "", "", "", "last, id, usage 31+3 cached 0",
		},
		"responses-tool": {"preamble, id", "preamble, id", "token", "token", "token", "", "", "last, id, usage 33+40 cached 0"},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, data := range stream(t, name) {
				got = append(got, says(ParseEvent(data)))
			}
			if g, w := strings.Join(got, "\n"), strings.Join(want, "\n"); g != w {
				t.Errorf("got\n%s\nwant\n%s", g, w)
			}
		})
	}
}

func stream(t testing.TB, name string) (events [][]byte) {
	text, err := os.ReadFile(filepath.Join("testdata", name+".sse"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(text) {
		if data, ok := bytes.CutPrefix(line, []byte("data: ")); ok {
			events = append(events, bytes.TrimSpace(data))
		}
	}
	return events
}

// chunk is a chat chunk with one choice.
func chunk(choice string) string { return `{"id":"chatcmpl-1","choices":[{"index":0,` + choice + `}]}` }

func delta(members string) string { return chunk(`"delta":{` + members + `},"finish_reason":null`) }

func TestFirstTokenIsTheFirstGeneratedContent(t *testing.T) {
	for name, c := range map[string]struct {
		data string
		want bool
	}{
		"role":                         {delta(`"role":"assistant","content":""`), false},
		"empty content":                {delta(`"content":""`), false},
		"null content":                 {delta(`"content":null`), false},
		"content":                      {delta(`"content":"Hi"`), true},
		"white space":                  {delta(`"content":" "`), true},
		"an escape":                    {delta(`"content":"\n"`), true},
		"reasoning":                    {delta(`"reasoning":"hm"`), true},
		"reasoning of older engines":   {delta(`"reasoning_content":"hm"`), true},
		"empty reasoning":              {delta(`"reasoning":""`), false},
		"reasoning beside no content":  {delta(`"reasoning":"hm","content":null`), true},
		"a tool call's name":           {delta(`"content":null,"tool_calls":[{"id":"c","index":0,"function":{"name":"f"}}]`), true},
		"no tool calls":                {delta(`"content":null,"tool_calls":[]`), false},
		"refusal":                      {delta(`"refusal":"no"`), true},
		"empty delta":                  {delta(``), false},
		"null delta":                   {chunk(`"delta":null`), false},
		"second choice":                {`{"choices":[{"delta":{"content":""}},{"delta":{"content":"x"}}]}`, true},
		"first choice":                 {`{"choices":[{"delta":{"content":"x"}},{"delta":{"content":""}}]}`, true},
		"no choices":                   {`{"choices":[]}`, false},
		"null choices":                 {`{"choices":null}`, false},
		"choices missing":              {`{"id":"x"}`, false},
		"choices of another kind":      {`{"choices":[null,1,"x"]}`, false},
		"completions text":             {chunk(`"text":"Hi"`), true},
		"completions empty text":       {chunk(`"text":"","finish_reason":"stop"`), false},
		"text delta":                   {`{"type":"content_block_delta","delta":{"type":"text_delta","text":"x"}}`, true},
		"thinking delta":               {`{"type":"content_block_delta","delta":{"type":"thinking_delta","thinking":"x"}}`, true},
		"signature delta":              {`{"type":"content_block_delta","delta":{"type":"signature_delta","signature":"ab"}}`, false},
		"tool input delta":             {`{"type":"content_block_delta","delta":{"type":"input_json_delta","partial_json":"{"}}`, true},
		"text block begins":            {`{"type":"content_block_start","content_block":{"type":"text","text":""}}`, false},
		"tool block begins":            {`{"type":"content_block_start","content_block":{"type":"tool_use","name":"f","input":{}}}`, true},
		"type after delta":             {`{"delta":{"text":"x"},"type":"content_block_delta"}`, true},
		"delta of another event":       {`{"delta":{"text":"x"},"type":"message_delta"}`, false},
		"output text":                  {`{"type":"response.output_text.delta","delta":"x"}`, true},
		"empty output text":            {`{"type":"response.output_text.delta","delta":""}`, false},
		"reasoning text":               {`{"type":"response.reasoning_text.delta","delta":"x"}`, true},
		"function call arguments":      {`{"type":"response.function_call_arguments.delta","delta":"{"}`, true},
		"custom tool input":            {`{"type":"response.custom_tool_call_input.delta","delta":"x"}`, true},
		"mcp call arguments":           {`{"type":"response.mcp_call_arguments.delta","delta":"{"}`, true},
		"code":                         {`{"type":"response.code_interpreter_call_code.delta","delta":"x"}`, true},
		"a function call's name":       {`{"type":"response.output_item.added","item":{"type":"function_call","name":"f","arguments":""}}`, true},
		"a message item begins":        {`{"type":"response.output_item.added","item":{"type":"message","content":[],"role":"assistant"}}`, false},
		"an item ends":                 {`{"type":"response.output_item.done","item":{"type":"message","content":[{"text":"x"}]}}`, false},
		"whole text":                   {`{"type":"response.output_text.done","text":"x"}`, false},
		"text of an unfinished object": {`{"choices":[{"delta":{"content":"x"}}]`, false},
	} {
		if got := ParseEvent([]byte(c.data)).Token; got != c.want {
			t.Errorf("%s: %s: token %v", name, c.data, got)
		}
	}
}

func TestUsageComesInThreeShapes(t *testing.T) {
	for name, c := range map[string]struct{ usage, want string }{
		"chat, cached not told":       {`{"prompt_tokens":10,"total_tokens":12,"completion_tokens":2}`, "usage 10+2 cached ?"},
		"chat, nothing cached":        {`{"prompt_tokens":10,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":0}}`, "usage 10+2 cached 0"},
		"chat, some cached":           {`{"prompt_tokens":10,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":8,"created_cache_tokens":2}}`, "usage 10+2 cached 8"},
		"chat, null for none cached":  {`{"prompt_tokens":10,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":null}}`, "usage 10+2 cached ?"},
		"chat, null details":          {`{"prompt_tokens":10,"completion_tokens":null,"prompt_tokens_details":null}`, "usage 10+0 cached ?"},
		"responses":                   {`{"input_tokens":10,"input_tokens_details":{"cached_tokens":8,"cached_tokens_per_turn":[8]},"output_tokens":2}`, "usage 10+2 cached 8"},
		"messages, cached not told":   {`{"input_tokens":10,"output_tokens":2}`, "usage 10+2 cached ?"},
		"messages, cached left out":   {`{"input_tokens":2,"output_tokens":2,"cache_creation_input_tokens":3,"cache_read_input_tokens":5}`, "usage 10+2 cached 5"},
		"messages, nothing cached":    {`{"cache_read_input_tokens":0,"input_tokens":10,"output_tokens":2}`, "usage 10+2 cached 0"},
		"messages, all cached":        {`{"input_tokens":0,"output_tokens":2,"cache_read_input_tokens":10}`, "usage 10+2 cached 10"},
		"messages, null cached":       {`{"input_tokens":10,"output_tokens":2,"cache_read_input_tokens":null,"cache_creation_input_tokens":null}`, "usage 10+2 cached ?"},
		"both, as proxies between do": {`{"prompt_tokens":10,"completion_tokens":2,"cache_read_input_tokens":8}`, "usage 10+2 cached 8"},
		"null":                        {`null`, ""},
		"empty":                       {`{}`, ""},
		"all zero":                    {`{"prompt_tokens":0,"completion_tokens":0}`, ""},
		"not an object":               {`[10]`, ""},
		"numbers that are none":       {`{"prompt_tokens":"10","completion_tokens":-2}`, ""},
		"numbers beyond reason":       {`{"prompt_tokens":99999999999999999999,"completion_tokens":1e3,"prompt_tokens_details":{"cached_tokens":5}}`, ""},
	} {
		for where, event := range map[string]string{
			"chunk":    `{"choices":[],"usage":` + c.usage + `}`,
			"message":  `{"type":"message_start","message":{"id":"m","usage":` + c.usage + `}}`,
			"response": `{"response":{"usage":` + c.usage + `},"type":"response.output_text.done"}`,
		} {
			if got := says(ParseEvent([]byte(event))); got != c.want {
				t.Errorf("%s in a %s: got %q, want %q", name, where, got, c.want)
			}
		}
		if got := says(ParseAnswer([]byte(`{"usage":` + c.usage + `}`))); got != c.want {
			t.Errorf("%s in an answer: got %q, want %q", name, got, c.want)
		}
	}
}

func TestEventsTellHowTheAnswerEnds(t *testing.T) {
	for data, want := range map[string]string{
		Done: "last",
		chunk(`"delta":{"content":""},"finish_reason":"stop"`):                           "",
		chunk(`"delta":{"content":""},"finish_reason":"repetition"`):                     "",
		chunk(`"delta":{"content":"x"},"finish_reason":"abort"`):                         "token, aborted",
		chunk(`"text":"","finish_reason":"abort"`):                                       "aborted",
		`{"error":{"message":"m","type":"InternalServerError","param":null,"code":500}}`: "failed",
		`{"error":"The model is currently scaling"}`:                                     "failed",
		`{"error":null,"choices":[]}`:                                                    "",

		`{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"input_tokens":1,"output_tokens":2}}`: "usage 1+2 cached ?",
		`{"type":"message_delta","delta":{"stop_reason":null,"stop_sequence":null},"usage":{"input_tokens":1,"output_tokens":2}}`:       "aborted, usage 1+2 cached ?",
		`{"type":"message_stop"}`: "last",
		`{"type":"error","error":{"type":"internal_error","message":"m"}}`: "failed, last",
		`{"type":"ping"}`: "preamble",

		`{"type":"response.queued","response":{"id":"r","status":"queued"}}`:                                    "preamble, id",
		`{"type":"response.completed","response":{"id":"r","status":"completed","usage":null}}`:                 "last, id",
		`{"type":"response.completed","response":{"id":"r","status":"incomplete"}}`:                             "last, id",
		`{"type":"response.completed","response":{"id":"r","status":"cancelled"}}`:                              "aborted, last, id",
		`{"type":"response.incomplete","response":{"id":"r"}}`:                                                  "last, id",
		`{"type":"response.failed","response":{"id":"r","status":"failed","error":{"code":"x","message":"m"}}}`: "failed, last, id",
		`{"type":"error","code":"server_error","message":"m","param":null}`:                                     "failed, last",
		`{"type":"response.mcp_call.completed"}`:                                                                "",
	} {
		if got := says(ParseEvent([]byte(data))); got != want {
			t.Errorf("%s: got %q, want %q", data, got, want)
		}
	}
}

func TestWhatIsNoEventSaysNothing(t *testing.T) {
	for _, data := range []string{
		``, ` `, `[DONE`, `null`, `[]`, `"error"`, `{`, `{"error":{"message":"cut`, `{"usage":{"prompt_tokens":5}`,
		`{"choices":[{"delta":{"content":"x"}]}`, strings.Repeat(`{"error":`, 1000), "\xff\xfe",
	} {
		if got := ParseEvent([]byte(data)); got != (Event{}) {
			t.Errorf("%.40q: got %+v", data, got)
		}
		if got := ParseAnswer([]byte(data)); got != (Event{}) {
			t.Errorf("%.40q as an answer: got %+v", data, got)
		}
	}
}

func TestUnderstandsWholeAnswers(t *testing.T) {
	for name, want := range map[string]string{
		"chat":        "token, id, usage 31+3 cached 0",
		"completions": "token, id, usage 2+2 cached 0",
		"messages":    "id, usage 31+3 cached 0",
		"responses":   "id, usage 31+3 cached 0",
	} {
		body, err := os.ReadFile(filepath.Join("testdata", name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		if got := says(ParseAnswer(body)); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	for body, want := range map[string]string{
		`{"choices":[{"finish_reason":"abort","message":{"content":""}}]}`: "aborted",
		`{"error":{"message":"m","code":500}}`:                             "failed",
		`{"error":"scaling"}`:                                              "failed",
		`{"id":"r","error":null,"status":"completed"}`:                     "id",
		`{"id":"r","status":"cancelled"}`:                                  "aborted, id",
		`{"id":"r","status":"failed"}`:                                     "failed, id",
	} {
		if got := says(ParseAnswer([]byte(body))); got != want {
			t.Errorf("%s: got %q, want %q", body, got, want)
		}
	}
}

// saysMore reports whether an event says more than that content was generated
// after the first token.
func saysMore(e Event) bool {
	e.Token, e.Preamble = false, false
	return e != Event{}
}

// TestPlainEventsAreTokens goes over what comes after a first token: an event that
// brings none must not be passed over as one.
func TestPlainEventsAreTokens(t *testing.T) {
	for data, want := range map[string]struct{ plain, token bool }{
		delta(`"content":"Hi"`):                                                                           {true, true},
		delta(`"content":"several tokens at once"`):                                                       {true, true},
		delta(`"content":"a \"usage\" and an \"error\""`):                                                 {true, true},
		delta(`"content":"\""`):                                                                           {true, true},
		delta(`"role":"assistant","content":"x"`):                                                         {true, true},
		delta(`"reasoning":"Hm"`):                                                                         {true, true},
		delta(`"reasoning_content":"Hm"`):                                                                 {true, true},
		delta(`"content":null,"reasoning":"Hm"`):                                                          {true, true},
		delta(`"tool_calls":[{"function":{"arguments":"{"}}]`):                                            {true, true},
		strings.ReplaceAll(delta(`"content":"spaced"`), `":`, `": `):                                      {true, true},
		chunk(`"text":"x","stop_reason":null`):                                                            {true, true},
		`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"x"}}`:               {true, true},
		`{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"x"}}`:       {true, true},
		`{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"{"}}`: {true, true},
		`{"type":"response.output_text.delta","delta":"x","sequence_number":4}`:                           {true, true},
		`{"type":"response.function_call_arguments.delta","delta":"{","sequence_number":4}`:               {true, true},

		delta(`"content":"\u0041"`): {false, true},
		delta(`"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":""}}]`): {false, true},
		delta(``):                                                          {false, false},
		delta(`"content":""`):                                              {false, false},
		delta(`"content":null`):                                            {false, false},
		delta(`"role":"assistant"`):                                        {false, false},
		delta(`"role":"assistant","content":""`):                           {false, false},
		delta(`"reasoning":"","tool_calls":[]`):                            {false, false},
		chunk(`"delta":{},"finish_reason":"stop"`):                         {false, false},
		chunk(`"text":"","finish_reason":"length"`):                        {false, false},
		chunk(`"delta":{"content":""},"finish_reason":"stop"`):             {false, false},
		`{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2}}`: {false, false},
		`{"type":"ping"}`:                                                  {false, false},
		`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":""}}`:              {false, false},
		`{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"x"}}`:   {false, false},
		`{"type":"content_block_stop","index":0}`:                                                       {false, false},
		`{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":2}}`:       {false, false},
		`{"type":"response.output_text.done","text":"all of it"}`:                                       {false, false},
		`{"type":"response.content_part.done","part":{"type":"output_text","text":"all of it"}}`:        {false, false},
		`{"part":{"type":"output_text","text":"all of it"},"type":"response.content_part.done"}`:        {false, false},
		`{"type":"response.output_item.done","item":{"content":[{"type":"output_text","text":"all"}]}}`: {false, false},
		Done: {false, false},
		`{"model":"content","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`:                   {false, false},
		`{"id":"text","object":"chunk","choices":[{"delta":{"content":""}}]}`:                             {false, false},
		`{"type":"content_block_delta","index":0,"delta":{"type":"delta","text":""},"id":"text","a":"b"}`: {false, false},
	} {
		if got := Plain([]byte(data)); got != want.plain {
			t.Errorf("%s: plain is %v", data, got)
		}
		if got := ParseEvent([]byte(data)).Token; got != want.token {
			t.Errorf("%s: token is %v", data, got)
		}
	}
	plain, tokens := 0, 0
	for _, data := range events(t) {
		e := ParseEvent(data)
		if e.Token && !saysMore(e) {
			tokens++
		}
		if Plain(data) {
			plain++
			if e != (Event{Token: true}) {
				t.Errorf("%s is plain and says %s", data, says(e))
			}
		}
	}
	if plain < tokens*2/3 {
		t.Errorf("%d of %d events with content alone are plain: the others cost a reading", plain, tokens)
	}
}

func events(t testing.TB) (all [][]byte) {
	files, err := filepath.Glob("testdata/*.sse")
	if err != nil || len(files) == 0 {
		t.Fatal("no streams in testdata", err)
	}
	for _, f := range files {
		all = append(all, stream(t, strings.TrimSuffix(filepath.Base(f), ".sse"))...)
	}
	return append(
		all,
		[]byte(`{"type":"response.completed"}`), []byte(`{"\u0065rror":1}`), []byte(` {"error":1}`), []byte(`{"\/error":1}`),
		[]byte(`{"type":"message_delta","delta":{"stop_reason":null}}`), []byte(`{"type":"message_start","message":{"id":"m"}}`),
		[]byte(`{"type":"error","message":"m"}`), []byte(`{"error":"scaling"}`), []byte(`{"response":{"status":"cancelled"}}`),
		[]byte(chunk(`"delta":{},"finish_reason":"abort"`)), []byte(`{"usage":{"input_tokens":1,"cache_read_input_tokens":5}}`),
	)
}

// FuzzParseEvent checks events against a plain reading with encoding/json, and
// that none that says more than content is plain.
func FuzzParseEvent(f *testing.F) {
	for _, data := range events(f) {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		e := ParseEvent(data)
		if Plain(data) && saysMore(e) {
			t.Fatalf("%q says %s and is plain", data, says(e))
		}
		if string(data) == Done || !unambiguous(data) {
			return
		}
		token, usage, seen := plainly(data)
		if e.Token != token {
			t.Errorf("%q: token %v", data, e.Token)
		}
		if e.UsageSeen != seen || e.Usage != usage {
			t.Errorf("%q: usage %v %+v, want %v %+v", data, e.UsageSeen, e.Usage, seen, usage)
		}
	})
}

func FuzzParseAnswer(f *testing.F) {
	for _, name := range []string{"chat", "completions", "messages", "responses"} {
		body, err := os.ReadFile(filepath.Join("testdata", name+".json"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		e := ParseAnswer(body)
		if !unambiguous(body) {
			return
		}
		var a map[string]any
		if json.Unmarshal(body, &a) != nil {
			a = nil
		}
		usage, seen := plainUsage(a["usage"])
		if e.UsageSeen != seen || e.Usage != usage {
			t.Errorf("%q: usage %v %+v, want %v %+v", body, e.UsageSeen, e.Usage, seen, usage)
		}
	})
}

// unambiguous reports whether data is JSON of which all readers make the same: no
// member twice, and no deeper than they go.
func unambiguous(data []byte) bool {
	if !json.Valid(data) {
		return false
	}
	d := json.NewDecoder(bytes.NewReader(data))
	var seen []map[string]bool // by depth; nil in arrays
	name := false              // the next token may be one
	for {
		token, err := d.Token()
		if err != nil {
			return len(seen) == 0
		}
		switch token := token.(type) {
		case json.Delim:
			switch token {
			case '{':
				seen, name = append(seen, map[string]bool{}), true
			case '[':
				seen, name = append(seen, nil), false
			default:
				seen = seen[:len(seen)-1]
				name = len(seen) > 0 && seen[len(seen)-1] != nil
			}
			if len(seen) > 200 {
				return false
			}
			continue
		case string:
			if name {
				if seen[len(seen)-1][token] {
					return false
				}
				seen[len(seen)-1][token], name = true, false
				continue
			}
		}
		name = len(seen) > 0 && seen[len(seen)-1] != nil
	}
}

// plainly is the reference for ParseEvent.
func plainly(data []byte) (token bool, usage Usage, seen bool) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var e map[string]any
	if d.Decode(&e) != nil {
		return false, usage, false
	}
	choices, _ := e["choices"].([]any)
	for _, c := range choices {
		c, _ := c.(map[string]any)
		token = token || plainContent(c["delta"]) || plainContent(c["message"]) || full(c["text"])
	}
	kind, _ := e["type"].(string)
	switch {
	case strings.HasPrefix(kind, "response.") && strings.HasSuffix(kind, ".delta") && known[kind], kind == "content_block_delta":
		token = token || plainContent(e["delta"])
	case kind == "content_block_start", kind == "response.output_item.added":
		token = token || plainContent(e["item"]) || plainContent(e["content_block"])
	}
	// The last usage in the text counts: one event has but one.
	for _, of := range []any{e["usage"], member(e["message"], "usage"), member(e["response"], "usage")} {
		if u, ok := plainUsage(of); ok {
			usage, seen = u, true
		}
	}
	return token, usage, seen
}

var known = map[string]bool{
	"response.output_text.delta": true, "response.reasoning_text.delta": true, "response.reasoning_summary_text.delta": true,
	"response.function_call_arguments.delta": true, "response.custom_tool_call_input.delta": true,
	"response.mcp_call_arguments.delta": true, "response.refusal.delta": true, "response.code_interpreter_call_code.delta": true,
}

func member(of any, name string) any {
	o, _ := of.(map[string]any)
	return o[name]
}

func plainContent(v any) bool {
	o, ok := v.(map[string]any)
	if !ok {
		return full(v)
	}
	for name := range strings.FieldsSeq("content reasoning reasoning_content refusal tool_calls function_call audio text thinking partial_json name") {
		if full(o[name]) {
			return true
		}
	}
	return false
}

func full(v any) bool {
	switch v := v.(type) {
	case string:
		return v != ""
	case []any:
		return len(v) > 0
	case map[string]any:
		return len(v) > 0
	}
	return false
}

func plainUsage(v any) (Usage, bool) {
	o, ok := v.(map[string]any)
	if !ok {
		return Usage{}, false
	}
	n := func(v any) int {
		var n int64
		if json.Unmarshal(fmt.Append(nil, v), &n) != nil || n < 0 || n > 1<<31 {
			return 0
		}
		return int(n)
	}
	first := func(names ...string) int {
		for _, name := range names {
			if n := n(o[name]); n > 0 {
				return n
			}
		}
		return 0
	}
	u := Usage{Completion: first("completion_tokens", "output_tokens")}
	for _, cached := range []any{member(o["prompt_tokens_details"], "cached_tokens"), member(o["input_tokens_details"], "cached_tokens"), o["cache_read_input_tokens"]} {
		if isNumber(cached) {
			u.Cached, u.CachedKnown = n(cached), true
		}
	}
	if u.Prompt = n(o["prompt_tokens"]); u.Prompt == 0 {
		u.Prompt = n(o["input_tokens"]) + n(o["cache_read_input_tokens"]) + n(o["cache_creation_input_tokens"])
	}
	if u.Prompt == 0 && u.Completion == 0 {
		return Usage{}, false
	}
	return u, true
}

func isNumber(v any) bool {
	switch v.(type) {
	case json.Number, float64:
		return true
	}
	return false
}

// aChunk is what a stream mostly consists of.
const aChunk = `{"id":"chatcmpl-8608476c4ba5a36d","object":"chat.completion.chunk","created":1796054672,"model":"m","choices":[{"index":0,"delta":{"content":" most"},"logprobs":null,"finish_reason":null,"token_ids":null}]}`

func BenchmarkParseEvent(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		ParseEvent([]byte(aChunk))
	}
}

func BenchmarkPlain(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		Plain([]byte(aChunk))
	}
}
