package main

import (
	"bufio"
	"errors"
	"os"
	"slices"

	"github.com/warmpath/warmpath/internal/lab"
	"github.com/warmpath/warmpath/internal/plot"
)

// writePicture draws cells against an axis into a file.
func writePicture(path, title string, by axis, cells []cell) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	buffered := bufio.NewWriter(file)
	_, err = pictureOf(title, by, cells).WriteTo(buffered)
	return errors.Join(err, buffered.Flush(), file.Close())
}

// panelColumns is how many panels are side by side: the two figures of a workload, so
// that a page shows them at their size.
const panelColumns = 2

// pictureOf has for each workload a panel of P95 and one of the cached share.
func pictureOf(title string, by axis, cells []cell) *plot.Picture {
	p := &plot.Picture{Title: title, Columns: panelColumns}
	series := map[string]int{}
	var names []string
	byWorkload := map[string][]cell{}
	for _, c := range cells {
		if _, known := byWorkload[c.Workload]; !known {
			names = append(names, c.Workload)
		}
		byWorkload[c.Workload] = append(byWorkload[c.Workload], c)
		if _, known := series[c.mean.Policy]; !known {
			series[c.mean.Policy] = len(p.Series)
			p.Series = append(p.Series, plot.Series{Name: c.mean.Policy, Role: role(c.mean.Policy)})
		}
	}
	for _, name := range names {
		p.Panels = append(p.Panels,
			panel(name+": time to first token", "P95 TTFT (s)", true, by, byWorkload[name], series, func(s *lab.Summary) float64 { return s.P95 }),
			panel(name+": prompt tokens from cache", "hit rate (share)", false, by, byWorkload[name], series, func(s *lab.Summary) float64 { return s.Hit }))
	}
	return p
}

func role(policy string) plot.Role {
	switch {
	case policy == lab.Ours:
		return plot.Strong
	case lab.IsBound(policy):
		return plot.Bound
	}
	return plot.Usual
}

// panel draws one figure. Loads stand where their numbers are, all else side by side.
func panel(title, label string, log bool, by axis, cells []cell, series map[string]int, figure func(*lab.Summary) float64) plot.Panel {
	p := plot.Panel{Title: title, XLabel: by.label, YLabel: label, Log: log, Share: !log, Values: make([][]float64, len(series))}
	for i := range cells {
		c := &cells[i]
		if tick := by.text(&c.point); !slices.Contains(p.Ticks, tick) {
			p.Ticks = append(p.Ticks, tick)
			x := float64(len(p.Ticks))
			if by.place != nil {
				x = by.place(&c.point)
			}
			p.X = append(p.X, x)
		}
		values := &p.Values[series[c.mean.Policy]]
		*values = append(*values, figure(&c.mean))
	}
	return p
}
