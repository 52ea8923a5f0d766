//go:build e2e

package e2e

import (
	"fmt"
	"html"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// drawing is a page with the dashboard's panels, drawn from what Prometheus answers.
// Grafana itself is not needed for that.
type drawing struct{ strings.Builder }

// curve is the values of one series over time.
type curve struct {
	Metric map[string]string
	Values [][2]any
}

func (p *prometheus) over(t *testing.T, expr string, d time.Duration) []curve {
	t.Helper()
	now := time.Now().Unix()
	var answer struct{ Data struct{ Result []curve } }
	fetchJSON(t, fmt.Sprintf("%s/api/v1/query_range?query=%s&start=%d&end=%d&step=1", p.url, url.QueryEscape(expr), now-int64(d.Seconds()), now), &answer)
	return answer.Data.Result
}

// panel draws the series of a panel.
func (d *drawing) panel(title string, curves []curve) {
	top, from := 1e-9, math.Inf(1)
	for _, c := range curves {
		for _, v := range c.Values {
			if y := value(v); !math.IsNaN(y) {
				top, from = max(top, y), min(from, v[0].(float64))
			}
		}
	}
	fmt.Fprintf(d, `<figure><figcaption>%s, up to %.3g</figcaption><svg viewBox="0 0 300 100" preserveAspectRatio="none">`, html.EscapeString(title), top)
	names := ""
	for i, c := range curves {
		points := ""
		for _, v := range c.Values {
			if y := value(v); !math.IsNaN(y) {
				points += fmt.Sprintf("%.1f,%.1f ", (v[0].(float64)-from)*10, 98-96*max(0, y)/top)
			}
		}
		color := fmt.Sprintf("hsl(%d 65%% 42%%)", i*137%360)
		fmt.Fprintf(d, `<polyline fill="none" stroke="%s" vector-effect="non-scaling-stroke" points="%s"/>`, color, points)
		name := ""
		for label, v := range c.Metric {
			name += " " + label + "=" + v
		}
		names += fmt.Sprintf(`<span style="color:%s">%s</span> `, color, html.EscapeString(name))
	}
	fmt.Fprintf(d, `</svg><small>%s</small></figure>`, names)
}

func value(v [2]any) float64 {
	text, _ := v[1].(string)
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsInf(f, 0) {
		return math.NaN()
	}
	return f
}

// picture has a browser make a picture of the page, and returns its text.
func (d *drawing) picture(t *testing.T, name string, width, height int) string {
	t.Helper()
	page := `<!doctype html><meta charset="utf-8"><style>body{font:13px sans-serif}figure{display:inline-block;width:300px;margin:6px;vertical-align:top}svg{width:300px;height:100px;border:1px solid #ccc}</style>` + d.String()
	file := filepath.Join(t.TempDir(), name+".html")
	if err := os.WriteFile(file, []byte(page), 0o600); err != nil {
		t.Fatal(err)
	}
	return browse(t, "file://"+file, name, width, height)
}
