package gateway_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

func answers(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, `{"choices":[]}`)
}

func TestRequestIDsAreTakenOrMade(t *testing.T) {
	w := newWorker(t, answers)
	g := start(t, nil, w.url)
	f := func(id string, taken bool) {
		t.Helper()
		a := g.must(chatPath, wholeReq, "X-Request-Id", id)
		got, all := a.header.Get("X-Request-Id"), w.requests()
		if (got == id) != taken || got == "" {
			t.Errorf("%.200q: answered with %q; to be taken: %v", id, got, taken)
		}
		if sent := all[len(all)-1].header["X-Request-Id"]; len(sent) != 1 || sent[0] != got {
			t.Errorf("%.200q: the replica got %q, the client %q", id, sent, got)
		}
		if !taken && id != "" && strings.Contains(g.log.String(), fmt.Sprintf("%q", id)) {
			t.Errorf("%.200q is in the log", id)
		}
		g.logged("request_id=", got)
	}
	f("0af7651916cd43dd8448eb211c80319c", true)
	f("7b4c2a1e-5f57-4b6c-9a60-1f3e6f0f6a11", true)
	f("1-5759e988-bd862e3fe1be46a994272793", true)
	f("req_ABC.9:z=+", true)
	f(strings.Repeat("x", 128), true)
	f(strings.Repeat("x", 129), false)
	f(strings.Repeat("x", 20000), false)
	f("", false)
	f("two words", false)
	f("a\tb", false)
	f(`quo"te`, false)
	f(`level=INFO msg=forged`, false)
	f("../../x", false)
	f("<script>", false)
	f("naïve", false)
	f("%0a", false)
}

// TestASecondRequestIDIsDropped: two ids would let the log and the engine's differ.
func TestASecondRequestIDIsDropped(t *testing.T) {
	w := newWorker(t, answers)
	g := start(t, nil, w.url)
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, g.Addr()+chatPath, strings.NewReader(wholeReq))
	if err != nil {
		t.Fatal(err)
	}
	req.Header["X-Request-Id"] = []string{"one", "two"}
	resp, err := g.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if got := whole(resp).header["X-Request-Id"]; len(got) != 1 || got[0] != "one" {
		t.Errorf("answered with %q", got)
	}
	if got := w.requests()[0].header["X-Request-Id"]; len(got) != 1 || got[0] != "one" {
		t.Errorf("the replica got %q", got)
	}
}
