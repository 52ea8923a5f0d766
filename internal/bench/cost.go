package bench

import (
	"fmt"
	"runtime"
	"sync"
	"time"
)

// Cost is what a run cost this client, and whether that spoilt the figures.
type Cost struct {
	CPUSeconds    float64 `json:"cpu_seconds"`
	CPUPerRequest float64 `json:"cpu_per_request_us"`
	CPUShare      float64 `json:"cpu_share"`    // of the cores that the client may use
	StallP99      float64 `json:"stall_p99_ms"` // how late a timer of the client's was heard
	// Bottleneck says why the client itself was too slow; "" if it was not.
	Bottleneck string `json:"bottleneck,omitempty"`
}

// The limits above which a client's own slowness is in its figures. Servers are
// told apart by some milliseconds, or some hundredths where they are slow, and a
// client on a core that is nine tenths busy has queues of its own.
const (
	mostShare  = 0.9
	mostLate   = 10.0 // ms, of one request in a hundred, and
	mostOfTTFT = 0.05 // of the median time to first token
)

// Meter measures what a run costs this client.
type Meter struct {
	began time.Time
	cpu   time.Duration
	stop  chan struct{}
	ended sync.WaitGroup
	stall times
}

// StartMeter begins to measure. It owns a goroutine until [Meter.Stop].
func StartMeter() *Meter {
	m := &Meter{began: time.Now(), cpu: processCPU(), stop: make(chan struct{})}
	m.ended.Go(m.listen)
	return m
}

// listen notes how late it is woken: a request that is due, and an answer that has
// come, are as late.
func (m *Meter) listen() {
	const every = 20 * time.Millisecond // a wakeup costs some 20 µs
	ticker := time.NewTimer(every)
	defer ticker.Stop()
	for {
		due := time.Now().Add(every)
		ticker.Reset(every)
		select {
		case <-m.stop:
			return
		case <-ticker.C:
			m.stall.add(max(0, time.Since(due)))
		}
	}
}

// Stop ends the measurement of a run with so many requests, and judges by how late
// they were sent and their times to first token.
func (m *Meter) Stop(requests int, late, ttft Distribution) Cost {
	close(m.stop)
	m.ended.Wait()
	cpu, wall := processCPU()-m.cpu, time.Since(m.began)
	c := Cost{CPUSeconds: cpu.Seconds(), StallP99: m.stall.distribution().P99}
	if requests > 0 {
		c.CPUPerRequest = float64(cpu.Microseconds()) / float64(requests)
	}
	if wall > 0 {
		c.CPUShare = cpu.Seconds() / wall.Seconds() / float64(runtime.GOMAXPROCS(0))
	}
	c.judge(late, ttft)
	return c
}

// judge says whether the client was too slow for the figures.
func (c *Cost) judge(late, ttft Distribution) {
	most := max(mostLate, mostOfTTFT*ttft.P50)
	switch {
	case c.CPUShare > mostShare:
		c.Bottleneck = fmt.Sprintf("it used %.0f %% of the CPU it may use", 100*c.CPUShare)
	case c.StallP99 > most:
		c.Bottleneck = fmt.Sprintf("it was woken %.0f ms late one time in a hundred", c.StallP99)
	case late.P99 > most:
		c.Bottleneck = fmt.Sprintf("it sent one request in a hundred %.0f ms late or more: too little CPU, or -in-flight was reached", late.P99)
	}
}
