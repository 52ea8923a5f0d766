// Package mockvllm is a vLLM replica without a model: it is true to vLLM where routing can feel it.
//
// [Engine] is the part that decides how long a request takes: a block KV cache with prefix hits, reference counts and
// vLLM's eviction order, and a scheduler with chunked prefill, continuous batching and preemption. It is a pure state
// machine, so a policy lab can step it in virtual time. [Server] drives one engine in real time behind vLLM's HTTP
// API, metric names, error shapes and stream shapes, and can be told to misbehave ([Faults]).
//
// The text is not: the tokeniser hashes word pieces and answers are words drawn by a hash of the prompt. The same
// prompt has the same answer on every replica, and an answer sent back as an assistant message has the token ids that
// were generated, so the next turn of a conversation hits the generated blocks as it does in vLLM.
package mockvllm

import "time"

// Config describes one replica. The zero value of a size means its default; a zero duration means that step costs
// nothing. Start from [DefaultConfig].
type Config struct {
	Model    string   // served model name
	Adapters []string // names served as LoRA adapters of Model; each has prefixes of its own in the cache

	BlockSize        int // tokens in a KV block
	Blocks           int // KV blocks, of which vLLM keeps one for itself
	MaxModelLen      int // tokens of prompt and answer together; never more than the cache holds
	MaxBatchedTokens int // tokens computed in one step, decodes first
	MaxSeqs          int // sequences running at once

	StepBase        time.Duration // fixed time of a step: what one decoding sequence waits between its tokens
	PrefillPerToken time.Duration // for each prompt token computed
	DecodePerSeq    time.Duration // for each sequence that decodes in the step
	// AttentionPerPair is the quadratic part of a prefill in nanoseconds for each pair of a computed token and a token
	// of context it attends to: 0.001 adds 1 s to a prompt of 45,000 tokens.
	AttentionPerPair float64

	PromptTokensDetails bool // vLLM's --enable-prompt-tokens-details: usage tells the cached tokens
	KeepRequests        int  // last requests kept for [Server.Requests], bodies included
}

// DefaultConfig is a small replica for a laptop: 65,520 tokens of cache, 8,000 prompt tokens a second, a token every
// 10 ms. A prefix hit of a thousand tokens is then 125 ms sooner, which a person can see.
func DefaultConfig() Config {
	return Config{
		Model:               "mock",
		BlockSize:           16,
		Blocks:              4096,
		MaxModelLen:         32768,
		MaxBatchedTokens:    8192,
		MaxSeqs:             256,
		StepBase:            10 * time.Millisecond,
		PrefillPerToken:     125 * time.Microsecond,
		DecodePerSeq:        50 * time.Microsecond,
		PromptTokensDetails: true,
		KeepRequests:        256,
	}
}

// Stretch returns the configuration of a replica whose every step takes scale times as long: 2 is half as fast. A
// replay on a small machine stretches time, so that what sockets and scheduling cost becomes small beside the steps.
func (c Config) Stretch(scale float64) Config {
	for _, d := range []*time.Duration{&c.StepBase, &c.PrefillPerToken, &c.DecodePerSeq} {
		*d = time.Duration(float64(*d) * scale)
	}
	c.AttentionPerPair *= scale
	return c
}

// withDefaults fills sizes left at zero and caps MaxModelLen by the cache: a sequence that could never fit would
// wait for ever, and vLLM refuses to start with such a configuration.
func (c Config) withDefaults() Config {
	d := DefaultConfig()
	if c.Model == "" {
		c.Model = d.Model
	}
	for _, f := range []struct {
		v        *int
		min, def int
	}{
		{&c.BlockSize, 1, d.BlockSize},
		{&c.Blocks, 2, d.Blocks},
		{&c.MaxModelLen, 1, d.MaxModelLen},
		{&c.MaxBatchedTokens, 1, d.MaxBatchedTokens},
		{&c.MaxSeqs, 1, d.MaxSeqs},
	} {
		if *f.v == 0 {
			*f.v = f.def
		}
		*f.v = max(*f.v, f.min)
	}
	c.MaxModelLen = min(c.MaxModelLen, (c.Blocks-1)*c.BlockSize)
	return c
}
