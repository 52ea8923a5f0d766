package mockvllm

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

const english = "The quick way to understand a cache is to watch what it forgets. Every replica keeps blocks of tokens it has " +
	"already seen, and the gateway should send a request to the replica that will answer it soonest, given what that replica " +
	"already holds. When two requests share a system prompt, only the first one has to pay for it."

func TestEnglishHasAboutFourBytesAToken(t *testing.T) {
	if r := float64(len(english)) / float64(len(Encode(english))); r < 3.3 || r > 4.7 {
		t.Errorf("%.2f bytes a token", r)
	}
}

func TestPieces(t *testing.T) {
	for text, want := range map[string]string{
		"":                  "",
		"hello world":       "hello| world",
		"schedulers":        "schedu|lers",
		"  indented":        " | inden|ted",
		"a, b":              "a|,| b",
		"x\n\n\ty":          "x|\n\n|\t|y",
		"集群 fault":          "集|群| fault",
		"naïve":             "naïve",
		"        deep":      "      | | deep",
		"\xff\xfe ok":       "\xff|\xfe| ok",
		"trailing  ":        "traili|ng|  ",
		"{\"key\": [1, 2]}": "{|\"|key|\"|:| |[|1|,| 2|]|}",
	} {
		if got := strings.Join(slices.Collect(pieces(text)), "|"); got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
}

func TestAnswersEncodeToTheTokensGenerated(t *testing.T) {
	for _, lead := range []bool{false, true} {
		a := newAnswer(Encode(english), lead)
		if got := Encode(a.text(500)); !slices.Equal(got, a.tokens(500)) {
			t.Errorf("lead %v: text encodes to other tokens", lead)
		}
	}
}

func FuzzEncodeIsStableAtWhiteSpace(f *testing.F) {
	for _, s := range []string{english, "a  b", "集群故障 分析\n", "x = {\n\t\"a\": 1 }", "\xf0\x9f \xe4 a"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if got := strings.Join(slices.Collect(pieces(text)), ""); got != text {
			t.Fatalf("pieces of %q make %q", text, got)
		}
		whole := Encode(text)
		const space = " \n\t\r"
		for i := 1; i < len(text); i++ {
			if strings.IndexByte(space, text[i]) < 0 || strings.IndexByte(space, text[i-1]) >= 0 {
				continue
			}
			front := Encode(text[:i])
			if len(front) > len(whole) || !slices.Equal(front, whole[:len(front)]) {
				t.Fatalf("cut at %d of %q changes the tokens before", i, text)
			}
		}
	})
}

func render(t *testing.T, body string) []uint32 {
	t.Helper()
	_, ids, err := decodeChat([]byte(body))
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return ids
}

// shared is the length of the common prefix.
func shared(a, b []uint32) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

func TestWhatChangesTheRenderedPrompt(t *testing.T) {
	const base = `{"messages":[{"role":"user","content":"hello there"}]}`
	for name, tt := range map[string]struct {
		body string
		same bool
	}{
		"white space":        {"{ \"messages\" : [ {\"content\":\"hello there\", \"role\":\"user\"} ] }", true},
		"sampling":           {`{"messages":[{"role":"user","content":"hello there"}],"temperature":1,"seed":3,"max_tokens":2}`, true},
		"text parts":         {`{"messages":[{"role":"user","content":[{"type":"text","text":"hello there"}]}]}`, true},
		"nulls":              {`{"messages":[{"role":"user","content":"hello there","tool_calls":null}],"tools":null,"documents":null}`, true},
		"role":               {`{"messages":[{"role":"system","content":"hello there"}]}`, false},
		"name":               {`{"messages":[{"role":"user","name":"bo","content":"hello there"}]}`, false},
		"reasoning":          {`{"messages":[{"role":"user","content":"hello there","reasoning":"x"}]}`, false},
		"tools":              {`{"messages":[{"role":"user","content":"hello there"}],"tools":[{"type":"function"}]}`, false},
		"documents":          {`{"messages":[{"role":"user","content":"hello there"}],"documents":[{"a":1}]}`, false},
		"template arguments": {`{"messages":[{"role":"user","content":"hello there"}],"chat_template_kwargs":{"a":1}}`, false},
		"effort":             {`{"messages":[{"role":"user","content":"hello there"}],"reasoning_effort":"low"}`, false},
		"generation prompt":  {`{"messages":[{"role":"user","content":"hello there"}],"add_generation_prompt":false}`, false},
		"continued message":  {`{"messages":[{"role":"user","content":"hello there"}],"continue_final_message":true}`, false},
		"image":              {`{"messages":[{"role":"user","content":["hello there",{"type":"image_url","image_url":{"url":"u"}}]}]}`, false},
	} {
		if got := slices.Equal(render(t, base), render(t, tt.body)); got != tt.same {
			t.Errorf("%s: same prompt %v, want %v", name, got, tt.same)
		}
	}
	if slices.Equal(render(t, `{"tools":[{"a":1,"b":2}],"messages":[{"role":"user"}]}`), render(t, `{"tools":[{"b":2,"a":1}],"messages":[{"role":"user"}]}`)) {
		t.Error("the order of keys in tools must matter")
	}
	if !slices.Equal(render(t, `{"chat_template_kwargs":{"a":1,"b":2},"messages":[{"role":"user"}]}`), render(t, `{"chat_template_kwargs":{"b":2,"a":1},"messages":[{"role":"user"}]}`)) {
		t.Error("the order of template arguments must not matter")
	}
}

func TestImagesAreARunOfTokensOfTheirOwn(t *testing.T) {
	image := func(url string) []uint32 {
		u, _ := json.Marshal(url)
		return render(t, `{"messages":[{"role":"user","content":[{"type":"text","text":"look"},{"type":"image_url","image_url":{"url":`+string(u)+`}}]}]}`)
	}
	none := render(t, `{"messages":[{"role":"user","content":"look"}]}`)
	a, b := image("http://a/1.png"), image("http://a/2.png")
	if len(a) != len(none)+imageTokens || len(a) != len(b) {
		t.Errorf("%d tokens with an image, %d without", len(a), len(none))
	}
	if n := shared(a, b); n != shared(a, none) {
		t.Errorf("two images share %d tokens", n)
	}
}

func TestNextTurnExtendsPromptAndAnswer(t *testing.T) {
	first := render(t, `{"messages":[{"role":"user","content":"hello there"}]}`)
	a := newAnswer(first, false)
	next := render(t, `{"messages":[{"role":"user","content":"hello there"},{"role":"assistant","content":"`+a.text(30)+`"},{"role":"user","content":"go on"}]}`)
	if want := slices.Concat(first, a.tokens(30)); shared(want, next) != len(want) {
		t.Errorf("next turn shares %d of %d tokens", shared(want, next), len(want))
	}
}

func FuzzDecodeRequests(f *testing.F) {
	for _, s := range []string{
		`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":"u"},"x",{"type":"tool_result","content":"y"}]}],"tools":[1],"n":2}`,
		`{"prompt":[[1,2],[3]],"max_tokens":-1}`,
		`{"prompt":["a",null]}`,
		`{"input":[{"type":"function_call_output","output":"x"},{"role":"user","content":null}],"instructions":"i"}`,
		`{"system":[{"type":"text","text":"s"}],"messages":[{"role":"user","content":[{"type":"image","source":{"data":"x"}}]}]}`,
		`{"messages":[null]}`, `null`, `[]`, `{`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(_ *testing.T, body []byte) {
		_, _, _ = decodeChat(body)
		_, _, _ = decodeCompletion(body)
		_, _, _ = decodeResponses(body)
		_, _, _ = decodeMessages(body)
		var r rerankRequest
		_ = decode(body, &r)
		var faults Faults
		_ = json.Unmarshal(body, &faults)
	})
}
