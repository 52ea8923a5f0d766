package mockvllm

import "encoding/json"

// messagesRequest is Anthropic's POST /v1/messages.
type messagesRequest struct {
	generation
	System   json.RawMessage   `json:"system"`
	Messages []chatMessage     `json:"messages"`
	Tools    []json.RawMessage `json:"tools"`
}

// decodeMessages returns the request and its rendered prompt.
func decodeMessages(body []byte) (req messagesRequest, ids []uint32, err error) {
	if err := decode(body, &req); err != nil {
		return req, nil, err
	}
	if len(req.Messages) == 0 {
		return req, nil, badRequest("messages", "messages must not be empty")
	}
	p := prompt{tools: req.Tools, generate: true}
	system, err := contentParts(req.System)
	if err != nil {
		return req, nil, badRequest("system", "invalid system prompt: %v", err)
	}
	if len(system) > 0 {
		p.turns = append(p.turns, turn{role: "system", parts: system})
	}
	for _, m := range req.Messages {
		t, err := m.turn()
		if err != nil {
			return req, nil, err
		}
		p.turns = append(p.turns, t)
	}
	return req, p.tokens(), nil
}

// messagesUsage follows Anthropic: input_tokens are those that were not read from the cache.
type messagesUsage struct {
	Input     int  `json:"input_tokens"`
	CacheRead *int `json:"cache_read_input_tokens,omitempty"`
	Output    int  `json:"output_tokens"`
}

func newMessagesUsage(u usage) messagesUsage {
	m := messagesUsage{Input: u.Prompt, Output: u.Completion}
	if u.Details != nil {
		m.Input -= u.Details.Cached
		m.CacheRead = &u.Details.Cached
	}
	return m
}

type textBlock struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

type messagesAnswer struct {
	ID           string        `json:"id"`
	Type         string        `json:"type"`
	Role         string        `json:"role"`
	Model        string        `json:"model"`
	Content      []textBlock   `json:"content"`
	StopReason   *string       `json:"stop_reason"`
	StopSequence *string       `json:"stop_sequence"`
	Usage        messagesUsage `json:"usage"`
}

// stopReason translates a finish reason; abort has no translation, and vLLM passes it on.
func stopReason(finish string) string {
	switch finish {
	case "stop":
		return "end_turn"
	case "length":
		return "max_tokens"
	}
	return finish
}

// messages is POST /v1/messages.
func (x *exchange) messages() error {
	req, ids, err := decodeMessages(x.body)
	if err != nil {
		return err
	}
	req.N, req.StreamOptions = nil, nil
	j, err := x.s.generate(req.generation, [][]uint32{ids}, false)
	if err != nil {
		return err
	}
	defer j.close()
	model, _, _ := x.s.lookup(req.Model)
	a := messagesAnswer{ID: x.id("msg_"), Type: "message", Role: "assistant", Model: model, Content: []textBlock{}}
	if req.Stream {
		return x.messagesStream(j, a)
	}
	texts, finish, err := x.texts(j)
	if err != nil {
		return err
	}
	stop := stopReason(finish[0])
	a.Content = append(a.Content, textBlock{"text", texts[0]})
	a.StopReason = &stop
	a.Usage = newMessagesUsage(j.usage(1))
	return x.reply(a)
}

// messagesStream sends message_start with the first output, which is when the cached tokens are known.
func (x *exchange) messagesStream(j *job, a messagesAnswer) error {
	if err := x.stream(); err != nil {
		return err
	}
	send := func(kind string, fields map[string]any) error {
		fields["type"] = kind
		return x.event(kind, fields)
	}
	started, stop := false, ""
	err := x.follow(j, func(_ int, text, finish string) error {
		if !started {
			started = true
			a.Usage = newMessagesUsage(j.usage(1))
			a.Usage.Output = 0
			if err := send("message_start", map[string]any{"message": a}); err != nil {
				return err
			}
			if err := send("content_block_start", map[string]any{"index": 0, "content_block": textBlock{"text", ""}}); err != nil {
				return err
			}
		}
		if finish != "" {
			stop = stopReason(finish)
		}
		if text == "" {
			return nil
		}
		return send("content_block_delta", map[string]any{"index": 0, "delta": textBlock{"text_delta", text}})
	})
	if err != nil {
		return err
	}
	if err := send("content_block_stop", map[string]any{"index": 0}); err != nil {
		return err
	}
	delta := map[string]any{"stop_reason": stop, "stop_sequence": nil}
	if err := send("message_delta", map[string]any{"delta": delta, "usage": newMessagesUsage(j.usage(1))}); err != nil {
		return err
	}
	return send("message_stop", map[string]any{})
}

// countTokens is POST /v1/messages/count_tokens.
func (x *exchange) countTokens() error {
	req, ids, err := decodeMessages(x.body)
	if err != nil {
		return err
	}
	if _, _, err := x.s.lookup(req.Model); err != nil {
		return err
	}
	return x.reply(map[string]any{"input_tokens": len(ids)})
}
