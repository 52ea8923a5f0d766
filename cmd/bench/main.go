// Command bench measures: simulate runs routing policies in virtual time, replay
// sends the same arrivals to a real server.
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

const usage = `usage: bench simulate|replay [flags]

  simulate   routing policies on the same arrivals, over simulated engines, in virtual time
  replay     the same arrivals over HTTP, to any server of OpenAI's API

bench simulate -h and bench replay -h list their flags.
`

func main() {
	err := run(os.Args[1:], os.Stdout)
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	switch {
	case len(args) > 0 && args[0] == "simulate":
		return simulate(args[1:], out)
	case len(args) > 0 && args[0] == "replay":
		return replay(args[1:], out)
	}
	fmt.Fprint(os.Stderr, usage)
	if len(args) > 0 && strings.TrimLeft(args[0], "-") == "h" {
		return flag.ErrHelp
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
