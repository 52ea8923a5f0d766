//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/warmpath/warmpath/internal/bench"
	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/gateway"
	"github.com/warmpath/warmpath/test/redistest"
)

// observed is a gateway over mock replicas that has been under load, and what its
// client measured.
type observed struct {
	*gateway.Gateway
	replicas []string // their URLs
	mu       sync.Mutex
	ttft     map[string][]float64 // seconds, by replica
}

// observe starts a gateway that the test stops again.
func observe(t *testing.T, change func(*config.Config)) *observed {
	t.Helper()
	cfg := config.Default()
	cfg.Listen, cfg.Admin, cfg.Demo = "127.0.0.1:0", "127.0.0.1:0", 3
	if change != nil {
		change(cfg)
	}
	g, err := gateway.New(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	g.Start()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = g.Stop(ctx)
	})
	o := &observed{Gateway: g, ttft: map[string][]float64{}}
	soon(t, "every replica is ready", func() bool {
		list := o.list(t)
		return len(list) > 0 && !slices.ContainsFunc(list, func(r listed) bool { return !r.Ready })
	})
	for _, r := range o.list(t) {
		o.replicas = append(o.replicas, r.URL)
	}
	return o
}

// roster returns the URL of a file that names replicas.
func roster(t *testing.T, urls []string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "replicas.txt")
	if err := os.WriteFile(path, []byte(strings.Join(urls, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	return "file:" + path
}

type listed struct {
	URL   string
	Ready bool
}

func (o *observed) list(t *testing.T) []listed {
	t.Helper()
	var page struct{ Replicas []listed }
	fetchJSON(t, o.AdminAddr()+"/replicas", &page)
	return page.Replicas
}

// load sends conversations for some seconds, and what goes wrong now and then.
func (o *observed) load(t *testing.T, d time.Duration) {
	t.Helper()
	c, err := bench.New(bench.Config{Endpoint: o.Addr(), Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	post := func(base, path, body string) {
		resp, err := http.Post(base+path, "application/json", strings.NewReader(body))
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	var wg sync.WaitGroup
	for user := range 6 {
		wg.Go(func() {
			history, system, usage := "", filler(user%2, 3000), `"stream_options":{"include_usage":true},`
			if user == 0 { // of the replica that has it, only the engine's counters tell
				system, usage = filler(2, 48000), ""
			}
			for turn := 0; ctx.Err() == nil; turn++ {
				if turn%6 == 0 {
					history = `{"role":"system","content":"` + system + `"}`
				}
				history += fmt.Sprintf(`,{"role":"user","content":"%s"}`, filler(user*1000+turn, 600))
				body := `{"model":"mock","stream":true,` + usage + `"max_tokens":12,"messages":[` + history + `]}`
				a := c.Send(t.Context(), bench.Call{Path: "/v1/chat/completions", Body: []byte(body), Keep: true})
				if a.Failure != bench.None {
					continue // of the faults below
				}
				history += `,{"role":"assistant","content":` + strconv.Quote(a.Text) + `}`
				o.mu.Lock()
				o.ttft[a.Replica] = append(o.ttft[a.Replica], a.First.Seconds())
				o.mu.Unlock()
			}
		})
	}
	wg.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			post(o.Addr(), "/v1/chat/completions", `{"model":"made-up","messages":[]}`)
			post(o.Addr(), "/v1/chat/completions", `{"model":"mock","max_tokens":4,"messages":[{"role":"user","content":"whole"}]}`)
			post(o.replicas[i%len(o.replicas)], "/mock/faults", `{"next":1,"status":503}`)
			select {
			case <-time.After(700 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	})
	wg.Wait()
}

// filler is about n bytes of text that differs by seed.
func filler(seed, n int) string {
	var b strings.Builder
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, "w%dx%d ", seed, i)
	}
	return b.String()
}

func soon(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !f(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

func fetchJSON(t *testing.T, url string, into any) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	if err := json.Unmarshal(body, into); err != nil {
		t.Fatalf("%s: %v: %s", url, err, body)
	}
}

// installed returns the path of a program, which the system's package of that name
// brings if it is missing.
func installed(t *testing.T, name string) string {
	t.Helper()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	install := exec.Command("apt-get", "install", "-y", "--no-install-recommends", name)
	install.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	if out, err := install.CombinedOutput(); err != nil {
		t.Skipf("%s is not here and could not be installed: %v: %s", name, err, out)
	}
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skip(err)
	}
	return path
}

// prometheus is a real Prometheus.
type prometheus struct{ url string }

// newPrometheus starts one that scrapes a gateway each second and evaluates the rules.
func newPrometheus(t *testing.T, admin string) *prometheus {
	t.Helper()
	path, dir := installed(t, "prometheus"), t.TempDir()
	rules, err := filepath.Abs("../../deploy/prometheus/rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	settings := fmt.Sprintf("global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [%q]\nscrape_configs:\n  - job_name: warmpath\n    static_configs: [{targets: [%q]}]\n",
		rules, strings.TrimPrefix(admin, "http://"))
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	_ = l.Close()
	var log bytes.Buffer
	cmd := exec.Command(path, "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address)
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	p := &prometheus{url: "http://" + address}
	soon(t, "Prometheus is ready", func() bool {
		resp, err := http.Get(p.url + "/-/ready")
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	return p
}

// sample is one series of an answer.
type sample struct {
	Metric map[string]string
	Value  [2]any
}

func (s *sample) number() float64 {
	text, _ := s.Value[1].(string)
	f, _ := strconv.ParseFloat(text, 64)
	return f
}

// ask returns the series of an expression that have a number.
func (p *prometheus) ask(t *testing.T, expr string) (list []sample) {
	t.Helper()
	var answer struct {
		Status, Error string
		Data          struct{ Result []sample }
	}
	fetchJSON(t, p.url+"/api/v1/query?query="+url.QueryEscape(expr), &answer)
	if answer.Status != "success" {
		t.Errorf("%s: %s", expr, answer.Error)
	}
	for _, s := range answer.Data.Result {
		if text, _ := s.Value[1].(string); text != "NaN" {
			list = append(list, s)
		}
	}
	return list
}

// TestDashboardAndRules has a real Prometheus scrape a gateway under load, and asks
// it everything that the dashboard and the rules ask.
func TestDashboardAndRules(t *testing.T) {
	redis := redistest.Start(t)
	o := observe(t, func(c *config.Config) {
		c.Redis.URL = "redis://" + redis.Addr
		c.Demo, c.Replica.URLs = 0, []string{roster(t, observe(t, nil).replicas)}
		c.Replica.ScrapeInterval = time.Second // the counters of a window of 15 seconds are read in time
	})
	p := newPrometheus(t, o.AdminAddr())
	o.load(t, 20*time.Second)
	time.Sleep(2 * time.Second) // one more scrape and evaluation

	variables := strings.NewReplacer("$__rate_interval", "30s", "$model", ".*", "$replica", ".*")
	var dashboard struct {
		Panels []struct {
			Title, Type string
			Targets     []struct{ Expr string }
		}
	}
	read(t, "../../deploy/grafana/warmpath.json", json.Unmarshal, &dashboard)
	asked, page := 0, &drawing{}
	for _, panel := range dashboard.Panels {
		var curves []curve
		for _, target := range panel.Targets {
			asked++
			if len(p.ask(t, variables.Replace(target.Expr))) == 0 {
				t.Errorf("panel %q is empty: %s", panel.Title, target.Expr)
			}
			curves = append(curves, p.over(t, variables.Replace(target.Expr), 30*time.Second)...)
		}
		if panel.Type != "row" {
			page.panel(panel.Title, curves)
		}
	}
	text := page.picture(t, "dashboard", 1280, 1500)
	for _, panel := range dashboard.Panels {
		if panel.Type != "row" && !strings.Contains(text, strings.ReplaceAll(panel.Title, "'", "&#39;")) {
			t.Errorf("the drawing has no panel %q", panel.Title)
		}
	}
	if first := dashboard.Panels[0].Title; first != "TTFT P95 per replica" {
		t.Errorf("the first panel is %q", first)
	}

	var rules struct {
		Groups []struct {
			Rules []struct{ Record, Alert, Expr string }
		}
	}
	read(t, "../../deploy/prometheus/rules.yml", func(b []byte, v any) error { return yaml.Unmarshal(b, v) }, &rules)
	comparison := regexp.MustCompile(` [<>] [0-9.]+$`)
	for _, group := range rules.Groups {
		for _, rule := range group.Rules {
			asked++
			p.ask(t, rule.Expr)
			expr := rule.Record
			if rule.Alert != "" {
				expr = comparison.ReplaceAllString(rule.Expr, "")
				if expr == rule.Expr {
					t.Errorf("%s has no comparison at its end", rule.Alert)
				}
			}
			if len(p.ask(t, expr)) == 0 {
				t.Errorf("%s%s tells nothing: %s", rule.Record, rule.Alert, expr)
			}
		}
	}
	t.Logf("%d expressions were asked", asked)
	compareQuantiles(t, o, p)
}

// compareQuantiles holds TTFT P95 of each replica to what the client measured.
func compareQuantiles(t *testing.T, o *observed, p *prometheus) {
	buckets := []float64{0, .001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20}
	bucket := func(v float64) int { i, _ := slices.BinarySearch(buckets, v); return i }
	compared := 0
	// Over everything since the start: a rate would leave out what came before the
	// first scrape.
	for _, s := range p.ask(t, `histogram_quantile(0.95, sum by (le, replica) (warmpath_ttft_seconds_bucket))`) {
		own := o.ttft[s.Metric["replica"]]
		slices.Sort(own)
		if len(own) < 20 {
			continue
		}
		compared++
		client := own[len(own)*95/100]
		t.Logf("%s: P95 %.3f s by Prometheus, %.3f s by %d requests' client", s.Metric["replica"], s.number(), client, len(own))
		if d := bucket(s.number()) - bucket(client); d < -1 || d > 1 {
			t.Errorf("they are %d buckets apart", d)
		}
	}
	if compared < 2 {
		t.Errorf("%d replicas could be compared", compared)
	}
}

func read(t *testing.T, path string, parse func([]byte, any) error, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err == nil {
		err = parse(text, into)
	}
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}
