package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/warmpath/warmpath/internal/bench"
	"github.com/warmpath/warmpath/internal/report"
)

const compareUsage = `usage: bench compare [flags] BASELINE.json CANDIDATE.json
       bench compare [flags] SIDE-BY-SIDE.json

Two results as a scorecard: TTFT P95 20 % lower, compute of repeated prefixes 30 % lower, replica start 40 % lower, peak of KV cache
or GPU memory not higher, failures not higher. Each with its change, a 95 % interval and a verdict; other figures without goals.
It fails (exit 1) if a goal that was measured is missed. One file with two results compares these.

  bench load -endpoint http://127.0.0.1:8080 … -header "X-Warmpath-Policy: round-robin" -o before.json
  bench load -endpoint http://127.0.0.1:8080 … -o after.json
  bench compare before.json after.json

Send the same load in both: the same flags and -seed. A line whose interval reaches over its goal needs more requests.
`

func compare(args []string, out io.Writer) error {
	fs := flagsOf("compare", compareUsage)
	asJSON := fs.Bool("json", false, "print JSON")
	seed := fs.Uint64("seed", 1, "of the intervals")
	if err := fs.Parse(args); err != nil {
		return err
	}
	a, b, err := pair(fs.Args())
	if err != nil {
		return err
	}
	scores := bench.Compare(a, b, *seed)
	if *asJSON {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", " ")
		err = encoder.Encode(scores)
	} else {
		err = report.Scorecard(out, a.Label, b.Label, scores)
	}
	if err != nil {
		return err
	}
	missed := 0
	for _, s := range scores {
		if s.Goal != "" && s.NA == "" && !s.Pass {
			missed++
		}
	}
	if missed > 0 {
		return fmt.Errorf("%d goals were missed", missed)
	}
	return nil
}

// pair returns the two results of one file, or the first of each of two.
func pair(paths []string) (a, b *bench.Result, err error) {
	var all []*bench.Result
	for _, p := range paths {
		results, err := bench.Load(p)
		if err != nil {
			return nil, nil, err
		}
		if len(paths) == 2 {
			results = results[:1]
		}
		all = append(all, results...)
	}
	if len(paths) > 2 || len(all) != 2 {
		return nil, nil, errors.New("give two files, the baseline first, or one file of a run with two URLs")
	}
	if len(all[0].Samples) == 0 || len(all[1].Samples) == 0 {
		return nil, nil, errors.New("a result has no requests to compare")
	}
	return all[0], all[1], nil
}

const reportUsage = `usage: bench report [flags] FILE…

Results as one HTML file with tables and charts that needs no network, or as Markdown. With two results of load, ttft or eval
the scorecard of bench compare stands first.

  bench report -o report.html before.json after.json
  bench report -format markdown eval.json
`

func makeReport(args []string, out io.Writer) error {
	fs := flagsOf("report", reportUsage)
	format := fs.String("format", "html", "`form`: html or markdown")
	path := fs.String("o", "", "write to this `file` instead of printing")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() == 0 {
		return errors.New("give files that other commands wrote with -o")
	}
	write := report.HTML
	switch *format {
	case "html":
	case "markdown":
		write = report.Markdown
	default:
		return fmt.Errorf("-format must be html or markdown, not %q", *format)
	}
	var all []*bench.Result
	for _, p := range fs.Args() {
		results, err := bench.Load(p)
		if err != nil {
			return err
		}
		all = append(all, results...)
	}
	var scores []bench.Score
	if len(all) == 2 && len(all[0].Samples) > 0 && len(all[1].Samples) > 0 {
		scores = bench.Compare(all[0], all[1], 1)
	}
	if *path != "" {
		file, err := os.Create(*path)
		if err != nil {
			return err
		}
		err = write(file, all, scores)
		return errors.Join(err, file.Close())
	}
	return write(out, all, scores)
}
