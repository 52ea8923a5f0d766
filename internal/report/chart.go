package report

import (
	"fmt"
	"html"
	"html/template"
	"math"
	"strings"
)

// series is one line, or one cloud of dots, of a chart.
type series struct {
	name   string
	points [][2]float64
	dots   bool
}

// chart is a chart as SVG: no script and nothing from the network.
type chart struct {
	title, x, y string
	series      []series
	// ticks name places of the x axis; empty takes round numbers.
	ticks []tick
}

type tick struct {
	at   float64
	name string
}

const (
	width, height            = 640.0, 300.0
	left, right, top, bottom = 64.0, 16.0, 16.0, 44.0
)

// palette tells eight series apart, also for most of those who see colours
// differently (Okabe and Ito).
var palette = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#a0a000"}

// svg draws the chart, or nothing if there is nothing to draw.
func (c chart) svg() template.HTML {
	x1, y1, x0 := math.Inf(-1), 0.0, math.Inf(1)
	n := 0
	for _, s := range c.series {
		for _, p := range s.points {
			x0, x1, y1 = min(x0, p[0]), max(x1, p[0]), max(y1, p[1])
			n++
		}
	}
	if n == 0 {
		return ""
	}
	if len(c.ticks) == 0 && x0 > 0 {
		x0 = 0
	}
	if x1 <= x0 {
		x1 = x0 + 1
	}
	yTicks := rounded(y1)
	y1 = yTicks[len(yTicks)-1]
	px := func(x float64) float64 { return left + (x-x0)/(x1-x0)*(width-left-right) }
	py := func(y float64) float64 { return height - bottom - y/y1*(height-top-bottom) }

	var b strings.Builder
	fmt.Fprintf(&b, `<figure><figcaption>%s</figcaption><svg viewBox="0 0 %.0f %.0f" role="img" aria-label="%s">`, html.EscapeString(c.title), width, height, html.EscapeString(c.title))
	for _, y := range yTicks {
		fmt.Fprintf(&b, `<line class="grid" x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f"/><text class="tick" text-anchor="end" x="%.1f" y="%.1f">%s</text>`, left, width-right, py(y), py(y), left-6, py(y)+4, short(y))
	}
	ticks := c.ticks
	if len(ticks) == 0 {
		for _, x := range rounded(x1) {
			if x <= x1 {
				ticks = append(ticks, tick{x, short(x)})
			}
		}
	}
	for _, t := range ticks {
		fmt.Fprintf(&b, `<line class="grid" x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f"/><text class="tick" text-anchor="middle" x="%.1f" y="%.1f">%s</text>`, px(t.at), px(t.at), top, height-bottom, px(t.at), height-bottom+16, html.EscapeString(t.name))
	}
	fmt.Fprintf(&b, `<text class="axis" text-anchor="middle" x="%.1f" y="%.1f">%s</text>`, (left+width-right)/2, height-8, html.EscapeString(c.x))
	fmt.Fprintf(&b, `<text class="axis" text-anchor="middle" transform="translate(14 %.1f) rotate(-90)">%s</text>`, (top+height-bottom)/2, html.EscapeString(c.y))
	for i, s := range c.series {
		colour := palette[i%len(palette)]
		if s.dots {
			for _, p := range s.points {
				fmt.Fprintf(&b, `<circle cx="%.1f" cy="%.1f" r="2" fill="%s" fill-opacity=".45"/>`, px(p[0]), py(p[1]), colour)
			}
			continue
		}
		var path []string
		for _, p := range s.points {
			path = append(path, fmt.Sprintf("%.1f,%.1f", px(p[0]), py(p[1])))
		}
		fmt.Fprintf(&b, `<polyline fill="none" stroke="%s" stroke-width="2" points="%s"/>`, colour, strings.Join(path, " "))
		for _, p := range s.points {
			fmt.Fprintf(&b, `<circle cx="%.1f" cy="%.1f" r="2.5" fill="%s"><title>%s: %s, %s</title></circle>`, px(p[0]), py(p[1]), colour, html.EscapeString(s.name), short(p[0]), short(p[1]))
		}
	}
	b.WriteString(`</svg><div class="legend">`)
	for i, s := range c.series {
		fmt.Fprintf(&b, `<span><i style="background:%s"></i>%s</span>`, palette[i%len(palette)], html.EscapeString(s.name))
	}
	b.WriteString(`</div></figure>`)
	return template.HTML(b.String())
}

// rounded returns round numbers from 0 to one that is not below the highest.
func rounded(highest float64) []float64 {
	if highest <= 0 || math.IsInf(highest, 0) || math.IsNaN(highest) {
		return []float64{0, 1}
	}
	step := math.Pow(10, math.Floor(math.Log10(highest)))
	for _, f := range []float64{.1, .2, .25, .5, 1, 2} {
		if highest/(step*f) <= 6 {
			step *= f
			break
		}
	}
	out := []float64{0}
	for i := 1; out[len(out)-1] < highest; i++ {
		out = append(out, float64(i)*step)
	}
	return out
}

// short writes a number in few digits.
func short(v float64) string {
	switch {
	case math.Abs(v) >= 1e6:
		return fmt.Sprintf("%.3gM", v/1e6)
	case math.Abs(v) >= 1e4:
		return fmt.Sprintf("%.3gk", v/1e3)
	}
	return fmt.Sprintf("%.4g", v)
}
