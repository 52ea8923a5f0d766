package proxy

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/warmpath/warmpath/internal/auth"
	"github.com/warmpath/warmpath/internal/openai"
)

// How requests to replicas prove themselves: the values of [Config.ReplicaAuth].
const (
	// AuthAuto is AuthClient while the gateway has no API keys of its own, whoever
	// checks the client's key then sits behind it, and AuthKey once it has.
	AuthAuto = "auto"
	// AuthClient passes the client's keys and cookies on.
	AuthClient = "client"
	// AuthKey sends replica.key, if there is one, instead of them.
	AuthKey = "key"
	// AuthNone sends nothing of the kind.
	AuthNone = "none"
)

func checkAuth(mode string) error {
	switch mode {
	case AuthAuto, AuthClient, AuthKey, AuthNone:
		return nil
	}
	return fmt.Errorf("replica_auth must be auto, client, key or none, not %q", mode)
}

// access is who may come in, and what requests to replicas prove themselves by.
// It is read-only.
type access struct {
	keys          *auth.Keys // nil lets everyone in
	passes        bool       // the client's credentials go on to replicas
	authorization []string   // for replicas, instead of these; nil for none
}

// SetAccess sets the API keys that let clients in, nil for everyone, and the one
// that replicas want. Requests under way keep what they began with.
func (p *Proxy) SetAccess(keys *auth.Keys, replicaKey string) {
	mode := p.cfg.ReplicaAuth
	if mode == AuthAuto {
		if mode = AuthClient; keys != nil {
			mode = AuthKey
		}
	}
	a := &access{keys: keys, passes: mode == AuthClient}
	if mode == AuthKey && replicaKey != "" {
		a.authorization = []string{"Bearer " + replicaKey}
	}
	p.access.Store(a)
}

// Keys returns the API keys that let clients in, nil if everyone is.
func (p *Proxy) Keys() *auth.Keys { return p.access.Load().keys }

// authorize replaces the client's credentials by those that replicas shall see.
func (a *access) authorize(header http.Header) {
	if a.passes {
		return
	}
	for _, name := range auth.Credentials {
		delete(header, name)
	}
	if a.authorization != nil {
		header["Authorization"] = a.authorization
	}
}

type contextKey struct{}

// keyOf returns the API key that let a request in.
func keyOf(r *http.Request) *auth.Key {
	key, _ := r.Context().Value(contextKey{}).(*auth.Key)
	return key
}

// guard lets in whom the API keys admit. Everyone else gets the same answer
// whatever it asks for, so that it learns nothing of models and replicas.
func (p *Proxy) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if keys := p.access.Load().keys; keys != nil {
			key := keys.Find(r.Header)
			if key == nil {
				w.Header().Set("WWW-Authenticate", "Bearer")
				p.refuse(w, requestID(r), "unauthorized", &openai.Error{
					Status: http.StatusUnauthorized, Type: "authentication_error", Code: "invalid_api_key", Endpoint: formOf(r),
					Message: "an API key of this gateway is needed, as Authorization: Bearer or as x-api-key",
				})
				return
			}
			r = r.WithContext(context.WithValue(r.Context(), contextKey{}, key))
		}
		if len(r.RequestURI) > p.cfg.MaxURLBytes {
			p.refuse(w, requestID(r), "too_large", &openai.Error{
				Status: http.StatusRequestURITooLong, Type: "invalid_request_error", Code: "uri_too_long", Endpoint: formOf(r),
				Message: fmt.Sprintf("the URL is longer than %d bytes, the limit that the gateway's max_url_bytes sets", p.cfg.MaxURLBytes),
			})
			return
		}
		next.ServeHTTP(w, r)
	})
}

// formOf returns the endpoint whose form errors for the path shall have, whether
// the path exists or not.
func formOf(r *http.Request) openai.Endpoint {
	if strings.HasPrefix(r.URL.Path, "/v1/messages") {
		return openai.Messages
	}
	return openai.Other
}
