// Package report shows results of internal/bench to people: as text on a terminal,
// as Markdown, and as one HTML file with charts that needs no network. It computes
// nothing but what a chart needs.
package report

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/warmpath/warmpath/internal/bench"
)

// none stands where a figure was not measured.
const none = "–"

// line is one figure of all results.
type line struct {
	name  string
	cells []string
}

// lines are the figures of results, a column for each.
func lines(results []*bench.Result) []line {
	var all []line
	add := func(name string, cell func(*bench.Result) string) {
		l := line{name: name}
		some := false
		for _, r := range results {
			c := cell(r)
			some = some || c != none
			l.cells = append(l.cells, c)
		}
		if some {
			all = append(all, l)
		}
	}
	add("attempted", func(r *bench.Result) string { return fmt.Sprint(r.Attempted) })
	add("ok", func(r *bench.Result) string { return fmt.Sprint(r.OK) })
	add("failed", func(r *bench.Result) string { return fmt.Sprint(r.Failed) + causes(r.Failures) })
	add("cancelled", func(r *bench.Result) string { return counted(r.Cancelled) })
	add("later turns not sent", func(r *bench.Result) string { return counted(r.Dropped) })
	add("warm-up, not measured", func(r *bench.Result) string { return counted(r.WarmUp) })
	add("seconds", func(r *bench.Result) string { return fmt.Sprintf("%.1f", r.Seconds) })
	for _, d := range distributions {
		add(d.name, func(r *bench.Result) string { return spread(d.of(r)) })
	}
	add("requests/s", func(r *bench.Result) string { return fmt.Sprintf("%.2f", r.RequestsPerSecond) })
	add("prompt tokens/s", func(r *bench.Result) string { return rate(r.PromptPerSecond) })
	add("output tokens/s", func(r *bench.Result) string { return rate(r.OutputPerSecond) })
	add("goodput", goodput)
	add("prompt tokens", func(r *bench.Result) string { return counted(r.PromptTokens) })
	add("output tokens", func(r *bench.Result) string { return counted(r.OutputTokens) })
	add("cached", func(r *bench.Result) string { return Percent(r.CachedShare()) })
	add("KV peak, preempted, most waiting", func(r *bench.Result) string {
		if r.Engine == nil {
			return none
		}
		return fmt.Sprintf("%.0f %%, %.0f, %.0f", 100*r.Engine.KVPeak, r.Engine.Preemptions, r.Engine.WaitingPeak)
	})
	add("accuracy", func(r *bench.Result) string {
		if r.Eval == nil {
			return none
		}
		e := r.Eval
		return fmt.Sprintf("%.1f %% (%d right, %d wrong, %d without answer, %d truncated, %d failed)", 100*e.Accuracy, e.Right, e.Wrong, e.NoAnswer, e.Truncated, e.Failed)
	})
	add("client CPU/request", func(r *bench.Result) string {
		if r.Client.CPUPerRequest == 0 {
			return none
		}
		return fmt.Sprintf("%.0f µs (%.0f %% of its CPU)", r.Client.CPUPerRequest, 100*r.Client.CPUShare)
	})
	add("client too slow", func(r *bench.Result) string {
		if r.Client.Bottleneck == "" {
			return none
		}
		return "yes: " + r.Client.Bottleneck
	})
	return all
}

// distributions are the times that are shown.
var distributions = []struct {
	name string
	of   func(*bench.Result) bench.Distribution
}{
	{"TTFT ms", func(r *bench.Result) bench.Distribution { return r.TTFT }},
	{"first answer ms", func(r *bench.Result) bench.Distribution {
		if r.Answer == r.TTFT { // no reasoning
			return bench.Distribution{}
		}
		return r.Answer
	}},
	{"TPOT ms", func(r *bench.Result) bench.Distribution { return r.TPOT }},
	{"gap between chunks ms", func(r *bench.Result) bench.Distribution { return r.Gap }},
	{"end to end ms", func(r *bench.Result) bench.Distribution { return r.E2E }},
	{"served ms (from sent)", func(r *bench.Result) bench.Distribution { return r.Served }},
	{"sent late ms", func(r *bench.Result) bench.Distribution { return r.Late }},
}

// spread is a distribution in short.
func spread(d bench.Distribution) string {
	if d.Count == 0 {
		return none
	}
	return fmt.Sprintf("mean %.1f  P50 %.1f  P95 %.1f  P99 %.1f  max %.1f  (n=%d)", d.Mean, d.P50, d.P95, d.P99, d.Max, d.Count)
}

// Percent is a share, or a dash if it is not known.
func Percent(share float64, known bool) string {
	if !known {
		return none
	}
	return fmt.Sprintf("%.1f %%", 100*share)
}

func counted(n int) string {
	if n == 0 {
		return none
	}
	return fmt.Sprint(n)
}

func rate(v float64) string {
	if v == 0 {
		return none
	}
	return fmt.Sprintf("%.0f", v)
}

func goodput(r *bench.Result) string {
	if r.SLO == nil || r.OK == 0 {
		return none
	}
	return fmt.Sprintf("%.2f requests/s, %.1f %% of attempts (%s)", r.GoodPerSecond, 100*float64(r.Good)/float64(r.Attempted), conditions(*r.SLO))
}

func conditions(s bench.SLO) string {
	var parts []string
	if s.TTFT > 0 {
		parts = append(parts, "TTFT ≤ "+s.TTFT.String())
	}
	if s.TPOT > 0 {
		parts = append(parts, "TPOT ≤ "+s.TPOT.String())
	}
	if s.E2E > 0 {
		parts = append(parts, "end to end ≤ "+s.E2E.String())
	}
	return strings.Join(parts, ", ")
}

func causes(failures map[string]int) string {
	if len(failures) == 0 {
		return ""
	}
	var parts []string
	for _, cause := range slices.Sorted(maps.Keys(failures)) {
		parts = append(parts, fmt.Sprintf("%d %s", failures[cause], cause))
	}
	return " (" + strings.Join(parts, ", ") + ")"
}

// replicas are the parts of a result's replicas.
func replicas(r *bench.Result) []line {
	var all []line
	for _, name := range slices.Sorted(maps.Keys(r.Replicas)) {
		s := r.Replicas[name]
		cached := none
		if r.CachedKnown && s.Prompt > 0 {
			cached = Percent(float64(s.Cached)/float64(s.Prompt), true)
		}
		all = append(all, line{name, []string{fmt.Sprint(s.OK), fmt.Sprintf("%.1f", s.TTFT.P50), fmt.Sprintf("%.1f", s.TTFT.P95), fmt.Sprintf("%.2f", s.TPOT.P50), cached, fmt.Sprint(s.Output)}})
	}
	return all
}

var replicaHead = []string{"replica", "ok", "TTFT P50 ms", "P95", "TPOT P50 ms", "cached", "output tokens"}

// Text writes results as a table, a column for each.
func Text(out io.Writer, results []*bench.Result) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	head := line{name: ""}
	for _, r := range results {
		head.cells = append(head.cells, r.Label)
	}
	for _, l := range append([]line{head}, lines(results)...) {
		_, _ = fmt.Fprintf(table, "%s\t%s\n", l.name, strings.Join(l.cells, "\t"))
	}
	for _, r := range results {
		parts := replicas(r)
		if len(parts) == 0 {
			continue
		}
		_, _ = fmt.Fprintf(table, "\n%s by %s\n", r.Label, strings.Join(replicaHead, "\t"))
		for _, l := range parts {
			_, _ = fmt.Fprintf(table, "%s\t%s\n", l.name, strings.Join(l.cells, "\t"))
		}
	}
	return table.Flush()
}
