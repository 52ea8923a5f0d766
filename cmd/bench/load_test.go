package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/bench"
	"github.com/warmpath/warmpath/internal/mockvllm"
)

// replica is a mock with a configuration.
func replica(t *testing.T, cfg mockvllm.Config) (*mockvllm.Server, string) {
	t.Helper()
	server := mockvllm.New(cfg)
	srv := httptest.NewServer(server.Handler())
	t.Cleanup(func() {
		server.Close()
		srv.Close()
	})
	return server, srv.URL
}

func quick() mockvllm.Config {
	cfg := mockvllm.DefaultConfig()
	cfg.StepBase, cfg.PrefillPerToken = time.Millisecond, 5*time.Microsecond
	return cfg
}

// measured runs a command with -o and returns what it printed and saved.
func measured(t *testing.T, args ...string) (string, []*bench.Result, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "out.json")
	var out bytes.Buffer
	err := run(append(args, "-o", file), &out)
	results, failed := bench.Load(file)
	if failed != nil {
		t.Fatal(failed, err)
	}
	return out.String(), results, err
}

func TestLoadSendsExactlyTheTokensAskedFor(t *testing.T) {
	server, url := replica(t, quick())
	printed, results, err := measured(t, "load", "--endpoint", url, "-requests", "12", "-concurrency", "3", "-input", "100", "-shared", "160", "-output", "7", "-engine", url)
	if err != nil {
		t.Fatal(err)
	}
	r := results[0]
	if r.Attempted != 12 || r.OK != 12 || r.PromptTokens != 12*260 || r.OutputTokens != 12*7 || r.TTFT.Count != 12 || r.TPOT.Count != 12 || r.Client.CPUSeconds <= 0 {
		t.Errorf("%+v", r)
	}
	st := server.Stats()
	if r.CachedTokens != int(st.CachedTokens) || r.CachedTokens < 9*160 || r.Engine == nil || r.Engine.PromptTokens != 12*260 {
		t.Errorf("cached %d, the engine says %d; %+v", r.CachedTokens, st.CachedTokens, r.Engine)
	}
	repeated := 0
	for _, s := range r.Samples {
		repeated += s.Repeated
	}
	if repeated != 11*160 {
		t.Errorf("%d tokens repeated", repeated)
	}
	for _, want := range []string{"TTFT ms", "attempted", "12", "cached"} {
		if !strings.Contains(printed, want) {
			t.Errorf("no %q in\n%s", want, printed)
		}
	}
}

func TestLoadOfSessionsHitsWhatWasSaid(t *testing.T) {
	_, url := replica(t, quick())
	for _, as := range []string{"tokens", "chat"} {
		_, results, err := measured(t, "load", "-endpoint", url, "-requests", "4", "-concurrency", "2", "-input", "64", "-output", "32", "-turns", "3", "-think", "1ms", "-as", as, "-seed", fmt.Sprint(len(as)))
		if err != nil {
			t.Fatal(err)
		}
		r := results[0]
		if share, known := r.CachedShare(); r.OK != 12 || !known || share < 0.4 {
			t.Errorf("%s: %d turns, %.2f cached", as, r.OK, share)
		}
	}
}

func TestLoadInAnOpenLoopSideBySide(t *testing.T) {
	_, one := replica(t, quick())
	_, two := replica(t, quick())
	for _, arrivals := range [][]string{{"constant"}, {"poisson"}, {"bursts", "-burst", "5"}, {"own", "-workload", "systems", "-span", "1s", "-time-scale", "0.1", "-requests", "20"}} {
		args := append([]string{"load", "-endpoint", one + "," + two, "-rate", "100", "-requests", "20", "-input", "20", "-output", "2", "-distinct", "-arrivals"}, arrivals...)
		_, results, err := measured(t, args...)
		if err != nil {
			t.Fatal(err)
		}
		if len(results) != 2 || results[0].OK != 20 || results[1].OK != 20 || results[0].Late.Count != 20 || results[1].Endpoint != two || results[0].Samples[19].At <= 0 {
			t.Errorf("%v: %d results", arrivals, len(results))
		}
	}
}

func TestLoadEndsWithItsDuration(t *testing.T) {
	_, url := replica(t, quick())
	for _, loop := range [][]string{{"-concurrency", "2"}, {"-rate", "50"}} {
		_, results, err := measured(t, append([]string{"load", "-endpoint", url, "-duration", "400ms", "-warm-up", "100ms", "-input", "10", "-output", "2", "-slo", "ttft=10s,tpot=1s,e2e=20s"}, loop...)...)
		if err != nil {
			t.Fatal(err)
		}
		if r := results[0]; r.WarmUp == 0 || r.OK == 0 || r.Seconds > 5 || r.Good != r.OK || r.GoodPerSecond <= 0 {
			t.Errorf("%v: %d warm, %d ok in %v s", loop, r.WarmUp, r.OK, r.Seconds)
		}
	}
}

func TestLoadOfADataset(t *testing.T) {
	server, url := replica(t, quick())
	file := filepath.Join(t.TempDir(), "prompts.jsonl")
	if err := os.WriteFile(file, []byte(`{"prompt":"one"}`+"\n"+`{"messages":[{"role":"user","content":"two"}]}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, results, err := measured(t, "load", "-endpoint", url, "-dataset", file, "-output", "4", "-concurrency", "1"); err != nil || results[0].OK != 2 {
		t.Fatalf("%v, %+v", err, results)
	}
	said := server.Requests()
	if !strings.Contains(string(said[0].Body), `"one"`) || !strings.Contains(string(said[1].Body), `"two"`) || strings.Contains(string(said[0].Body), "ignore_eos") {
		t.Errorf("sent %s, %s", said[0].Body, said[1].Body)
	}
}

// TestLoadTellsFailures by cause beside the rates, and by its exit code.
func TestLoadTellsFailures(t *testing.T) {
	server, url := replica(t, quick())
	server.SetFaults(mockvllm.Faults{Next: 3, Status: 503})
	printed, results, err := measured(t, "load", "-endpoint", url, "-requests", "30", "-concurrency", "1", "-input", "10", "-output", "2")
	if err == nil || !strings.Contains(err.Error(), "3 of 30 requests failed") {
		t.Errorf("%v", err)
	}
	if r := results[0]; r.OK != 27 || r.Failures["status 503"] != 3 || r.TTFT.Count != 27 || !strings.Contains(printed, "3 status 503") {
		t.Errorf("%v in\n%s", r.Failures, printed)
	}
}

func TestLoadNamesWhatIsWrong(t *testing.T) {
	for want, args := range map[string][]string{
		"-endpoint is missing": {}, "100-400": {"-endpoint", "http://x", "-input", "x"}, "ttft=1s": {"-endpoint", "http://x", "-slo", "1s"}, "poisson": {"-endpoint", "http://x", "-arrivals", "never"},
		"give one of": {"-endpoint", "http://x", "-workload", "chat", "-trace", "f"}, "needs a -workload": {"-endpoint", "http://x", "-arrivals", "own"}, "is no flag": {"-endpoint", "http://x", "then"},
		"shorter than -duration": {"-endpoint", "http://x", "-duration", "1s", "-warm-up", "1s"}, "engine metrics": {"-endpoint", "http://127.0.0.1:1", "-engine", "http://127.0.0.1:1"},
	} {
		if err := run(append([]string{"load"}, args...), io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %s", args, err, want)
		}
	}
}

// TestTTFTPrintsTheBenchmarksLines has a server that does not know stream_options,
// thinks before it answers, and fails in its first round.
func TestTTFTPrintsTheBenchmarksLines(t *testing.T) {
	n := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var sent struct {
			Messages []message
			Options  any `json:"stream_options"`
		}
		data, _ := io.ReadAll(r.Body)
		if _ = json.Unmarshal(data, &sent); sent.Options != nil {
			http.Error(w, `{"error":{"message":"stream_options is unknown"}}`, http.StatusBadRequest)
			return
		}
		if len([]rune(sent.Messages[0].Content)) < 200*50 || !strings.HasSuffix(sent.Messages[0].Content, "突然升高？") {
			t.Errorf("prompt of %d runes", len([]rune(sent.Messages[0].Content)))
		}
		if n++; n == 1 {
			http.Error(w, "not yet", http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("X-Warmpath-Replica", "r1")
		_, _ = io.WriteString(w, "data:{\"choices\":[{\"delta\":{\"reasoning_content\":\"嗯\"}}]}\n\ndata:{\"choices\":[{\"delta\":{\"content\":\"答案\"}}]}\n\n"+
			"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2,\"prompt_tokens_details\":{\"cached_tokens\":8}}}\n\ndata: [DONE]\n\n")
	}))
	defer srv.Close()
	printed, results, err := measured(t, "ttft", "-endpoint", srv.URL+"/v1", "-rounds", "4", "-model", "m")
	if err == nil || results[0].Failed != 1 {
		t.Errorf("%v, %d failed", err, results[0].Failed)
	}
	lines := strings.Split(strings.TrimSpace(printed), "\n")
	if len(lines) != 5 {
		t.Fatalf("%d lines:\n%s", len(lines), printed)
	}
	var first, second round
	var sum ttftSummary
	for i, v := range map[int]any{0: &first, 1: &second, 4: &sum} {
		if err := json.Unmarshal([]byte(lines[i]), v); err != nil {
			t.Fatal(err)
		}
	}
	if first.TTFT != nil || first.Failure != "status 503" || first.Round != 1 || !strings.HasPrefix(lines[0], `{"ttft_ms":null,"total_ms":`) {
		t.Errorf("first round: %s", lines[0])
	}
	if second.TTFT == nil || *second.TTFT <= 0 || second.Chars != 2 || second.Thinking != 1 || second.Cached == nil || *second.Cached != 8 || second.Replica != "r1" {
		t.Errorf("second round: %s", lines[1])
	}
	if sum.First != nil || sum.Median == nil || sum.Repeated == nil || sum.P95 == nil || sum.Failed != 1 || sum.Failures["status 503"] != 1 || sum.Replicas["r1"] != 3 || *sum.Cached != 24 {
		t.Errorf("summary: %s", lines[4])
	}
}

// TestASeedMakesThePrompts: the same seed sends the same, another shares nothing
// with it, so that a second run does not live on the first one's cache.
func TestASeedMakesThePrompts(t *testing.T) {
	server, url := replica(t, quick())
	var sent []string
	for _, seed := range []string{"1", "1", "2"} {
		if _, _, err := measured(t, "load", "-endpoint", url, "-requests", "1", "-shared", "64", "-input", "16", "-output", "2", "-seed", seed); err != nil {
			t.Fatal(err)
		}
		all := server.Requests()
		sent = append(sent, string(all[len(all)-1].Body))
	}
	if sent[0] != sent[1] || sent[0] == sent[2] {
		t.Errorf("sent %s", strings.Join(sent, "\n"))
	}
	if st := server.Stats(); st.CachedTokens > 80 {
		t.Errorf("%d tokens were cached", st.CachedTokens)
	}
}

// TestGroupsAreDrawn: in turn, they would fit a round robin over as many replicas.
func TestGroupsAreDrawn(t *testing.T) {
	f := &loadFlags{shared: 10, groups: 2, input: sizes{1, 1}, output: sizes{1, 1}, turns: sizes{1, 1}}
	s := synthetic{f: f, rnd: rand.New(rand.NewPCG(1, 1))}
	again := 0
	for last := uint32(9); s.n < 100; {
		id := s.next().Runs[0].ID
		if id == last {
			again++
		}
		last = id
	}
	if again < 30 || again > 70 {
		t.Errorf("%d of 100 prompts are of the last one's group", again)
	}
}
