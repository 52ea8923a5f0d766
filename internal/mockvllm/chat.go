package mockvllm

import (
	"encoding/json"
	"maps"
	"time"
)

// chatRequest is the part of POST /v1/chat/completions that changes the prompt, the cache or the answer's shape.
type chatRequest struct {
	generation
	Messages             []chatMessage              `json:"messages"`
	Tools                []json.RawMessage          `json:"tools"`
	Documents            []json.RawMessage          `json:"documents"`
	ChatTemplateKwargs   map[string]json.RawMessage `json:"chat_template_kwargs"`
	ReasoningEffort      json.RawMessage            `json:"reasoning_effort"`
	AddGenerationPrompt  *bool                      `json:"add_generation_prompt"`
	ContinueFinalMessage bool                       `json:"continue_final_message"`
}

type chatMessage struct {
	Role             string          `json:"role"`
	Name             string          `json:"name"`
	Content          json.RawMessage `json:"content"`
	Reasoning        string          `json:"reasoning"`
	ReasoningContent string          `json:"reasoning_content"`
	ToolCalls        json.RawMessage `json:"tool_calls"`
}

func (m chatMessage) turn() (turn, error) {
	parts, err := contentParts(m.Content)
	if err != nil {
		return turn{}, badRequest("messages", "invalid message content: %v", err)
	}
	t := turn{role: m.Role, name: m.Name, reasoning: m.Reasoning, parts: parts, toolCalls: m.ToolCalls}
	if t.reasoning == "" {
		t.reasoning = m.ReasoningContent
	}
	return t, nil
}

// decodeChat returns the request and its rendered prompt.
func decodeChat(body []byte) (req chatRequest, ids []uint32, err error) {
	if err := decode(body, &req); err != nil {
		return req, nil, err
	}
	if len(req.Messages) == 0 {
		return req, nil, badRequest("messages", "messages must not be empty")
	}
	p := prompt{
		kwargs:    req.ChatTemplateKwargs,
		tools:     req.Tools,
		documents: req.Documents,
		generate:  req.AddGenerationPrompt == nil || *req.AddGenerationPrompt,
		open:      req.ContinueFinalMessage,
	}
	if len(req.ReasoningEffort) > 0 && string(req.ReasoningEffort) != "null" {
		p.kwargs = map[string]json.RawMessage{"reasoning_effort": req.ReasoningEffort}
		maps.Copy(p.kwargs, req.ChatTemplateKwargs)
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

// chatAnswer is both the whole answer and a chunk of a stream.
type chatAnswer struct {
	ID          string       `json:"id"`
	Object      string       `json:"object"`
	Created     int64        `json:"created"`
	Model       string       `json:"model"`
	Choices     []chatChoice `json:"choices"`
	Usage       *usage       `json:"usage,omitempty"`
	Fingerprint string       `json:"system_fingerprint,omitempty"`
}

type chatChoice struct {
	Index      int              `json:"index"`
	Message    *chatText        `json:"message,omitempty"`
	Delta      *chatDelta       `json:"delta,omitempty"`
	Logprobs   *struct{}        `json:"logprobs"`
	Finish     *string          `json:"finish_reason"`
	StopReason *json.RawMessage `json:"stop_reason,omitempty"` // null in a choice's last chunk, absent before
}

type chatText struct {
	Role      string     `json:"role"`
	Content   string     `json:"content"`
	ToolCalls []struct{} `json:"tool_calls"`
}

type chatDelta struct {
	Role    string `json:"role,omitempty"`
	Content string `json:"content"`
}

// end marks the last of a choice.
func (c *chatChoice) end(finish string) {
	null := json.RawMessage("null")
	c.Finish, c.StopReason = &finish, &null
}

// fingerprint is what vLLM would say of its version and configuration.
const fingerprint = "vllm-" + version + "-mock"

// chat is POST /v1/chat/completions.
func (x *exchange) chat() error {
	req, ids, err := decodeChat(x.body)
	if err != nil {
		return err
	}
	j, err := x.s.generate(req.generation, [][]uint32{ids}, false)
	if err != nil {
		return err
	}
	defer j.close()
	model, _, _ := x.s.lookup(req.Model)
	a := chatAnswer{ID: x.id("chatcmpl-"), Object: "chat.completion", Created: time.Now().Unix(), Model: model}
	if req.Stream {
		a.Object += ".chunk"
		return x.chatStream(req, j, a)
	}
	texts, finish, err := x.texts(j)
	if err != nil {
		return err
	}
	for i := range texts {
		c := chatChoice{Index: i, Message: &chatText{Role: "assistant", Content: texts[i], ToolCalls: []struct{}{}}}
		c.end(finish[i])
		a.Choices = append(a.Choices, c)
	}
	u := j.usage(req.n())
	a.Usage, a.Fingerprint = &u, fingerprint
	return x.reply(a)
}

// chatStream sends a chunk with the role for each choice when the engine has its first output, which marks the end of
// the prefill, then a chunk for each token.
func (x *exchange) chatStream(req chatRequest, j *job, a chatAnswer) error {
	if err := x.stream(); err != nil {
		return err
	}
	chunk := func(c ...chatChoice) error {
		a.Choices = c
		if req.continuousUsage() {
			u := j.usage(req.n())
			a.Usage = &u
		}
		return x.event("", a)
	}
	started := false
	err := x.follow(j, func(i int, text, finish string) error {
		for c := 0; !started && c < len(j.choices); c++ {
			if err := chunk(chatChoice{Index: c, Delta: &chatDelta{Role: "assistant"}}); err != nil {
				return err
			}
		}
		started = true
		c := chatChoice{Index: i, Delta: &chatDelta{Content: text}}
		if finish != "" {
			c.end(finish)
		}
		return chunk(c)
	})
	if err != nil {
		return err
	}
	if req.includeUsage() {
		u := j.usage(req.n())
		a.Choices, a.Usage, a.Fingerprint = []chatChoice{}, &u, fingerprint
		if err := x.event("", a); err != nil {
			return err
		}
	}
	return x.done()
}
