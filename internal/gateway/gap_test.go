package gateway_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/mockvllm"
)

// gaps returns the tokens of each gap reason so far.
func (g *gate) gaps() map[string]float64 {
	g.t.Helper()
	m := map[string]float64{}
	for _, reason := range []string{"new", "elsewhere", "restart", "evicted", "unknown", "mismatch"} {
		m[reason] = g.metric("warmpath_gap_tokens_total", "reason", reason)
	}
	return m
}

// addsUp holds that computed and cached tokens are all there are.
func (g *gate) addsUp() {
	g.t.Helper()
	m := g.gaps()
	all := m["new"] + m["elsewhere"] + m["restart"] + m["evicted"] + m["mismatch"] + g.metric("warmpath_cached_tokens_total")
	if prompt := g.metric("warmpath_prompt_tokens_total"); all != prompt {
		g.t.Errorf("%v of %v prompt tokens are accounted for: %v", all, prompt, m)
	}
}

// rose reports by how much reasons rose, and fails where others than the wanted
// one rose by more than a rest.
func (g *gate) rose(before map[string]float64, want string, least float64) {
	g.t.Helper()
	for reason, n := range g.gaps() {
		by := n - before[reason]
		switch {
		case reason == want && by < least:
			g.t.Errorf("%s rose by %v tokens, want %v", reason, by, least)
		case reason != want && by > least/4:
			g.t.Errorf("%s rose by %v tokens, want nothing but %s", reason, by, want)
		}
	}
	g.addsUp()
}

func TestGapsHaveReasons(t *testing.T) {
	body := forms()[0].body
	quiet := func(c *config.Config) { c.Replica.WarmUp = false }

	t.Run("new", func(t *testing.T) {
		_, urls := mocks(t, 1, nil)
		g := start(t, quiet, urls...)
		before := g.gaps()
		g.must(chatPath, body(words(1, 8000)))
		g.idle()
		g.rose(before, "new", 1500)
		before = g.gaps()
		g.must(chatPath, body(words(1, 8000))) // all of it is cached
		g.idle()
		for reason, n := range g.gaps() {
			if n-before[reason] > 64 {
				t.Errorf("%s rose by %v though all was cached", reason, n-before[reason])
			}
		}
	})
	t.Run("elsewhere", func(t *testing.T) {
		_, urls := mocks(t, 2, nil)
		g := start(t, func(c *config.Config) { quiet(c); c.Router.Policy = "round-robin" }, urls...)
		g.must(chatPath, body(words(1, 8000)))
		g.idle()
		before := g.gaps()
		g.must(chatPath, body(words(1, 8000)))
		g.idle()
		g.rose(before, "elsewhere", 1500)
	})
	t.Run("evicted by traffic beside the gateway", func(t *testing.T) {
		list, urls := mocks(t, 1, func(c *mockvllm.Config) { c.Blocks = 1024 })
		g := start(t, quiet, urls...)
		g.must(chatPath, body(words(1, 8000)))
		g.idle()
		for i := range 12 { // more than the cache holds
			beside(t, list[0].url, body(words(100+i, 8000)))
		}
		before := g.gaps()
		g.must(chatPath, body(words(1, 8000)))
		g.idle()
		g.rose(before, "evicted", 1500)
	})
	t.Run("an emptied cache is no mismatch", func(t *testing.T) {
		list, urls := mocks(t, 1, nil)
		g := start(t, func(c *config.Config) { quiet(c); c.Replica.ScrapeInterval = time.Hour }, urls...)
		for i := range 6 {
			g.must(chatPath, body(words(i, 4000)))
		}
		g.idle()
		beside(t, list[0].url+"/reset_prefix_cache", "")
		for i := range 6 {
			g.must(chatPath, body(words(i, 4000)))
		}
		g.idle()
		if m := g.gaps(); m["mismatch"] != 0 || m["evicted"] < 700 {
			t.Errorf("the gaps are %v", m)
		}
		g.addsUp()
	})
	t.Run("a restart", func(t *testing.T) {
		m := newMock(t, nil)
		g := start(t, func(c *config.Config) { quiet(c); c.Replica.ScrapeInterval = 50 * time.Millisecond }, m.url)
		g.must(chatPath, body(words(1, 8000)))
		g.idle()
		m.close()
		l, err := net.Listen("tcp", m.id)
		if err != nil {
			t.Fatal(err)
		}
		newMockOn(t, l, nil)
		eventually(t, "the restart is noticed", func() bool { return g.metric("warmpath_index_blocks") == 0 && g.metric("warmpath_replica_up") == 1 })
		before := g.gaps()
		g.must(chatPath, body(words(1, 8000)))
		g.idle()
		g.rose(before, "restart", 1500)
		before = g.gaps()
		g.must(chatPath, body(words(2, 8000))) // that one never held
		g.idle()
		g.rose(before, "new", 1500)
	})
	t.Run("unknown to this gateway", func(t *testing.T) {
		list, urls := mocks(t, 1, nil)
		g := start(t, quiet, urls...)
		beside(t, list[0].url, body(words(1, 8000)))
		before := g.gaps()
		g.must(chatPath, body(words(1, 8000)))
		g.idle()
		g.rose(before, "unknown", 1500)
	})
	t.Run("a changed chat template is a mismatch", func(t *testing.T) {
		m := newMock(t, nil)
		var changed atomic.Bool
		g := start(t, quiet, rendersTheTime(t, m.url, &changed))
		ask := func(n int) {
			for range n {
				g.must(chatPath, body(words(1, 8000)))
			}
			g.idle()
		}
		ask(3)
		if m := g.gaps(); m["evicted"]+m["mismatch"] != 0 {
			t.Fatalf("the gaps are %v before anything changed", m)
		}
		changed.Store(true)
		ask(3) // these may be evictions
		before := g.gaps()
		ask(4)
		g.rose(before, "mismatch", 4*1500)
		changed.Store(false)
		ask(3)
		before = g.gaps()
		ask(2)
		if n := g.gaps()["mismatch"] - before["mismatch"]; n != 0 {
			t.Errorf("it is a mismatch by %v tokens still", n)
		}
	})
}

// beside sends a request past the gateway.
func beside(t *testing.T, url, body string) {
	t.Helper()
	if body != "" {
		url += chatPath
	}
	resp, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if a := whole(resp); a.status != http.StatusOK {
		t.Fatalf("%d %s", a.status, a.body)
	}
	http.DefaultClient.CloseIdleConnections()
}

// rendersTheTime is a replica whose chat template, once it has changed, puts
// something else before each prompt.
func rendersTheTime(t *testing.T, target string, changed *atomic.Bool) string {
	t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	var n atomic.Int64
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	p := &httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(u)
		if r.In.URL.Path != chatPath || !changed.Load() {
			return
		}
		body, _ := io.ReadAll(r.In.Body)
		body = bytes.Replace(body, []byte("be brief"), fmt.Appendf(nil, "it is %d, be brief", n.Add(1)), 1)
		r.Out.Body, r.Out.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	}}
	s := httptest.NewServer(p)
	t.Cleanup(s.Close)
	return s.URL
}
