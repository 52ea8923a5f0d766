package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/warmpath/warmpath/internal/bench"
	"github.com/warmpath/warmpath/internal/grade"
)

const evalUsage = `usage: bench eval -endpoint URL -model NAME -dataset FILE [flags]

Has a model solve problems with known answers, greedily, and grades what it says: right, wrong, no answer found, cut off by
-max-tokens. With the same figures of speed as bench load.

  bench eval -endpoint http://127.0.0.1:8080 -model m -dataset gsm8k_test.jsonl.gz -limit 200 -o eval.json

The dataset is JSON lines (also gzip): GSM8K's question and answer, MATH's problem with answer or solution, or what
-question-field and -answer-field name. Examples before each problem: -shots N, from -shots-file or the dataset's end.

A run that was interrupted goes on where it stopped: each item is kept in FILE.items.jsonl beside -o FILE.

  bench eval -endpoint http://127.0.0.1:8000 -compare http://127.0.0.1:8080 …

sends each item to both servers, directly and through a gateway, and reports every difference: a gateway must not change
answers. Engines do not always repeat themselves when batches differ, so an item that differs is asked again, alone, three times
of both; it counts against the gateway only if both repeat themselves and still differ.

Values are compared, not spellings: 6,000 is 6000, \dfrac12 is 0.5, 1\frac12 is 3/2. Units, currencies, degrees and percent signs
are left out: 20\% equals 20 and not 0.2. A decimal equals a fraction only if it is exact.
`

// evalFlags are the settings of bench eval.
type evalFlags struct {
	target
	dataset, question, answer, template, shotsFile, marker, compare, api string
	limit, concurrency, maxTokens, shots                                 int
	asJSON, again                                                        bool
}

// templates are the default prompts: the form of the answer that each asks for is
// the one that grading trusts most.
const (
	gsm8kTemplate = "{question}\n\nThink step by step. End with a line that holds only #### and the final number."
	mathTemplate  = "{question}\n\nThink step by step and put the final answer in \\boxed{}."
)

func (f *evalFlags) parse(args []string) error {
	fs := flagsOf("eval", evalUsage)
	f.register(fs)
	fs.StringVar(&f.dataset, "dataset", "", "`file` of problems; required")
	fs.StringVar(&f.question, "question-field", "", "`name` of the problem's field; empty is question or problem")
	fs.StringVar(&f.answer, "answer-field", "", "`name` of the reference's field; empty is answer or solution")
	fs.StringVar(&f.template, "template", "", "`text` of the prompt with {question} in it; empty asks for #### or, if the references have none, \\boxed{}")
	fs.StringVar(&f.marker, "answer-marker", "", "one more `mark` behind which answers stand, such as A:")
	fs.StringVar(&f.api, "api", "chat", "`form` of requests: chat (examples are earlier turns) or completions (examples are text)")
	fs.IntVar(&f.shots, "shots", 0, "`examples` before each problem")
	fs.StringVar(&f.shotsFile, "shots-file", "", "`file` of the examples; empty is the dataset's end, which is then not asked")
	fs.IntVar(&f.limit, "limit", 0, "ask only this `number` of problems, the first; 0 is all")
	fs.IntVar(&f.concurrency, "concurrency", 8, "`requests` at a time, to each server")
	fs.IntVar(&f.maxTokens, "max-tokens", 1024, "most `tokens` of an answer; an answer that reaches it is counted apart")
	fs.StringVar(&f.compare, "compare", "", "also send every item to the server at this `URL` and report what differs")
	fs.BoolVar(&f.again, "restart", false, "do not go on with an interrupted run, begin again")
	fs.BoolVar(&f.asJSON, "json", false, "print the results as JSON, items included")
	if err := f.target.parse(fs, args); err != nil {
		return err
	}
	switch {
	case f.dataset == "":
		return errors.New("-dataset is missing: give a file of problems, such as GSM8K's test.jsonl")
	case f.api != "chat" && f.api != "completions":
		return fmt.Errorf("-api must be chat or completions, not %q", f.api)
	case f.concurrency < 1 || f.maxTokens < 1 || f.shots < 0 || f.limit < 0:
		return errors.New("-concurrency and -max-tokens must be at least 1, -shots and -limit at least 0")
	case f.template != "" && !strings.Contains(f.template, "{question}"):
		return errors.New("-template has no {question} in it")
	case strings.Contains(f.endpoints, ","):
		return errors.New("-endpoint takes one URL here; give the other with -compare")
	}
	return nil
}

// call makes the request for a problem.
func (f *evalFlags) call(p problem, examples []problem) bench.Call {
	body := map[string]any{
		"model": f.model, "temperature": 0, "max_tokens": f.maxTokens, "stream": true, "stream_options": map[string]any{"include_usage": true},
	}
	path := "/v1/chat/completions"
	fill := func(question string) string { return strings.ReplaceAll(f.template, "{question}", question) }
	if f.api == "chat" {
		var messages []message
		for _, e := range examples {
			messages = append(messages, message{"user", fill(e.question)}, message{"assistant", e.worked})
		}
		body["messages"] = append(messages, message{"user", fill(p.question)})
	} else {
		var b strings.Builder
		for _, e := range examples {
			b.WriteString("Question: " + e.question + "\nAnswer: " + e.worked + "\n\n")
		}
		path = "/v1/completions"
		body["prompt"] = b.String() + "Question: " + p.question + "\nAnswer:"
		body["stop"] = []string{"\n\nQuestion: "} // the next example's beginning; a word alone would end honest prose
	}
	data, err := json.Marshal(body)
	if err != nil {
		panic("BUG: a request must be representable as JSON: " + err.Error())
	}
	return bench.Call{Path: path, Body: data, Keep: true}
}

func eval(args []string, out io.Writer) error {
	f := &evalFlags{}
	if err := f.parse(args); err != nil {
		return err
	}
	items, examples, err := f.asked()
	if err != nil {
		return err
	}
	ctx, stop := untilStopped()
	defer stop()
	results, err := f.evaluate(ctx, items, examples)
	if err != nil {
		return err
	}
	if err := show(out, f.asJSON, results); err != nil {
		return err
	}
	return f.judge(results)
}

// judge warns of a prompt that does not fit, and fails for changed answers.
func (f *evalFlags) judge(results []*bench.Result) error {
	for _, r := range results {
		e := r.Eval
		if n := e.Right + e.Wrong + e.NoAnswer; n >= 20 && (10*e.NoAnswer > n || 50*e.Right < n) {
			_, _ = fmt.Fprintf(f.said, "%s: warning: %d of %d answers were right and in %d none was found: look at the items whether -template or -api fit the model.\n", r.Label, e.Right, n, e.NoAnswer)
		}
		if e.Truncated > 0 {
			_, _ = fmt.Fprintf(f.said, "%s: %d answers were cut off by -max-tokens %d and count as not right.\n", r.Label, e.Truncated, f.maxTokens)
		}
	}
	if err := f.finish(results); err != nil {
		return err
	}
	if f.compare == "" {
		return nil
	}
	changed, e := 0, results[1].Eval
	for _, d := range e.Differences {
		kind := "changed"
		if d.Unstable {
			kind = "not repeatable"
		} else {
			changed++
		}
		_, _ = fmt.Fprintf(f.said, "item %d differs from byte %d (%s):\n  %q\n  %q\n", d.Index, d.At, kind, d.A, d.B)
	}
	_, _ = fmt.Fprintf(f.said, "%d items compared: %d outputs are the same, %d are not repeatable by the engine, %d were changed.\n", e.Compared, e.Compared-len(e.Differences), len(e.Differences)-changed, changed)
	if changed > 0 {
		return fmt.Errorf("%d of %d outputs were changed on the way through %s", changed, e.Compared, f.compare)
	}
	return nil
}

// student is one server that is asked.
type student struct {
	endpoint string
	client   *bench.Client
	recorder bench.Recorder
	graded   []*bench.Graded // by item
	journal  *journal
}

// evaluate asks one server, or two at once, and grades.
func (f *evalFlags) evaluate(ctx context.Context, items, examples []problem) ([]*bench.Result, error) {
	endpoints := []string{f.endpoints}
	if f.compare != "" {
		endpoints = append(endpoints, f.compare)
	}
	var students []*student
	bar := newProgress(f.said, "eval", "items", len(items)*len(endpoints))
	for i, endpoint := range endpoints {
		client, err := f.client(endpoint)
		if err != nil {
			return nil, err
		}
		defer client.Close()
		s := &student{endpoint: endpoint, client: client, graded: make([]*bench.Graded, len(items))}
		if s.journal, err = f.openJournal(i, endpoint, items, examples, s.graded); err != nil {
			return nil, err
		}
		defer s.journal.close()
		students = append(students, s)
	}
	halt, err := f.watch(ctx)
	if err != nil {
		return nil, err
	}
	meter := bench.StartMeter()
	var running sync.WaitGroup
	for _, s := range students {
		running.Go(func() { f.ask(ctx, s, items, examples, bar) })
	}
	running.Wait()
	bar.end()
	engine := halt()
	var results []*bench.Result
	sent := 0
	for _, s := range students {
		r := s.recorder.Result()
		f.name(r, "eval", s.endpoint)
		sent += r.Attempted
		r.Engine, r.Eval = engine, summed(s.graded)
		results = append(results, r)
	}
	cost := meter.Stop(sent, bench.Distribution{}, results[0].TTFT)
	for _, r := range results {
		r.Client = cost
	}
	if len(students) == 2 && ctx.Err() == nil {
		f.differences(ctx, students, items, examples, results[1].Eval)
	}
	if ctx.Err() != nil {
		_, _ = fmt.Fprintln(f.said, "stopped; the same command goes on where it was")
	}
	for _, s := range students {
		if err := s.journal.err; err != nil {
			return nil, err
		}
	}
	return results, nil
}

// ask sends the items that have no answer yet.
func (f *evalFlags) ask(ctx context.Context, s *student, items, examples []problem, bar *progress) {
	var todo []int
	for i := range items {
		if s.graded[i] == nil {
			todo = append(todo, i)
		} else {
			bar.step(1, 0)
		}
	}
	loop := bench.Closed{Users: f.concurrency, Send: s.client.Send}
	loop.Next = func() *bench.Turn {
		if len(todo) == 0 {
			return nil
		}
		index := todo[0]
		todo = todo[1:]
		return &bench.Turn{Call: func([]bench.Answer) bench.Call {
			call := f.call(items[index], examples)
			call.Tag = index
			return call
		}}
	}
	loop.Done = func(a bench.Answer, dropped int) {
		s.recorder.Add(a, dropped)
		if a.Failure != bench.Stopped {
			g := f.grade(a.Tag, items[a.Tag], &a)
			s.graded[a.Tag] = g
			if a.Failure == bench.None { // a failed one is asked again by the next run
				s.journal.add(g)
			}
		}
		bar.step(1, s.recorder.Failed())
	}
	loop.Run(ctx)
}

const (
	truncated = "truncated"
	failed    = "failed"
)

// grade judges an answer.
func (f *evalFlags) grade(index int, p problem, a *bench.Answer) *bench.Graded {
	g := &bench.Graded{Index: index, Gold: grade.Gold(p.reference), Text: a.Text, Thought: a.Thought, Finish: a.Finish, Failure: a.Cause()}
	if a.Failure != bench.None {
		g.Outcome = failed
		return g
	}
	outcome, found := grade.Grade(a.Text, p.reference, f.marker)
	g.Outcome, g.Found = string(outcome), found
	if a.Finish == "length" {
		g.Outcome = truncated
	}
	return g
}

func summed(graded []*bench.Graded) *bench.EvalReport {
	e := &bench.EvalReport{}
	for _, g := range graded {
		if g == nil {
			continue
		}
		e.Items++
		switch g.Outcome {
		case string(grade.Right):
			e.Right++
		case string(grade.Wrong):
			e.Wrong++
		case string(grade.Missing):
			e.NoAnswer++
		case truncated:
			e.Truncated++
		default:
			e.Failed++
		}
		e.Graded = append(e.Graded, *g)
	}
	if n := e.Items - e.Failed; n > 0 {
		e.Accuracy = float64(e.Right) / float64(n)
	}
	return e
}

// spoken is all that a model said.
func spoken(thought, text, finish string) string {
	if thought != "" {
		thought += " | "
	}
	return thought + text + " | " + finish
}

// differences compares the outputs of two servers, and asks again where they
// differ.
func (f *evalFlags) differences(ctx context.Context, students []*student, items, examples []problem, e *bench.EvalReport) {
	one, two := students[0], students[1]
	for i := range items {
		a, b := one.graded[i], two.graded[i]
		if a == nil || b == nil || a.Failure != "" || b.Failure != "" {
			continue
		}
		e.Compared++
		textA, textB := spoken(a.Thought, a.Text, a.Finish), spoken(b.Thought, b.Text, b.Finish)
		if textA == textB {
			continue
		}
		at := 0
		for at < min(len(textA), len(textB)) && textA[at] == textB[at] {
			at++
		}
		from := max(0, at-40)
		d := bench.Difference{Index: i, At: at, A: textA[from:min(len(textA), at+40)], B: textB[from:min(len(textB), at+40)]}
		d.Unstable = f.unstable(ctx, one.client, two.client, f.call(items[i], examples))
		e.Differences = append(e.Differences, d)
	}
}

// unstable asks two servers again, one request at a time, and reports whether one
// of them does not repeat itself or both now say the same.
func (f *evalFlags) unstable(ctx context.Context, one, two *bench.Client, call bench.Call) bool {
	said := [2]map[string]bool{{}, {}}
	for range 3 {
		for i, c := range []*bench.Client{one, two} {
			a := c.Send(ctx, call)
			if a.Failure != bench.None {
				return false
			}
			said[i][spoken(a.Thought, a.Text, a.Finish)] = true
		}
	}
	if len(said[0]) > 1 || len(said[1]) > 1 {
		return true
	}
	for text := range said[0] {
		if said[1][text] {
			return true
		}
	}
	return false
}
