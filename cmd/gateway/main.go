// Command gateway serves several vLLM replicas behind one OpenAI-compatible URL.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/gateway"
)

func main() {
	err := run()
	switch {
	case err == nil:
	case errors.Is(err, flag.ErrHelp):
	default:
		fmt.Fprintln(os.Stderr, "gateway:", err)
		os.Exit(1)
	}
}

func run() error {
	cfg, err := config.Load(os.Args[1:], os.LookupEnv, os.Stderr)
	if err != nil {
		return err
	}
	if cfg.Check {
		fmt.Println("the settings are fine")
		return nil
	}
	log := cfg.Logger(os.Stderr)
	g, err := gateway.New(cfg, log)
	if err != nil {
		return err
	}
	if cfg.Demo > 0 {
		fmt.Print(welcome(g.Addr(), g.AdminAddr(), cfg.Demo))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	return g.Run(ctx)
}

// welcome says what to try next.
func welcome(clients, admin string, replicas int) string {
	url := strings.NewReplacer("[::]", "127.0.0.1", "0.0.0.0", "127.0.0.1").Replace(clients)
	return fmt.Sprintf(`A gateway over %d mock replicas. Try it, twice with the same long prompt to see the second answered sooner:

  curl -N %[2]s/v1/chat/completions -H 'Content-Type: application/json' \
    -d '{"model":"mock","stream":true,"max_tokens":16,"messages":[{"role":"user","content":"hello"}]}'

  python3 -c 'from openai import OpenAI
for part in OpenAI(base_url="%[2]s/v1", api_key="none").chat.completions.create(
    model="mock", stream=True, max_tokens=16, messages=[{"role": "user", "content": "hello"}]):
    print(part.choices[0].delta.content or "", end="", flush=True)'

  metrics %[3]s/metrics   replicas %[3]s/replicas

`, replicas, url, admin)
}
