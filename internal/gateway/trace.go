package gateway

import (
	"context"
	"time"

	"github.com/warmpath/warmpath/internal/trace"
)

// traceTime is how long the last spans may take to leave when the gateway stops.
const traceTime = 3 * time.Second

// trace has requests make spans, if the environment asks for it.
func (g *Gateway) trace() error {
	tracer, err := trace.New(context.Background(), g.log.With("component", "trace"))
	if err != nil {
		return err
	}
	g.proxy.Trace(tracer)
	g.onStop = append(g.onStop, func() {
		ctx, cancel := context.WithTimeout(context.Background(), traceTime)
		defer cancel()
		if err := tracer.Stop(ctx); err != nil {
			g.log.Warn("the last traces were not delivered", "err", err)
		}
	})
	return nil
}
