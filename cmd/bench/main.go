// Command bench measures: servers of OpenAI's API from the outside (ttft, load,
// limits, eval), what came of it (compare, report), and routing policies in virtual
// time (simulate) and against a real server (replay).
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"text/tabwriter"
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
	"compare": compare, "eval": eval, "limits": limits, "load": load, "replay": replay, "report": makeReport, "serve-config": serveConfig, "simulate": simulate, "ttft": ttft,
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

// row is one policy on one workload.
type row struct {
	Workload string `json:"workload"`
	lab.Summary
}

func simulate(args []string, out io.Writer) error {
	fs := flag.NewFlagSet("bench simulate", flag.ContinueOnError)
	workload := fs.String("workload", "chat", "`names` of generated workloads, separated by commas, or all: "+lab.WorkloadNames())
	trace := fs.String("trace", "", "`file` of a trace in Mooncake's format (JSON lines, also gzip) instead")
	policies := fs.String("policy", strings.Join(lab.Policies(), ","), "`names` of policies, separated by commas")
	replicas := fs.Int("replicas", 0, "how many `replicas`; 0 is what the workload is meant for, 8 for a trace")
	engine := fs.String("engine", "", "`preset` of engines, 8b, 70b or smol4; empty is what the workload is meant for, 70b for a trace")
	load := fs.Float64("load", 1, "`times` the workload's or the trace's rate")
	span := fs.Duration("span", 2*time.Minute, "virtual `time` of arrivals of generated workloads")
	seed := fs.Uint64("seed", 1, "of arrivals and of random choices")
	slo := fs.Duration("slo", time.Second, "time to first token to be kept")
	wrong := fs.Float64("tokens-wrong", 1, "`factor` by which the gateway misjudges tokens before engines have told them")
	gateways := fs.Int("gateways", 1, "how many `gateways` share the load, each with a view of its own")
	loadLag := fs.Duration("load-lag", 20*time.Millisecond, "how late a gateway learns what another has sent; negative is never")
	prefixLag := fs.Duration("prefix-lag", 250*time.Millisecond, "how late a gateway learns what replicas hold by another's requests; negative is never")
	asJSON := fs.Bool("json", false, "print JSON, a line for each policy and workload")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if *load <= 0 {
		return fmt.Errorf("-load must be above 0, not %v", *load)
	}
	works, err := choose(*workload, *trace, *load, *span)
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	if !*asJSON {
		_, _ = fmt.Fprintln(table, "workload\tpolicy\trequests\tmean s\tP50\tP95\tP99\tcached\tover SLO\tTPOT P95\tbusiest\ttokens/s\t")
	}
	for _, w := range works {
		if *replicas > 0 {
			w.Replicas = *replicas
		}
		if *engine != "" {
			w.Engine = *engine
		}
		config, ok := lab.Engines()[w.Engine]
		if !ok {
			return fmt.Errorf("no engine %q: there are 8b, 70b and smol4", w.Engine)
		}
		for policy := range strings.SplitSeq(*policies, ",") {
			requests := w.Make(rand.New(rand.NewPCG(*seed, 1)))
			r, err := lab.Simulate(lab.Scenario{Replicas: w.Replicas, Engine: config, Policy: policy, Seed: *seed, Wrong: *wrong, Gateways: *gateways, LoadLag: lag(*loadLag), PrefixLag: lag(*prefixLag)}, requests)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", w.Name, policy, err)
			}
			s := r.Summarize(*slo)
			if *asJSON {
				if err := json.NewEncoder(out).Encode(row{w.Name, s}); err != nil {
					return err
				}
				continue
			}
			_, _ = fmt.Fprintf(table, "%s\t%s\t%d\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f\t%.1f %%\t%.0f ms\t%.2f x\t%.0f\t\n",
				w.Name, policy, s.Requests, s.Mean, s.P50, s.P95, s.P99, s.Hit, 100*s.Slow, 1000*s.TPOT95, s.Imbalance, s.Throughput)
		}
	}
	return table.Flush()
}

// lag returns what a flag of a lag means.
func lag(d time.Duration) time.Duration {
	if d < 0 {
		return lab.Never
	}
	return d
}

// choose returns the workloads that the flags name.
func choose(names, trace string, load float64, span time.Duration) ([]lab.Workload, error) {
	if trace != "" {
		text, err := os.ReadFile(trace)
		if err != nil {
			return nil, err
		}
		var failed error
		w := lab.Workload{Name: "trace", Replicas: 8, Engine: "70b", Make: func(rnd *rand.Rand) []*lab.Request {
			requests, err := lab.ReadTrace(strings.NewReader(string(text)), 1/load, rnd)
			failed = errors.Join(failed, err)
			return requests
		}}
		w.Make(rand.New(rand.NewPCG(1, 1))) // so that what is wrong with it is said at once
		return []lab.Workload{w}, failed
	}
	var works []lab.Workload
	for _, w := range lab.Workloads(load, span) {
		if names == "all" || strings.Contains(","+names+",", ","+w.Name+",") {
			works = append(works, w)
		}
	}
	if len(works) == 0 {
		return nil, fmt.Errorf("no workload %q: there are %s", names, lab.WorkloadNames())
	}
	return works, nil
}
