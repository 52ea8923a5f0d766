package jsonscan

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

// This file is what most bytes of a body are: the insides of strings.

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// special marks (high bit of the byte) each byte of w that a string scan must
// look at: a quote, a backslash or a control character. Bytes above the first
// marked one may be marked wrongly (borrows), bytes below it never are.
func special(w uint64) uint64 {
	quote := w ^ ones*'"'
	slash := w ^ ones*'\\'
	return ((quote-ones)&^quote | (slash-ones)&^slash | controls(w)) & highs
}

// plain returns how many bytes at the start of p are nothing special, and the OR
// of them in words, whose high bits tell whether any is beyond ASCII.
func plain(p []byte) (n int, or uint64) {
	rest := p
	for len(rest) >= 32 {
		a, b := binary.LittleEndian.Uint64(rest), binary.LittleEndian.Uint64(rest[8:])
		c, d := binary.LittleEndian.Uint64(rest[16:]), binary.LittleEndian.Uint64(rest[24:])
		if special(a)|special(b)|special(c)|special(d) != 0 {
			break
		}
		or |= a | b | c | d
		rest = rest[32:]
	}
	for len(rest) >= 8 {
		w := binary.LittleEndian.Uint64(rest)
		if m := special(w); m != 0 {
			k := bits.TrailingZeros64(m) &^ 7
			return len(p) - len(rest) + k/8, or | w&(1<<k-1)
		}
		or |= w
		rest = rest[8:]
	}
	for len(rest) > 0 && rest[0] != '"' && rest[0] != '\\' && rest[0] >= 0x20 {
		or |= uint64(rest[0])
		rest = rest[1:]
	}
	return len(p) - len(rest), or
}

// control returns where the first control character of p is, -1 if there is
// none, and the OR of p's words as plain does.
func control(p []byte) (at int, or uint64) {
	rest := p
	for len(rest) >= 64 {
		block := rest[:64]
		a, b := binary.LittleEndian.Uint64(block), binary.LittleEndian.Uint64(block[8:])
		c, d := binary.LittleEndian.Uint64(block[16:]), binary.LittleEndian.Uint64(block[24:])
		e, f := binary.LittleEndian.Uint64(block[32:]), binary.LittleEndian.Uint64(block[40:])
		g, h := binary.LittleEndian.Uint64(block[48:]), binary.LittleEndian.Uint64(block[56:])
		all := a | b | c | d | e | f | g | h
		// Of bytes that are ASCII, adding 0x60 carries all but control characters beyond it.
		beyond := (a + ones*0x60) & (b + ones*0x60) & (c + ones*0x60) & (d + ones*0x60) &
			(e + ones*0x60) & (f + ones*0x60) & (g + ones*0x60) & (h + ones*0x60)
		if beyond&^all&highs != highs &&
			(controls(a)|controls(b)|controls(c)|controls(d)|controls(e)|controls(f)|controls(g)|controls(h))&highs != 0 {
			break
		}
		or |= all
		rest = rest[64:]
	}
	for len(rest) >= 8 {
		w := binary.LittleEndian.Uint64(rest)
		if controls(w)&highs != 0 {
			break
		}
		or |= w
		rest = rest[8:]
	}
	for i, b := range rest {
		if b < 0x20 {
			return len(p) - len(rest) + i, or
		}
		or |= uint64(b)
	}
	return -1, or
}

// controls marks the control characters of w as special does.
func controls(w uint64) uint64 { return (w - ones*0x20) &^ w }

// short is how far a string is read word by word, before its end and its escapes are
// looked for at the speed of memory.
const short = 64

// str takes and checks the string whose opening quote is at pos.
func (s *Scanner) str() (raw []byte, f Form) {
	start, or := s.pos+1, uint64(0)
	i := start
	for i-start < short {
		n, o := plain(s.data[i:min(start+short, len(s.data))])
		i, or = i+n, or|o
		if i == len(s.data) || s.data[i] != '\\' {
			break
		}
		n, form := escape(s.data[i:])
		if n == 0 {
			break // what follows finds it again
		}
		i, f = i+n, f|form
	}
	end := i
	if i == len(s.data) || s.data[i] != '"' {
		rest := s.data[i:]
		if end = s.closing(i); end >= 0 {
			rest = s.data[i:end]
		}
		at, o := control(rest)
		to, form, err := escapes(rest, true)
		switch {
		case at >= 0 && (err == nil || at < to):
			s.pos = i + at
			s.fail(errControl)
			return nil, 0
		case err != nil:
			s.pos = i + to
			s.fail(err)
			return nil, 0
		case end < 0:
			s.pos = len(s.data)
			s.failf("'\"'")
			return nil, 0
		}
		f, or = f|form, or|o
	}
	if or&highs != 0 {
		f |= BeyondASCII
	}
	s.pos, s.first = end+1, false
	return s.data[start:end], f
}

// pieceSize is so much of a string that it is still in the processor's nearest caches
// when its escapes have been checked.
const pieceSize = 16 << 10

// Pieces checks the escapes inside a string that [Scanner.Span] has returned, less its
// quotes, and hands the string out piece by piece, with a form that tells of them. No
// piece ends within an escape. The rest it leaves to take, which looks at all bytes
// anyway: whether some are beyond ASCII, and whether there are control characters, which
// no string may hold. Then take returns false. [Bytes] looks for both.
func Pieces(raw []byte, take func(piece []byte, f Form) (ok bool)) error {
	for off := 0; off < len(raw); {
		rest := raw[off:]
		n, f, err := escapes(rest[:min(pieceSize, len(rest))], len(rest) <= pieceSize)
		if err != nil {
			return err
		}
		if !take(rest[:n], f) {
			return errControl
		}
		off += n
	}
	return nil
}

// Whole is like [Pieces] but hands the string out in one piece, be it empty.
func Whole(raw []byte, take func(piece []byte, f Form) (ok bool)) error {
	_, f, err := escapes(raw, true)
	if err == nil && !take(raw, f) {
		err = errControl
	}
	return err
}

// Bytes returns the form of a string's piece but for escapes; ok is false if there is a
// control character in it.
func Bytes(p []byte) (f Form, ok bool) {
	at, or := control(p)
	if or&highs != 0 {
		f = BeyondASCII
	}
	return f, at < 0
}

var (
	errControl = errors.New("control character in a string")
	errEscape  = errors.New("bad escape in a string")
)

// escapes returns how much of p can stand in a string for all its escapes tell: all of
// it, less a part of an escape at its end unless that is the string's last piece.
func escapes(p []byte, last bool) (i int, f Form, err error) {
	for {
		n := bytes.IndexByte(p[i:], '\\')
		if n < 0 {
			return len(p), f, nil
		}
		for i += n; i < len(p) && p[i] == '\\'; i += n {
			var form Form
			if n, form = escape(p[i:]); n == 0 {
				if !last && len(p)-i < len(`\u0000`) {
					return i, f, nil
				}
				return i, f, errEscape
			}
			f |= form
		}
	}
}

// escape returns the length of the escape that begins b, or 0 if it is not one.
func escape(b []byte) (n int, f Form) {
	if len(b) < 2 {
		return 0, 0
	}
	switch b[1] {
	case '\\':
		if len(b) > 2 && b[2] == 'u' {
			return 2, Escaped | Unicode
		}
		return 2, Escaped
	case '"', '/', 'b', 'f', 'n', 'r', 't':
		return 2, Escaped
	case 'u':
		if len(b) >= 6 && hex4(b[2:6]) >= 0 {
			return 6, Escaped | Unicode
		}
	}
	return 0, 0
}

// hexDigits holds the values of hexadecimal digits plus one, and 0 for other bytes.
var hexDigits = [256]int8{'0': 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 'A': 11, 12, 13, 14, 15, 16, 'a': 11, 12, 13, 14, 15, 16}

// hex4 returns the value of four hexadecimal digits, or a negative number.
func hex4(b []byte) rune {
	digit := func(i int) rune { return rune(hexDigits[b[i]]) - 1 }
	return digit(0)<<12 | digit(1)<<8 | digit(2)<<4 | digit(3)
}

// Unescape returns a string's value from its raw bytes, which must have come
// from a [Scanner]. Lone surrogates become U+FFFD.
func Unescape(raw []byte) []byte {
	out := make([]byte, 0, len(raw))
	for i := 0; i < len(raw); {
		if raw[i] != '\\' || i+1 == len(raw) {
			out = append(out, raw[i])
			i++
			continue
		}
		c := raw[i+1]
		i += 2
		switch c {
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'u':
			if len(raw) < i+4 {
				return utf8.AppendRune(out, utf8.RuneError)
			}
			r := hex4(raw[i:])
			i += 4
			if utf16.IsSurrogate(r) {
				second := rune(-1)
				if len(raw) >= i+6 && raw[i] == '\\' && raw[i+1] == 'u' {
					second = hex4(raw[i+2:])
				}
				if r = utf16.DecodeRune(r, second); r != utf8.RuneError {
					i += 6
				}
			}
			out = utf8.AppendRune(out, r)
		default:
			out = append(out, c)
		}
	}
	return out
}
