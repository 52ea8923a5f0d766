package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/warmpath/warmpath/internal/bench"
	"github.com/warmpath/warmpath/internal/lab"
)

const loadUsage = `usage: bench load -endpoint URL[,URL] -model NAME [flags]

Sends load and measures: time to first token, TPOT, gaps between chunks, end to end, tokens a second (by usage, chunks are never
counted), goodput, failures by cause, the share of prompt tokens from cache, and each replica's part.

Closed loop: -concurrency users, each of which waits for its answer before it sends again. It measures throughput; a server
that stalls is sent less, so it hides what others would have waited.

  bench load -endpoint http://127.0.0.1:8080 -model m -concurrency 16 -requests 500 -input 1000 -output 100

Open loop: -rate requests a second come whether the server keeps up or not. Times run from when a request was due, so that
waiting in this client is in them; "served" is what they would be without, "late" the difference.

  bench load -endpoint http://127.0.0.1:8080 -model m -rate 20 -duration 60s -warm-up 10s -workload chat -slo ttft=1s,tpot=50ms

Prompts: -input and -output tokens (100 or 100-400), of which the first -shared are the same within each of -groups; sessions
with -turns and -think; or a -workload with its own sharing and sessions; or a -trace; or a -dataset.

Several URLs get the same load side by side, so that noise hits all alike; with -distinct no prompt of one is in the caches of
another. Compare two -o files with bench compare, draw them with bench report.
`

// loadFlags are the settings of bench load.
type loadFlags struct {
	target
	concurrency, requests, inFlight, burst   int
	rate, timeScale                          float64
	duration, warmUp, think, span            time.Duration
	arrivals, workload, trace, dataset, as   string
	field                                    string
	input, output, turns                     sizes
	shared, groups, vocabulary               int
	seed                                     uint64
	slo                                      bench.SLO
	ignoreEOS, distinct, asJSON, ignoreEOSOn bool
}

// sizes is a range of numbers, drawn evenly.
type sizes struct{ low, high int }

func (s *sizes) String() string {
	if s.low == s.high {
		return strconv.Itoa(s.low)
	}
	return fmt.Sprintf("%d-%d", s.low, s.high)
}

// Set reads "100" or "100-400".
func (s *sizes) Set(text string) error {
	low, high, ranged := strings.Cut(text, "-")
	if !ranged {
		high = low
	}
	var err error
	var errHigh error
	s.low, err = strconv.Atoi(low)
	s.high, errHigh = strconv.Atoi(high)
	if err != nil || errHigh != nil || s.low < 1 || s.high < s.low {
		return errors.New("write a number such as 100, or a range such as 100-400")
	}
	return nil
}

func (s *sizes) draw(rnd *rand.Rand) int { return s.low + rnd.IntN(s.high-s.low+1) }

// parseSLO reads "ttft=1s,tpot=50ms,e2e=30s".
func parseSLO(text string) (slo bench.SLO, err error) {
	for part := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(part, "=")
		d, err := time.ParseDuration(value)
		if err != nil || d <= 0 {
			return slo, fmt.Errorf("%q: write such as ttft=1s,tpot=50ms,e2e=30s", part)
		}
		switch name {
		case "ttft":
			slo.TTFT = d
		case "tpot":
			slo.TPOT = d
		case "e2e":
			slo.E2E = d
		default:
			return slo, fmt.Errorf("%q: there are ttft, tpot and e2e", name)
		}
	}
	return slo, nil
}

func (f *loadFlags) parse(args []string) error {
	fs := flagsOf("load", loadUsage)
	f.register(fs)
	fs.IntVar(&f.concurrency, "concurrency", 8, "closed loop: `users`")
	fs.Float64Var(&f.rate, "rate", 0, "open loop instead: mean `requests` (of sessions: first requests) a second")
	fs.StringVar(&f.arrivals, "arrivals", "poisson", "how they come in the open loop: poisson, constant, bursts, or own (a workload's or trace's own times; -rate is not needed)")
	fs.IntVar(&f.burst, "burst", 10, "`size` of a burst")
	fs.Float64Var(&f.timeScale, "time-scale", 1, "with -arrivals own: stretch times by this `factor`")
	fs.IntVar(&f.inFlight, "in-flight", 4096, "open loop: most `requests` under way; what has to wait for room is sent late and counted so")
	fs.IntVar(&f.requests, "requests", 0, "send this `number` of sessions (single requests, unless they have turns); 0 is 200, or what fits -duration")
	fs.DurationVar(&f.duration, "duration", 0, "send for this `time` instead; answers under way are waited for")
	fs.DurationVar(&f.warmUp, "warm-up", 0, "leave the requests of the first `time` out of all figures")
	f.input, f.output, f.turns = sizes{256, 256}, sizes{64, 64}, sizes{1, 1}
	fs.Var(&f.input, "input", "`tokens` of each user's message that nothing else has: 256 or 100-400")
	fs.Var(&f.output, "output", "`tokens` of each answer")
	fs.IntVar(&f.shared, "shared", 0, "`tokens` before them that are the same in every prompt of a group")
	fs.IntVar(&f.groups, "groups", 1, "how many `groups` share a beginning")
	fs.Var(&f.turns, "turns", "`turns` of a session")
	fs.DurationVar(&f.think, "think", 0, "mean `time` between an answer and the session's next turn")
	fs.StringVar(&f.workload, "workload", "", "`name` of a generated workload instead: "+lab.WorkloadNames())
	fs.DurationVar(&f.span, "span", 10*time.Minute, "`time` of arrivals of which a workload is made")
	fs.StringVar(&f.trace, "trace", "", "`file` of a trace in Mooncake's format (JSON lines, also gzip) instead")
	fs.StringVar(&f.dataset, "dataset", "", "`file` of prompts instead (JSON lines, also gzip), each with messages or -field")
	fs.StringVar(&f.field, "field", "", "`name` of the dataset's field; empty is the first of prompt, question, problem, text")
	fs.StringVar(&f.as, "as", "tokens", "`form` of prompts: tokens (exact lists of token ids, /v1/completions) or chat (words of about a token each)")
	fs.IntVar(&f.vocabulary, "vocabulary", 32_000, "with -as tokens: ids are below this `number`; at most as many as the model has tokens")
	fs.Uint64Var(&f.seed, "seed", 1, "of everything random")
	fs.BoolVar(&f.ignoreEOS, "ignore-eos", true, "have vLLM generate exactly -output tokens; off by default with -dataset. Turn it off for servers that refuse unknown fields")
	fs.BoolVar(&f.distinct, "distinct", false, "with several URLs: other tokens for each")
	fs.Func("slo", "what a good request keeps, such as `ttft=1s,tpot=50ms,e2e=30s`", func(text string) (err error) {
		f.slo, err = parseSLO(text)
		return err
	})
	fs.BoolVar(&f.asJSON, "json", false, "print the results as JSON, samples included")
	if err := f.target.parse(fs, args); err != nil {
		return err
	}
	_, f.ignoreEOSOn = f.set["ignore-eos"]
	sources := 0
	for _, s := range []string{f.workload, f.trace, f.dataset} {
		if s != "" {
			sources++
		}
	}
	switch {
	case sources > 1:
		return errors.New("give one of -workload, -trace and -dataset")
	case f.concurrency < 1 || f.inFlight < 1 || f.burst < 1 || f.groups < 1:
		return errors.New("-concurrency, -in-flight, -burst and -groups must be at least 1")
	case f.rate < 0 || f.requests < 0 || f.shared < 0 || f.timeScale <= 0:
		return errors.New("-rate, -requests and -shared must not be below 0, -time-scale must be above it")
	case f.arrivals != "poisson" && f.arrivals != "constant" && f.arrivals != "bursts" && f.arrivals != "own":
		return fmt.Errorf("-arrivals must be poisson, constant, bursts or own, not %q", f.arrivals)
	case f.arrivals == "own" && f.workload == "" && f.trace == "":
		return errors.New("-arrivals own needs a -workload or a -trace")
	case f.as != "tokens" && f.as != "chat":
		return fmt.Errorf("-as must be tokens or chat, not %q", f.as)
	case f.vocabulary <= firstToken:
		return fmt.Errorf("-vocabulary must be above %d, not %d", firstToken, f.vocabulary)
	case f.warmUp > 0 && f.duration > 0 && f.warmUp >= f.duration:
		return errors.New("-warm-up must be shorter than -duration")
	}
	if f.requests == 0 && f.duration == 0 && sources == 0 {
		f.requests = 200
	}
	return nil
}

// open says whether the loop is open.
func (f *loadFlags) open() bool { return f.rate > 0 || f.arrivals == "own" }

// schedule is the open loop's list of sessions with their times.
func (f *loadFlags) schedule(next source) (turns []*bench.Turn, total int) {
	var at bench.Arrivals
	switch f.arrivals {
	case "constant":
		at = bench.Constant(f.rate)
	case "bursts":
		at = bench.Bursts(f.rate, f.burst)
	case "poisson":
		at = bench.Poisson(f.rate, rand.New(rand.NewPCG(f.seed, 2)))
	}
	for f.requests == 0 || len(turns) < f.requests {
		t := next()
		if t == nil {
			break
		}
		if at != nil {
			t.At = at()
		}
		if f.duration > 0 && t.At >= f.duration {
			break
		}
		turns = append(turns, t)
		for ; t != nil; t = t.Next {
			total++
		}
	}
	return turns, total
}

func load(args []string, out io.Writer) error {
	f := &loadFlags{}
	if err := f.parse(args); err != nil {
		return err
	}
	return f.run(out)
}

func (f *loadFlags) run(out io.Writer) error {
	ctx, stop := untilStopped()
	defer stop()
	results, err := f.measure(ctx)
	if err != nil {
		return err
	}
	if err := show(out, f.asJSON, results); err != nil {
		return err
	}
	return f.finish(results)
}

// lane is one URL's part of a run.
type lane struct {
	endpoint string
	client   *bench.Client
	recorder bench.Recorder
	run      func(context.Context)
}

// measure runs the load against all URLs at once.
func (f *loadFlags) measure(ctx context.Context) ([]*bench.Result, error) {
	endpoints := strings.Split(f.endpoints, ",")
	lanes := make([]*lane, len(endpoints))
	bar := newProgress(f.said, "load", "requests", 0)
	for i, endpoint := range endpoints {
		client, err := f.client(endpoint)
		if err != nil {
			return nil, err
		}
		defer client.Close()
		lanes[i] = &lane{endpoint: endpoint, client: client, recorder: bench.Recorder{Warm: f.warmUp, SLO: f.slo}}
		next, err := f.source(i)
		if err != nil {
			return nil, err
		}
		f.prepare(lanes[i], next, time.Duration(i), time.Duration(len(endpoints)), bar)
	}
	halt, err := f.watch(ctx)
	if err != nil {
		return nil, err
	}
	meter := bench.StartMeter()
	var running sync.WaitGroup
	for _, l := range lanes {
		running.Go(func() { l.run(ctx) })
	}
	running.Wait()
	bar.end()
	engine := halt()
	var results []*bench.Result
	attempted, late, ttft := 0, bench.Distribution{}, bench.Distribution{}
	for _, l := range lanes {
		r := l.recorder.Result()
		f.name(r, "load", l.endpoint)
		attempted += r.Attempted + r.WarmUp
		if r.Late.P99 > late.P99 {
			late = r.Late
		}
		if ttft.Count == 0 || r.TTFT.Count > 0 && r.TTFT.P50 < ttft.P50 {
			ttft = r.TTFT
		}
		r.Engine = engine
		results = append(results, r)
	}
	cost := meter.Stop(attempted, late, ttft)
	for _, r := range results {
		r.Client = cost
	}
	return results, nil
}

// prepare makes the loop of the i-th of n URLs. In an open loop their requests are
// due in turn, not at the same moments.
func (f *loadFlags) prepare(l *lane, next source, i, n time.Duration, bar *progress) {
	done := func(a bench.Answer, dropped int) {
		l.recorder.Add(a, dropped)
		bar.step(1+dropped, l.recorder.Failed())
	}
	if f.open() {
		turns, total := f.schedule(next)
		bar.total += total
		if f.rate > 0 {
			for _, t := range turns {
				t.At += time.Duration(float64(time.Second)/f.rate) * i / n
			}
		}
		loop := &bench.Loop{Send: l.client.Send, InFlight: f.inFlight, Done: done}
		l.run = func(ctx context.Context) { loop.Run(ctx, turns) }
		return
	}
	left, end := f.requests, time.Time{}
	if f.turns.high == 1 && f.workload == "" {
		bar.total += f.requests
	}
	closed := &bench.Closed{Send: l.client.Send, Users: f.concurrency, Done: done, Next: func() *bench.Turn {
		if f.requests > 0 {
			if left == 0 {
				return nil
			}
			left--
		}
		if f.duration > 0 && time.Now().After(end) {
			return nil
		}
		return next()
	}}
	l.run = func(ctx context.Context) {
		end = time.Now().Add(f.duration)
		closed.Run(ctx)
	}
}
