package upstream

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
)

// read reads a whole answer as a connection does.
func read(src io.Reader, method string) (h head, body []byte, err error) {
	d := reader{src: src}
	defer d.free()
	if h, err = d.head(method); err != nil {
		return h, nil, err
	}
	for {
		piece, err := d.decode()
		body = append(body, piece...)
		if errors.Is(err, io.EOF) {
			return h, body, nil
		}
		if err == nil && len(piece) == 0 {
			if err = d.ended(d.fill()); errors.Is(err, io.EOF) && d.phase == open {
				return h, body, nil
			}
		}
		if err != nil {
			return h, body, err
		}
	}
}

const ok = "HTTP/1.1 200 OK\r\n"

func TestReadsAnswers(t *testing.T) {
	long := strings.Repeat("x", 100<<10)
	for name, c := range map[string]struct {
		answer, body string
		status       int
		close        bool
	}{
		"with a length":             {ok + "Content-Length: 5\r\n\r\nhello", "hello", 200, false},
		"in chunks":                 {ok + "Transfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n", "hello", 200, false},
		"with capitals":             {ok + "TRANSFER-ENCODING: Chunked\r\n\r\nA\r\n0123456789\r\n0\r\n\r\n", "0123456789", 200, false},
		"with extensions":           {ok + "Transfer-Encoding: chunked\r\n\r\n3;a=b\r\nhel\r\n2 \r\nlo\r\n0;c\r\n\r\n", "hello", 200, false},
		"with trailers":             {ok + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nA: b\r\nC: d\r\n\r\n", "hello", 200, false},
		"until the connection ends": {ok + "\r\nhello", "hello", 200, true},
		"of HTTP/1.0":               {"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello", "hello", 200, true},
		"the last":                  {ok + "Connection: x, Close\r\nContent-Length: 5\r\n\r\nhello", "hello", 200, true},
		"without a reason":          {"HTTP/1.1 429\r\nContent-Length: 0\r\n\r\n", "", 429, false},
		"after others":              {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + ok + "Content-Length: 5\r\n\r\nhello", "hello", 200, false},
		"that has no body":          {"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n", "", 204, false},
		"that changes the protocol": {"HTTP/1.1 101 Switching\r\n\r\n", "", 101, true},
		"that is long":              {ok + "Content-Length: 102400\r\n\r\n" + long, long, 200, false},
		"with one long chunk":       {ok + "Transfer-Encoding: chunked\r\n\r\n19000\r\n" + long + "\r\n0\r\n\r\n", long, 200, false},
		"with many short chunks":    {ok + "Transfer-Encoding: chunked\r\n\r\n" + strings.Repeat("1\r\nx\r\n", 100<<10) + "0\r\n\r\n", long, 200, false},
	} {
		for how, src := range map[string]io.Reader{"whole": strings.NewReader(c.answer), "byte by byte": iotest.OneByteReader(strings.NewReader(c.answer))} {
			h, body, err := read(src, http.MethodPost)
			if err != nil || h.status != c.status || string(body) != c.body || h.close != c.close {
				t.Errorf("%s, %s: status %d, %d bytes, closes %v: %v", name, how, h.status, len(body), h.close, err)
			}
		}
	}
	if h, body, err := read(strings.NewReader(ok+"Content-Length: 5\r\n\r\n"), http.MethodHead); err != nil || len(body) > 0 || h.header.Get("Content-Length") != "5" {
		t.Errorf("of a HEAD: %v %q %v", h, body, err)
	}
}

func TestReadsFields(t *testing.T) {
	h, _, err := read(strings.NewReader(ok+"content-type:text/plain\r\nX-A: 1\r\nx-a:\t2 \r\nX-Empty:\r\nX-Odd: caf\xe9 \"q\"\r\nContent-Length: 0\r\n\r\n"), http.MethodGet)
	want := http.Header{"Content-Type": {"text/plain"}, "X-A": {"1", "2"}, "X-Empty": {""}, "X-Odd": {"caf\xe9 \"q\""}, "Content-Length": {"0"}}
	if err != nil || !reflect.DeepEqual(h.header, want) {
		t.Errorf("got %q, %v", h.header, err)
	}
}

func TestRefusesWhatCouldBeReadInTwoWays(t *testing.T) {
	const chunked = ok + "Transfer-Encoding: chunked\r\n\r\n"
	for name, answer := range map[string]string{
		"nothing":                 "",
		"half a head":             ok + "Content-Le",
		"no HTTP":                 "SSH-2.0-OpenSSH\r\n\r\n",
		"HTTP/2":                  "HTTP/2.0 200 OK\r\n\r\n",
		"another minor version":   "HTTP/1.2 200 OK\r\n\r\n",
		"two digits":              "HTTP/1.1 20 OK\r\n\r\n",
		"four digits":             "HTTP/1.1 2000 OK\r\n\r\n",
		"a low status":            "HTTP/1.1 099 OK\r\n\r\n",
		"a folded line":           ok + "A: b\r\n c\r\nContent-Length: 0\r\n\r\n",
		"a space before a colon":  ok + "Content-Length : 0\r\n\r\n",
		"no colon":                ok + "Content-Length 0\r\n\r\n",
		"no name":                 ok + ": 0\r\n\r\n",
		"a bare line feed":        ok + "A: b\nContent-Length: 0\r\n\r\n",
		"a bare carriage return":  ok + "A: b\rContent-Length: 0\r\n\r\n",
		"a zero byte":             ok + "A: b\x00\r\nContent-Length: 0\r\n\r\n",
		"two lengths":             ok + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
		"one length twice":        ok + "Content-Length: 1\r\nContent-Length: 1\r\n\r\na",
		"a list of lengths":       ok + "Content-Length: 1, 1\r\n\r\na",
		"a signed length":         ok + "Content-Length: +1\r\n\r\na",
		"a negative length":       ok + "Content-Length: -1\r\n\r\n",
		"an empty length":         ok + "Content-Length:\r\n\r\n",
		"a huge length":           ok + "Content-Length: 9999999999999999999999\r\n\r\n",
		"a length and chunks":     ok + "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"another encoding":        ok + "Transfer-Encoding: gzip\r\n\r\n",
		"two encodings":           ok + "Transfer-Encoding: gzip, chunked\r\n\r\n",
		"chunks twice":            ok + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"chunks in HTTP/1.0":      "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"a body that breaks off":  ok + "Content-Length: 5\r\n\r\nhell",
		"chunks that break off":   chunked + "5\r\nhello\r\n",
		"a chunk that breaks off": chunked + "5\r\nhell",
		"a bad size":              chunked + "g\r\nhello\r\n0\r\n\r\n",
		"a prefixed size":         chunked + "0x5\r\nhello\r\n0\r\n\r\n",
		"a signed size":           chunked + "-5\r\nhello\r\n0\r\n\r\n",
		"no size":                 chunked + "\r\nhello\r\n0\r\n\r\n",
		"a huge size":             chunked + "ffffffffffffffff\r\nhello\r\n0\r\n\r\n",
		"a size and a line feed":  chunked + "5\nhello\r\n0\r\n\r\n",
		"a chunk that is longer":  chunked + "4\r\nhello\r\n0\r\n\r\n",
		"a long extension":        chunked + "5;" + strings.Repeat("x", 300) + "\r\nhello\r\n0\r\n\r\n",
		"a bad trailer":           chunked + "0\r\nno colon\r\n\r\n",
		"long trailers":           chunked + "0\r\n" + strings.Repeat("A: "+strings.Repeat("b", 100)+"\r\n", 30) + "\r\n",
		"a head without an end":   ok + strings.Repeat("A: b\r\n", 20<<10),
		"too many fields":         ok + strings.Repeat("A: b\r\n", maxFields+1) + "\r\n",
		"hints without an end":    strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", 4<<10),
	} {
		if h, body, err := read(strings.NewReader(answer), http.MethodPost); err == nil {
			t.Errorf("%s: taken as %+v with the body %q", name, h, body)
		}
	}
}

// FuzzAnswer: what is taken is what net/http takes it for, and how it comes in pieces
// does not matter.
func FuzzAnswer(f *testing.F) {
	for _, seed := range []string{
		ok + "Content-Length: 5\r\n\r\nhello", ok + "Transfer-Encoding: chunked\r\n\r\n3;a\r\nhel\r\n2\r\nlo\r\n0\r\nA: b\r\n\r\n",
		"HTTP/1.0 404 No\r\nA: b\r\nA: c\r\n\r\nrest", "HTTP/1.1 100 Continue\r\n\r\n" + ok + "Connection: close\r\n\r\nx", "HTTP/1.1 304 Not\r\nContent-Length: 3\r\n\r\n",
	} {
		f.Add([]byte(seed), uint8(3))
	}
	f.Fuzz(func(t *testing.T, data []byte, step uint8) {
		if len(data) > 16<<10 { // net/http bounds what stands beside chunks in another way
			return
		}
		h, body, err := read(bytes.NewReader(data), http.MethodPost)
		h2, body2, err2 := read(&pieces{data, int(step) + 1}, http.MethodPost)
		if !reflect.DeepEqual(h, h2) || !bytes.Equal(body, body2) || (err == nil) != (err2 == nil) {
			t.Fatalf("whole: %+v %q %v; in pieces: %+v %q %v", h, body, err, h2, body2, err2)
		}
		if err != nil || h.status == http.StatusSwitchingProtocols {
			return
		}
		src := bufio.NewReader(bytes.NewReader(data))
		var resp *http.Response
		for resp == nil || resp.StatusCode < 200 {
			if resp, err = http.ReadResponse(src, &http.Request{Method: http.MethodPost}); err != nil {
				t.Fatalf("net/http: %v", err)
			}
		}
		theirs, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != h.status || !bytes.Equal(theirs, body) {
			t.Fatalf("ours %+v %q; net/http's %d %q %v", h, body, resp.StatusCode, theirs, err)
		}
		for _, name := range []string{"Transfer-Encoding", "Trailer", "Connection"} { // net/http takes some of them out
			h.header.Del(name)
			resp.Header.Del(name)
		}
		if !reflect.DeepEqual(h.header, resp.Header) {
			t.Fatalf("ours %q; net/http's %q", h.header, resp.Header)
		}
	})
}

// pieces hands out a text in pieces of one size.
type pieces struct {
	rest []byte
	size int
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.rest[:min(p.size, len(p.rest))])
	p.rest = p.rest[n:]
	return n, nil
}

func BenchmarkRead(b *testing.B) {
	answer := []byte(ok + "Date: Mon, 01 Jan 2026 00:00:00 GMT\r\nServer: uvicorn\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n" +
		strings.Repeat("aa\r\n"+strings.Repeat("x", 0xaa)+"\r\n", 16) + "0\r\n\r\n")
	src := bytes.NewReader(answer)
	d := reader{src: src}
	b.SetBytes(int64(len(answer)))
	b.ReportAllocs()
	for b.Loop() {
		src.Reset(answer)
		if _, err := d.head(http.MethodPost); err != nil {
			b.Fatal(err)
		}
		for err := error(nil); !errors.Is(err, io.EOF); _, err = d.decode() {
			if err == nil && d.empty() {
				err = d.fill()
			}
			if err != nil {
				b.Fatal(err)
			}
		}
		d.free()
	}
}
