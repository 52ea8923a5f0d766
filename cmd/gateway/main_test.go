package main

import (
	"crypto/sha256"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestWhatLibrariesLogShowsNoAnswers: net/http quotes what comes on a connection
// that nobody has asked on, and that may be the rest of an answer.
func TestWhatLibrariesLogShowsNoAnswers(t *testing.T) {
	var mu sync.Mutex
	var out strings.Builder
	slog.SetDefault(slog.New(cautious{slog.NewTextHandler(writer(func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return out.Write(p)
	}), nil)}))
	asked := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n1")
		<-asked
		_, _ = io.WriteString(conn, "TOPSECRET")
	}))
	defer server.Close()
	resp, err := server.Client().Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	close(asked)
	deadline := time.After(10 * time.Second)
	for {
		mu.Lock()
		text := out.String()
		mu.Unlock()
		if strings.Contains(text, "Unsolicited response") {
			if strings.Contains(text, "TOPSECRET") {
				t.Errorf("it shows: %s", text)
			}
			return
		}
		select {
		case <-time.After(time.Millisecond):
		case <-deadline:
			t.Fatalf("nothing was logged: %s", text)
		}
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

func TestHashKeyPrintsAnEntryAndNotTheKey(t *testing.T) {
	const key = "sk-0123456789abcdef"
	want := fmt.Sprintf("  - name: team-a\n    sha256: %x\n", sha256.Sum256([]byte(key)))
	for _, in := range []string{key, key + "\n", key + "\r\n"} {
		var out strings.Builder
		if err := hashKey("team-a", strings.NewReader(in), &out); err != nil || out.String() != want {
			t.Errorf("%q: %v %q", in, err, out.String())
		}
	}
	for _, in := range []string{"", "short\n"} {
		var out strings.Builder
		if err := hashKey("team-a", strings.NewReader(in), &out); err == nil || out.Len() > 0 || !strings.Contains(err.Error(), "openssl rand -hex 32") {
			t.Errorf("%q: %v %q", in, err, out.String())
		}
	}
}

func TestVersionIsTheLinkersOrTheToolchains(t *testing.T) {
	info := func(version string) func() (*debug.BuildInfo, bool) {
		return func() (*debug.BuildInfo, bool) {
			return &debug.BuildInfo{Main: debug.Module{Version: version}}, true
		}
	}
	for _, c := range []struct{ linked, built, want string }{
		{"v1.2.3", "v0.0.1", "v1.2.3"},
		{"", "v0.0.1", "v0.0.1"},
		{"", "", "unknown"},
	} {
		if got := versionOf(c.linked, info(c.built)); got != c.want {
			t.Errorf("linked %q, built %q: %q", c.linked, c.built, got)
		}
	}
}
