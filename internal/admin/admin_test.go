package admin_test

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/warmpath/warmpath/internal/admin"
	"github.com/warmpath/warmpath/internal/replica"
	"github.com/warmpath/warmpath/internal/router"
)

const outside = "192.0.2.7:1234"

// page asks a fresh admin handler for a path.
func page(t *testing.T, a *admin.Admin, from, path string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	return send(t, http.MethodGet, a, from, path, header...)
}

func send(t *testing.T, method string, a *admin.Admin, from, path string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	route, err := router.New(router.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	cfg := replica.DefaultConfig()
	cfg.URLs = []string{"http://127.0.0.1:1"}
	pool, err := replica.New(cfg, slog.New(slog.DiscardHandler), func(replica.Event) {})
	if err != nil {
		t.Fatal(err)
	}
	a.Pool, a.Router, a.Gatherer = pool, route, prometheus.NewRegistry()
	if a.Ready == nil {
		a.Ready = func() bool { return true }
	}
	r := httptest.NewRequest(method, path, nil)
	r.RemoteAddr, r.Host = from, "127.0.0.1:9090"
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
		if header[i] == "Host" {
			r.Host = header[i+1]
		}
	}
	w := httptest.NewRecorder()
	a.Handler().ServeHTTP(w, r)
	return w
}

func TestProfilesAreForThisHostOrTheToken(t *testing.T) {
	f := func(name, token, from string, want int, header ...string) {
		t.Run(name, func(t *testing.T) {
			for _, path := range []string{"/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/goroutine", "/debug/pprof/symbol", "/", "/decisions", "/explain", "/?format=json"} {
				if w := page(t, &admin.Admin{Token: token}, from, path, header...); w.Code != want {
					t.Errorf("%s: %d, want %d", path, w.Code, want)
				}
			}
		})
	}
	f("this host", "", "127.0.0.1:1234", 200)
	f("this host by IPv6", "", "[::1]:1234", 200)
	f("this host with a token set", "secret", "127.0.0.1:1234", 200)
	f("outside without a token set", "", outside, 403)
	f("outside, an empty token given", "", outside, 403, "Authorization", "Bearer ")
	f("outside without the token", "secret", outside, 403)
	f("outside with a wrong one", "secret", outside, 403, "Authorization", "Bearer Secret")
	f("outside with a part of it", "secret", outside, 403, "Authorization", "Bearer secre")
	f("outside without the scheme", "secret", outside, 403, "Authorization", "secret")
	f("outside with the token", "secret", outside, 200, "Authorization", "Bearer secret")
	f("outside that says it is this host", "", outside, 403, "X-Forwarded-For", "127.0.0.1", "X-Real-Ip", "127.0.0.1")
	f("no address", "", "", 403)
	for _, host := range []string{"localhost", "localhost:9090", "127.0.0.1", "[::1]:9090", "[::1]", "127.1.2.3:80"} {
		f("this host as "+host, "", "127.0.0.1:1234", 200, "Host", host)
	}
	for _, host := range []string{"rebound.example", "rebound.example:9090", "127.0.0.1.rebound.example", "localhost.rebound.example:9090", ""} {
		f("a page that was rebound to this host as "+host, "secret", "127.0.0.1:1234", 403, "Host", host)
		f("by the token as "+host, "secret", "127.0.0.1:1234", 200, "Host", host, "Authorization", "Bearer secret")
	}
}

func TestDrainingIsForThisHostOrTheToken(t *testing.T) {
	f := func(from string, want int, header ...string) {
		t.Helper()
		for _, path := range []string{"/replicas/127.0.0.1:1/drain", "/replicas/127.0.0.1:1/undrain"} {
			if w := send(t, http.MethodPost, &admin.Admin{Token: "secret"}, from, path, header...); w.Code != want {
				t.Errorf("%s from %s: %d, want %d", path, from, w.Code, want)
			}
		}
	}
	f("127.0.0.1:1234", 204)
	f(outside, 403)
	f(outside, 403, "Authorization", "Bearer wrong")
	f(outside, 204, "Authorization", "Bearer secret")
	f("127.0.0.1:1234", 403, "Origin", "http://elsewhere.example")
	f("127.0.0.1:1234", 403, "Sec-Fetch-Site", "cross-site")
	f("127.0.0.1:1234", 403, "Host", "rebound.example", "Origin", "http://rebound.example", "Sec-Fetch-Site", "same-origin")
}

func TestFlagsAreNotShown(t *testing.T) {
	if w := page(t, &admin.Admin{}, "127.0.0.1:1", "/debug/pprof/cmdline"); w.Code != http.StatusNotFound {
		t.Errorf("%d: %s", w.Code, w.Body)
	}
}

func TestOtherSitesCannotChangeAnything(t *testing.T) {
	r := httptest.NewRequest(http.MethodPost, "/debug/pprof/symbol", nil)
	r.RemoteAddr = "127.0.0.1:1"
	r.Header.Set("Origin", "http://elsewhere.example")
	r.Header.Set("Sec-Fetch-Site", "cross-site")
	w := httptest.NewRecorder()
	(&admin.Admin{Gatherer: prometheus.NewRegistry()}).Handler().ServeHTTP(w, r)
	if w.Code != http.StatusForbidden {
		t.Errorf("got %d", w.Code)
	}
}

func TestHealth(t *testing.T) {
	f := func(ready bool, path string, want int) {
		t.Helper()
		if w := page(t, &admin.Admin{Ready: func() bool { return ready }}, outside, path); w.Code != want {
			t.Errorf("%s while ready is %v: %d, want %d", path, ready, w.Code, want)
		}
	}
	f(true, "/healthz", 200)
	f(false, "/healthz", 200)
	f(true, "/readyz", 200)
	f(false, "/readyz", 503)
	f(true, "/metrics", 200)
	f(true, "/nothing", 404)
}

func TestReplicasBeforeAnythingIsKnown(t *testing.T) {
	w := page(t, &admin.Admin{}, outside, "/replicas")
	if w.Code != http.StatusOK || w.Header().Get("Content-Type") != "application/json" {
		t.Fatalf("got %d %q", w.Code, w.Header().Get("Content-Type"))
	}
	if strings.Contains(w.Body.String(), "password") {
		t.Errorf("it shows a password: %s", w.Body)
	}
	var got struct{ Replicas []admin.Replica }
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Replicas) != 1 {
		t.Fatalf("%d replicas", len(got.Replicas))
	}
	if r := got.Replicas[0]; r.ID != "127.0.0.1:1" || r.Ready || r.Rank != nil || r.Models == nil || len(r.Models) != 0 {
		t.Errorf("got %+v", r)
	}
}
