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

// dense is how far a string is read word by word after something special, before
// the next such byte is looked for at the speed of memory.
const dense = 64

// str takes and checks the string whose opening quote is at pos.
func (s *Scanner) str() (raw []byte, f Form) {
	data, i, or := s.data, s.pos+1, uint64(0)
	quote := -1 // the next quote, where it is behind i
	for {
		n, o := plain(data[i:min(i+dense, len(data))])
		i, or = i+n, or|o
		if n == dense {
			if quote < i {
				if quote = bytes.IndexByte(data[i:], '"'); quote < 0 {
					quote = len(data)
				} else {
					quote += i
				}
			}
			end := quote
			if slash := bytes.IndexByte(data[i:quote], '\\'); slash >= 0 {
				end = i + slash
			}
			at, o := control(data[i:end])
			or |= o
			if at >= 0 {
				end = i + at
			}
			i = end
		}
		if i >= len(data) {
			s.pos = len(data)
			s.failf("'\"'")
			return nil, 0
		}
		switch {
		case data[i] == '"':
			raw = data[s.pos+1 : i]
			s.pos = i + 1
			s.first = false
			if or&highs != 0 {
				f |= BeyondASCII
			}
			return raw, f
		case data[i] < 0x20:
			s.pos = i
			s.fail(errControl)
			return nil, 0
		}
		for f |= Escaped; i < len(data) && data[i] == '\\'; {
			n := escapeLen(data[i:])
			if n == 0 {
				s.pos = i
				s.fail(errEscape)
				return nil, 0
			}
			i += n
		}
	}
}

// pieceSize is so much of a string that it is still in the processor's nearest caches
// when it has been checked.
const pieceSize = 16 << 10

// Pieces checks the inside of a string that [Scanner.Span] has returned, less its
// quotes, and hands it out piece by piece. No piece ends within an escape.
func Pieces(raw []byte, take func(piece []byte, f Form)) error {
	for off := 0; off < len(raw); {
		rest := raw[off:]
		n, f, err := inside(rest[:min(pieceSize, len(rest))], len(rest) <= pieceSize)
		if err != nil {
			return err
		}
		take(rest[:n], f)
		off += n
	}
	return nil
}

var (
	errControl = errors.New("control character in a string")
	errEscape  = errors.New("bad escape in a string")
)

// inside returns how much of p can stand in a string: all of it, less a part of an
// escape at its end unless that is the string's last piece.
func inside(p []byte, last bool) (i int, f Form, err error) {
	or := uint64(0)
	for i < len(p) {
		n, o := plain(p[i:min(i+dense, len(p))])
		i, or = i+n, or|o
		if n == dense {
			end := len(p)
			if slash := bytes.IndexByte(p[i:], '\\'); slash >= 0 {
				end = i + slash
			}
			at, o := control(p[i:end])
			or |= o
			if at >= 0 {
				end = i + at
			}
			i = end
		}
		if i < len(p) && p[i] != '\\' {
			return i, f, errControl
		}
		for i < len(p) && p[i] == '\\' {
			n := escapeLen(p[i:])
			if n == 0 && !last && len(p)-i < len(`\u0000`) {
				p = p[:i]
				break
			}
			if n == 0 {
				return i, f, errEscape
			}
			f |= Escaped
			i += n
		}
	}
	if or&highs != 0 {
		f |= BeyondASCII
	}
	return i, f, nil
}

// escapeLen returns the length of the escape that begins b, or 0 if it is not one.
func escapeLen(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	switch b[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if len(b) >= 6 && hex4(b[2:6]) >= 0 {
			return 6
		}
	}
	return 0
}

// hex4 returns the value of four hexadecimal digits, or -1.
func hex4(b []byte) rune {
	var r rune
	for _, c := range b[:4] {
		switch {
		case c-'0' <= 9:
			r = r<<4 | rune(c-'0')
		case (c|0x20)-'a' <= 5:
			r = r<<4 | rune((c|0x20)-'a'+10)
		default:
			return -1
		}
	}
	return r
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
