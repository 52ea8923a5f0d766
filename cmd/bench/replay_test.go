package main

import (
	"bytes"
	"encoding/json"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/warmpath/warmpath/internal/bench"
	"github.com/warmpath/warmpath/internal/lab"
	"github.com/warmpath/warmpath/internal/mockvllm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// mock is a replica with the preset's cache whose time is stretched.
func mock(t *testing.T, scale float64) string {
	t.Helper()
	cfg := lab.Engines()["8b"].Stretch(scale)
	replica := mockvllm.New(cfg)
	srv := httptest.NewServer(replica.Handler())
	t.Cleanup(func() {
		replica.Close()
		srv.Close()
	})
	return srv.URL
}

// runReplay runs bench replay and returns what it printed and said beside it.
func runReplay(t *testing.T, args ...string) (printed, said string) {
	t.Helper()
	stderr, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stderr.Close() }()
	var out bytes.Buffer
	if err := replayTo(args, &out, stderr); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(stderr.Name())
	if err != nil {
		t.Fatal(err)
	}
	return out.String(), string(text)
}

// TestReplayedSessionsHitWhatTheSimulationSays: prompts, and answers that come
// back in the next turn, must be the same tokens for a real cache as for a
// simulated one.
func TestReplayedSessionsHitWhatTheSimulationSays(t *testing.T) {
	for as, tolerance := range map[string]float64{"tokens": 0, "chat": 0.02} { // a chat template adds tokens
		printed, said := runReplay(t, "-endpoint", mock(t, 0.02)+"/v1", "-as", as, "-workload", "chat", "-load", "0.05", "-span", "20s",
			"-time-scale", "0.02", "-limit", "20", "-simulate", "prefix", "-replicas", "1", "-json")
		var rows []replayed
		for lines := json.NewDecoder(strings.NewReader(printed)); lines.More(); {
			var r replayed
			if err := lines.Decode(&r); err != nil {
				t.Fatalf("%v in %s", err, printed)
			}
			rows = append(rows, r)
		}
		if len(rows) != 2 || rows[0].Requests != 20 || rows[1].Requests != 20 || rows[0].Failed != 0 || rows[0].P95 <= 0 || rows[0].TPOT95 <= 0 || rows[0].Throughput <= 0 {
			t.Fatalf("%s: %s%s", as, printed, said)
		}
		if got, want := rows[0].Hit, rows[1].Hit; math.Abs(got-want) > tolerance || want < 0.5 {
			t.Errorf("%s: %.4f of the tokens were cached, simulated %.4f", as, got, want)
		}
		if rows[0].Policy == rows[1].Policy || !strings.Contains(rows[1].Policy, "simulated") {
			t.Errorf("%s: rows are called %q and %q", as, rows[0].Policy, rows[1].Policy)
		}
	}
}

func TestReplayPrintsTheTableOfSimulate(t *testing.T) {
	head := func(text string) []string { return strings.Fields(strings.SplitN(text, "\n", 2)[0]) }
	simulated := head(output(t, "-workload", "hot", "-span", "1s", "-load", "0.1", "-policy", "prefix"))
	one, two := mock(t, 0.02), mock(t, 0.02)
	printed, _ := runReplay(t, "-endpoint", one+","+two, "-workload", "hot", "-span", "1s", "-load", "0.1", "-limit", "3", "-time-scale", "0.02")
	got := head(printed)
	if len(got) <= len(simulated) || !slices.Equal(got[:len(simulated)], simulated) {
		t.Errorf("columns %v, simulate has %v", got, simulated)
	}
	if strings.Count(printed, "\n") != 3 || !strings.Contains(printed, one) || !strings.Contains(printed, two) {
		t.Errorf("want a head and a row for each URL:\n%s", printed)
	}
}

func TestReplaySaysWhatFailed(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no replica is ready", http.StatusServiceUnavailable)
	}))
	defer srv.Close()
	printed, said := runReplay(t, "-endpoint", srv.URL, "-workload", "chat", "-span", "20s", "-load", "0.05", "-time-scale", "0.001", "-limit", "9", "-json")
	var r replayed
	if err := json.Unmarshal([]byte(printed), &r); err != nil || r.Requests != 0 || r.Failed == 0 || r.Failed+r.Dropped != 9 || r.Failures[bench.Status] != r.Failed {
		t.Errorf("%v in %s", err, printed)
	}
	if !strings.Contains(said, "status") || !strings.Contains(said, "no replica is ready") {
		t.Errorf("said %q", said)
	}
}

// TestBusiestCountsReplicasThatGotNothing: a replica that nobody chose is named by no
// answer.
func TestBusiestCountsReplicasThatGotNothing(t *testing.T) {
	ok, failed := bench.None, bench.Status
	for name, c := range map[string]struct {
		answers  map[string]bench.Failure // by replica
		replicas int                      // -replicas
		busiest  string
		over     int
	}{
		"one of four got all":            {map[string]bench.Failure{"a": ok}, 4, "4.00 x", 4},
		"two of four":                    {map[string]bench.Failure{"a": ok, "b": ok}, 4, "2.00 x", 4},
		"the only one":                   {map[string]bench.Failure{"a": ok}, 1, "1.00 x", 1},
		"more than were said to be":      {map[string]bench.Failure{"a": ok, "b": ok, "c": ok}, 2, "1.00 x", 3},
		"nobody says how many there are": {map[string]bench.Failure{"a": ok, "b": ok}, 0, "≥ 1.00 x", 2},
		"one failed all it got":          {map[string]bench.Failure{"a": ok, "b": failed}, 0, "≥ 2.00 x", 2},
		"one failed and one got nothing": {map[string]bench.Failure{"a": ok, "b": failed}, 3, "3.00 x", 3},
		"no replica was named":           {map[string]bench.Failure{"": ok}, 4, "–", 0},
		"nothing was answered":           {map[string]bench.Failure{"": failed}, 4, "–", 0},
	} {
		f := &replayFlags{scale: 1, slo: time.Second, replicas: c.replicas}
		var tally bench.Tally
		for replica, failure := range c.answers {
			for range 10 {
				tally.Add(bench.Answer{First: time.Millisecond, Replica: replica, Failure: failure}, 0)
			}
		}
		r := f.row("chat", "http://x", &tally, time.Second)
		columns, row := strings.Split(replayHead, "\t"), strings.Split(r.String(), "\t")
		if got := row[slices.Index(columns, "busiest")]; got != c.busiest || r.Replicas != c.over {
			t.Errorf("%s: busiest %s over %d replicas, want %s over %d", name, got, r.Replicas, c.busiest, c.over)
		}
	}
}

func TestReplayWarnsWhenItWasLateItself(t *testing.T) {
	_, said := runReplay(t, "-endpoint", mock(t, 0.1), "-workload", "hot", "-span", "1s", "-load", "1", "-limit", "6", "-time-scale", "0.1", "-in-flight", "1")
	if !strings.Contains(said, "-in-flight was reached") {
		t.Errorf("said %q", said)
	}
	var quiet bytes.Buffer
	(&replayed{LateP99: tooLate.Seconds() / 2}).warn(&quiet)
	if quiet.Len() > 0 {
		t.Errorf("said %q without a reason", quiet.String())
	}
}

func TestReplayNamesWhatIsWrong(t *testing.T) {
	for want, args := range map[string][]string{
		"-endpoint is missing":    {},
		"http://127.0.0.1:8080":   {"-endpoint", "localhost:8080"},
		"-time-scale":             {"-endpoint", "http://x", "-time-scale", "0"},
		`"words"`:                 {"-endpoint", "http://x", "-as", "words"},
		"-vocabulary":             {"-endpoint", "http://x", "-vocabulary", "10"},
		"-in-flight":              {"-endpoint", "http://x", "-in-flight", "0"},
		"-replicas must be":       {"-endpoint", "http://x", "-replicas", "-3"},
		"-limit must be":          {"-endpoint", "http://x", "-limit", "-3"},
		"-span must be":           {"-endpoint", "http://x", "-span", "0"},
		"-timeout must be":        {"-endpoint", "http://x", "-timeout", "-1s"},
		"-slo must be":            {"-endpoint", "http://x", "-slo", "0"},
		`no workload "none"`:      {"-endpoint", "http://x", "-workload", "none"},
		`write "Name: value"`:     {"-endpoint", "http://x", "-header", "nothing"},
		"flag provided but not d": {"-nope"},
	} {
		if err := run(append([]string{"replay"}, args...), &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %s", args, err, want)
		}
	}
}

func arrivals(t *testing.T, name string, f *replayFlags) []*lab.Request {
	t.Helper()
	works, err := choose(name, "", 0.1, 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	return f.requests(works[0])
}

func TestArrivalsAreThoseOfTheSimulationStretched(t *testing.T) {
	works, err := choose("chat", "", 0.1, 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	want := works[0].Make(rand.New(rand.NewPCG(5, 1)))
	got := arrivals(t, "chat", &replayFlags{seed: 5, scale: 3})
	if len(got) != len(want) {
		t.Fatalf("%d sessions, want %d", len(got), len(want))
	}
	for i, w := range want {
		g := got[i]
		if g.At != 3*w.At {
			t.Fatalf("session %d at %v, want 3 × %v", i, g.At, w.At)
		}
		for ; w != nil && g != nil; g, w = g.Next, w.Next {
			if g.Think != 3*w.Think || !reflect.DeepEqual(g.Runs, w.Runs) {
				t.Fatalf("session %d: %+v, want %+v with three times the think time", i, g, w)
			}
		}
		if w != nil || g != nil {
			t.Fatalf("session %d: another number of turns", i)
		}
	}
	for _, n := range []int{1, 2, 30} {
		total := 0
		for _, r := range arrivals(t, "chat", &replayFlags{seed: 5, scale: 1, limit: n}) {
			for ; r != nil; r = r.Next {
				total++
			}
		}
		if total != n {
			t.Errorf("-limit %d leaves %d requests", n, total)
		}
	}
}

func TestPromptsHaveTheTokensThatTheWorkloadSays(t *testing.T) {
	tokens, chat := &prompts{vocabulary: 2000}, &prompts{chat: true}
	for _, r := range arrivals(t, "rag", &replayFlags{seed: 1, scale: 1, limit: 20}) {
		var b struct {
			Prompt    []uint32 `json:"prompt"`
			MaxTokens int      `json:"max_tokens"`
		}
		call := tokens.call(r, nil)
		if err := json.Unmarshal(call.Body, &b); err != nil || call.Path != "/v1/completions" {
			t.Fatalf("%s: %v", call.Path, err)
		}
		if len(b.Prompt) != r.Tokens() || slices.Min(b.Prompt) < firstToken || slices.Max(b.Prompt) >= 2000 || b.MaxTokens != r.Answer.Tokens {
			t.Fatalf("%d tokens from %d to %d, want %d", len(b.Prompt), slices.Min(b.Prompt), slices.Max(b.Prompt), r.Tokens())
		}
		var c struct{ Messages []message }
		call = chat.call(r, nil)
		if err := json.Unmarshal(call.Body, &c); err != nil || call.Path != "/v1/chat/completions" {
			t.Fatalf("%s: %v", call.Path, err)
		}
		n := 0
		for _, m := range c.Messages {
			n += len(mockvllm.Encode(m.Content))
		}
		if n != r.Tokens() || len(c.Messages) != 2 || c.Messages[0].Role != "system" || c.Messages[1].Role != "user" {
			t.Fatalf("%d tokens in %d messages, want %d in two", n, len(c.Messages), r.Tokens())
		}
	}
}

func TestAConversationHasTheAnswersThatWereGiven(t *testing.T) {
	runs := []lab.Run{{ID: 1, Tokens: 2}, {ID: 2, Tokens: 1}, {ID: 3, Tokens: 3, Generated: true}, {ID: 4, Tokens: 1}}
	said := []bench.Answer{{Text: "It is.", IDs: []uint32{7, 8, 9}}}
	p := &prompts{vocabulary: 2000}
	if got := string(p.tokens(&lab.Request{Runs: runs}, said)); strings.Count(got, ",") != 6 || !strings.Contains(got, ",7,8,9,") {
		t.Errorf("got %s", got)
	}
	if got := string(p.tokens(&lab.Request{Runs: runs}, []bench.Answer{{}})); strings.Count(got, ",") != 6 {
		t.Errorf("from a server that gives no ids: %s", got)
	}
	var roles []string
	for _, m := range messages(runs, said) {
		roles = append(roles, m.Role)
		if m.Role == "assistant" && m.Content != "It is." {
			t.Errorf("the answer is %q", m.Content)
		}
	}
	if !slices.Equal(roles, []string{"system", "user", "assistant", "user"}) {
		t.Errorf("roles %v", roles)
	}
}
