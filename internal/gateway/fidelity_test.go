package gateway_test

import (
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/warmpath/warmpath/internal/config"
)

// random makes the odd but valid.
type random struct{ *rand.Rand }

func (r random) pick(from ...string) string { return from[r.IntN(len(from))] }

func (r random) space() string {
	return r.pick("", "", "", " ", "\n", "\t", "  ", "\r\n ")
}

// value returns any JSON value, written as no encoder would.
func (r random) value(depth int) string {
	kinds := 6
	if depth <= 0 {
		kinds = 4
	}
	switch r.IntN(kinds) {
	case 0:
		return r.pick("9007199254740993", "-0", "1E400", "0.1e-7", "123456789012345678901234567890", "3.0", "1.50")
	case 1:
		return r.pick("true", "false", "null")
	case 2, 3:
		return r.str()
	case 4:
		var items []string
		for range r.IntN(4) {
			items = append(items, r.space()+r.value(depth-1)+r.space())
		}
		return "[" + strings.Join(items, ",") + "]"
	}
	var members []string
	for range r.IntN(4) {
		members = append(members, r.member(r.str(), r.value(depth-1)))
	}
	return "{" + strings.Join(members, ",") + "}"
}

func (r random) str() string {
	var b strings.Builder
	for range r.IntN(6) {
		b.WriteString(r.pick("a", "ключ", "\\u00e9", "\\ud83d\\ude00", "\\/", "/", "\\\"", "\\n", "<&>", "\u2028", "😀", "\\u0000", " "))
	}
	return `"` + b.String() + `"`
}

func (r random) member(name, value string) string {
	return r.space() + name + r.space() + ":" + r.space() + value + r.space()
}

// body returns a request body for an endpoint, with members that it does not know
// and some of its own twice.
func (r random) body(path string) string {
	role := func() string {
		return `{` + r.member(`"role"`, `"user"`) + `,` + r.member(r.pick(`"content"`, `"c\u006fntent"`), r.str()) + `,` + r.member(r.str(), r.value(2)) + `}`
	}
	prompt := func() string {
		switch path {
		case chatPath, "/v1/messages":
			return r.member(`"messages"`, "["+role()+","+role()+"]")
		case "/v1/completions":
			return r.member(`"prompt"`, r.pick(r.str(), "[1,2,3]", "[[1,2],[3]]", `["a","b"]`))
		case "/v1/responses":
			return r.member(`"input"`, r.pick(r.str(), "["+role()+"]"))
		}
		return r.member(`"input"`, r.value(2))
	}
	members := []string{r.member(r.pick(`"model"`, `"\u006dodel"`), `"m1"`), prompt()}
	if r.IntN(3) == 0 {
		members = append(members, prompt())
	}
	for range r.IntN(6) {
		name := r.pick(r.str(), `"seed"`, `"temperature"`, `"tools"`, `"stream_options"`, `"user"`, `"metadata"`, `"stream"`)
		members = append(members, r.member(name, r.value(3)))
	}
	r.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	return r.space() + "{" + strings.Join(members, ",") + "}" + r.space()
}

func (r random) text(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.IntN(256))
	}
	return string(b)
}

// forwarded are the paths whose bodies go to a replica.
var forwarded = []string{
	chatPath, "/v1/completions", "/v1/responses", "/v1/messages",
	"/v1/embeddings", "/v1/rerank", "/rerank", "/v2/rerank", "/v1/score", "/score", "/pooling", "/classify", "/v2/embed",
	"/tokenize", "/detokenize", "/v1/messages/count_tokens", "/v1/responses/resp_1/cancel",
}

// TestNothingIsAltered sends odd but valid requests and has them answered with odd
// answers: on both sides what comes out is what went in.
func TestNothingIsAltered(t *testing.T) {
	type reply struct {
		status int
		kind   string
		pieces []string
		length bool
	}
	var mu sync.Mutex
	var next reply
	w := newWorker(t, func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		h := w.Header()
		h["Content-Type"] = []string{next.kind}
		h["X-Own"] = []string{"a", "b"}
		h["Server"] = []string{"uvicorn"}
		h["Date"] = []string{"Thu, 01 Jan 1970 00:00:00 GMT"}
		h["Connection"] = []string{"X-Private"}
		h["X-Private"] = []string{"1"}
		h["Keep-Alive"] = []string{"timeout=5"}
		if next.length {
			h["Content-Length"] = []string{fmt.Sprint(len(strings.Join(next.pieces, "")))}
		}
		w.WriteHeader(next.status)
		for _, p := range next.pieces {
			_, _ = io.WriteString(w, p)
			_ = http.NewResponseController(w).Flush()
		}
	})
	g := start(t, nil, w.url)
	seed := rand.Uint64()
	r := random{rand.New(rand.NewPCG(seed, 0))}
	t.Logf("seed %d", seed)
	for i := range 400 {
		path := forwarded[i%len(forwarded)]
		if r.IntN(3) == 0 {
			path += "?" + r.pick("a=1&b=%2F&a=2", "x=%F0%9F%98%80&&y", "key=a+b;c")
		}
		body := r.body(strings.SplitN(path, "?", 2)[0])

		mu.Lock()
		next = reply{
			status: []int{200, 200, 200, 400, 500}[r.IntN(5)],
			kind:   r.pick("application/json", "text/event-stream; charset=utf-8", "text/plain", "application/octet-stream"),
			length: r.IntN(2) == 0,
		}
		for range r.IntN(5) {
			next.pieces = append(next.pieces, r.pick(r.text(r.IntN(3000)), "data: {}\n\n", "\n\n", "data: [DONE]\n\n", "data:{\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\r\n\r\n"))
		}
		if strings.HasPrefix(next.kind, "text/event-stream") {
			next.pieces = append(next.pieces, "\n\ndata: [DONE]\n\n") // else the client is told that it broke off
		}
		want := next
		mu.Unlock()

		var reader io.Reader = strings.NewReader(body)
		if r.IntN(2) == 0 {
			reader = struct{ io.Reader }{reader} // of a length that the client does not know
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, g.Addr()+path, reader)
		if err != nil {
			t.Fatal(err)
		}
		sent := http.Header{
			"Content-Type": {r.pick("application/json", "application/json; charset=utf-8", "Application/JSON")}, "Authorization": {"Bearer " + r.pick("a", "b")},
			"X-Request-Id": {fmt.Sprint("id-", i)}, "X-Session-Id": {"s"}, "Accept": {"*/*"}, "X-Many": {"1", "2"}, "X-Empty": {""}, "Cookie": {"a=b"},
			"Openai-Organization": {"o"}, "X-Stainless-Lang": {"python"}, "Traceparent": {"00-1-2-03"}, "User-Agent": {"tester/1"}, "X-Forwarded-For": {"10.0.0.1"},
		}
		gone := http.Header{
			"Connection": {"X-Drop, Keep-Alive"}, "X-Drop": {"1"}, "Keep-Alive": {"timeout=9"}, "Proxy-Authorization": {"secret"}, "Te": {"trailers"},
			"Proxy-Connection": {"keep-alive"}, "X-Warmpath-Policy": {"random"},
		}
		req.Header = sent.Clone()
		maps.Copy(req.Header, gone)
		req.Header["Accept-Encoding"] = []string{"gzip, br"}
		resp, err := g.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		a := whole(resp)

		got := w.requests()[i]
		if got.body != body {
			t.Fatalf("%s: the worker got\n%q, not\n%q", path, got.body, body)
		}
		if got.method != http.MethodPost || got.uri != path {
			t.Fatalf("the worker got %s %s, not %s", got.method, got.uri, path)
		}
		if got.length != int64(len(body)) || got.chunked {
			t.Fatalf("length %d, chunked %v, for %d bytes", got.length, got.chunked, len(body))
		}
		for name, values := range sent {
			if !equal(got.header[name], values) {
				t.Fatalf("%s: %q became %q", name, values, got.header[name])
			}
		}
		for name := range got.header {
			switch name {
			case "Content-Length":
			case "Accept-Encoding":
				if v := got.header.Get(name); v != "identity" {
					t.Fatalf("the worker may send %q", v)
				}
			default:
				if _, ok := sent[name]; !ok {
					t.Fatalf("the worker got %s: %q", name, got.header[name])
				}
			}
		}

		if a.status != want.status || a.body != strings.Join(want.pieces, "") || a.err != nil {
			t.Fatalf("%s: the client got %d %q %v, not %d %q", path, a.status, a.body, a.err, want.status, want.pieces)
		}
		for name, values := range map[string][]string{"Content-Type": {want.kind}, "X-Own": {"a", "b"}, "Server": {"uvicorn"}, "Date": {"Thu, 01 Jan 1970 00:00:00 GMT"}, "X-Request-Id": {fmt.Sprint("id-", i)}, "X-Warmpath-Replica": {w.id}} {
			if !equal(a.header[name], values) {
				t.Fatalf("answer's %s: %q became %q", name, values, a.header[name])
			}
		}
		for _, name := range []string{"X-Private", "Keep-Alive", "Connection"} {
			if v := a.header[name]; v != nil {
				t.Fatalf("the client got %s: %q", name, v)
			}
		}
		// A stream's length is not passed on: an event may be added, if the replica breaks off.
		if stream := strings.HasPrefix(want.kind, "text/event-stream"); want.length && !stream && resp.ContentLength != int64(len(a.body)) {
			t.Fatalf("length %d for %d bytes", resp.ContentLength, len(a.body))
		}
	}
	g.idle()
}

func equal(a, b []string) bool {
	return len(a) == len(b) && strings.Join(a, "\x00") == strings.Join(b, "\x00")
}

func TestHeadersThatTheClientDidNotSendAreNotAdded(t *testing.T) {
	w := newWorker(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{}`) })
	g := start(t, nil, w.url)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, g.Addr()+chatPath, strings.NewReader(wholeReq))
	if err != nil {
		t.Fatal(err)
	}
	req.Header["User-Agent"] = nil
	resp, err := g.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	whole(resp)
	for name, values := range w.requests()[0].header {
		switch name {
		case "Content-Length", "Accept-Encoding", "X-Request-Id":
		default:
			t.Errorf("%s: %q", name, values)
		}
	}
}

func TestBaseURLKeepsItsPath(t *testing.T) {
	w := &worker{}
	mux := http.NewServeMux()
	mux.Handle("/under/here/", http.StripPrefix("/under/here", w.handler(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{}`) })))
	outer := newWorker(t, nil)
	outer.server.Config.Handler = mux
	g := start(t, nil, outer.url+"/under/here/")
	g.must(chatPath, wholeReq)
	if got := w.requests(); len(got) != 1 || got[0].uri != "/under/here"+chatPath {
		t.Errorf("got %+v", got)
	}
}

func TestFormsGoByTheirModel(t *testing.T) {
	form := "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n\x00\x01\xff\r\n--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm2\r\n--b--\r\n"
	one := newWorker(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `one`) }, "m1")
	two := newWorker(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `two`) }, "m2")
	g := start(t, nil, one.url, two.url)
	for range 5 {
		resp, err := g.do("/v1/audio/transcriptions", []byte(form), "Content-Type", "multipart/form-data; boundary=b")
		if err != nil {
			t.Fatal(err)
		}
		if a := whole(resp); a.body != "two" {
			t.Fatalf("got %d %s", a.status, a.body)
		}
	}
	if got := two.requests()[0]; got.body != form || got.header.Get("Content-Type") != "multipart/form-data; boundary=b" {
		t.Errorf("the form became %q", got.body)
	}
	// A form is no body for a chat; whoever sends one learns so from the gateway or
	// from the engine, and nothing breaks.
	resp, err := g.do(chatPath, []byte(form), "Content-Type", "multipart/form-data; boundary=b")
	if err != nil {
		t.Fatal(err)
	}
	if a := whole(resp); a.status >= 500 {
		t.Errorf("got %d %s", a.status, a.body)
	}
}

func TestBigBodiesPass(t *testing.T) {
	w := newWorker(t, nil)
	w.answer(func(rw http.ResponseWriter, r *http.Request) { // sums up without keeping
		sum := sha256.New()
		n, err := io.Copy(sum, r.Body)
		_, _ = fmt.Fprintf(rw, "%x %v %v", sum.Sum(nil), n == r.ContentLength, err)
	})
	const limit = 30 << 20
	g := start(t, func(c *config.Config) { c.Proxy.MaxBodyBytes = limit }, w.url)
	for _, size := range []int{1 << 20, limit} {
		body := bigBody(size)
		want := fmt.Sprintf("%x true <nil>", sha256.Sum256(body))
		many(2, 2, func(i int) {
			resp, err := g.do([]string{chatPath, "/v1/embeddings"}[i%2], body)
			if err != nil {
				t.Errorf("%d bytes: %v", size, err)
				return
			}
			if a := whole(resp); a.status != 200 || a.body != want {
				t.Errorf("%d bytes: %d %s", size, a.status, a.body)
			}
		})
	}
	refusal(t, g.ask(chatPath, string(bigBody(limit+1))), 413, "request_too_large")
	g.idle()
}

// bigBody returns a chat with an image, of a size in bytes.
func bigBody(size int) []byte {
	const head, tail = `{"model":"m1","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,`, `"}}]}]}`
	return []byte(head + strings.Repeat("A", size-len(head)-len(tail)) + tail)
}
