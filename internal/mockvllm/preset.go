package mockvllm

import "time"

// Presets are engines by name, for a [Config] to start from:
//
//   - smol4 is the real vLLM 0.32 that test/vllm/fleet.sh starts: SmolLM2-135M cut to 4 layers, in float32 on one core
//     of an x86 server. It is measured, by test/vllm/pace.py.
//   - 8b is a model of 8·10⁹ parameters in bfloat16 on one H100 of 80 GB. It is not measured: its figures are those of
//     the simulations in which the routing cost was found, and the arithmetic of Llama 3.1 says how far they are right.
//   - 70b is one of 70·10⁹ parameters in bfloat16 on four H200, in the same way.
func Presets() map[string]Config {
	// Sizes are the replica's own: 1 GiB of cache at 6 KiB a token, the others vLLM's defaults on a CPU and fleet.sh's.
	// Times are between those of two runs on two busy cores: 14.7 and 15.3 ms, 263 and 314 µs, 754 and 937 µs, 121 and
	// 110 ns. What the API server adds to the first token, up to 15 ms, is not in them.
	smol4 := DefaultConfig()
	smol4.BlockSize, smol4.Blocks = 128, 1365
	smol4.MaxModelLen, smol4.MaxBatchedTokens, smol4.MaxSeqs = 8192, 2048, 128
	smol4.StepBase, smol4.PrefillPerToken, smol4.DecodePerSeq = 15*time.Millisecond, 290*time.Microsecond, 850*time.Microsecond
	smol4.AttentionPerPair = 115

	// A token of an 8B model is 16 GFLOP: 40 µs at 400 TFLOP/s, 40 % of an H100's peak. A step reads 16 GB of weights
	// at 3.35 TB/s, 5 ms, and has 3 ms of its own. A sequence's context is 128 KiB a token (32 layers, 8 key-value heads
	// of 128): in 30 µs 750 of them are read. 0.9 of 80 GB less the weights holds 54 GB, or 25,600 blocks. Attention
	// doubles the work of a token behind 50,000 others; 4·32·4096 FLOP for each pair would make that 30,000.
	// MaxModelLen is no limit here but the cache.
	small := DefaultConfig()
	small.BlockSize, small.Blocks = 16, 25_600
	small.MaxModelLen, small.MaxBatchedTokens, small.MaxSeqs = 1<<20, 8192, 256
	small.StepBase, small.PrefillPerToken, small.DecodePerSeq = 8*time.Millisecond, 40*time.Microsecond, 30*time.Microsecond
	small.AttentionPerPair = 0.8

	// A token of a 70B model is 140 GFLOP: 100 µs at 1,400 TFLOP/s, 35 % of four H200. A step reads 140 GB at
	// 4 · 4.8 TB/s, 7 ms, and waits for 160 reductions across GPUs. A token of context has 320 KiB (80 layers): a
	// million of them, 64,000 blocks, are 336 GB, which fit beside the weights into 0.9 of 4 · 141 GB. 4·80·8192 FLOP
	// for each pair double the work of a token behind 53,000 others.
	large := small
	large.Blocks = 64_000
	large.StepBase, large.PrefillPerToken, large.DecodePerSeq = 15*time.Millisecond, 100*time.Microsecond, 50*time.Microsecond
	large.AttentionPerPair = 2

	return map[string]Config{"smol4": smol4, "8b": small, "70b": large}
}
