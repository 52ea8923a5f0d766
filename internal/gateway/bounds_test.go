package gateway_test

import (
	"bufio"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/config"
)

func TestLinesAndHeadersAreBounded(t *testing.T) {
	w := newWorker(t, answers)
	g := start(t, func(c *config.Config) {
		c.Proxy.MaxURLBytes, c.Client.MaxHeaderBytes = 300, 16<<10
	}, w.url)
	f := func(path, header string, want int) {
		t.Helper()
		a := g.get(path, "X-Long", header)
		if a.status != want {
			t.Errorf("path of %d bytes, header of %d: %d, want %d", len(path), len(header), a.status, want)
		}
		if want == http.StatusRequestURITooLong {
			if e := parse(t, a.body); e.text("error", "code") != "uri_too_long" || !strings.Contains(e.text("error", "message"), "300 bytes") || a.header.Get("X-Request-Id") == "" {
				t.Errorf("got %v %s", a.header, a.body)
			}
		}
	}
	base := "/v1/models?x="
	f(base+strings.Repeat("a", 300-len(base)), "", http.StatusOK)
	f(base+strings.Repeat("a", 301-len(base)), "", http.StatusRequestURITooLong)
	f("/v1/models", strings.Repeat("a", 10<<10), http.StatusOK)
	f("/v1/models", strings.Repeat("a", 24<<10), http.StatusRequestHeaderFieldsTooLarge)
}

func TestHeadersThatDoNotComeAreNotWaitedForLong(t *testing.T) {
	w := newWorker(t, answers)
	g := start(t, func(c *config.Config) { c.Client.HeaderTimeout = 50 * time.Millisecond }, w.url)
	c := g.raw("")
	_, _ = io.WriteString(c, "GET /v1/models HTTP/1.1\r\nHost: x\r\nX-Slow: ")
	began := time.Now()
	if _, err := io.ReadAll(c); err != nil {
		t.Fatalf("the connection was not closed: %v", err)
	}
	if took := time.Since(began); took > patience/2 {
		t.Errorf("closed after %v", took)
	}
}

func TestConnectionsAreBounded(t *testing.T) {
	w := newWorker(t, answers)
	g := start(t, func(c *config.Config) { c.Client.MaxConnections = 2 }, w.url)
	get := func(c net.Conn) chan int {
		status := make(chan int, 1)
		go func() {
			_, _ = io.WriteString(c, "GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				status <- 0
				return
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
			status <- resp.StatusCode
		}()
		return status
	}
	one, two, three := g.raw(""), g.raw(""), g.raw("")
	for _, c := range []net.Conn{one, two} {
		if got := receive(t, "an answer", get(c)); got != http.StatusOK {
			t.Errorf("status %d", got)
		}
	}
	waits := get(three)
	for range 3 { // others, and the admin address, go on meanwhile
		if got := receive(t, "an answer", get(one)); got != http.StatusOK {
			t.Errorf("status %d", got)
		}
		if g.admin("/healthz").status != http.StatusOK {
			t.Error("the admin address is bound by it too")
		}
	}
	select {
	case got := <-waits:
		t.Errorf("a third connection was served: %d", got)
	default:
	}
	_ = two.Close()
	if got := receive(t, "an answer to the third", waits); got != http.StatusOK {
		t.Errorf("status %d", got)
	}
}

// TestRequestsAtOnceOnAConnectionAreBounded: one HTTP/2 connection must not carry
// what max_connections keeps out. The bound is told in the server's first frame.
func TestRequestsAtOnceOnAConnectionAreBounded(t *testing.T) {
	a := newAuthority(t)
	g := startUnready(t, func(c *config.Config) {
		c.Client.TLSCert, c.Client.TLSKey = a.sign("gate", "gate")
		c.Client.MaxStreams = 7
	}, "http://127.0.0.1:1")
	c, err := tls.Dial("tcp", strings.TrimPrefix(g.Addr(), "https://"), &tls.Config{RootCAs: a.pool(), ServerName: "127.0.0.1", NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	_, _ = io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00") // preface and empty settings
	var head [9]byte
	if _, err := io.ReadFull(c, head[:]); err != nil || head[3] != 4 {
		t.Fatalf("no settings: %v %x", err, head)
	}
	settings := make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))
	if _, err := io.ReadFull(c, settings); err != nil {
		t.Fatal(err)
	}
	for ; len(settings) >= 6; settings = settings[6:] {
		if id := binary.BigEndian.Uint16(settings); id == 3 { // SETTINGS_MAX_CONCURRENT_STREAMS
			if n := binary.BigEndian.Uint32(settings[2:]); n != 7 {
				t.Errorf("the bound is %d", n)
			}
			return
		}
	}
	t.Error("there is no bound")
}
