package replica

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestReadsAVLLMPage(t *testing.T) {
	now := time.Now()
	p := set(page(t), "vllm:num_requests_running", "3.0")
	p = set(p, "vllm:num_requests_waiting", "2.0")
	p = set(p, "vllm:kv_cache_usage_perc", "0.25")
	got, err := parseFacts([]byte(p), now)
	want := Facts{BlockSize: 128, Blocks: 1365, Start: 1.79605451464e+09, Running: 3, Waiting: 2, Usage: 0.25, Prompt: 4498, Cached: 1152, At: now}
	if err != nil || len(got) != 1 || got[0] != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}

func TestTellsEnginesApartByTheOrderOfTheirLabels(t *testing.T) {
	for _, labels := range [][]string{{"0", "1"}, {"10", "9"}, {"4", "5"}} { // the last is a second node's
		p := engines(page(t), labels...)
		low := min(labels[0], labels[1])
		if labels[0] == "10" {
			low = "9"
		}
		var b strings.Builder
		for line := range strings.Lines(p) {
			if strings.HasPrefix(line, "vllm:num_requests_running") && strings.Contains(line, `engine="`+low+`"`) {
				line = strings.Replace(line, "} 0.0", "} 7.0", 1)
			}
			b.WriteString(line)
		}
		got, err := parseFacts([]byte(b.String()), time.Now())
		if err != nil || len(got) != 2 || got[0].Running != 7 || got[1].Running != 0 || got[1].Blocks != 1365 || got[1].Start != got[0].Start {
			t.Errorf("%v: got %+v, %v", labels, got, err)
		}
	}
	if got, err := parseFacts([]byte(engines(page(t), "3")), time.Now()); err != nil || len(got) != 1 {
		t.Errorf("one engine of rank 3: got %+v, %v", got, err)
	}
}

func TestTakesNothingFromPagesThatAreNotVLLMs(t *testing.T) {
	for name, p := range map[string]string{
		"empty": "", "a web page": "<html><body>not here</body></html>", "another engine's": "sglang:num_running_reqs 1\n",
		"broken off": page(t)[:20000] + "\nvllm:x{", "too many engines": engines(page(t), strings.Fields(strings.Repeat("1 2 3 4 5 6 7 8 9 ", 1)+numbers(10, 80))...),
	} {
		if got, err := parseFacts([]byte(p), time.Now()); err == nil || got != nil {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
	}
	for name, p := range map[string]string{
		"no cache":     strings.NewReplacer(`num_gpu_blocks="1365"`, `num_gpu_blocks="None"`).Replace(page(t)),
		"absurd cache": strings.NewReplacer(`num_gpu_blocks="1365"`, `num_gpu_blocks="99999999999999999999"`).Replace(page(t)),
		"negative":     strings.NewReplacer(`block_size="128"`, `block_size="-1"`).Replace(page(t)),
	} {
		got, err := parseFacts([]byte(set(p, "vllm:num_requests_running", "NaN")), time.Now())
		if err != nil || len(got) != 1 || got[0].Blocks != 0 || got[0].BlockSize != 0 || got[0].Running != 0 {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
	}
}

func numbers(from, to int) string {
	var list []string
	for n := from; n < to; n++ {
		list = append(list, string(rune('0'+n/10))+string(rune('0'+n%10)))
	}
	return strings.Join(list, " ")
}

func TestNoticesThatACacheIsEmpty(t *testing.T) {
	const told = "host told 1365x128"
	asleep := func(p string) string {
		return strings.Replace(p, `sleep_state="weights_offloaded"} 0.0`, `sleep_state="weights_offloaded"} 1.0`, 1)
	}
	for name, c := range map[string]struct {
		change func(page string) string
		want   []string
	}{
		"nothing new":         {func(p string) string { return p }, nil},
		"more tokens":         {func(p string) string { return set(p, "vllm:prompt_tokens_total", "5000") }, nil},
		"a later start":       {func(p string) string { return set(p, "process_start_time_seconds", "1.8e9") }, []string{"host emptied"}},
		"a counter went down": {func(p string) string { return set(p, "vllm:prompt_tokens_total", "17") }, []string{"host emptied"}},
		"other blocks":        {func(p string) string { return strings.Replace(p, `num_gpu_blocks="1365"`, `num_gpu_blocks="500"`, 1) }, []string{"host told 500x128", "host emptied"}},
		"it sleeps":           {asleep, []string{"host emptied"}},
		"the page is garbage": {func(string) string { return "<html>" }, nil},
		"the page is missing": {func(string) string { return "" }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			f := over(t, s)
			_ = f.probe()
			f.wantEvents(told)
			first := f.Set().Replicas[0].Facts()
			s.metrics = c.change(s.metrics)
			for range 2 { // the second tells nothing new
				if err := f.probe(); err != nil {
					t.Error("metrics made it unwell:", err)
				}
			}
			f.wantEvents(c.want...)
			f.wantReady(name != "it sleeps")
			if len(s.metrics) < 100 && f.Set().Replicas[0].Facts() != first {
				t.Error("facts are gone")
			}
			if n := strings.Count(f.log.String(), "metrics cannot be read"); (n == 1) != (len(s.metrics) < 100) {
				t.Errorf("%d warnings of metrics", n)
			}
		})
	}
}

func TestAReplicaThatWakesIsReadyAgain(t *testing.T) {
	s := newServer(t)
	awake := s.metrics
	s.metrics = strings.Replace(awake, `sleep_state="discard_all"} 0.0`, `sleep_state="discard_all"} 1.0`, 1)
	f := over(t, s)
	_ = f.probe()
	f.wantReady(false)
	s.metrics = awake
	_ = f.probe()
	f.wantReady(true)
}

func TestWithoutMetricsARestartIsAssumedWhenItComesBack(t *testing.T) {
	s := newServer(t)
	s.metrics = ""
	f := over(t, s)
	for _, health := range []int{200, 200} {
		s.health = health
		_ = f.probe()
	}
	f.wantReady(true)
	f.wantEvents()
	if f.Set().Replicas[0].Facts() != (Facts{}) {
		t.Error("facts from nowhere")
	}
	for _, health := range []int{500, 200, 200} {
		s.health = health
		_ = f.probe()
	}
	f.wantEvents("host emptied")
}

func TestScrapesWhenDueAndWhenItComesBack(t *testing.T) {
	s := newServer(t)
	cfg := DefaultConfig()
	cfg.URLs, cfg.ScrapeInterval = []string{s.URL}, time.Hour
	f := newFixture(t, cfg)
	scrapes := func() (n int) {
		for _, r := range s.requests {
			if strings.HasPrefix(r, "/metrics") {
				n++
			}
		}
		return n
	}
	_, _ = f.probe(), f.probe()
	if n := scrapes(); n != 1 {
		t.Errorf("%d scrapes within the interval", n)
	}
	f.endpoints[0].scraped = time.Now().Add(-2 * time.Hour)
	_ = f.probe()
	if n := scrapes(); n != 2 {
		t.Errorf("%d scrapes after the interval", n)
	}
	s.health = 500
	_ = f.probe()
	s.health, s.metrics = 200, set(s.metrics, "process_start_time_seconds", "1.8e9")
	_ = f.probe()
	if n := scrapes(); n != 3 {
		t.Errorf("%d scrapes when it is back", n)
	}
	f.wantEvents("host told 1365x128", "host emptied")
}

func TestDataParallelEnginesAreAReplicaEach(t *testing.T) {
	s := newServer(t)
	one := s.metrics
	s.metrics = engines(one, "0", "1")
	f := over(t, s)
	want := func(replicas string) {
		t.Helper()
		set := f.Set()
		if got := ids(set.Replicas); got != replicas || ids(set.Model("m").Replicas) != got || ids(set.Any().Replicas) != got || set.Model("") == nil {
			t.Errorf("got %s, want %s", got, replicas)
		}
	}
	_ = f.probe()
	want("/0 rank 0 slot 1, /1 rank 1 slot 2")
	f.wantReady(true)
	f.wantEvents("host/0 told 1365x128", "host/1 told 1365x128")

	s.metrics = "" // it is not known how many there are: as many as before
	_ = f.probe()
	want("/0 rank 0 slot 1, /1 rank 1 slot 2")
	s.health = 500
	_ = f.probe()
	f.wantReady(false)
	s.health = 200
	_ = f.probe()
	f.wantEvents("host/0 emptied", "host/1 emptied")

	s.metrics = one
	_ = f.probe()
	want(" rank -1 slot 0")
	f.wantEvents("host told 1365x128")
	s.metrics = engines(one, "0", "1")
	_ = f.probe()
	want("/0 rank 0 slot 1, /1 rank 1 slot 2") // the same ones again
	f.wantEvents()
}

func FuzzParseFacts(f *testing.F) {
	var short strings.Builder // a whole page makes each run slow
	for line := range strings.Lines(page(f)) {
		if regexp.MustCompile(`cache_config|num_requests_running|kv_cache_usage|prompt_tokens_(cached_)?total|sleep|start_time`).MatchString(line) {
			short.WriteString(line)
		}
	}
	f.Add([]byte(short.String()))
	f.Add([]byte(engines(short.String(), "0", "1")))
	f.Add([]byte("vllm:num_requests_running{engine=\"-5\"} -1\nvllm:prompt_tokens_total +Inf\n"))
	f.Fuzz(func(t *testing.T, page []byte) {
		facts, err := parseFacts(page, time.Time{})
		if (err == nil) != (len(facts) > 0) || len(facts) > maxRanks {
			t.Fatalf("%d engines, error %v", len(facts), err)
		}
		for _, f := range facts {
			if (f.Blocks > 0) != (f.BlockSize > 0) || f.Blocks < 0 || !(f.Running >= 0 && f.Waiting >= 0 && f.Usage >= 0 && f.Prompt >= 0 && f.Cached >= 0 && f.Start >= 0) {
				t.Errorf("%+v", f)
			}
		}
	})
}

func FuzzParseModels(f *testing.F) {
	for _, body := range []string{models("m", "l<m"), `{"data":[{"id":"m","parent":""},{"id":"m"},{}]}`, `{"data":[null]}`, `{"data":{}}`, `[]`, `{"Data":[{"ID":"x"}]}`} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		cards, err := parseModels(body)
		if (err == nil) != (len(cards) > 0) {
			t.Fatalf("%d models, error %v", len(cards), err)
		}
		seen := map[string]bool{}
		for _, c := range cards {
			if c.id == "" || seen[c.id] || !json.Valid(c.raw) || !json.Valid(c.lasting) {
				t.Errorf("%+v", c)
			}
			seen[c.id] = true
		}
	})
}

func BenchmarkParseFacts(b *testing.B) {
	p := []byte(page(b))
	b.SetBytes(int64(len(p)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := parseFacts(p, time.Time{}); err != nil {
			b.Fatal(err)
		}
	}
}

func TestCachedTokensAreReadFromEitherCounter(t *testing.T) {
	const running, newer, older = "vllm:num_requests_running 0\n", "vllm:prompt_tokens_cached_total 7\n", "vllm:prefix_cache_hits_total 5\n"
	for page, want := range map[string]float64{running: 0, running + newer: 7, running + older: 5, running + older + newer: 7} {
		if got, err := parseFacts([]byte(page), time.Now()); err != nil || got[0].Cached != want {
			t.Errorf("%q: %+v, %v", page, got, err)
		}
	}
}
