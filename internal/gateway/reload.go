package gateway

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/warmpath/warmpath/internal/config"
)

// Reloading is how a gateway learns of settings that change while it runs.
type Reloading struct {
	// Load loads the settings as at the start.
	Load func() (*config.Config, error)
	// Signal asks for it, beside a change of a file.
	Signal <-chan os.Signal
	// Level is the logger's; it may be nil.
	Level *slog.LevelVar
	// Interval is the time between two looks at the files; 0 is 2 s. Looking is what
	// works over network file systems and where a link is swapped, as Kubernetes does
	// with mounted secrets.
	Interval time.Duration
}

const watchInterval = 2 * time.Second

// reloads are the metrics of it.
type reloads struct {
	ok, failed prometheus.Counter
	last       prometheus.Gauge
}

func (m *reloads) register(reg prometheus.Registerer) {
	count := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "warmpath_config_reloads_total", Help: "Times that the settings were loaded again while running, by result."}, []string{"result"})
	m.ok, m.failed = count.WithLabelValues("ok"), count.WithLabelValues("error")
	m.last = prometheus.NewGauge(prometheus.GaugeOpts{Name: "warmpath_config_loaded_timestamp_seconds", Help: "When the settings in use were loaded, in seconds since the epoch."})
	m.last.SetToCurrentTime()
	reg.MustRegister(count, m.last)
}

// Watch loads the settings again when a signal asks or one of their files has
// changed, until the gateway is stopped. Call it before or after Start, once.
func (g *Gateway) Watch(r Reloading) {
	if r.Interval == 0 {
		r.Interval = watchInterval
	}
	ctx, cancel := context.WithCancel(context.Background())
	g.onStop = append(g.onStop, cancel)
	g.running.Go(func() { g.watch(ctx, r) })
}

func (g *Gateway) watch(ctx context.Context, r Reloading) {
	tick := time.NewTicker(r.Interval)
	defer tick.Stop()
	current := g.cfg
	used := look(current.Files())
	last := used
	for {
		var now fileStates
		select {
		case <-ctx.Done():
			return
		case <-r.Signal:
			now = look(current.Files())
			g.log.Info("loading the settings again", "why", "signal")
		case <-tick.C:
			now = look(current.Files())
			settled := now.same(last) // nobody is in the middle of writing
			last = now
			if now.same(used) || !settled {
				continue
			}
			g.log.Info("loading the settings again", "why", "a file has changed")
		}
		used = now // from before reading: what changes meanwhile is seen next time
		if next := g.reload(current, r); next != nil {
			if !slices.Equal(current.Files(), next.Files()) {
				used = nil // other files: what they were when they were read is not known
			}
			current = next
		}
	}
}

// reload takes new settings over, and returns them; nil if they are bad.
func (g *Gateway) reload(current *config.Config, r Reloading) *config.Config {
	next, err := r.Load()
	var use func()
	if err == nil {
		use, err = g.prepare(next)
	}
	if err != nil {
		g.reloads.failed.Inc()
		g.log.Error("the settings are not usable: those from before stay", "err", err)
		return nil
	}
	use()
	if r.Level != nil {
		r.Level.Set(next.LogLevel)
	}
	g.reloads.ok.Inc()
	g.reloads.last.SetToCurrentTime()
	taken, _ := config.Changed(current, next)
	g.log.Info("settings loaded", "changed", taken)
	if _, restart := config.Changed(g.cfg, next); len(restart) > 0 {
		g.log.Warn("some settings have changed that need a restart", "settings", restart)
	}
	return next
}

// fileStates tell one content of files from another; nil stands for no file.
type fileStates []os.FileInfo

// look returns the states of files, links followed.
func look(files []string) (states fileStates) {
	for _, file := range files {
		info, err := os.Stat(file)
		if err != nil {
			info = nil
		}
		states = append(states, info)
	}
	return states
}

func (s fileStates) same(other fileStates) bool {
	return slices.EqualFunc(s, other, func(a, b os.FileInfo) bool {
		if a == nil || b == nil {
			return a == nil && b == nil
		}
		return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
	})
}
