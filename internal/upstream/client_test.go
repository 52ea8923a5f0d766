package upstream

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func newHost(t *testing.T, address string) (*Client, *Host) {
	t.Helper()
	before := runtime.NumGoroutine()
	c := &Client{Dial: (&net.Dialer{}).DialContext, IdleTimeout: time.Minute, MaxIdle: 4, HandshakeTimeout: 10 * time.Second}
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	h := c.Host(u)
	t.Cleanup(func() {
		h.Close()
		for deadline := time.Now().Add(10 * time.Second); c.Open() != 0 || runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%d connections and %d goroutines are left, of %d", c.Open(), runtime.NumGoroutine(), before)
			}
		}
	})
	return c, h
}

// script serves connections one after another, each with the next function.
func script(t *testing.T, serve ...func(c net.Conn, in *bufio.Reader)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, f := range serve {
			c, err := l.Accept()
			if err != nil {
				return
			}
			f(c, bufio.NewReader(c))
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	return "http://" + l.Addr().String()
}

// take reads a request and returns its body.
func take(in *bufio.Reader) string {
	r, err := http.ReadRequest(in)
	if err != nil {
		return err.Error()
	}
	body, _ := io.ReadAll(r.Body)
	return string(body)
}

func request(body string, reused *[]bool) *Request {
	return &Request{Method: http.MethodPost, Target: "/x?y=z", Host: "h", Header: http.Header{"A": {"b", "c"}}, Body: []byte(body), Connected: func(r bool) {
		if reused != nil {
			*reused = append(*reused, r)
		}
	}}
}

func readAll(resp *Response) (body []byte, err error) {
	for err == nil {
		var piece []byte
		piece, err = resp.Next()
		body = append(body, piece...)
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return body, err
}

func do(ctx context.Context, h *Host, r *Request) (string, error) {
	resp, err := h.Do(ctx, r)
	if err != nil {
		return "", err
	}
	defer resp.Close()
	body, err := readAll(resp)
	return string(body), err
}

// TestWhatIsSentIsWhatComes is for bodies that go out in one piece with the head, in
// two, and while the answer is awaited; over TLS as well.
func TestWhatIsSentIsWhatComes(t *testing.T) {
	echo := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Saw", fmt.Sprint(r.Method, r.RequestURI, r.Host, r.Header["A"], r.ContentLength))
		_, _ = w.Write(body)
	})
	for _, start := range []func(http.Handler) *httptest.Server{httptest.NewServer, httptest.NewTLSServer} {
		s := start(echo)
		c, h := newHost(t, s.URL)
		t.Cleanup(s.Close)
		if s.TLS != nil {
			c.TLS = s.Client().Transport.(*http.Transport).TLSClientConfig
			u, _ := url.Parse(s.URL)
			h = c.Host(u)
			t.Cleanup(h.Close)
		}
		var reused []bool
		for _, size := range []int{0, 1, 4 << 10, joined, joined + 1, 64 << 10, 512 << 10, 3 << 20, 9 << 20, 1} {
			var held atomic.Int32
			r := request(strings.Repeat("ü", size/2), &reused)
			r.Hold = func() func() { held.Add(1); return func() { held.Add(-1) } }
			resp, err := h.Do(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			body, err := readAll(resp)
			resp.Close()
			if want := fmt.Sprint("POST", r.Target, "h", []string{"b", "c"}, len(r.Body)); err != nil || !bytes.Equal(body, r.Body) || resp.Header.Get("X-Saw") != want {
				t.Errorf("%d bytes: got %d, %v, %q", size, len(body), err, resp.Header.Get("X-Saw"))
			}
			if held.Load() != 0 {
				t.Fatalf("%d bytes: the body is in use %d times", size, held.Load())
			}
		}
		if reused[0] || slices.Contains(reused[1:], false) {
			t.Errorf("reused %v", reused)
		}
		if c.Open() > 2 {
			t.Errorf("%d connections", c.Open())
		}
	}
}

const short = ok + "Content-Length: 2\r\n\r\nok"

// TestAKeptConnectionThatIsLostIsReplaced is for what a server may do to a connection
// between two requests, or as the second comes.
func TestAKeptConnectionThatIsLostIsReplaced(t *testing.T) {
	for name, then := range map[string]func(c net.Conn, in *bufio.Reader){
		"it was closed":                 func(net.Conn, *bufio.Reader) {},
		"it was reset":                  func(c net.Conn, _ *bufio.Reader) { _ = c.(*net.TCPConn).SetLinger(0) },
		"something unasked came":        func(c net.Conn, _ *bufio.Reader) { _, _ = io.WriteString(c, short) },
		"it is closed with the request": func(_ net.Conn, in *bufio.Reader) { take(in) },
	} {
		between := make(chan struct{})
		address := script(t, func(c net.Conn, in *bufio.Reader) {
			take(in)
			_, _ = io.WriteString(c, short)
			<-between
			then(c, in)
		}, func(c net.Conn, in *bufio.Reader) {
			_, _ = io.WriteString(c, ok+"Content-Length: 3\r\n\r\n"+take(in))
		})
		_, h := newHost(t, address)
		if body, err := do(t.Context(), h, request("", nil)); err != nil || body != "ok" {
			t.Fatalf("%s: %q %v", name, body, err)
		}
		close(between)
		if name != "it is closed with the request" {
			for deadline := time.Now().Add(10 * time.Second); h.idle[0].quiet(); time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("%s: it is not seen", name)
				}
			}
		}
		if body, err := do(t.Context(), h, request("two", nil)); err != nil || body != "two" {
			t.Errorf("%s: got %q, %v", name, body, err)
		}
	}
}

// TestNothingIsSentTwiceOnceAnAnswerHasBegun, nor when the connection was new.
func TestNothingIsSentTwiceOnceAnAnswerHasBegun(t *testing.T) {
	_, h := newHost(t, script(t, func(_ net.Conn, in *bufio.Reader) { take(in) }))
	if _, err := do(t.Context(), h, request("", nil)); !errors.Is(err, errNone) {
		t.Errorf("on a new connection: %v", err)
	}
	_, h = newHost(t, script(t, func(c net.Conn, in *bufio.Reader) {
		take(in)
		_, _ = io.WriteString(c, short)
		take(in)
		_, _ = io.WriteString(c, "HTTP/1.1 2")
	}))
	var reused []bool
	_, _ = do(t.Context(), h, request("", &reused))
	if _, err := do(t.Context(), h, request("", &reused)); !errors.Is(err, io.ErrUnexpectedEOF) || len(reused) != 2 || !reused[1] {
		t.Errorf("after some of it: %v, %v", err, reused)
	}
}

// TestConnectionsAreKeptOnlyWhenTheyAreClean: of answers that are not read to their
// end, that say so, or that more comes after, none is.
func TestConnectionsAreKeptOnlyWhenTheyAreClean(t *testing.T) {
	for name, c := range map[string]struct {
		answer string
		read   bool
		kept   int64
	}{
		"read":               {short, true, 1},
		"short and not read": {short, false, 1},
		"not whole":          {ok + "Content-Length: 3\r\n\r\nok", false, 0},
		"the last":           {ok + "Connection: close\r\nContent-Length: 2\r\n\r\nok", true, 0},
		"more than it said":  {short + "x", true, 0},
		"another protocol":   {"HTTP/1.1 101 Switching\r\n\r\n", true, 0},
	} {
		end := make(chan struct{})
		client, h := newHost(t, script(t, func(conn net.Conn, in *bufio.Reader) {
			take(in)
			_, _ = io.WriteString(conn, c.answer)
			<-end
		}))
		resp, err := h.Do(t.Context(), request("", nil))
		if err != nil {
			t.Fatal(err)
		}
		if c.read {
			_, _ = readAll(resp)
		}
		resp.Close()
		resp.Close()
		if client.Open() != c.kept {
			t.Errorf("%s: %d connections", name, client.Open())
		}
		close(end)
	}
}

func TestTheEndOfItsContextEndsAnExchange(t *testing.T) {
	ended := errors.New("ended")
	for name, serve := range map[string]func(c net.Conn, in *bufio.Reader){
		"while it is sent":     func(c net.Conn, _ *bufio.Reader) {},
		"before the head":      func(_ net.Conn, in *bufio.Reader) { take(in) },
		"within the head":      func(c net.Conn, in *bufio.Reader) { take(in); _, _ = io.WriteString(c, "HTTP/1.1 200") },
		"after the head":       func(c net.Conn, in *bufio.Reader) { take(in); _, _ = io.WriteString(c, ok+"\r\n") },
		"within the body":      func(c net.Conn, in *bufio.Reader) { take(in); _, _ = io.WriteString(c, ok+"\r\nhello") },
		"while it is sent yet": func(c net.Conn, _ *bufio.Reader) { _, _ = io.WriteString(c, ok+"\r\nhello") },
	} {
		served, end := make(chan struct{}), make(chan struct{})
		_, h := newHost(t, script(t, func(c net.Conn, in *bufio.Reader) {
			serve(c, in)
			close(served)
			<-end
		}))
		ctx, cancel := context.WithCancelCause(t.Context())
		connected := make(chan struct{})
		go func() { <-served; <-connected; time.Sleep(5 * time.Millisecond); cancel(ended) }()
		body := ""
		if strings.HasPrefix(name, "while it is sent") {
			body = strings.Repeat("x", 32<<20)
		}
		r := request(body, nil)
		r.Connected = func(bool) { close(connected) }
		_, err := do(ctx, h, r)
		if !errors.Is(err, os.ErrDeadlineExceeded) || !errors.Is(context.Cause(ctx), ended) {
			t.Errorf("%s: %v", name, err)
		}
		close(end)
	}
}

// TestAnAnswerThatComesBeforeTheWholeRequestIsRead is for servers that refuse a long
// body: they answer and read no more, or close the connection.
func TestAnAnswerThatComesBeforeTheWholeRequestIsRead(t *testing.T) {
	for name, closes := range map[string]bool{"it stays open": false, "it is closed": true} {
		end := make(chan struct{})
		client, h := newHost(t, script(t, func(c net.Conn, in *bufio.Reader) {
			_, _ = in.ReadString('\n')
			_, _ = io.WriteString(c, "HTTP/1.1 413 No\r\nContent-Length: 2\r\n\r\nno")
			if !closes {
				<-end
			}
		}))
		resp, err := h.Do(t.Context(), request(strings.Repeat("x", 32<<20), nil))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		body, err := readAll(resp)
		resp.Close()
		if err != nil || resp.Status != http.StatusRequestEntityTooLarge || string(body) != "no" {
			t.Errorf("%s: %d %q %v", name, resp.Status, body, err)
		}
		for deadline := time.Now().Add(10 * time.Second); client.Open() > 0; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: the connection is kept", name)
			}
		}
		close(end)
	}
}

// TestReadySaysWhatHasCome, so that nothing waits for what has not.
func TestReadySaysWhatHasCome(t *testing.T) {
	more := make(chan string)
	_, h := newHost(t, script(t, func(c net.Conn, in *bufio.Reader) {
		take(in)
		for text := range more {
			_, _ = io.WriteString(c, text)
		}
	}))
	send := func(text string) { more <- text; more <- "" }
	go send(ok + "Transfer-Encoding: chunked\r\n\r\n")
	resp, err := h.Do(t.Context(), request("", nil))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Close()
	if resp.Ready() {
		t.Error("ready before there is a body")
	}
	next := func(want string, end error) {
		t.Helper()
		if piece, err := resp.Next(); string(piece) != want || !errors.Is(err, end) {
			t.Errorf("got %q, %v, want %q", piece, err, want)
		}
	}
	send("3\r\nabc\r\n2\r\nde\r\n4\r\nf")
	next("abcdef", nil)
	if resp.Ready() {
		t.Error("ready in the middle of a chunk")
	}
	send("ghi\r\n0\r\n\r\n")
	next("ghi", io.EOF)
	next("", io.EOF)
	close(more)
}

func TestIdleConnectionsAreClosedInTime(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer s.Close()
	c, h := newHost(t, s.URL)
	c.IdleTimeout = 20 * time.Millisecond
	if _, err := do(t.Context(), h, request("", nil)); err != nil || c.Open() != 1 {
		t.Fatal(err, c.Open())
	}
	for deadline := time.Now().Add(10 * time.Second); c.Open() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it is still open")
		}
	}
	if _, err := do(t.Context(), h, request("", nil)); err != nil {
		t.Error(err)
	}
}

func TestNoMoreConnectionsAreKeptThanAllowed(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer s.Close()
	c, h := newHost(t, s.URL)
	var open []*Response
	for range c.MaxIdle + 3 {
		resp, err := h.Do(t.Context(), request("", nil))
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, resp)
	}
	for _, resp := range open {
		resp.Close()
	}
	if c.Open() != int64(c.MaxIdle) {
		t.Errorf("%d are kept", c.Open())
	}
}

// TestARequestThatWouldBeReadAsAnotherIsNotSent: no field can end its line. It costs no
// connection either.
func TestARequestThatWouldBeReadAsAnotherIsNotSent(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer s.Close()
	c, h := newHost(t, s.URL)
	if _, err := do(t.Context(), h, request("", nil)); err != nil {
		t.Fatal(err)
	}
	for _, change := range []func(r *Request){
		func(r *Request) { r.Method = "GET / HTTP/1.1\r\nX:" },
		func(r *Request) { r.Target = "/ HTTP/1.1\r\nX: y" },
		func(r *Request) { r.Target = "" },
		func(r *Request) { r.Target = "/x?a b" },
		func(r *Request) { r.Host = "a\r\nX: y" },
		func(r *Request) { r.Header["A"] = []string{"b\r\nX: y"} },
		func(r *Request) { r.Header["A: b\r\nX"] = []string{"y"} },
	} {
		var connections []bool
		r := request("", &connections)
		change(r)
		if _, err := h.Do(t.Context(), r); !errors.Is(err, ErrRequest) || len(connections) > 0 || c.Open() != 1 {
			t.Errorf("%v, on connections %v, %d open", err, connections, c.Open())
		}
	}
}

func TestTLSHandshakesAreBounded(t *testing.T) {
	end := make(chan struct{})
	address := script(t, func(net.Conn, *bufio.Reader) { <-end })
	c, _ := newHost(t, address)
	c.HandshakeTimeout, c.TLS = 20*time.Millisecond, &tls.Config{MinVersion: tls.VersionTLS12}
	u, _ := url.Parse(strings.Replace(address, "http:", "https:", 1))
	if _, err := do(t.Context(), c.Host(u), request("", nil)); !errors.Is(err, errHandshake) {
		t.Errorf("got %v", err)
	}
	close(end)
}
