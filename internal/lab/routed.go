package lab

import (
	"fmt"
	"time"

	"github.com/warmpath/warmpath/internal/mockvllm"
	"github.com/warmpath/warmpath/internal/prefix"
	"github.com/warmpath/warmpath/internal/replica"
	"github.com/warmpath/warmpath/internal/router"
)

// epoch is when virtual time begins.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// routed is the gateway's own router.
type routed struct {
	s       Scenario
	all     []*replica.Replica
	router  *router.Router
	model   *replica.Model
	wrong   float64
	noUsage bool
	engines []*mockvllm.Engine
	counted time.Duration // when their counters were read last
}

func newRouted(s Scenario, engines []*mockvllm.Engine, gateway int) (*routed, error) {
	cfg := router.DefaultConfig()
	cfg.MaxWait = 0                                               // an overloaded fleet shows in the times
	cfg.Policy, cfg.Seed = s.Policy, s.Seed+uint64(gateway)<<32+1 // 0 would make it different in each run
	r, err := router.New(cfg)
	if err != nil {
		return nil, err
	}
	b := &routed{s: s, router: r, model: &replica.Model{Name: "model", Index: 1}, wrong: s.Wrong, noUsage: s.NoUsage, engines: engines}
	for i := range s.Replicas {
		rep := replica.Virtual(fmt.Sprintf("replica-%d:8000", i), i)
		b.all = append(b.all, rep)
		r.Told(rep, replica.Facts{BlockSize: s.Engine.BlockSize, Blocks: s.told()})
	}
	return b, nil
}

func (b *routed) choose(now time.Duration, f *flight) int {
	b.join(now)
	b.count(now)
	p := &prefix.Prompt{Chains: []prefix.Chain{chainOf(f.Request, b.wrong)}, Home: prefix.Hash(f.Session)}
	p.Tokens = int(p.Chains[0].Tokens)
	lease, err := b.router.Acquire(&router.Request{Prompt: p, Model: b.model, Policy: b.s.Custom, Stream: true}, epoch.Add(now))
	if err != nil {
		panic("BUG: every virtual replica is ready: " + err.Error())
	}
	f.state, f.expects = lease, lease.Predicted()
	return lease.Replica().Slot
}

// countEvery is the gateway's default interval of reading metrics.
const countEvery = 5 * time.Second

// count tells what the engines count themselves.
func (b *routed) count(now time.Duration) {
	if now-b.counted < countEvery {
		return
	}
	b.counted = now
	for i, e := range b.engines {
		st := e.Counters()
		b.router.Counted(b.all[i], replica.Facts{At: epoch.Add(now), Prompt: float64(st.PromptTokens), Cached: float64(st.CachedTokens)})
	}
}

// join makes the replicas those that are there.
func (b *routed) join(now time.Duration) {
	b.model.Replicas = b.model.Replicas[:0]
	for i, rep := range b.all {
		if i >= len(b.s.Joins) || b.s.Joins[i] <= now {
			b.model.Replicas = append(b.model.Replicas, rep)
		}
	}
}

func (b *routed) prefilled(now time.Duration, f *flight) {
	f.state.(*router.Lease).Prefilled(epoch.Add(now))
}

func (b *routed) done(now time.Duration, f *flight) {
	o := router.Outcome{End: router.Completed, Prefilled: true}
	if n := f.Answer.Tokens; n > 1 {
		o.Gap = (now - f.first) / time.Duration(n-1)
	}
	if !b.noUsage {
		o.Prompt, o.Cached, o.CachedKnown, o.Completion = f.tokens, f.cached, true, f.Answer.Tokens
	}
	f.state.(*router.Lease).Done(o, epoch.Add(now))
}

// chainOf gives a prompt the cuts that the gateway's rule for text gives it at
// four bytes a token, and the tokens that it would estimate.
func chainOf(r *Request, wrong float64) prefix.Chain {
	var c prefix.Chain
	hash, n, since := uint64(1), 0, 0
	cut := func() {
		c.Cuts = append(c.Cuts, prefix.Cut{Hash: prefix.Hash(mix(hash, 2)), Tokens: int32(float64(n) * wrong)})
		since = 0
	}
	for _, run := range r.Runs {
		before := int32(len(c.Cuts)) - 1
		for done := 0; done < run.Tokens; {
			size := zone(n)
			step := min(run.Tokens-done, max(1, size-since))
			done, n, since = done+step, n+step, since+step
			hash = mix(hash, uint64(run.ID)<<32|uint64(done))
			if since >= size {
				cut()
			}
		}
		if since > 0 {
			cut()
		}
		if end := int32(len(c.Cuts)) - 1; run.Generated && before >= 0 {
			c.Answers = append(c.Answers, prefix.Span{Begin: before, End: end})
		}
	}
	c.Tokens = int32(float64(n) * wrong)
	return c
}

func zone(tokens int) int {
	switch {
	case tokens < 4<<10:
		return 128
	case tokens < 32<<10:
		return 512
	}
	return 2048
}

func mix(h, v uint64) uint64 {
	h = (h ^ v) * 0x9E3779B97F4A7C15
	h ^= h >> 29
	h *= 0xBF58476D1CE4E5B9
	return h ^ h>>32
}

// Engines are the presets of engines by name.
func Engines() map[string]mockvllm.Config { return mockvllm.Presets() }
