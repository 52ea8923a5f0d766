package main

import (
	"fmt"
	"time"

	"github.com/warmpath/warmpath/internal/prefix"
	"github.com/warmpath/warmpath/internal/replica"
	"github.com/warmpath/warmpath/internal/router"
)

// choice measures the choice of one of 256 replicas alone, lease and its end included,
// when so many blocks of KV cache are in the index; it also returns how many were.
// Prompts have 512 blocks with a cut behind each, and share the first half.
func (s *settings) choice(blocks int) (c cost, held int, err error) {
	const each, common = 512, 256
	cfg := router.DefaultConfig()
	cfg.IndexBytes = 8 << 30 // nothing is dropped for room
	r, err := router.New(cfg)
	if err != nil {
		return c, 0, err
	}
	model := &replica.Model{Name: "m", Index: 1}
	for i := range 256 {
		rep := replica.Virtual(fmt.Sprintf("r%d:80", i), i)
		model.Replicas = append(model.Replicas, rep)
		r.Told(rep, replica.Facts{BlockSize: 16, Blocks: 1 << 24})
	}
	now := time.Unix(1_700_000_000, 0)
	prompt := prefix.Prompt{Chains: []prefix.Chain{{Tokens: each * 16, Cuts: make([]prefix.Cut, each)}}, Tokens: each * 16}
	one := func(number int) error {
		prompt.Home = prefix.Hash(number + 1)
		for i := range prompt.Chains[0].Cuts {
			hash := prefix.Hash(i + 1)
			if i >= common {
				hash = prefix.Hash(uint64(number+1)<<20 + uint64(i))
			}
			prompt.Chains[0].Cuts[i] = prefix.Cut{Hash: hash * 0x9e3779b97f4a7c15, Tokens: int32(16 * (i + 1))}
		}
		l, err := r.Acquire(&router.Request{Prompt: &prompt, Model: model, Stream: true}, now)
		if err != nil {
			return err
		}
		now = now.Add(time.Millisecond)
		l.Prefilled(now)
		l.Done(router.Outcome{End: router.Completed, Prefilled: true}, now)
		return nil
	}
	prompts := blocks / (each - common)
	for i := range prompts {
		if err := one(i); err != nil {
			return c, 0, err
		}
	}
	var costs []cost
	for range s.rounds {
		n, began := 0, time.Now()
		for ; time.Since(began) < s.each; n++ { // those that came last: the index does not grow
			if err := one(max(0, prompts-1-n%1000)); err != nil {
				return c, 0, err
			}
		}
		costs = append(costs, cost{cpu: time.Since(began) / time.Duration(n)})
	}
	for _, state := range r.States(now) {
		held += int(state.HeldBlocks)
	}
	return median(costs), held, nil
}
