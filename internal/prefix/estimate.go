package prefix

import (
	"bytes"
	"encoding/binary"
	"math/bits"

	"github.com/warmpath/warmpath/internal/jsonscan"
)

const (
	highBits  = 0x8080808080808080
	unicodeBy = 6 // bytes of \uXXXX
)

var unicodeEscape = []byte(`\u`)

// estimate returns the tokens of a piece of text in twentieths. The form may be
// that of a longer text which the piece is from.
func estimate(text []byte, form jsonscan.Form) int64 {
	if form == 0 {
		return int64(len(text)) * perASCII
	}
	beyond, runes := 0, 0 // bytes beyond ASCII, and the characters they make
	i := 0
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
	if form&jsonscan.Escaped != 0 {
		n := min(bytes.Count(text, unicodeEscape), ascii/unicodeBy)
		ascii -= n * unicodeBy
		runes += n
	}
	return int64(ascii)*perASCII + int64(runes)*perRune
}
