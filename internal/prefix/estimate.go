package prefix

import (
	"bytes"
	"encoding/binary"
	"math/bits"

	"github.com/warmpath/warmpath/internal/jsonscan"
)

const (
	lowBits   = 0x0101010101010101
	highBits  = 0x8080808080808080
	unicodeBy = 6 // bytes of \uXXXX
)

var unicodeEscape = []byte(`\u`)

// unicodeEscapes returns how often text holds unicodeEscape.
func unicodeEscapes(text []byte) (n int) {
	for len(text) > 8 {
		slash := zeros(binary.LittleEndian.Uint64(text) ^ '\\'*lowBits)
		n += bits.OnesCount64(slash & zeros(binary.LittleEndian.Uint64(text[1:])^'u'*lowBits))
		text = text[8:]
	}
	return n + bytes.Count(text, unicodeEscape)
}

// zeros marks the bytes of w that are zero with their high bits.
func zeros(w uint64) uint64 { return ^(w&^highBits + ^uint64(highBits) | w) & highBits }

// estimate returns the tokens of a piece of text in twentieths. The form may be
// that of a longer text which the piece is from.
func estimate(text []byte, form jsonscan.Form) int64 {
	if form == 0 {
		return int64(len(text)) * perASCII
	}
	beyond, runes := 0, 0 // bytes beyond ASCII, and the characters they make
	i := 0
	if form&jsonscan.BeyondASCII == 0 {
		i = len(text)
	}
	for ; i+8 <= len(text); i += 8 {
		w := binary.LittleEndian.Uint64(text[i:])
		if w&highBits == 0 {
			continue
		}
		beyond += bits.OnesCount64(w & highBits)
		runes += bits.OnesCount64(w & (w << 1) & highBits) // 11xxxxxx begins a character
	}
	for ; i < len(text); i++ {
		if text[i] >= 0x80 {
			beyond++
			if text[i] >= 0xC0 {
				runes++
			}
		}
	}
	ascii := len(text) - beyond
	if form&jsonscan.Unicode != 0 {
		n := min(unicodeEscapes(text), ascii/unicodeBy)
		ascii -= n * unicodeBy
		runes += n
	}
	return int64(ascii)*perASCII + int64(runes)*perRune
}
