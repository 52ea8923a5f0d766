package report

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/warmpath/warmpath/internal/bench"
)

var scoreHead = []string{"", "goal", "baseline", "candidate", "change", "95 % interval", "verdict"}

// scoreLine is a line of a scorecard as cells.
func scoreLine(s bench.Score) []string {
	if s.NA != "" {
		verdict := ""
		if s.Goal != "" {
			verdict = "NOT SHOWN"
		}
		return []string{s.Name, s.Goal, none, none, none, s.NA, verdict}
	}
	figure := func(v float64) string {
		if s.Share {
			return fmt.Sprintf("%.2f %%", 100*v)
		}
		return fmt.Sprintf("%.5g %s", v, s.Unit)
	}
	change := func(v float64) string {
		if s.Share {
			return fmt.Sprintf("%+.2f points", 100*v)
		}
		return fmt.Sprintf("%+.1f %%", 100*v)
	}
	verdict := ""
	switch {
	case s.Goal == "":
	case s.Pass && s.Sure:
		verdict = "pass"
	case s.Pass:
		verdict = "pass, but the interval reaches over the goal"
	default:
		verdict = "FAIL"
	}
	return []string{s.Name, s.Goal, figure(s.A), figure(s.B), change(s.Change), change(s.Low) + " … " + change(s.High), verdict}
}

// Scorecard writes a comparison as text.
func Scorecard(out io.Writer, a, b string, scores []bench.Score) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintf(table, "baseline %s, candidate %s\n\n", a, b)
	_, _ = fmt.Fprintln(table, strings.Join(scoreHead, "\t"))
	for _, s := range scores {
		_, _ = fmt.Fprintln(table, strings.Join(scoreLine(s), "\t"))
	}
	return table.Flush()
}

// limitsHead and limitsLines are what a sweep found.
var limitsHead = []string{"prompt tokens", "peak tokens/s", "throughput stops growing at", "TTFT P95 breaks at", "limit", "why"}

func limitsLines(l *bench.LimitsReport) (all [][]string) {
	at := func(n int) string {
		if n == 0 {
			return none
		}
		return fmt.Sprintf("concurrency %d", n)
	}
	for _, r := range l.Rows {
		all = append(all, []string{fmt.Sprint(r.Prompt), fmt.Sprintf("%.0f", r.Peak), at(r.Saturated), at(r.Broken), string(r.Limit), r.Why})
	}
	return all
}

var cellHead = []string{"prompt tokens", "concurrency", "tokens/s", "output tokens/s", "TTFT P50 ms", "P95", "TPOT P50 ms", "ok", "failed", "KV peak", "waiting", "preempted"}

func cellLines(l *bench.LimitsReport) (all [][]string) {
	for _, c := range l.Cells {
		kv, waiting, preempted := none, none, none
		if c.Engine != nil {
			kv, waiting, preempted = fmt.Sprintf("%.0f %%", 100*c.Engine.KVPeak), fmt.Sprintf("%.0f", c.Engine.WaitingPeak), fmt.Sprintf("%.0f", c.Engine.Preemptions)
		}
		all = append(all, []string{
			fmt.Sprint(c.Prompt), fmt.Sprint(c.Concurrency), fmt.Sprintf("%.0f", c.Throughput), fmt.Sprintf("%.0f", c.OutputRate), fmt.Sprintf("%.1f", c.TTFT.P50), fmt.Sprintf("%.1f", c.TTFT.P95),
			fmt.Sprintf("%.2f", c.TPOT.P50), fmt.Sprint(c.OK), fmt.Sprint(c.Failed), kv, waiting, preempted,
		})
	}
	return all
}

// Limits writes what a sweep found as text.
func Limits(out io.Writer, l *bench.LimitsReport) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, line := range append([][]string{cellHead}, cellLines(l)...) {
		_, _ = fmt.Fprintln(table, strings.Join(line, "\t"))
	}
	_, _ = fmt.Fprintln(table)
	for _, line := range append([][]string{limitsHead}, limitsLines(l)...) {
		_, _ = fmt.Fprintln(table, strings.Join(line, "\t"))
	}
	return table.Flush()
}
