package proxy

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/warmpath/warmpath/internal/auth"
	"github.com/warmpath/warmpath/internal/openai"
	"github.com/warmpath/warmpath/internal/router"
)

// Explain answers to which replica a request would go, without sending it or
// reserving anything. The request is one that a client would send, with its API key
// and session in the headers, if it has such; path is the endpoint that it is meant
// for. The query can name a policy, and a key whose secret is not at hand. Its error
// may be shown to who asks.
func (p *Proxy) Explain(r *http.Request, path string) (*router.Decision, error) {
	x := newExchange(p)
	x.r, x.endpoint = r, openai.Other
	for at, endpoint := range endpoints {
		if at == path {
			x.endpoint = endpoint
		}
	}
	if x.endpoint == openai.Other {
		return nil, errors.New("only requests to /v1/chat/completions, /v1/completions, /v1/responses and /v1/messages are routed by their prompts: say which with ?path=")
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, p.cfg.MaxBodyBytes+1))
	if err != nil {
		return nil, err
	}
	if int64(len(body)) > p.cfg.MaxBodyBytes {
		return nil, errTooLarge
	}
	if x.openai, err = openai.Parse(x.endpoint, body); err != nil {
		return nil, err
	}
	if x.model = p.pool.Set().Model(x.openai.Model); x.model == nil {
		return nil, modelNotFound(x.openai.Model)
	}
	if x.share.key, err = p.explainedKey(r); err != nil {
		return nil, err
	}
	x.saltPrompt()
	if err := x.prompt.Read(&x.openai); err != nil {
		return nil, openai.Invalid(body)
	}
	x.req.Prompt, x.req.Model, x.req.Stream, x.req.NoCache = &x.prompt, x.model, x.openai.Stream, x.openai.ReadsNoCache
	if x.openai.Previous != "" {
		x.req.Previous = responseKey(x.openai.Previous)
	}
	x.req.Session = x.session()
	if name := r.URL.Query().Get("policy"); name != "" {
		if x.req.Policy, err = router.PolicyByName(name); err != nil {
			return nil, err
		}
	}
	return p.router.Explain(&x.req, time.Now())
}

// explainedKey returns the API key as which a request is explained: the one that
// ?key= names, else the one that it carries; nil without either, or if there are none.
func (p *Proxy) explainedKey(r *http.Request) (*auth.Key, error) {
	keys, name := p.Keys(), r.URL.Query().Get("key")
	if keys == nil {
		if name != "" {
			return nil, errors.New("the gateway has no API keys: keys_file names the file with them")
		}
		return nil, nil
	}
	if name == "" {
		key := keys.Find(r.Header)
		if key == nil && (r.Header.Get("Authorization") != "" || r.Header.Get("X-Api-Key") != "" || r.Header.Get("Api-Key") != "") {
			return nil, errors.New("the API key is not known: a request with it would be refused")
		}
		return key, nil
	}
	for _, key := range keys.List() {
		if key.Name == name {
			return key, nil
		}
	}
	return nil, fmt.Errorf("there is no API key with the name %q", short(name))
}

// endpoints are those that are routed by their prompts.
var endpoints = map[string]openai.Endpoint{
	"/v1/chat/completions": openai.Chat,
	"/v1/completions":      openai.Completions,
	"/v1/responses":        openai.Responses,
	"/v1/messages":         openai.Messages,
}

// countShadow counts what the shadow policy would have done at a first attempt.
func (x *exchange) countShadow() {
	if x.p.shadow == nil || x.attempts > 1 || x.endpoint == openai.Other {
		return
	}
	s := x.lease.Shadow()
	_, cached := x.lease.Tokens()
	x.p.shadow.Count(s.Replica == x.lease.Replica(), s.Cached, cached, s.Saved)
}
