package metrics

import "github.com/prometheus/client_golang/prometheus"

// shadow is what another policy would have done.
type shadow struct {
	choices *prometheus.CounterVec
	tokens  *prometheus.CounterVec
	saved   *prometheus.HistogramVec
}

func newShadow(reg prometheus.Registerer) shadow {
	s := shadow{
		choices: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "warmpath_shadow_total", Help: "Choices by whether the shadow policy agreed.",
		}, []string{"policy", "agreed"}),
		tokens: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "warmpath_shadow_predicted_tokens_total", Help: "Prompt tokens predicted to be cached where the shadow policy, or the real one, sends the request.",
		}, []string{"policy", "by"}),
		saved: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "warmpath_shadow_saved_seconds", Help: "By how much the first token would have come sooner by the shadow policy, as predicted.", Buckets: errorBuckets,
		}, []string{"policy"}),
	}
	reg.MustRegister(s.choices, s.tokens, s.saved)
	return s
}

// Shadow is the metrics of one shadow policy.
type Shadow struct {
	agreed, differed, own, real prometheus.Counter
	saved                       prometheus.Observer
}

// Shadow resolves the metrics of a shadow policy.
func (m *Metrics) Shadow(policy string) *Shadow {
	return &Shadow{
		agreed: m.shadow.choices.WithLabelValues(policy, "true"), differed: m.shadow.choices.WithLabelValues(policy, "false"),
		own: m.shadow.tokens.WithLabelValues(policy, "shadow"), real: m.shadow.tokens.WithLabelValues(policy, "policy"),
		saved: m.shadow.saved.WithLabelValues(policy),
	}
}

// Count counts a choice: whether the shadow agreed, how many tokens each predicted to
// be cached, and how many seconds sooner the shadow expected the first token.
func (s *Shadow) Count(agreed bool, shadow, real int, saved float64) {
	if agreed {
		s.agreed.Inc()
	} else {
		s.differed.Inc()
	}
	s.own.Add(float64(shadow))
	s.real.Add(float64(real))
	s.saved.Observe(saved)
}
