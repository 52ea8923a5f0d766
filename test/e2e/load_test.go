//go:build e2e

package e2e

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// The load: questions behind a few long system prompts that no single replica's
// cache has room for together.
const (
	loadGroups      = 8
	loadQuestions   = 8
	loadWords       = 900
	loadConcurrency = 3
	loadRounds      = 5 // and one before them, in which the gateway learns the model's tokens and the engines' pace
)

// What prefix routing must reach.
const (
	minCached      = 0.83 // of prompt tokens
	minCachedGain  = 0.15 // above round robin
	maxMispredicts = 0.05 // tokens predicted wrongly, of prompt tokens
)

// result is one round of load through one policy.
type result struct {
	failed    int
	firstFail error
	cached    float64 // share of prompt tokens
	wrong     float64 // tokens by which predictions were wrong, as a share of prompt tokens
	mean, p95 time.Duration
	wall      time.Duration
}

// testSharedPrefixes sends the same kind of load through prefix routing and
// through round robin, in turns, each with prompts that nobody has seen.
func testSharedPrefixes(t *testing.T, s *stage) {
	results := map[string][]result{}
	policies := []string{"round-robin", "prefix"}
	for round := range 1 + loadRounds {
		for _, policy := range policies {
			r := s.load(t, policy)
			if round > 0 || r.failed > 0 {
				results[policy] = append(results[policy], r)
			}
		}
		slices.Reverse(policies)
	}
	var table strings.Builder
	row := func(name string, r result) {
		_, _ = fmt.Fprintf(&table, "%-12s %6d %7.3f %7.3f %6d ms %6d ms %6.1f s\n", name, r.failed, r.cached, r.wrong, r.mean.Milliseconds(), r.p95.Milliseconds(), r.wall.Seconds())
	}
	_, _ = fmt.Fprintf(&table, "%-12s %6s %7s %7s %9s %9s %8s\n", "policy", "failed", "cached", "wrong", "TTFT mean", "P95", "wall")
	medians := map[string]result{}
	for _, policy := range []string{"round-robin", "prefix"} {
		for _, r := range results[policy] {
			row(policy, r)
			if r.failed > 0 {
				t.Errorf("%s: %d requests failed, the first with: %v", policy, r.failed, r.firstFail)
			}
		}
		medians[policy] = mediansOf(results[policy])
	}
	_, _ = fmt.Fprintln(&table, "medians:")
	prefix, robin := medians["prefix"], medians["round-robin"]
	row("round-robin", robin)
	row("prefix", prefix)
	t.Logf("%d groups x %d questions, %d words, %d at a time\n%s", loadGroups, loadQuestions, loadWords, loadConcurrency, table.String())
	if prefix.cached < minCached {
		t.Errorf("share of prompt tokens cached: %.3f, want %.2f", prefix.cached, minCached)
	}
	if prefix.cached <= robin.cached+minCachedGain {
		t.Errorf("share of prompt tokens cached: %.3f, round robin %.3f: want %.2f more", prefix.cached, robin.cached, minCachedGain)
	}
	if prefix.p95 >= robin.p95 {
		t.Errorf("P95 of the time to first token: %v, round robin %v: want less", prefix.p95, robin.p95)
	}
	if prefix.wrong > maxMispredicts {
		t.Errorf("predicted cached tokens are wrong by %.3f of the prompt tokens, want at most %.2f", prefix.wrong, maxMispredicts)
	}
}

// mediansOf takes each figure's median by itself; failures add up.
func mediansOf(rounds []result) result {
	var m result
	m.cached = median(rounds, func(r result) float64 { return r.cached })
	m.wrong = median(rounds, func(r result) float64 { return r.wrong })
	m.mean = time.Duration(median(rounds, func(r result) float64 { return float64(r.mean) }))
	m.p95 = time.Duration(median(rounds, func(r result) float64 { return float64(r.p95) }))
	m.wall = time.Duration(median(rounds, func(r result) float64 { return float64(r.wall) }))
	for _, r := range rounds {
		m.failed += r.failed
	}
	return m
}

func median(rounds []result, figure func(result) float64) float64 {
	var all []float64
	for _, r := range rounds {
		all = append(all, figure(r))
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// load is one round through one policy.
func (s *stage) load(t *testing.T, policy string) result {
	t.Helper()
	var bodies []object
	for group := range loadGroups {
		system := words(loadWords)
		for question := range loadQuestions {
			bodies = append(bodies, object{
				"model": model, "stream": true, "temperature": 0, "max_tokens": 4, "stream_options": object{"include_usage": true},
				"messages": []object{message("system", system), message("user", fmt.Sprintf("question %d of group %d", question, group))},
			})
		}
	}
	rand.Shuffle(len(bodies), func(i, j int) { bodies[i], bodies[j] = bodies[j], bodies[i] })

	jobs := make(chan object)
	var mu sync.Mutex // guards r and what follows it
	var r result
	var ttfts []time.Duration
	var prompt, cached, wrong int
	var workers sync.WaitGroup
	began := time.Now()
	for range loadConcurrency {
		workers.Go(func() {
			for body := range jobs {
				a, err := send(t.Context(), s.clients, "/v1/chat/completions", body, nil, "X-Warmpath-Policy", policy)
				if err == nil && (!a.done || a.first == 0 || a.usage.Prompt == 0 || a.failure != "") {
					err = fmt.Errorf("not a whole answer: text %q, usage %+v, [DONE] %v, error %q", a.text, a.usage, a.done, a.failure)
				}
				mu.Lock()
				if err != nil {
					r.failed++
					if r.firstFail == nil {
						r.firstFail = err
					}
				} else {
					ttfts = append(ttfts, a.first)
					prompt += a.usage.Prompt
					cached += a.usage.cached()
					wrong += max(a.predicted-a.usage.cached(), a.usage.cached()-a.predicted)
				}
				mu.Unlock()
			}
		})
	}
	for _, body := range bodies {
		jobs <- body
	}
	close(jobs)
	workers.Wait()
	r.wall = time.Since(began)
	if len(ttfts) == 0 {
		return r
	}
	slices.Sort(ttfts)
	var sum time.Duration
	for _, d := range ttfts {
		sum += d
	}
	r.mean, r.p95 = sum/time.Duration(len(ttfts)), ttfts[len(ttfts)*95/100]
	r.cached, r.wrong = float64(cached)/float64(prompt), float64(wrong)/float64(prompt)
	return r
}
