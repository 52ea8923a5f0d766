// Command bench measures: servers of OpenAI's API from the outside (ttft, load,
// limits, eval), what came of it (compare, report), and routing policies in virtual
// time (simulate, lab) and against a real server (replay).
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/warmpath/warmpath/internal/lab"
)

const usage = `usage: bench COMMAND [flags]

Measure any server of OpenAI's API:
  ttft          the same long prompt again and again: what the prefix cache saves
  load          load in a closed or an open loop: latency, throughput, goodput, failures
  limits        where throughput stops growing and TTFT breaks, and which limit it was
  eval          accuracy on problems with known answers, and whether a gateway changes answers
  replay        the arrivals of a simulation, over HTTP

Use what was measured (files of -o):
  compare       two results as a scorecard with intervals
  report        results as one HTML file with charts, or Markdown

Without a server:
  simulate      routing policies on the same arrivals, over simulated engines, in virtual time
  lab           every simulation that docs/lab.md shows, and that page
  serve-config  the vLLM command for a model and GPUs, and what each flag does to a gateway

bench COMMAND -h teaches each.
`

func main() {
	err := run(os.Args[1:], os.Stdout)
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// command runs one subcommand with its arguments.
type command func(args []string, out io.Writer) error

var commands = map[string]command{
	"compare": compare, "eval": eval, "limits": limits, "load": load, "replay": replay,
	"lab":      func(args []string, _ io.Writer) error { return makeLab(args, os.Stderr) },
	"simulate": func(args []string, out io.Writer) error { return simulate(args, out, os.Stderr) },
	"report":   makeReport, "serve-config": serveConfig, "ttft": ttft,
}

func run(args []string, out io.Writer) error {
	if len(args) > 0 {
		if c, known := commands[args[0]]; known {
			return c(args[1:], out)
		}
	}
	fmt.Fprint(os.Stderr, usage)
	if len(args) > 0 {
		switch strings.TrimLeft(args[0], "-") {
		case "h", "help":
			return flag.ErrHelp
		}
		return fmt.Errorf("%q is no subcommand", args[0])
	}
	return errors.New("name a subcommand")
}

// engineNames lists the presets of engines, for -h and errors.
func engineNames() string {
	return strings.Join(slices.Sorted(maps.Keys(lab.Engines())), ", ")
}

func noEngine(name string) error {
	return fmt.Errorf("no engine %q: -engine can be %s", name, engineNames())
}

// choose returns the workloads that the flags name.
func choose(names, trace string, load float64, span time.Duration) ([]lab.Workload, error) {
	if trace != "" {
		text, err := os.ReadFile(trace)
		if err != nil {
			return nil, err
		}
		w := lab.Workload{Name: "trace", Replicas: 8, Engine: "70b", Make: func(rnd *rand.Rand) []*lab.Request {
			requests, err := lab.ReadTrace(bytes.NewReader(text), 1/load, rnd)
			if err != nil {
				panic("BUG: the trace was read before: " + err.Error())
			}
			return requests
		}}
		_, err = lab.ReadTrace(bytes.NewReader(text), 1/load, rand.New(rand.NewPCG(1, 1)))
		return []lab.Workload{w}, err
	}
	all := lab.Workloads(load, span)
	if names == "all" {
		return all, nil
	}
	var works []lab.Workload
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(all, func(w lab.Workload) bool { return w.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("no workload %q: there are %s", name, lab.WorkloadNames())
		}
		works = append(works, all[i])
	}
	return works, nil
}
