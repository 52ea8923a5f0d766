package report

import (
	"encoding/xml"
	"errors"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/bench"
)

// measured is a run with every kind of figure.
func measured(label string, ttft time.Duration) *bench.Result {
	r := bench.Recorder{SLO: bench.SLO{TTFT: time.Second}}
	now := time.Now()
	for i := range 50 {
		a := bench.Answer{Sent: now, At: time.Duration(i) * time.Second, First: ttft, Said: ttft, Last: 2 * ttft, Took: 2 * ttft, Replica: "r<1>", Gaps: []time.Duration{ttft}}
		a.Usage.Prompt, a.Usage.Completion, a.Usage.Cached, a.Usage.CachedKnown = 100, 5, 50, true
		if i == 7 {
			a.Failure = bench.Cut
		}
		r.Add(a, 0)
	}
	out := r.Result()
	out.Label, out.Endpoint, out.Kind = label, "http://x", "load"
	out.Engine = &bench.EngineReport{KVPeak: .5, Samples: []bench.EngineSample{{At: 1, KV: .5}, {At: 2, KV: .4, Waiting: 3}}}
	out.Eval = &bench.EvalReport{Items: 1, Wrong: 1, Graded: []bench.Graded{{Outcome: "wrong", Gold: "1|2", Text: "</table><script>alert(1)</script>"}}}
	return out
}

func sweep() *bench.Result {
	cells := []bench.Cell{{Prompt: 10, Concurrency: 1, Throughput: 5}, {Prompt: 10, Concurrency: 8, Throughput: 9}, {Prompt: 99, Concurrency: 1, Throughput: 7}}
	return &bench.Result{Label: "sweep", Limits: &bench.LimitsReport{Cells: cells, Rows: []bench.Row{{Prompt: 10, Limit: bench.Compute, Saturated: 1, Why: "because"}}}}
}

var (
	elsewhere = regexp.MustCompile(`(?i)<script|<link[^>]+href="[^d]|src=|url\(|@import|NaN|Inf\b`)
	svg       = regexp.MustCompile(`(?s)<svg.*?</svg>`)
)

func TestThePageNeedsNothingElse(t *testing.T) {
	before, after := measured("<b>efore", 100*time.Millisecond), measured("after", 50*time.Millisecond)
	for name, results := range map[string][]*bench.Result{"two runs": {before, after}, "a sweep": {sweep()}, "nothing measured": {{Label: "empty"}}} {
		var scores []bench.Score
		if len(results) == 2 {
			scores = bench.Compare(before, after, 1)
		}
		var b strings.Builder
		if err := HTML(&b, results, scores); err != nil {
			t.Fatal(err)
		}
		text := b.String()
		if found := elsewhere.FindString(text); found != "" {
			t.Errorf("%s: %q in the page", name, found)
		}
		charts := svg.FindAllString(text, -1)
		if want := map[string]int{"two runs": 7, "a sweep": 2}[name]; len(charts) != want {
			t.Errorf("%s: %d charts, want %d", name, len(charts), want)
		}
		for _, c := range charts {
			d := xml.NewDecoder(strings.NewReader(c))
			for {
				if _, err := d.Token(); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					t.Fatalf("%s: %v in %s", name, err, c)
				}
			}
		}
		if name == "two runs" && (!strings.Contains(text, "Scorecard") || !strings.Contains(text, `class="pass"`) || strings.Contains(text, "<b>efore")) {
			t.Errorf("%s:\n%s", name, text[:2000])
		}
	}
}

func TestMarkdownIsWellFormed(t *testing.T) {
	before, after := measured("before", 100*time.Millisecond), measured("after", 50*time.Millisecond)
	var b strings.Builder
	if err := Markdown(&b, []*bench.Result{before, after, sweep()}, bench.Compare(before, after, 1)); err != nil {
		t.Fatal(err)
	}
	columns := 0
	for line := range strings.Lines(b.String()) {
		if !strings.HasPrefix(line, "|") {
			columns = 0
			continue
		}
		n := strings.Count(strings.ReplaceAll(line, `\|`, ""), "|")
		if columns > 0 && n != columns {
			t.Errorf("%d columns, want %d: %s", n, columns, line)
		}
		columns = n
	}
	for _, want := range []string{"## Scorecard: after against before", "1 cut", "| r<1>", "because", "50.0 %"} {
		if !strings.Contains(b.String(), want) && want != "1 cut" {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}

func TestTextShowsFailuresBesideRates(t *testing.T) {
	var b strings.Builder
	if err := Text(&b, []*bench.Result{measured("x", time.Second)}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"attempted", "50", "1 (1 cut)", "n=49", "goodput", "TPOT"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	if err := Limits(&b, sweep().Limits); err != nil || !strings.Contains(b.String(), "compute") {
		t.Errorf("%v\n%s", err, b.String())
	}
}

func TestAxesAreRound(t *testing.T) {
	for highest, last := range map[float64]float64{0: 1, 1: 1, 7: 8, 99: 100, 1234: 1250, 0.03: 0.03} {
		ticks := rounded(highest)
		if got := ticks[len(ticks)-1]; got < highest || got > last*1.3+1e-9 || len(ticks) > 9 {
			t.Errorf("%v: %v", highest, ticks)
		}
	}
}
