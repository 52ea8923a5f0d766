package replica

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
)

// WarmUpID is the X-Request-Id of the requests that the gateway makes by itself, by
// which an engine's log tells them from clients'.
const WarmUpID = "warmpath-warm-up"

// longestWarmUp bounds one tiny request. An engine's first one may compile kernels, so
// it gets the time of a probe at first and twice as much each time that does not do.
const longestWarmUp = time.Minute

// warmUp has each engine behind the endpoint answer one tiny request, or with
// awakeOnly those that have just woken. An answer that refuses what is asked, as
// models without completions do, shows as well as any other that somebody is there.
func (e *endpoint) warmUp(ctx context.Context, models []card, byRank []Facts, awakeOnly bool) error {
	for i, r := range e.replicas {
		asleep := i < len(byRank) && byRank[i].Sleeping // requests would wait there
		if asleep || awakeOnly && !r.sleeping.Load() {
			continue
		}
		if err := e.ask(ctx, r, base(models)); err != nil {
			return fmt.Errorf("it passes health checks but does not answer requests: %w", err)
		}
	}
	return nil
}

// base returns the first model that is no adapter.
func base(models []card) string {
	for _, m := range models {
		if !m.adapter {
			return m.id
		}
	}
	return models[0].id
}

func (e *endpoint) ask(ctx context.Context, r *Replica, model string) error {
	ctx, cancel := context.WithTimeout(ctx, min(longestWarmUp, e.pool.cfg.ProbeTimeout<<min(e.failures, 10)))
	defer cancel()
	body, err := json.Marshal(map[string]any{"model": model, "prompt": "hi", "max_tokens": 1, "temperature": 0})
	if err != nil {
		return err
	}
	req, err := e.request(ctx, http.MethodPost, "/v1/completions", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Request-Id", WarmUpID)
	if r.Rank >= 0 {
		req.Header.Set("X-Data-Parallel-Rank", strconv.Itoa(r.Rank))
	}
	patient := *e.pool.client // the context bounds it
	patient.Timeout = 0
	resp, err := patient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, io.LimitReader(resp.Body, modelsLimit)); err != nil {
		return err
	}
	if resp.StatusCode >= 500 && resp.StatusCode != http.StatusNotImplemented {
		return fmt.Errorf("POST /v1/completions: status %d", resp.StatusCode)
	}
	return nil
}
