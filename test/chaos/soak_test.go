package chaos

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// streams is how many are open at once, and memory what each may take in the gateway.
const (
	streams      = 2000
	streamMemory = 64 << 10
)

// TestThousandsOfSlowStreams opens many streams through one gateway, all at the same
// time, and has each end well: nothing is lost, and memory is bounded for each.
func TestThousandsOfSlowStreams(t *testing.T) {
	if testing.Short() {
		t.Skip("2,000 streams")
	}
	finish := make(chan struct{})
	events := 5
	replica := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/health":
			return
		case "/v1/models":
			_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"m","object":"model","parent":null}]}`)
			return
		case "/v1/chat/completions":
		default:
			http.NotFound(w, r)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		send := func(text string) {
			_, _ = io.WriteString(w, text+"\n\n")
			_ = http.NewResponseController(w).Flush()
		}
		for range events {
			send(`data: {"choices":[{"index":0,"delta":{"content":"word "},"finish_reason":null}]}`)
			select {
			case <-r.Context().Done():
				return
			case <-time.After(time.Second):
			}
		}
		select {
		case <-r.Context().Done():
			return
		case <-finish:
		}
		send(`data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`)
		send("data: [DONE]")
	}))
	defer replica.Close()
	g := run(t, buildGateway(t), "-listen", "127.0.0.1:0", "-admin", "127.0.0.1:0", "-replica", replica.URL, "-max-wait", "0")
	eventually(t, 10*time.Second, "ready", g.ready)

	body := `{"model":"m","stream":true,"messages":[{"role":"user","content":"` + strings.Repeat("a question of four kilobytes ", 140) + `"}]}`
	request := fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	ask := func(begun *atomic.Int32) error { // without net/http, whose goroutines are too many for the race detector
		conn, err := net.Dial("tcp", g.clients)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		if _, err := io.WriteString(conn, request); err != nil {
			return err
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			return err
		}
		first := make([]byte, 6)
		if _, err := io.ReadFull(resp.Body, first); err != nil {
			return err
		}
		begun.Add(1)
		rest, err := io.ReadAll(resp.Body)
		if n := strings.Count(string(rest), "word"); err != nil || resp.StatusCode != http.StatusOK || n != events || !strings.HasSuffix(string(rest), "data: [DONE]\n\n") {
			return fmt.Errorf("status %d, %d events, %w, ends with %.80q", resp.StatusCode, n, err, rest[max(0, len(rest)-80):])
		}
		return nil
	}

	before, held := g.resident(t), g.held(t)
	var begun atomic.Int32
	var running sync.WaitGroup
	var lost atomic.Int32
	began := time.Now()
	for range streams {
		running.Go(func() {
			if err := ask(&begun); err != nil && lost.Add(1) < 5 {
				t.Error(err)
			}
		})
	}
	eventually(t, 30*time.Second, "all streams are open", func() bool { return begun.Load()+lost.Load() == streams })
	t.Logf("%d streams were open after %v", begun.Load(), time.Since(began).Round(time.Millisecond))
	time.Sleep(time.Duration(events) * time.Second) // they are slow
	resident := (g.resident(t) - before) / streams
	each := (g.held(t) - held) / streams
	close(finish)
	running.Wait()
	if n := lost.Load(); n > 0 {
		t.Errorf("%d streams were lost", n)
	}
	t.Logf("a stream holds %d KiB of the gateway's memory; with what is not collected yet it is %d KiB resident; the gateway alone has %d MiB", each>>10, resident>>10, before>>20)
	if each > streamMemory {
		t.Errorf("%d KiB for a stream, at most %d are allowed", each>>10, streamMemory>>10)
	}
}
