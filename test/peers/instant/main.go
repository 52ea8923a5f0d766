// Command instant is an OpenAI-compatible server that answers at once, to measure
// what a proxy in front of it costs. With -proxy it is a bare ReverseProxy over
// other such servers instead: the yardstick for a proxy in Go.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
)

const (
	event  = `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"word"},"logprobs":null,"finish_reason":null}]}` + "\n\n"
	whole  = `{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"a few words of an answer"},"finish_reason":"stop"}],"usage":{"prompt_tokens":37,"total_tokens":45,"completion_tokens":8}}`
	models = `{"object":"list","data":[{"id":"m","object":"model","created":1,"owned_by":"vllm","root":"m","parent":null,"max_model_len":131072}]}`
)

func main() {
	listen := flag.String("listen", "127.0.0.1:8201", "`address`")
	events := flag.Int("events", 16, "events in a streamed answer")
	proxy := flag.String("proxy", "", "`URLs` to be a bare ReverseProxy over, separated by commas")
	flag.Parse()
	handler := answers(*events)
	if *proxy != "" {
		handler = reverseProxy(strings.Split(*proxy, ","))
	}
	fail(http.ListenAndServe(*listen, handler))
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "instant:", err)
	os.Exit(1)
}

func answers(events int) http.Handler {
	mux := http.NewServeMux()
	for path, body := range map[string]string{"/health": "", "/metrics": "", "/get_server_info": "{}", "/server_info": "{}", "/get_model_info": "{}", "/model_info": "{}", "/v1/models": models} {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, body)
		})
	}
	mux.HandleFunc("/v1/traces", func(_ http.ResponseWriter, r *http.Request) { // a collector, too
		_, _ = io.Copy(io.Discard, r.Body)
	})
	mux.HandleFunc("/v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		if !bytes.Contains(body, []byte(`"stream":true`)) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, whole)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		for range events {
			_, _ = io.WriteString(w, event)
			w.(http.Flusher).Flush()
		}
		_, _ = io.WriteString(w, "data: [DONE]\n\n")
	})
	return mux
}

func reverseProxy(urls []string) http.Handler {
	transport := &http.Transport{MaxIdleConnsPerHost: 1024, DisableCompression: true}
	var proxies []*httputil.ReverseProxy
	for _, raw := range urls {
		target, err := url.Parse(raw)
		if err != nil {
			fail(err)
		}
		p := httputil.NewSingleHostReverseProxy(target)
		p.Transport, p.FlushInterval = transport, -1
		proxies = append(proxies, p)
	}
	var turn atomic.Uint64
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		proxies[turn.Add(1)%uint64(len(proxies))].ServeHTTP(w, r)
	})
}
