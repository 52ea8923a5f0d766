// Package gateway makes a whole gateway of its parts and runs it. It binds its
// addresses in [New], so that a test can ask for port 0 and read which it got.
package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/net/netutil"

	"github.com/warmpath/warmpath/internal/admin"
	"github.com/warmpath/warmpath/internal/certs"
	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/metrics"
	"github.com/warmpath/warmpath/internal/proxy"
	"github.com/warmpath/warmpath/internal/replica"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/share"
	"github.com/warmpath/warmpath/internal/socket"
)

// Gateway is a whole gateway. Use it by New, Start and Stop, or by New and Run.
type Gateway struct {
	cfg                *config.Config // as started
	log                *slog.Logger
	pool               *replica.Pool
	proxy              *proxy.Proxy
	admin              *admin.Admin
	certificate        certs.Pair // for clients
	reloads            reloads
	share              *share.Share // nil if nothing is shared
	clients            *http.Server
	admins             *http.Server
	onClients, onAdmin net.Listener

	stopping          atomic.Bool
	drainDelay, drain time.Duration
	connections       atomic.Int64 // of clients
	running           sync.WaitGroup
	failed            chan error
	onStop            []func() // in the order of starting; undone in reverse
}

// Bounds on idle and half-open connections. An answer may take as long as it likes.
const (
	headerTimeout = 10 * time.Second // of the admin address
	idleTimeout   = 2 * time.Minute
)

const (
	// endTime is how long answers that are ended may take to tell their clients.
	endTime = 2 * time.Second
	// linger is how long connections are kept when nothing is under way any more. An
	// answer that began before the gateway was told to stop did not say that it is the
	// connection's last, and its client may be sending the next request.
	linger = 500 * time.Millisecond
)

// New wires a gateway and binds its addresses; nothing is served yet. It is one
// straight line on purpose: a part can only use what was made before it.
func New(cfg *config.Config, log *slog.Logger) (_ *Gateway, err error) {
	g := &Gateway{cfg: cfg, log: log, drainDelay: cfg.DrainDelay, drain: cfg.DrainTimeout, failed: make(chan error, 2)}
	defer func() {
		if err != nil {
			g.undo()
		}
	}()

	replicas := cfg.Replica
	if cfg.Demo > 0 {
		demo, err := startDemo(cfg.Demo)
		if err != nil {
			return nil, err
		}
		g.onStop = append(g.onStop, demo.stop)
		replicas.URLs = demo.urls
		g.drainDelay = 0 // nobody balances load over a demonstration
	}
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))

	route, err := router.New(cfg.Router)
	if err != nil {
		return nil, err
	}
	g.pool, err = replica.New(replicas, log.With("component", "replica"), func(e replica.Event) {
		switch e.Kind {
		case replica.Told:
			route.Told(e.Replica, e.Facts)
		case replica.Emptied:
			route.Emptied(e.Replica)
		case replica.Counted:
			route.Counted(e.Replica, e.Facts)
		case replica.Gone:
			route.Gone(e.Replica)
		default:
			if g.share != nil {
				g.share.Notice(e)
			}
		}
	})
	if err != nil {
		return nil, err
	}
	g.proxy, err = proxy.New(cfg.Proxy, cfg.Router.Policy, log.With("component", "proxy"), g.pool, route, metrics.New(reg))
	if err != nil {
		return nil, err
	}
	g.onStop = append(g.onStop, g.proxy.Close)
	if cfg.Redis.URL != "" {
		if g.share, err = share.New(cfg.Redis, log.With("component", "share"), metrics.NewShare(reg), g.pool, route); err != nil {
			return nil, err
		}
		g.onStop = append(g.onStop, g.share.Close)
	}
	if err := g.trace(); err != nil {
		return nil, err
	}
	reg.MustRegister(&states{pool: g.pool, router: route, proxy: g.proxy, clients: &g.connections})
	g.reloads.register(reg)
	use, err := g.prepare(cfg)
	if err != nil {
		return nil, err
	}
	use()
	control := &admin.Admin{Gatherer: reg, Pool: g.pool, Router: route, Ready: g.Ready, Token: cfg.AdminToken, Explain: g.proxy.Explain}
	g.admin = control

	if g.onClients, err = g.bind("listen", cfg.Listen); err != nil {
		return nil, err
	}
	if g.onAdmin, err = g.bind("admin", cfg.Admin); err != nil {
		return nil, err
	}
	g.onClients = netutil.LimitListener(socket.Listener{Listener: g.onClients}, cfg.Client.MaxConnections)
	g.clients = g.server(g.leaving(g.proxy.Handler()))
	g.clients.ConnState = g.countConnection
	g.clients.MaxHeaderBytes, g.clients.ReadHeaderTimeout = cfg.Client.MaxHeaderBytes, cfg.Client.HeaderTimeout
	g.clients.DisableGeneralOptionsHandler = true // OPTIONS * is for the handler, as all else
	if cfg.Client.TLSCert != "" {
		g.clients.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: g.certificate.ForClients}
		// A client that does not read its connection holds up the ends of its streams too.
		g.clients.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: cfg.Client.MaxStreams, WriteByteTimeout: cfg.Proxy.WriteTimeout}
	}
	g.admins = g.server(control.Handler())
	return g, nil
}

func (g *Gateway) bind(setting, address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", setting, address, err)
	}
	g.onStop = append(g.onStop, func() { _ = l.Close() }) // it may have been closed by its server
	return l, nil
}

func (g *Gateway) server(h http.Handler) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout,
		ErrorLog: slog.NewLogLogger(g.log.With("component", "http").Handler(), slog.LevelDebug),
	}
}

// leaving has clients come back on new connections while the gateway drains: those
// will be another's.
func (g *Gateway) leaving(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.stopping.Load() {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

func (g *Gateway) countConnection(_ net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		g.connections.Add(1)
	case http.StateClosed, http.StateHijacked:
		g.connections.Add(-1)
	}
}

// Addr returns the address that clients use, as http://host:port or https://host:port.
func (g *Gateway) Addr() string {
	scheme := "http://"
	if g.cfg.Client.TLSCert != "" {
		scheme = "https://"
	}
	return scheme + g.onClients.Addr().String()
}

// AdminAddr returns the admin address, as http://host:port.
func (g *Gateway) AdminAddr() string { return "http://" + g.onAdmin.Addr().String() }

// Ready reports whether the gateway wants traffic.
func (g *Gateway) Ready() bool {
	return !g.stopping.Load() && g.pool.Ready() && (g.share == nil || g.share.Ready())
}

// Start begins to probe and to serve.
func (g *Gateway) Start() {
	ctx, cancel := context.WithCancel(context.Background())
	g.onStop = append(g.onStop, cancel)
	g.running.Go(func() { g.pool.Run(ctx) })
	g.running.Go(func() { g.proxy.Run(ctx) })
	if g.share != nil {
		g.running.Go(func() { g.share.Run(ctx) })
	}
	g.running.Go(func() { g.admin.Run(ctx) })
	for server, l := range map[*http.Server]net.Listener{g.clients: g.onClients, g.admins: g.onAdmin} {
		g.running.Go(func() {
			serve := server.Serve
			if server == g.clients && g.cfg.Client.TLSCert != "" {
				serve = func(l net.Listener) error { return server.ServeTLS(l, "", "") }
			}
			if err := serve(l); !errors.Is(err, http.ErrServerClosed) && !g.stopping.Load() {
				g.failed <- fmt.Errorf("serve on %s: %w", l.Addr(), err)
			}
		})
	}
}

// Stop lets answers under way end within ctx, ends the others with an error that
// their clients can read, and closes everything. Its own error tells that there were
// such.
func (g *Gateway) Stop(ctx context.Context) error {
	g.stopping.Store(true)
	_ = g.onClients.Close() // nobody new
	g.drainConnections(ctx)
	err := g.clients.Shutdown(ctx)
	if errors.Is(err, net.ErrClosed) { // the listener was closed already: nothing else was wrong
		err = nil
	}
	if err != nil {
		err = fmt.Errorf("answers under way were cut off: %w", err)
		g.proxy.EndAll()
		soon, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
		_ = g.clients.Shutdown(soon) // what is not over by then is closed
		cancel()
		_ = g.clients.Close()
	}
	_ = g.admins.Close()
	g.undo()
	g.running.Wait()
	return err
}

// drainConnections waits until no client is connected, or nothing has been under way
// for a while.
func (g *Gateway) drainConnections(ctx context.Context) {
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	quiet := time.Now()
	for g.connections.Load() > 0 && time.Since(quiet) < linger {
		if g.proxy.Load().InFlight > 0 {
			quiet = time.Now()
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

func (g *Gateway) undo() {
	for _, f := range slices.Backward(g.onStop) {
		f()
	}
	g.onStop = nil
}

// Run serves until ctx ends, and then stops: at first it only says that it is not
// ready, and serves on, then it lets answers end.
func (g *Gateway) Run(ctx context.Context) error {
	g.Start()
	g.log.Info("serving", "clients", g.Addr(), "admin", g.AdminAddr())
	var failed error
	select {
	case <-ctx.Done():
		g.stopping.Store(true)
		g.log.Info("stopping: new requests are still served for drain_delay, then answers under way may end", "drain_delay", g.drainDelay, "drain_timeout", g.drain)
		select {
		case <-time.After(g.drainDelay):
		case failed = <-g.failed:
		}
	case failed = <-g.failed:
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), g.drain)
	defer cancel()
	return errors.Join(failed, g.Stop(stop))
}
