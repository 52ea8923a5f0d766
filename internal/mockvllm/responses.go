package mockvllm

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-chi/chi/v5"
)

// maxStored bounds the responses that a process remembers.
const maxStored = 1024

// responsesRequest is the part of POST /v1/responses that matters here.
type responsesRequest struct {
	generation
	Input           json.RawMessage   `json:"input"`
	Instructions    string            `json:"instructions"`
	Previous        string            `json:"previous_response_id"`
	MaxOutputTokens *int              `json:"max_output_tokens"`
	Tools           []json.RawMessage `json:"tools"`
	Store           *bool             `json:"store"`
}

// decodeResponses returns the request and the turns of its own input.
func decodeResponses(body []byte) (req responsesRequest, turns []turn, err error) {
	if err := decode(body, &req); err != nil {
		return req, nil, err
	}
	req.MaxTokens, req.MaxCompletionTokens, req.N, req.StreamOptions = req.MaxOutputTokens, nil, nil, nil
	var text string
	if json.Unmarshal(req.Input, &text) == nil && len(req.Input) > 0 && req.Input[0] == '"' {
		return req, []turn{textTurn("user", text)}, nil
	}
	var items []json.RawMessage
	if err := json.Unmarshal(req.Input, &items); err != nil {
		return req, nil, badRequest("input", "input must be a string or a list of items")
	}
	for _, item := range items {
		t, err := inputTurn(item)
		if err != nil {
			return req, nil, err
		}
		turns = append(turns, t)
	}
	return req, turns, nil
}

// inputTurn turns an item into a message: calls of functions are the assistant's, their outputs the tool's.
func inputTurn(item json.RawMessage) (turn, error) {
	var m struct {
		chatMessage
		Type   string          `json:"type"`
		Output json.RawMessage `json:"output"`
	}
	if err := json.Unmarshal(item, &m); err != nil {
		return turn{}, badRequest("input", "invalid input item: %v", err)
	}
	switch m.Type {
	case "", "message":
		return m.turn()
	case "function_call_output":
		m.Role, m.Content = "tool", m.Output
		return m.turn()
	}
	return textTurn("assistant", compact(item)), nil
}

type responseAnswer struct {
	ID           string           `json:"id"`
	Object       string           `json:"object"`
	CreatedAt    int64            `json:"created_at"`
	Status       string           `json:"status"`
	Incomplete   *incomplete      `json:"incomplete_details"`
	Instructions *string          `json:"instructions"`
	Model        string           `json:"model"`
	Output       []responseOutput `json:"output"`
	Previous     *string          `json:"previous_response_id"`
	Usage        *responseUsage   `json:"usage"`
}

type incomplete struct {
	Reason string `json:"reason"`
}

type responseOutput struct {
	ID      string        `json:"id"`
	Type    string        `json:"type"`
	Role    string        `json:"role"`
	Status  string        `json:"status"`
	Content []contentPart `json:"content"`
}

type contentPart struct {
	Type        string     `json:"type"`
	Text        string     `json:"text"`
	Annotations []struct{} `json:"annotations"`
}

// responseUsage tells the cached tokens whatever PromptTokensDetails says.
type responseUsage struct {
	Input        int          `json:"input_tokens"`
	InputDetails usageDetails `json:"input_tokens_details"`
	Output       int          `json:"output_tokens"`
	OutputDetail struct {
		Reasoning int `json:"reasoning_tokens"`
	} `json:"output_tokens_details"`
	Total int `json:"total_tokens"`
}

// responses is POST /v1/responses.
func (x *exchange) responses() error {
	req, turns, err := decodeResponses(x.body)
	if err != nil {
		return err
	}
	a := responseAnswer{Object: "response", CreatedAt: time.Now().Unix(), Status: "in_progress", Output: []responseOutput{}}
	if req.Previous != "" {
		before, ok := x.s.stored.get(req.Previous)
		if !ok {
			return responseNotFound(req.Previous)
		}
		turns = slices.Concat(before.turns, turns)
		a.Previous = &req.Previous
	}
	p := prompt{tools: req.Tools, turns: turns, generate: true}
	if req.Instructions != "" {
		a.Instructions = &req.Instructions
		p.turns = append([]turn{textTurn("system", req.Instructions)}, turns...)
	}
	j, err := x.s.generate(req.generation, [][]uint32{p.tokens()}, false)
	if err != nil {
		return err
	}
	defer j.close()
	a.ID = x.id("resp_")
	a.Model, _, _ = x.s.lookup(req.Model)
	keep := func(text, finish string) {
		a.complete(j, text, finish)
		if req.Store == nil || *req.Store {
			x.s.stored.put(a, append(slices.Clip(turns), textTurn("assistant", text)))
		}
	}
	if req.Stream {
		return x.responsesStream(j, &a, keep)
	}
	texts, finish, err := x.texts(j)
	if err != nil {
		return err
	}
	keep(texts[0], finish[0])
	return x.reply(a)
}

// complete fills in the output and the usage.
func (a *responseAnswer) complete(j *job, text, finish string) {
	a.Status = "completed"
	switch finish {
	case "length":
		a.Status, a.Incomplete = "incomplete", &incomplete{"max_output_tokens"}
	case "abort":
		a.Status = "cancelled"
	}
	a.Output = []responseOutput{a.message(a.Status, outputText(text))}
	u := j.usage(1)
	a.Usage = &responseUsage{Input: u.Prompt, Output: u.Completion, Total: u.Total}
	j.s.mu.Lock()
	a.Usage.InputDetails.Cached = j.choices[0].cached
	j.s.mu.Unlock()
}

func (a *responseAnswer) message(status string, content ...contentPart) responseOutput {
	return responseOutput{ID: "msg_" + a.ID, Type: "message", Role: "assistant", Status: status, Content: append([]contentPart{}, content...)}
}

func outputText(text string) contentPart {
	return contentPart{Type: "output_text", Text: text, Annotations: []struct{}{}}
}

// responsesStream sends vLLM's sequence of events, which has no [DONE]. The first two come before the prefill: they
// are no sign of a token.
func (x *exchange) responsesStream(j *job, a *responseAnswer, keep func(text, finish string)) error {
	if err := x.stream(); err != nil {
		return err
	}
	sequence := 0
	var failed error
	send := func(kind string, fields map[string]any) {
		if failed != nil {
			return
		}
		fields["type"], fields["sequence_number"] = kind, sequence
		sequence++
		failed = x.event(kind, fields)
	}
	item := "msg_" + a.ID
	at := func(fields map[string]any) map[string]any {
		fields["item_id"], fields["output_index"], fields["content_index"] = item, 0, 0
		return fields
	}
	send("response.created", map[string]any{"response": a})
	send("response.in_progress", map[string]any{"response": a})
	text, reason, started := "", "", false
	err := x.follow(j, func(_ int, piece, finish string) error {
		if !started {
			started = true
			send("response.output_item.added", map[string]any{"output_index": 0, "item": a.message("in_progress")})
			send("response.content_part.added", at(map[string]any{"part": outputText("")}))
		}
		text += piece
		reason = finish
		if piece != "" {
			send("response.output_text.delta", at(map[string]any{"delta": piece, "logprobs": []struct{}{}}))
		}
		return failed
	})
	if err != nil {
		return err
	}
	keep(text, reason)
	send("response.output_text.done", at(map[string]any{"text": text, "logprobs": []struct{}{}}))
	send("response.content_part.done", at(map[string]any{"part": outputText(text)}))
	send("response.output_item.done", map[string]any{"output_index": 0, "item": a.Output[0]})
	send("response.completed", map[string]any{"response": a})
	return failed
}

// retrieve is GET /v1/responses/{id}: only the process that answered knows.
func (x *exchange) retrieve() error {
	id := chi.URLParam(x.r, "id")
	r, ok := x.s.stored.get(id)
	if !ok {
		return responseNotFound(id)
	}
	return x.reply(r.answer)
}

func responseNotFound(id string) error {
	return &apiError{404, "invalid_request_error", fmt.Sprintf("Response with id '%s' not found.", id), "response_id"}
}

// responseStore remembers the last responses with the conversation up to each.
type responseStore struct {
	mu    sync.Mutex
	byID  map[string]storedResponse
	order []string
}

type storedResponse struct {
	answer responseAnswer
	turns  []turn // without instructions, which do not carry over
}

func (s *responseStore) put(a responseAnswer, turns []turn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byID == nil {
		s.byID = map[string]storedResponse{}
	}
	if _, ok := s.byID[a.ID]; !ok {
		s.order = append(s.order, a.ID)
	}
	s.byID[a.ID] = storedResponse{a, turns}
	if len(s.order) > maxStored {
		delete(s.byID, s.order[0])
		s.order = s.order[1:]
	}
}

func (s *responseStore) get(id string) (storedResponse, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.byID[id]
	return r, ok
}
