// Command bench measures: simulate runs routing policies in virtual time, replay
// sends the same arrivals to a real server, lab makes docs/lab.md.
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

const usage = `usage: bench simulate|replay|lab [flags]

  simulate   routing policies on the same arrivals, over simulated engines, in virtual time
  replay     the same arrivals over HTTP, to any server of OpenAI's API
  lab        every simulation that docs/lab.md shows, and that page

bench simulate -h, bench replay -h and bench lab -h list their flags.
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
		return simulate(args[1:], out, os.Stderr)
	case len(args) > 0 && args[0] == "replay":
		return replay(args[1:], out)
	case len(args) > 0 && args[0] == "lab":
		return makeLab(args[1:], os.Stderr)
	}
	fmt.Fprint(os.Stderr, usage)
	if len(args) > 0 && strings.TrimLeft(args[0], "-") == "h" {
		return flag.ErrHelp
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
