package proxy

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/replica"
	"github.com/warmpath/warmpath/internal/upstream"
)

// TestASlotsNextReplicaIsAnotherServer sends requests by the slot that a replica has
// left to another: each reaches its own server, and no connection of the one that left
// is kept.
func TestASlotsNextReplicaIsAnotherServer(t *testing.T) {
	serve := func(name string) *replica.Replica {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, name) }))
		t.Cleanup(s.Close)
		return replica.Virtual(strings.TrimPrefix(s.URL, "http://"), 3)
	}
	p := &Proxy{}
	p.upstream.Dial, p.upstream.IdleTimeout, p.upstream.MaxIdle = (&net.Dialer{}).DialContext, time.Minute, 4
	t.Cleanup(p.hosts.close)
	ask := func(r *replica.Replica, want string) {
		t.Helper()
		resp, err := p.host(r).Do(t.Context(), &upstream.Request{Method: http.MethodGet, Target: "/", Host: r.ID})
		if err != nil {
			t.Fatal(err)
		}
		var body []byte
		for err == nil {
			var piece []byte
			piece, err = resp.Next()
			body = append(body, piece...)
		}
		resp.Close()
		if string(body) != want {
			t.Errorf("%s answers as %q", r.ID, body)
		}
	}
	old, young := serve("old"), serve("young")
	ask(old, "old")
	old.Retire()
	ask(young, "young")
	ask(old, "old") // a request that was sent on before everybody knew
	ask(young, "young")
	if n := p.upstream.Open(); n != 1 {
		t.Errorf("%d connections are open, of which one can be used", n)
	}
}
