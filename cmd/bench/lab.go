package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/warmpath/warmpath/internal/lab"
)

const labUsage = `usage: bench lab -out FOLDER [-trace FILE] [flags]

Simulates all that docs/lab.md shows: policies against load, several gateways, lags between them, wrong knowledge. Writes the page
as FOLDER/lab.md and its pictures into FOLDER/lab. The same flags give the same bytes. make lab runs it for docs.

Flags:
`

// labFlags are the settings of bench lab.
type labFlags struct {
	out, workload, trace string
	policies             []string
	span                 time.Duration
	seeds, traceSeeds    int
	progressTo           *os.File
}

func (f *labFlags) parse(args []string) error {
	fs := flag.NewFlagSet("bench lab", flag.ContinueOnError)
	fs.Usage = func() { _, _ = io.WriteString(fs.Output(), labUsage); fs.PrintDefaults() }
	fs.StringVar(&f.out, "out", "", "`folder` for lab.md and the folder lab; required")
	fs.StringVar(&f.workload, "workload", "all", "`names` of generated workloads, separated by commas, or all")
	fs.StringVar(&f.trace, "trace", "", "`file` of mooncake_conversation; without it, what rests on the trace is left out")
	policies := policyNames(lab.Policies()...)
	fs.Var(policies, "policy", "`names` of policies to compare, separated by commas")
	fs.DurationVar(&f.span, "span", time.Minute, "virtual `time` of arrivals of generated workloads")
	fs.IntVar(&f.seeds, "seeds", 3, "how many `seeds` generated workloads have, from 1 on")
	fs.IntVar(&f.traceSeeds, "trace-seeds", 1, "how many `seeds` the trace has: they only spread its requests over its ticks of 3 s")
	if err := fs.Parse(args); err != nil {
		return err
	}
	f.policies = policies.values
	switch {
	case f.out == "":
		return fmt.Errorf("-out is missing: give the folder for lab.md, such as docs")
	case f.seeds < 1 || f.traceSeeds < 1:
		return fmt.Errorf("-seeds is %d, -trace-seeds %d: both must be at least 1", f.seeds, f.traceSeeds)
	case f.span <= 0:
		return fmt.Errorf("-span must be above 0, not %v", f.span)
	}
	return nil
}

// traceLoads are the loads of the trace: where round robin's P95 is about 12 s and
// 4/3 of that, its own rate and 4/3 of that.
func traceLoads() []float64 { return []float64{0.47, 0.627, 1, 1.333} }

// traceWorkload is the name of what -trace gives.
const traceWorkload = "trace"

// labResults are the cells of each section of the page.
type labResults struct {
	loads, trace          []cell // every policy, one gateway
	gateways              []cell // ours from here on
	loadLag, prefixLag    []cell
	tokensWrong, capacity []cell
}

func makeLab(args []string, progressTo *os.File) error {
	f := &labFlags{progressTo: progressTo}
	if err := f.parse(args); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(f.out, "lab"), 0o755); err != nil {
		return err
	}
	results, err := f.simulate()
	if err != nil {
		return err
	}
	if err := f.draw(results); err != nil {
		return err
	}
	var page strings.Builder
	f.write(&page, results)
	return os.WriteFile(filepath.Join(f.out, "lab.md"), []byte(page.String()), 0o644)
}

// sweep returns the sweep that has one value of everything.
func (f *labFlags) sweep() sweep {
	return sweep{
		policies: []string{lab.Ours}, loads: []float64{1}, gateways: []int{1},
		loadLags: lags(20 * time.Millisecond).values, prefixLags: lags(250 * time.Millisecond).values,
		tokensWrong: []float64{1}, capacityWrong: []float64{1}, seed: 1, slo: time.Second,
	}
}

func (f *labFlags) simulate() (*labResults, error) {
	const ms = time.Millisecond
	r := &labResults{}
	for _, study := range []struct {
		name  string
		to    *[]cell
		on    []string // workloads; nil is all and the trace
		apply func(s *sweep)
	}{
		{"load", &r.loads, nil, func(s *sweep) { s.policies, s.loads = f.policies, []float64{0.5, 0.75, 1, 1.25} }},
		{"load", &r.trace, []string{traceWorkload}, func(s *sweep) { s.policies, s.loads = f.policies, traceLoads() }},
		{"gateways", &r.gateways, nil, func(s *sweep) { s.gateways = []int{1, 2, 4, 8} }},
		{"load lag", &r.loadLag, []string{"chat", "prompts", traceWorkload}, func(s *sweep) {
			s.gateways, s.loadLags = []int{8}, lags(5*ms, 20*ms, 100*ms, 500*ms, 2*time.Second, lab.Never).values
		}},
		{"prefix lag", &r.prefixLag, []string{"chat", "prompts", traceWorkload}, func(s *sweep) {
			s.gateways, s.prefixLags = []int{8}, lags(5*ms, 20*ms, 100*ms, 250*ms, 500*ms, 2*time.Second, 10*time.Second, lab.Never).values
		}},
		{"tokens wrong", &r.tokensWrong, nil, func(s *sweep) { s.tokensWrong = []float64{0.5, 1, 2} }},
		{"capacity wrong", &r.capacity, nil, func(s *sweep) { s.capacityWrong = []float64{0.25, 1, 4} }},
	} {
		s := f.sweep()
		study.apply(&s)
		withTrace := f.trace != "" && study.to != &r.loads && (study.on == nil || slices.Contains(study.on, traceWorkload))
		cells, err := f.run(study.name, s, study.on, withTrace)
		if err != nil {
			return nil, err
		}
		*study.to = cells
	}
	return r, nil
}

// run simulates a sweep on those generated workloads that are named, nil being all,
// and on the trace.
func (f *labFlags) run(name string, s sweep, on []string, withTrace bool) ([]cell, error) {
	s.seeds = f.seeds
	s.workloads = func(load float64) ([]lab.Workload, error) {
		works, err := choose(f.workload, "", load, f.span)
		return slices.DeleteFunc(works, func(w lab.Workload) bool { return on != nil && !slices.Contains(on, w.Name) }), err
	}
	cells, err := s.run(name, f.progressTo)
	if err != nil || !withTrace {
		return cells, err
	}
	s.seeds = f.traceSeeds
	s.workloads = func(load float64) ([]lab.Workload, error) { return choose("", f.trace, load, f.span) }
	more, err := s.run(name+", trace", f.progressTo)
	return append(cells, more...), err
}

func (f *labFlags) draw(r *labResults) error {
	for _, p := range []struct {
		file, title, by string
		cells           []cell
	}{
		{"load.svg", "Policies against load, one gateway", "load", r.loads},
		{"trace.svg", "Policies on mooncake_conversation, one gateway", "load", r.trace},
		{"gateways.svg", "One to eight gateways, load 20 ms and prefixes 250 ms late", "gateways", r.gateways},
		{"load-lag.svg", "Eight gateways that learn of each other's load late", "load lag", r.loadLag},
		{"prefix-lag.svg", "Eight gateways that learn of each other's prefixes late", "prefix lag", r.prefixLag},
	} {
		if len(p.cells) == 0 {
			continue
		}
		if err := writePicture(filepath.Join(f.out, "lab", p.file), p.title, axisNamed(p.by), p.cells); err != nil {
			return err
		}
	}
	return nil
}
