// Command mockvllm runs one mock vLLM replica: vLLM's API, metrics and prefix cache without a model or a GPU.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
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

func run(ctx context.Context, args []string) error {
	cfg := mockvllm.DefaultConfig()
	cfg.KeepRequests = 0
	fs := flag.NewFlagSet("mockvllm", flag.ContinueOnError)
	fs.Usage = func() { fmt.Fprint(fs.Output(), usage); fs.PrintDefaults() }
	listen := fs.String("listen", "127.0.0.1:8201", "`address` to serve on")
	fs.StringVar(&cfg.Model, "model", cfg.Model, "served model `name`")
	adapters := fs.String("adapters", "", "LoRA adapter `names`, separated by commas")
	fs.IntVar(&cfg.Blocks, "blocks", cfg.Blocks, "KV cache size in `blocks`")
	fs.IntVar(&cfg.BlockSize, "block-size", cfg.BlockSize, "`tokens` in a block")
	rate := fs.Float64("prefill-rate", 8000, "prompt `tokens` computed in a second")
	fs.DurationVar(&cfg.StepBase, "decode-time", cfg.StepBase, "`time` of a decode step, that is between tokens")
	fs.Float64Var(&cfg.AttentionPerPair, "attention", 0, "`nanoseconds` for each pair of computed and context token: prefill grows with the square")
	fs.IntVar(&cfg.MaxModelLen, "max-model-len", cfg.MaxModelLen, "most `tokens` of prompt and answer")
	fs.IntVar(&cfg.MaxBatchedTokens, "max-batched-tokens", cfg.MaxBatchedTokens, "most `tokens` computed in a step")
	fs.IntVar(&cfg.MaxSeqs, "max-seqs", cfg.MaxSeqs, "most `sequences` running at once")
	fs.BoolVar(&cfg.PromptTokensDetails, "prompt-tokens-details", true, "report cached tokens in usage")
	faults := fs.String("faults", "{}", "misbehave from the start: `JSON` as for POST /mock/faults")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() > 0 || *rate <= 0 {
		return fmt.Errorf("-prefill-rate is %v, must be above 0; arguments are %q, must be none", *rate, fs.Args())
	}
	cfg.PrefillPerToken = time.Duration(float64(time.Second) / *rate)
	if *adapters != "" {
		cfg.Adapters = strings.Split(*adapters, ",")
	}
	var f mockvllm.Faults
	if err := json.Unmarshal([]byte(*faults), &f); err != nil {
		return fmt.Errorf("-faults: %w", err)
	}
	ln, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	replica := mockvllm.New(cfg)
	defer replica.Close()
	replica.SetFaults(f)
	// vLLM's uvicorn closes a connection that was idle for 5 s; clients that keep one longer see resets.
	srv := &http.Server{Handler: replica.Handler(), IdleTimeout: 5 * time.Second, ReadHeaderTimeout: 30 * time.Second}
	slog.Info("serving", "component", "mockvllm", "address", ln.Addr().String(), "model", cfg.Model)
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
