package jsonscan

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// spans appends every value in value and, last, the error of its walk.
func spans(value []byte, scan func([]byte) Scanner, all []string) []string {
	s := scan(value)
	each := func() {
		if v := s.Span(); v != nil {
			all = spans(v, scan, append(all, string(v)))
		}
	}
	switch s.Kind() {
	case Object:
		s.Enter()
		for name, ok := s.Member(); ok; name, ok = s.Member() {
			all = append(all, string(name))
			each()
		}
	case Array:
		for s.Enter(); s.Element(); {
			each()
		}
	}
	if err := s.Err(); err != nil {
		all = append(all, err.Error())
	}
	return all
}

// FuzzLong: a walk that knows the long strings finds what one does that does not.
func FuzzLong(f *testing.F) {
	fillers := strings.NewReplacer("L", strings.Repeat("long ", 300), "M", strings.Repeat(`\"`, 600), "N", strings.Repeat(`\`, 1023))
	for _, seed := range []string{`{"a":["L",{"b":"M"}],"c":"LL"}`, `["NN","xNN"]`, `["NM","NxM","MNN"]`, `["L","L"`, `[["L",1],"LN"`, `"LLL"`, `{"LL":"LL"}`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if text = fillers.Replace(text); len(text) > 1<<18 {
			return
		}
		data, long := []byte(text), Long{}
		for s := New(data); s.Kind() != Bad; { // values one behind the other, as members are
			got := s.Mark(&long)
			again := func(p []byte) Scanner { return Again(p, &long) }
			if got, want := spans(got, again, nil), spans(got, New, nil); !slices.Equal(got, want) {
				t.Fatalf("%q: got %q, want %q", text, got, want)
			}
		}
	})
}

// TestLongStringsArePassed without a look at their insides, in whichever part of the
// text they are walked, and in that text alone.
func TestLongStringsArePassed(t *testing.T) {
	data := []byte(`[0,{"a":"` + strings.Repeat("x", 5000) + `"}]`)
	s, long := New(data), Long{}
	s.Mark(&long)
	data[4000] = '"' // a walk that looked would end there
	at := bytes.IndexByte(data, 'x') - 1
	for want, text := range map[int][]byte{5002: data, 4000 - at + 1: bytes.Clone(data)} {
		for _, part := range [][]byte{text[at:], text[at : at+5002]} {
			again := Again(part, &long)
			if got := again.Span(); len(got) != want {
				t.Errorf("a string of %d bytes, want %d", len(got), want)
			}
		}
	}
}

// TestLongIsBounded remembers the longest of any number of strings.
func TestLongIsBounded(t *testing.T) {
	var b strings.Builder
	for i := range 4000 {
		size := 1100
		if i%800 == 0 {
			size = 300 << 10
		}
		fmt.Fprintf(&b, ",%q", strings.Repeat("x", size))
	}
	data := []byte("[" + b.String()[1:] + "]")
	s, long := New(data), Long{}
	if s.Mark(&long); s.Err() != nil || long.n != 5 {
		t.Errorf("%d strings are remembered, want 5: %v", long.n, s.Err())
	}
	if n := testing.AllocsPerRun(10, func() {
		s := New(data)
		s.Mark(&long)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if long.n > maxLong {
		t.Errorf("%d strings", long.n)
	}
}
