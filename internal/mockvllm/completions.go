package mockvllm

import (
	"encoding/json"
	"time"
)

// completionRequest is the part of POST /v1/completions that matters here.
type completionRequest struct {
	generation
	Prompt         json.RawMessage `json:"prompt"`
	ReturnTokenIDs bool            `json:"return_token_ids"`
}

func decodeCompletion(body []byte) (req completionRequest, ids [][]uint32, err error) {
	if err = decode(body, &req); err == nil {
		ids, err = prompts(req.Prompt)
	}
	return req, ids, err
}

// completionAnswer is both the whole answer and a chunk of a stream, which has no role chunk.
type completionAnswer struct {
	ID          string             `json:"id"`
	Object      string             `json:"object"`
	Created     int64              `json:"created"`
	Model       string             `json:"model"`
	Choices     []completionChoice `json:"choices"`
	Usage       *usage             `json:"usage,omitempty"`
	Fingerprint string             `json:"system_fingerprint,omitempty"`
}

type completionChoice struct {
	Index      int       `json:"index"`
	Text       string    `json:"text"`
	Logprobs   *struct{} `json:"logprobs"`
	Finish     *string   `json:"finish_reason"`
	StopReason *struct{} `json:"stop_reason"`
	// PromptIDs and IDs are there when the client sets return_token_ids: in a stream the prompt's in a choice's first
	// chunk, and with each chunk those of its text.
	PromptIDs []uint32 `json:"prompt_token_ids,omitempty"`
	IDs       []uint32 `json:"token_ids,omitempty"`
}

// completions is POST /v1/completions.
func (x *exchange) completions() error {
	req, ids, err := decodeCompletion(x.body)
	if err != nil {
		return err
	}
	j, err := x.s.generate(req.generation, ids, true)
	if err != nil {
		return err
	}
	defer j.close()
	model, _, _ := x.s.lookup(req.Model)
	a := completionAnswer{ID: x.id("cmpl-"), Object: "text_completion", Created: time.Now().Unix(), Model: model}
	if req.Stream {
		return x.completionStream(req, ids, j, a)
	}
	texts, finish, err := x.texts(j)
	if err != nil {
		return err
	}
	for i := range texts {
		c := completionChoice{Index: i, Text: texts[i], Finish: &finish[i]}
		if req.ReturnTokenIDs {
			c.PromptIDs, c.IDs = ids[i/req.n()], Encode(texts[i])
		}
		a.Choices = append(a.Choices, c)
	}
	u := j.usage(req.n())
	a.Usage, a.Fingerprint = &u, fingerprint
	return x.reply(a)
}

func (x *exchange) completionStream(req completionRequest, ids [][]uint32, j *job, a completionAnswer) error {
	if err := x.stream(); err != nil {
		return err
	}
	begun := make([]bool, len(j.choices))
	err := x.follow(j, func(i int, text, finish string) error {
		c := completionChoice{Index: i, Text: text}
		if finish != "" {
			c.Finish = &finish
		}
		if req.ReturnTokenIDs {
			if c.IDs = Encode(text); !begun[i] {
				c.PromptIDs, begun[i] = ids[i/req.n()], true
			}
		}
		a.Choices = []completionChoice{c}
		if req.continuousUsage() {
			u := j.usage(req.n())
			a.Usage = &u
		}
		return x.event("", a)
	})
	if err != nil {
		return err
	}
	if req.includeUsage() {
		u := j.usage(req.n())
		a.Choices, a.Usage, a.Fingerprint = []completionChoice{}, &u, fingerprint
		if err := x.event("", a); err != nil {
			return err
		}
	}
	return x.done()
}
