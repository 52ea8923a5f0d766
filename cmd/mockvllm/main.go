// Command mockvllm runs one mock vLLM replica: vLLM's API, metrics and prefix cache without a model or a GPU.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/warmpath/warmpath/internal/mockvllm"
)

const usage = `usage: mockvllm [flags]

A mock vLLM replica: the HTTP API, the metrics, the prefix cache and the timing of vLLM, with made-up text. Start
several behind a gateway and watch prefix hits without a GPU:
  mockvllm -listen 127.0.0.1:8201 & mockvllm -listen 127.0.0.1:8202 &
  curl -s 127.0.0.1:8201/v1/chat/completions -H 'Content-Type: application/json' \
    -d '{"messages":[{"role":"user","content":"hello"}],"max_tokens":8}'

Take the sizes and times of an engine, and change what is to differ:
  mockvllm -preset 8b -blocks 4096

Let it fail, now or while it runs (fields: see mockvllm.Faults; {} heals):
  mockvllm -faults '{"status":503,"retry_after":"2s","probability":0.1}'
  curl -X POST 127.0.0.1:8201/mock/faults -d '{"cut":true,"after":3,"next":1}'

Flags:
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "mockvllm:", err)
		os.Exit(1)
	}
}

// options is what the flags say.
type options struct {
	listen string
	engine mockvllm.Config
	faults mockvllm.Faults
}

func parse(args []string) (o options, err error) {
	o.engine = mockvllm.DefaultConfig()
	cfg := &o.engine
	fs := flag.NewFlagSet("mockvllm", flag.ContinueOnError)
	fs.Usage = func() { fmt.Fprint(fs.Output(), usage); fs.PrintDefaults() }
	fs.StringVar(&o.listen, "listen", "127.0.0.1:8201", "`address` to serve on")
	preset := fs.String("preset", "", "start from the `engine` 8b (a model of 8B parameters on an H100), 70b (on four H200) or smol4 (the real replica\n"+
		"of test/vllm); other flags override it")
	fs.StringVar(&cfg.Model, "model", cfg.Model, "served model `name`")
	adapters := fs.String("adapters", "", "LoRA adapter `names`, separated by commas")
	fs.IntVar(&cfg.Blocks, "blocks", cfg.Blocks, "KV cache size in `blocks`")
	fs.IntVar(&cfg.BlockSize, "block-size", cfg.BlockSize, "`tokens` in a block")
	scale := fs.Float64("time-scale", 1, "stretch every step's time by this `factor`, as in bench replay: 2 is half as fast")
	rate := fs.Float64("prefill-rate", 8000, "prompt `tokens` computed in a second")
	fs.DurationVar(&cfg.StepBase, "decode-time", cfg.StepBase, "`time` of a decode step, that is between tokens")
	fs.Float64Var(&cfg.AttentionPerPair, "attention", cfg.AttentionPerPair, "`nanoseconds` for each pair of computed and context token: prefill grows with the square")
	fs.IntVar(&cfg.MaxModelLen, "max-model-len", cfg.MaxModelLen, "most `tokens` of prompt and answer")
	fs.IntVar(&cfg.MaxBatchedTokens, "max-batched-tokens", cfg.MaxBatchedTokens, "most `tokens` computed in a step")
	fs.IntVar(&cfg.MaxSeqs, "max-seqs", cfg.MaxSeqs, "most `sequences` running at once")
	fs.BoolVar(&cfg.PromptTokensDetails, "prompt-tokens-details", true, "report cached tokens in usage")
	faults := fs.String("faults", "{}", "misbehave from the start: `JSON` as for POST /mock/faults")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if *preset != "" {
		engine, ok := mockvllm.Presets()[*preset]
		if !ok {
			return o, fmt.Errorf("-preset: no engine %q: there are %s", *preset, strings.Join(slices.Sorted(maps.Keys(mockvllm.Presets())), ", "))
		}
		o.engine, *rate = engine, float64(time.Second)/float64(engine.PrefillPerToken)
		if err := fs.Parse(args); err != nil { // again: what is given overrides the preset
			return o, err
		}
	}
	if fs.NArg() > 0 || *rate <= 0 || *scale <= 0 {
		return o, fmt.Errorf("-prefill-rate is %v, -time-scale %v, both must be above 0; arguments are %q, must be none", *rate, *scale, fs.Args())
	}
	cfg.KeepRequests = 0
	cfg.PrefillPerToken = time.Duration(math.Round(float64(time.Second) / *rate))
	*cfg = cfg.Stretch(*scale)
	if *adapters != "" {
		cfg.Adapters = strings.Split(*adapters, ",")
	}
	if err := json.Unmarshal([]byte(*faults), &o.faults); err != nil {
		return o, fmt.Errorf("-faults: %w", err)
	}
	return o, nil
}

func run(ctx context.Context, args []string) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", o.listen)
	if err != nil {
		return err
	}
	replica := mockvllm.New(o.engine)
	defer replica.Close()
	replica.SetFaults(o.faults)
	// vLLM's uvicorn closes a connection that was idle for 5 s; clients that keep one longer see resets.
	srv := &http.Server{Handler: replica.Handler(), IdleTimeout: 5 * time.Second, ReadHeaderTimeout: 30 * time.Second}
	slog.Info("serving", "component", "mockvllm", "address", ln.Addr().String(), "model", o.engine.Model)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	replica.Close() // what runs ends with finish_reason abort
	down, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return srv.Shutdown(down)
}
