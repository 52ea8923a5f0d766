package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/warmpath/warmpath/internal/bench"
)

const ttftUsage = `usage: bench ttft -endpoint URL -model NAME [flags]

The same long prompt again and again, one request at a time: what the first round costs, and what the prefix cache saves in
the others. It prints a line of JSON for each round and a summary:

  bench ttft -endpoint http://127.0.0.1:8080 -model your-model -rounds 8
  {"ttft_ms":812.4,"total_ms":1630.2,"output_chars":113,"round":1,"prompt_tokens":9217,"cached_tokens":0,"replica":"10.0.0.1:8000"}
  …
  {"ttft_median_ms":71.3,"first_round_ms":812.4,"repeated_round_median_ms":70.8,"ttft_p95_ms":812.4,"rounds":8,"failed":0,…}

TTFT is the time to the first generated token, of reasoning too; first_answer_ms is that of the answer, if reasoning came before.
A round that fails has no TTFT, says why, and does not end the run.
`

// The prompt of the benchmark, whose beginning stays the same in every request.
const (
	ttftPrefix   = "你是集群故障分析助手。以下规则在每次请求中保持不变：优先检查资源、调度、网络、存储和缓存，并给出验证命令。"
	ttftQuestion = "\n问题：为什么推理服务的首 Token 时延突然升高？"
)

// round is what is printed for each round.
type round struct {
	TTFT     *float64 `json:"ttft_ms"`
	Total    float64  `json:"total_ms"`
	Chars    int      `json:"output_chars"`
	Round    int      `json:"round"`
	Answer   *float64 `json:"first_answer_ms,omitempty"`
	Prompt   int      `json:"prompt_tokens,omitempty"`
	Cached   *int     `json:"cached_tokens,omitempty"`
	Output   int      `json:"output_tokens,omitempty"`
	Thinking int      `json:"reasoning_chars,omitempty"`
	Replica  string   `json:"replica,omitempty"`
	Failure  string   `json:"failure,omitempty"`
	Error    string   `json:"error,omitempty"`
}

// ttftSummary is what is printed at the end; figures of no rounds are null.
type ttftSummary struct {
	Median   *float64       `json:"ttft_median_ms"`
	First    *float64       `json:"first_round_ms"`
	Repeated *float64       `json:"repeated_round_median_ms"`
	P95      *float64       `json:"ttft_p95_ms"`
	Rounds   int            `json:"rounds"`
	Failed   int            `json:"failed"`
	Failures map[string]int `json:"failures,omitempty"`
	Prompt   int            `json:"prompt_tokens"`
	Cached   *int           `json:"cached_tokens"`
	Replicas map[string]int `json:"replicas,omitempty"`
}

func ttft(args []string, out io.Writer) error {
	var t target
	fs := flagsOf("ttft", ttftUsage)
	t.register(fs)
	rounds := fs.Int("rounds", 5, "`number` of rounds")
	repeat := fs.Int("repeat", 200, "`times` that the prompt repeats its rules")
	maxTokens := fs.Int("max-tokens", 0, "most `tokens` of an answer; 0 leaves it to the server")
	prefix := fs.String("prefix", ttftPrefix, "`text` that is repeated")
	question := fs.String("question", ttftQuestion, "`text` of the question behind it")
	if err := t.parse(fs, args); err != nil {
		return err
	}
	if *rounds < 1 || *repeat < 0 || *maxTokens < 0 {
		return errors.New("-rounds must be at least 1, -repeat and -max-tokens at least 0")
	}
	client, err := t.client(t.endpoints)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, stop := untilStopped()
	defer stop()
	halt, err := t.watch(ctx)
	if err != nil {
		return err
	}
	meter, start := bench.StartMeter(), time.Now()
	asker := asker{client: client, body: map[string]any{
		"model": t.model, "stream": true, "temperature": 0, "stream_options": map[string]any{"include_usage": true},
		"messages": []message{{"user", strings.Repeat(*prefix, *repeat) + *question}},
	}}
	if *maxTokens > 0 {
		asker.body["max_tokens"] = *maxTokens
	}
	var recorder bench.Recorder
	var answers []bench.Answer
	lines := json.NewEncoder(out)
	for n := range *rounds {
		if ctx.Err() != nil {
			break
		}
		a := asker.ask(ctx)
		a.At = a.Sent.Sub(start)
		recorder.Add(a, 0)
		answers = append(answers, a)
		if err := lines.Encode(roundOf(n+1, &a)); err != nil {
			return err
		}
	}
	result := recorder.Result()
	result.Client, result.Engine = meter.Stop(result.Attempted, result.Late, result.TTFT), halt()
	t.name(result, "ttft", t.endpoints)
	if err := lines.Encode(summaryOf(answers, result)); err != nil {
		return err
	}
	return t.finish([]*bench.Result{result})
}

// asker sends one body again and again.
type asker struct {
	client *bench.Client
	body   map[string]any
}

// ask sends it. A server that does not know stream_options gets the request again,
// and from then on, without.
func (k *asker) ask(ctx context.Context) bench.Answer {
	a := k.send(ctx)
	if a.Code != http.StatusBadRequest && a.Code != http.StatusUnprocessableEntity {
		return a
	}
	options, asked := k.body["stream_options"]
	if !asked {
		return a
	}
	delete(k.body, "stream_options")
	again := k.send(ctx)
	if again.Code == a.Code {
		k.body["stream_options"] = options // it was something else
		return a
	}
	return again
}

func (k *asker) send(ctx context.Context) bench.Answer {
	data, err := json.Marshal(k.body)
	if err != nil {
		panic("BUG: a request must be representable as JSON: " + err.Error())
	}
	return k.client.Send(ctx, bench.Call{Path: "/v1/chat/completions", Body: data, Keep: true})
}

// hundredths are milliseconds as the benchmark prints them.
func hundredths(d time.Duration) float64 {
	return float64(d.Round(10*time.Microsecond)/(10*time.Microsecond)) / 100
}

func roundOf(n int, a *bench.Answer) round {
	r := round{
		Total: hundredths(a.Took), Chars: utf8.RuneCountInString(a.Text), Thinking: utf8.RuneCountInString(a.Thought), Round: n,
		Prompt: a.Usage.Prompt, Output: a.Usage.Completion, Replica: a.Replica, Failure: a.Cause(),
	}
	if a.Usage.CachedKnown {
		r.Cached = &a.Usage.Cached
	}
	if a.Failure != bench.None {
		r.Error = a.Err.Error()
		return r
	}
	r.TTFT = new(hundredths(a.First))
	if a.Said > a.First {
		r.Answer = new(hundredths(a.Said))
	}
	return r
}

// summaryOf sums up. The first round is the first one: if it failed, there is none,
// and what came after is repeated all the same.
func summaryOf(answers []bench.Answer, result *bench.Result) ttftSummary {
	s := ttftSummary{Rounds: result.Attempted, Failed: result.Failed, Failures: result.Failures, Prompt: result.PromptTokens}
	var all, repeated []time.Duration
	for i, a := range answers {
		if a.Failure != bench.None {
			continue
		}
		all = append(all, a.First)
		if i == 0 {
			s.First = new(hundredths(a.First))
		} else {
			repeated = append(repeated, a.First)
		}
		if a.Replica != "" {
			if s.Replicas == nil {
				s.Replicas = map[string]int{}
			}
			s.Replicas[a.Replica]++
		}
	}
	if result.CachedKnown {
		s.Cached = &result.CachedTokens
	}
	if len(answers) == 1 {
		repeated = all
	}
	if len(all) > 0 {
		s.Median, s.P95 = new(hundredths(median(all))), new(hundredths(bench.Quantile(all, .95)))
	}
	if len(repeated) > 0 {
		s.Repeated = new(hundredths(median(repeated)))
	}
	return s
}

// median is the middle one, or the mean of the two in the middle.
func median(times []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(times))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}
