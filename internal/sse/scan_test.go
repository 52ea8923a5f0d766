package sse

import (
	"bytes"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
)

func events(pieces ...string) (got []string, s *Scanner) {
	s = &Scanner{OnData: func(data []byte) { got = append(got, string(data)) }}
	for _, p := range pieces {
		s.Feed([]byte(p))
	}
	return got, s
}

func TestFindsEvents(t *testing.T) {
	long := strings.Repeat("x", 70<<10)
	for name, c := range map[string]struct {
		stream string
		want   []string
	}{
		"plain":            {"data: a\n\ndata: b\n\n", []string{"a", "b"}},
		"no space":         {"data:a\n\n", []string{"a"}},
		"one space only":   {"data:  a\n\n", []string{" a"}},
		"crlf":             {"data: a\r\n\r\ndata: b\r\n\r\n", []string{"a", "b"}},
		"comments":         {": ping\n\n:\n\ndata: a\n: in between\n\n", []string{"a"}},
		"other fields":     {"event: x\nid: 1\nretry: 5\ndata: a\n\nevent: y\n\n", []string{"a"}},
		"several lines":    {"data: a\ndata: b\n\n", []string{"a\nb"}},
		"empty data":       {"data:\n\n", []string{""}},
		"unfinished":       {"data: a\n\ndata: b\n", []string{"a"}},
		"no such field":    {"database: a\n\n", nil},
		"a long line":      {"data: " + long + "\n\ndata: b\n\n", []string{long, "b"}},
		"many blank lines": {"\n\n\ndata: a\n\n\n\n", []string{"a"}},
	} {
		got, s := events(c.stream)
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %.200q", name, got)
		}
		if got, _ := events(strings.Split(c.stream, "")...); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s, byte by byte: got %.200q", name, got)
		}
		if s.Within() != strings.HasSuffix(name, "unfinished") {
			t.Errorf("%s: within %v", name, s.Within())
		}
	}
}

func TestPassesOverWhatIsTooLongAndGoesOn(t *testing.T) {
	huge := strings.Repeat("x", Limit+1)
	half := strings.Repeat("y", Limit/2+1)
	for name, stream := range map[string]string{
		"one line":                 "data: " + huge + "\n\n",
		"one line crlf":            "data: " + huge + "\r\n\r\n",
		"two lines":                "data: " + half + "\ndata: " + half + "\n\n",
		"a long line, a short one": "data: " + huge + "\ndata: a\n\n",
	} {
		for _, size := range []int{1 << 10, 32 << 10, 4 << 20} {
			var got []string
			s := &Scanner{OnData: func(data []byte) { got = append(got, string(data)) }}
			for rest := []byte(stream + "data: after\n\n"); len(rest) > 0; {
				n := min(size, len(rest))
				s.Feed(rest[:n])
				rest = rest[n:]
				if cap(s.line)+cap(s.data) > 6*Limit {
					t.Fatalf("%s: %d bytes held", name, cap(s.line)+cap(s.data))
				}
			}
			if !reflect.DeepEqual(got, []string{"after"}) || s.TooLong != 1 {
				t.Errorf("%s in pieces of %d: %d events, %d too long", name, size, len(got), s.TooLong)
			}
		}
	}
}

func TestResetForgets(t *testing.T) {
	var got []string
	s := &Scanner{OnData: func(data []byte) { got = append(got, string(data)) }}
	s.Feed([]byte("data: a\ndata: b"))
	s.Reset()
	s.Feed([]byte("data: c\n\n"))
	if !reflect.DeepEqual(got, []string{"c"}) {
		t.Errorf("got %q", got)
	}
}

// FuzzPieces: however a stream is cut, the events are the same.
func FuzzPieces(f *testing.F) {
	f.Add([]byte("data: a\r\n\r\n: c\ndata: b\ndata:c\n\n"), uint64(1))
	f.Fuzz(func(t *testing.T, stream []byte, seed uint64) {
		whole, ws := events(string(stream))
		r := rand.New(rand.NewPCG(seed, 1))
		var pieces []string
		for rest := stream; len(rest) > 0; {
			n := 1 + r.IntN(len(rest))
			pieces = append(pieces, string(rest[:n]))
			rest = rest[n:]
		}
		cut, cs := events(pieces...)
		if !reflect.DeepEqual(whole, cut) || ws.Within() != cs.Within() {
			t.Fatalf("whole %q, cut %q", whole, cut)
		}
	})
}

func BenchmarkFeed(b *testing.B) {
	piece := bytes.Repeat([]byte(`data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"tok"},"finish_reason":null}]}`+"\n\n"), 4)
	s := &Scanner{OnData: func([]byte) {}}
	b.SetBytes(int64(len(piece)))
	b.ReportAllocs()
	for b.Loop() {
		s.Feed(piece)
	}
}
