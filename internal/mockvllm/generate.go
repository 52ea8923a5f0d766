package mockvllm

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
)

const (
	// defaultOutput is how many tokens an answer has when the client sets no limit; it then ends with "stop".
	defaultOutput = 64
	// maxChoices bounds n and the prompts of one request.
	maxChoices = 128
)

// generation holds the request fields that all generating APIs share.
type generation struct {
	Model               string  `json:"model"`
	MaxTokens           *int    `json:"max_tokens"`
	MaxCompletionTokens *int    `json:"max_completion_tokens"`
	N                   *int    `json:"n"`
	CacheSalt           *string `json:"cache_salt"`
	PromptLogprobs      *int    `json:"prompt_logprobs"`
	Stream              bool    `json:"stream"`
	StreamOptions       *struct {
		IncludeUsage         bool `json:"include_usage"`
		ContinuousUsageStats bool `json:"continuous_usage_stats"`
	} `json:"stream_options"`
}

func (g generation) includeUsage() bool {
	return g.StreamOptions != nil && g.StreamOptions.IncludeUsage
}

func (g generation) continuousUsage() bool {
	return g.includeUsage() && g.StreamOptions.ContinuousUsageStats
}

func (g generation) n() int {
	if g.N == nil {
		return 1
	}
	return *g.N
}

// limit is the client's limit of output tokens, nil if it set none.
func (g generation) limit() *int {
	if g.MaxCompletionTokens != nil {
		return g.MaxCompletionTokens
	}
	return g.MaxTokens
}

func (g generation) validate(prompts int) error {
	limit := g.limit()
	switch {
	case limit != nil && *limit < 1:
		return badRequest("max_tokens", "max_tokens must be at least 1, got %d.", *limit)
	case g.n() < 1 || prompts < 1 || g.n() > maxChoices || prompts > maxChoices || g.n()*prompts > maxChoices:
		return badRequest("n", "n and the number of prompts must be between 1 and %d together.", maxChoices)
	case g.StreamOptions != nil && !g.Stream:
		return badRequest("stream_options", "Stream options can only be defined when `stream=True`.")
	case g.CacheSalt != nil && (*g.CacheSalt == "" || len(*g.CacheSalt) > 128 || strings.ContainsAny(*g.CacheSalt, "@/\\\x00")):
		return badRequest("cache_salt", "Parameter 'cache_salt' must have 1 to 128 characters and none of @ / \\ NUL.")
	}
	return nil
}

// lookup checks a model's name and returns the name to answer with, and the adapter if it is one.
func (s *Server) lookup(model string) (name, adapter string, err error) {
	switch {
	case model == "" || model == s.cfg.Model:
		return s.cfg.Model, "", nil
	case slices.Contains(s.cfg.Adapters, model):
		return model, model, nil
	}
	return "", "", &apiError{404, "NotFoundError", "The model `" + model + "` does not exist.", "model"}
}

// generate submits n answers to each prompt. lead says that answers continue the prompt's text.
func (s *Server) generate(g generation, prompts [][]uint32, lead bool) (*job, error) {
	if err := g.validate(len(prompts)); err != nil {
		return nil, err
	}
	_, adapter, err := s.lookup(g.Model)
	if err != nil {
		return nil, err
	}
	base := Request{Adapter: adapter, NoCacheRead: g.PromptLogprobs != nil}
	if g.CacheSalt != nil {
		base.Salt = *g.CacheSalt
	}
	var reqs []Request
	var choices []*choice
	for _, prompt := range prompts {
		output, reason := min(defaultOutput, s.cfg.MaxModelLen-len(prompt)), "stop"
		if limit := g.limit(); limit != nil {
			output, reason = *limit, "length"
		}
		if err := s.checkLength(len(prompt), output); err != nil {
			return nil, err
		}
		a := newAnswer(prompt, lead)
		r := base
		r.Prompt, r.Output = prompt, a.tokens(output)
		for range g.n() {
			reqs = append(reqs, r)
			choices = append(choices, &choice{answer: a, prompt: len(prompt), output: output, reason: reason})
		}
	}
	return s.enqueue(reqs, choices)
}

// checkLength refuses what does not fit into the model's context.
func (s *Server) checkLength(prompt, output int) error {
	if prompt > s.cfg.MaxModelLen || output < 1 || output > s.cfg.MaxModelLen-prompt {
		return badRequest("input_tokens", "This model's maximum context length is %d tokens. However, you requested %d output tokens "+
			"and your prompt contains %d input tokens. Please reduce the length of the input prompt or the number of requested output tokens.",
			s.cfg.MaxModelLen, max(output, 1), prompt)
	}
	return nil
}

// enqueue is submit with the engine's refusals as answers to the client.
func (s *Server) enqueue(reqs []Request, choices []*choice) (*job, error) {
	j, err := s.submit(reqs, choices)
	switch {
	case errors.Is(err, ErrEmptyPrompt):
		return nil, badRequest("prompt", "The decoder prompt cannot be empty")
	case errors.Is(err, ErrTooLong):
		return nil, badRequest("input_tokens", "This model's maximum context length is %d tokens.", s.cfg.MaxModelLen)
	}
	return j, err
}

// usage is OpenAI's account of a request. Details are null unless Config.PromptTokensDetails is set.
type usage struct {
	Prompt     int           `json:"prompt_tokens"`
	Total      int           `json:"total_tokens"`
	Completion int           `json:"completion_tokens"`
	Details    *usageDetails `json:"prompt_tokens_details"`
}

type usageDetails struct {
	Cached int `json:"cached_tokens"`
}

// usage sums a job up; n answers to one prompt count the prompt once, and the cached tokens of the first of them.
func (j *job) usage(n int) usage {
	var u usage
	cached := 0
	j.s.mu.Lock()
	defer j.s.mu.Unlock()
	for i, c := range j.choices {
		if i%n == 0 {
			u.Prompt += c.prompt
			cached += c.cached
		}
		u.Completion += c.generated
	}
	u.Total = u.Prompt + u.Completion
	if j.s.cfg.PromptTokensDetails {
		u.Details = &usageDetails{Cached: cached}
	}
	return u
}

// texts collects whole answers.
func (x *exchange) texts(j *job) (texts, finish []string, err error) {
	b := make([]strings.Builder, len(j.choices))
	finish = make([]string, len(j.choices))
	err = x.follow(j, func(i int, text, f string) error {
		b[i].WriteString(text)
		finish[i] = f
		return nil
	})
	for i := range b {
		texts = append(texts, b[i].String())
	}
	return texts, finish, err
}

// prompts reads what completions and embeddings take: a string, strings, token ids, or lists of token ids.
func prompts(raw json.RawMessage) ([][]uint32, error) {
	var one string
	var many []string
	var ids []uint32
	var lists [][]uint32
	switch {
	case len(raw) == 0 || string(raw) == "null":
		return nil, badRequest("prompt", "Either prompt or prompt_embeds must be provided and non-empty.")
	case json.Unmarshal(raw, &one) == nil:
		return [][]uint32{Encode(one)}, nil
	case json.Unmarshal(raw, &many) == nil:
		for _, text := range many {
			lists = append(lists, Encode(text))
		}
		return lists, nil
	case json.Unmarshal(raw, &ids) == nil:
		return [][]uint32{ids}, nil
	case json.Unmarshal(raw, &lists) == nil:
		return lists, nil
	}
	return nil, badRequest("prompt", "prompt must be a string, a list of strings, a list of token ids or a list of such lists")
}
