package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/warmpath/warmpath/internal/lab"
)

const simulateUsage = `usage: bench simulate [flags]

Routing policies on the same arrivals, over simulated engines, in virtual time. The same seed gives the same figures. Flags of
several values simulate each of them, with each other; a picture shows one such flag.

  bench simulate -workload rag -load 0.5,0.75,1,1.25 -seeds 3 -picture rag.svg
  bench simulate -workload chat -policy prefix -gateways 8 -load-lag 5ms,20ms,100ms,500ms,2s,never

Flags:
`

// simulateFlags are the settings of bench simulate.
type simulateFlags struct {
	sweep
	asJSON  bool
	picture string
}

func (f *simulateFlags) parse(args []string) error {
	fs := flag.NewFlagSet("bench simulate", flag.ContinueOnError)
	fs.Usage = func() { _, _ = io.WriteString(fs.Output(), simulateUsage); fs.PrintDefaults() }
	workload := fs.String("workload", "chat", "`names` of generated workloads, separated by commas, or all: "+lab.WorkloadNames())
	trace := fs.String("trace", "", "`file` of a trace in Mooncake's format (JSON lines, also gzip) instead")
	policies := policyNames(lab.Policies()...)
	fs.Var(policies, "policy", "`names` of policies, separated by commas")
	fs.IntVar(&f.replicas, "replicas", 0, "how many `replicas`; 0 is what the workload is meant for, 8 for a trace")
	fs.StringVar(&f.engine, "engine", "", "`preset` of engines: "+engineNames()+"; empty is what the workload is meant for, 70b for a trace")
	loads := factors(1)
	fs.Var(loads, "load", "`times` the workload's or the trace's rate; several, separated by commas, are a sweep")
	span := fs.Duration("span", 2*time.Minute, "virtual `time` of arrivals of generated workloads")
	fs.Uint64Var(&f.seed, "seed", 1, "of arrivals and of random choices")
	fs.IntVar(&f.seeds, "seeds", 1, "how many `seeds`, from -seed on; the table has the means, JSON a line for each")
	fs.DurationVar(&f.slo, "slo", time.Second, "time to first token to be kept")
	tokens, capacity := factors(1), factors(1)
	fs.Var(tokens, "tokens-wrong", "`factor` by which gateways misjudge tokens before engines have told them; or several")
	fs.Var(capacity, "capacity-wrong", "`factor` by which what replicas tell of their KV cache's size is wrong; or several")
	gateways := counts(1)
	fs.Var(gateways, "gateways", "how many `gateways` share the load, each with a view of its own; or several counts")
	loadLags, prefixLags := lags(20*time.Millisecond), lags(250*time.Millisecond)
	fs.Var(loadLags, "load-lag", "`time` until a gateway learns what another has sent, or never; or several")
	fs.Var(prefixLags, "prefix-lag", "`time` until a gateway learns what replicas hold by another's requests, or never; or several")
	fs.BoolVar(&f.asJSON, "json", false, "print JSON, a line for each simulation")
	fs.StringVar(&f.picture, "picture", "", "also draw P95 and cached share against what is swept, into this SVG `file`")
	if err := fs.Parse(args); err != nil {
		return err
	}
	switch {
	case f.seeds < 1:
		return fmt.Errorf("-seeds must be at least 1, not %d", f.seeds)
	case f.replicas < 0:
		return fmt.Errorf("-replicas must be 0 or more, not %d", f.replicas)
	case *span <= 0:
		return fmt.Errorf("-span must be above 0, not %v", *span)
	case f.slo <= 0:
		return fmt.Errorf("-slo must be above 0, not %v", f.slo)
	}
	f.policies, f.loads, f.gateways = policies.values, loads.values, gateways.values
	f.loadLags, f.prefixLags, f.tokensWrong, f.capacityWrong = loadLags.values, prefixLags.values, tokens.values, capacity.values
	slices.Sort(f.loads)
	f.workloads = func(load float64) ([]lab.Workload, error) { return choose(*workload, *trace, load, *span) }
	return f.checkPicture()
}

// checkPicture holds a picture to one sweep, before anything is simulated for it.
func (f *simulateFlags) checkPicture() error {
	by := f.swept()
	switch {
	case f.picture == "" || len(by) == 1:
		return nil
	case len(by) == 0:
		return errors.New("-picture needs something that varies: give several values, such as -load 0.5,0.75,1,1.25")
	}
	return fmt.Errorf("-picture shows one sweep, and %s and %s both have several values: give one of them a single value", by[0].name, by[1].name)
}

func simulate(args []string, out io.Writer, progressTo *os.File) error {
	f := &simulateFlags{}
	if err := f.parse(args); err != nil {
		return err
	}
	columns := f.swept()
	cells, err := f.run("simulate", progressTo)
	if err != nil {
		return err
	}
	if f.asJSON {
		err = writeJSON(out, cells)
	} else {
		err = writeTable(out, columns, cells)
	}
	if err == nil && f.picture != "" {
		err = writePicture(f.picture, "Policies in virtual time", columns[0], cells)
	}
	return err
}

func writeJSON(out io.Writer, cells []cell) error {
	encoder := json.NewEncoder(out)
	for _, c := range cells {
		for _, r := range c.rows {
			if err := encoder.Encode(r); err != nil {
				return err
			}
		}
	}
	return nil
}

// writeTable writes a row for each cell; what is not swept has no column.
func writeTable(out io.Writer, columns []axis, cells []cell) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprint(table, "workload\t")
	for _, a := range columns {
		_, _ = fmt.Fprintf(table, "%s\t", a.name)
	}
	_, _ = fmt.Fprintln(table, "policy\trequests\tmean s\tP50\tP95\tP99\tcached\tover SLO\tTPOT P95\tbusiest\ttokens/s\t")
	for i := range cells {
		c := &cells[i]
		_, _ = fmt.Fprintf(table, "%s\t", c.Workload)
		for _, a := range columns {
			_, _ = fmt.Fprintf(table, "%s\t", a.text(&c.point))
		}
		s := &c.mean
		_, _ = fmt.Fprintf(table, "%s\t%d\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f\t%.1f %%\t%.0f ms\t%.2f x\t%.0f\t\n",
			s.Policy, s.Requests, s.Mean, s.P50, s.P95, s.P99, s.Hit, 100*s.Slow, 1000*s.TPOT95, s.Imbalance, s.Throughput)
	}
	return table.Flush()
}
