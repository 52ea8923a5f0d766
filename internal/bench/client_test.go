package bench

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/warmpath/warmpath/internal/openai"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	role  = `data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}` + "\n\n"
	hello = `data: {"choices":[{"index":0,"delta":{"content":"Hello there"},"finish_reason":null}]}` + "\n\n"
	end   = `data: {"choices":[{"index":0,"delta":{"content":" you"},"finish_reason":"length"}]}` + "\n\n"
	usage = `data: {"choices":[],"usage":{"prompt_tokens":40,"completion_tokens":9,"prompt_tokens_details":{"cached_tokens":16}}}` + "\n\n"
	done  = "data: [DONE]\n\n"
)

// write sends pieces of a stream, with a wait before each that is named as a
// duration.
func write(w http.ResponseWriter, pieces ...string) {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	for _, p := range pieces {
		if d, err := time.ParseDuration(p); err == nil {
			time.Sleep(d)
			continue
		}
		_, _ = w.Write([]byte(p))
		_ = http.NewResponseController(w).Flush()
	}
}

func serve(t *testing.T, h http.HandlerFunc, cfg Config) *Client {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	cfg.Endpoint = srv.URL + cfg.Endpoint
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

var call = Call{Path: "/v1/chat/completions", Body: []byte(`{"stream":true}`)}

func TestReadsWhateverAStreamLooksLike(t *testing.T) {
	crlf := func(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") }
	tight := func(s string) string { return strings.ReplaceAll(s, "data: ", "data:") }
	counted := openai.Usage{Prompt: 40, Completion: 9, Cached: 16, CachedKnown: true}
	for name, c := range map[string]struct {
		pieces []string
		usage  openai.Usage
	}{
		"the common form":                {[]string{role, hello, end, usage, done}, counted},
		"CRLF":                           {[]string{crlf(role + hello + end + usage + done)}, counted},
		"no space behind data:":          {[]string{tight(role + hello + end + usage + done)}, counted},
		"comments and other fields":      {[]string{": keep-alive\n\n", role, ": ping\n\n", hello, "event: x\nid: 7\n\n", end, usage, done}, counted},
		"split anywhere":                 piecesOf(role+hello+end+usage+done, 7, counted),
		"usage on every chunk":           {[]string{role, strings.Replace(hello, `}]}`, `}],"usage":{"prompt_tokens":40,"completion_tokens":2}}`, 1), end, usage, done}, counted},
		"no blank line behind [DONE]":    {[]string{role, hello, end, usage, "data: [DONE]"}, counted},
		"no usage":                       {[]string{role, hello, end, done}, openai.Usage{}},
		"usage without cached tokens":    {[]string{role, hello, end, `data: {"choices":[],"usage":{"prompt_tokens":40,"completion_tokens":9}}` + "\n\n", done}, openai.Usage{Prompt: 40, Completion: 9}},
		"reasoning instead of content":   {[]string{role, `data: {"choices":[{"delta":{"reasoning_content":"Hm"}}]}` + "\n\n", usage, done}, counted},
		"text completions":               {[]string{`data: {"choices":[{"text":"Hello"}]}` + "\n\n", usage, done}, counted},
		"whole, from who did not stream": {[]string{`{"choices":[{"message":{"content":"Hello"}}],"usage":{"prompt_tokens":40,"completion_tokens":9,"prompt_tokens_details":{"cached_tokens":16}}}`}, counted},
	} {
		client := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Warmpath-Replica", "10.0.0.1:8000")
			if strings.HasPrefix(c.pieces[0], "{") {
				w.Header().Set("Content-Type", "application/json")
				_, _ = w.Write([]byte(c.pieces[0]))
				return
			}
			write(w, c.pieces...)
		}, Config{})
		a := client.Send(t.Context(), call)
		if a.Failure != None || a.Err != nil || a.Usage != c.usage || a.First == 0 || a.Last < a.First || a.Took < a.Last || a.Replica != "10.0.0.1:8000" {
			t.Errorf("%s: %+v", name, a)
		}
	}
}

// piecesOf cuts a stream into pieces of n bytes.
func piecesOf(stream string, n int, usage openai.Usage) (c struct {
	pieces []string
	usage  openai.Usage
},
) {
	for ; len(stream) > n; stream = stream[n:] {
		c.pieces = append(c.pieces, stream[:n])
	}
	c.pieces, c.usage = append(c.pieces, stream), usage
	return c
}

// TestTimesAreThoseOfGeneratedTokens has everything but tokens come at other
// times: headers and the role early, usage and the end late.
func TestTimesAreThoseOfGeneratedTokens(t *testing.T) {
	client := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		write(w, role, "60ms", hello, "80ms", end, "60ms", usage, "20ms", done)
	}, Config{})
	a := client.Send(t.Context(), call)
	const slack = 50 * time.Millisecond // of a busy machine
	tpot, ok := a.TPOT()
	if a.First < 60*time.Millisecond || a.First > 60*time.Millisecond+slack ||
		a.Last < 140*time.Millisecond || a.Last > 140*time.Millisecond+slack || a.Took < 220*time.Millisecond {
		t.Errorf("first token %v, last %v, end %v; want 60, 140 and 220 ms", a.First, a.Last, a.Took)
	}
	if want := (a.Last - a.First) / 8; !ok || tpot != want { // nine tokens by usage, in two chunks
		t.Errorf("TPOT %v, want %v", tpot, want)
	}
	a.Usage.Completion = 1
	if _, ok := a.TPOT(); ok {
		t.Error("one token has a time between tokens")
	}
}

// TestKeepingWhatWasGeneratedChangesNoTime has chunks that carry no token come
// after the last one that does.
func TestKeepingWhatWasGeneratedChangesNoTime(t *testing.T) {
	for name, silent := range map[string]string{
		"a reason to finish":   `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n",
		"an empty delta":       `data: {"choices":[{"index":0,"delta":{"content":""},"finish_reason":null}]}` + "\n\n",
		"an empty text":        `data: {"choices":[{"index":0,"text":"","finish_reason":"stop"}]}` + "\n\n",
		"no choice":            `data: {"choices":[]}` + "\n\n",
		"another role's start": role,
	} {
		const pause = 60 * time.Millisecond
		client := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			write(w, hello+hello, pause.String(), silent, usage, done)
		}, Config{})
		for _, keep := range []bool{false, true} {
			call := call
			call.Keep = keep
			a := client.Send(t.Context(), call)
			if a.Failure != None || a.First == 0 || a.Last-a.First >= pause || a.Took < pause {
				t.Errorf("%s, keep %v: %q, tokens from %v to %v of %v", name, keep, a.Failure, a.First, a.Last, a.Took)
			}
		}
	}
}

func TestFailuresAreToldApart(t *testing.T) {
	cut := func(w http.ResponseWriter) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		_ = conn.(*net.TCPConn).SetLinger(0)
		_ = conn.Close()
	}
	for name, c := range map[string]struct {
		serve func(w http.ResponseWriter, r *http.Request)
		kind  Failure
		says  string
	}{
		"a status": {func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "no replica", http.StatusServiceUnavailable)
		}, Status, "status 503: no replica"},
		"an error inside": {func(w http.ResponseWriter, _ *http.Request) {
			write(w, role, hello, `data: {"error":{"message":"engine died"}}`+"\n\n", done)
		}, ErrorEvent, "engine died"},
		"an abort": {func(w http.ResponseWriter, _ *http.Request) {
			write(w, role, strings.Replace(end, "length", "abort", 1), done)
		}, Aborted, "abort"},
		"cut before headers":     {func(w http.ResponseWriter, _ *http.Request) { cut(w) }, Cut, ""},
		"cut inside":             {func(w http.ResponseWriter, _ *http.Request) { write(w, role, hello); cut(w) }, Cut, "after"},
		"a clean end, too early": {func(w http.ResponseWriter, _ *http.Request) { write(w, role, hello) }, Cut, "[DONE]"},
		"no token":               {func(w http.ResponseWriter, _ *http.Request) { write(w, role, usage, done) }, Empty, "no event"},
		"a whole error under 200": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(`{"error":{"message":"engine died"}}`))
		}, ErrorEvent, "engine died"},
		"no end": {func(w http.ResponseWriter, r *http.Request) {
			write(w, role, hello)
			<-r.Context().Done()
		}, TimedOut, "500ms"},
	} {
		client := serve(t, c.serve, Config{Timeout: 500 * time.Millisecond})
		a := client.Send(t.Context(), call)
		if a.Failure != c.kind || a.Err == nil || !strings.Contains(a.Err.Error(), c.says) {
			t.Errorf("%s: %q, %v; want %q and %q", name, a.Failure, a.Err, c.kind, c.says)
		}
	}

	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := ln.Addr().String()
	_ = ln.Close()
	client, err := New(Config{Endpoint: "http://" + address})
	if err != nil {
		t.Fatal(err)
	}
	if a := client.Send(t.Context(), call); a.Failure != NotConnected {
		t.Errorf("nobody listens: %q, %v", a.Failure, a.Err)
	}

	ctx, stop := context.WithCancel(t.Context())
	client = serve(t, func(w http.ResponseWriter, r *http.Request) {
		write(w, role)
		stop()
		<-r.Context().Done()
	}, Config{})
	if a := client.Send(ctx, call); a.Failure != Stopped {
		t.Errorf("stopped: %q, %v", a.Failure, a.Err)
	}
}

func TestKeepsWhatWasGenerated(t *testing.T) {
	client := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		write(w, `data: {"choices":[{"text":" about","token_ids":[5],"prompt_token_ids":[1,2]}]}`+"\n\n", `data: {"choices":[{"text":" all \"it\"","token_ids":[6,7]}]}`+"\n\n", usage, done)
	}, Config{})
	kept := client.Send(t.Context(), Call{Path: "/v1/completions", Keep: true})
	if kept.Text != ` about all "it"` || len(kept.IDs) != 3 || kept.IDs[2] != 7 {
		t.Errorf("text %q, ids %v", kept.Text, kept.IDs)
	}
	if other := client.Send(t.Context(), Call{Path: "/v1/completions"}); other.Text != "" || other.IDs != nil {
		t.Errorf("kept without being asked: %q, %v", other.Text, other.IDs)
	}
}

func TestSendsWhatItIsToldTo(t *testing.T) {
	var got *http.Request
	client := serve(t, func(w http.ResponseWriter, r *http.Request) {
		got = r.Clone(context.Background())
		write(w, hello, done)
	}, Config{Endpoint: "/v1/", Token: "secret", Header: http.Header{"X-Warmpath-Policy": {"prefix"}}})
	if a := client.Send(t.Context(), call); a.Failure != None {
		t.Fatal(a.Err)
	}
	if got.URL.Path != "/v1/chat/completions" || got.Header.Get("Authorization") != "Bearer secret" ||
		got.Header.Get("X-Warmpath-Policy") != "prefix" || got.Header.Get("Content-Type") != "application/json" {
		t.Errorf("%s %v", got.URL, got.Header)
	}
	for _, bad := range []string{"", "localhost:8080", "ftp://x", "http://"} {
		if _, err := New(Config{Endpoint: bad}); err == nil || !strings.Contains(err.Error(), "endpoint") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
