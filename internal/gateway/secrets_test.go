package gateway_test

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/internal/config"
)

// marked returns text that must never show; each place has its own.
func marked(place string) string { return "SECRET-of-" + place + "-0123456789" }

// TestNothingSecretShows puts marked text into every place of a request and of
// an answer, in good, broken and refused exchanges, and then reads all that the
// gateway shows: its log at every level, its metrics and its admin pages.
func TestNothingSecretShows(t *testing.T) {
	hijacked := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				panic(http.ErrAbortHandler)
			}
			_, _ = io.WriteString(conn, text)
			_ = conn.Close()
		}
	}
	handlers := map[string]http.HandlerFunc{
		"whole": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Set-Cookie", marked("set-cookie"))
			_, _ = io.WriteString(w, `{"choices":[{"message":{"content":"`+marked("answer")+`"},"finish_reason":"stop"}]}`)
		},
		"stream": func(w http.ResponseWriter, r *http.Request) {
			newStream(t, w, r).send(roleEvent, tok(marked("token")), finEvent, doneEvent)
		},
		"error event": func(w http.ResponseWriter, r *http.Request) {
			newStream(t, w, r).send(tok("a"), `data: {"error":{"message":"`+marked("error-event")+`","code":500}}`+"\n\n", doneEvent)
		},
		"unfinished": func(w http.ResponseWriter, r *http.Request) { newStream(t, w, r).send(tok(marked("unfinished"))) },
		"cut off": func(w http.ResponseWriter, r *http.Request) {
			newStream(t, w, r).send(tok(marked("cut-off")), `data: {"choices":[{"delta":{"content":"`+marked("cut-event"))
			reset(w)
		},
		"400": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"error":{"message":"cannot read `+marked("quoted-prompt")+`"}}`)
		},
		"500": func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, marked("500"), http.StatusInternalServerError)
		},
		"503": func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, marked("503"), http.StatusServiceUnavailable)
		},
		"no status line":  hijacked(marked("status-line") + "\r\n\r\n"),
		"bad status":      hijacked("HTTP/1.1 " + marked("bad-status") + "\r\n\r\n"),
		"bad header":      hijacked("HTTP/1.1 200 OK\r\n" + marked("bad-header") + "\r\n\r\n"),
		"bad header name": hijacked("HTTP/1.1 200 OK\r\n" + marked("name") + " x: y\r\n\r\n"),
		"bad length":      hijacked("HTTP/1.1 200 OK\r\nContent-Length: " + marked("length") + "\r\n\r\n"),
		"bad encoding":    hijacked("HTTP/1.1 200 OK\r\nTransfer-Encoding: " + marked("encoding") + "\r\n\r\n"),
		"bad chunk":       hijacked("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n" + marked("chunk") + "\r\n"),
		"bad trailer":     hijacked("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n0\r\n" + marked("trailer") + "\r\n\r\n"),
		"too much":        hijacked("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n1" + marked("too-much") + "\r\n\r\n"),
		"empty":           hijacked(""),
	}
	var next http.HandlerFunc
	w := newWorker(t, func(w http.ResponseWriter, r *http.Request) { next(w, r) })
	salts := regexp.MustCompile(`"cache_salt":"([^"]+)"`)
	var g *gate
	gates := map[string]*gate{} // one for each kind of exchange: replicas that fail are left alone for a while
	fresh := func(name string) {
		g = start(t, func(c *config.Config) {
			c.AdminToken, c.Replica.Key, c.Auth.SaltSecret = marked("admin-token"), marked("replica-key"), marked("salt-secret")
			c.Auth.KeysFile = keysFile(t, [3]string{"team-a", marked("api-key"), ", cache_salt: auto"}, [3]string{"team-b", keyB, ", cache_salt: " + marked("salt") + ", max_requests: 1"})
		}, w.url)
		gates[name] = g
	}
	header := []string{
		"Authorization", "Bearer " + marked("api-key"), "X-Api-Key", marked("x-api-key"), "Cookie", marked("cookie"), "X-Session-Id", marked("session-header"),
		"Proxy-Authorization", marked("proxy-authorization"), "X-Other", marked("header"), "X-Request-Id", "bad id " + marked("request-id"),
	}
	common := `"user":` + quote(marked("user")) + `,"session_id":` + quote(marked("session")) + `,"previous_response_id":` + quote(marked("previous")) + `,"metadata":{"x":` + quote(marked("metadata")) + `}`
	bodies := map[string]string{
		chatPath:          `{"model":"m1",%s` + common + `,"tools":[{"function":{"name":` + quote(marked("tool")) + `}}],"messages":[{"role":"system","content":` + quote(marked("system")) + `},{"role":"user","content":` + quote(marked("prompt")) + `}]}`,
		"/v1/completions": `{"model":"m1",%s` + common + `,"prompt":` + quote(marked("completion-prompt")) + `}`,
		"/v1/responses":   `{"model":"m1",%s` + common + `,"instructions":` + quote(marked("instructions")) + `,"input":` + quote(marked("input")) + `}`,
		"/v1/messages":    `{"model":"m1",%s` + common + `,"max_tokens":5,"system":` + quote(marked("system")) + `,"messages":[{"role":"user","content":` + quote(marked("message")) + `}]}`,
		"/v1/embeddings":  `{"model":"m1",%s` + common + `,"input":` + quote(marked("embedded")) + `}`,
	}
	ask := func(path, body string, header ...string) {
		resp, err := g.do(path+"?key="+marked("query"), []byte(body), header...)
		if err == nil {
			whole(resp)
		}
	}
	for name, h := range handlers {
		next = h
		fresh(name)
		exchanges := 0
		for path, body := range bodies {
			for _, stream := range []string{"", `"stream":true,`} {
				before := len(w.requests())
				ask(path, fmt.Sprintf(body, stream), header...)
				if len(w.requests()) == before {
					t.Errorf("%s: %s did not reach the replica", name, path)
				}
				exchanges++
			}
		}
		eventually(t, "every exchange is logged", func() bool { return strings.Count(g.log.String(), "msg=request") >= exchanges })
	}
	next = handlers["whole"]
	fresh("refused")
	for path, body := range bodies { // what the gateway refuses itself
		body = fmt.Sprintf(body, "")
		ask(path, body, "Authorization", "Bearer "+marked("wrong-key"))
		ask(path, body)
		ask(path, body[:len(body)-1], header...)
		ask(path, body+marked("behind"), header...)
		ask(path, marked("not-json"), header...)
		ask(path, `["`+marked("no-object")+`"]`, header...)
		ask(path, strings.Replace(body, `"m1"`, `5`, 1), header...)
		ask("/nothing/"+marked("path"), body, header...)
	}

	shown := map[string]string{}
	for name, gate := range gates {
		shown["the log, "+name] = gate.log.String()
		for _, path := range []string{"/metrics", "/replicas", "/healthz", "/readyz", "/debug/pprof/", "/debug/pprof/cmdline", "/debug/pprof/goroutine?debug=2", "/debug/pprof/heap?debug=1", "/debug/pprof/allocs?debug=1", "/nothing"} {
			shown[path+", "+name] = gate.admin(path).body
		}
	}
	all := strings.Join(slices.Collect(maps.Values(shown)), "")
	var salted int
	for _, r := range w.requests() {
		if m := salts.FindStringSubmatch(r.body); m != nil {
			salted++
			if strings.Contains(all, m[1]) {
				t.Fatal("a salt shows")
			}
		}
	}
	if salted == 0 {
		t.Error("no request had a salt")
	}
	for where, text := range shown {
		for line := range strings.Lines(text) {
			if i := strings.Index(line, "SECRET-of-"); i >= 0 {
				t.Errorf("%s shows %.40s: %.300s", where, line[i:], line)
			}
		}
	}
}
