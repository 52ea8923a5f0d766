package gateway_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/internal/config"
)

// explain posts a request to /explain.
func (g *gate) explain(query, body string) answer {
	g.t.Helper()
	resp, err := g.client.Post(g.AdminAddr()+"/explain"+query, "application/json", strings.NewReader(body))
	if err != nil {
		g.t.Fatal(err)
	}
	return whole(resp)
}

func TestExplainTellsWhereARequestGoes(t *testing.T) {
	list, urls := mocks(t, 3, nil)
	g := start(t, func(c *config.Config) { c.Replica.WarmUp = false }, urls...)
	received := func() (n int) {
		for _, m := range list {
			n += len(m.Requests())
		}
		return n
	}
	secret := "swordfish " + words(1, 8000)
	for i, f := range forms() {
		if f.name == "completions of a batch" {
			continue
		}
		t.Run(f.name, func(t *testing.T) {
			body := f.body(fmt.Sprint(i) + secret)
			g.must(f.path, body)
			g.idle()
			before, inFlight := received(), g.metric("warmpath_decisions_total")
			a := g.explain("?path="+f.path, body)
			if a.status != http.StatusOK {
				t.Fatalf("%d %s", a.status, a.body)
			}
			if received() != before || g.metric("warmpath_decisions_total") != inFlight {
				t.Error("it was sent")
			}
			d := parse(t, a.body)
			candidates, _ := d["candidates"].([]any)
			if len(candidates) != 3 || d.text("state") != "planned" || d.number("predicted_tokens") < 1500 {
				t.Errorf("it says %s", a.body)
			}
			if strings.Contains(a.body, "swordfish") {
				t.Error("it shows the prompt")
			}
			if got := g.must(f.path, body).replica(); got != d.text("replica") {
				t.Errorf("it went to %s, explained was %s", got, d.text("replica"))
			}
			g.idle()
		})
	}
	if n := g.metric("warmpath_replica_inflight"); n != 0 {
		t.Errorf("%v are reserved", n)
	}

	refused := func(query, body, says string) {
		t.Helper()
		if a := g.explain(query, body); a.status != http.StatusUnprocessableEntity || !strings.Contains(parse(t, a.body).text("error"), says) {
			t.Errorf("%s%s: %d %s", query, body, a.status, a.body)
		}
	}
	refused("", `{"model":"made-up","messages":[]}`, "made-up")
	refused("", `{"model":`, "")
	refused("?path=/tokenize", `{"model":"mock"}`, "path")
	refused("?policy=best", forms()[0].body("x"), "best")

	page, err := g.client.PostForm(g.AdminAddr()+"/explain", url.Values{"request": {forms()[0].body("0" + secret)}})
	if err != nil {
		t.Fatal(err)
	}
	if a := whole(page); a.status != http.StatusOK || !strings.Contains(a.body, "It would go to "+list[0].id[:4]) || strings.Contains(a.body, "swordfish") {
		t.Errorf("the page is %d %s", a.status, a.body)
	}
}

func TestDecisionsPage(t *testing.T) {
	_, urls := mocks(t, 3, nil)
	g := start(t, func(c *config.Config) { c.Replica.WarmUp = false; c.Router.Shadow = "round-robin" }, urls...)
	for i := range 10 {
		g.must(chatPath, forms()[0].body("swordfish "+words(1, 4000)), "X-Request-Id", fmt.Sprint("mine-", i))
	}
	g.must(chatPath, forms()[0].body("swordfish "+words(1, 4000)), "X-Request-Id", strings.Repeat("long", 1000))
	g.idle()
	if a := g.admin("/decisions?format=json"); strings.Contains(a.body, "longlong") {
		t.Error("an id of any length is kept")
	}
	var got struct {
		Decisions []map[string]any
	}
	a := g.admin("/decisions?format=json&n=11")
	if err := json.Unmarshal([]byte(a.body), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Decisions) != 11 || strings.Contains(a.body, "swordfish") {
		t.Fatalf("%s", a.body)
	}
	last := object(got.Decisions[1])
	for name, want := range map[string]any{"request_id": "mine-9", "state": "completed", "policy": "prefix", "candidates_in_all": 3.0} {
		if last[name] != want {
			t.Errorf("%s is %v, want %v", name, last[name], want)
		}
	}
	if n := last.number("cached_tokens"); n < 700 || last.text("shadow_replica") == "" {
		t.Errorf("the last one is %v", last)
	}
	one := parse(t, g.admin("/decisions?format=json&request_id=mine-3").body)
	if list, _ := one["decisions"].([]any); len(list) != 1 {
		t.Errorf("by its id there is %v", one)
	}
	for _, path := range []string{"/", "/decisions", "/explain"} {
		a := g.admin(path)
		if a.status != http.StatusOK || !strings.HasPrefix(a.header.Get("Content-Type"), "text/html") || strings.Contains(a.body, "swordfish") || !strings.HasSuffix(strings.TrimSpace(a.body), "</html>") {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}
	o := parse(t, g.admin("/?format=json").body)
	if list, _ := o["replicas"].([]any); len(list) != 3 {
		t.Errorf("the overview is %v", o)
	}
	if n := g.metric("warmpath_shadow_total"); n != 11 || g.metric("warmpath_shadow_saved_seconds_count") != 11 {
		t.Errorf("%v shadow choices", n)
	}
	if own, real := g.metric("warmpath_shadow_predicted_tokens_total", "by", "shadow"), g.metric("warmpath_shadow_predicted_tokens_total", "by", "policy"); own >= real {
		t.Errorf("turns would have found %v tokens, prefixes found %v", own, real)
	}
}
