package gateway_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// BenchmarkExchange is a streamed request of 4 KB and 16 events through a whole
// gateway, client and worker included: what the three cost together.
func BenchmarkExchange(b *testing.B) {
	body := []byte(`{"model":"m1","stream":true,"messages":[{"role":"user","content":"` + words(1, 4<<10) + `"}]}`)
	events := []string{roleEvent}
	for range 16 {
		events = append(events, tok("word"))
	}
	events = append(events, finEvent, doneEvent)
	w := newWorker(b, func(w http.ResponseWriter, r *http.Request) { newStream(b, w, r).send(events...) })
	g := start(b, nil, w.url)
	b.ReportAllocs()
	for b.Loop() {
		resp, err := g.do(chatPath, body)
		if err != nil {
			b.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if !strings.HasSuffix(string(text), doneEvent) {
			b.Fatalf("%s", text)
		}
	}
}
