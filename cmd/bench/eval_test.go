package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// oracle answers problems by a function of the question, as a stream.
func oracle(t *testing.T, asked *atomic.Int64, answer func(prompt string) (text, finish string)) string {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		var sent struct {
			Messages []message
			Prompt   string
			Stop     []string
		}
		data, _ := io.ReadAll(r.Body)
		if err := json.Unmarshal(data, &sent); err != nil {
			t.Error(err)
		}
		prompt := sent.Prompt
		if len(sent.Messages) > 0 {
			prompt = sent.Messages[len(sent.Messages)-1].Content
		}
		text, finish := answer(prompt)
		if text == "" {
			http.Error(w, "busy", http.StatusServiceUnavailable)
			return
		}
		piece := map[string]any{"text": text, "finish_reason": finish}
		if len(sent.Messages) > 0 {
			piece = map[string]any{"delta": map[string]string{"content": text}, "finish_reason": finish}
		}
		choice, _ := json.Marshal(map[string]any{"choices": []any{piece}})
		_, _ = fmt.Fprintf(w, "data: %s\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":3}}\n\ndata: [DONE]\n\n", choice)
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

func problemsFile(t *testing.T, lines ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "problems.jsonl")
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestEvalCountsFourOutcomesAndFailures(t *testing.T) {
	file := problemsFile(t, `{"question":"a","answer":"2+2=<<2+2=4>>4\n#### 4,000"}`, `{"problem":"b","solution":"so \\boxed{\\frac{1}{2}}"}`, `{"problem":"c","answer":7}`, `{"question":"d","answer":"#### 1"}`, `{"question":"e","answer":"#### 1"}`)
	var asked atomic.Int64
	url := oracle(t, &asked, func(prompt string) (string, string) {
		switch prompt[:1] {
		case "a":
			return "So #### $4000.", "stop"
		case "b":
			return `It is \boxed{0.6}`, "stop"
		case "c":
			return "I do not know", "stop"
		case "d":
			return "first 1, then", "length"
		}
		return "", ""
	})
	printed, results, err := measured(t, "eval", "-endpoint", url, "-dataset", file, "-concurrency", "2")
	if err == nil || !strings.Contains(err.Error(), "1 of 5 requests failed") {
		t.Errorf("%v", err)
	}
	if e := results[0].Eval; e.Right != 1 || e.Wrong != 1 || e.NoAnswer != 1 || e.Truncated != 1 || e.Failed != 1 || e.Accuracy != 0.25 || len(e.Graded) != 5 || e.Graded[1].Found != "0.6" {
		t.Errorf("%+v\n%s", e, printed)
	}
}

func TestEvalGoesOnWhereItStopped(t *testing.T) {
	file := problemsFile(t, `{"question":"a","answer":"#### 1"}`, `{"question":"b","answer":"#### 1"}`, `{"question":"c","answer":"#### 1"}`)
	var asked atomic.Int64
	broken := true
	url := oracle(t, &asked, func(prompt string) (string, string) {
		if broken && strings.HasPrefix(prompt, "b") {
			return "", ""
		}
		return "#### 1", "stop"
	})
	out := filepath.Join(t.TempDir(), "e.json")
	args := []string{"eval", "-endpoint", url, "-dataset", file, "-o", out}
	if err := run(args, io.Discard); err == nil {
		t.Error("a failed item passed")
	}
	broken = false
	if err := run(args, io.Discard); err != nil || asked.Load() != 4 {
		t.Errorf("%v after %d requests, want 3 and one again", err, asked.Load())
	}
	if err := run(append(args, "-max-tokens", "7"), io.Discard); err == nil || !strings.Contains(err.Error(), "other settings") {
		t.Errorf("%v", err)
	}
	if err := run(append(args, "-restart"), io.Discard); err != nil || asked.Load() != 7 {
		t.Errorf("%v after %d requests", err, asked.Load())
	}
}

// TestEvalTellsAChangedAnswerFromAnEngineThatVaries: only what two servers say
// again and again, and differently, was changed on the way.
func TestEvalTellsAChangedAnswerFromAnEngineThatVaries(t *testing.T) {
	file := problemsFile(t, `{"question":"a","answer":"#### 1"}`, `{"question":"b","answer":"#### 1"}`)
	var asked atomic.Int64
	steady := func(string) (string, string) { return "#### 1", "stop" }
	one, same := oracle(t, &asked, steady), oracle(t, &asked, steady)
	changes := oracle(t, &asked, func(p string) (string, string) {
		return "#### 1" + strings.Repeat(" ", strings.Count(p[:1], "b")), "stop"
	})
	n := 0
	varies := oracle(t, &asked, func(string) (string, string) {
		n++
		return fmt.Sprintf("#### 1 (%d)", n), "stop"
	})
	for url, want := range map[string]int{same: 0, changes: 1, varies: 0} {
		_, results, err := measured(t, "eval", "-endpoint", one, "-compare", url, "-dataset", file, "-concurrency", "1")
		changed := 0
		for _, d := range results[1].Eval.Differences {
			if !d.Unstable {
				changed++
			}
		}
		if changed != want || (err != nil) != (want > 0) || results[1].Eval.Compared != 2 {
			t.Errorf("%d changed, want %d: %v", changed, want, err)
		}
	}
}

func TestEvalShowsExamples(t *testing.T) {
	file := problemsFile(t, `{"question":"a","answer":"#### 1"}`, `{"question":"q1","answer":"w1 #### 8"}`, `{"question":"q2","answer":"w2 #### 9"}`)
	for api, want := range map[string]string{"chat": "a\n\nThink", "completions": "Question: q1\nAnswer: w1 #### 8\n\nQuestion: q2\nAnswer: w2 #### 9\n\nQuestion: a\nAnswer:"} {
		var asked atomic.Int64
		url := oracle(t, &asked, func(p string) (string, string) {
			if !strings.HasPrefix(p, want) {
				t.Errorf("%s: sent %q", api, p)
			}
			return "Let me restate the Question in my words.\n#### 1", "stop"
		})
		if _, results, err := measured(t, "eval", "-endpoint", url, "-dataset", file, "-shots", "2", "-api", api); err != nil || results[0].Eval.Right != 1 || asked.Load() != 1 {
			t.Errorf("%v, %d asked", err, asked.Load())
		}
	}
	for want, args := range map[string][]string{
		"-dataset is missing": {}, "{question}": {"-dataset", file, "-template", "x"}, "examples for -shots": {"-dataset", file, "-shots", "3"}, "-question-field": {"-dataset", file, "-question-field", "none"},
	} {
		if err := run(append([]string{"eval", "-endpoint", "http://127.0.0.1:1"}, args...), io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %s", args, err, want)
		}
	}
}
