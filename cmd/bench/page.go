package main

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/warmpath/warmpath/internal/lab"
)

// Claims of the page; what misses one is bold.
const (
	winning    = 1.03 // ours over the best reference, in P95 and mean
	steady     = 1.15 // several gateways over one, on the trace and on chat; and wrong knowledge over right
	steadyElse = 1.45 // several gateways over one, on other workloads
	hitFall    = 0.02 // of the hit rate, several gateways against one
)

const pageHead = `# The policy lab

<!-- Made by make lab. Do not edit: the next run writes it again. -->

The gateway's own router (` + "`%s`" + `) and the published rules of others on the same arrivals, over mockvllm's scheduler and KV cache in virtual
time. Engines are presets, not GPUs: read ratios, not seconds. What the workloads and the rules are is in ` + "`internal/lab`" + `, where the presets'
figures come from in ` + "`internal/mockvllm/preset.go`" + `. [benchmarks.md](benchmarks.md#policies-in-virtual-time) says what it means.

` + "```" + `
make lab                                           # without what rests on the trace
make lab TRACE=mooncake_conversation.jsonl.gz
` + "```" + `

Generated workloads: %g s of arrivals, means over %s; load 1 is the workload's own rate. The trace is mooncake_conversation of
[kvcache-ai/Mooncake](https://github.com/kvcache-ai/Mooncake) (Apache-2.0; not in this repository), whole, its ticks of 3 s spread with
%s; load 0.47 is where round robin's P95 is about 12 s. P95 and mean are of time to first token, in seconds; the hit rate is the share of
prompt tokens found in caches.
`

func (f *labFlags) write(w io.Writer, r *labResults) {
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format+"\n", args...) }
	picture := func(file, alt string) { say("![%s](lab/%s)\n", alt, file) }
	say(pageHead, lab.Ours, f.span.Seconds(), seedsUpTo(f.seeds), seedsUpTo(f.traceSeeds))
	compared := slices.Concat(r.loads, r.trace)

	say("## Scorecard\n")
	say("Ours over the best reference, bounds left out. **Bold** is above %.2f. Below 1 ours is better than every other.\n", winning)
	writeScorecard(w, compared)

	say("\n## Against load\n")
	picture("load.svg", "P95 and hit rate of every policy against load, for each generated workload")
	if len(r.trace) > 0 {
		picture("trace.svg", "P95 and hit rate of every policy against load, on the trace")
	}
	say("P95 with the hit rate, one gateway. **Bold** is the lowest P95. The last columns are bounds, which no gateway could follow: `oracle` knows\n" +
		"every engine's queue and cache, `pooled` has one cache of the whole fleet's size.\n")
	writePolicies(w, compared, p95, func(s *lab.Summary) string { return fmt.Sprintf(" (%.2f)", s.Hit) })
	say("\nMean:\n")
	writePolicies(w, compared, mean, func(*lab.Summary) string { return "" })

	say("\n## Several gateways\n")
	picture("gateways.svg", "P95 and hit rate against the number of gateways")
	say("Ours at load 1; gateways learn of each other's load 20 ms late, of prefixes 250 ms late. P95, its ratio to one gateway, the hit rate. **Bold**: above\n"+
		"%.2f on the trace and on chat, above %.2f elsewhere, or a hit rate more than %.2f below.\n", steady, steadyElse, hitFall)
	writeRatios(w, r.gateways, axisNamed("gateways"), "1", func(workload string) float64 {
		if workload == "chat" || workload == traceWorkload {
			return steady
		}
		return steadyElse
	})

	say("\n## Lags between gateways\n")
	say("Ours on eight gateways at load 1: P95, its ratio to the shortest lag, the hit rate. Prefixes are 250 ms late in the first picture and\n" +
		"table, load is 20 ms late in the second. `never` is gateways that do not tell each other at all.\n")
	for _, lags := range []struct {
		file, alt, by string
		cells         []cell
	}{
		{"load-lag.svg", "P95 and hit rate against the lag of load", "load lag", r.loadLag},
		{"prefix-lag.svg", "P95 and hit rate against the lag of prefixes", "prefix lag", r.prefixLag},
	} {
		if len(lags.cells) > 0 {
			picture(lags.file, lags.alt)
			writeRatios(w, lags.cells, axisNamed(lags.by), "5ms", nil)
			say("")
		}
	}

	say("## Wrong knowledge\n")
	say("Ours at load 1 on one gateway: P95, its ratio to right knowledge, the hit rate. **Bold** is above %.2f. First, tokens estimated times\n"+
		"the truth until an engine has told them:\n", steady)
	always := func(string) float64 { return steady }
	writeRatios(w, r.tokensWrong, axisNamed("tokens wrong"), "1", always)
	say("\nWhat replicas tell of their KV cache's size, times the truth:\n")
	writeRatios(w, r.capacity, axisNamed("capacity wrong"), "1", always)
}

func seedsUpTo(n int) string {
	if n == 1 {
		return "seed 1"
	}
	return fmt.Sprintf("seeds 1 to %d", n)
}

func p95(s *lab.Summary) float64  { return s.P95 }
func mean(s *lab.Summary) float64 { return s.Mean }

// seconds has the digits that matter.
func seconds(s float64) string {
	if s >= 10 {
		return fmt.Sprintf("%.1f", s)
	}
	return fmt.Sprintf("%.3f", s)
}

// ratio is a over b, bold above the limit; a dash where the span was too short for
// any arrival.
func ratio(a, b, limit float64) string {
	if b == 0 {
		return "–"
	}
	return bold(fmt.Sprintf("%.2f", a/b), a > limit*b)
}

func bold(text string, is bool) string {
	if is {
		return "**" + text + "**"
	}
	return text
}

func tableRow(w io.Writer, columns []string) {
	_, _ = fmt.Fprintf(w, "| %s |\n", strings.Join(columns, " | "))
}

func tableHead(w io.Writer, columns []string) {
	tableRow(w, columns)
	_, _ = fmt.Fprintln(w, "|"+strings.Repeat("---|", len(columns)))
}

// byPoint groups cells that differ in the policy alone.
func byPoint(cells []cell) [][]cell {
	var out [][]cell
	for i, c := range cells {
		if i == 0 || cells[i-1].point != c.point {
			out = append(out, nil)
		}
		out[len(out)-1] = append(out[len(out)-1], c)
	}
	return out
}

// writeScorecard has a row for each point: ours against the best of the references
// in each figure.
func writeScorecard(w io.Writer, cells []cell) {
	tableHead(w, []string{"workload", "load", "P95", "best reference", "ratio", "mean", "best reference", "ratio", "hit rate", "highest of references", "P95 over pooled"})
	for _, group := range byPoint(cells) {
		ours := slices.IndexFunc(group, func(c cell) bool { return c.mean.Policy == lab.Ours })
		references := slices.DeleteFunc(slices.Clone(group), func(c cell) bool { return c.mean.Policy == lab.Ours || lab.IsBound(c.mean.Policy) })
		if ours < 0 || len(references) == 0 {
			continue
		}
		least := func(figure func(*lab.Summary) float64) *lab.Summary {
			c := slices.MinFunc(references, func(a, b cell) int { return cmp.Compare(figure(&a.mean), figure(&b.mean)) })
			return &c.mean
		}
		own := &group[ours].mean
		byP95, byMean, byHit := least(p95), least(mean), least(func(s *lab.Summary) float64 { return -s.Hit })
		pooled := "–"
		if i := slices.IndexFunc(group, func(c cell) bool { return c.mean.Policy == lab.Pooled }); i >= 0 {
			pooled = ratio(own.P95, group[i].mean.P95, math.Inf(1))
		}
		tableRow(w, []string{
			group[0].Workload, axisNamed("load").text(&group[0].point),
			seconds(own.P95), seconds(byP95.P95) + " " + byP95.Policy, ratio(own.P95, byP95.P95, winning),
			seconds(own.Mean), seconds(byMean.Mean) + " " + byMean.Policy, ratio(own.Mean, byMean.Mean, winning),
			fmt.Sprintf("%.3f", own.Hit), fmt.Sprintf("%.3f %s", byHit.Hit, byHit.Policy), pooled,
		})
	}
}

// writePolicies has a row for each point and a column for each policy, bounds last.
// The lowest figure that is not a bound's is bold.
func writePolicies(w io.Writer, cells []cell, figure func(*lab.Summary) float64, more func(*lab.Summary) string) {
	groups := byPoint(cells)
	if len(groups) == 0 {
		return
	}
	head := []string{"workload", "load"}
	for _, c := range boundsLast(groups[0]) {
		name := c.mean.Policy
		if lab.IsBound(name) {
			name = "*" + name + "*"
		}
		head = append(head, bold(name, name == lab.Ours))
	}
	tableHead(w, head)
	for _, group := range groups {
		group = boundsLast(group)
		columns := []string{group[0].Workload, axisNamed("load").text(&group[0].point)}
		best := math.Inf(1)
		for i := range group {
			if !lab.IsBound(group[i].mean.Policy) {
				best = min(best, figure(&group[i].mean))
			}
		}
		for i := range group {
			m := &group[i].mean
			text := seconds(figure(m))
			columns = append(columns, bold(text, text == seconds(best) && !lab.IsBound(m.Policy))+more(m))
		}
		tableRow(w, columns)
	}
}

func boundsLast(group []cell) []cell {
	out := slices.Clone(group)
	slices.SortStableFunc(out, func(a, b cell) int {
		switch x, y := lab.IsBound(a.mean.Policy), lab.IsBound(b.mean.Policy); {
		case x == y:
			return 0
		case y:
			return -1
		}
		return 1
	})
	return out
}

// writeRatios has a row for each workload and a column for each value of an axis:
// P95, its ratio to that at the base, and the hit rate. Without a limit nothing is
// bold.
func writeRatios(w io.Writer, cells []cell, by axis, base string, limit func(workload string) float64) {
	rows, ticks := [][]cell{}, []string{}
	for i, c := range cells {
		if i == 0 || cells[i-1].Workload != c.Workload {
			rows = append(rows, nil)
		}
		rows[len(rows)-1] = append(rows[len(rows)-1], c)
		if tick := by.text(&c.point); !slices.Contains(ticks, tick) {
			ticks = append(ticks, tick)
		}
	}
	tableHead(w, append([]string{"workload"}, ticks...))
	for _, row := range rows {
		columns := []string{row[0].Workload}
		at := slices.IndexFunc(row, func(c cell) bool { return by.text(&c.point) == base })
		right, most, fall := row[at].mean, math.Inf(1), math.Inf(1)
		if limit != nil {
			most, fall = limit(row[0].Workload), hitFall
		}
		for _, c := range row {
			m := c.mean
			columns = append(columns, fmt.Sprintf("%s ×%s, %s", seconds(m.P95), ratio(m.P95, right.P95, most), bold(fmt.Sprintf("%.3f", m.Hit), right.Hit-m.Hit > fall)))
		}
		tableRow(w, columns)
	}
}
