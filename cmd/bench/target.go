package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/warmpath/warmpath/internal/bench"
	"github.com/warmpath/warmpath/internal/report"
)

// servers are the flags that say whom to ask, and for what.
type servers struct {
	endpoints, model, token string
	header                  http.Header
	timeout                 time.Duration
}

// register adds the flags; endpoint is the help of the first.
func (s *servers) register(fs *flag.FlagSet, endpoint string) {
	fs.StringVar(&s.endpoints, "endpoint", "", endpoint+"; required")
	fs.StringVar(&s.model, "model", "mock", "model `name` to ask for")
	fs.StringVar(&s.token, "token", "", "bearer `token`")
	s.header = headerFlag(fs)
	fs.DurationVar(&s.timeout, "timeout", 10*time.Minute, "`time` that a request may take")
}

// check looks at what was parsed.
func (s *servers) check(fs *flag.FlagSet) error {
	switch {
	case fs.NArg() > 0:
		return fmt.Errorf("%q is no flag: %s -h lists them", fs.Arg(0), fs.Name())
	case s.endpoints == "":
		return errors.New("-endpoint is missing: give the base URL of a server, such as http://127.0.0.1:8080")
	case s.timeout <= 0:
		return fmt.Errorf("-timeout must be above 0, not %v", s.timeout)
	}
	return nil
}

// client returns a client of one of the endpoints.
func (s *servers) client(endpoint string) (*bench.Client, error) {
	return bench.New(bench.Config{Endpoint: endpoint, Token: s.token, Header: s.header, Timeout: s.timeout})
}

// target are the flags of the commands that measure servers and keep results.
type target struct {
	servers
	save, label, engines string
	starts               []float64
	memory               float64
	said                 *os.File // progress and warnings
	set                  map[string]any
}

// flagsOf returns the flags of a command whose help begins with a text.
func flagsOf(name, help string) *flag.FlagSet {
	fs := flag.NewFlagSet("bench "+name, flag.ContinueOnError)
	fs.Usage = func() {
		_, _ = io.WriteString(fs.Output(), help+"\nFlags (-x and --x are the same):\n")
		fs.PrintDefaults()
	}
	return fs
}

func (t *target) register(fs *flag.FlagSet) {
	if t.said == nil {
		t.said = os.Stderr
	}
	t.servers.register(fs, "base `URL` of a server, with or without /v1; several, separated by commas, where the command says so")
	fs.StringVar(&t.save, "o", "", "write the results to this `file`, for bench compare and bench report")
	fs.StringVar(&t.label, "label", "", "`name` of this run in tables; empty is the endpoint")
	fs.StringVar(&t.engines, "engine", "", "also read the /metrics of the vLLM engines at these base `URLs`, separated by commas")
	fs.Float64Var(&t.memory, "memory-peak", 0, "measured peak of GPU memory in `GiB`; kept in the results for bench compare")
	fs.Func("replica-start", "measured start-up times of a replica in `seconds`, separated by commas; kept in the results for bench compare", func(text string) error {
		for part := range strings.SplitSeq(text, ",") {
			v, err := strconv.ParseFloat(part, 64)
			if err != nil || v <= 0 {
				return fmt.Errorf("%q is no time in seconds", part)
			}
			t.starts = append(t.starts, v)
		}
		return nil
	})
}

// headerFlag is the flag for further headers; what it returns fills as it is parsed.
func headerFlag(fs *flag.FlagSet) http.Header {
	header := http.Header{}
	fs.Func("header", "further `header`, as \"Name: value\"; give it once for each", func(text string) error {
		name, value, ok := strings.Cut(text, ":")
		if !ok {
			return errors.New(`write "Name: value"`)
		}
		header.Add(strings.TrimSpace(name), strings.TrimSpace(value))
		return nil
	})
	return header
}

// show prints results: as JSON, or for people.
func show(out io.Writer, asJSON bool, results []*bench.Result) error {
	if !asJSON {
		return report.Text(out, results)
	}
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", " ")
	return encoder.Encode(results)
}

// parse reads the arguments and remembers which flags were set, secrets left out.
func (t *target) parse(fs *flag.FlagSet, args []string) error {
	if err := fs.Parse(args); err != nil {
		return err
	}
	if err := t.check(fs); err != nil {
		return err
	}
	t.set = map[string]any{}
	fs.Visit(func(f *flag.Flag) {
		if f.Name != "token" && f.Name != "header" {
			t.set[f.Name] = f.Value.String()
		}
	})
	return nil
}

// watch reads the engines' metrics beside a run, if there are any; stop returns
// what they said.
func (t *target) watch(ctx context.Context) (stop func() *bench.EngineReport, err error) {
	if t.engines == "" {
		return func() *bench.EngineReport { return nil }, nil
	}
	w, err := bench.StartWatch(ctx, strings.Split(t.engines, ","), 100*time.Millisecond)
	if err != nil {
		return nil, err
	}
	return w.Stop, nil
}

// name fills in who was measured, and how.
func (t *target) name(r *bench.Result, kind, endpoint string) {
	r.Kind, r.Endpoint, r.Model, r.Settings, r.ReplicaStart, r.MemoryPeak = kind, endpoint, t.model, t.set, t.starts, t.memory
	if r.Label = endpoint; t.label != "" && !strings.Contains(t.endpoints, ",") {
		r.Label = t.label
	}
}

// finish saves the results, warns of what makes them doubtful, and fails if any
// request did: the exit code must tell.
func (t *target) finish(results []*bench.Result) error {
	failed, attempted := 0, 0
	for _, r := range results {
		failed += r.Failed + r.Cancelled
		attempted += r.Attempted
		if r.Client.Bottleneck != "" {
			_, _ = fmt.Fprintf(t.said, "%s: warning: this client was the bottleneck: %s. Its own waiting is in the figures; send less or from another machine.\n", r.Label, r.Client.Bottleneck)
		}
		if r.NoUsage > 0 {
			_, _ = fmt.Fprintf(t.said, "%s: warning: %d answers told no usage; their tokens are in no figure.\n", r.Label, r.NoUsage)
		}
		if r.Whole > 0 {
			_, _ = fmt.Fprintf(t.said, "%s: warning: %d answers were not streamed; their first token came with the last.\n", r.Label, r.Whole)
		}
	}
	if t.save != "" {
		if err := bench.Save(t.save, results); err != nil {
			return err
		}
	}
	if attempted == 0 && results[0].Eval == nil {
		return errors.New("no request was measured: is -warm-up longer than the run?")
	}
	if failed > 0 {
		first := ""
		for _, r := range results {
			if r.FirstFail != "" {
				first = ", the first: " + r.FirstFail
				break
			}
		}
		return fmt.Errorf("%d of %d requests failed or were cancelled%s", failed, attempted, first)
	}
	return nil
}

// untilStopped is a context that ends with Ctrl-C.
func untilStopped() (context.Context, context.CancelFunc) {
	return signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
}
