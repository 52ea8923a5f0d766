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
func (g *gate) explain(query, body string, header ...string) answer {
	g.t.Helper()
	r, err := http.NewRequestWithContext(g.t.Context(), http.MethodPost, g.AdminAddr()+"/explain"+query, strings.NewReader(body))
	if err != nil {
		g.t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := g.client.Do(r)
	if err != nil {
		g.t.Fatal(err)
	}
	return whole(resp)
}

// TestExplainKnowsKeysAndSalts explains what each of two keys has sent: the same
// prompt, which their salts make two.
func TestExplainKnowsKeysAndSalts(t *testing.T) {
	_, urls := mocks(t, 1, nil)
	g := start(t, func(c *config.Config) {
		c.Replica.WarmUp, c.AdminToken = false, "operator-0123456789"
		c.Auth.KeysFile = keysFile(t, [3]string{"team-a", keyA, ", cache_salt: pepper"}, [3]string{"team-b", keyB, ", cache_salt: thyme"}, [3]string{"plain", keyA + "2"})
	}, urls...)
	for _, form := range forms() {
		if form.name == "completions of a batch" {
			continue
		}
		t.Run(form.name, func(t *testing.T) {
			body := form.body(form.name + words(1, 8000))
			salted := strings.TrimSuffix(strings.TrimSpace(body), "}") + `,"cache_salt":"own"}`
			path := "?path=" + form.path
			f := func(what, query, body string, cached bool, header ...string) {
				t.Helper()
				a := g.explain(query, body, header...)
				if a.status != http.StatusOK {
					t.Fatalf("%s: %d %s", what, a.status, a.body)
				}
				if n := parse(t, a.body).number("predicted_tokens"); (n > 1000) != cached {
					t.Errorf("%s: %v tokens are predicted", what, n)
				}
			}
			g.must(form.path, body, "Authorization", "Bearer "+keyA)
			g.idle()
			f("the same key", path, body, true, "Authorization", "Bearer "+keyA)
			f("the same key in another header", path, body, true, "X-Api-Key", keyA)
			f("beside the operator's token", path, body, true, "Authorization", "Bearer operator-0123456789", "X-Api-Key", keyA)
			f("the same key by its name", path+"&key=team-a", body, true)
			f("another key", path, body, false, "Authorization", "Bearer "+keyB)
			f("one without a salt", path+"&key=plain", body, false)
			f("no key", path, body, false)
			f("a salt of the client's own", path, salted, false, "Authorization", "Bearer "+keyA)
			g.must(form.path, salted, "Authorization", "Bearer "+keyB)
			g.idle()
			f("the same one", path, salted, true, "Authorization", "Bearer "+keyA) // whoever sent it
		})
	}
	body := forms()[0].body("x")
	for query, header := range map[string]string{"?key=team-c": "", "?": "Bearer " + keyA + "x"} {
		if a := g.explain(query, body, "Authorization", header); a.status != http.StatusUnprocessableEntity || !strings.Contains(a.body, "key") {
			t.Errorf("%s %s: %d %s", query, header, a.status, a.body)
		}
	}
	if n := g.metric("warmpath_key_inflight"); n != 0 {
		t.Errorf("%v requests are counted on the keys", n)
	}
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
