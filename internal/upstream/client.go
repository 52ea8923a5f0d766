// Package upstream is the HTTP/1.1 client by which requests reach replicas. It does
// for one request what net/http's transport does with two goroutines and several
// buffers for each connection: the request goes out in one write, and whoever reads
// the answer reads it from the socket, where it also learns what has already come.
//
// It is strict. An answer whose length could be understood in two ways is refused,
// and a connection that holds a byte nobody asked for is not used again: what comes
// on it might be taken for the answer to somebody else's request. Its errors quote
// nothing of an answer.
package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

// Client holds what connections to all hosts have in common. Set its fields before
// the first request.
type Client struct {
	// Dial makes a connection.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// TLS is for hosts at https addresses; nil is the default.
	TLS *tls.Config
	// HandshakeTimeout bounds the TLS handshake; 0 does not.
	HandshakeTimeout time.Duration
	// IdleTimeout is how long a connection is kept that no request uses.
	IdleTimeout time.Duration
	// MaxIdle is how many such connections are kept for each host.
	MaxIdle int

	open atomic.Int64
}

// Open returns how many connections there are.
func (c *Client) Open() int64 { return c.open.Load() }

// Host is a server, and the connections to it that no request uses. Make it with
// [Client.Host]; it is safe for concurrent use.
type Host struct {
	client  *Client
	address string // host:port
	tls     *tls.Config

	mu     sync.Mutex
	idle   []*conn // the one used last is the last; guarded by mu
	timer  *time.Timer
	closed bool
}

// Host returns the server at an http or https address.
func (c *Client) Host(u *url.URL) *Host {
	h := &Host{client: c}
	port := u.Port()
	switch {
	case port != "":
	case u.Scheme == "https":
		port = "443"
	default:
		port = "80"
	}
	h.address = net.JoinHostPort(u.Hostname(), port)
	if u.Scheme == "https" {
		if h.tls = c.TLS.Clone(); h.tls == nil {
			h.tls = &tls.Config{MinVersion: tls.VersionTLS12}
		}
		if h.tls.ServerName == "" {
			h.tls.ServerName = u.Hostname()
		}
		h.tls.NextProtos = []string{"http/1.1"}
	}
	return h
}

// Close closes the idle connections; those in use are closed when they are not any more.
func (h *Host) Close() {
	h.mu.Lock()
	idle := h.idle
	h.idle, h.closed = nil, true
	h.mu.Unlock()
	for _, c := range idle {
		c.close()
	}
}

// Request is what is sent.
type Request struct {
	Method string
	Target string // path and query, escaped
	Host   string
	// Header goes out as it is, but for Host and Content-Length, which may not be in it.
	Header http.Header
	Body   []byte
	// Hold is called when Body is used beyond the end of Do, and what it returns when that
	// ends, at the latest with the answer's Close; it may be nil.
	Hold func() (release func())
	// Connected is called with each connection that the request is sent on. One that
	// is reused has carried a request before.
	Connected func(reused bool)
}

// Do sends a request and returns the answer's head. A kept connection that is lost
// before a byte of the answer has come is replaced by a new one: whoever sends a
// request that must not come twice must not use this client. When ctx ends, Do and all
// reading of the answer fail. The answer must be closed.
func (h *Host) Do(ctx context.Context, req *Request) (*Response, error) {
	if !req.sendable() {
		return nil, ErrRequest
	}
	for c := h.take(); ; c = nil {
		reused := c != nil
		if !reused {
			var err error
			if c, err = h.connect(ctx); err != nil {
				return nil, err
			}
		}
		if req.Connected != nil {
			req.Connected(reused)
		}
		sent := time.Now()
		resp, err := c.exchange(ctx, req)
		if err == nil {
			return resp, nil
		}
		if c.close(); !reused || c.answered || ctx.Err() != nil || time.Since(sent) > crossing {
			return nil, err
		}
	}
}

// crossing is how long after a request the end of its connection may still be what the
// server did before it came. Later, the request was being worked on.
const crossing = time.Second

// take returns an idle connection that is still good, or nil.
func (h *Host) take() *conn {
	for {
		h.mu.Lock()
		n := len(h.idle) - 1
		if n < 0 {
			h.mu.Unlock()
			return nil
		}
		c := h.idle[n]
		h.idle[n], h.idle = nil, h.idle[:n]
		h.mu.Unlock()
		if time.Since(c.since) < h.client.IdleTimeout && c.quiet() {
			return c
		}
		c.close()
	}
}

// put keeps a connection for the next request.
func (h *Host) put(c *conn) {
	c.since = time.Now()
	h.mu.Lock()
	full := h.closed || len(h.idle) >= h.client.MaxIdle
	if !full {
		h.idle = append(h.idle, c)
		if h.timer == nil {
			h.timer = time.AfterFunc(h.client.IdleTimeout, h.sweep)
		}
	}
	h.mu.Unlock()
	if full {
		c.close()
	}
}

// sweep closes the connections that have been idle for too long, and comes again
// when the next will be.
func (h *Host) sweep() {
	h.mu.Lock()
	n := 0
	for n < len(h.idle) && time.Since(h.idle[n].since) >= h.client.IdleTimeout {
		n++
	}
	old := append([]*conn(nil), h.idle[:n]...)
	rest := copy(h.idle, h.idle[n:])
	clear(h.idle[rest:])
	h.idle, h.timer = h.idle[:rest], nil
	if rest > 0 {
		h.timer = time.AfterFunc(h.client.IdleTimeout-time.Since(h.idle[0].since), h.sweep)
	}
	h.mu.Unlock()
	for _, c := range old {
		c.close()
	}
}

// connect makes a connection.
func (h *Host) connect(ctx context.Context) (*conn, error) {
	raw, err := h.client.Dial(ctx, "tcp", h.address)
	if err != nil {
		return nil, err
	}
	c := newConn(h, raw)
	if h.tls == nil {
		return c, nil
	}
	if t := h.client.HandshakeTimeout; t > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, t, errHandshake)
		defer cancel()
	}
	secure := tls.Client(c.raw, h.tls)
	if err := secure.HandshakeContext(ctx); err != nil {
		c.close()
		if errors.Is(context.Cause(ctx), errHandshake) {
			err = errHandshake
		}
		return nil, fmt.Errorf("TLS handshake: %w", err)
	}
	c.rw, c.in.src = secure, secure
	return c, nil
}

var errHandshake = errors.New("it took too long")
