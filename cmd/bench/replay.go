package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/warmpath/warmpath/internal/bench"
	"github.com/warmpath/warmpath/internal/lab"
)

const replayUsage = `usage: bench replay -endpoint URL[,URL] [flags]

The arrivals of bench simulate with the same seed, sent over HTTP to any server of OpenAI's API, whether it keeps up or
not; the same table. With several URLs, one after another; url+url sends in turn to both, as a load balancer
does. Beside them, -simulate runs the same requests in virtual time:

  for port in 8201 8202 8203 8204; do mockvllm -preset 8b -listen 127.0.0.1:$port & done
  gateway $(printf -- '-replica http://127.0.0.1:%d ' 8201 8202 8203 8204) &
  bench replay -endpoint http://127.0.0.1:8080 -workload rag -load 0.25 -span 30s -simulate prefix -replicas 4

On a small machine, stretch time: mockvllm -time-scale 4 and bench replay -time-scale 4. All times in the table are divided
back, so that they compare with the simulation's; lateness is the client's own and is not.

Flags:
`

// replayFlags are the settings of bench replay.
type replayFlags struct {
	servers
	workload, trace, as         string
	load, scale                 float64
	span, slo                   time.Duration
	limit, vocabulary, inFlight int
	seed                        uint64
	simulate, engine            string
	replicas                    int
	asJSON                      bool
	progress                    *os.File
}

func (f *replayFlags) parse(args []string) error {
	fs := flag.NewFlagSet("bench replay", flag.ContinueOnError)
	fs.Usage = func() { _, _ = io.WriteString(fs.Output(), replayUsage); fs.PrintDefaults() }
	f.register(fs, "base `URLs` of servers, separated by commas; those joined by + get requests in turn and are one row")
	fs.StringVar(&f.workload, "workload", "chat", "`name` of a generated workload: "+lab.WorkloadNames())
	fs.StringVar(&f.trace, "trace", "", "`file` of a trace in Mooncake's format (JSON lines, also gzip) instead")
	fs.StringVar(&f.as, "as", "tokens", "`form` of prompts: tokens (lists of token ids, /v1/completions) or chat (words of about a token each)")
	fs.IntVar(&f.vocabulary, "vocabulary", 32_000, "with -as tokens: ids are below this `number`; at most as many as the model has tokens")
	fs.Float64Var(&f.load, "load", 1, "`times` the workload's or the trace's rate")
	fs.DurationVar(&f.span, "span", time.Minute, "`time` of arrivals of generated workloads, before it is stretched")
	fs.Float64Var(&f.scale, "time-scale", 1, "stretch arrivals and think times by this `factor`: 2 is half as fast")
	fs.IntVar(&f.limit, "limit", 0, "send at most this `number` of requests, the first to arrive; 0 is all")
	fs.IntVar(&f.inFlight, "in-flight", 4096, "most `requests` under way; what has to wait for room is sent late and counted so")
	fs.Uint64Var(&f.seed, "seed", 1, "of arrivals, as in bench simulate")
	fs.DurationVar(&f.slo, "slo", time.Second, "time to first token to be kept, before it is stretched")
	fs.StringVar(&f.simulate, "simulate", "", "also simulate the same requests, stretched alike, under the policies of these `names`")
	fs.IntVar(&f.replicas, "replicas", 0, "how many `replicas` each URL and -simulate have; 0 is those that answers name, which may be fewer\n"+
		"(busiest is then a lower bound), and what the workload is meant for")
	fs.StringVar(&f.engine, "engine", "", "`preset` of engines that -simulate has: "+engineNames()+"; empty is what the workload is meant for")
	fs.BoolVar(&f.asJSON, "json", false, "print JSON, a line for each URL and simulated policy")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if err := f.check(fs); err != nil {
		return err
	}
	switch {
	case f.load <= 0 || f.scale <= 0:
		return fmt.Errorf("-load is %v, -time-scale %v: both must be above 0", f.load, f.scale)
	case f.as != "tokens" && f.as != "chat":
		return fmt.Errorf("-as must be tokens or chat, not %q", f.as)
	case f.vocabulary <= firstToken:
		return fmt.Errorf("-vocabulary must be above %d, not %d", firstToken, f.vocabulary)
	case f.inFlight < 1:
		return fmt.Errorf("-in-flight must be at least 1, not %d", f.inFlight)
	case f.replicas < 0:
		return fmt.Errorf("-replicas must be 0 or more, not %d", f.replicas)
	case f.limit < 0:
		return fmt.Errorf("-limit must be 0 or more, not %d", f.limit)
	case f.span <= 0:
		return fmt.Errorf("-span must be above 0, not %v", f.span)
	case f.slo <= 0:
		return fmt.Errorf("-slo must be above 0, not %v", f.slo)
	}
	if _, ok := lab.Engines()[f.engine]; !ok && f.engine != "" {
		return noEngine(f.engine) // before all is sent, not behind it
	}
	return nil
}

// replayed is one row: a URL, or a simulated policy.
type replayed struct {
	Workload string `json:"workload"`
	Endpoint string `json:"endpoint,omitempty"` // "" when simulated
	lab.Summary
	CachedKnown  bool                  `json:"cached_known"`
	ReplicaKnown bool                  `json:"replica_known"`                // else busiest says nothing
	Replicas     int                   `json:"replicas,omitempty"`           // that busiest compares
	AtLeast      bool                  `json:"imbalance_at_least,omitempty"` // there may be more, which got no request
	Failed       int                   `json:"failed"`
	Failures     map[bench.Failure]int `json:"failures,omitempty"`
	Dropped      int                   `json:"dropped,omitempty"` // later turns of sessions that failed
	LateP99      float64               `json:"late_p99"`          // seconds that the clock showed
	TimeScale    float64               `json:"time_scale"`
	firstFailure error
}

const replayHead = "workload\tpolicy\trequests\tmean s\tP50\tP95\tP99\tcached\tover SLO\tTPOT P95\tbusiest\ttokens/s\tfailed\tlate P99\t"

func (r *replayed) String() string {
	cached, busiest, late := fmt.Sprintf("%.3f", r.Hit), fmt.Sprintf("%.2f x", r.Imbalance), fmt.Sprintf("%.1f ms", 1000*r.LateP99)
	if !r.CachedKnown {
		cached = "–"
	}
	switch {
	case !r.ReplicaKnown:
		busiest = "–"
	case r.AtLeast:
		busiest = "≥ " + busiest
	}
	if r.Endpoint == "" {
		late = "–"
	}
	return fmt.Sprintf("%s\t%s\t%d\t%.3f\t%.3f\t%.3f\t%.3f\t%s\t%.1f %%\t%.0f ms\t%s\t%.0f\t%d\t%s\t",
		r.Workload, r.Policy, r.Requests, r.Mean, r.P50, r.P95, r.P99, cached, 100*r.Slow, 1000*r.TPOT95, busiest, r.Throughput, r.Failed, late)
}

func replay(args []string, out io.Writer) error { return replayTo(args, out, os.Stderr) }

// replayTo is replay with progress and warnings somewhere else.
func replayTo(args []string, out io.Writer, progress *os.File) error {
	f := &replayFlags{progress: progress}
	if err := f.parse(args); err != nil {
		return err
	}
	works, err := choose(f.workload, f.trace, f.load, f.span)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var rows []*replayed
	for _, w := range works {
		for endpoint := range strings.SplitSeq(f.endpoints, ",") {
			row, err := f.send(ctx, w, endpoint)
			if err != nil {
				return err
			}
			rows = append(rows, row)
		}
		if f.simulate == "" {
			continue
		}
		for policy := range strings.SplitSeq(f.simulate, ",") {
			row, err := f.virtual(w, policy)
			if err != nil {
				return err
			}
			rows = append(rows, row)
		}
	}
	return f.print(rows, out)
}

// requests are the arrivals, stretched.
func (f *replayFlags) requests(w lab.Workload) []*lab.Request {
	requests := first(w.Make(rand.New(rand.NewPCG(f.seed, 1))), f.limit)
	for _, r := range requests {
		r.At = stretch(r.At, f.scale)
		for ; r != nil; r = r.Next {
			r.Think = stretch(r.Think, f.scale)
		}
	}
	return requests
}

// first keeps the first n requests, all turns of a session counted where it
// begins; 0 is all.
func first(requests []*lab.Request, n int) []*lab.Request {
	if n <= 0 {
		return requests
	}
	for i, r := range requests {
		if n == 0 {
			return requests[:i]
		}
		for n--; r.Next != nil; r = r.Next {
			if n == 0 {
				r.Next = nil
				break
			}
			n--
		}
	}
	return requests
}

func stretch(d time.Duration, scale float64) time.Duration {
	return time.Duration(float64(d) * scale)
}

// send replays the workload against one server.
func (f *replayFlags) send(ctx context.Context, w lab.Workload, endpoint string) (*replayed, error) {
	var clients []*bench.Client
	for url := range strings.SplitSeq(endpoint, "+") {
		client, err := f.client(url)
		if err != nil {
			return nil, err
		}
		defer client.Close()
		clients = append(clients, client)
	}
	var turn atomic.Uint64
	inTurn := func(ctx context.Context, call bench.Call) bench.Answer {
		return clients[turn.Add(1)%uint64(len(clients))].Send(ctx, call)
	}
	requests := f.requests(w)
	p := &prompts{model: f.model, vocabulary: f.vocabulary, chat: f.as == "chat"}
	turns, total := p.turns(requests)
	var tally bench.Tally
	bar := newProgress(f.progress, endpoint, "requests", total)
	loop := bench.Loop{Send: inTurn, InFlight: f.inFlight, Done: func(a bench.Answer, dropped int) {
		tally.Add(a, dropped)
		bar.step(1+dropped, tally.Failed())
	}}
	took := loop.Run(ctx, turns)
	bar.end()
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%s: stopped after %d of %d requests", endpoint, len(tally.Late), total)
	}
	row := f.row(w.Name, endpoint, &tally, took)
	row.Endpoint = endpoint
	return row, nil
}

func (f *replayFlags) row(workload, name string, t *bench.Tally, took time.Duration) *replayed {
	r := lab.Result{
		Policy: name, TTFT: t.TTFT, TPOT: t.TPOT, Prompt: t.Prompt, Cached: t.Cached, Output: t.Output, Span: took,
		Computed: uint64(t.Prompt - t.Cached),
		Load:     f.loads(t.Replicas),
	}
	row := &replayed{
		Workload: workload, CachedKnown: t.CachedKnown, ReplicaKnown: len(r.Load) > 0, Replicas: len(r.Load), AtLeast: len(r.Load) > 0 && f.replicas == 0,
		Failed: t.Failed(), Failures: t.Failures, Dropped: t.Dropped, LateP99: t.LateP99().Seconds(), firstFailure: t.Err,
	}
	if !row.ReplicaKnown {
		r.Load = []int{len(t.TTFT)}
	}
	f.summarize(row, &r)
	return row
}

// loads are the requests by replica, none if no answer named one. A replica that
// got no request is named by no answer: -replicas says that it is there.
func (f *replayFlags) loads(named map[string]int) []int {
	loads := slices.Collect(maps.Values(named))
	if missing := f.replicas - len(loads); len(loads) > 0 && missing > 0 {
		loads = append(loads, make([]int, missing)...)
	}
	return loads
}

// summarize divides the times back.
func (f *replayFlags) summarize(row *replayed, r *lab.Result) {
	for _, times := range [][]time.Duration{r.TTFT, r.TPOT} {
		for i := range times {
			times[i] = stretch(times[i], 1/f.scale)
		}
	}
	r.Span = stretch(r.Span, 1/f.scale)
	r.Prompt = max(1, r.Prompt) // a server without usage: the share is marked unknown
	row.TimeScale, row.Summary = f.scale, r.Summarize(f.slo)
}

// virtual simulates what send sends.
func (f *replayFlags) virtual(w lab.Workload, policy string) (*replayed, error) {
	if f.replicas > 0 {
		w.Replicas = f.replicas
	}
	if f.engine != "" {
		w.Engine = f.engine
	}
	config, ok := lab.Engines()[w.Engine]
	if !ok {
		return nil, noEngine(w.Engine)
	}
	s := lab.Scenario{Replicas: w.Replicas, Engine: config.Stretch(f.scale), Policy: policy, Seed: f.seed, Wrong: 1}
	r, err := lab.Simulate(s, f.requests(w))
	if err != nil {
		return nil, fmt.Errorf("%s, %s: %w", w.Name, policy, err)
	}
	row := &replayed{Workload: w.Name, CachedKnown: true, ReplicaKnown: true, Replicas: w.Replicas}
	f.summarize(row, r)
	row.Policy = "simulated " + policy
	return row, nil
}

// tooLate is a lateness of the client's own, of one request in a hundred, above
// which figures are doubtful: policies are told apart by tens of milliseconds.
const tooLate = 10 * time.Millisecond

func (f *replayFlags) print(rows []*replayed, out io.Writer) error {
	if f.asJSON {
		for _, r := range rows {
			if err := json.NewEncoder(out).Encode(r); err != nil {
				return err
			}
		}
	} else {
		table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
		_, _ = fmt.Fprintln(table, replayHead)
		for _, r := range rows {
			_, _ = fmt.Fprintln(table, r)
		}
		if err := table.Flush(); err != nil {
			return err
		}
	}
	for _, r := range rows {
		r.warn(f.progress)
	}
	return nil
}

// warn says what makes a row doubtful.
func (r *replayed) warn(to io.Writer) {
	if r.Failed > 0 {
		_, _ = fmt.Fprintf(to, "%s: %d requests failed:", r.Policy, r.Failed)
		for _, kind := range slices.Sorted(maps.Keys(r.Failures)) {
			_, _ = fmt.Fprintf(to, " %d × %s,", r.Failures[kind], kind)
		}
		_, _ = fmt.Fprintf(to, " and %d later turns were not sent; the first: %v\n", r.Dropped, r.firstFailure)
	}
	if r.LateP99 > tooLate.Seconds() {
		_, _ = fmt.Fprintf(to, "%s: warning: this client sent one request in a hundred %.0f ms late or more, which is in the figures: "+
			"it lacks CPU, or -in-flight was reached. Stretch time with -time-scale, or lower -load.\n", r.Policy, 1000*r.LateP99)
	}
}
