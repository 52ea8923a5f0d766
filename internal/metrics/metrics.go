// Package metrics holds every metric of the gateway in one struct, made from an
// injected registerer so that several gateways can live in one process. Their
// names are an interface; docs/metrics.md lists them.
package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Reasons why a request had no first token, for [Target.NoFirstToken].
const (
	NotStreamed = iota // the client asked for the answer in one piece
	Canceled           // the client left before it
	Errored            // the replica failed before it
	Refused            // the replica answered with an error status
	NoOutput           // the answer ended without any
	noTokenReasons
)

var noTokenNames = [noTokenReasons]string{"not_streamed", "canceled", "error", "refused", "no_output"}

// Reasons why an answer that had begun did not end well, for [Target.Broken].
const (
	Left       = iota // the client left
	Reported          // the replica reported an error within it, or gave it up
	CutOff            // the connection to the replica broke
	Unfinished        // the stream ended without its last event
	Slow              // the client did not read it
	Stopped           // the gateway was stopping
	brokenReasons
)

var brokenNames = [brokenReasons]string{"canceled", "reported", "cut_off", "unfinished", "slow_client", "stopping"}

// Hops of a request, for [Metrics.Hop] and [Replica.FirstToken]. They follow one
// another: together they are the time to first token.
const (
	Read       = iota // until the request's body is in memory
	Choose            // until a replica is chosen
	Connect           // until there is a connection to it
	Headers           // until its answer's headers
	FirstEvent        // until the first event of a stream
	hops
)

var hopNames = [hops]string{"read", "choose", "connect", "headers", "first_event"}

// Reasons why prompt tokens were not, or were, in the cache, for [Replica.Gap].
const (
	GapNew       = iota // no replica held them
	GapElsewhere        // another replica did
	GapRestart          // the replica did before its cache was emptied
	GapEvicted          // the replica was believed to
	GapUnknown          // they were cached, and nobody had known
	GapMismatch         // the replica contradicts what is believed of it again and again
	gaps
)

var gapNames = [gaps]string{"new", "elsewhere", "restart", "evicted", "unknown", "mismatch"}

// ttftBuckets are vLLM's own (v1/metrics/buckets.py), so that the difference of two
// quantiles is what the gateway adds. They are too coarse to show a change of 20 %:
// the native histogram beside them does.
var ttftBuckets = []float64{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}

var (
	tpotBuckets  = []float64{.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
	e2eBuckets   = []float64{.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}
	hopBuckets   = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20, 40, 80}
	costBuckets  = []float64{.00005, .0001, .0002, .0003, .0005, .001, .002, .005, .01, .05}
	errorBuckets = []float64{-10, -5, -2.5, -1, -.5, -.25, -.1, -.05, -.025, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
)

// nativeFactor is the growth of native buckets: a quantile is right to 10 %.
const nativeFactor = 1.1

// Metrics is every metric that requests write. What is read at scrape time, the
// state of replicas and of the index, the gateway registers itself.
type Metrics struct {
	// Hop has the hops before the first token, by their constants.
	Hop [hops]prometheus.Observer
	// Overhead is the time between a request's last byte and its being on its way.
	Overhead prometheus.Observer

	ttft, tpot, e2e, hop         *prometheus.HistogramVec
	ttftError                    prometheus.Histogram
	noFirstToken, broken         *prometheus.CounterVec
	requests, decisions, retries *prometheus.CounterVec
	refused                      *prometheus.CounterVec
	prompt, predicted, cached    *prometheus.CounterVec
	unreported, faults, gap      *prometheus.CounterVec
	shadow                       shadow
	keyRequests                  *prometheus.CounterVec
}

// New registers the metrics.
func New(reg prometheus.Registerer) *Metrics {
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: name, Help: help, Buckets: buckets,
			NativeHistogramBucketFactor: nativeFactor, NativeHistogramMaxBucketNumber: 160,
		}, labels)
		reg.MustRegister(h)
		return h
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
		reg.MustRegister(c)
		return c
	}
	plain := func(name, help string, buckets []float64) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
		reg.MustRegister(h)
		return h
	}
	m := &Metrics{
		shadow:       newShadow(reg),
		ttft:         histogram("warmpath_ttft_seconds", "Time from a request's arrival to the first generated token, of streamed answers.", ttftBuckets, "replica", "model"),
		tpot:         histogram("warmpath_tpot_seconds", "Time per output token after the first, where the engine reported how many there were.", tpotBuckets, "replica", "model"),
		e2e:          histogram("warmpath_e2e_seconds", "Time from a request's arrival to the end of its answer, of those that ended well.", e2eBuckets, "replica", "model"),
		hop:          histogram("warmpath_hop_seconds", "Parts of the time to first token, in their order: read, choose, connect, headers, first_event, first_token (the last by replica).", hopBuckets, "hop", "replica"),
		Overhead:     plain("warmpath_overhead_seconds", "Time from a request's last byte until it was on its way to a replica.", costBuckets),
		ttftError:    plain("warmpath_ttft_error_seconds", "Real less predicted time from choice to the end of the prefill.", errorBuckets),
		broken:       counter("warmpath_broken_total", "Answers that had begun and did not end well, by reason.", "replica", "model", "reason"),
		noFirstToken: counter("warmpath_no_first_token_total", "Requests without a time to first token, by reason.", "replica", "model", "reason"),
		requests:     counter("warmpath_requests_total", "Requests by the status that the client got; 499 if it left.", "model", "endpoint", "code"),
		decisions:    counter("warmpath_decisions_total", "Choices of a replica by policy and reason.", "policy", "reason"),
		retries:      counter("warmpath_retries_total", "Attempts that failed at a replica and were made again elsewhere.", "replica", "reason"),
		refused:      counter("warmpath_refused_total", "Requests that the gateway itself refused.", "reason"),
		prompt:       counter("warmpath_prompt_tokens_total", "Prompt tokens that replicas reported.", "replica"),
		predicted:    counter("warmpath_predicted_tokens_total", "Prompt tokens predicted to be cached, of requests whose replica reported.", "replica"),
		cached:       counter("warmpath_cached_tokens_total", "Prompt tokens that replicas reported as cached.", "replica"),
		faults:       counter("warmpath_replica_faults_total", "Faults that requests showed of a replica, by kind.", "replica", "fault"),
		gap:          counter("warmpath_gap_tokens_total", "Prompt tokens by why they were computed (new, elsewhere, restart, evicted, mismatch) or cached against expectation (unknown).", "replica", "reason"),
		unreported:   counter("warmpath_cached_unreported_total", "Answers that did not tell how many tokens were cached.", "replica"),
		keyRequests:  counter("warmpath_key_requests_total", "Requests with an API key by the key's name and the hundred of the status that the client got.", "key", "class"),
	}
	for _, reason := range [...]string{"overloaded", "in_flight", "buffer_full", "not_ready"} {
		m.refused.WithLabelValues(reason) // an alert must be able to tell 0 from nothing
	}
	for i, name := range hopNames {
		m.Hop[i] = m.hop.WithLabelValues(name, "")
	}
	return m
}

// Replica is the metrics of one replica, resolved before requests need them.
type Replica struct {
	FirstToken                                                  prometheus.Observer // the last hop
	Prompt, Predicted, Cached, CachedUnreported                 prometheus.Counter
	RetriedUnreachable, RetriedBusy, RetriedLate, RetriedFailed prometheus.Counter
	Faults                                                      []prometheus.Counter // by their numbers
	Gap                                                         [gaps]prometheus.Counter
}

// Replica resolves the metrics of a replica, of which requests may show these faults.
func (m *Metrics) Replica(id string, faults []string) *Replica {
	r := &Replica{
		FirstToken:         m.hop.WithLabelValues("first_token", id),
		Prompt:             m.prompt.WithLabelValues(id),
		Predicted:          m.predicted.WithLabelValues(id),
		Cached:             m.cached.WithLabelValues(id),
		CachedUnreported:   m.unreported.WithLabelValues(id),
		RetriedUnreachable: m.retries.WithLabelValues(id, "unreachable"),
		RetriedBusy:        m.retries.WithLabelValues(id, "busy"),
		RetriedLate:        m.retries.WithLabelValues(id, "late"),
		RetriedFailed:      m.retries.WithLabelValues(id, "error"),
	}
	for i, name := range gapNames {
		r.Gap[i] = m.gap.WithLabelValues(id, name)
	}
	for _, name := range faults {
		r.Faults = append(r.Faults, m.faults.WithLabelValues(id, name))
	}
	return r
}

// Target is the metrics of one model on one replica.
type Target struct {
	*Replica
	TTFT, TPOT, E2E prometheus.Observer
	NoFirstToken    [noTokenReasons]prometheus.Counter
	Broken          [brokenReasons]prometheus.Counter
}

// Target resolves the metrics of a model on a replica.
func (m *Metrics) Target(r *Replica, id, model string) *Target {
	t := &Target{Replica: r, TTFT: m.ttft.WithLabelValues(id, model), TPOT: m.tpot.WithLabelValues(id, model), E2E: m.e2e.WithLabelValues(id, model)}
	for i, name := range noTokenNames {
		t.NoFirstToken[i] = m.noFirstToken.WithLabelValues(id, model, name)
	}
	for i, name := range brokenNames {
		t.Broken[i] = m.broken.WithLabelValues(id, model, name)
	}
	return t
}

// Forget removes the series of a replica that has left. Metrics resolved before
// must be resolved anew if it comes back.
func (m *Metrics) Forget(id string) {
	of := prometheus.Labels{"replica": id}
	for _, vec := range [...]*prometheus.HistogramVec{m.ttft, m.tpot, m.e2e, m.hop} {
		vec.DeletePartialMatch(of)
	}
	for _, vec := range [...]*prometheus.CounterVec{m.noFirstToken, m.broken, m.retries, m.prompt, m.predicted, m.cached, m.unreported, m.faults, m.gap} {
		vec.DeletePartialMatch(of)
	}
}

// Decision resolves the counter of choices made by a policy for a reason.
func (m *Metrics) Decision(policy, reason string) prometheus.Counter {
	return m.decisions.WithLabelValues(policy, reason)
}

// Requests resolves the counter of requests that ended with a status.
func (m *Metrics) Requests(model, endpoint, code string) prometheus.Counter {
	return m.requests.WithLabelValues(model, endpoint, code)
}

// KeyRequests resolves the counter of requests with an API key that ended with a
// status of that class.
func (m *Metrics) KeyRequests(key, class string) prometheus.Counter {
	return m.keyRequests.WithLabelValues(key, class)
}

// Refusal counts a request that the gateway refused; reason is one of a fixed few.
func (m *Metrics) Refusal(reason string) { m.refused.WithLabelValues(reason).Inc() }

// PrefillError records how wrong a predicted prefill was, in seconds.
func (m *Metrics) PrefillError(seconds float64) { m.ttftError.Observe(seconds) }
