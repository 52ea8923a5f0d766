package proxy

import (
	"net/http"
	"strconv"
	"time"

	"github.com/warmpath/warmpath/internal/auth"
	"github.com/warmpath/warmpath/internal/openai"
)

// share is what one request uses up of its API key's limits.
type share struct {
	key    *auth.Key // nil if it came without
	begun  bool
	tokens int64 // held
}

// enter counts the request against its key's limit.
func (x *exchange) enter() bool {
	key := x.share.key
	if key == nil {
		return true
	}
	if x.share.begun = key.Begin(); !x.share.begun {
		x.refuse("key_requests", overLimit("it has "+strconv.FormatInt(key.MaxRequests, 10)+" requests under way, its max_requests"))
		return false
	}
	return true
}

// hold counts the whole prompt against its key's limit; how much of it is cached
// is not known before there is a replica.
func (x *exchange) hold() bool {
	key, tokens := x.share.key, int64(x.prompt.Tokens)
	if key == nil {
		return true
	}
	if !key.Hold(tokens) {
		x.refuse("key_tokens", overLimit("its prompts would wait with more than "+strconv.FormatInt(key.MaxPendingTokens, 10)+" tokens, its max_pending_tokens"))
		return false
	}
	x.share.tokens = tokens
	return true
}

// overLimit is for a client to try again. Requests end at any time: no better
// moment than soon is known.
func overLimit(why string) *openai.Error {
	return &openai.Error{
		Status: http.StatusTooManyRequests, Type: "rate_limit_error", Code: "key_limit", RetryAfter: time.Second,
		Message: "the API key is at its limit: " + why,
	}
}

// keep lets go of all held tokens but those of a prompt that are not cached; of
// all at 0, 0. What was let go is not taken again: a second attempt may find less
// in the cache.
func (s *share) keep(prompt, cached int) {
	if s.key == nil {
		return
	}
	if rest := int64(max(0, prompt-cached)); rest < s.tokens {
		s.key.Release(s.tokens - rest)
		s.tokens = rest
	}
}

// end gives everything back.
func (s *share) end() {
	s.keep(0, 0)
	if s.begun {
		s.key.End()
	}
	*s = share{}
}

// sendSalt adds the cache_salt that the prompt was given to the body.
func (x *exchange) sendSalt() error {
	return x.body.add(`"cache_salt":` + string(x.openai.Prompt.Salt))
}

// saltPrompt gives the prompt its key's cache_salt, if it has none, and reports
// whether it did.
func (x *exchange) saltPrompt() bool {
	if x.share.key == nil || x.share.key.Salt == nil || x.openai.Prompt.Salt != nil {
		return false
	}
	x.openai.Prompt.Salt = x.share.key.Salt
	return true
}

// takesSalt reports whether the engine reads cache_salt in bodies of the request's
// kind (vLLM 0.32: chat_completion, completion, responses, anthropic and
// pooling/base/protocol.py; not Cohere's /v2/embed).
func (x *exchange) takesSalt() bool {
	switch {
	case isForm(x.r): // has no members; where a prompt is expected, engines refuse it
		return false
	case x.endpoint != openai.Other:
		return true
	}
	switch x.r.URL.Path {
	case "/v1/embeddings", "/v1/rerank", "/rerank", "/v2/rerank", "/v1/score", "/score", "/pooling", "/classify":
		return len(x.body.data) > 0
	}
	return false
}
