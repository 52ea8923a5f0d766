package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/warmpath/warmpath/internal/modelcache/manifest"
	"github.com/warmpath/warmpath/internal/modelcache/store"
)

const (
	// maxRequestBytes is far above any request to the agent.
	maxRequestBytes = 64 << 10
	// bodyTimeout is how long a client may take to send it.
	bodyTimeout = 10 * time.Second
)

// Handler serves
//
//	GET    /healthz                  200 while the process lives
//	GET    /readyz                   200 when every model on the list is ready
//	GET    /models                   what is on the list and on the disk
//	GET    /models/{digest}/ready    200 when that one is
//	POST   /leases                   {"digest": …, "holder": …, "ttl": "1m"} → {"id", "path", "expires"}
//	PUT    /leases/{id}              {"ttl": "1m"} renews
//	DELETE /leases/{id}              releases
//	GET    /metrics
func (a *Agent) Handler() http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(newCollector(a))
	r := chi.NewRouter()
	r.Get("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, map[string]string{"status": "ok"})
	})
	r.Get("/readyz", a.ready)
	r.Get("/models", a.models)
	r.Get("/models/{digest}/ready", a.modelReady)
	r.Post("/leases", a.lease)
	r.Put("/leases/{id}", a.renew)
	r.Delete("/leases/{id}", a.release)
	r.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	return r
}

// status is a model on the list.
type status struct {
	Digest  manifest.Digest `json:"digest"`
	Name    string          `json:"name"`
	Ready   bool            `json:"ready"`
	Present int64           `json:"present_bytes,omitempty"`
	Total   int64           `json:"total_bytes,omitempty"`
	Error   string          `json:"error,omitempty"`
	Path    string          `json:"path,omitempty"`
}

func (a *Agent) status(w *want) status {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := status{Digest: w.Digest, Name: w.Name, Ready: w.ready}
	if w.err != nil {
		s.Error = w.err.Error()
	}
	if w.ready {
		s.Path = a.cache.Store().ModelPath(w.Digest)
	} else {
		s.Present, s.Total = w.progress.Read()
	}
	return s
}

func (a *Agent) ready(w http.ResponseWriter, _ *http.Request) {
	code := http.StatusOK
	all := make([]status, 0, len(a.wants))
	for _, want := range a.wants {
		s := a.status(want)
		if !s.Ready {
			code = http.StatusServiceUnavailable
		}
		all = append(all, s)
	}
	reply(w, code, all)
}

func (a *Agent) models(w http.ResponseWriter, _ *http.Request) {
	entries, err := a.cache.Store().Entries()
	if err != nil {
		refuse(w, http.StatusInternalServerError, err)
		return
	}
	list := make([]status, 0, len(a.wants))
	for _, want := range a.wants {
		list = append(list, a.status(want))
	}
	reply(w, http.StatusOK, map[string]any{"wanted": list, "present": entries})
}

func (a *Agent) modelReady(w http.ResponseWriter, r *http.Request) {
	digest, err := manifest.ParseDigest(chi.URLParam(r, "digest"))
	if err != nil {
		refuse(w, http.StatusBadRequest, err)
		return
	}
	want := a.find(digest)
	if want == nil {
		refuse(w, http.StatusNotFound, fmt.Errorf("%s is not on the list of models", digest))
		return
	}
	s := a.status(want)
	code := http.StatusOK
	if !s.Ready {
		code = http.StatusServiceUnavailable
	}
	reply(w, code, s)
}

// request is the body of POST and PUT.
type request struct {
	Digest string   `json:"digest"`
	Holder string   `json:"holder"`
	TTL    duration `json:"ttl"`
}

type duration time.Duration

// UnmarshalText reads Go's form of durations.
func (d *duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	*d = duration(v)
	return err
}

// read returns what a client asks for, checked as far as it can be without the disk. A
// client that sends it slowly holds nothing for long.
func read(w http.ResponseWriter, r *http.Request) (request, error) {
	var body request
	conn := http.NewResponseController(w)
	_ = conn.SetReadDeadline(time.Now().Add(bodyTimeout)) // an error is of a test's writer
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequestBytes))
	if err != nil { // the deadline stays: net/http would wait for the rest
		return body, fmt.Errorf("the request's body: %w", err)
	}
	_ = conn.SetReadDeadline(time.Time{})
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&body); err != nil {
		return body, fmt.Errorf(`the body must be JSON as {"digest": "sha256:…", "holder": "pod-a", "ttl": "1m"}, or {"ttl": "1m"} to renew: %w`, err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return body, errors.New("the body has more than one JSON value")
	}
	return body, store.CheckTTL(time.Duration(body.TTL))
}

// lease makes a model on the list present first, for as long as the client waits.
func (a *Agent) lease(w http.ResponseWriter, r *http.Request) {
	body, err := read(w, r)
	var digest manifest.Digest
	if err == nil {
		digest, err = manifest.ParseDigest(body.Digest)
	}
	if err == nil && (body.Holder == "" || len(body.Holder) > 256) {
		err = errors.New("holder must be 1 to 256 bytes: who is using the model")
	}
	if err != nil {
		refuse(w, http.StatusBadRequest, err)
		return
	}
	if want := a.find(digest); want != nil {
		if _, err := a.cache.Ensure(r.Context(), want.Model, a.cfg.Pin, nil); err != nil {
			refuse(w, http.StatusServiceUnavailable, err)
			return
		}
	}
	l, err := a.cache.Store().Lease(r.Context(), digest, body.Holder, time.Duration(body.TTL))
	a.answer(w, l, digest, err)
}

func (a *Agent) renew(w http.ResponseWriter, r *http.Request) {
	body, err := read(w, r)
	if err != nil {
		refuse(w, http.StatusBadRequest, err)
		return
	}
	l, err := a.cache.Store().Renew(r.Context(), chi.URLParam(r, "id"), time.Duration(body.TTL))
	a.answer(w, l, "", err)
}

func (a *Agent) answer(w http.ResponseWriter, l store.Lease, digest manifest.Digest, err error) {
	switch {
	case errors.Is(err, store.ErrAbsent), errors.Is(err, store.ErrNoLease):
		refuse(w, http.StatusNotFound, err)
	case err != nil: // the request was checked: it is the disk
		refuse(w, http.StatusInternalServerError, err)
	default:
		out := map[string]any{"id": l.ID, "expires": l.Expires}
		if digest != "" {
			out["path"] = a.cache.Store().ModelPath(digest)
		}
		reply(w, http.StatusOK, out)
	}
}

func (a *Agent) release(w http.ResponseWriter, r *http.Request) {
	err := a.cache.Store().Release(r.Context(), chi.URLParam(r, "id"))
	switch {
	case errors.Is(err, store.ErrNoLease):
		refuse(w, http.StatusNotFound, err)
	case err != nil:
		refuse(w, http.StatusInternalServerError, err)
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}

func refuse(w http.ResponseWriter, code int, err error) {
	reply(w, code, map[string]string{"error": err.Error()})
}

func reply(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body)
}
