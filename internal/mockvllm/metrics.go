package mockvllm

import (
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// engineLabel is the data-parallel rank that vLLM puts on its metrics.
const engineLabel = "0"

// metrics exports one server under vLLM's names, from a registry of its own: several replicas may share a process,
// and each has its own start time.
type metrics struct {
	s       *Server
	handler http.Handler
	ttft    prometheus.Histogram
	e2e     prometheus.Histogram
}

func newMetrics(s *Server) *metrics {
	labels := prometheus.Labels{"model_name": s.cfg.Model, "engine": engineLabel}
	m := &metrics{
		s: s,
		ttft: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "vllm:time_to_first_token_seconds", Help: "Time to first token in seconds.", ConstLabels: labels,
			Buckets: []float64{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560},
		}),
		e2e: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "vllm:e2e_request_latency_seconds", Help: "End to end request latency in seconds.", ConstLabels: labels,
			Buckets: []float64{.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680},
		}),
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(m, m.ttft, m.e2e)
	m.handler = promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
	return m
}

// Describe sends nothing: the collector is unchecked, since all its metrics are made in Collect.
func (m *metrics) Describe(chan<- *prometheus.Desc) {}

// Collect exports one consistent snapshot.
func (m *metrics) Collect(out chan<- prometheus.Metric) {
	st := m.s.Stats()
	send := func(kind prometheus.ValueType, name, help string, v float64, label ...string) {
		names, values := []string{"model_name", "engine"}, []string{m.s.cfg.Model, engineLabel}
		if len(label) == 2 {
			names, values = append(names, label[0]), append(values, label[1])
		}
		out <- prometheus.MustNewConstMetric(prometheus.NewDesc("vllm:"+name, help, names, nil), kind, v, values...)
	}
	gauge, counter := prometheus.GaugeValue, prometheus.CounterValue

	send(gauge, "num_requests_running", "Requests in model execution batches.", float64(st.Running))
	send(gauge, "num_requests_waiting", "Requests waiting to be processed.", float64(st.Waiting))
	send(gauge, "kv_cache_usage_perc", "KV-cache usage, 1 means 100 percent.", st.KVUsage())
	for level, state := range []string{"awake", "weights_offloaded", "discard_all"} {
		send(gauge, "engine_sleep_state", "Engine sleep state.", truth(m.s.sleepState() == level), "sleep_state", state)
	}

	send(counter, "prefix_cache_queries_total", "Prefix cache queries, in tokens.", float64(st.QueriedTokens))
	send(counter, "prefix_cache_hits_total", "Prefix cache hits, in tokens.", float64(st.HitTokens))
	send(counter, "prompt_tokens_total", "Prefill tokens processed.", float64(st.PromptTokens))
	send(counter, "prompt_tokens_cached_total", "Cached prompt tokens.", float64(st.CachedTokens))
	bySource := "Prompt tokens by source."
	send(counter, "prompt_tokens_by_source_total", bySource, float64(st.PromptTokens-st.CachedTokens), "source", "local_compute")
	send(counter, "prompt_tokens_by_source_total", bySource, float64(st.CachedTokens), "source", "local_cache_hit")
	send(counter, "prompt_tokens_by_source_total", bySource, 0, "source", "external_kv_transfer")
	send(counter, "generation_tokens_total", "Generation tokens processed.", float64(st.GeneratedTokens))
	send(counter, "num_preemptions_total", "Preemptions from the engine.", float64(st.Preemptions))
	for _, reason := range []string{"stop", "length", "abort", "error", "repetition"} {
		send(counter, "request_success_total", "Successfully processed requests.", float64(st.Finished[reason]), "finished_reason", reason)
	}

	cache := prometheus.Labels{
		"engine":                   engineLabel,
		"block_size":               strconv.Itoa(m.s.cfg.BlockSize),
		"hash_block_size":          strconv.Itoa(m.s.cfg.BlockSize),
		"num_gpu_blocks":           strconv.Itoa(m.s.cfg.Blocks),
		"kv_cache_size_tokens":     strconv.Itoa(m.s.cfg.Blocks * m.s.cfg.BlockSize),
		"enable_prefix_caching":    "True",
		"prefix_caching_hash_algo": "xxhash",
	}
	info := prometheus.NewDesc("vllm:cache_config_info", "Information of the LLMEngine CacheConfig.", nil, cache)
	out <- prometheus.MustNewConstMetric(info, gauge, 1)
	start := prometheus.NewDesc("process_start_time_seconds", "Start time of the process since unix epoch in seconds.", nil, nil)
	out <- prometheus.MustNewConstMetric(start, gauge, float64(m.s.start.UnixNano())/1e9)
}

// sleepState is the index of the state that vLLM's gauge marks. A sleep of level 0 only pauses.
func (s *Server) sleepState() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(s.sleep, 0)
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
