package proxy

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/warmpath/warmpath/internal/replica"
)

// models answers with the models of all replicas, each once, as its replica
// describes it. Models whose replicas are all down are left out.
func (p *Proxy) models(w http.ResponseWriter, r *http.Request) {
	set := p.pool.Set()
	if !set.Known() {
		p.refuse(w, requestID(r), "not_ready", unavailable("no replica has answered yet"))
		return
	}
	body := []byte(`{"object":"list","data":[`)
	some := false
	for _, m := range set.Models {
		if !m.Ready() {
			continue
		}
		if some {
			body = append(body, ',')
		}
		some = true
		body = append(body, m.Card...)
	}
	p.writeJSON(w, append(body, `]}`...))
}

// model answers with one model. Its name may contain slashes.
func (p *Proxy) model(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, "/v1/models/") // SDKs write a slash in it as %2F, which chi would keep
	var m *replica.Model
	if name != "" {
		m = p.pool.Set().Model(name)
	}
	switch {
	case m == nil:
		p.refuse(w, requestID(r), "unknown_model", modelNotFound(name))
	case !m.Ready():
		p.refuse(w, requestID(r), "not_ready", unavailable(fmt.Sprintf("no replica that serves '%s' is ready", name)))
	default:
		p.writeJSON(w, m.Card)
	}
}

func (p *Proxy) writeJSON(w http.ResponseWriter, body []byte) {
	p.allowWrite(w)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body) // the client has gone if this fails
}
