package replica

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync/atomic"
	"time"
)

// endpoint is one address, behind which there are one or more engines.
type endpoint struct {
	pool  *Pool
	url   *url.URL
	soon  chan struct{}
	ready atomic.Bool

	// Written by watch alone, with pool.mu held.
	models   []card
	replicas []*Replica // by rank

	scraped time.Time // the fields below belong to watch
	failing bool
	blind   bool // its metrics cannot be read
	served  bool // it has been ready once
}

// card is a model's entry in a replica's list.
type card struct {
	id      string
	raw     []byte
	lasting []byte // raw without what is new each time
	adapter bool
}

// modelsLimit and metricsLimit bound what a probe reads of an answer.
const (
	modelsLimit  = 8 << 20
	metricsLimit = 32 << 20
)

func (e *endpoint) probeSoon() {
	select {
	case e.soon <- struct{}{}:
	default:
	}
}

// setRanks makes the endpoint have n replicas. One that it had before is the same
// again. The caller holds pool.mu, or nobody else has the pool yet.
func (e *endpoint) setRanks(n int) {
	e.replicas = nil
	for rank := range n {
		id := e.url.Host + e.url.Path
		if n > 1 {
			id += "/" + strconv.Itoa(rank)
		} else {
			rank = -1
		}
		e.replicas = append(e.replicas, e.pool.replica(e, id, rank))
	}
}

// replica returns the endpoint's replica of that id, made if there is none. The
// caller holds mu, or nobody else has the pool yet.
func (p *Pool) replica(e *endpoint, id string, rank int) *Replica {
	for _, r := range p.replicas {
		if r.ID == id && r.endpoint == e {
			return r
		}
	}
	r := newReplica(e, id, len(p.replicas), rank)
	p.replicas = append(p.replicas, r)
	return r
}

// watch probes the endpoint until ctx ends.
func (e *endpoint) watch(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-e.soon:
		}
		err := e.probe(ctx)
		if ctx.Err() != nil {
			return
		}
		e.report(err)
		wait := e.pool.cfg.ProbeInterval
		if err != nil {
			wait /= 4
		}
		timer.Reset(wait*3/4 + rand.N(wait/2+1)) // spread, so that gateways do not probe in step
	}
}

// report publishes a probe's outcome and logs the changes.
func (e *endpoint) report(err error) {
	was := e.ready.Swap(err == nil)
	log := e.pool.log.With("replica", e.url.Host)
	switch {
	case err == nil && !was:
		log.Info("replica is ready")
		e.failing = false
	case err != nil && was:
		log.Warn("replica is down", "err", err)
		e.failing = true
	case err != nil && !e.failing:
		log.Info("replica is not ready yet", "err", err)
		e.failing = true
	}
}

// probe asks the replica whether it is well, which models it has and, when due,
// for its metrics. Metrics that cannot be read do not make it unwell.
func (e *endpoint) probe(ctx context.Context) error {
	if _, err := e.get(ctx, "/health", 1<<10); err != nil {
		return err
	}
	body, err := e.get(ctx, "/v1/models", modelsLimit)
	if err != nil {
		return err
	}
	models, err := parseModels(body)
	if err != nil {
		return fmt.Errorf("GET /v1/models: %w", err)
	}
	if e.ready.Load() && time.Since(e.scraped) < e.pool.cfg.ScrapeInterval {
		e.pool.learn(e, models, 0)
		return nil
	}
	byRank := e.scrape(ctx)
	e.scraped = time.Now()
	e.pool.learn(e, models, len(byRank))
	if len(byRank) == 0 && e.served && !e.ready.Load() {
		for _, r := range e.replicas { // it may have restarted: nothing tells
			e.pool.notify(Event{Kind: Emptied, Replica: r})
		}
	}
	e.tell(byRank)
	e.served = true
	return nil
}

// scrape reads the replica's metrics, and logs when that begins to fail.
func (e *endpoint) scrape(ctx context.Context) []Facts {
	body, err := e.get(ctx, "/metrics", metricsLimit)
	var byRank []Facts
	if err == nil {
		byRank, err = parseFacts(body, time.Now())
	}
	if err != nil && !e.blind && ctx.Err() == nil {
		e.pool.log.Warn("replica's metrics cannot be read: what its cache holds is guessed", "replica", e.url.Host, "err", err)
	}
	e.blind = err != nil
	return byRank
}

// tell publishes facts, and what they show to have happened to the caches.
func (e *endpoint) tell(byRank []Facts) {
	for i := range byRank {
		r, now := e.replicas[i], byRank[i]
		old := r.facts.Swap(&now)
		if now.Blocks > 0 && (old == nil || old.BlockSize != now.BlockSize || old.Blocks != now.Blocks) {
			e.pool.notify(Event{Kind: Told, Replica: r, Facts: now})
		}
		if old != nil && emptied(*old, now) {
			e.pool.log.Info("replica's cache is empty", "replica", r.ID)
			e.pool.notify(Event{Kind: Emptied, Replica: r, Facts: now})
		}
	}
}

// emptied reports whether a replica lost its cache between two readings. A start
// time alone does not do: vLLM with several API servers has none.
func emptied(old, now Facts) bool {
	return now.Start != old.Start || now.Prompt < old.Prompt || now.Blocks != old.Blocks || now.Sleeping && !old.Sleeping
}

func (e *endpoint) get(ctx context.Context, path string, limit int64) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.url.String()+path, nil)
	if err != nil {
		return nil, err
	}
	if key := e.pool.cfg.Key; key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := e.pool.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, limit))
	switch {
	case err != nil:
		return nil, fmt.Errorf("GET %s: %w", path, err)
	case resp.StatusCode == http.StatusUnauthorized, resp.StatusCode == http.StatusForbidden:
		return nil, fmt.Errorf("GET %s: status %d: does replica.key hold its API key?", path, resp.StatusCode)
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("GET %s: status %d: %.200s", path, resp.StatusCode, body)
	case int64(len(body)) == limit:
		return nil, fmt.Errorf("GET %s: the answer is longer than %d bytes", path, limit)
	}
	return body, nil
}

// parseModels reads a list of models. Each of vLLM's answers has new times and
// ids of permissions in it, which are not news.
func parseModels(body []byte) ([]card, error) {
	var list struct {
		Data []json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, err
	}
	var cards []card
	for _, raw := range list.Data {
		var c struct {
			ID     string `json:"id"`
			Parent string `json:"parent"`
		}
		var members map[string]any
		if err := errors.Join(json.Unmarshal(raw, &c), json.Unmarshal(raw, &members)); err != nil {
			return nil, err
		}
		if c.ID == "" || slices.ContainsFunc(cards, func(o card) bool { return o.id == c.ID }) {
			continue
		}
		delete(members, "created")
		delete(members, "permission")
		lasting, err := json.Marshal(members)
		if err != nil {
			return nil, err
		}
		cards = append(cards, card{id: c.ID, raw: raw, lasting: lasting, adapter: c.Parent != ""})
	}
	if len(cards) == 0 {
		return nil, errors.New("it lists no models")
	}
	return cards, nil
}
