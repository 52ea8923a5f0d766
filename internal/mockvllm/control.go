package mockvllm

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/go-chi/chi/v5"
)

// version is the vLLM release whose API this is.
const version = "0.32.0"

func (s *Server) routes() http.Handler {
	r := chi.NewRouter()
	r.NotFound(func(w http.ResponseWriter, _ *http.Request) {
		answer := &apiError{http.StatusNotFound, "NotFoundError", "Not Found", ""}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(answer.status)
		_, _ = w.Write(answer.body(false))
	})
	r.Get("/health", s.health)
	r.Get("/ping", s.health)
	r.Post("/ping", s.health)
	r.Get("/version", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, map[string]string{"version": version}) })
	r.Get("/load", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, map[string]int64{"server_load": s.inFlight.Load()})
	})
	r.Get("/v1/models", s.models)
	r.Method(http.MethodGet, "/metrics", s.metrics.handler)

	r.Post("/v1/chat/completions", s.serve((*exchange).chat))
	r.Post("/v1/completions", s.serve((*exchange).completions))
	r.Post("/v1/responses", s.serve((*exchange).responses))
	r.Get("/v1/responses/{id}", s.serve((*exchange).retrieve))
	r.Post("/v1/messages", s.serve((*exchange).messages))
	r.Post("/v1/messages/count_tokens", s.serve((*exchange).countTokens))
	r.Post("/v1/embeddings", s.serve((*exchange).embeddings))
	for _, prefix := range []string{"", "/v1", "/v2"} {
		r.Post(prefix+"/rerank", s.serve((*exchange).rerank))
	}
	r.Post("/v1/score", s.serve((*exchange).score))
	r.Post("/score", s.serve((*exchange).score))
	r.Post("/tokenize", s.serve((*exchange).tokenize))
	r.Post("/detokenize", s.serve((*exchange).detokenize))

	r.Post("/reset_prefix_cache", s.resetPrefixCache)
	r.Post("/sleep", s.goToSleep)
	r.Post("/wake_up", s.wakeUp)
	r.Get("/is_sleeping", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, map[string]bool{"is_sleeping": s.Stats().Sleeping})
	})
	r.Post("/mock/faults", s.setFaults)
	return r
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

// health says nothing about load or sleep, like vLLM's.
func (s *Server) health(w http.ResponseWriter, _ *http.Request) {
	if s.faults.loading() {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}

// models is GET /v1/models: the base model, then the adapters, which have no length of their own.
func (s *Server) models(w http.ResponseWriter, _ *http.Request) {
	type card struct {
		ID          string     `json:"id"`
		Object      string     `json:"object"`
		Created     int64      `json:"created"`
		OwnedBy     string     `json:"owned_by"`
		Root        string     `json:"root"`
		Parent      *string    `json:"parent"`
		MaxModelLen *int       `json:"max_model_len"`
		Permission  []struct{} `json:"permission"`
	}
	base := card{
		ID: s.cfg.Model, Object: "model", Created: s.start.Unix(), OwnedBy: "vllm", Root: s.cfg.Model,
		MaxModelLen: &s.cfg.MaxModelLen, Permission: []struct{}{},
	}
	cards := []card{base}
	for _, name := range s.cfg.Adapters {
		c := base
		c.ID, c.Root, c.Parent, c.MaxModelLen = name, "/adapters/"+name, &s.cfg.Model, nil
		cards = append(cards, c)
	}
	writeJSON(w, map[string]any{"object": "list", "data": cards})
}

// resetPrefixCache answers 200 with success false while any block is held.
func (s *Server) resetPrefixCache(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	ok := s.engine.ResetCache()
	s.mu.Unlock()
	writeJSON(w, map[string]bool{"success": ok})
}

// goToSleep aborts what runs, as mode=abort does, and lets requests queue. Level 1 and above lose the cache.
func (s *Server) goToSleep(w http.ResponseWriter, r *http.Request) {
	level := 1
	if v := r.URL.Query().Get("level"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 0 || n > 2 {
			http.Error(w, "level must be 0, 1 or 2", http.StatusBadRequest)
			return
		}
		level = n
	}
	s.mu.Lock()
	s.sleep = level
	s.engine.Pause()
	s.abortAll()
	if level > 0 {
		s.engine.ResetCache()
	}
	s.mu.Unlock()
	writeJSON(w, map[string]any{"status": "sleeping", "level": level})
}

func (s *Server) wakeUp(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	s.sleep = awake
	s.engine.Resume()
	s.mu.Unlock()
	s.kick()
	writeJSON(w, map[string]any{"status": "awake", "tags": nil})
}

// tokenize is POST /tokenize with a prompt or with messages.
func (x *exchange) tokenize() error {
	var req struct {
		Model    string          `json:"model"`
		Prompt   *string         `json:"prompt"`
		Messages json.RawMessage `json:"messages"`
		Strings  bool            `json:"return_token_strs"`
	}
	if err := decode(x.body, &req); err != nil {
		return err
	}
	if _, _, err := x.s.lookup(req.Model); err != nil {
		return err
	}
	var ids []uint32
	var strs []string
	if req.Prompt != nil {
		for p := range pieces(*req.Prompt) {
			id := tokenID(p)
			x.s.vocab.learn(id, p)
			ids = append(ids, id)
			strs = append(strs, p)
		}
	} else {
		_, chat, err := decodeChat(x.body)
		if err != nil {
			return err
		}
		ids = chat
		for _, id := range chat {
			strs = append(strs, x.s.vocab.piece(id))
		}
	}
	if !req.Strings {
		strs = nil
	}
	return x.reply(map[string]any{"count": len(ids), "max_model_len": x.s.cfg.MaxModelLen, "tokens": ids, "token_strs": strs})
}

// detokenize is POST /detokenize. Ids are hashes, so it knows answers and what /tokenize has seen; the rest is U+FFFD.
func (x *exchange) detokenize() error {
	var req struct {
		Model  string   `json:"model"`
		Tokens []uint32 `json:"tokens"`
	}
	if err := decode(x.body, &req); err != nil {
		return err
	}
	if _, _, err := x.s.lookup(req.Model); err != nil {
		return err
	}
	var b strings.Builder
	for _, id := range req.Tokens {
		b.WriteString(x.s.vocab.piece(id))
	}
	return x.reply(map[string]string{"prompt": b.String()})
}

// vocabulary remembers what ids stand for, up to a bound.
type vocabulary struct {
	mu     sync.Mutex
	pieces map[uint32]string
}

const maxVocabulary = 1 << 16

// load puts the words of answers in. The caller holds mu.
func (v *vocabulary) load() {
	if v.pieces != nil {
		return
	}
	v.pieces = map[uint32]string{}
	for w := range strings.FieldsSeq(answerWords) {
		v.pieces[tokenID(w)] = w
		v.pieces[tokenID(" "+w)] = " " + w
	}
}

func (v *vocabulary) learn(id uint32, piece string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.load()
	if len(v.pieces) < maxVocabulary {
		v.pieces[id] = strings.Clone(piece)
	}
}

func (v *vocabulary) piece(id uint32) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.load()
	if p, ok := v.pieces[id]; ok {
		return p
	}
	return "\uFFFD"
}
