package lab

import (
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/mockvllm"
	"github.com/warmpath/warmpath/internal/prefix"
)

// small is a workload of a few hundred requests.
func small(t *testing.T, name string) []*Request {
	t.Helper()
	for _, w := range Workloads(0.5, 5*time.Second) {
		if w.Name == name {
			return w.Make(rand.New(rand.NewPCG(1, 1)))
		}
	}
	t.Fatalf("no workload %q", name)
	return nil
}

func count(requests []*Request) (n int) {
	for _, r := range requests {
		for ; r != nil; r = r.Next {
			n++
		}
	}
	return n
}

func TestEveryPolicyAnswersEveryRequestAndTheSameSeedGivesTheSame(t *testing.T) {
	for _, policy := range Policies() {
		for _, workload := range []string{"chat", "rag"} {
			s := Scenario{Replicas: 4, Engine: Engines()["8b"], Policy: policy, Seed: 3, Wrong: 1}
			a, err := Simulate(s, small(t, workload))
			if err != nil {
				t.Fatalf("%s: %v", policy, err)
			}
			if want := count(small(t, workload)); len(a.TTFT) != want {
				t.Errorf("%s on %s: %d of %d requests were answered", policy, workload, len(a.TTFT), want)
			}
			b, err := Simulate(s, small(t, workload))
			if err != nil {
				t.Fatal(err)
			}
			if x, y := a.Summarize(time.Second), b.Summarize(time.Second); x != y {
				t.Errorf("%s on %s: the same seed gives\n%+v\n%+v", policy, workload, x, y)
			}
		}
	}
}

func TestAPolicyThatIsNotThereIsNamed(t *testing.T) {
	_, err := Simulate(Scenario{Replicas: 1, Engine: Engines()["8b"], Policy: "best"}, nil)
	if err == nil || !strings.Contains(err.Error(), `"best"`) || !strings.Contains(err.Error(), "llm-d") {
		t.Errorf("got %v", err)
	}
}

func TestReadsTraces(t *testing.T) {
	trace := `{"timestamp":0,"input_length":700,"output_length":5,"hash_ids":[0,7]}
{"timestamp":3000,"input_length":512,"output_length":0,"hash_ids":[0]}
`
	got, err := ReadTrace(strings.NewReader(trace), 2, rand.New(rand.NewPCG(1, 1)))
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || got[0].Tokens() != 700 || got[1].Answer.Tokens != 1 || got[0].At > 6*time.Second || got[1].At < 6*time.Second {
		t.Errorf("got %+v, %+v", *got[0], *got[1])
	}
	for _, bad := range []string{`{"timestamp":0,"input_length":700,"hash_ids":[0]}`, `{"timestamp":"x"}`, `[]`} {
		if _, err := ReadTrace(strings.NewReader(bad), 1, rand.New(rand.NewPCG(1, 1))); err == nil || !strings.Contains(err.Error(), "line 1") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// TestChainsFollowTheRequests: a later turn begins with the one before and marks
// its answer.
func TestChainsFollowTheRequests(t *testing.T) {
	for _, first := range small(t, "chat") {
		for r := first; r.Next != nil; r = r.Next {
			a, b := chainOf(r, 1), chainOf(r.Next, 1)
			if len(b.Cuts) <= len(a.Cuts) || !reflect.DeepEqual(a.Cuts, b.Cuts[:len(a.Cuts)]) {
				t.Fatal("a turn does not begin with the one before")
			}
			if got := b.AnswerAfter(int32(len(a.Cuts) - 1)); got != int32(r.Answer.Tokens) {
				t.Fatalf("an answer of %d tokens counts as %d", r.Answer.Tokens, got)
			}
			if int(b.Tokens) != r.Next.Tokens() {
				t.Fatalf("%d tokens, want %d", b.Tokens, r.Next.Tokens())
			}
		}
	}
}

// TestReferencesFollowTheirRules holds each rule to an example worked by hand.
func TestReferencesFollowTheirRules(t *testing.T) {
	f := &flight{Request: &Request{Session: 5, Runs: []Run{{ID: 1, Tokens: 1000}}}, tokens: 1000}
	match := func(tokens ...int32) (m prefix.Matches) {
		for _, n := range tokens {
			m.BySlot = append(m.BySlot, prefix.Match{Tokens: n})
		}
		return m
	}
	for name, c := range map[string]struct {
		rule            func(*reference, *flight, *prefix.Chain) int
		count           []int
		pending, active []int
		matches         prefix.Matches
		want            int
	}{
		"the least requests":                           {(*reference).leastRequests, []int{3, 1, 2}, nil, nil, match(0, 0, 0), 1},
		"a match above the threshold":                  {thresholds(0.3, 64, 1.5), []int{60, 0, 9}, nil, nil, match(400, 0, 0), 0},
		"a match below it":                             {thresholds(0.5, 32, 1.1), []int{20, 0, 9}, nil, nil, match(400, 0, 0), 1},
		"out of balance by both thresholds":            {thresholds(0.3, 64, 1.5), []int{70, 0, 9}, nil, nil, match(900, 0, 0), 1},
		"out of balance by one":                        {thresholds(0.3, 64, 1.5), []int{270, 200, 230}, nil, nil, match(900, 0, 0), 0},
		"blocks: a match against pending prefill":      {(*reference).blocks, []int{0, 0, 0}, []int{500, 0, 0}, []int{0, 0, 0}, match(900, 0, 0), 0},
		"blocks: more pending than the match is worth": {(*reference).blocks, []int{0, 0, 0}, []int{1000, 0, 0}, []int{0, 0, 160}, match(900, 0, 0), 1},
	} {
		b := newReference(Scenario{Replicas: 3, Engine: Engines()["8b"]}, nil, rand.New(rand.NewPCG(1, 1)))
		b.count, b.matches = c.count, c.matches
		if c.pending != nil {
			b.pending, b.active = c.pending, c.active
		}
		if got := c.rule(b, f, nil); got != c.want {
			t.Errorf("%s: replica %d, want %d", name, got, c.want)
		}
	}

	b := newReference(Scenario{Replicas: 3, Engine: Engines()["8b"]}, nil, rand.New(rand.NewPCG(1, 1)))
	home := b.boundedLoads(f, nil)
	b.count[home] = 10 // 125 % of a mean of 11/3
	if b.boundedLoads(f, nil) == home {
		t.Error("bounded loads: a replica over its bound is taken")
	}
	for range 3 {
		b.engines = append(b.engines, mockvllm.NewEngine(Engines()["8b"]))
	}
	b.matches = match(0, 1000, 0)
	if got := b.weights(f, nil); got != 1 {
		t.Errorf("weights: replica %d of three idle ones, want the one with the prefix", got)
	}
	for range 3 { // a queue is worth 2, the whole prefix 3: the prefix still wins
		if _, err := b.engines[1].Submit(mockvllm.Request{Prompt: []uint32{1, 2}, Output: []uint32{3}}); err != nil {
			t.Fatal(err)
		}
	}
	if got := b.weights(f, nil); got != 1 {
		t.Errorf("weights: replica %d, want 1 in spite of its queue", got)
	}
	b.matches = match(0, 500, 0) // half of it is worth 1.5: the queue wins
	if got := b.weights(f, nil); got == 1 {
		t.Error("weights: half a prefix outweighs the only queue")
	}
}

func BenchmarkChat(b *testing.B) {
	var requests []*Request
	for _, w := range Workloads(1, 30*time.Second) {
		if w.Name == "chat" {
			requests = w.Make(rand.New(rand.NewPCG(1, 1)))
		}
	}
	for b.Loop() {
		if _, err := Simulate(Scenario{Replicas: 16, Engine: Engines()["8b"], Policy: "prefix", Seed: 1, Wrong: 1}, requests); err != nil {
			b.Fatal(err)
		}
	}
}
