package gateway

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/warmpath/warmpath/internal/auth"
	"github.com/warmpath/warmpath/internal/proxy"
	"github.com/warmpath/warmpath/internal/replica"
	"github.com/warmpath/warmpath/internal/router"
)

// states reads the state of replicas and of the index when it is scraped.
type states struct {
	pool    *replica.Pool
	router  *router.Router
	proxy   *proxy.Proxy
	clients *atomic.Int64 // connections
}

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

var (
	replicaUp            = describe("warmpath_replica_up", "1 if new requests may go to the replica.", "replica")
	replicaInFlight      = describe("warmpath_replica_inflight", "Requests given to the replica that are not done.", "replica")
	replicaPendingTokens = describe("warmpath_replica_pending_tokens", "Uncached prompt tokens given to the replica and not prefilled yet.", "replica")
	replicaPace          = describe("warmpath_replica_pace", "Learned time of the replica for a second of reference prefill work.", "replica")
	indexBlocks          = describe("warmpath_index_blocks", "KV blocks that the replica is believed to hold.", "replica")
	windowGap            = describe("warmpath_window_gap_ratio", "Share of the tokens predicted to be cached that the engine's counters did not show.", "replica")
	inFlight             = describe("warmpath_inflight", "Requests under way.")
	bufferedBytes        = describe("warmpath_buffered_bytes", "Bytes of the bodies of requests under way.")
	clientConnections    = describe("warmpath_client_connections", "Connections of clients that are open.")
	replicaConnections   = describe("warmpath_replica_connections", "Connections to replicas that are open, probes' left out.")
	retryBudget          = describe("warmpath_retry_budget", "Attempts beyond the first that all requests together have left.")
	indexBytes           = describe("warmpath_index_bytes", "Memory of the index of prefixes.")
	discoveryUp          = describe("warmpath_discovery_up", "1 if what the source of replicas said last could be used.", "source")
	discoveryReplicas    = describe("warmpath_discovery_replicas", "Replicas in the last good set of the source.", "source")
	discoveryFailures    = describe("warmpath_discovery_failures_total", "Times that the source failed, or had no replica: the last good set stayed.", "source")
	keyInFlight          = describe("warmpath_key_inflight", "Requests under way with the API key of that name.", "key")
	keyPendingTokens     = describe("warmpath_key_pending_tokens", "Uncached prompt tokens of the requests with the API key of that name that are not prefilled yet.", "key")
)

// Describe sends the descriptions.
func (s *states) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{replicaUp, replicaInFlight, replicaPendingTokens, replicaPace, indexBlocks, windowGap, indexBytes, inFlight, bufferedBytes, clientConnections, replicaConnections, retryBudget, discoveryUp, discoveryReplicas, discoveryFailures, keyInFlight, keyPendingTokens} {
		ch <- d
	}
}

// Collect sends the values.
func (s *states) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	current := map[string]*replica.Replica{} // by id, of which there may be two where one leaves
	for _, r := range s.pool.Set().Replicas {
		if current[r.ID] != nil {
			continue
		}
		current[r.ID] = r
		if r.Leaving() {
			continue // it is no loss
		}
		up := 0.0
		if r.Ready() {
			up = 1
		}
		gauge(replicaUp, up, r.ID)
	}
	for _, st := range s.router.States(time.Now()) {
		if current[st.Replica.ID] != st.Replica {
			continue // its address has other engines by now
		}
		id := st.Replica.ID
		gauge(replicaInFlight, float64(st.InFlight), id)
		gauge(replicaPendingTokens, float64(st.PendingTokens), id)
		gauge(replicaPace, st.Pace, id)
		gauge(indexBlocks, float64(st.HeldBlocks), id)
		if st.Windowed {
			gauge(windowGap, st.WindowGap, id)
		}
	}
	load := s.proxy.Load()
	gauge(inFlight, float64(load.InFlight))
	gauge(bufferedBytes, float64(load.BufferedBytes))
	gauge(clientConnections, float64(s.clients.Load()))
	gauge(replicaConnections, float64(load.Connections))
	gauge(retryBudget, load.RetryBudget)
	gauge(indexBytes, float64(s.router.IndexBytes()))
	for _, source := range s.pool.Sources() {
		up := 0.0
		if source.OK {
			up = 1
		}
		gauge(discoveryUp, up, source.Source)
		gauge(discoveryReplicas, float64(source.Replicas), source.Source)
		ch <- prometheus.MustNewConstMetric(discoveryFailures, prometheus.CounterValue, float64(source.Failures), source.Source)
	}
	if keys := s.proxy.Keys(); keys != nil {
		collectKeys(gauge, keys.List())
	}
}

// collectKeys sends what holders of keys have under way. Names beyond the limit on
// names share a series.
func collectKeys(gauge func(*prometheus.Desc, float64, ...string), keys []*auth.Key) {
	var others, requests, tokens float64
	for _, k := range keys {
		if k.Index() == 0 {
			others, requests, tokens = others+1, requests+float64(k.Requests()), tokens+float64(k.PendingTokens())
			continue
		}
		gauge(keyInFlight, float64(k.Requests()), k.Name)
		gauge(keyPendingTokens, float64(k.PendingTokens()), k.Name)
	}
	if others > 0 {
		gauge(keyInFlight, requests, auth.OtherName)
		gauge(keyPendingTokens, tokens, auth.OtherName)
	}
}
