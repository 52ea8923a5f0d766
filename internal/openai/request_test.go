package openai

import (
	"encoding/json"
	"errors"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/internal/jsonscan"
)

// prompt writes down what Parse found of the prompt.
func prompt(p *Prompt) map[string]string {
	got := map[string]string{}
	put := func(name string, value []byte) {
		if value != nil {
			got[name] = string(value)
		}
	}
	put("system", p.System)
	put("tools", p.Tools)
	put("turns", p.Turns)
	put("salt", p.Salt)
	for i, value := range p.Head {
		put(headNames[i], value)
	}
	if p.Continue {
		got["continue"] = ""
	}
	return got
}

func TestFindsThePromptOfEachEndpoint(t *testing.T) {
	for name, c := range map[string]struct {
		endpoint Endpoint
		body     string
		want     map[string]string
	}{
		"chat": {
			Chat, `{"model":"m","messages":[{"role":"user","content":"a \"b\" ]"}],"tools":[{"type":"function"}],"cache_salt":"s","temperature":0}`,
			map[string]string{"turns": `[{"role":"user","content":"a \"b\" ]"}]`, "tools": `[{"type":"function"}]`, "salt": `"s"`},
		},
		"what changes the rendered prompt": {
			Chat, `{"messages":[],"documents":[{"text":"d"}],"chat_template_kwargs":{"a":1},"reasoning_effort":"low","tool_choice":null}`,
			map[string]string{"turns": `[]`, "documents": `[{"text":"d"}]`, "chat_template_kwargs": `{"a":1}`, "reasoning_effort": `"low"`},
		},
		"chat that continues its last message": {
			Chat, `{"messages":[],"continue_final_message":true,"add_generation_prompt":false}`,
			map[string]string{"turns": `[]`, "continue": ""},
		},
		"chat that begins an answer": {
			Chat, `{"messages":[],"continue_final_message":false,"add_generation_prompt":true}`,
			map[string]string{"turns": `[]`},
		},
		"members of other endpoints": {
			Chat, `{"messages":[],"prompt":"p","input":"i","system":"s","instructions":"t"}`,
			map[string]string{"turns": `[]`},
		},
		"completions text":       {Completions, `{"prompt":"p","messages":[1]}`, map[string]string{"turns": `"p"`}},
		"completions token ids":  {Completions, `{"prompt":[1,2]}`, map[string]string{"turns": `[1,2]`}},
		"completions batch":      {Completions, `{"prompt":[[1],[2]]}`, map[string]string{"turns": `[[1],[2]]`}},
		"completions embeddings": {Completions, `{"prompt":null,"prompt_embeds":"e"}`, map[string]string{"prompt_embeds": `"e"`}},
		"responses":              {Responses, `{"input":"i","instructions":"s"}`, map[string]string{"turns": `"i"`, "system": `"s"`}},
		"responses items":        {Responses, `{"input":[{"role":"user"}],"reasoning":{"effort":"low"}}`, map[string]string{"turns": `[{"role":"user"}]`, "reasoning": `{"effort":"low"}`}},
		"messages": {
			Messages, `{"messages":[{"role":"user","content":"x"}],"system":[{"type":"text","text":"s"}],"output_config":{"effort":"low"},"thinking":{"type":"disabled"}}`,
			map[string]string{"turns": `[{"role":"user","content":"x"}]`, "system": `[{"type":"text","text":"s"}]`, "output_config": `{"effort":"low"}`, "thinking": `{"type":"disabled"}`},
		},
		"a body that is not understood": {Other, `{"model":"m","input":["a"],"tools":[1]}`, map[string]string{}},
		"escaped names":                 {Chat, `{"\u006dessages":[]}`, map[string]string{"turns": `[]`}},
		"white space":                   {Chat, " {\n\t\"messages\" : [ 1 ] } \r\n", map[string]string{"turns": `[ 1 ]`}},
	} {
		r, err := Parse(c.endpoint, []byte(c.body))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if got := prompt(&r.Prompt); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

func TestFindsWhatRoutingNeeds(t *testing.T) {
	for body, want := range map[string]Request{
		`{"model":"org/m:lora","stream":true,"prompt":"p"}`:                 {Model: "org/m:lora", Stream: true},
		`{"model":"caf\u00e9","prompt":"p"}`:                                {Model: "café"},
		`{"model":null,"stream":null,"user":null,"prompt":"p"}`:             {},
		`{"model":5,"stream":"yes","prompt":"p"}`:                           {},
		`{"user":"u","session_id":"s","prompt":"p"}`:                        {User: "u", Session: "s"},
		`{"previous_response_id":"resp_1","prompt":"p"}`:                    {Previous: "resp_1"},
		`{"model":"a","model":"b","stream":true,"stream":false,"prompt":0}`: {Model: "b"},
	} {
		got, _ := Parse(Completions, []byte(body))
		got.Endpoint, got.Prompt = Other, Prompt{}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v", body, got)
		}
	}
}

// vLLM 0.32 takes log probabilities of the prompt for asked for if they are not
// null (sampling_params.py), and echo asks for them too (completion/protocol.py,
// chat_completion/protocol.py).
func TestKnowsRequestsThatReadNoCache(t *testing.T) {
	for _, c := range []struct {
		endpoint Endpoint
		members  string
		want     bool
	}{
		{Chat, `"logprobs":true`, false},
		{Chat, `"prompt_logprobs":null`, false},
		{Chat, `"prompt_logprobs":5`, true},
		{Chat, `"prompt_logprobs":0`, true},
		{Chat, `"prompt_logprobs":-1`, true},
		{Chat, `"echo":true`, true},
		{Chat, `"echo":false`, false},
		{Completions, `"prompt_logprobs":1`, true},
		{Completions, `"echo":true`, false},
		{Completions, `"echo":true,"logprobs":null`, false},
		{Completions, `"echo":true,"logprobs":1`, true},
		{Completions, `"logprobs":1,"echo":true`, true},
		{Completions, `"logprobs":1`, false},
		{Messages, `"prompt_logprobs":1,"echo":true`, false},
	} {
		r, err := Parse(c.endpoint, []byte(`{"messages":[],"prompt":"p",`+c.members+`}`))
		if err != nil || r.ReadsNoCache != c.want {
			t.Errorf("%s with %s: %v, %v", c.endpoint, c.members, r.ReadsNoCache, err)
		}
	}
}

func TestRefusesWhatNoEngineTakesAndSaysWhy(t *testing.T) {
	for _, c := range []struct {
		endpoint           Endpoint
		body, param, needs string
	}{
		{Chat, ``, "", "byte 0"},
		{Chat, `[]`, "", "must be a JSON object"},
		{Other, `"x"`, "", "must be a JSON object"},
		{Chat, `[1,`, "", "byte 3"},
		{Chat, `{"messages":[]`, "", "byte 14"},
		{Chat, `{"messages":[]} x`, "", "byte 16"},
		{Chat, `{"messages":[],"temperature":tru}`, "", "byte 29"},
		{Chat, `{"messages":[],"user":"` + "\n" + `"}`, "", "control character"},
		{Chat, `{"messages":` + strings.Repeat("[", 300) + strings.Repeat("]", 300) + `}`, "", "nested deeper"},
		{Chat, `{"messages":[],"x":` + strings.Repeat("[", 300) + strings.Repeat("]", 300) + `}`, "", "nested deeper"},
		{Chat, `{}`, "messages", "an array"},
		{Chat, `{"messages":null}`, "messages", "an array"},
		{Chat, `{"messages":"hi"}`, "messages", "an array"},
		{Messages, `{"messages":{}}`, "messages", "an array"},
		{Completions, `{}`, "prompt", "a string"},
		{Completions, `{"prompt":{}}`, "prompt", "a string"},
		{Completions, `{"prompt":null}`, "prompt", "a string"},
		{Responses, `{"input":5}`, "input", "a string"},
		{Responses, `{}`, "input", "a string"},
	} {
		_, err := Parse(c.endpoint, []byte(c.body))
		var e *Error
		if !errors.As(err, &e) {
			t.Errorf("%.60s: error %v", c.body, err)
			continue
		}
		if e.Status != http.StatusBadRequest || e.Type != "invalid_request_error" || e.Param != c.param || !strings.Contains(e.Message, c.needs) {
			t.Errorf("%.60s: %+v, want param %q and %q", c.body, e, c.param, c.needs)
		}
	}
}

func TestInvalidSaysWhereTheBodyIsNoJSON(t *testing.T) {
	body := []byte(`{"messages":[{"role":"user",}]}`)
	if _, err := Parse(Chat, body); err != nil {
		t.Fatal("the inside of messages is for others to check, but", err)
	}
	if e := Invalid(body); e.Status != 400 || !strings.Contains(e.Message, "byte 28") {
		t.Errorf("got %+v", e)
	}
	if e := Invalid([]byte(`{}`)); e.Status != 400 || e.Message == "" {
		t.Errorf("got %+v", e)
	}
}

func FuzzParse(f *testing.F) {
	for _, body := range []string{
		`{"model":"m","stream":true,"messages":[{"role":"user","content":"a\"b"}],"tools":[],"cache_salt":"s"}`,
		`{"model":"m","prompt":[[1,2],[3]],"echo":true,"logprobs":1}`, `{"input":"x","instructions":"y","previous_response_id":"r"}`,
		`{"\u006dodel":"\ud83d\ude00","messages":[null]}`, `{"messages":[}`, `{"messages":"`, `{"prompt":-}`, `{"messages":[],"messages":{}}`, ``,
	} {
		for e := Other; e <= Messages; e++ {
			f.Add(uint8(e), []byte(body))
		}
	}
	f.Fuzz(func(t *testing.T, endpoint uint8, body []byte) {
		e := Endpoint(endpoint % uint8(Messages+1))
		r, err := Parse(e, body)
		if refusal := (*Error)(nil); err != nil && (!errors.As(err, &refusal) || refusal.Status != 400) {
			t.Fatalf("%q: error %v", body, err)
		}
		if !json.Valid(body) {
			if err == nil && len(prompt(&r.Prompt)) == 0 {
				t.Fatalf("%q: accepted, and nobody will look at it again", body)
			}
			return
		}
		if err != nil {
			return
		}
		for name, value := range prompt(&r.Prompt) {
			if s := jsonscan.New([]byte(value)); name != "continue" {
				if s.Skip(); s.End() != nil {
					t.Fatalf("%q: %s is %q", body, name, value)
				}
			}
		}
		if !unambiguous(body) {
			return
		}
		var want struct {
			Model, User any
			Stream      any
		}
		var members map[string]any
		if json.Unmarshal(body, &members) != nil {
			t.Fatalf("%q: accepted", body)
		}
		want.Model, want.User, want.Stream = members["model"], members["user"], members["stream"]
		if model, _ := want.Model.(string); string([]rune(r.Model)) != model { // every byte that is not UTF-8 is U+FFFD
			t.Errorf("%q: model %q, want %q", body, r.Model, model)
		}
		if stream, _ := want.Stream.(bool); r.Stream != stream {
			t.Errorf("%q: stream %v", body, r.Stream)
		}
	})
}

func BenchmarkParse(b *testing.B) {
	body := []byte(`{"model":"m","stream":true,"messages":[{"role":"user","content":"` + strings.Repeat("some words of a prompt ", 200) + `"}],"max_tokens":100}`)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Parse(Chat, body); err != nil {
			b.Fatal(err)
		}
	}
}
