package bench

import (
	"strings"
	"testing"
	"time"
)

func TestASlowClientSaysSo(t *testing.T) {
	for name, c := range map[string]struct {
		cost       Cost
		late, ttft Distribution
		want       string
	}{
		"late":                         {Cost{}, Distribution{P99: 500}, Distribution{P50: 50}, "500 ms late"},
		"late, but the server is slow": {Cost{}, Distribution{P99: 500}, Distribution{P50: 60_000}, ""},
		"held up":                      {Cost{StallP99: 40}, Distribution{}, Distribution{P50: 50}, "woken 40 ms late"},
		"out of CPU":                   {Cost{CPUShare: .95}, Distribution{}, Distribution{}, "95 % of the CPU"},
		"fast":                         {Cost{CPUShare: .5, StallP99: 2}, Distribution{P99: 2}, Distribution{P50: 50}, ""},
	} {
		c.cost.judge(c.late, c.ttft)
		if got := c.cost.Bottleneck; (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestCPUIsCounted(t *testing.T) {
	m := StartMeter()
	for start := processCPU(); processCPU()-start < 50*time.Millisecond; {
		_ = strings.Repeat("x", 100)
	}
	if got := m.Stop(10, Distribution{}, Distribution{}); got.CPUSeconds < .05 || got.CPUPerRequest < 5000 || got.CPUShare <= 0 {
		t.Errorf("50 ms of work cost %+v", got)
	}
}
