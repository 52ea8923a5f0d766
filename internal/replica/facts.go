package replica

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// parseFacts reads a vLLM metrics page (vLLM 0.32, v1/metrics/loggers.py). There
// is one entry for each engine behind the address. Engines are labelled by their
// rank in the whole deployment, but requests name them by their place behind the
// address, so only the order of the labels matters.
func parseFacts(page []byte, now time.Time) ([]Facts, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(page))
	if err != nil {
		return nil, err // a part of a page could be taken for a restart
	}
	var engines []int
	for _, m := range families["vllm:num_requests_running"].GetMetric() {
		if n := engine(m); !slices.Contains(engines, n) {
			engines = append(engines, n)
		}
		if len(engines) > maxRanks {
			return nil, fmt.Errorf("there are more than %d engines on the page", maxRanks)
		}
	}
	if len(engines) == 0 {
		return nil, errors.New("there is no vllm:num_requests_running on the page")
	}
	slices.Sort(engines)
	facts := make([]Facts, len(engines))
	for i := range facts {
		facts[i].At = now
	}
	each := func(name string, f func(*Facts, *dto.Metric, float64)) {
		for _, m := range families[name].GetMetric() {
			if i := slices.Index(engines, engine(m)); i >= 0 {
				f(&facts[i], m, value(m))
			}
		}
	}
	each("vllm:cache_config_info", func(f *Facts, m *dto.Metric, _ float64) {
		size, err1 := strconv.ParseInt(label(m, "block_size"), 10, 32) // it may be "None"
		blocks, err2 := strconv.ParseInt(label(m, "num_gpu_blocks"), 10, 32)
		if err1 == nil && err2 == nil && size > 0 && blocks > 0 {
			f.BlockSize, f.Blocks = int(size), int(blocks)
		}
	})
	each("vllm:num_requests_running", func(f *Facts, _ *dto.Metric, v float64) { f.Running += v })
	each("vllm:num_requests_waiting", func(f *Facts, _ *dto.Metric, v float64) { f.Waiting += v })
	each("vllm:kv_cache_usage_perc", func(f *Facts, _ *dto.Metric, v float64) { f.Usage = v })
	each("vllm:prompt_tokens_total", func(f *Facts, _ *dto.Metric, v float64) { f.Prompt += v })
	cached := "vllm:prompt_tokens_cached_total"
	if families[cached] == nil {
		cached = "vllm:prefix_cache_hits_total" // in tokens too, and there before the other was; without what a connector brings
	}
	each(cached, func(f *Facts, _ *dto.Metric, v float64) { f.Cached += v })
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
	return facts, nil
}

// maxRanks bounds how many replicas one address can claim to be.
const maxRanks = 64

// engine returns the rank that a metric is labelled with, 0 if there is none.
func engine(m *dto.Metric) int {
	n, err := strconv.Atoi(label(m, "engine"))
	if err != nil {
		return 0
	}
	return n
}

func label(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

// value returns a metric's value; what can be no count is 0.
func value(m *dto.Metric) float64 {
	v := 0.0
	switch {
	case m.Gauge != nil:
		v = m.Gauge.GetValue()
	case m.Counter != nil:
		v = m.Counter.GetValue()
	case m.Untyped != nil:
		v = m.Untyped.GetValue()
	}
	if v >= 0 && v <= math.MaxFloat64 {
		return v
	}
	return 0
}
