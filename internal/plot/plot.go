// Package plot draws small multiples as one self-contained SVG: panels of the same
// lines on different questions, with one legend for all. The same picture gives
// the same bytes.
package plot

import (
	"fmt"
	"html"
	"io"
	"slices"
	"strconv"
	"strings"
)

// Role is what a line is in the picture.
type Role int

// The roles of lines.
const (
	Usual  Role = iota
	Strong      // the one to look at: thick and on top
	Bound       // a limit, not a rival: grey and dashed
)

// Series is one line of every panel.
type Series struct {
	Name string
	Role Role
}

// Panel is one diagram. All slices have the length of X, Values one of them for
// each series of the picture.
type Panel struct {
	Title  string
	XLabel string
	YLabel string
	X      []float64
	Ticks  []string // what is written at each X
	Log    bool     // the Y axis; values of 0 and less are then left out
	Share  bool     // values are shares: the Y axis stays within 0 and 1
	Values [][]float64
}

// Picture is what is drawn.
type Picture struct {
	Title   string
	Columns int // panels side by side
	Series  []Series
	Panels  []Panel
}

// Sizes in pixels: of a panel with its labels, of the diagram's place in it, and of
// an entry of the legend.
const (
	panelWidth, panelHeight  = 400.0, 250.0
	left, right, top, bottom = 62.0, 14.0, 30.0, 46.0
	entryWidth, entryHeight  = 136.0, 20.0
	headHeight               = 40.0
)

// ink is how a series looks.
type ink struct {
	colour string
	width  float64
	dash   string
	marker int
}

// palette holds ten colours that are as far apart as ten can be, for people who
// confuse red and green too; markers do the rest.
func palette() []string {
	return []string{"#e69f00", "#009e73", "#b39b7d", "#cc79a7", "#56b4e9", "#7f7f00", "#8c564b", "#6a3d9a", "#d7301f", "#202020"}
}

func inks(series []Series) []ink {
	var out []ink
	colours, usual, bounds := palette(), 0, 0
	for _, s := range series {
		switch s.Role {
		case Strong:
			out = append(out, ink{colour: "#0047d6", width: 3.6})
		case Bound:
			out = append(out, ink{colour: []string{"#555555", "#999999"}[bounds%2], width: 1.6, dash: "6 4", marker: bounds})
			bounds++
		default:
			out = append(out, ink{colour: colours[usual%len(colours)], width: 1.5, marker: usual})
			usual++
		}
	}
	return out
}

// WriteTo writes the picture as SVG.
func (p *Picture) WriteTo(w io.Writer) (int64, error) {
	columns := max(1, min(p.Columns, len(p.Panels)))
	rows := (len(p.Panels) + columns - 1) / columns
	width := float64(columns) * panelWidth
	perLine := max(1, int((width-left)/entryWidth))
	head := headHeight + float64((len(p.Series)+perLine-1)/perLine)*entryHeight
	height := head + float64(rows)*panelHeight + 8

	d := &drawing{inks: inks(p.Series)}
	d.add(`<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%.0f" viewBox="0 0 %.0f %.0f" font-family="Helvetica, Arial, 'DejaVu Sans', sans-serif" font-size="11" fill="#222222">`, width, height, width, height)
	d.add(`<title>%s</title>`, html.EscapeString(p.Title))
	d.add(`<rect width="100%%" height="100%%" fill="#ffffff"/>`)
	d.text(left, 22, "start", ` font-size="15" font-weight="bold"`, p.Title)
	for i, s := range p.Series {
		d.entry(left+float64(i%perLine)*entryWidth, headHeight+float64(i/perLine)*entryHeight, s, d.inks[i])
	}
	for i := range p.Panels {
		d.add(`<g transform="translate(%.0f %.0f)">`, float64(i%columns)*panelWidth, head+float64(i/columns)*panelHeight)
		d.panel(&p.Panels[i], p.Series)
		d.add(`</g>`)
	}
	d.add(`</svg>`)
	n, err := io.WriteString(w, d.svg.String())
	return int64(n), err
}

// drawing is an SVG under way.
type drawing struct {
	svg  strings.Builder
	inks []ink
}

func (d *drawing) add(format string, args ...any) {
	_, _ = fmt.Fprintf(&d.svg, format+"\n", args...)
}

func (d *drawing) text(x, y float64, anchor, more, text string) {
	d.add(`<text x="%.1f" y="%.1f" text-anchor="%s"%s>%s</text>`, x, y, anchor, more, html.EscapeString(text))
}

// entry is a series in the legend.
func (d *drawing) entry(x, y float64, s Series, i ink) {
	d.add(`<path d="M%.1f %.1fh26"%s/>`, x, y, i.stroke())
	d.marker(x+13, y, i)
	weight := ""
	if s.Role == Strong {
		weight = ` font-weight="bold"`
	}
	d.text(x+32, y+4, "start", weight, s.Name)
}

func (i ink) stroke() string {
	s := fmt.Sprintf(` fill="none" stroke="%s" stroke-width="%.1f" stroke-linejoin="round"`, i.colour, i.width)
	if i.dash != "" {
		s += fmt.Sprintf(` stroke-dasharray="%s"`, i.dash)
	}
	return s
}

// marker draws a point, of one of four shapes.
func (d *drawing) marker(x, y float64, i ink) {
	r := 1.6 + i.width/2
	switch i.marker % 4 {
	case 0:
		d.add(`<circle cx="%.1f" cy="%.1f" r="%.1f" fill="%s"/>`, x, y, r, i.colour)
	case 1:
		d.add(`<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`, x-r, y-r, 2*r, 2*r, i.colour)
	case 2:
		d.add(`<path d="M%.1f %.1fl%.1f %.1fh%.1fz" fill="%s"/>`, x, y-1.3*r, 1.2*r, 2.3*r, -2.4*r, i.colour)
	default:
		d.add(`<path d="M%.1f %.1fl%.1f %.1fl%.1f %.1fl%.1f %.1fz" fill="%s"/>`, x, y-1.4*r, 1.4*r, 1.4*r, -1.4*r, 1.4*r, -1.4*r, -1.4*r, i.colour)
	}
}

func (d *drawing) panel(p *Panel, series []Series) {
	right, bottom := panelWidth-right, panelHeight-bottom
	y := p.axis()
	d.text(left, top-10, "start", ` font-size="13" font-weight="bold"`, p.Title)
	for _, t := range y.ticks {
		at := bottom - y.place(t)*(bottom-top)
		d.add(`<path d="M%.1f %.1fH%.1f" stroke="#e2e2e2"/>`, left, at, right)
		d.text(left-6, at+4, "end", "", strconv.FormatFloat(t, 'g', 4, 64))
	}
	x := p.places(left+12, right-12)
	for i, at := range x {
		d.add(`<path d="M%.1f %.1fv4" stroke="#222222"/>`, at, bottom)
		d.text(at, bottom+16, "middle", "", p.Ticks[i])
	}
	d.add(`<path d="M%.1f %.1fV%.1fH%.1f" fill="none" stroke="#222222"/>`, left, top, bottom, right)
	d.text((left+right)/2, bottom+34, "middle", "", p.XLabel)
	d.text(0, 0, "middle", fmt.Sprintf(` transform="translate(14 %.1f) rotate(-90)"`, (top+bottom)/2), p.YLabel)

	for _, strong := range []bool{false, true} { // so that nothing hides the strong ones
		for i, s := range series {
			if (s.Role == Strong) == strong {
				d.line(s, d.inks[i], x, p.Values[i], func(v float64) (float64, bool) {
					return bottom - y.place(v)*(bottom-top), y.has(v)
				})
			}
		}
	}
}

func (d *drawing) line(s Series, i ink, x, values []float64, place func(float64) (float64, bool)) {
	d.add(`<g class="line"><title>%s</title>`, html.EscapeString(s.Name))
	var path strings.Builder
	pen := "M"
	for j, v := range values {
		at, ok := place(v)
		if !ok {
			pen = "M"
			continue
		}
		_, _ = fmt.Fprintf(&path, "%s%.1f %.1f", pen, x[j], at)
		pen = "L"
	}
	if path.Len() > 0 {
		d.add(`<path d="%s"%s/>`, path.String(), i.stroke())
	}
	for j, v := range values {
		if at, ok := place(v); ok {
			d.marker(x[j], at, i)
		}
	}
	d.add(`</g>`)
}

// places are where the panel's X are between two ends.
func (p *Panel) places(from, to float64) []float64 {
	out := make([]float64, len(p.X))
	for i, x := range p.X {
		out[i] = (from + to) / 2
		if low, high := slices.Min(p.X), slices.Max(p.X); high > low {
			out[i] = from + (x-low)/(high-low)*(to-from)
		}
	}
	return out
}
