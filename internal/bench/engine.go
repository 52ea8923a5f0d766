package bench

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// EngineReport is what the engines' own /metrics said during a run, all engines
// together; shares are those of the fullest engine.
type EngineReport struct {
	URLs             []string       `json:"urls"`
	KVPeak           float64        `json:"kv_peak"` // share of the KV cache that running requests hold
	KVMean           float64        `json:"kv_mean"`
	RunningPeak      float64        `json:"running_peak"`
	WaitingPeak      float64        `json:"waiting_peak"`
	WaitingMean      float64        `json:"waiting_mean"`
	Preemptions      float64        `json:"preemptions"`
	PromptTokens     float64        `json:"prompt_tokens"`
	CachedTokens     float64        `json:"cached_tokens"`
	GenerationTokens float64        `json:"generation_tokens"`
	ScrapeErrors     int            `json:"scrape_errors,omitempty"`
	Samples          []EngineSample `json:"samples,omitempty"`
}

// EngineSample is one reading of all engines.
type EngineSample struct {
	At      float64 `json:"at_s"`
	KV      float64 `json:"kv"`
	Running float64 `json:"running"`
	Waiting float64 `json:"waiting"`
}

// reading is what one engine says.
type reading struct {
	kv, running, waiting                     float64
	preemptions, prompt, cached, generations float64
}

// Watch reads engines' metrics beside a run.
type Watch struct {
	urls   []string
	client *http.Client
	began  time.Time
	stop   context.CancelFunc
	ended  sync.WaitGroup
	first  []reading
	last   []reading
	report EngineReport
}

// StartWatch reads the metrics of vLLM engines, whose base URLs are given, now and
// every so often. It fails if one cannot be read now. It owns a goroutine until
// [Watch.Stop].
func StartWatch(ctx context.Context, urls []string, every time.Duration) (*Watch, error) {
	ctx, stop := context.WithCancel(ctx)
	w := &Watch{urls: urls, client: &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{}}, began: time.Now(), stop: stop}
	w.report.URLs = urls
	now, err := w.read(ctx)
	if err != nil {
		stop()
		w.client.CloseIdleConnections()
		return nil, err
	}
	w.first, w.last = now, now
	w.note(now)
	w.ended.Go(func() {
		for sleepUntil(ctx, time.Now().Add(every)) {
			now, err := w.read(ctx)
			if err != nil {
				if ctx.Err() == nil {
					w.report.ScrapeErrors++
				}
				continue
			}
			w.last = now
			w.note(now)
		}
	})
	return w, nil
}

// Stop reads once more and returns what was seen.
func (w *Watch) Stop() *EngineReport {
	w.stop()
	w.ended.Wait()
	if now, err := w.read(context.Background()); err == nil {
		w.last = now
		w.note(now)
	} else {
		w.report.ScrapeErrors++
	}
	w.client.CloseIdleConnections()
	r := &w.report
	for i, last := range w.last {
		first := w.first[i]
		r.Preemptions += last.preemptions - first.preemptions
		r.PromptTokens += last.prompt - first.prompt
		r.CachedTokens += last.cached - first.cached
		r.GenerationTokens += last.generations - first.generations
	}
	for _, s := range r.Samples {
		r.KVMean += s.KV / float64(len(r.Samples))
		r.WaitingMean += s.Waiting / float64(len(r.Samples))
	}
	return r
}

func (w *Watch) note(now []reading) {
	s := EngineSample{At: time.Since(w.began).Seconds()}
	for _, e := range now {
		s.KV = max(s.KV, e.kv)
		s.Running += e.running
		s.Waiting += e.waiting
	}
	r := &w.report
	r.KVPeak, r.RunningPeak, r.WaitingPeak = max(r.KVPeak, s.KV), max(r.RunningPeak, s.Running), max(r.WaitingPeak, s.Waiting)
	r.Samples = append(r.Samples, s)
}

func (w *Watch) read(ctx context.Context) ([]reading, error) {
	out := make([]reading, len(w.urls))
	for i, url := range w.urls {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(strings.TrimRight(url, "/"), "/v1")+"/metrics", nil)
		if err != nil {
			return nil, err
		}
		resp, err := w.client.Do(req)
		if err != nil {
			return nil, fmt.Errorf("engine metrics: %w", err)
		}
		text, err := io.ReadAll(io.LimitReader(resp.Body, 16<<20))
		_ = resp.Body.Close()
		if err == nil && resp.StatusCode != http.StatusOK {
			err = fmt.Errorf("status %d", resp.StatusCode)
		}
		if err == nil {
			out[i], err = parseEngine(text)
		}
		if err != nil {
			return nil, fmt.Errorf("engine metrics of %s: %w", url, err)
		}
	}
	return out, nil
}

// parseEngine reads an exposition. The names are vLLM's; of two the second is that
// of older releases.
func parseEngine(text []byte) (reading, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return reading{}, err
	}
	sum := func(names ...string) float64 {
		for _, name := range names {
			if f := families[name]; f != nil {
				total := 0.0
				for _, m := range f.GetMetric() {
					total += value(m)
				}
				return total
			}
		}
		return 0
	}
	if families["vllm:num_requests_running"] == nil {
		return reading{}, fmt.Errorf("there is no vllm:num_requests_running: is it vLLM?")
	}
	return reading{
		kv: sum("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"), running: sum("vllm:num_requests_running"), waiting: sum("vllm:num_requests_waiting"),
		preemptions: sum("vllm:num_preemptions_total"), prompt: sum("vllm:prompt_tokens_total"),
		cached: sum("vllm:prompt_tokens_cached_total", "vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"), generations: sum("vllm:generation_tokens_total"),
	}, nil
}

func value(m *dto.Metric) float64 {
	switch {
	case m.Gauge != nil:
		return m.Gauge.GetValue()
	case m.Counter != nil:
		return m.Counter.GetValue()
	}
	return m.Untyped.GetValue()
}
