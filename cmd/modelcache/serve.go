package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/warmpath/warmpath/internal/modelcache"
	"github.com/warmpath/warmpath/internal/modelcache/agent"
	"github.com/warmpath/warmpath/internal/modelcache/store"
)

// serve runs the node agent until ctx ends.
func serve(ctx context.Context, c *command) error {
	var files []string
	c.flags.Func("config", "YAML `file` of a model to keep present; give it once for each, all with the same cache", func(v string) error {
		files = append(files, v)
		return nil
	})
	cfg := agent.DefaultConfig()
	listen := c.flags.String("listen", "127.0.0.1:9095", "`address` for readiness, leases and metrics; only the node's own pods should reach it")
	c.flags.StringVar(&cfg.Pin, "pin", cfg.Pin, "`name` of the pins on the listed models; models that are no longer listed lose it")
	c.flags.DurationVar(&cfg.Check, "check", cfg.Check, "time between two looks at a model that is present")
	c.flags.DurationVar(&cfg.Scrub, "scrub", cfg.Scrub, "time between two verifications of all that is here; 0 is never")
	if _, err := c.parse(`-config model.yaml [-config another.yaml ...]

Keeps models present and serves
  GET    /readyz                  200 when all listed models are ready
  GET    /models, /models/DIGEST/ready
  POST   /leases                  {"digest": "sha256:…", "holder": "pod-a", "ttl": "1m"}
  PUT    /leases/ID               {"ttl": "1m"} renews
  DELETE /leases/ID               releases
  GET    /metrics, /healthz
Leases and pins are on the disk and outlive this process.`, 0, 0); err != nil {
		return err
	}
	if len(files) == 0 {
		return errors.New("-config is not set: name a YAML file for each model")
	}
	if err := store.CheckName(cfg.Pin); err != nil {
		return fmt.Errorf("-pin: %w", err)
	}
	if cfg.Check <= 0 || cfg.Scrub < 0 {
		return fmt.Errorf("-check is %v, must be above 0; -scrub is %v, must not be below", cfg.Check, cfg.Scrub)
	}
	first, models, err := loadAll(files)
	if err != nil {
		return err
	}
	s, err := store.Open(first.Store())
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	ln, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	a := agent.New(modelcache.New(s, first.Fetch, c.log), models, cfg, c.log)
	c.log.Info("serving", "address", ln.Addr().String(), "models", len(models))
	return serveUntil(ctx, ln, a)
}

// loadAll reads the files, which must agree about everything but the model.
func loadAll(files []string) (modelcache.Config, []modelcache.Model, error) {
	var first modelcache.Config
	var models []modelcache.Model
	for i, file := range files {
		cfg, err := modelcache.Load(file)
		if err != nil {
			return first, nil, err
		}
		if i == 0 {
			first = cfg
		}
		if cfg.Cache != first.Cache || cfg.Fetch != first.Fetch {
			return first, nil, fmt.Errorf("%s and %s differ in cache or fetch: one agent has one cache", files[0], file)
		}
		m, err := cfg.Resolve(os.LookupEnv)
		if err != nil {
			return first, nil, fmt.Errorf("%s: %w", file, err)
		}
		models = append(models, m)
	}
	return first, models, nil
}

func serveUntil(ctx context.Context, ln net.Listener, a *agent.Agent) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stopped := make(chan struct{})
	go func() { a.Run(ctx); close(stopped) }()
	srv := &http.Server{
		Handler: a.Handler(), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		BaseContext: func(net.Listener) context.Context { return ctx }, // a stop ends leases that wait for a pull
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	var err error
	select {
	case err = <-served:
	case <-ctx.Done():
		down, done := context.WithTimeout(context.Background(), 5*time.Second)
		err = srv.Shutdown(down)
		done()
	}
	cancel()
	<-stopped
	return err
}
