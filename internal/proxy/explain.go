package proxy

import (
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/warmpath/warmpath/internal/openai"
	"github.com/warmpath/warmpath/internal/router"
)

// Explain answers to which replica a request would go, without sending it or
// reserving anything. The request is one that a client would send; path is the
// endpoint that it is meant for. Its error may be shown to who asks.
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
