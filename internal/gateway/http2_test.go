package gateway_test

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/config"
)

// stuck is a client's connection that can stop to be read.
type stuck struct {
	net.Conn
	unread *atomic.Bool
	closed chan struct{}
}

func (c stuck) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.unread.Load() {
		<-c.closed
	}
	return n, err
}

func (c stuck) Close() error {
	if c.unread.CompareAndSwap(true, false) {
		close(c.closed)
	}
	return c.Conn.Close()
}

// TestOverHTTP2OnlyTheClientsSilenceIsBounded: a deadline ends a stream of HTTP/2 also
// while nothing is being written, and it is the replica who is waited for.
func TestOverHTTP2OnlyTheClientsSilenceIsBounded(t *testing.T) {
	a := newAuthority(t)
	const timeout = 150 * time.Millisecond
	pause := func() { time.Sleep(3 * timeout) }
	w := newWorker(t, func(w http.ResponseWriter, r *http.Request) {
		pause() // before the head
		if got := r.Header.Get("X-Whole"); got != "" {
			answers(w, r)
			return
		}
		s := newStream(t, w, r)
		for _, piece := range []string{roleEvent, tok("a"), tok("b"), finEvent + doneEvent} {
			_ = http.NewResponseController(w).Flush() // the head, or what came last
			pause()
			s.send(piece)
		}
	})
	g := start(t, func(c *config.Config) {
		c.Client.TLSCert, c.Client.TLSKey = a.sign("gate", "gate")
		c.Proxy.WriteTimeout, c.Proxy.UploadTimeout = timeout, timeout
	}, w.url)
	g.trust(a, true)
	for range 2 {
		if got := g.must(chatPath, streamReq); !strings.HasSuffix(got.body, doneEvent) {
			t.Errorf("a stream: %q", got.body)
		}
		g.must(chatPath, wholeReq, "X-Whole", "1")
		if got := g.get("/v1/models"); got.status != http.StatusOK {
			t.Errorf("models: %d", got.status)
		}
	}
	g.idle()
}

// TestClientThatDoesNotReadIsEndedOverHTTP2, whether it reads its connection and not
// the answer, or not even that.
func TestClientThatDoesNotReadIsEndedOverHTTP2(t *testing.T) {
	a := newAuthority(t)
	event := tok(strings.Repeat("x", 32<<10))
	for name, reads := range map[string]bool{"it reads its connection": true, "it reads nothing": false} {
		t.Run(name, func(t *testing.T) {
			gone := make(chan struct{})
			w := newWorker(t, func(w http.ResponseWriter, r *http.Request) {
				s := newStream(t, w, r)
				for n := 0; r.Context().Err() == nil && n < 200<<20; n += len(event) {
					s.send(event)
				}
				<-r.Context().Done()
				close(gone)
			})
			g := start(t, func(c *config.Config) {
				c.Client.TLSCert, c.Client.TLSKey = a.sign("gate", "gate")
				c.Proxy.WriteTimeout = 300 * time.Millisecond
			}, w.url)
			unread := new(atomic.Bool)
			window := 64 << 10
			if !reads {
				window = 1 << 30 // else the stream's window holds the gateway up
			}
			tr := &http.Transport{
				TLSClientConfig: &tls.Config{RootCAs: a.pool()}, ForceAttemptHTTP2: true,
				HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: window, MaxReceiveBufferPerConnection: max(window, 1<<20)},
				DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
					c, err := new(net.Dialer).DialContext(ctx, network, address)
					return stuck{c, unread, make(chan struct{})}, err
				},
			}
			g.client = &http.Client{Transport: tr}
			resp, err := g.do(chatPath, []byte(streamReq))
			if err != nil {
				t.Fatal(err)
			}
			unread.Store(!reads)
			receive(t, "the end at the replica", gone)
			g.client = newClient(t)
			g.idle()
			if n := g.metric("warmpath_broken_total", "reason", "slow_client"); reads && n != 1 { // else its connection ends
				t.Errorf("counted as %q", g.series("warmpath_broken_total"))
			}
			tr.CloseIdleConnections()
			_ = resp.Body.Close()
		})
	}
}

// TestUploadThatStopsIsEndedOverHTTP2, and its connection goes on for others.
func TestUploadThatStopsIsEndedOverHTTP2(t *testing.T) {
	a := newAuthority(t)
	w := newWorker(t, fine(t))
	g := start(t, func(c *config.Config) {
		c.Client.TLSCert, c.Client.TLSKey = a.sign("gate", "gate")
		c.Proxy.UploadTimeout = 200 * time.Millisecond
	}, w.url)
	g.trust(a, true)
	body, stops := io.Pipe()
	defer stops.Close()
	go func() { _, _ = io.WriteString(stops, streamReq[:10]) }()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, g.Addr()+chatPath, body)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := g.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	refusal(t, whole(resp), http.StatusRequestTimeout, "request_timeout")
	again := false
	trace := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) { again = c.Reused }})
	if resp, err = g.doContext(trace, chatPath, []byte(streamReq)); err != nil {
		t.Fatal(err)
	}
	if got := whole(resp); got.status != http.StatusOK || !again {
		t.Errorf("the next request: %d, on the same connection: %v", got.status, again)
	}
	g.idle()
}
