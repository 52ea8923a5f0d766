package proxy

import (
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/router"
)

// TestOnlyTokensCountAsTokens has an event each second between and behind the tokens
// of an answer: what brings no token moves neither the first nor the last one, nor
// the time between two.
func TestOnlyTokensCountAsTokens(t *testing.T) {
	choice := func(s string) string { return `data: {"id":"c","choices":[{"index":0,` + s + `}]}` + "\n\n" }
	delta := func(s string) string { return choice(`"delta":{` + s + `},"finish_reason":null`) }
	token := delta(`"content":"a"`)
	for name, c := range map[string]struct {
		event string
		is    bool // a token
	}{
		"role chunk":               {delta(`"role":"assistant","content":""`), false},
		"role alone":               {delta(`"role":"assistant"`), false},
		"empty delta":              {delta(``), false},
		"empty content":            {delta(`"content":""`), false},
		"null content":             {delta(`"content":null`), false},
		"empty lists":              {delta(`"content":null,"tool_calls":[]`), false},
		"finish chunk":             {choice(`"delta":{},"finish_reason":"stop"`), false},
		"finish of completions":    {choice(`"text":"","finish_reason":"length"`), false},
		"usage chunk":              {`data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3}}` + "\n\n", false},
		"comment":                  {": queued\n\n", false},
		"ping":                     {`data: {"type":"ping"}` + "\n\n", false},
		"the end":                  {"data: [DONE]\n\n", false},
		"no JSON":                  {"data: {\"choices\n\n", false},
		"all of the text again":    {`data: {"type":"response.output_text.done","text":"aa"}` + "\n\n", false},
		"the end of a block":       {`data: {"type":"content_block_stop","index":0}` + "\n\n", false},
		"content":                  {token, true},
		"several tokens in one":    {delta(`"content":"several tokens in one"`), true},
		"content with an escape":   {delta(`"content":"\u0041"`), true},
		"content that also ends":   {choice(`"delta":{"content":"x"},"finish_reason":"stop"`), true},
		"content with usage":       {`data: {"choices":[{"delta":{"content":"x"}}],"usage":{"prompt_tokens":9,"completion_tokens":3}}` + "\n\n", true},
		"reasoning":                {delta(`"reasoning":"Hm"`), true},
		"reasoning, older name":    {delta(`"reasoning_content":"Hm"`), true},
		"a tool call's name":       {delta(`"tool_calls":[{"index":0,"id":"t","type":"function","function":{"name":"f","arguments":""}}]`), true},
		"a tool call's arguments":  {delta(`"tool_calls":[{"index":0,"function":{"arguments":"{"}}]`), true},
		"text of completions":      {choice(`"text":"x","finish_reason":null`), true},
		"text of messages":         {`data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"x"}}` + "\n\n", true},
		"text of responses":        {`data: {"type":"response.output_text.delta","delta":"x"}` + "\n\n", true},
		"an empty one of messages": {`data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":""}}` + "\n\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			began := time.Unix(1_000_000, 0)
			second := func(n int) time.Time { return began.Add(time.Duration(n) * time.Second) }
			m := &newExchange(&Proxy{}).meter
			m.reads, m.stream, m.firstEvent = true, true, began // there is no lease to tell of it
			for i, event := range []string{c.event, token, c.event, token, c.event} {
				m.now = second(i)
				m.scanner.Feed([]byte(event))
			}
			first, last, tokens := 1, 3, 2
			if c.is {
				first, last, tokens = 0, 4, 5
			}
			if !m.firstToken.Equal(second(first)) || !m.lastOne.Equal(second(last)) || m.events != tokens {
				t.Errorf("%d tokens from %v to %v", m.events, m.firstToken.Sub(began), m.lastOne.Sub(began))
			}
			if got, want := m.outcome(router.Completed).Gap, second(last).Sub(second(first))/time.Duration(tokens-1); got != want {
				t.Errorf("the time between two is %v, want %v", got, want)
			}
		})
	}
}
