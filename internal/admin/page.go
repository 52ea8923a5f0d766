package admin

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"math"
	"net/http"
	"strings"
	"time"
)

//go:embed page.html
var pageText string

var pages = template.Must(template.New("").Funcs(template.FuncMap{
	"ms": func(seconds float64) string { return fmt.Sprintf("%.0f ms", seconds*1000) },
	"ttft": func(v *float64) string {
		if v == nil {
			return "–"
		}
		return fmt.Sprintf("%.0f ms", *v*1000)
	},
	"percent": func(v *float64) string {
		if v == nil {
			return "–"
		}
		return fmt.Sprintf("%.0f %%", *v*100)
	},
	"tokens": func(v *int) string {
		if v == nil {
			return "–"
		}
		return fmt.Sprint(*v)
	},
	"minutes": func(d time.Duration) string { return fmt.Sprintf("%.3g min", d.Minutes()) },
	"clock":   func(t time.Time) string { return t.Format("15:04:05.000") },
	"color":   func(i int) string { return fmt.Sprintf("hsl(%d 65%% 42%%)", i*137%360) },
}).Parse(pageText))

// Glance is one replica on the first page: its entry of /replicas and the last minute.
type Glance struct {
	Replica
	HitRate *float64  `json:"hit_rate,omitempty"`         // of the prompt tokens since the gateway's start
	P50     *float64  `json:"ttft_p50_seconds,omitempty"` // of the last minute
	P95     *float64  `json:"ttft_p95_seconds,omitempty"`
	Curve   []float64 `json:"ttft_p95_curve"` // of the last ten minutes, a value each 5 s, -1 for none
}

// Fleet is all replicas together.
type Fleet struct {
	Replicas  int                `json:"replicas"`
	Ready     int                `json:"ready"`
	InFlight  int                `json:"in_flight"`
	Pending   int                `json:"pending_tokens"`
	P50       *float64           `json:"ttft_p50_seconds,omitempty"` // of the last minute
	P95       *float64           `json:"ttft_p95_seconds,omitempty"`
	HitRate   *float64           `json:"hit_rate,omitempty"`           // of the prompt tokens since the gateway's start
	Predicted *float64           `json:"predicted_hit_rate,omitempty"` // what was predicted of it
	Gap       map[string]float64 `json:"gap"`                          // prompt tokens since then, by reason of the gap
}

// overview is the first page.
type overview struct {
	Fleet     Fleet      `json:"fleet"`
	Replicas  []Glance   `json:"replicas"`
	Decisions []Decision `json:"decisions"`
	Ready     bool       `json:"ready"`
	Chart     *chart     `json:"-"`
	At        time.Time  `json:"at"`
}

func (a *Admin) overview(w http.ResponseWriter, r *http.Request) {
	now := read(a.Gatherer)
	list := a.history.list(now)
	o := overview{Replicas: []Glance{}, Decisions: a.lastDecisions(20, ""), Ready: a.Ready(), At: time.Now()}
	earlier := sample{} // since the start
	if len(list) > window {
		earlier = list[len(list)-1-window]
	}
	o.Fleet = fleet(earlier, now)
	for _, rep := range a.list() {
		g := Glance{Replica: rep, Curve: curve(list, rep.ID)}
		last := now[rep.ID]
		lately := last.since(earlier[rep.ID])
		o.Fleet.add(rep)
		g.P50, g.P95 = number(lately.quantile(.5)), number(lately.quantile(.95))
		if last.prompt > 0 {
			g.HitRate = number(last.cached / last.prompt)
		}
		o.Replicas = append(o.Replicas, g)
	}
	if wantsJSON(r) {
		answer(w, o)
		return
	}
	o.Chart = draw(o.Replicas)
	a.render(w, "overview", o)
}

func fleet(earlier, now sample) Fleet {
	lately, all := now.since(earlier).total(), now.total()
	f := Fleet{P50: number(lately.quantile(.5)), P95: number(lately.quantile(.95)), Gap: all.gap}
	if all.prompt > 0 {
		f.HitRate, f.Predicted = number(all.cached/all.prompt), number(all.predicted/all.prompt)
	}
	return f
}

func (f *Fleet) add(r Replica) {
	f.Replicas++
	if r.Ready {
		f.Ready++
	}
	f.InFlight += r.InFlight
	f.Pending += r.PendingTokens
}

// Computed returns why prompt tokens were computed, in shares of those that were.
func (f Fleet) Computed() string {
	var parts []string
	sum := 0.0
	for reason, n := range f.Gap {
		if reason != "unknown" { // those were cached
			sum += n
		}
	}
	for _, reason := range [...]string{"new", "elsewhere", "restart", "evicted", "mismatch"} {
		if n := f.Gap[reason]; n > 0 {
			parts = append(parts, fmt.Sprintf("%s %.0f %%", reason, 100*n/sum))
		}
	}
	return strings.Join(parts, ", ")
}

func number(v float64) *float64 {
	if math.IsNaN(v) {
		return nil
	}
	return &v
}

// chart is a drawing of TTFT P95 per replica, 600 by 160.
type chart struct {
	Top   float64 // seconds
	Span  time.Duration
	Lines []curveLine
}

// Half returns what is in the middle of the chart.
func (c *chart) Half() float64 { return c.Top / 2 }

type curveLine struct {
	ID     string
	Points string
}

// maxLines is how many replicas the chart draws: those with the highest values.
const maxLines = 16

func draw(list []Glance) *chart {
	c, points := &chart{Top: .01}, window // at least a minute wide
	for _, g := range list {
		points = max(points, len(g.Curve)-1)
		for _, v := range g.Curve {
			c.Top = max(c.Top, v)
		}
	}
	c.Top *= 1.1
	c.Span = time.Duration(points) * sampleEvery
	for _, g := range list {
		var line strings.Builder
		for i, v := range g.Curve {
			if v >= 0 {
				fmt.Fprintf(&line, "%.1f,%.1f ", 600-float64(len(g.Curve)-1-i)*600/float64(points), 160-160*v/c.Top)
			}
		}
		if line.Len() > 0 && len(c.Lines) < maxLines {
			c.Lines = append(c.Lines, curveLine{ID: g.ID, Points: line.String()})
		}
	}
	return c
}

// render answers with a page; its data has no prompt.
func (a *Admin) render(w http.ResponseWriter, name string, data any) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'")
	_ = pages.ExecuteTemplate(w, name, data) // the client has gone if this fails
}

func wantsJSON(r *http.Request) bool { return r.URL.Query().Get("format") == "json" }

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(v) // the client has gone if this fails
}

func readCloser(text string) io.ReadCloser { return io.NopCloser(strings.NewReader(text)) }
