// Command gateway serves several vLLM replicas behind one OpenAI-compatible URL.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/warmpath/warmpath/internal/auth"
	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/gateway"
	"github.com/warmpath/warmpath/internal/logwriter"
)

// version is set by the linker in archives and images, which are built without a
// repository. Elsewhere the toolchain knows it from git.
var version string

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
	load := func() (*config.Config, error) { return config.Load(os.Args[1:], os.LookupEnv, os.Stderr) }
	cfg, err := load()
	if err != nil {
		return err
	}
	if cfg.Version {
		fmt.Println(versionOf(version, debug.ReadBuildInfo))
		return nil
	}
	if cfg.HashKey != "" {
		return hashKey(cfg.HashKey, os.Stdin, os.Stdout)
	}
	if cfg.Check {
		if err := gateway.Check(cfg); err != nil {
			return err
		}
		fmt.Println("the settings are fine")
		return nil
	}
	level := new(slog.LevelVar)
	level.Set(cfg.LogLevel)
	var log *slog.Logger
	lines := logwriter.New(os.Stderr, func(n int) {
		log.Warn("lines of the log were dropped: what reads it was too slow", "lines", n)
	})
	defer lines.Close()
	log = slog.New(lines.Handler(cfg.Logger(lines, level).Handler()))
	slog.SetDefault(slog.New(cautious{log.Handler()}))
	g, err := gateway.New(cfg, log)
	if err != nil {
		return err
	}
	if cfg.Demo > 0 {
		fmt.Print(welcome(g.Addr(), g.AdminAddr(), cfg.Demo))
	}
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	g.Watch(gateway.Reloading{Load: load, Signal: hup, Level: level})
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	return g.Run(ctx)
}

// cautious takes what libraries log by themselves, without what they quote: of a
// replica that sends more than it announced, net/http quotes the answer.
type cautious struct{ slog.Handler }

// Handle logs the text up to its first quote.
func (c cautious) Handle(ctx context.Context, r slog.Record) error {
	text, _, _ := strings.Cut(r.Message, `"`)
	return c.Handler.Handle(ctx, slog.NewRecord(r.Time, r.Level, text, r.PC))
}

// hashKey prints what to write into the file of keys for the key that comes from in.
func hashKey(name string, in io.Reader, out io.Writer) error {
	text, err := io.ReadAll(io.LimitReader(in, 1<<12))
	if err != nil {
		return fmt.Errorf("read the key from standard input: %w", err)
	}
	entry, err := auth.Entry(name, strings.TrimRight(string(text), "\r\n"))
	if err != nil {
		return fmt.Errorf("-hash-key: %w", err)
	}
	_, err = io.WriteString(out, entry)
	return err
}

// versionOf returns the linked version, or else what the toolchain wrote down.
func versionOf(linked string, info func() (*debug.BuildInfo, bool)) string {
	if linked != "" {
		return linked
	}
	if b, ok := info(); ok && b.Main.Version != "" {
		return b.Main.Version
	}
	return "unknown"
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
