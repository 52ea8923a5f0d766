package bench

import (
	"encoding/json"
	"fmt"
	"os"
	"time"
)

// FormatVersion is the version of [Result] as JSON. Another major shape gets
// another number; added members do not.
const FormatVersion = 1

// Result is what one run against one server showed: the file that bench compare
// and bench report read. Times are in milliseconds unless a name says otherwise.
// Figures of latency, tokens and rates are those of requests that succeeded;
// attempts and failures stand beside them.
type Result struct {
	Version  int            `json:"version"`
	Kind     string         `json:"kind"`  // ttft, load, limits or eval
	Label    string         `json:"label"` // what to call it in tables
	Endpoint string         `json:"endpoint"`
	Model    string         `json:"model"`
	Started  time.Time      `json:"started"`
	Settings map[string]any `json:"settings,omitempty"` // the flags that were set

	Seconds   float64        `json:"seconds"` // from when the first measured request was due to the last answer's end
	Attempted int            `json:"attempted"`
	OK        int            `json:"ok"`
	Failed    int            `json:"failed"`
	Cancelled int            `json:"cancelled"` // by the user of this client
	Failures  map[string]int `json:"failures,omitempty"`
	FirstFail string         `json:"first_failure,omitempty"`
	Dropped   int            `json:"dropped,omitempty"` // later turns of sessions that failed
	WarmUp    int            `json:"warm_up,omitempty"` // requests sent before measuring, in no figure
	Whole     int            `json:"not_streamed,omitempty"`

	PromptTokens int  `json:"prompt_tokens"`
	CachedTokens int  `json:"cached_tokens"`
	CachedKnown  bool `json:"cached_known"` // some answer told its cached tokens, maybe none
	OutputTokens int  `json:"output_tokens"`
	NoUsage      int  `json:"no_usage,omitempty"` // successes that told no tokens

	RequestsPerSecond float64 `json:"requests_per_second"`
	PromptPerSecond   float64 `json:"prompt_tokens_per_second"`
	OutputPerSecond   float64 `json:"output_tokens_per_second"`
	SLO               *SLO    `json:"slo,omitempty"`
	Good              int     `json:"good"` // requests within the SLO
	GoodPerSecond     float64 `json:"good_per_second"`

	TTFT   Distribution `json:"ttft"`         // from when it was due to the first generated token
	Answer Distribution `json:"first_answer"` // to the first token that is not reasoning
	TPOT   Distribution `json:"tpot"`         // per request; those with one token have none
	Gap    Distribution `json:"chunk_gap"`    // between chunks, which may carry several tokens
	E2E    Distribution `json:"e2e"`          // from when it was due
	Served Distribution `json:"served"`       // from when it was sent: what hides the client's own waiting
	Late   Distribution `json:"late"`         // from due to sent, of all attempts

	Replicas map[string]*Share `json:"replicas,omitempty"`
	Client   Cost              `json:"client"`
	Engine   *EngineReport     `json:"engine,omitempty"`
	// ReplicaStart are measured start-up times of a replica in seconds, given by flag.
	ReplicaStart []float64 `json:"replica_start_seconds,omitempty"`
	MemoryPeak   float64   `json:"memory_peak_gib,omitempty"` // of GPU memory, given by flag
	Samples      []Sample  `json:"samples"`

	Limits *LimitsReport `json:"limits,omitempty"`
	Eval   *EvalReport   `json:"eval,omitempty"`
}

// Share is one replica's part of a run.
type Share struct {
	OK     int          `json:"ok"`
	Prompt int          `json:"prompt_tokens"`
	Cached int          `json:"cached_tokens"`
	Output int          `json:"output_tokens"`
	TTFT   Distribution `json:"ttft"`
	TPOT   Distribution `json:"tpot"`

	ttft, tpot times
}

// Sample is one request: what intervals and charts are made of.
type Sample struct {
	At       float64 `json:"at_s"` // when it was due, after the start
	Late     float64 `json:"late"`
	TTFT     float64 `json:"ttft,omitempty"`
	TPOT     float64 `json:"tpot,omitempty"`
	E2E      float64 `json:"e2e"`
	Prompt   int     `json:"prompt,omitempty"`
	Cached   int     `json:"cached,omitempty"`
	Repeated int     `json:"repeated,omitempty"` // first tokens of the prompt that an earlier request begins with
	Output   int     `json:"output,omitempty"`
	Replica  string  `json:"replica,omitempty"`
	Failure  string  `json:"failure,omitempty"`
}

// SLO is what a request must keep to count as good; a zero is no condition.
type SLO struct {
	TTFT time.Duration `json:"ttft_ns,omitempty"`
	TPOT time.Duration `json:"tpot_ns,omitempty"`
	E2E  time.Duration `json:"e2e_ns,omitempty"`
}

// Kept reports whether an answer that succeeded keeps the SLO.
func (s SLO) Kept(a *Answer) bool {
	tpot, ok := a.TPOT()
	return (s.TTFT == 0 || a.TTFT() <= s.TTFT) && (s.TPOT == 0 || !ok || tpot <= s.TPOT) && (s.E2E == 0 || a.E2E() <= s.E2E)
}

// Recorder makes a Result of answers. It is not safe for concurrent use: loops call
// Done one at a time.
type Recorder struct {
	Warm time.Duration // requests due within this time after the start are in no figure
	SLO  SLO

	r                                        Result
	from, to                                 time.Duration // what was measured
	ttft, said, tpot, gap, e2e, served, late times
}

// Add counts an answer; dropped is as in Loop.Done.
func (r *Recorder) Add(a Answer, dropped int) {
	if r.r.Started.IsZero() || a.Sent.Before(r.r.Started) {
		r.r.Started = a.Sent
	}
	if a.At < r.Warm {
		r.r.WarmUp++
		return
	}
	if r.r.Attempted == 0 || a.At < r.from {
		r.from = a.At
	}
	r.to = max(r.to, a.At+a.Late+a.Took)
	r.r.Attempted++
	r.r.Dropped += dropped
	r.late.add(a.Late)
	s := Sample{
		At: a.At.Seconds(), Late: ms(a.Late), E2E: ms(a.E2E()), Repeated: a.Repeated,
		Prompt: a.Usage.Prompt, Cached: a.Usage.Cached, Output: a.Usage.Completion, Replica: a.Replica, Failure: a.Cause(),
	}
	if a.Failure != None {
		r.failed(a)
	} else {
		s.TTFT = ms(a.TTFT())
		if tpot, ok := a.TPOT(); ok {
			s.TPOT = ms(tpot)
		}
		r.succeeded(&a)
	}
	r.r.Samples = append(r.r.Samples, s)
}

func (r *Recorder) failed(a Answer) {
	if a.Failure == Stopped {
		r.r.Cancelled++
		return
	}
	r.r.Failed++
	if r.r.Failures == nil {
		r.r.Failures = map[string]int{}
	}
	r.r.Failures[a.Cause()]++
	if r.r.FirstFail == "" && a.Err != nil {
		r.r.FirstFail = a.Err.Error()
	}
}

func (r *Recorder) succeeded(a *Answer) {
	r.r.OK++
	r.ttft.add(a.TTFT())
	r.e2e.add(a.E2E())
	r.served.add(a.Took)
	if a.Said > 0 {
		r.said.add(a.Late + a.Said)
	}
	tpot, timed := a.TPOT()
	if timed {
		r.tpot.add(tpot)
	}
	for _, g := range a.Gaps {
		r.gap.add(g)
	}
	if r.SLO.Kept(a) {
		r.r.Good++
	}
	if a.Whole {
		r.r.Whole++
	}
	if a.Usage.Prompt == 0 && a.Usage.Completion == 0 {
		r.r.NoUsage++
	}
	r.r.PromptTokens += a.Usage.Prompt
	r.r.CachedTokens += a.Usage.Cached
	r.r.OutputTokens += a.Usage.Completion
	r.r.CachedKnown = r.r.CachedKnown || a.Usage.CachedKnown
	if a.Replica == "" {
		return
	}
	if r.r.Replicas == nil {
		r.r.Replicas = map[string]*Share{}
	}
	share := r.r.Replicas[a.Replica]
	if share == nil {
		share = &Share{}
		r.r.Replicas[a.Replica] = share
	}
	share.OK++
	share.Prompt += a.Usage.Prompt
	share.Cached += a.Usage.Cached
	share.Output += a.Usage.Completion
	share.ttft.add(a.TTFT())
	if timed {
		share.tpot.add(tpot)
	}
}

// Failed returns how many requests failed so far.
func (r *Recorder) Failed() int { return r.r.Failed }

// Result returns what was recorded, with version and rates filled in.
func (r *Recorder) Result() *Result {
	out := r.r
	out.Version = FormatVersion
	out.TTFT, out.Answer, out.TPOT, out.Gap = r.ttft.distribution(), r.said.distribution(), r.tpot.distribution(), r.gap.distribution()
	out.E2E, out.Served, out.Late = r.e2e.distribution(), r.served.distribution(), r.late.distribution()
	for _, s := range out.Replicas {
		s.TTFT, s.TPOT = s.ttft.distribution(), s.tpot.distribution()
	}
	if r.SLO != (SLO{}) {
		out.SLO = &r.SLO
	}
	out.Seconds = (r.to - r.from).Seconds()
	if out.Seconds > 0 {
		out.RequestsPerSecond = float64(out.OK) / out.Seconds
		out.PromptPerSecond = float64(out.PromptTokens) / out.Seconds
		out.OutputPerSecond = float64(out.OutputTokens) / out.Seconds
		out.GoodPerSecond = float64(out.Good) / out.Seconds
	}
	return &out
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// CachedShare is the share of prompt tokens that came from cache; false if no
// answer told.
func (r *Result) CachedShare() (float64, bool) {
	if !r.CachedKnown || r.PromptTokens == 0 {
		return 0, false
	}
	return float64(r.CachedTokens) / float64(r.PromptTokens), true
}

// FailureRate is the share of attempts that failed; cancelled ones are no attempts.
func (r *Result) FailureRate() float64 {
	if n := r.Attempted - r.Cancelled; n > 0 {
		return float64(r.Failed) / float64(n)
	}
	return 0
}

// Save writes a list of results as a file of JSON.
func Save(path string, results []*Result) error {
	data, err := json.MarshalIndent(results, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}

// Load reads a file that Save wrote: one result for each server of the run.
func Load(path string) ([]*Result, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, data)
}

// Parse reads the text of a file of results; name is for errors.
func Parse(name string, data []byte) ([]*Result, error) {
	var results []*Result
	if err := json.Unmarshal(data, &results); err != nil {
		return nil, fmt.Errorf("%s is no file of bench results: %w", name, err)
	}
	if len(results) == 0 {
		return nil, fmt.Errorf("%s holds no result", name)
	}
	for _, r := range results {
		if r == nil || r.Version != FormatVersion {
			return nil, fmt.Errorf("%s is not of version %d, which this bench reads", name, FormatVersion)
		}
	}
	return results, nil
}
