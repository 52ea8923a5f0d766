package prefix

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"

	"github.com/warmpath/warmpath/internal/jsonscan"
	"github.com/warmpath/warmpath/internal/openai"
)

func read(t testing.TB, endpoint openai.Endpoint, body string) *Prompt {
	t.Helper()
	r, err := openai.Parse(endpoint, []byte(body))
	if err != nil {
		t.Fatalf("%v: %.300s", err, body)
	}
	p := new(Prompt)
	if err := p.Read(&r); err != nil {
		t.Fatalf("%v: %.300s", err, body)
	}
	return p
}

func chat(t testing.TB, body string) *Chain { return &read(t, openai.Chat, body).Chains[0] }

// shared returns how many cuts two chains have in common, and fails if they have
// more in common after they have once differed.
func shared(t testing.TB, a, b *Chain) int {
	t.Helper()
	n := 0
	for n < len(a.Cuts) && n < len(b.Cuts) && a.Cuts[n].Hash == b.Cuts[n].Hash {
		n++
	}
	seen := map[Hash]bool{}
	for _, c := range a.Cuts[n:] {
		seen[c.Hash] = true
	}
	for _, c := range b.Cuts[n:] {
		if seen[c.Hash] {
			t.Fatalf("the chains meet again after cut %d", n)
		}
	}
	return n
}

func prose(n int, seed uint64) string {
	r := rand.New(rand.NewPCG(seed, 0))
	var b strings.Builder
	for b.Len() < n {
		fmt.Fprintf(&b, "word%d ", r.IntN(5000))
	}
	return b.String()[:n]
}

const base = `{"model":"m","messages":[{"role":"system","content":"S"},{"role":"user","name":"ann","content":"Q"},` +
	`{"role":"assistant","content":"A","reasoning":"R","tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}}]},` +
	`{"role":"tool","tool_call_id":"c1","content":[{"type":"text","text":"T1"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}],` +
	`"tools":[{"type":"function","function":{"name":"f","parameters":{"a":1,"b":2}}},{"type":"function","function":{"name":"g"}}],` +
	`"documents":[{"title":"d","text":"D"}],"chat_template_kwargs":{"enable_thinking":true,"k":[1,2]},"cache_salt":"salt","stream":true}`

func TestEqualRenderingsHaveEqualChains(t *testing.T) {
	want := chat(t, base)
	for name, edit := range map[string][2]string{
		"sampling":                 {`"stream":true`, `"stream":false,"temperature":0.5,"max_tokens":9,"n":2,"seed":1,"user":"u","metadata":{"a":"b"}`},
		"space":                    {`"messages":[{"role"`, "\"messages\" :\n [ { \"role\" "},
		"space in tools":           {`"parameters":{"a":1,"b":2}`, `"parameters" : { "a" : 1 , "b":2 }`},
		"order of message members": {`{"role":"user","name":"ann","content":"Q"}`, `{"content":"Q","name":"ann","role":"user"}`},
		"order of part members":    {`{"type":"text","text":"T1"}`, `{"text":"T1","type":"text"}`},
		"order of image members":   {`{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}`, `{"image_url":{"url":"data:image/png;base64,AAAA"},"type":"image_url"}`},
		"order of arguments":       {`{"enable_thinking":true,"k":[1,2]}`, `{"k":[1, 2],"enable_thinking":true}`},
		"order in a call":          {`{"id":"c1","type":"function","function"`, `{"type":"function","id":"c1","function"`},
		"order of documents":       {`{"title":"d","text":"D"}`, `{"text":"D","title":"d"}`},
		"one text part":            {`"content":"Q"`, `"content":[{"type":"text","text":"Q"}]`},
		"cache control":            {`"content":"Q"`, `"content":[{"type":"text","text":"Q","cache_control":{"type":"ephemeral"}}]`},
		"nulls":                    {`"role":"user",`, `"role":"user","refusal":null,"tool_calls":null,`},
		"empty lists":              {`"role":"user",`, `"role":"user","annotations":[],"tool_calls":[],`},
		"reasoning's other name":   {`"reasoning":"R"`, `"reasoning_content":"R"`},
		"both names":               {`"reasoning":"R"`, `"reasoning_content":"R","reasoning":"R"`},
		"the last of equal names":  {`"content":"Q"`, `"content":"old","content":"Q"`},
		"defaults":                 {`"stream":true`, `"tool_choice":"auto","add_generation_prompt":true,"continue_final_message":false,"response_format":null`},
		"order at the top":         {`{"model":"m",`, `{"cache_salt":"salt","model":"m",`},
	} {
		body := strings.Replace(base, edit[0], edit[1], 1)
		if body == base {
			t.Fatalf("%s: nothing was changed", name)
		}
		got := chat(t, body)
		if n := shared(t, want, got); n != len(want.Cuts) || n != len(got.Cuts) {
			t.Errorf("%s: %d of %d and %d cuts are equal", name, n, len(want.Cuts), len(got.Cuts))
		}
	}
}

// TestDifferentRenderingsDifferFromWhereTheyDiffer names, for each change, how
// many messages (tools first, then each message) it must leave equal.
func TestDifferentRenderingsDifferFromWhereTheyDiffer(t *testing.T) {
	want := chat(t, base) // cuts: tools, system, user, assistant, tool
	if len(want.Cuts) != 5 {
		t.Fatalf("%d cuts", len(want.Cuts))
	}
	for name, edit := range map[string]struct {
		old, new string
		equal    int
	}{
		"model":                    {`"model":"m"`, `"model":"m2"`, 0},
		"salt":                     {`"cache_salt":"salt"`, `"cache_salt":"other"`, 0},
		"no salt":                  {`"cache_salt":"salt"`, `"x":1`, 0},
		"template":                 {`"stream":true`, `"chat_template":"{{ x }}"`, 0},
		"template argument":        {`"enable_thinking":true`, `"enable_thinking":false`, 0},
		"template argument list":   {`"k":[1,2]`, `"k":[2,1]`, 0},
		"document":                 {`"text":"D"`, `"text":"E"`, 0},
		"reasoning effort":         {`"stream":true`, `"reasoning_effort":"high"`, 0},
		"tool choice":              {`"stream":true`, `"tool_choice":"none"`, 0},
		"response format":          {`"stream":true`, `"response_format":{"type":"json_object"}`, 0},
		"truncation":               {`"stream":true`, `"truncate_prompt_tokens":100`, 0},
		"processor arguments":      {`"stream":true`, `"mm_processor_kwargs":{"num_crops":2}`, 0},
		"tool's name":              {`"name":"g"`, `"name":"h"`, 0},
		"order inside a tool":      {`{"a":1,"b":2}`, `{"b":2,"a":1}`, 0},
		"order of tools":           {`{"name":"f","parameters"`, `{"parameters0":0,"name":"f","parameters"`, 0},
		"role":                     {`"role":"system"`, `"role":"developer"`, 1},
		"system text":              {`"content":"S"`, `"content":"S2"`, 1},
		"escapes":                  {`"content":"S"`, `"content":"\u0053"`, 1},
		"speaker":                  {`"name":"ann"`, `"name":"bob"`, 2},
		"no speaker":               {`"name":"ann",`, ``, 2},
		"user text":                {`"content":"Q"`, `"content":"Q "`, 2},
		"text in two parts":        {`"content":"Q"`, `"content":[{"type":"text","text":"Q"},{"type":"text","text":""}]`, 2},
		"a member nobody knows":    {`"role":"user",`, `"role":"user","mood":"calm",`, 2},
		"reasoning":                {`"reasoning":"R"`, `"reasoning":"R2"`, 3},
		"answer":                   {`"content":"A"`, `"content":"B"`, 3},
		"call's id":                {`"id":"c1"`, `"id":"c2"`, 3},
		"call's arguments":         {`{\"x\":1}`, `{\"x\":2}`, 3},
		"arguments' white space":   {`{\"x\":1}`, `{ \"x\":1}`, 3},
		"tool call id":             {`"tool_call_id":"c1"`, `"tool_call_id":"c3"`, 4},
		"tool text":                {`"text":"T1"`, `"text":"T2"`, 4},
		"image":                    {`base64,AAAA`, `base64,AAAB`, 4},
		"image detail":             {`"image_url":{`, `"image_url":{"detail":"low",`, 4},
		"no generation prompt":     {`"stream":true`, `"add_generation_prompt":false`, 5},
		"continued last message":   {`"stream":true`, `"continue_final_message":true`, 5},
		"one message more":         {`}],"tools"`, `},{"role":"user","content":"more"}],"tools"`, 5},
		"text moved to the next":   {`"content":"S"},{"role":"user","name":"ann","content":"Q"}`, `"content":""},{"role":"user","name":"ann","content":"SQ"}`, 1},
		"a number's other writing": {`"k":[1,2]`, `"k":[1,2.0]`, 0},
	} {
		body := strings.Replace(base, edit.old, edit.new, 1)
		if body == base {
			t.Fatalf("%s: nothing was changed", name)
		}
		got := chat(t, body)
		n := shared(t, want, got)
		if n != edit.equal {
			t.Errorf("%s: %d cuts are equal, want %d", name, n, edit.equal)
		}
		if n == len(want.Cuts) && n == len(got.Cuts) {
			t.Errorf("%s: no difference", name)
		}
	}
}

// TestLongTextsDifferOnlyFromTheBlockThatDiffers changes one byte at many places.
func TestLongTextsDifferOnlyFromTheBlockThatDiffers(t *testing.T) {
	text := prose(300_000, 1)
	body := func(text string) string {
		return `{"model":"m","messages":[{"role":"system","content":"` + text + `"},{"role":"user","content":"q"}]}`
	}
	want := chat(t, body(text))
	if n := len(want.Cuts); n > 130 {
		t.Errorf("%d cuts for 300 KB", n)
	}
	for _, at := range []int{0, 1, 511, 512, 513, 5000, 16383, 16384, 100_000, 131_072, 250_000, 299_999} {
		changed := text[:at] + "#" + text[at+1:]
		n := shared(t, want, chat(t, body(changed)))
		before := 0 // bytes of the text that equal cuts cover
		if n > 0 {
			before = int(float64(want.Cuts[n-1].Tokens) / 0.25)
		}
		room := zone(at)
		if before > at+16 || before < at-room-64 {
			t.Errorf("changed at byte %d: %d equal cuts cover about %d bytes", at, n, before)
		}
	}
}

// TestChainsArePrefixes grows a conversation turn by turn: every chain begins
// with the one before, and marks what the model said.
func TestChainsArePrefixes(t *testing.T) {
	var messages []string
	var last *Chain
	for turn := range 8 {
		messages = append(messages, `{"role":"user","content":"`+prose(50+turn*700, uint64(turn))+`"}`)
		c := chat(t, `{"model":"m","messages":[`+strings.Join(messages, ",")+`]}`)
		if last != nil {
			if n := shared(t, last, c); n != len(last.Cuts) {
				t.Fatalf("turn %d begins with %d of %d cuts", turn, n, len(last.Cuts))
			}
			a := c.Answers[len(c.Answers)-1]
			if len(c.Answers) != turn || int(a.Begin) != len(last.Cuts)-1 || a.End <= a.Begin {
				t.Fatalf("turn %d: answers %v after %d cuts", turn, c.Answers, len(last.Cuts))
			}
		}
		last = c
		messages = append(messages, `{"role":"assistant","content":"`+prose(300, uint64(100+turn))+`"}`)
	}
}

// TestAllConversationFormatsShareOneIdentity sends one conversation in the three
// formats that vLLM renders alike.
func TestAllConversationFormatsShareOneIdentity(t *testing.T) {
	a := chat(t, `{"model":"m","messages":[{"role":"system","content":"be brief"},{"role":"user","content":"hi"},{"role":"assistant","content":"ho"}]}`)
	b := &read(t, openai.Messages, `{"model":"m","max_tokens":5,"system":"be brief","messages":[{"role":"user","content":[{"type":"text","text":"hi"}]},{"role":"assistant","content":"ho"}]}`).Chains[0]
	c := &read(t, openai.Responses, `{"model":"m","instructions":"be brief","input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"hi"}]},{"role":"assistant","content":[{"type":"output_text","text":"ho"}]}]}`).Chains[0]
	if shared(t, a, b) != 3 || shared(t, a, c) != 3 {
		t.Errorf("%d and %d of 3 cuts are equal", shared(t, a, b), shared(t, a, c))
	}
	d := &read(t, openai.Responses, `{"model":"m","instructions":"be brief","input":"hi"}`).Chains[0]
	if shared(t, a, d) != 2 {
		t.Errorf("a bare input shares %d cuts, want 2", shared(t, a, d))
	}
}

func TestTheHeaderThatEnginesDropIsNoPartOfThePrompt(t *testing.T) {
	f := func(line string) *Chain {
		return &read(t, openai.Messages, `{"model":"m","system":[{"type":"text","text":"`+line+`"},{"type":"text","text":"You are a coder."}],"messages":[{"role":"user","content":"hi"}]}`).Chains[0]
	}
	if a, b := f("x-anthropic-billing-header: cch=1;"), f("x-anthropic-billing-header: cch=2;"); shared(t, a, b) != 2 {
		t.Error("a value that changes on every request breaks the prefix")
	}
}

func TestTokenPromptsAreCutByEngineBlocks(t *testing.T) {
	ids := func(n, changed int) string {
		var b strings.Builder
		for i := range n {
			id := i * 7
			if i == changed {
				id++
			}
			fmt.Fprintf(&b, ",%d", id)
		}
		return "[" + b.String()[1:] + "]"
	}
	f := func(prompt string) *Prompt { return read(t, openai.Completions, `{"model":"m","prompt":`+prompt+`}`) }
	want := &f(ids(5000, -1)).Chains[0]
	if !want.Exact || want.Tokens != 5000 || len(want.Cuts) != 4096/16+15 || want.Cuts[1].Tokens != 32 {
		t.Errorf("exact %v, %d tokens, %d cuts", want.Exact, want.Tokens, len(want.Cuts))
	}
	for _, at := range []int{0, 15, 16, 4095, 4096, 4999} {
		n := shared(t, want, &f(ids(5000, at)).Chains[0])
		tokens := int32(0)
		if n > 0 {
			tokens = want.Cuts[n-1].Tokens
		}
		if tokens > int32(at) || tokens < int32(at)-int32(tokenZone(at+1)) {
			t.Errorf("changed at token %d: equal up to token %d", at, tokens)
		}
	}
	if n := shared(t, want, &f(strings.ReplaceAll(ids(5000, -1), ",", " ,\n")).Chains[0]); n != len(want.Cuts) {
		t.Error("white space between ids matters")
	}
	batch := f(`["one text",[1,2,3],"another"]`)
	if len(batch.Chains) != 3 || batch.Tokens != int(batch.Chains[0].Tokens+batch.Chains[1].Tokens+batch.Chains[2].Tokens) {
		t.Errorf("%d chains, %d tokens", len(batch.Chains), batch.Tokens)
	}
	if shared(t, &f(`"one text"`).Chains[0], &batch.Chains[0]) != 1 {
		t.Error("a text in a batch is another prompt than the text alone")
	}
}

func TestWhatIsNoJSONIsFoundInsideThePrompt(t *testing.T) {
	for _, body := range []string{
		`{"messages":[{"role":"user","content":"a` + "\n" + `"}]}`, `{"messages":[{"role":"user","content":"\x"}]}`,
		`{"messages":[{"role":"user" "content":"x"}]}`, `{"messages":[{"role":"user",}]}`, `{"messages":[{"role":}]}`, `{"messages":[1,]}`,
		`{"messages":[{"content":[{"type":"text","text":"\u12"}]}]}`, `{"messages":[{"content":[{"type":"text" "text":"x"}]}]}`,
		`{"messages":[],"tools":[{"a":01}]}`, `{"messages":[],"chat_template_kwargs":{"a":tru}}`, `{"messages":[{"x":[{"y":[nul]}]}]}`,
	} {
		r, err := openai.Parse(openai.Chat, []byte(body))
		if err != nil {
			continue // found even sooner
		}
		if new(Prompt).Read(&r) == nil {
			t.Errorf("%s is taken", body)
		}
	}
}

func TestHomeIsTheSessions(t *testing.T) {
	f := func(first, rest string) Hash {
		return read(t, openai.Chat, `{"model":"m","messages":[{"role":"system","content":"`+prose(4096, 9)+`"},{"role":"user","content":"`+first+`"}`+rest+`]}`).Home
	}
	if f("a", "") != f("a", `,{"role":"assistant","content":"x"},{"role":"user","content":"y"}`) {
		t.Error("a session's turns have different homes")
	}
	if f("a", "") == f("b", "") {
		t.Error("two sessions under one system prompt have one home")
	}
}

func TestTokensAreEstimatedByScript(t *testing.T) {
	for text, want := range map[string]int64{
		"plain English text!!":       20 * perASCII,
		"你好世界":                       4 * perRune,
		`\u4f60\u597d`:               2 * perRune,
		"é":                          perRune,
		"a你b":                        2*perASCII + perRune,
		strings.Repeat("漢字kanji", 9): 18*perRune + 45*perASCII,
	} {
		form := jsonscan.BeyondASCII
		if strings.Contains(text, `\`) {
			form |= jsonscan.Escaped | jsonscan.Unicode
		}
		if got := estimate([]byte(text), form); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

func TestUnicodeEscapesAreCounted(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	for range 2000 {
		text := make([]byte, r.IntN(40))
		for i := range text {
			text[i] = `\\uu\xDC\xF5a`[r.IntN(7)] // with a high bit, they are no escape
		}
		if got, want := unicodeEscapes(text), bytes.Count(text, unicodeEscape); got != want {
			t.Fatalf("%q: %d, want %d", text, got, want)
		}
	}
}

// TestReusedMemoryDoesNotShow reads many requests with one Prompt.
func TestReusedMemoryDoesNotShow(t *testing.T) {
	p := new(Prompt)
	r := rand.New(rand.NewPCG(4, 4))
	for range 200 {
		body := []byte(`{"model":"m","messages":[{"role":"user","content":"` + prose(1+r.IntN(9000), r.Uint64()) + `"}]}`)
		req, err := openai.Parse(openai.Chat, body)
		if err != nil {
			t.Fatal(err)
		}
		fresh := new(Prompt)
		if err := errors.Join(p.Read(&req), fresh.Read(&req)); err != nil {
			t.Fatal(err)
		}
		if p.Home != fresh.Home || p.Tokens != fresh.Tokens || len(p.Chains) != 1 || shared(t, &p.Chains[0], &fresh.Chains[0]) != len(fresh.Chains[0].Cuts) {
			t.Fatal("a Prompt that was used before reads another identity")
		}
	}
}

// FuzzIdentity changes JSON in ways that cannot change a prompt, and in ways that
// must.
func FuzzIdentity(f *testing.F) {
	f.Add([]byte(base), uint16(3))
	f.Add([]byte(`{"messages":[{"role":"user","content":[{"type":"text","text":"a"},"b",7,null]},3,"x",[]]}`), uint16(9))
	f.Add([]byte(`{"messages":[{"a\":1,\"b":2}]}`), uint16(9))
	f.Fuzz(func(t *testing.T, body []byte, at uint16) {
		r, err := openai.Parse(openai.Chat, body)
		if err != nil {
			return
		}
		p := new(Prompt)
		if err := p.Read(&r); err != nil {
			if json.Valid(body) {
				t.Fatalf("%v: %s", err, body)
			}
			return
		}
		var spaced bytes.Buffer
		if json.Indent(&spaced, body, " ", "\t") != nil {
			return
		}
		q := chat(t, spaced.String())
		if n := shared(t, &p.Chains[0], q); n != len(q.Cuts) || n != len(p.Chains[0].Cuts) || p.Tokens != int(q.Tokens) {
			t.Fatalf("white space changed the identity of %s", body)
		}
		// Another message in front makes everything after it another prompt.
		turns := bytes.TrimSpace(r.Prompt.Turns[1:])
		if len(turns) > 1 {
			front := append(append([]byte(`{"messages":[{"role":"system","content":"zzz"},`), turns...), '}')
			bare := chat(t, `{"messages":`+string(r.Prompt.Turns)+`}`)
			if n := shared(t, bare, chat(t, string(front))); n > 1 {
				t.Fatalf("%d cuts are shared with a prompt that begins otherwise: %s", n, body)
			}
		}
	})
}

// simply returns the cuts of a completion's prompt, the inside of a JSON string, in
// the plainest way.
func simply(raw []byte) (cuts []Cut) {
	d := xxhash.New()
	_, _ = d.WriteString(textRule)
	_, _ = d.Write(make([]byte, 16)) // the lengths of the model's name and the salt
	_, _ = d.Write([]byte{tagText})
	units, offset, since := 0, 1, 1
	for len(raw) > 0 {
		room := max(1, zone(offset)-since)
		piece := raw[:min(room, len(raw))]
		ascii, runes := 0, 0
		for _, b := range piece {
			_, _ = d.Write([]byte{b})
			if b < 0x80 {
				ascii++
			}
			if b >= 0xC0 {
				runes++
			}
		}
		escapes := min(bytes.Count(piece, unicodeEscape), ascii/unicodeBy)
		units += (ascii-escapes*unicodeBy)*perASCII + (runes+escapes)*perRune
		raw, offset, since = raw[len(piece):], offset+len(piece), since+len(piece)
		if len(piece) == room {
			cuts, since = append(cuts, Cut{Hash(d.Sum64()), int32(units / unit)}), 0
		}
	}
	if since > 0 {
		cuts = append(cuts, Cut{Hash(d.Sum64()), int32((units - perPrompt) / unit)})
	}
	return cuts
}

// FuzzText puts a text of any length where prompts have texts, and compares what is
// read with what encoding/json takes, and with simply.
func FuzzText(f *testing.F) {
	fillers := strings.NewReplacer("<plain>", prose(3000, 1), "<code>", strings.Repeat(`say(\"it\")\n`, 250), "<wide>", strings.Repeat("漢字kanji", 300), "<escapes>", strings.Repeat(`\u4f60\\users`, 300))
	for _, seed := range []string{
		"", "a", "<plain><plain>", "<plain>\x1f<plain>", "<plain>\x00", "\x1f<code>", "<code><wide>\x1f<wide>", "<wide><wide>", "<plain>\x7f\x80\xff<plain>",
		`<plain>\`, `<code>\x`, `<escapes>\u12`, "<escapes><plain><plain><plain><plain><plain>" + `\u1234<wide>`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if text = fillers.Replace(text); len(text) > 1<<20 {
			return
		}
		quoted := `"` + text + `"`
		if s := jsonscan.New([]byte(quoted)); len(s.Span()) != len(quoted) {
			return // it ends sooner
		}
		valid := json.Valid([]byte(quoted))
		for body, endpoint := range map[string]openai.Endpoint{
			`{"messages":[{"content":` + quoted + `,"role":"user"}]}`:                                         openai.Chat,
			`{"messages":[{"content":[{"type":"text","text":` + quoted + `}]}]}`:                              openai.Chat,
			`{"messages":[],"tools":[{"name":"f","description":` + quoted + `}]}`:                             openai.Chat,
			`{"messages":[{"tool_calls":[{"function":{"arguments":` + quoted + `}}]}]}`:                       openai.Chat,
			`{"messages":[],"system":[{"type":"text","text":"x-anthropic-billing-header` + quoted[1:] + `}]}`: openai.Messages,
			`{"input":[{"type":"message","content":[{"type":"input_image","image_url":` + quoted + `}]}]}`:    openai.Responses,
			`{"input":` + quoted + `,"instructions":"be brief"}`:                                              openai.Responses,
			`{"prompt":` + quoted + `}`:             openai.Completions,
			`{"prompt":["another",` + quoted + `]}`: openai.Completions,
		} {
			r, err := openai.Parse(endpoint, []byte(body))
			if err != nil {
				t.Fatalf("%v: %.200q", err, body)
			}
			p := new(Prompt)
			if err := p.Read(&r); (err == nil) != valid {
				t.Fatalf("%v, but it is valid JSON: %v: %.200q", err, valid, body)
			}
			if endpoint == openai.Completions && valid {
				got, want := p.Chains[len(p.Chains)-1].Cuts, simply([]byte(text))
				if !slices.Equal(got, want) {
					t.Fatalf("cuts %v, want %v: %.200q", got, want, body)
				}
			}
		}
	})
}

func BenchmarkRead(b *testing.B) {
	code := strings.Repeat(`\tif err := write(\"%s\"); err != nil {\n\t\treturn err\n\t}\n`, 512<<10/80)
	for _, c := range []struct{ name, text string }{
		{"4KB", prose(4<<10, 1)}, {"64KB", prose(64<<10, 1)}, {"512KB", prose(512<<10, 1)}, {"512KB of code", code},
	} {
		body := []byte(`{"model":"m","stream":true,"messages":[{"role":"system","content":"` + c.text + `"},{"role":"user","content":"question"}]}`)
		b.Run(c.name, func(b *testing.B) {
			p := new(Prompt)
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				r, err := openai.Parse(openai.Chat, body)
				if err != nil {
					b.Fatal(err)
				}
				if err := p.Read(&r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
