package replica

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// endpoint is one address, behind which there are one or more engines.
type endpoint struct {
	pool    *Pool
	id      string // of its replica, if it is but one
	url     *url.URL
	soon    chan struct{}
	state   atomic.Int32
	telling sync.Mutex    // held while facts are published
	faults  atomic.Uint32 // that requests showed since the last success

	leaving  atomic.Bool // it is not discovered any more
	returned atomic.Bool // it was leaving: the next good probe takes it for another
	left     time.Time   // since when it is leaving
	stop     func()      // ends watch; nil before it has begun. Run's own, as is left
	stopped  chan struct{}

	// Written by watch alone, with pool.mu held.
	models   []card
	replicas []*Replica // by rank

	scraped  time.Time // the fields below belong to watch
	probed   time.Time // when the last probe ended
	next     time.Time // when the next regular one is due
	failures int       // probes that failed since the last good one
	blind    bool      // its metrics cannot be read
	hold     time.Time // until then it is not probed, since it was marked down; zero if it was not
	marks    int       // how often it was marked down lately
	markedAt time.Time // the last time
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
		id := e.id
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
		if r != nil && r.ID == id && r.endpoint == e {
			return r
		}
	}
	slot := slices.Index(p.replicas, nil)
	if slot < 0 {
		slot = len(p.replicas)
		p.replicas = append(p.replicas, nil)
	}
	p.replicas[slot] = newReplica(e, id, slot, rank)
	return p.replicas[slot]
}

// watch probes the endpoint until ctx ends.
func (e *endpoint) watch(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		asked := false
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-e.soon:
			asked = true
			e.scraped = time.Time{} // it may have restarted
		}
		if wait := e.wait(time.Now(), asked); wait > 0 {
			timer.Reset(wait)
			continue
		}
		was := e.state.Load()
		err := e.probe(ctx)
		if ctx.Err() != nil {
			return
		}
		e.report(was, err)
		pause := e.pause()
		e.probed = time.Now()
		e.next = e.probed.Add(pause)
		timer.Reset(pause)
	}
}

// pause returns the time until the next regular probe. A failing endpoint is looked
// for more often at first.
func (e *endpoint) pause() time.Duration {
	wait := e.pool.cfg.ProbeInterval
	if e.failures > 0 {
		wait >>= max(0, 3-e.failures)
	}
	return spread(wait)
}

// report publishes the outcome of a probe that began in a state, and logs the changes.
func (e *endpoint) report(was int32, err error) {
	log := e.pool.log.With("replica", e.id)
	if err == nil {
		e.failures = 0
		if was == ready || !e.state.CompareAndSwap(was, ready) {
			return // it was marked down meanwhile: the next probe is on its way
		}
		e.faults.Store(0)
		e.hold = time.Time{}
		log.Info("replica is ready")
		return
	}
	e.failures++
	switch {
	case was == fresh && e.failures == 1:
		log.Info("replica is not ready yet", "err", err)
	case was != fresh:
		e.hold = time.Time{}
		if e.state.Swap(down) != down && !e.leaving.Load() { // from one that leaves it is no news
			log.Warn("replica is down", "err", err)
			e.unwell()
		}
	}
}

// probe asks the replica whether it is well, which models it has and, when due,
// for its metrics. Metrics that cannot be read do not make it unwell. One that is
// new, or comes back, has to answer a request before it is given others.
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
	state := e.state.Load()
	if state == ready && (time.Since(e.scraped) < e.pool.cfg.ScrapeInterval || e.spared()) {
		e.pool.learn(e, models, 0)
		return nil
	}
	byRank := e.scrape(ctx)
	e.scraped = time.Now()
	e.pool.learn(e, models, len(byRank))
	if e.pool.cfg.WarmUp {
		if err := e.warmUp(ctx, models, byRank, state == ready); err != nil {
			return err
		}
	}
	if returned := e.returned.Swap(false); len(byRank) == 0 && (state == marked || state == down || returned) {
		for _, r := range e.replicas { // it may have restarted: nothing tells
			e.pool.notify(Event{Kind: Emptied, Replica: r})
		}
	}
	e.tell(byRank)
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
		e.pool.log.Warn("replica's metrics cannot be read: what its cache holds is guessed", "replica", e.id, "err", err)
	}
	e.blind = err != nil
	return byRank
}

// spared reports whether another gateway reads the metrics, and has told of them
// lately.
func (e *endpoint) spared() bool {
	owns := e.pool.owns.Load()
	if owns == nil || e.blind || e.scraped.IsZero() || (*owns)(e.replicas[0]) {
		return false
	}
	for _, r := range e.replicas {
		if time.Since(r.Facts().At) > 2*e.pool.cfg.ScrapeInterval {
			return false
		}
	}
	return true
}

// tell publishes facts that were read here.
func (e *endpoint) tell(byRank []Facts) {
	e.telling.Lock()
	defer e.telling.Unlock()
	for i := range byRank {
		e.publish(e.replicas[i], byRank[i])
		e.pool.notify(Event{Kind: Scraped, Replica: e.replicas[i], Facts: byRank[i]})
	}
}

// publish takes a replica's facts, and tells what they show to have happened to its
// cache. The caller holds telling.
func (e *endpoint) publish(r *Replica, now Facts) {
	old := r.facts.Swap(&now)
	r.sleeping.Store(now.Sleeping)
	if now.Blocks > 0 && (old == nil || old.BlockSize != now.BlockSize || old.Blocks != now.Blocks) {
		e.pool.notify(Event{Kind: Told, Replica: r, Facts: now})
	}
	if old != nil && emptied(*old, now) {
		e.pool.log.Info("replica's cache is empty", "replica", r.ID)
		e.pool.notify(Event{Kind: Emptied, Replica: r, Facts: now})
	}
	e.pool.notify(Event{Kind: Counted, Replica: r, Facts: now})
}

// emptied reports whether a replica lost its cache between two readings. A start
// time alone does not do: vLLM with several API servers has none.
func emptied(old, now Facts) bool {
	return now.Start != old.Start || now.Prompt < old.Prompt || now.Blocks != old.Blocks || now.Sleeping && !old.Sleeping
}

// request makes a request with the gateway's own key.
func (e *endpoint) request(ctx context.Context, method, path string, body io.Reader) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, e.url.String()+path, body)
	if err != nil {
		return nil, err
	}
	if key := *e.pool.key.Load(); key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	return req, nil
}

func (e *endpoint) get(ctx context.Context, path string, limit int64) ([]byte, error) {
	req, err := e.request(ctx, http.MethodGet, path, nil)
	if err != nil {
		return nil, err
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
