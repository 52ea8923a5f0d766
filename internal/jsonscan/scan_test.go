package jsonscan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

func valid(data []byte) error {
	s := New(data)
	s.Skip()
	return s.End()
}

func TestAcceptsWhatTheGrammarAccepts(t *testing.T) {
	for _, text := range []string{
		`{}`, `[]`, `""`, `0`, `-0.5e+10`, `true`, `false`, `null`,
		` { "a" : [ 1 , { "b" : "c\n\"\\\/\u00e9" } , [] ] , "d" : {} } `,
		`"日本語 and a long run of plain text to cross several words"`,
		`[1,2,3,[4,[5]],{"x":null}]`,
	} {
		if err := valid([]byte(text)); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestRefusesWhatTheGrammarRefusesAndSaysWhere(t *testing.T) {
	for text, at := range map[string]string{
		``:                      "byte 0",
		`{`:                     "byte 1",
		`{"a"}`:                 "byte 4",
		`{"a":}`:                "byte 5",
		`{"a":1,}`:              "byte 7",
		`{,"a":1}`:              "byte 1",
		`[1,]`:                  "byte 3",
		`[1 2]`:                 "byte 3",
		`[,1]`:                  "byte 1",
		`01`:                    "byte 1",
		`-`:                     "byte 1",
		`1.`:                    "byte 2",
		`1e`:                    "byte 2",
		`tru`:                   "byte 0",
		`"abc`:                  "byte 4",
		`"a` + "\n" + `b"`:      "byte 2",
		`"\x"`:                  "byte 1",
		`"\u12g4"`:              "byte 1",
		`{} {}`:                 "byte 3",
		`{"a":1 "b":2}`:         "byte 7",
		`nulll`:                 "byte 4",
		"\"0123456789abc\x01de": "byte 14",
	} {
		err := valid([]byte(text))
		if err == nil {
			t.Errorf("%s: accepted", text)
		} else if !strings.Contains(err.Error(), at+":") {
			t.Errorf("%s: %v, want %s", text, err, at)
		}
	}
}

func TestDepthIsBounded(t *testing.T) {
	if err := valid([]byte(strings.Repeat("[", MaxDepth) + strings.Repeat("]", MaxDepth))); err != nil {
		t.Error(err)
	}
	if err := valid([]byte(strings.Repeat("[", 1<<20))); err == nil || !strings.Contains(err.Error(), "nested deeper") {
		t.Errorf("got %v", err)
	}
}

func TestWalksMembersAndElements(t *testing.T) {
	s := New([]byte(`{"model":"m\u0031","n":3,"big":9007199254740993,"f":1.5,"stream":true,"\u006dessages":[{"role":"user"},"x"],"last":null}`))
	var got []string
	s.Enter()
	for name, ok := s.Member(); ok; name, ok = s.Member() {
		switch string(name) {
		case "model":
			raw, form := s.Str()
			got = append(got, fmt.Sprintf("model=%s/%s/%v", raw, Unescape(raw), form&Escaped != 0))
		case "n", "big", "f":
			n, ok := s.Int()
			got = append(got, fmt.Sprintf("%s=%d/%v", name, n, ok))
		case "stream":
			got = append(got, fmt.Sprintf("stream=%v", s.Bool()))
		case "messages":
			s.Enter()
			for s.Element() {
				got = append(got, fmt.Sprintf("%c:%s", s.Kind(), s.Raw()))
			}
		default:
			got = append(got, fmt.Sprintf("%s:%c", name, s.Kind()))
			s.Skip()
		}
	}
	if err := s.End(); err != nil {
		t.Fatal(err)
	}
	want := `model=m\u0031/m1/true n=3/true big=9007199254740993/true f=0/false stream=true {:{"role":"user"} ":"x" last:n`
	if g := strings.Join(got, " "); g != want {
		t.Errorf("got  %s\nwant %s", g, want)
	}
}

func TestUnescapeAgreesWithEncodingJSON(t *testing.T) {
	for _, raw := range []string{`plain`, `a\nb\t\"\\\/`, `\u00e9\u4f60`, `\ud83d\ude00`, `\ud83d`, `\ud83dx`, `\ud83d\u0041`, `\udc00`} {
		var want string
		if err := json.Unmarshal([]byte(`"`+raw+`"`), &want); err != nil {
			t.Fatal(err)
		}
		if got := Unescape([]byte(raw)); string(got) != want {
			t.Errorf("%s: got %q, want %q", raw, got, want)
		}
	}
}

func FuzzAgreesWithEncodingJSON(f *testing.F) {
	for _, seed := range []string{`{"a":[1,2,"x\u0041"],"b":{}}`, `[1e5,-0]`, `"` + strings.Repeat("x", 40) + `\"`, `{"a":1,}`, "\"\x7f\xff\""} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		ours := valid(data)
		if strings.Count(string(data), "[")+strings.Count(string(data), "{") > MaxDepth {
			return
		}
		if theirs := json.Valid(data); (ours == nil) != theirs {
			t.Fatalf("ours %v, encoding/json valid %v: %q", ours, theirs, data)
		}
		s := New(data)
		if s.Kind() == String {
			raw, _ := s.Str()
			if s.End() == nil {
				var want string
				if err := json.Unmarshal(data, &want); err != nil {
					t.Fatal(err)
				}
				if got := bytes.ToValidUTF8(Unescape(raw), []byte("\uFFFD")); string(got) != want && bytes.Equal(raw, bytes.ToValidUTF8(raw, nil)) {
					t.Fatalf("got %q, want %q", got, want)
				}
			}
		}
	})
}

func TestTellsTheFormOfStrings(t *testing.T) {
	long := strings.Repeat("plain text ", 9)
	for text, want := range map[string]Form{
		``: 0, `abc`: 0, long: 0, `a\nb`: Escaped, long + `\u00e9`: Escaped | Unicode, long + `C:\\users`: Escaped | Unicode, long + `\\ u`: Escaped, `é`: BeyondASCII, long + `é`: BeyondASCII,
		`é` + long: BeyondASCII, long + `é\n` + long: BeyondASCII | Escaped, `1234567\"`: Escaped,
	} {
		s := New([]byte(`"` + text + `"`))
		if raw, f := s.Str(); string(raw) != text || f != want {
			t.Errorf("%s: got %s, %v, want %v", text, raw, f, want)
		}
	}
}

// FuzzSpan: wherever a check passes, finding the end alone finds the same end.
func FuzzSpan(f *testing.F) {
	for _, seed := range []string{`{"a":[1,"]}\"",{}],"b":"\\"}x`, `"\\\""`, `[[],{"x":"{"}]`, `12`, `"abc`, `{"a":"}`, `}`, `"\`, `"` + strings.Repeat("plain ", 30) + `\" and \\"`, `"` + strings.Repeat("plain ", 30) + "\x01\""} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		a, b := New(data), New(data)
		want, got := a.Raw(), b.Span()
		if a.Err() == nil && (string(got) != string(want) || b.Err() != nil || a.Pos() != b.Pos()) {
			t.Fatalf("%q: span %q, want %q (%v)", data, got, want, b.Err())
		}
		if b.Err() == nil && len(got) > 0 && got[0] == '"' {
			c := New(got)
			raw, form := c.Str()
			var again []byte
			var forms Form
			take := func(piece []byte, f Form) bool {
				seen, ok := Bytes(piece)
				again, forms = append(again, piece...), forms|f|seen
				return ok
			}
			for _, read := range []func([]byte, func([]byte, Form) bool) error{Pieces, Whole} {
				again, forms = nil, 0
				if err := read(got[1:len(got)-1], take); (err == nil) != (c.End() == nil) || err == nil && (!bytes.Equal(raw, again) || form != forms) {
					t.Fatalf("%q: %q %v %v, want %q %v %v", got, again, forms, err, raw, form, c.Err())
				}
			}
		}
		if b.Err() == nil && len(got) == 0 {
			t.Fatalf("%q: an empty span", data)
		}
	})
}

// TestFindsTheFirstControlCharacter wherever it stands, whatever stands around it.
func TestFindsTheFirstControlCharacter(t *testing.T) {
	for _, filler := range []byte{' ', 'x', '~', 0x7f, 0x80, 0xa0, 0xff} {
		for _, length := range []int{0, 1, 63, 64, 65, 200} {
			p := bytes.Repeat([]byte{filler}, length)
			if at, or := control(p); at != -1 || (or&highs != 0) != (filler >= 0x80 && length > 0) {
				t.Errorf("%d times %#x: %d, %#x", length, filler, at, or)
			}
			for i := range p {
				for _, c := range []byte{0, 1, 0x1f} {
					p[i] = c
					if at, _ := control(p); at != i {
						t.Errorf("%#x at %d of %d times %#x: found at %d", c, i, length, filler, at)
					}
				}
				p[i] = filler
			}
		}
	}
}

// TestPiecesAreTheWholeString wherever their bounds fall, and none ends in an escape.
func TestPiecesAreTheWholeString(t *testing.T) {
	for _, escape := range []string{`\n`, `\\`, `\"`, `\u00e9`, `\u4f60\u597d`, "é", `\x`, `\u12`, "\x01"} {
		for before := pieceSize - 14; before <= pieceSize+1; before++ {
			raw := []byte(strings.Repeat("x", before) + escape + strings.Repeat("y", pieceSize))
			s := New([]byte(`"` + string(raw) + `"`))
			_, want := s.Str()
			var got []byte
			var form Form
			err := Pieces(raw, func(piece []byte, f Form) bool {
				seen, ok := Bytes(piece)
				f |= seen
				if got = append(got, piece...); len(piece) > pieceSize || f&^want != 0 {
					t.Errorf("%q at %d: a piece of %d bytes and form %v", escape, before, len(piece), f)
				}
				form |= f
				whole := New([]byte(`"` + string(piece) + `"`))
				if whole.Skip(); ok && whole.End() != nil {
					t.Errorf("%q at %d: a piece ends with %q", escape, before, piece[max(0, len(piece)-8):])
				}
				return ok
			})
			if (err == nil) != (s.End() == nil) || err == nil && (!bytes.Equal(got, raw) || form != want) {
				t.Errorf("%q at %d: %d bytes, form %v, want %v: %v, %v", escape, before, len(got), form, want, err, s.Err())
			}
		}
	}
}

func BenchmarkSkip(b *testing.B) {
	prose := strings.Repeat("cluster fault resource schedule network storage ", 512*1024/48)
	for name, text := range map[string]string{"prose": prose, "json": strings.ReplaceAll(prose, " f", `\",\"f`), "escapes": strings.Repeat(`\u4f60\u597d`, 512*1024/12)} {
		body := []byte(`{"messages":[{"role":"user","content":"` + text + `"}]}`)
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				if err := valid(body); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(name+"/span", func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				s := New(body)
				if s.Span() == nil {
					b.Fatal(s.Err())
				}
			}
		})
	}
}
