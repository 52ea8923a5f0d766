package replica

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestReadyOnceHealthAndModelsAnswer(t *testing.T) {
	s := newServer(t)
	f := over(t, s)
	f.wantReady(false)
	if f.Set().Known() || len(f.Set().Replicas) != 1 {
		t.Error("before a probe there is one replica, of unknown models")
	}
	for _, c := range []struct {
		health, status int
		models, why    string
	}{
		{503, 200, models("m"), "GET /health: status 503"},
		{200, 503, models("m"), "GET /v1/models: status 503"},
		{200, 401, `{"error":"Unauthorized"}`, "replica.key"},
		{200, 200, `<html>`, "GET /v1/models: "},
		{200, 200, `{"data":[{"id":5}]}`, "GET /v1/models: "},
		{200, 200, `{"object":"list","data":[]}`, "lists no models"},
		{200, 200, `{}`, "lists no models"},
	} {
		s.health, s.modelsStatus, s.models = c.health, c.status, c.models
		if err := f.probe(); err == nil || !strings.Contains(err.Error(), c.why) {
			t.Errorf("got error %v, want %q", err, c.why)
		}
		f.wantReady(false)
	}
	s.health, s.modelsStatus, s.models = 200, 200, models("m")
	if err := f.probe(); err != nil {
		t.Error(err)
	}
	f.wantReady(true)
}

func TestGoesAndComesBackByProbes(t *testing.T) {
	s := newServer(t)
	f := over(t, s)
	for _, health := range []int{200, 500, 500, 200, 200} {
		s.health = health
		_ = f.probe()
		f.wantReady(health == 200)
		if f.Set().Model("m") == nil {
			t.Error("the model of a replica that is down is not forgotten")
		}
	}
	for text, n := range map[string]int{"replica is ready": 2, "replica is down": 1, "not ready yet": 0} {
		if got := strings.Count(f.log.String(), text); got != n {
			t.Errorf("%d times %q in the log, want %d", got, text, n)
		}
	}
}

func TestLearnsModels(t *testing.T) {
	a, b := newServer(t), newServer(t)
	a.models, b.models = models("m", "lora<m"), models("m", "other", "other")
	f := over(t, a, b)
	if err := f.probe(); err != nil {
		t.Fatal(err)
	}
	check := func(name, where string, adapter bool, index int) {
		t.Helper()
		m := f.Set().Model(name)
		if m == nil || m.Adapter != adapter || m.Index != index || ids(m.Replicas) != where {
			t.Errorf("%s: %+v, want on %s", name, m, where)
		}
	}
	onA, onB := " rank -1 slot 0", " rank -1 slot 1"
	both := onA + ", " + onB
	check("m", both, false, 1)
	check("lora", onA, true, 2)
	check("other", onB, false, 3)
	if f.Set().Model("nope") != nil || f.Set().Model("").Name != "m" || ids(f.Set().Any().Replicas) != both {
		t.Error("models that nobody named")
	}
	if card := string(f.Set().Model("lora").Card); !strings.Contains(card, `"parent":"m"`) {
		t.Error("the card is not as sent:", card)
	}

	before := f.Set()
	a.models = models("m", "lora<m") // as before, but for times and ids
	_ = f.probe()
	if f.Set() != before {
		t.Error("a new set, although nothing is new")
	}
	a.models = models("m", "late")
	_ = f.probe()
	check("lora", "", false, 2) // known, but served by nobody
	check("late", onA, false, 4)
	check("m", both, false, 1)
	if f.Set().Model("lora").Ready() || !f.Set().Model("late").Ready() {
		t.Error("a model is ready if a replica of it is")
	}
	a.models = strings.Replace(models("m", "late"), "8192", "4096", 1)
	_ = f.probe()
	b.models = models("other")
	_ = f.probe()
	if card := string(f.Set().Model("m").Card); !strings.Contains(card, "4096") {
		t.Error("the card is old:", card)
	}
	if f.Set().Model("") != nil {
		t.Error("no model is served by all")
	}
}

func TestKeepsAPathAndSendsTheKey(t *testing.T) {
	s := newServer(t)
	cfg := DefaultConfig()
	cfg.URLs, cfg.Key = []string{s.URL + "/team/a/"}, "secret"
	f := newFixture(t, cfg)
	if err := f.probe(); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(s.requests); got != "[/team/a/health Bearer secret /team/a/v1/models Bearer secret /team/a/metrics Bearer secret /team/a/v1/completions Bearer secret]" {
		t.Error(got)
	}
	r := f.Set().Replicas[0]
	if r.ID != strings.TrimPrefix(s.URL, "http://")+"/team/a" || r.URL.String() != s.URL+"/team/a" {
		t.Error(r.ID, r.URL)
	}
}

func TestFollowsNoRedirects(t *testing.T) {
	s := newServer(t)
	redirect := httptest.NewServer(http.RedirectHandler(s.URL+"/health", http.StatusTemporaryRedirect))
	defer redirect.Close()
	cfg := DefaultConfig()
	cfg.URLs = []string{redirect.URL}
	if err := newFixture(t, cfg).probe(); err == nil || !strings.Contains(err.Error(), "status 307") {
		t.Error(err)
	}
}

func TestReadsBoundedAnswers(t *testing.T) {
	hang := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/health":
		case "/slow/v1/models":
			_, _ = io.WriteString(w, `{"data":[`)
			w.(http.Flusher).Flush()
			<-hang
		default:
			for {
				if _, err := io.WriteString(w, strings.Repeat(`{"data":[`, 1000)); err != nil {
					return
				}
			}
		}
	}))
	defer s.Close()
	defer close(hang)
	cfg := DefaultConfig()
	cfg.ProbeTimeout = 50 * time.Millisecond
	cfg.URLs = []string{s.URL}
	f := newFixture(t, cfg)
	f.client.Timeout = time.Minute
	if _, err := f.endpoints[0].get(t.Context(), "/v1/models", 1<<20); err == nil || !strings.Contains(err.Error(), "longer than 1048576 bytes") {
		t.Error(err)
	}
	f.client.Timeout = cfg.ProbeTimeout
	if _, err := f.endpoints[0].get(t.Context(), "/slow/v1/models", 1<<20); err == nil {
		t.Error("an answer without end was waited for")
	}
}

// wire answers probes without a network, so that a test can run in a time of its own.
type wire struct {
	mu     sync.Mutex
	down   bool
	broken bool            // it answers 500 to requests
	probes []time.Duration // since start
	start  time.Time
}

func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	body := models("m")
	switch r.URL.Path {
	case "/health":
		w.probes = append(w.probes, time.Since(w.start))
		if w.down {
			return nil, errors.New("connection refused")
		}
	case "/metrics":
		body = "vllm:num_requests_running 0\n"
	}
	status := 200
	if w.broken && r.Method == http.MethodPost {
		status = 500
	}
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
}

func (w *wire) taken() (probes []time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	probes, w.probes = w.probes, nil
	return probes
}

// watched runs a pool over a wire in a bubble of synctest.
func watched(t *testing.T, f func(w *wire, p *fixture)) {
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultConfig()
		cfg.URLs = []string{"http://r:1"}
		p := newFixture(t, cfg)
		w := &wire{start: time.Now()}
		p.client.Transport = w
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { p.Pool.Run(ctx); close(done) }()
		synctest.Wait()
		f(w, p)
		cancel()
		<-done
	})
}

func (w *wire) set(down, broken bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down, w.broken = down, broken
}

func TestProbesAFailingReplicaMoreOftenAtFirst(t *testing.T) {
	watched(t, func(w *wire, p *fixture) {
		p.wantReady(true) // the first probe is at once
		time.Sleep(100 * time.Second)
		if n := len(w.taken()); n < 40 || n > 67 {
			t.Errorf("%d probes in 100 s at an interval of 2 s", n)
		}
		w.set(true, false)
		for p.Ready() {
			time.Sleep(100 * time.Millisecond)
		}
		w.taken()
		time.Sleep(2 * time.Second)
		if n := len(w.taken()); n < 2 || n > 4 {
			t.Errorf("%d probes in its first 2 s of failing", n)
		}
		time.Sleep(100 * time.Second)
		if n := len(w.taken()); n < 40 || n > 67 {
			t.Errorf("%d probes in 100 s while it fails", n)
		}
		w.set(false, false)
		time.Sleep(3 * time.Second)
		p.wantReady(true)
	})
}

func TestAFaultIsProbedAtOnce(t *testing.T) {
	watched(t, func(w *wire, p *fixture) {
		time.Sleep(time.Second)
		w.taken()
		w.set(true, false)
		p.Set().Replicas[0].Failed(Reset)
		synctest.Wait()
		if n := len(w.taken()); n != 1 {
			t.Errorf("%d probes", n)
		}
		p.wantReady(false)
		for range 100 { // those who try it nonetheless make no more
			p.Set().Replicas[0].Failed(Refused)
			synctest.Wait()
		}
		if n := len(w.taken()); n > 1 {
			t.Errorf("%d probes", n)
		}
	})
}

// TestTrafficMarksDown says which faults do it, and that a probe brings it back.
func TestTrafficMarksDown(t *testing.T) {
	f := func(name string, want string, traffic func(*Replica)) {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			p := over(t, s)
			_ = p.probe()
			r := p.Set().Replicas[0]
			traffic(r)
			if r.State() != want || r.Ready() != (want == "ready") || r.LastResort() != (want != "ready") || r.Lost() {
				t.Errorf("state %s, ready %v, last resort %v, lost %v; want %s", r.State(), r.Ready(), r.LastResort(), r.Lost(), want)
			}
			_ = p.probe()
			if r.State() != "ready" {
				t.Errorf("state %s after a good probe", r.State())
			}
			if r.Failed(CutOff); want == "marked" && r.State() != "ready" {
				t.Error("one fault is enough although it came back")
			}
			s.health = 503
			_ = p.probe()
			if r.State() != "down" || r.Ready() || !r.LastResort() || !r.Lost() {
				t.Errorf("state %s, last resort %v, lost %v after a failed probe", r.State(), r.LastResort(), r.Lost())
			}
		})
	}
	many := func(n int, fault Fault) func(*Replica) {
		return func(r *Replica) {
			for range n {
				r.Failed(fault)
			}
		}
	}
	f("nothing", "ready", func(*Replica) {})
	f("one refused connection", "marked", many(1, Refused))
	for _, fault := range Faults()[1:] {
		f("two of "+fault.String(), "ready", many(2, fault))
		f("three of "+fault.String(), "marked", many(3, fault))
	}
	f("faults between successes", "ready", func(r *Replica) {
		for range 10 {
			r.Failed(Errored)
			r.Failed(Reset)
			r.Succeeded()
		}
	})
}

// TestWhatOnlyLooksWellIsLeftAloneLongerAndLonger: without a warm-up, health checks
// bring back at once what cannot answer.
func TestWhatOnlyLooksWellIsLeftAloneLongerAndLonger(t *testing.T) {
	watched(t, func(_ *wire, p *fixture) {
		r := p.Set().Replicas[0]
		var away []time.Duration
		for range 10 {
			time.Sleep(2500 * time.Millisecond)
			r.Failed(Refused)
			began := time.Now()
			for !r.Ready() {
				time.Sleep(10 * time.Millisecond)
			}
			away = append(away, time.Since(began))
		}
		if away[0] > 100*time.Millisecond {
			t.Errorf("the first time it was away for %v", away[0])
		}
		if away[3] < time.Second || away[9] < 7*time.Second || away[9] > 13*time.Second {
			t.Errorf("away for %v", away)
		}
		time.Sleep(2 * time.Minute)
		r.Failed(Refused)
		synctest.Wait()
		if !r.Ready() {
			t.Error("old marks are not forgotten")
		}
	})
}

// TestAProbeThatBeganBeforeAMarkDoesNotUndoIt.
func TestAProbeThatBeganBeforeAMarkDoesNotUndoIt(t *testing.T) {
	s := newServer(t)
	p := over(t, s)
	_ = p.probe()
	e, r := p.endpoints[0], p.Set().Replicas[0]
	was := e.state.Load()
	r.Failed(Refused)
	e.report(was, nil)
	if r.Ready() {
		t.Error("ready again by what was seen before")
	}
}

func TestAReplicaAnswersARequestBeforeItGetsOthers(t *testing.T) {
	s := newServer(t)
	s.models, s.completions = models("a<m", "m"), 500
	s.metrics = engines(s.metrics, "0", "1")
	f := over(t, s)
	if err := f.probe(); err == nil || !strings.Contains(err.Error(), "does not answer requests") {
		t.Errorf("got error %v", err)
	}
	f.wantReady(false)
	s.completions = 200
	s.warmUps = nil
	_, _ = f.probe(), f.probe()
	f.wantReady(true)
	body := ` warmpath-warm-up {"max_tokens":1,"model":"m","prompt":"hi","temperature":0}`
	if want := []string{"/v1/completions rank 0" + body, "/v1/completions rank 1" + body}; !slices.Equal(s.warmUps, want) {
		t.Errorf("got requests\n%q, want\n%q", s.warmUps, want)
	}

	for _, status := range []int{400, 401, 404, 429, 501} { // somebody is there: a model without completions, most likely
		s.health, s.completions = 503, status
		_ = f.probe()
		s.health = 200
		if err := f.probe(); err != nil {
			t.Errorf("status %d: %v", status, err)
		}
	}

	s.warmUps, s.completions = nil, 200
	awake := s.metrics
	s.metrics = strings.Replace(awake, `engine="1",model_name="smol4",sleep_state="discard_all"} 0.0`, `engine="1",model_name="smol4",sleep_state="discard_all"} 1.0`, 1)
	if s.metrics == awake {
		t.Fatal("the page has no such line")
	}
	_ = f.probe()
	if len(s.warmUps) != 0 {
		t.Errorf("asked because another sleeps: %q", s.warmUps)
	}
	s.metrics = awake
	_ = f.probe()
	if len(s.warmUps) != 1 || !strings.Contains(s.warmUps[0], "rank 1") {
		t.Errorf("when one woke: %q", s.warmUps)
	}

	s.warmUps, f.cfg.WarmUp = nil, false
	s.health = 503
	_ = f.probe()
	s.health = 200
	_ = f.probe()
	if len(s.warmUps) != 0 {
		t.Errorf("asked although it is off: %q", s.warmUps)
	}
}

func TestDrainedReplicasGetNothingNew(t *testing.T) {
	s := newServer(t)
	f := over(t, s)
	_ = f.probe()
	r := f.Replica(f.Set().Replicas[0].ID)
	r.Drain(true)
	_ = f.probe()
	f.wantReady(false)
	if r.LastResort() || r.Lost() || !r.Draining() {
		t.Errorf("last resort %v, lost %v", r.LastResort(), r.Lost())
	}
	r.Drain(false)
	f.wantReady(true)
	if f.Replica("nobody:1") != nil {
		t.Error("somebody")
	}
}

func TestRunEndsWhileAProbeHangs(t *testing.T) {
	asked := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(asked)
		<-r.Context().Done()
	}))
	defer s.Close()
	cfg := DefaultConfig()
	cfg.URLs, cfg.ProbeTimeout = []string{s.URL}, time.Hour
	f := newFixture(t, cfg)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { f.Pool.Run(ctx); close(done) }()
	<-asked
	cancel()
	<-done
	if f.log.Len() > 0 {
		t.Error("the end of the gateway is no failure of a replica:", f.log.String())
	}
}

func TestRefusesSettingsThatCannotWork(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"":                             func(*Config) {},
		"-replica http://host:port":    func(c *Config) { c.URLs = nil },
		`"h:1" is not a URL`:           func(c *Config) { c.URLs[1] = "h:1" },
		`"" is not a URL`:              func(c *Config) { c.URLs[1] = "" },
		`"ftp://h" is not a URL`:       func(c *Config) { c.URLs[1] = "ftp://h" },
		`"http://%zz" is not a URL`:    func(c *Config) { c.URLs[1] = "http://%zz" },
		"leave out /v1":                func(c *Config) { c.URLs[1] = "http://h:2/v1/" },
		"http://a:1 is named twice":    func(c *Config) { c.URLs[1] = "http://a:1/" },
		"probe_interval must be above": func(c *Config) { c.ProbeInterval = 0 },
		"probe_timeout must be above":  func(c *Config) { c.ProbeTimeout = -1 },
		"scrape_interval must be":      func(c *Config) { c.ScrapeInterval = 0 },
	} {
		cfg := DefaultConfig()
		cfg.URLs = []string{"http://a:1", "https://b:1/path"}
		change(&cfg)
		_, err := New(cfg, nil, nil)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("got error %v, want %q", err, want)
		}
	}
}

func TestAVirtualReplicaIsReady(t *testing.T) {
	r := Virtual("v:1", 3)
	m := &Model{Replicas: []*Replica{r}}
	if !r.Ready() || !m.Ready() || r.ID != "v:1" || r.Slot != 3 || r.Facts() != (Facts{}) {
		t.Errorf("%+v", r)
	}
}

// TestCountersAreToldWhoeverReadThem is for what is made of them over time.
func TestCountersAreToldWhoeverReadThem(t *testing.T) {
	f := over(t, newServer(t))
	if err := f.probe(); err != nil {
		t.Fatal(err)
	}
	r := f.Set().Replicas[0]
	heard := r.Facts()
	heard.Prompt += 500
	f.Heard(r, heard)
	if n := len(f.counts); n != 2 || f.counts[1] != f.counts[0]+500 {
		t.Errorf("told %v", f.counts)
	}
}
