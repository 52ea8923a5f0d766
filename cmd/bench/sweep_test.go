package main

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/lab"
)

func TestListsTakeSeveralValues(t *testing.T) {
	loads, gateways, late := factors(1), counts(1), lags(20*time.Millisecond)
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	fs.Var(loads, "load", "")
	fs.Var(gateways, "gateways", "")
	fs.Var(late, "load-lag", "")
	if got := loads.String() + gateways.String() + late.String(); got != "1120ms" {
		t.Errorf("defaults are %s", got)
	}
	if err := fs.Parse([]string{"-load", "0.5, 1.25", "-gateways", "8", "-load-lag", "5ms,2s,never,0s"}); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(loads.values, []float64{0.5, 1.25}) || !slices.Equal(gateways.values, []int{8}) {
		t.Errorf("loads %v, gateways %v", loads.values, gateways.values)
	}
	if want := lags(5*time.Millisecond, 2*time.Second, lab.Never, 0).values; !slices.Equal(late.values, want) {
		t.Errorf("lags %v, want %v", late.values, want)
	}
}

func TestListsRefuseWhatIsNone(t *testing.T) {
	for _, text := range []string{"", "1,", "0", "-1", "NaN", "Inf", "1e9", "x", "2,2.0"} {
		if err := factors().Set(text); err == nil {
			t.Errorf("%q is taken as factors", text)
		}
	}
	for _, text := range []string{"", "1,,2", "0", "1.5", "3,3"} {
		if err := counts().Set(text); err == nil {
			t.Errorf("%q is taken as counts", text)
		}
	}
	for _, text := range []string{"", "5", "-5ms", "Never", "never,never"} {
		if err := lags().Set(text); err == nil {
			t.Errorf("%q is taken as lags", text)
		}
	}
}

// rowsOf reads JSON lines.
func rowsOf(t *testing.T, text string) []row {
	t.Helper()
	var out []row
	for line := range strings.Lines(text) {
		var r row
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		out = append(out, r)
	}
	return out
}

func TestSweepGivesTheSameBytesOnAnyNumberOfCores(t *testing.T) {
	args := []string{
		"-workload", "hot,rag", "-span", "500ms", "-policy", "prefix,random", "-load", "0.5,1", "-seeds", "2", "-gateways", "1,3",
		"-load-lag", "5ms,never", "-json",
	}
	before := runtime.GOMAXPROCS(1)
	defer runtime.GOMAXPROCS(before)
	want := output(t, args...)
	runtime.GOMAXPROCS(8)
	if got := output(t, args...); got != want {
		t.Fatalf("on one core\n%s\non eight\n%s", want, got)
	}
	rows := rowsOf(t, want)
	if len(rows) != 2*2*2*2*2*2 {
		t.Fatalf("%d rows", len(rows))
	}
	first, last := rows[0], rows[len(rows)-1]
	if p := first.point; p.Workload != "hot" || p.Load != 0.5 || p.Gateways != 1 || p.LoadLag != lag(5*time.Millisecond) || first.Policy != "prefix" || first.Seed != 1 {
		t.Errorf("first row %+v", first)
	}
	if p := last.point; p.Workload != "rag" || p.Load != 1 || p.Gateways != 3 || p.LoadLag != lag(lab.Never) || last.Policy != "random" || last.Seed != 2 {
		t.Errorf("last row %+v", last)
	}
	if rows[0].P95 == rows[1].P95 && rows[0].Requests == rows[1].Requests {
		t.Error("two seeds give one result")
	}
}

func TestASweepIsItsSimulationsOneByOne(t *testing.T) {
	common := []string{"-workload", "rag", "-span", "3s", "-policy", "prefix", "-json"}
	var want []string
	for _, load := range []string{"0.5", "1"} {
		for _, seed := range []string{"7", "8"} {
			want = append(want, output(t, slices.Concat(common, []string{"-load", load, "-seed", seed})...))
		}
	}
	got := output(t, slices.Concat(common, []string{"-load", "1,0.5", "-seed", "7", "-seeds", "2"})...)
	if got != strings.Join(want, "") {
		t.Errorf("one by one\n%s\nas a sweep\n%s", strings.Join(want, ""), got)
	}
}

func TestTableHasMeansAndColumnsOfWhatIsSwept(t *testing.T) {
	common := []string{"-workload", "rag", "-span", "3s", "-policy", "prefix"}
	one := output(t, common...)
	if strings.Contains(one, "load") && strings.Contains(strings.Fields(one)[1], "load") || strings.Contains(one, "gateways") {
		t.Errorf("a column for what has one value:\n%s", one)
	}
	swept := output(t, slices.Concat(common, []string{"-load", "0.5,1", "-gateways", "1,2", "-seeds", "2"})...)
	lines := strings.Split(strings.TrimSpace(swept), "\n")
	if head := strings.Fields(lines[0]); !slices.Equal(head[:4], []string{"workload", "load", "gateways", "policy"}) || len(lines) != 5 {
		t.Errorf("got\n%s", swept)
	}
	a, b := rowsOf(t, output(t, append(common, "-json")...))[0], rowsOf(t, output(t, append(common, "-json", "-seed", "2")...))[0]
	m := meanOf([]row{a, b})
	if m.P95 != (a.P95+b.P95)/2 || m.Hit != (a.Hit+b.Hit)/2 || m.Policy != "prefix" || m.Requests != (a.Requests+b.Requests+1)/2 {
		t.Errorf("mean of %+v and %+v is %+v", a, b, m)
	}
}

func TestWrongKnowledgeReachesThePolicy(t *testing.T) {
	for _, name := range []string{"-tokens-wrong", "-capacity-wrong"} {
		rows := rowsOf(t, output(t, "-workload", "prompts", "-span", "4s", "-load", "2", "-policy", "prefix", name, "0.01,1", "-json"))
		if len(rows) != 2 || rows[0].Mean == rows[1].Mean {
			t.Errorf("%s changes nothing: %+v", name, rows)
		}
	}
}

func TestTheFirstFailureEndsASweep(t *testing.T) {
	works := lab.Workloads(1, time.Second)
	run := func(policy string) task {
		return task{work: works[0], scenario: lab.Scenario{Replicas: 2, Engine: lab.Engines()["8b"], Policy: policy, Seed: 1, Wrong: 1}, point: point{Workload: "w"}}
	}
	var tasks []task
	for range 50 {
		tasks = append(tasks, run("worst"))
	}
	bar := newProgress(os.Stderr, "test", "simulations", len(tasks))
	_, err := runAll(tasks, bar)
	if err == nil || !strings.Contains(err.Error(), "worst") {
		t.Errorf("got %v", err)
	}
	if bar.done > 2*runtime.GOMAXPROCS(0)+2 {
		t.Errorf("%d simulations after the first had failed", bar.done)
	}
}

// lines counts the lines of a picture by name, and fails if it is not XML.
func lines(t *testing.T, path string) map[string]int {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	out := map[string]int{}
	d := xml.NewDecoder(file)
	for inLine := false; ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		switch e := token.(type) {
		case xml.StartElement:
			inLine = e.Name.Local == "g" && slices.ContainsFunc(e.Attr, func(a xml.Attr) bool { return a.Value == "line" }) || inLine && e.Name.Local == "title"
		case xml.CharData:
			if inLine && strings.TrimSpace(string(e)) != "" {
				out[string(e)]++
				inLine = false
			}
		}
	}
}

func TestPictureHasALineForEachPolicyInBothPanels(t *testing.T) {
	for name, sweep := range map[string][]string{
		"load":     {"-load", "0.5,1,1.5"},
		"gateways": {"-gateways", "1,2"},
		"lag":      {"-gateways", "2", "-load-lag", "20ms,never"},
	} {
		path := filepath.Join(t.TempDir(), name+".svg")
		output(t, slices.Concat([]string{"-workload", "chat,rag", "-span", "500ms", "-policy", "prefix,llm-d,pooled", "-picture", path}, sweep)...)
		got := lines(t, path)
		if len(got) != 3 || got["prefix"] != 4 || got["llm-d"] != 4 || got["pooled"] != 4 {
			t.Errorf("%s: lines %v, want each policy in two panels of two workloads", name, got)
		}
	}
}

func TestPicturePutsLoadsOnAScale(t *testing.T) {
	cells := []cell{{point: point{Workload: "w", Load: 0.5, Gateways: 1}}, {point: point{Workload: "w", Load: 2, Gateways: 4}}}
	if p := pictureOf("", axisNamed("load"), cells).Panels[0]; !slices.Equal(p.X, []float64{0.5, 2}) || !slices.Equal(p.Ticks, []string{"0.5", "2"}) || !p.Log {
		t.Errorf("against load: %+v", p)
	}
	if p := pictureOf("", axisNamed("gateways"), cells).Panels[1]; !slices.Equal(p.X, []float64{1, 2}) || !slices.Equal(p.Ticks, []string{"1", "4"}) || p.Log {
		t.Errorf("against gateways: %+v", p)
	}
}
