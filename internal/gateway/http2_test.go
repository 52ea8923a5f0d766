package gateway_test

import (
	"bytes"
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

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

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

// overHTTP2 posts a chat with fields that no client library would send, and returns the
// status, or what else came.
func (g *gate) overHTTP2(path string, fields ...string) string {
	g.t.Helper()
	c, err := tls.Dial("tcp", strings.TrimPrefix(g.Addr(), "https://"), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	if err != nil {
		g.t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	var block bytes.Buffer
	to := hpack.NewEncoder(&block)
	all := append([]string{":method", "POST", ":scheme", "https", ":authority", "gate", ":path", path, "content-type", "application/json"}, fields...)
	for i := 0; i < len(all); i += 2 {
		_ = to.WriteField(hpack.HeaderField{Name: all[i], Value: all[i+1]})
	}
	_, _ = io.WriteString(c, http2.ClientPreface)
	f := http2.NewFramer(c, c)
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	_ = f.WriteSettings()
	_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true})
	_ = f.WriteData(1, true, []byte(wholeReq))
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return err.Error()
		}
		switch frame := frame.(type) {
		case *http2.MetaHeadersFrame:
			return frame.PseudoValue("status")
		case *http2.RSTStreamFrame:
			return frame.ErrCode.String()
		}
	}
}

// TestWhatOnlyHTTP2CanSayHarmsNobody: a path with a space cannot be sent on over
// HTTP/1.1, which is no replica's fault; a second Host would be read by some.
func TestWhatOnlyHTTP2CanSayHarmsNobody(t *testing.T) {
	a := newAuthority(t)
	hosts := make(chan []string, 100)
	handler := func(w http.ResponseWriter, r *http.Request) {
		hosts <- append([]string{r.Host}, r.Header["Host"]...)
		answers(w, r)
	}
	one, two := newWorker(t, handler), newWorker(t, handler)
	g := start(t, func(c *config.Config) { c.Client.TLSCert, c.Client.TLSKey = a.sign("gate", "gate") }, one.url, two.url)
	g.trust(a, true)
	for range 4 {
		if got := g.overHTTP2(chatPath + "?a b"); got != "400" {
			t.Errorf("a path with a space: %s", got)
		}
	}
	if n := g.metric("warmpath_retries_total") + g.metric("warmpath_replica_faults_total"); n != 0 || len(hosts) > 0 {
		t.Errorf("%v attempts and faults were counted, %d requests were sent", n, len(hosts))
	}
	if got := g.overHTTP2(chatPath, "host", "evil"); got != "200" {
		t.Errorf("with a host field: %s", got)
	}
	if got := receive(t, "a request", hosts); len(got) != 1 || got[0] == "evil" {
		t.Errorf("the replica was told of the hosts %q", got)
	}
	g.idle()
}
