//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/mockvllm"
)

// The differential test's requests, and what they must amount to.
const (
	diffSeeds    = 4
	diffRequests = 80  // of each seed
	diffRemember = 30  // last sequences that requests build upon, more than the cache holds
	diffChunk    = 512 // tokens of a prompt computed in one step
	maxOutput    = 40  // tokens generated

	minEvicted = 0.08 // share of requests that would have hit more in a cache without end
	minHit     = 0.2  // share of requests that hit anything
)

// TestMockEngineAgainstVLLM sends one sequence of prompts, one at a time, through
// a real replica with few KV blocks and through mockvllm's engine of the same size:
// each prompt must find equally many tokens in both caches. The engine has no model:
// it generates the tokens that the replica did.
//
// SEED=n repeats a run. With VLLM_URLS the first replica is taken, which must be
// idle and small enough to be under pressure.
func TestMockEngineAgainstVLLM(t *testing.T) {
	var url string
	if urls := strings.Fields(os.Getenv("VLLM_URLS")); len(urls) > 0 {
		url = urls[0]
	} else {
		urls, _ := startFleet(t, 1, "BLOCKS=33", "MAXLEN=1024", fmt.Sprintf("EXTRA=--block-size 32 --max-num-batched-tokens %d", diffChunk))
		url = urls[0]
	}
	d := newDifferential(t, url)
	seed := rand.Uint64N(1e6)
	if s := os.Getenv("SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatalf("SEED: %v", err)
		}
		seed = n
	}
	d.forget(t)
	began := time.Now()
	for i := range uint64(diffSeeds) {
		if !d.run(t, seed+i) {
			t.Fatalf("in seed %d of SEED=%d; the rest cannot be compared. More prompt tokens counted than sent mean that somebody else uses the replica: %s",
				seed+i, seed, strings.Join(d.differences(t), "; "))
		}
	}
	t.Logf("seeds %d to %d, blocks of %d tokens, %d of them, %.0f s\n%s", seed, seed+diffSeeds-1, d.block, d.blocks, time.Since(began).Seconds(), d.table())
	d.compareCounters(t)
	total := d.total()
	if total.requests < 300 {
		t.Errorf("%d requests compared, want 300", total.requests)
	}
	if share := float64(total.evicted) / float64(total.requests); share < minEvicted {
		t.Errorf("%.2f of the requests missed what had been evicted, want %.2f: the caches were not under pressure", share, minEvicted)
	}
	if share := float64(total.hit) / float64(total.requests); share < minHit {
		t.Errorf("%.2f of the requests hit anything, want %.2f", share, minHit)
	}
}

// differential is a real replica, the engine that must be equal to it, and one
// whose cache never ends, which tells what eviction has cost.
type differential struct {
	url           string
	block, blocks int
	longest       int // tokens of prompt and answer
	mock, endless *mockvllm.Engine
	before        map[string]float64 // the replica's counters at the beginning
	kinds         map[string]*tally
}

// tally counts requests of one kind.
type tally struct {
	requests, hit, evicted int
	prompt, cached         int // tokens
}

// exchange is one request: a prompt and how it is to be treated.
type exchange struct {
	kind    string
	prompt  []uint32
	limit   int      // tokens to generate
	stop    []uint32 // tokens that end the answer sooner
	salt    string
	noCache bool // asks for prompt logprobs, which the cache does not have

	output []uint32 // what the replica generated
}

func newDifferential(t *testing.T, url string) *differential {
	t.Helper()
	d := &differential{url: url, kinds: map[string]*tally{}}
	page := get(t, url+"/metrics")
	for into, name := range map[*int]string{&d.block: "block_size", &d.blocks: "num_gpu_blocks"} {
		m := regexp.MustCompile(`vllm:cache_config_info\{.*[{,]` + name + `="(\d+)"`).FindStringSubmatch(page)
		if m == nil {
			t.Fatalf("%s/metrics does not tell %s", url, name)
		}
		*into, _ = strconv.Atoi(m[1])
	}
	m := regexp.MustCompile(`"max_model_len":(\d+)`).FindStringSubmatch(get(t, url+"/v1/models"))
	if m == nil {
		t.Fatalf("%s/v1/models does not tell max_model_len", url)
	}
	d.longest, _ = strconv.Atoi(m[1])
	if d.blocks > 64 {
		t.Skipf("%s has %d KV blocks; more than 64 are not under pressure here", url, d.blocks)
	}
	cfg := mockvllm.Config{BlockSize: d.block, Blocks: d.blocks, MaxModelLen: d.longest, MaxBatchedTokens: diffChunk}
	d.mock = mockvllm.NewEngine(cfg)
	cfg.Blocks = 1 << 16
	d.endless = mockvllm.NewEngine(cfg)
	d.before = d.counters(t)
	return d
}

// forget fills both caches with the same prompts, so that a replica that has
// served others begins as the engine does.
func (d *differential) forget(t *testing.T) {
	t.Helper()
	rnd := rand.New(rand.NewPCG(rand.Uint64(), 0))
	size := (d.longest - 1) / d.block
	for filled := 0; filled < d.blocks; filled += size {
		d.compare(t, 0, &exchange{kind: "fill", prompt: tokens(rnd, size*d.block), limit: 1})
	}
}

// run makes and compares the requests of one seed, up to the first difference.
func (d *differential) run(t *testing.T, seed uint64) (equal bool) {
	t.Helper()
	rnd := rand.New(rand.NewPCG(seed, 1))
	var past []*exchange
	for i := range diffRequests {
		x := d.next(rnd, past)
		if !d.compare(t, i, x) {
			return false
		}
		past = append(past, x)
		past = past[max(0, len(past)-diffRemember):]
	}
	return true
}

// compare sends a request to the replica and to the engines and reports whether
// both found as much in their caches.
func (d *differential) compare(t *testing.T, step int, x *exchange) bool {
	t.Helper()
	body := object{"model": model, "prompt": x.prompt, "max_tokens": x.limit, "temperature": 0, "return_token_ids": true}
	body["ignore_eos"] = true // which leaves the stop tokens
	if x.stop != nil {
		body["stop_token_ids"] = x.stop
	}
	if x.salt != "" {
		body["cache_salt"] = x.salt
	}
	if x.noCache {
		body["prompt_logprobs"] = 0
	}
	theirs, err := send(t.Context(), d.url, "/v1/completions", body, nil)
	if err != nil {
		t.Fatalf("step %d, %s: %v", step, x.kind, err)
	}
	if theirs.usage.Completion != len(theirs.tokens) || theirs.usage.Prompt != len(x.prompt) {
		t.Fatalf("step %d, %s: usage says %+v, the answer has %d tokens and the prompt %d", step, x.kind, theirs.usage, len(theirs.tokens), len(x.prompt))
	}
	x.output = theirs.tokens
	cached, endless := serve(t, d.mock, x), serve(t, d.endless, x)
	k := d.kinds[x.kind]
	if k == nil {
		k = &tally{}
		d.kinds[x.kind] = k
	}
	k.requests++
	k.prompt += len(x.prompt)
	k.cached += cached
	if cached > 0 {
		k.hit++
	}
	if cached < endless {
		k.evicted++
	}
	if cached != theirs.usage.cached() {
		t.Errorf("step %d, %s, prompt of %d tokens, %d generated: vLLM has %d cached tokens, the engine %d; without eviction there would be %d",
			step, x.kind, len(x.prompt), len(x.output), theirs.usage.cached(), cached, endless)
		return false
	}
	return true
}

// serve runs a request alone through an engine and returns the tokens it hit.
func serve(t *testing.T, e *mockvllm.Engine, x *exchange) (cached int) {
	t.Helper()
	if _, err := e.Submit(mockvllm.Request{Prompt: x.prompt, Output: x.output, Salt: x.salt, NoCacheRead: x.noCache}); err != nil {
		t.Fatalf("%s: %v", x.kind, err)
	}
	for now := time.Duration(0); now != mockvllm.Idle; {
		var events []mockvllm.Event
		events, now = e.Step(now)
		for _, event := range events {
			cached = event.Cached
		}
	}
	return cached
}

// next makes a request, most often of what was sent and generated before.
func (d *differential) next(rnd *rand.Rand, past []*exchange) *exchange {
	x := &exchange{limit: 1 + rnd.IntN(4)}
	if rnd.IntN(8) == 0 {
		x.limit = 1 + rnd.IntN(maxOutput)
	}
	var base *exchange
	fresh := func(n int) { x.prompt = tokens(rnd, n) }
	// upTo begins with the front of base's prompt and goes on with n new tokens.
	upTo := func(front, n int) {
		x.prompt, x.salt = append(slices.Clone(base.prompt[:front]), tokens(rnd, n)...), base.salt
	}
	again := func() { upTo(len(base.prompt), 0) }
	edge := func() int { return rnd.IntN(len(base.prompt)/d.block+1) * d.block }
	followUp := func() {
		x.prompt, x.salt = slices.Concat(base.prompt, base.output, tokens(rnd, 1+rnd.IntN(d.block))), base.salt
	}
	whole := (1 + rnd.IntN(8)) * d.block
	kinds := []kind{
		{1, "new", func() { fresh(1 + rnd.IntN(8*d.block)) }},
		{1, "new, whole blocks", func() { fresh(whole) }},
		{1, "new, a token more than whole blocks", func() { fresh(whole + 1) }},
		{1, "new, a token less than whole blocks", func() { fresh(whole - 1) }},
		{1, "new, long", func() { fresh(d.longest/4 + rnd.IntN(d.longest/2)) }},
	}
	if len(past) > 0 {
		base = past[rnd.IntN(len(past))]
		kinds = append(kinds, []kind{
			{4, "again", again},
			{1, "the front of another", func() { upTo(1+rnd.IntN(len(base.prompt)), 0) }},
			{1, "the front of another, whole blocks", func() { upTo(max(1, edge()), 0) }},
			{2, "another from the middle of a block", func() { upTo(rnd.IntN(len(base.prompt)), 1+rnd.IntN(2*d.block)) }},
			{2, "another from a block's edge", func() { upTo(edge(), 1+rnd.IntN(2*d.block)) }},
			{3, "with the text generated", followUp},
			{1, "with the text generated, whole blocks", func() {
				followUp()
				x.prompt = append(x.prompt, tokens(rnd, (d.block-len(x.prompt)%d.block)%d.block)...)
			}},
			{1, "again, with a salt", func() {
				again()
				x.salt = "salt" + strconv.Itoa(rnd.IntN(2))
			}},
			{2, "again, with prompt logprobs", func() {
				again()
				x.noCache = true
			}},
			{1, "again, until a stop token", func() {
				again()
				x.limit, x.stop = maxOutput, base.output[len(base.output)-1:]
			}},
		}...)
	}
	k := pick(rnd, kinds)
	k.build()
	x.kind = k.name
	x.prompt = x.prompt[:min(len(x.prompt), d.longest-maxOutput)]
	return x
}

// kind is a way to make a request; the weight says how often it is taken.
type kind struct {
	weight int
	name   string
	build  func()
}

func pick(rnd *rand.Rand, kinds []kind) kind {
	sum := 0
	for _, k := range kinds {
		sum += k.weight
	}
	n := rnd.IntN(sum)
	for _, k := range kinds {
		if n -= k.weight; n < 0 {
			return k
		}
	}
	panic("BUG: weights do not add up")
}

// tokens returns n random token ids.
func tokens(rnd *rand.Rand, n int) []uint32 {
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = uint32(1000 + rnd.IntN(40000))
	}
	return ids
}

// counters returns what the replica has counted so far.
func (d *differential) counters(t *testing.T) map[string]float64 {
	t.Helper()
	counts := map[string]float64{}
	for name := range mockCounters(d.mock) {
		v, err := metric(d.url, "vllm:"+name+"{")
		if err != nil {
			t.Fatal(err)
		}
		counts[name] = v
	}
	return counts
}

// mockCounters returns an engine's counters under the names of vLLM's metrics.
func mockCounters(e *mockvllm.Engine) map[string]float64 {
	c := e.Counters()
	return map[string]float64{
		"prompt_tokens_total":        float64(c.PromptTokens),
		"prompt_tokens_cached_total": float64(c.CachedTokens),
		"prefix_cache_queries_total": float64(c.QueriedTokens),
		"prefix_cache_hits_total":    float64(c.HitTokens),
		"generation_tokens_total":    float64(c.GeneratedTokens),
		"num_preemptions_total":      float64(c.Preemptions),
	}
}

// differences lists the totals of the metrics that are not the engine's.
func (d *differential) differences(t *testing.T) (wrong []string) {
	t.Helper()
	mock := mockCounters(d.mock)
	for name, v := range d.counters(t) {
		if got := v - d.before[name]; got != mock[name] {
			wrong = append(wrong, fmt.Sprintf("%s: vLLM %.0f, the engine %.0f", name, got, mock[name]))
		}
	}
	return wrong
}

// compareCounters holds the totals of the metrics against each other. The replica
// counts after it has answered.
func (d *differential) compareCounters(t *testing.T) {
	t.Helper()
	eventually(t, 10*time.Second, "the replica's counters to be the engine's", func() error {
		if wrong := d.differences(t); len(wrong) > 0 {
			return errors.New(strings.Join(wrong, "; "))
		}
		return nil
	})
}

func (d *differential) total() tally {
	var sum tally
	for _, k := range d.kinds {
		sum.requests += k.requests
		sum.hit += k.hit
		sum.evicted += k.evicted
		sum.prompt += k.prompt
		sum.cached += k.cached
	}
	return sum
}

// table lists the kinds of requests that were compared.
func (d *differential) table() string {
	var b strings.Builder
	row := func(kind string, k tally) {
		_, _ = fmt.Fprintf(&b, "%-40s %8d %6d %8d %8d %8d\n", kind, k.requests, k.hit, k.evicted, k.prompt, k.cached)
	}
	_, _ = fmt.Fprintf(&b, "%-40s %8s %6s %8s %8s %8s\n", "prompt", "requests", "hit", "evicted", "tokens", "cached")
	names := make([]string, 0, len(d.kinds))
	for kind := range d.kinds {
		names = append(names, kind)
	}
	slices.Sort(names)
	for _, kind := range names {
		row(kind, *d.kinds[kind])
	}
	row("all", d.total())
	return b.String()
}

// get returns a page.
func get(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: status %d, %v", url, resp.StatusCode, err)
	}
	return string(text)
}
