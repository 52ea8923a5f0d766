// Command cost measures what a gateway's work grows with: the prompt, the replicas,
// what its index holds, and the streams that are open at a time. It makes a table and
// a picture of the first three, and a table of the last beside a bare ReverseProxy.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/warmpath/warmpath/internal/plot"
)

// settings say how much is measured.
type settings struct {
	gateway, instant, out string
	each                  time.Duration
	rounds, streams       int
	blocks                string
}

func main() {
	var s settings
	flag.StringVar(&s.gateway, "gateway", "bin/gateway", "the gateway's `program`")
	flag.StringVar(&s.instant, "instant", "", "the `program` of test/peers/instant, to put a ReverseProxy beside the gateway under open streams")
	flag.StringVar(&s.out, "out", "", "the `directory` for cost.svg; none if empty")
	flag.DurationVar(&s.each, "each", 2*time.Second, "how long each case is measured in a round")
	flag.IntVar(&s.rounds, "rounds", 3, "rounds, of which the median counts")
	flag.IntVar(&s.streams, "streams", 0, "open so `many` streams instead, with an event every 50 ms each")
	flag.StringVar(&s.blocks, "blocks", "0,1000000,10000000", "`numbers` of KV blocks in the index, separated by commas")
	flag.Parse()
	measure := sizes
	if s.streams > 0 {
		measure = streams
	}
	if err := measure(&s, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "cost:", err)
		os.Exit(1)
	}
}

// sizes measures one request at a time against the prompt, the replicas and the index.
func sizes(s *settings, out io.Writer) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "| what grows\t| \t| CPU a request\t| P50\t|\n|---\t|---\t|---\t|---\t|")
	row := func(what, value string, c cost) {
		p50 := "-"
		if c.p50 > 0 {
			p50 = fmt.Sprintf("%.0f µs", micros(c.p50))
		}
		_, _ = fmt.Fprintf(table, "| %s\t| %s\t| %.1f µs\t| %s\t|\n", what, value, micros(c.cpu), p50)
	}
	group := func(what, unit string, sizes []int, in *plot.Panel, open func(size int) (*stage, error)) error {
		costs, err := s.whole(sizes, open)
		for i, c := range costs {
			row(what, strings.TrimSpace(strconv.Itoa(sizes[i])+" "+unit), c)
			add(in, sizes[i], c)
		}
		return err
	}
	prompts := panel("Prompt, 2 replicas", "KB", true)
	if err := group("prompt", "KB", []int{1, 4, 16, 64, 256, 1 << 10, 4 << 10}, &prompts, func(kb int) (*stage, error) { return s.stage(2, kb<<10) }); err != nil {
		return err
	}
	replicas := panel("Replicas, prompts of 16 KB", "replicas", false)
	if err := group("replicas", "", []int{2, 8, 32, 128, 256}, &replicas, func(n int) (*stage, error) { return s.stage(n, 16<<10) }); err != nil {
		return err
	}
	index := panel("Blocks in the index, 256 replicas: the choice alone", "blocks", false)
	for text := range strings.SplitSeq(s.blocks, ",") {
		n, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("-blocks %s: %w", s.blocks, err)
		}
		c, held, err := s.choice(n)
		if err != nil {
			return err
		}
		row("index", fmt.Sprintf("%d blocks", held), c)
		add(&index, held, c)
	}
	if err := table.Flush(); err != nil || s.out == "" {
		return err
	}
	picture := plot.Picture{
		Title: "What a request costs", Columns: 3,
		Series: []plot.Series{{Name: "CPU", Role: plot.Strong}, {Name: "P50"}},
		Panels: []plot.Panel{prompts, replicas, index},
	}
	var svg bytes.Buffer
	if _, err := picture.WriteTo(&svg); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(s.out, "cost.svg"), svg.Bytes(), 0o644)
}

func panel(title, x string, log bool) plot.Panel {
	return plot.Panel{Title: title, XLabel: x, YLabel: "µs", Log: log, Values: make([][]float64, 2)}
}

func add(p *plot.Panel, x int, c cost) {
	p.X = append(p.X, float64(len(p.X)))
	p.Ticks = append(p.Ticks, short(x))
	p.Values[0] = append(p.Values[0], micros(c.cpu))
	p.Values[1] = append(p.Values[1], micros(c.p50))
}

// short writes a number as it fits under an axis.
func short(n int) string {
	switch {
	case n >= 1_000_000:
		return fmt.Sprintf("%.3gM", float64(n)/1e6)
	case n >= 10_000:
		return fmt.Sprintf("%.3gk", float64(n)/1e3)
	}
	return strconv.Itoa(n)
}

// cost is what one request takes.
type cost struct {
	cpu time.Duration // of the gateway
	p50 time.Duration // for the client; 0 if there was none
}

func micros(d time.Duration) float64 { return float64(d) / 1e3 }

// median is that of each figure by itself.
func median(costs []cost) (m cost) {
	slices.SortFunc(costs, func(a, b cost) int { return int(a.cpu - b.cpu) })
	m.cpu = costs[len(costs)/2].cpu
	slices.SortFunc(costs, func(a, b cost) int { return int(a.p50 - b.p50) })
	m.p50 = costs[len(costs)/2].p50
	return m
}
