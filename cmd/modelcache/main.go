// Command modelcache keeps verified models on a node's disk, so that replicas start
// without fetching weights.
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
	"syscall"
)

const usage = `usage: modelcache COMMAND [flags]

A node-local cache of models: fetched once, proven by their digest, kept while they
are used, evicted least recently used first.

  modelcache manifest s3://models/example-llm/v1 > modelcache.manifest   # says the digest
  modelcache ensure -config model.yaml    # present, verified, pinned; prints the path

with model.yaml

  model:
    repository: s3://models/example-llm
    revision: v1
    expectedDigest: sha256:…
  cache:
    nodeLocalPath: /var/lib/model-cache
    maxSizeGiB: 500
    evictionPolicy: lru

Commands:
  ensure    make a model present, verified and pinned, and print its path
  serve     keep models present, answer readiness, hand out leases, metrics
  list      the models in the cache
  verify    hash every file again; exits 1 if one is wrong
  evict     remove a model, or least recently used ones down to the low watermark
  unpin     remove a model's pins, so that it may be evicted
  manifest  hash a directory or bucket prefix into a manifest
  compiled  save or restore vLLM's compile cache for a model, engine and flags

modelcache COMMAND -h has a command's flags. Credentials come from the environment:
AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL, AWS_REGION (or ~/.aws, or
the node's role) for S3, MODELCACHE_TOKEN for a bearer token over HTTP.
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "modelcache:", err)
		os.Exit(1)
	}
}

// command is one run of one command.
type command struct {
	flags    *flag.FlagSet
	args     []string
	out, err io.Writer
	log      *slog.Logger
}

func run(ctx context.Context, args []string, out, errOut io.Writer) error {
	if len(args) == 0 {
		fmt.Fprint(errOut, usage)
		return errors.New("a command is missing")
	}
	commands := map[string]func(context.Context, *command) error{
		"ensure": ensure, "serve": serve, "list": list, "verify": verify, "evict": evict, "unpin": unpin,
		"manifest": makeManifest, "compiled": compiled,
	}
	name := args[0]
	if name == "-h" || name == "--help" || name == "help" {
		fmt.Fprint(errOut, usage)
		return flag.ErrHelp
	}
	f, ok := commands[name]
	if !ok {
		return fmt.Errorf("no command %q; modelcache -h lists them", name)
	}
	c := &command{
		flags: flag.NewFlagSet("modelcache "+name, flag.ContinueOnError), args: args[1:], out: out, err: errOut,
		log: slog.New(slog.NewTextHandler(errOut, nil)).With("component", "modelcache"),
	}
	c.flags.SetOutput(errOut)
	return f(ctx, c)
}

// parse reads the flags and the words among them. about is the help's first lines.
func (c *command) parse(about string, least, most int) ([]string, error) {
	c.flags.Usage = func() {
		fmt.Fprintf(c.flags.Output(), "usage: %s %s\n\nFlags:\n", c.flags.Name(), about)
		c.flags.PrintDefaults()
	}
	words := []string{}
	for args := c.args; ; args = c.flags.Args()[1:] { // flags may follow words
		if err := c.flags.Parse(args); err != nil {
			return nil, err
		}
		if c.flags.NArg() == 0 {
			break
		}
		words = append(words, c.flags.Arg(0))
	}
	if n := len(words); n < least || n > most {
		return nil, fmt.Errorf("%s has %d arguments, %q; see -h", c.flags.Name(), n, words)
	}
	return words, nil
}
