package upstream

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"
)

// This file is what a server or the network may do at a bad moment.

// joint is a connection whose writes go out together.
type joint struct {
	net.Conn
	hold bool
	held []byte
}

func (c *joint) Write(b []byte) (int, error) {
	if c.hold {
		c.held = append(c.held, b...)
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// overTLS makes a host of a server that speaks TLS, whose connections serve handles.
func overTLS(t *testing.T, version uint16, serve func(c *tls.Conn, below *joint)) *Host {
	t.Helper()
	s := httptest.NewUnstartedServer(nil)
	s.StartTLS()
	conf, trust := &tls.Config{Certificates: s.TLS.Certificates, MaxVersion: version, MinVersion: version}, s.Client().Transport.(*http.Transport).TLSClientConfig
	s.Close()
	address := script(t, func(raw net.Conn, _ *bufio.Reader) {
		below := &joint{Conn: raw}
		serve(tls.Server(below, conf), below)
	})
	c, _ := newHost(t, address)
	c.TLS = trust
	u, err := url.Parse(strings.Replace(address, "http:", "https:", 1))
	if err != nil {
		t.Fatal(err)
	}
	h := c.Host(u)
	t.Cleanup(h.Close)
	return h
}

// TestAnAnswerNobodyAskedForIsNobodysOverTLS: it came in one read with the answer
// before it, and so stands in no socket any more.
func TestAnAnswerNobodyAskedForIsNobodysOverTLS(t *testing.T) {
	for name, first := range map[string]string{"after an answer": short, "after one that has no body": "HTTP/1.1 204 No\r\n\r\n"} {
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			h := overTLS(t, version, func(c *tls.Conn, below *joint) {
				take(bufio.NewReader(c))
				below.hold = true
				_, _ = io.WriteString(c, first)
				_, _ = io.WriteString(c, ok+"Content-Length: 4\r\n\r\nevil")
				_, _ = below.Conn.Write(below.held)
				_, _ = io.Copy(io.Discard, c) // it may be asked again, and says no more
			})
			if _, err := do(t.Context(), h, request("", nil)); err != nil {
				t.Fatal(err)
			}
			if c := h.take(); c != nil {
				t.Errorf("%s, %s: the connection is used again", name, tls.VersionName(version))
				c.close()
			}
		}
	}
}

func TestTLSConnectionsAreUsedAgain(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} { // the latter with tickets behind the handshake
		h := overTLS(t, version, func(c *tls.Conn, _ *joint) {
			for in := bufio.NewReader(c); take(in) != "EOF"; {
				_, _ = io.WriteString(c, short)
			}
		})
		for range 3 {
			if body, err := do(t.Context(), h, request("", nil)); body != "ok" || err != nil {
				t.Errorf("%s: %q, %v", tls.VersionName(version), body, err)
			}
		}
	}
}

// TestTheEndOfAContextIsNotWaitedFor, whatever the request waits for then.
func TestTheEndOfAContextIsNotWaitedFor(t *testing.T) {
	const soon = time.Second / 2
	t.Run("before it is written", func(t *testing.T) {
		end := make(chan struct{})
		defer close(end)
		_, h := newHost(t, script(t, func(_ net.Conn, in *bufio.Reader) { take(in); <-end }))
		c, err := h.connect(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		c.abort() // as the goroutine of AfterFunc does, if it is the first
		began := time.Now()
		if _, err = c.exchange(ctx, request("", nil)); err == nil || time.Since(began) > soon {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		c.close()
	})
	for _, answer := range []string{"", ok + "\r\nhello"} {
		t.Run("a long body is being written over TLS, and of the answer has come "+answer, func(t *testing.T) {
			begun, end := make(chan struct{}), make(chan struct{})
			defer close(end)
			h := overTLS(t, tls.VersionTLS13, func(c *tls.Conn, _ *joint) {
				_ = c.Handshake()
				_, _ = io.WriteString(c, answer)
				close(begun)
				<-end
			})
			ctx, cancel := context.WithCancel(t.Context())
			var ended time.Time
			go func() {
				<-begun
				time.Sleep(100 * time.Millisecond)
				ended = time.Now()
				cancel()
			}()
			resp, err := h.Do(ctx, request(strings.Repeat("x", 32<<20), nil))
			if err == nil {
				_, _ = readAll(resp)
				resp.Close()
			}
			if (err == nil) != (answer != "") || time.Since(ended) > soon {
				t.Errorf("%v after %v", err, time.Since(ended))
			}
		})
	}
}

// TestARequestThatWasWorkedOnIsNotSentAgain: a kept connection that is lost long after
// the request was not lost for having been idle.
func TestARequestThatWasWorkedOnIsNotSentAgain(t *testing.T) {
	var came atomic.Int32
	_, h := newHost(t, script(t, func(c net.Conn, in *bufio.Reader) {
		take(in)
		_, _ = io.WriteString(c, short)
		take(in)
		came.Add(1)
		time.Sleep(crossing + 200*time.Millisecond)
	}, func(c net.Conn, in *bufio.Reader) {
		if take(in) != "EOF" {
			came.Add(1)
		}
	}))
	if _, err := do(t.Context(), h, request("", nil)); err != nil {
		t.Fatal(err)
	}
	if _, err := do(t.Context(), h, request("", nil)); err == nil || came.Load() != 1 {
		t.Errorf("%v; it came %d times", err, came.Load())
	}
	last, err := net.Dial("tcp", h.address) // lets the script end
	if err == nil {
		_ = last.Close()
	}
}

// TestALineBesideChunksIsBoundedHoweverItComes.
func TestALineBesideChunksIsBoundedHoweverItComes(t *testing.T) {
	for n := maxLine - 3; n <= maxLine+3; n++ {
		answer := ok + "Transfer-Encoding: chunked\r\n\r\n5;" + strings.Repeat("x", n-2) + "\r\nhello\r\n0\r\n\r\n"
		_, _, whole := read(strings.NewReader(answer), http.MethodPost)
		_, _, pieces := read(iotest.OneByteReader(strings.NewReader(answer)), http.MethodPost)
		if (whole == nil) != (n <= maxLine) || (pieces == nil) != (n <= maxLine) {
			t.Errorf("%d: whole %v, in pieces %v", n, whole, pieces)
		}
	}
}
