package agent

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// collector reads the metrics from the cache and the disk when they are asked for.
type collector struct {
	agent                                      *Agent
	used, models, leases, pins, ready, present *prometheus.Desc
	ensures, received, bad, evictions          *prometheus.Desc
	scrubbed                                   *prometheus.Desc
}

func newCollector(a *Agent) *collector {
	d := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &collector{
		agent:     a,
		used:      d("warmpath_modelcache_used_bytes", "Bytes of the disk that the cache takes, downloads at their full size."),
		models:    d("warmpath_modelcache_models", "Models that are whole on the disk."),
		leases:    d("warmpath_modelcache_leases", "Leases that have not expired."),
		pins:      d("warmpath_modelcache_pins", "Pins."),
		ready:     d("warmpath_modelcache_ready", "1 if the model on the agent's list is ready.", "digest"),
		present:   d("warmpath_modelcache_pull_bytes", "Bytes on the disk of a model that is not ready.", "digest"),
		ensures:   d("warmpath_modelcache_ensures_total", "Models asked for, by result: hit, miss (pulled) or error.", "result"),
		received:  d("warmpath_modelcache_received_bytes_total", "Bytes that sources sent, also those in vain."),
		bad:       d("warmpath_modelcache_bad_files_total", "Files whose content was not what their digest says, by where: source or disk.", "where"),
		evictions: d("warmpath_modelcache_evictions_total", "Models evicted for room by this process."),
		scrubbed:  d("warmpath_modelcache_scrub_timestamp_seconds", "When everything was last verified, 0 if never."),
	}
}

// Describe sends what Collect may send.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.used, c.models, c.leases, c.pins, c.ready, c.present, c.ensures, c.received, c.bad, c.evictions, c.scrubbed} {
		out <- d
	}
}

// Collect reads everything.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v int64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	s := c.agent.cache.Store()
	if used, err := s.Used(); err == nil {
		gauge(c.used, float64(used))
	}
	if entries, err := s.Entries(); err == nil {
		var whole, leases, pins int
		for _, e := range entries {
			if e.Published {
				whole++
			}
			pins += len(e.Pins)
			for _, l := range e.Leases {
				if l.Expires.After(time.Now()) {
					leases++
				}
			}
		}
		gauge(c.models, float64(whole))
		gauge(c.leases, float64(leases))
		gauge(c.pins, float64(pins))
	}
	for _, w := range c.agent.wants {
		status := c.agent.status(w)
		if status.Ready {
			gauge(c.ready, 1, string(w.Digest))
			continue
		}
		gauge(c.ready, 0, string(w.Digest))
		gauge(c.present, float64(status.Present), string(w.Digest))
	}
	counts := c.agent.cache.Counts()
	counter(c.ensures, counts.Hits, "hit")
	counter(c.ensures, counts.Misses, "miss")
	counter(c.ensures, counts.Errors, "error")
	counter(c.received, counts.Downloaded)
	counter(c.bad, counts.BadFiles, "source")
	counter(c.evictions, counts.Evictions)
	c.agent.scrub.mu.Lock()
	defer c.agent.scrub.mu.Unlock()
	counter(c.bad, c.agent.scrub.faults, "disk")
	last := 0.0
	if !c.agent.scrub.last.IsZero() {
		last = float64(c.agent.scrub.last.Unix())
	}
	gauge(c.scrubbed, last)
}
