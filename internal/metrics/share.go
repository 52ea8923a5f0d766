package metrics

import "github.com/prometheus/client_golang/prometheus"

// Channels over which gateways share, by the constants of [Share]'s tables.
const (
	LoadChannel   = iota // what is under way
	PrefixChannel        // what replicas hold
	channels
)

var channelNames = [channels]string{"load", "prefix"}

// Reasons why a batch of another gateway, or a part of it, was not used, for [Share.Skipped].
const (
	Malformed = iota // it cannot be read
	Version          // it has a format of another version
	Rule             // prompts are cut by another rule there
	skippedReasons
)

var skippedNames = [skippedReasons]string{"malformed", "version", "rule"}

// Share is every metric of the sharing with other gateways.
type Share struct {
	Telling    prometheus.Gauge // 1 while Redis takes what this gateway sends
	Hearing    prometheus.Gauge // 1 while what others send is heard
	Peers      prometheus.Gauge // other gateways that are alive
	Age        prometheus.Gauge // seconds since the longest silent of them was heard
	Lag        prometheus.Histogram
	Reconnects prometheus.Counter
	Gaps       prometheus.Counter // batches of others that never came

	// By channel.
	RecordsOut, RecordsIn, BytesOut, BytesIn, Dropped [channels]prometheus.Counter
	// By reason.
	Skipped [skippedReasons]prometheus.Counter
	// Failures are commands that failed, by what they were for.
	WriteErrors, ReadErrors prometheus.Counter
}

// lagBuckets are fine where load must be known: within 20 ms.
var lagBuckets = []float64{.0005, .001, .002, .003, .005, .0075, .01, .015, .02, .03, .05, .1, .2, .5, 1, 2, 5}

// NewShare registers the metrics.
func NewShare(reg prometheus.Registerer) *Share {
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
		reg.MustRegister(g)
		return g
	}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		reg.MustRegister(c)
		return c
	}
	labelled := func(name, help, label string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
		reg.MustRegister(c)
		return c
	}
	s := &Share{
		Peers:      gauge("warmpath_share_peers", "Other gateways that are alive."),
		Age:        gauge("warmpath_share_peer_age_seconds", "Time since the longest silent of the other gateways was heard."),
		Reconnects: counter("warmpath_share_reconnects_total", "Times that Redis was heard again after it was not."),
		Gaps:       counter("warmpath_share_gaps_total", "Batches of other gateways that were missed."),
		Lag: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "warmpath_share_lag_seconds", Help: "Time from an event to its being heard, measured on one's own.", Buckets: lagBuckets,
		}),
	}
	reg.MustRegister(s.Lag)
	up := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "warmpath_share_up", Help: "1 while Redis can be used, by direction: write or read."}, []string{"direction"})
	reg.MustRegister(up)
	s.Telling, s.Hearing = up.WithLabelValues("write"), up.WithLabelValues("read")
	failures := labelled("warmpath_share_errors_total", "Redis commands that failed, by what they were for: write or read.", "command")
	s.WriteErrors, s.ReadErrors = failures.WithLabelValues("write"), failures.WithLabelValues("read")
	for _, v := range []struct {
		of         *[channels]prometheus.Counter
		name, help string
	}{
		{&s.RecordsOut, "warmpath_share_sent_records_total", "Records sent to other gateways."},
		{&s.RecordsIn, "warmpath_share_received_records_total", "Records of other gateways that were applied."},
		{&s.BytesOut, "warmpath_share_sent_bytes_total", "Bytes sent to other gateways, before Redis' framing."},
		{&s.BytesIn, "warmpath_share_received_bytes_total", "Bytes received, one's own included."},
		{&s.Dropped, "warmpath_share_dropped_records_total", "Records that were not sent, because Redis did not take them in time."},
	} {
		vec := labelled(v.name, v.help, "channel")
		for i, name := range channelNames {
			v.of[i] = vec.WithLabelValues(name)
		}
	}
	skipped := labelled("warmpath_share_skipped_total", "Batches of other gateways that were not used, or not to their end, by reason.", "reason")
	for i, name := range skippedNames {
		s.Skipped[i] = skipped.WithLabelValues(name)
	}
	return s
}
