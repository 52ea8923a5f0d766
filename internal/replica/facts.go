package replica

import (
	"bytes"
	"strconv"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// parseFacts reads a vLLM metrics page (vLLM 0.32, v1/metrics/loggers.py). There
// is one entry for each engine behind the address, by rank; none if the page is
// not one of vLLM's.
func parseFacts(page []byte, now time.Time) []Facts {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(page))
	if err != nil && len(families) == 0 {
		return nil
	}
	var facts []Facts
	at := func(m *dto.Metric) *Facts {
		rank := 0
		if n, err := strconv.Atoi(label(m, "engine")); err == nil && n >= 0 && n < maxRanks {
			rank = n
		}
		for len(facts) <= rank {
			facts = append(facts, Facts{At: now})
		}
		return &facts[rank]
	}
	each := func(name string, f func(*Facts, *dto.Metric, float64)) {
		for _, m := range families[name].GetMetric() {
			f(at(m), m, value(m))
		}
	}
	each("vllm:cache_config_info", func(f *Facts, m *dto.Metric, _ float64) {
		f.BlockSize, _ = strconv.Atoi(label(m, "block_size"))
		f.Blocks, _ = strconv.Atoi(label(m, "num_gpu_blocks"))
	})
	each("vllm:num_requests_running", func(f *Facts, _ *dto.Metric, v float64) { f.Running += v })
	each("vllm:num_requests_waiting", func(f *Facts, _ *dto.Metric, v float64) { f.Waiting += v })
	each("vllm:kv_cache_usage_perc", func(f *Facts, _ *dto.Metric, v float64) { f.Usage = v })
	each("vllm:prompt_tokens_total", func(f *Facts, _ *dto.Metric, v float64) { f.Prompt += v })
	each("vllm:prompt_tokens_cached_total", func(f *Facts, _ *dto.Metric, v float64) { f.Cached += v })
	each("vllm:engine_sleep_state", func(f *Facts, m *dto.Metric, v float64) {
		if label(m, "sleep_state") != "awake" && v > 0 {
			f.Sleeping = true
		}
	})
	for _, m := range families["process_start_time_seconds"].GetMetric() {
		for i := range facts {
			facts[i].Start = value(m)
		}
	}
	return facts
}

// maxRanks bounds how many replicas one address can claim to be.
const maxRanks = 64

func label(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

func value(m *dto.Metric) float64 {
	switch {
	case m.Gauge != nil:
		return m.Gauge.GetValue()
	case m.Counter != nil:
		return m.Counter.GetValue()
	case m.Untyped != nil:
		return m.Untyped.GetValue()
	}
	return 0
}
