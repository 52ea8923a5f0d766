package report

import (
	"fmt"
	"html/template"
	"io"
	"strings"

	"github.com/warmpath/warmpath/internal/bench"
)

// table is a table of a report.
type table struct {
	Title string
	Head  []string
	Rows  [][]string
	Note  string
}

// tables are the tables of results. With a comparison the scorecard comes first.
func tables(results []*bench.Result, scores []bench.Score) []table {
	var all []table
	if len(scores) > 0 {
		t := table{Title: fmt.Sprintf("Scorecard: %s against %s", results[1].Label, results[0].Label), Head: scoreHead, Note: "Intervals are bootstrapped in blocks of neighbouring requests."}
		for _, s := range scores {
			t.Rows = append(t.Rows, scoreLine(s))
		}
		all = append(all, t)
	}
	var measured []*bench.Result
	for _, r := range results {
		if r.Limits == nil {
			measured = append(measured, r)
		}
	}
	if len(measured) > 0 {
		t := table{Title: "Figures", Head: []string{""}, Note: "Times run from when a request was due; served times from when it was sent. Failures are in no figure of latency."}
		for _, r := range measured {
			t.Head = append(t.Head, r.Label)
		}
		for _, l := range lines(measured) {
			t.Rows = append(t.Rows, append([]string{l.name}, l.cells...))
		}
		all = append(all, t)
	}
	for _, r := range results {
		if parts := replicas(r); len(parts) > 0 {
			t := table{Title: "Replicas of " + r.Label, Head: replicaHead}
			for _, l := range parts {
				t.Rows = append(t.Rows, append([]string{l.name}, l.cells...))
			}
			all = append(all, t)
		}
		if r.Limits != nil {
			all = append(all, table{Title: "Limits of " + r.Label, Head: limitsHead, Rows: limitsLines(r.Limits)}, table{Title: "Sweep of " + r.Label, Head: cellHead, Rows: cellLines(r.Limits)})
		}
		if r.Eval != nil {
			all = append(all, mistakes(r))
		}
	}
	return all
}

// mostMistakes is how many items are shown: enough to see whether the prompt or the
// model is at fault.
const mostMistakes = 20

func mistakes(r *bench.Result) table {
	t := table{Title: "Items of " + r.Label + " that were not right", Head: []string{"item", "outcome", "reference", "found", "end of the answer"}}
	left := 0
	for _, g := range r.Eval.Graded {
		if g.Outcome == "right" {
			continue
		}
		if len(t.Rows) == mostMistakes {
			left++
			continue
		}
		text := []rune(strings.Join(strings.Fields(g.Text), " "))
		t.Rows = append(t.Rows, []string{fmt.Sprint(g.Index), g.Outcome + " " + g.Failure, g.Gold, g.Found, string(text[max(0, len(text)-120):])})
	}
	if left > 0 {
		t.Note = fmt.Sprintf("%d more are in the file of results.", left)
	}
	return t
}

// Markdown writes results as Markdown.
func Markdown(out io.Writer, results []*bench.Result, scores []bench.Score) error {
	var b strings.Builder
	b.WriteString("# Benchmark\n")
	cell := strings.NewReplacer("|", `\|`, "\n", " ")
	for _, t := range tables(results, scores) {
		fmt.Fprintf(&b, "\n## %s\n\n", t.Title)
		for i, row := range append([][]string{t.Head}, t.Rows...) {
			for _, c := range row {
				b.WriteString("| " + cell.Replace(c) + " ")
			}
			b.WriteString("|\n")
			if i == 0 {
				b.WriteString(strings.Repeat("|---", len(row)) + "|\n")
			}
		}
		if t.Note != "" {
			fmt.Fprintf(&b, "\n%s\n", t.Note)
		}
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// HTML writes results as one file that needs nothing else.
func HTML(out io.Writer, results []*bench.Result, scores []bench.Score) error {
	drawn, err := charts(results)
	if err != nil {
		return err
	}
	return page.Execute(out, map[string]any{"Results": results, "Tables": tables(results, scores), "Charts": drawn})
}

// percentiles of a curve, and where they stand on its axis: each nine is as far as
// the last.
var percentiles = []struct {
	percent float64
	name    string
}{{1, ""}, {10, ""}, {25, ""}, {50, "50 %"}, {75, ""}, {90, "90 %"}, {95, ""}, {98, ""}, {99, "99 %"}, {99.5, ""}, {99.9, "99.9 %"}, {100, "max"}}

// curve is a distribution by percentiles.
func curve(name string, d bench.Distribution) (series, error) {
	s := series{name: name}
	if d.Count == 0 {
		return s, nil
	}
	var percents []float64
	for _, p := range percentiles {
		percents = append(percents, p.percent)
	}
	values, err := d.Quantiles(percents...)
	for i, v := range values {
		s.points = append(s.points, [2]float64{float64(i), v})
	}
	return s, err
}

// mostDots bounds a cloud of dots.
const mostDots = 2000

func charts(results []*bench.Result) ([]template.HTML, error) {
	var ticks []tick
	for i, p := range percentiles {
		if p.name != "" {
			ticks = append(ticks, tick{float64(i), p.name})
		}
	}
	var all []chart
	for _, d := range distributions[:5] {
		c := chart{title: d.name + " by percentile", x: "requests that were at least as fast", y: "ms", ticks: ticks}
		for _, r := range results {
			s, err := curve(r.Label, d.of(r))
			if err != nil {
				return nil, err
			}
			if len(s.points) > 0 {
				c.series = append(c.series, s)
			}
		}
		all = append(all, c)
	}
	over := chart{title: "TTFT over the run", x: "s after the start", y: "ms"}
	kv := chart{title: "KV cache in use over the run", x: "s after the start", y: "%"}
	waiting := chart{title: "Requests waiting in the engines over the run", x: "s after the start", y: "requests"}
	for _, r := range results {
		s := series{name: r.Label, dots: true}
		every := len(r.Samples)/mostDots + 1
		for i, x := range r.Samples {
			if i%every == 0 && x.Failure == "" {
				s.points = append(s.points, [2]float64{x.At, x.TTFT})
			}
		}
		over.series = append(over.series, s)
		if r.Engine == nil {
			continue
		}
		full, wait := series{name: r.Label}, series{name: r.Label}
		for _, x := range r.Engine.Samples {
			full.points = append(full.points, [2]float64{x.At, 100 * x.KV})
			wait.points = append(wait.points, [2]float64{x.At, x.Waiting})
		}
		kv.series, waiting.series = append(kv.series, full), append(waiting.series, wait)
	}
	all = append(all, over, kv, waiting)
	for _, r := range results {
		if r.Limits != nil {
			all = append(all, sweeps(r)...)
		}
	}
	var out []template.HTML
	for _, c := range all {
		if s := c.svg(); s != "" {
			out = append(out, s)
		}
	}
	return out, nil
}

// sweeps are the charts of a search for limits: a line for each prompt length.
func sweeps(r *bench.Result) []chart {
	rate := chart{title: "Throughput of " + r.Label, x: "concurrency", y: "tokens/s"}
	ttft := chart{title: "TTFT P95 of " + r.Label, x: "concurrency", y: "ms"}
	var last *bench.Cell
	for i := range r.Limits.Cells {
		c := &r.Limits.Cells[i]
		if last == nil || last.Prompt != c.Prompt {
			name := fmt.Sprintf("%d prompt tokens", c.Prompt)
			rate.series, ttft.series = append(rate.series, series{name: name}), append(ttft.series, series{name: name})
		}
		last = c
		s, t := &rate.series[len(rate.series)-1], &ttft.series[len(ttft.series)-1]
		s.points = append(s.points, [2]float64{float64(c.Concurrency), c.Throughput})
		t.points = append(t.points, [2]float64{float64(c.Concurrency), c.TTFT.P95})
	}
	return []chart{rate, ttft}
}

var page = template.Must(template.New("page").Funcs(template.FuncMap{"verdict": func(cell string) string {
	switch {
	case cell == "FAIL":
		return "fail"
	case strings.HasPrefix(cell, "pass"):
		return "pass"
	}
	return ""
}}).Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>Benchmark</title>
<style>
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:84rem;padding:0 1rem;color:#1b1f24;background:#fff}
h1{font-size:1.6rem;margin:0 0 .5rem}h2{font-size:1.15rem;margin:2rem 0 .5rem}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:.25rem .8rem .25rem 0;border-bottom:1px solid #e3e6ea;vertical-align:top}th{font-weight:600}
td:first-child{color:#57606a;white-space:nowrap}.note,.meta{color:#57606a;font-size:.9rem}
.pass{color:#116329;font-weight:600}.fail{color:#b42318;font-weight:600}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(26rem,1fr));gap:1.5rem}
figure{margin:0}figcaption{font-weight:600;margin-bottom:.25rem}svg{width:100%;height:auto}
.grid{stroke:#e3e6ea}.tick,.axis{font-size:11px;fill:#57606a}
.legend{display:flex;flex-wrap:wrap;gap:.25rem 1rem;font-size:.85rem}.legend i{display:inline-block;width:.8rem;height:.8rem;margin-right:.35rem;border-radius:2px}
</style></head><body>
<h1>Benchmark</h1>
<div class="meta">{{range .Results}}<div>{{.Label}}: {{.Kind}} of {{.Endpoint}}, model {{.Model}}, {{.Started.Format "2006-01-02 15:04:05 MST"}}{{range $name, $value := .Settings}} -{{$name}} {{$value}}{{end}}</div>{{end}}</div>
{{range .Tables}}<h2>{{.Title}}</h2><div class="scroll"><table><thead><tr>{{range .Head}}<th>{{.}}</th>{{end}}</tr></thead><tbody>
{{range .Rows}}<tr>{{range .}}<td class="{{verdict .}}">{{.}}</td>{{end}}</tr>
{{end}}</tbody></table></div>{{if .Note}}<p class="note">{{.Note}}</p>{{end}}
{{end}}{{if .Charts}}<h2>Charts</h2><div class="charts">{{range .Charts}}{{.}}
{{end}}</div>{{end}}
</body></html>
`))
