// Package jsonscan walks JSON text in place: it finds members, elements and the
// spans of their values without building any of them, so that a request body of
// half a megabyte costs one pass and no allocation.
//
// A [Scanner] is a cursor. The caller peeks at a value's [Kind] and then either
// enters it, takes it or skips it; everything passed over is checked against the
// grammar of RFC 8259, so a walk that ends without an error has read valid JSON.
// Only [Scanner.Span] leaves the checking to whoever walks what it returns.
// Strings are handed out as they were sent, between their quotes and with their
// escapes.
package jsonscan

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
)

// MaxDepth is how deeply arrays and objects may nest. It bounds the stack that
// a hostile body can take; the JSON parser of the engines stops at 200.
const MaxDepth = 256

var errDepth = fmt.Errorf("nested deeper than %d levels", MaxDepth)

// Kind is the type of a JSON value, by its first byte.
type Kind byte

// The kinds that [Scanner.Kind] returns. Bad stands for the end of the text,
// for a byte that begins no value and for a scanner that has failed.
const (
	Bad    Kind = 0
	Object Kind = '{'
	Array  Kind = '['
	String Kind = '"'
	Number Kind = '0'
	True   Kind = 't'
	False  Kind = 'f'
	Null   Kind = 'n'
)

// Form tells what a string's raw bytes hold beside plain ASCII.
type Form uint8

// The flags of a [Form].
const (
	Escaped     Form = 1 << iota // backslash escapes
	Unicode                      // a backslash and a u, which most often is an escape
	BeyondASCII                  // bytes above 0x7F
)

// Scanner is a cursor over one JSON text. The zero value is not usable; make
// one with [New]. After the first error every method does nothing and [Scanner.Err]
// tells what and where it was.
type Scanner struct {
	data  []byte
	pos   int
	depth int
	first bool // the next member or element is its container's first
	err   error
	long  *Long // of the text that data is a part of, or nil
}

// New returns a scanner at the start of data, which must not change while it is used.
func New(data []byte) Scanner { return Scanner{data: data} }

// Again returns a scanner of data, a value in a text that has been marked: [Scanner.Span]
// then passes the longest strings without looking for where they end.
func Again(data []byte, long *Long) Scanner {
	if long.n == 0 {
		long = nil
	}
	return Scanner{data: data, long: long}
}

// Err returns the first error, or nil.
func (s *Scanner) Err() error { return s.err }

// Pos returns the offset of the next byte to be read.
func (s *Scanner) Pos() int { return s.pos }

func (s *Scanner) fail(err error) {
	if s.err == nil {
		s.err = fmt.Errorf("invalid JSON at byte %d: %w", s.pos, err)
	}
	s.pos = len(s.data)
}

func (s *Scanner) failf(what string) {
	if s.err != nil {
		return
	}
	if s.pos >= len(s.data) {
		s.fail(errors.New("unexpected end, want " + what))
		return
	}
	s.fail(fmt.Errorf("unexpected %q, want %s", s.data[s.pos], what))
}

func (s *Scanner) space() {
	for s.pos < len(s.data) {
		switch s.data[s.pos] {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return
		}
	}
}

// Kind skips white space and returns the kind of the next value without taking it.
func (s *Scanner) Kind() Kind {
	s.space()
	if s.err != nil || s.pos >= len(s.data) {
		return Bad
	}
	switch b := s.data[s.pos]; b {
	case '{', '[', '"', 't', 'f', 'n':
		return Kind(b)
	case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
		return Number
	}
	return Bad
}

// Enter goes into the object or array that comes next; anything else is an error.
func (s *Scanner) Enter() {
	switch s.Kind() {
	case Object, Array:
		s.depth++
		if s.depth > MaxDepth {
			s.fail(errDepth)
			return
		}
		s.pos++
		s.first = true
	default:
		s.failf("an object or an array")
	}
}

// Member steps to the next member of the object that was entered and returns
// its name, with escapes resolved; ok is false at the object's end and after an
// error. The member's value must then be taken, entered or skipped. The name is
// valid as long as the scanner's data.
func (s *Scanner) Member() (name []byte, ok bool) {
	if !s.next('}') {
		return nil, false
	}
	if s.Kind() != String {
		s.failf("a member name")
		return nil, false
	}
	raw, form := s.str()
	s.space()
	if s.pos >= len(s.data) || s.data[s.pos] != ':' {
		s.failf("':'")
		return nil, false
	}
	s.pos++
	if form&Escaped != 0 {
		return Unescape(raw), true
	}
	return raw, true
}

// Element steps to the next element of the array that was entered; it returns
// false at the array's end and after an error.
func (s *Scanner) Element() bool { return s.next(']') }

// next consumes the comma before a member or element, or the container's end.
func (s *Scanner) next(end byte) bool {
	s.space()
	if s.err != nil {
		return false
	}
	if s.pos >= len(s.data) {
		s.failf("',' or '" + string(end) + "'")
		return false
	}
	switch {
	case s.data[s.pos] == end:
		s.pos++
		s.depth--
		s.first = false
		return false
	case s.first:
		s.first = false
		return true
	case s.data[s.pos] == ',':
		s.pos++
		s.space()
		return true
	}
	s.failf("',' or '" + string(end) + "'")
	return false
}

// Str takes a string value and returns the bytes between its quotes as sent.
// Any other kind is an error.
func (s *Scanner) Str() (raw []byte, f Form) {
	if s.Kind() != String {
		s.failf("a string")
		return nil, 0
	}
	return s.str()
}

// Raw takes the next value, whatever it is, and returns its span.
func (s *Scanner) Raw() []byte {
	s.space()
	start := s.pos
	s.Skip()
	if s.err != nil {
		return nil
	}
	return s.data[start:s.pos]
}

// Span takes the next value like Raw, but without checking what is inside it: it
// only finds where an object, an array or a string ends. It is for values that
// another scanner will walk; text that is no JSON may show only there.
func (s *Scanner) Span() []byte { return s.Mark(nil) }

// Mark takes the next value like Span, and notes its longest strings in long. All
// values of one text may be marked in one Long, in their order.
func (s *Scanner) Mark(long *Long) []byte {
	s.Kind()
	start, depth := s.pos, 0
	for i := s.pos; i < len(s.data) && s.err == nil; {
		switch s.data[i] {
		case '"':
			open := i
			if i = s.closing(i + 1); i < 0 {
				s.pos = len(s.data)
				s.failf("'\"'")
				return nil
			}
			if long != nil {
				long.add(s.data, open, i)
			}
		case '{', '[':
			if depth++; s.depth+depth > MaxDepth {
				s.fail(errDepth)
				return nil
			}
		case '}', ']':
			depth--
		default:
			if depth == 0 {
				return s.Raw()
			}
			i++
			continue
		}
		i++
		if depth <= 0 {
			s.pos, s.first = i, false
			return s.data[start:i]
		}
	}
	s.pos = len(s.data)
	s.failf("a value")
	return nil
}

// closing returns where the string closes whose inside begins at i, or -1: at the
// first quote that no backslash escapes, which is one that an even number of them
// stand before.
func (s *Scanner) closing(i int) int {
	first, known := i, s.long == nil
	for {
		rest := s.data[i:]
		if !known && len(rest) > minLong {
			rest = rest[:minLong]
		}
		n := bytes.IndexByte(rest, '"')
		if n < 0 {
			if i += len(rest); i == len(s.data) {
				return -1
			}
			if end := s.long.closing(s.data, first); end >= 0 {
				return end
			}
			known = true // as much as there is to know
			continue
		}
		i += n
		slash := i
		for slash > first && s.data[slash-1] == '\\' {
			slash--
		}
		if (i-slash)%2 == 0 {
			return i
		}
		i++
	}
}

// Int takes a number and returns it if it is an integer that fits; ok is false
// for any other value, which is skipped.
func (s *Scanner) Int() (n int64, ok bool) {
	if s.Kind() != Number {
		s.Skip()
		return 0, false
	}
	start := s.pos
	s.number()
	if s.err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(string(s.data[start:s.pos]), 10, 64)
	return n, err == nil
}

// Bool takes a value and reports whether it is the literal true.
func (s *Scanner) Bool() bool {
	is := s.Kind() == True
	s.Skip()
	return is
}

// End reports the error for anything but white space after the last value.
func (s *Scanner) End() error {
	s.space()
	if s.err == nil && s.pos < len(s.data) {
		s.failf("the end")
	}
	return s.err
}

// Skip takes the next value, checks it and forgets it.
func (s *Scanner) Skip() {
	switch s.Kind() {
	case Object:
		for s.Enter(); ; s.Skip() {
			if _, ok := s.Member(); !ok {
				return
			}
		}
	case Array:
		for s.Enter(); s.Element(); s.Skip() {
		}
	case String:
		s.str()
	case Number:
		s.number()
	case True:
		s.literal("true")
	case False:
		s.literal("false")
	case Null:
		s.literal("null")
	default:
		s.failf("a value")
	}
}

func (s *Scanner) literal(word string) {
	if len(s.data)-s.pos < len(word) || string(s.data[s.pos:s.pos+len(word)]) != word {
		s.failf(word)
		return
	}
	s.pos += len(word)
	s.first = false
}

func (s *Scanner) number() {
	if s.data[s.pos] == '-' {
		s.pos++
	}
	if s.pos < len(s.data) && s.data[s.pos] == '0' {
		s.pos++
	} else {
		s.digits()
	}
	if s.pos < len(s.data) && s.data[s.pos] == '.' {
		s.pos++
		s.digits()
	}
	if s.pos < len(s.data) && s.data[s.pos]|0x20 == 'e' {
		s.pos++
		if s.pos < len(s.data) && (s.data[s.pos] == '+' || s.data[s.pos] == '-') {
			s.pos++
		}
		s.digits()
	}
	s.first = false
}

func (s *Scanner) digits() {
	start := s.pos
	for s.pos < len(s.data) && s.data[s.pos]-'0' <= 9 {
		s.pos++
	}
	if s.pos == start {
		s.failf("a digit")
	}
}
