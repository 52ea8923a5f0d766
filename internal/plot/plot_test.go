package plot_test

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/internal/plot"
)

func draw(t *testing.T, p *plot.Picture) string {
	t.Helper()
	var out strings.Builder
	if n, err := p.WriteTo(&out); err != nil || n != int64(out.Len()) {
		t.Fatalf("%d bytes of %d, %v", n, out.Len(), err)
	}
	return out.String()
}

func parse(t *testing.T, svg string) (texts []string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(svg))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return texts
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, svg)
		}
		if text, ok := token.(xml.CharData); ok && strings.TrimSpace(string(text)) != "" {
			texts = append(texts, string(text))
		}
	}
}

func count(texts []string, want string) (n int) {
	for _, t := range texts {
		if t == want {
			n++
		}
	}
	return n
}

func picture(log bool, values ...[]float64) *plot.Picture {
	return &plot.Picture{
		Title: "A < B & C", Columns: 2,
		Series: []plot.Series{{Name: "ours", Role: plot.Strong}, {Name: "<theirs>"}, {Name: "bound", Role: plot.Bound}}[:len(values)],
		Panels: []plot.Panel{{Title: "waiting", XLabel: "load (times)", YLabel: "time (s)", X: []float64{0.5, 1}, Ticks: []string{"0.5", "1"}, Log: log, Values: values}},
	}
}

func TestEveryPanelHasALineForEverySeries(t *testing.T) {
	p := picture(true, []float64{0.1, 0.3}, []float64{2, 7}, []float64{0.05, 0.06})
	p.Panels = append(p.Panels, p.Panels[0], p.Panels[0])
	texts := parse(t, draw(t, p))
	for _, s := range p.Series {
		if n := count(texts, s.Name); n != 4 {
			t.Errorf("%q is there %d times, want once in the legend and once in each of three panels", s.Name, n)
		}
	}
	for _, label := range []string{"waiting", "load (times)", "time (s)", "0.5"} {
		if n := count(texts, label); n < 3 {
			t.Errorf("%q is there %d times, want it in each of three panels", label, n)
		}
	}
}

func TestTheSamePictureGivesTheSameBytes(t *testing.T) {
	p := picture(false, []float64{0.1, 0.3}, []float64{0.2, 0.9})
	first := draw(t, p)
	if second := draw(t, p); second != first {
		t.Error("two drawings of one picture differ")
	}
}

func TestAxesSurviveAnyValues(t *testing.T) {
	for name, values := range map[string][]float64{
		"equal":       {3, 3},
		"zero":        {0, 0},
		"one missing": {math.NaN(), 0.4},
		"all missing": {math.NaN(), math.NaN()},
		"infinite":    {math.Inf(1), 2},
		"negative":    {-4, -1},
		"far apart":   {1e-6, 1e6},
		"a power":     {0.1, 1},
	} {
		for _, log := range []bool{false, true} {
			svg := draw(t, picture(log, values))
			parse(t, svg)
			if strings.Contains(svg, "NaN") || strings.Contains(svg, "Inf") {
				t.Errorf("%s, log %v: a coordinate is no number:\n%s", name, log, svg)
			}
		}
	}
}

func TestSharesEndAtOne(t *testing.T) {
	p := picture(false, []float64{0.99, 0.98})
	p.Panels[0].Share = true
	p.Panels[0].Ticks = []string{"a", "b"}
	if texts := parse(t, draw(t, p)); count(texts, "1") != 1 || count(texts, "1.02") != 0 {
		t.Errorf("an axis of shares has %v", texts)
	}
}

func TestTicksAreRoundAndFew(t *testing.T) {
	for _, c := range []struct {
		values []float64
		log    bool
		want   string
	}{
		{[]float64{0.04, 60}, true, "0.01 0.1 1 10 100"},
		{[]float64{0.04, 0.19}, true, "0.02 0.05 0.1 0.2"},
		{[]float64{1, 1}, true, "1 2"},
		{[]float64{0.52, 0.93}, false, "0.5 0.6 0.7 0.8 0.9 1"},
		{[]float64{0, 0}, false, "0 0.01 0.02 0.03 0.04 0.05"},
		{[]float64{0.9, 0.9}, false, "0.84 0.86 0.88 0.9 0.92 0.94 0.96"},
	} {
		p := picture(c.log, c.values)
		p.Panels[0].Ticks = []string{"a", "b"}
		var ticks []string
		for _, text := range parse(t, draw(t, p)) {
			if strings.Trim(text, "0123456789.") == "" {
				ticks = append(ticks, text)
			}
		}
		if got := strings.Join(ticks, " "); got != c.want {
			t.Errorf("%v, log %v: ticks %s, want %s", c.values, c.log, got, c.want)
		}
	}
}
