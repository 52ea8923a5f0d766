package mockvllm

import (
	"encoding/json"
	"time"
)

// completionRequest is the part of POST /v1/completions that matters here.
type completionRequest struct {
	generation
	Prompt json.RawMessage `json:"prompt"`
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
		return x.completionStream(req, j, a)
	}
	texts, finish, err := x.texts(j)
	if err != nil {
		return err
	}
	for i := range texts {
		a.Choices = append(a.Choices, completionChoice{Index: i, Text: texts[i], Finish: &finish[i]})
	}
	u := j.usage(req.n())
	a.Usage, a.Fingerprint = &u, fingerprint
	return x.reply(a)
}

func (x *exchange) completionStream(req completionRequest, j *job, a completionAnswer) error {
	if err := x.stream(); err != nil {
		return err
	}
	err := x.follow(j, func(i int, text, finish string) error {
		c := completionChoice{Index: i, Text: text}
		if finish != "" {
			c.Finish = &finish
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
