package proxy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/internal/auth"
	"github.com/warmpath/warmpath/internal/openai"
)

// FuzzAdd adds a salt to every body that is understood: to an engine's parser
// the rest is the same, and to ours too.
func FuzzAdd(f *testing.F) {
	f.Add([]byte(`{"model":"m","messages":[{"role":"user","content":"}"}]}`), 0)
	f.Add([]byte(" {\"messages\":[],\"cache_salt\":null,\"x\":{}}\r\n "), 100)
	f.Add([]byte(`{"messages":[],"cache\u005fsalt":"x"}`), 3)
	f.Add([]byte("{ \n} "), 3)
	f.Add([]byte(`{"x":"{"}`), 3)
	f.Fuzz(func(t *testing.T, text []byte, room int) {
		req, err := openai.Parse(openai.Other, text)
		if err != nil || req.Prompt.Salt != nil {
			return
		}
		var before map[string]json.RawMessage
		if json.Unmarshal(text, &before) != nil { // ours leaves the prompt's inside to others
			return
		}
		room = min(max(room, 0), 1000)
		b := &body{data: append(make([]byte, 0, len(text)+room), text...), class: -1, from: &buffers{}}
		const member = `"cache_salt":"pepper"`
		if err := b.add(member); err != nil {
			t.Fatal(err)
		}
		if i := bytes.LastIndex(b.data, []byte(member)); i < 0 || strings.TrimSuffix(string(b.data[:i]), ",")+string(b.data[i+len(member):]) != string(text) {
			t.Fatalf("%q became %q", text, b.data)
		}
		after := map[string]json.RawMessage{}
		if err := json.Unmarshal(b.data, &after); err != nil {
			t.Fatalf("%q became %q: %v", text, b.data, err)
		}
		if string(after["cache_salt"]) != `"pepper"` {
			t.Errorf("%q: the salt is %s", b.data, after["cache_salt"])
		}
		delete(before, "cache_salt")
		delete(after, "cache_salt")
		if fmt.Sprint(before) != fmt.Sprint(after) {
			t.Errorf("%q became %q", text, b.data)
		}
		if again, err := openai.Parse(openai.Other, b.data); err != nil || string(again.Prompt.Salt) != `"pepper"` {
			t.Errorf("%q: %v, salt %s", b.data, err, again.Prompt.Salt)
		}
	})
}

// TestABodyThatGrowsIsCounted: its memory goes back to where it is from, and what it
// takes of the limit too.
func TestABodyThatGrowsIsCounted(t *testing.T) {
	const member = `"cache_salt":"pepper"`
	for _, size := range []int{1 << 12, 1<<12 - 100, 1 << 23, 9 << 20} {
		m := buffers{limit: int64(size + 100)}
		b := m.body(size)
		if err := b.reserve(size); err != nil {
			t.Fatal(err)
		}
		copy(b.data, strings.Repeat(" ", size-1)+"}")
		if err := b.add(member); err != nil {
			t.Fatal(err)
		}
		if got := string(b.data[size-1:]); got != ","+member+"}" || m.used.Load() != int64(len(b.data)) {
			t.Errorf("%d bytes: the end is %q, and %d are counted", size, got, m.used.Load())
		}
		if own := cap(b.data) == 1<<max(0, b.class); own != (b.class >= 0) {
			t.Errorf("%d bytes: class %d for %d bytes of memory", size, b.class, cap(b.data))
		}
		if size == 9<<20 && cap(b.data) != size+spareRoom {
			t.Errorf("%d bytes were copied", size)
		}
		before := string(b.data)
		if err := b.add(strings.Repeat("x", 100)); !errors.Is(err, errNoRoom) || string(b.data) != before {
			t.Errorf("%d bytes: %v beyond the limit", size, err)
		}
		if b.release(); m.used.Load() != 0 {
			t.Errorf("%d bytes: %d are counted at the end", size, m.used.Load())
		}
	}
}

// BenchmarkGuard is what API keys cost a request.
func BenchmarkGuard(b *testing.B) {
	path := filepath.Join(b.TempDir(), "keys.yaml")
	const key = "sk-0123456789abcdef0123456789abcdef"
	text := "keys:\n"
	for i := range 100 {
		entry, err := auth.Entry(fmt.Sprint("team-", i), key+fmt.Sprint(i))
		if err != nil {
			b.Fatal(err)
		}
		text += entry
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		b.Fatal(err)
	}
	keys, err := auth.Read(auth.Config{KeysFile: path}, nil)
	if err != nil {
		b.Fatal(err)
	}
	for name, keys := range map[string]*auth.Keys{"open": nil, "keys": keys} {
		b.Run(name, func(b *testing.B) {
			p := &Proxy{cfg: DefaultConfig()}
			p.SetAccess(keys, "")
			passed := 0
			h := p.guard(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { passed++ }))
			r := httptest.NewRequest(http.MethodPost, "/v1/chat/completions", nil)
			r.Header.Set("Authorization", "Bearer "+key+"7")
			w := httptest.NewRecorder()
			b.ReportAllocs()
			for b.Loop() {
				h.ServeHTTP(w, r)
			}
			if passed == 0 {
				b.Fatal("nobody got in")
			}
		})
	}
}
