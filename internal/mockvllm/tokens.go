package mockvllm

import (
	"encoding/binary"
	"iter"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"
)

// maxPiece is the most bytes of a word in one token, the space before it included. With it English text has about
// four bytes to a token.
const maxPiece = 6

// Encode turns text into token ids, about four bytes of English each. It is stable: cut before white space that
// follows something else, the tokens of the front are the front of the tokens of the whole. An id is a hash of its
// piece and always below 1<<31.
func Encode(text string) []uint32 { return encode(make([]uint32, 0, len(text)/4+1), text) }

func encode(dst []uint32, text string) []uint32 {
	for p := range pieces(text) {
		dst = append(dst, tokenID(p))
	}
	return dst
}

func tokenID(piece string) uint32 { return uint32(xxhash.Sum64String(piece)) & (1<<31 - 1) }

// special returns the id of a control token such as <|im_start|>. No text encodes to it, so that a message cannot
// pretend to be a template.
func special(name string) uint32 { return tokenID("\x00special\x00" + name) }

// pieces splits text into what one token stands for: a word of up to maxPiece bytes with the one space before it, a
// run of the same white space, or any other single rune.
func pieces(text string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for len(text) > 0 {
			n := pieceLen(text)
			if !yield(text[:n]) {
				return
			}
			text = text[n:]
		}
	}
}

func pieceLen(s string) int {
	start := 0
	if s[0] == ' ' {
		start = 1
	}
	n := start
	for n < len(s) {
		w := wordLen(s[n:])
		if w == 0 || n+w > maxPiece {
			break
		}
		n += w
	}
	if n > start {
		return n
	}
	if strings.IndexByte(" \n\t\r", s[0]) < 0 {
		_, n = utf8.DecodeRuneInString(s)
		return n
	}
	for n = 1; n < len(s) && n < maxPiece && s[n] == s[0]; n++ {
	}
	if s[0] == ' ' && n > 1 && n < len(s) && wordLen(s[n:]) > 0 {
		n-- // the last space belongs to the word
	}
	return n
}

// wordLen returns the size of the rune at the front of s if words are made of it, else 0. Scripts written without
// spaces count as one rune a token.
func wordLen(s string) int {
	if c := s[0]; c < utf8.RuneSelf {
		if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' {
			return 1
		}
		return 0
	}
	r, n := utf8.DecodeRuneInString(s)
	if !unicode.IsLetter(r) || unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Hangul, unicode.Thai) {
		return 0
	}
	return n
}

// answerWords are short enough to be one token each with a space in front.
const answerWords = "about above after again along alike apart aside badly basic below blend block brief bring broad " +
	"build cache carry chain check chunk clear close count cover depth draft early edge equal every exact extra false " +
	"fetch field final first focus frame fresh front given graph group guard index inner input issue joint keep known " +
	"large later layer level light limit local lower major match merge model never node often order other outer pages"

// answer draws the text that follows a prompt: word i depends on the prompt's tokens and on i alone, so every replica
// gives the same answer and a longer answer starts with the shorter one.
type answer struct {
	words []string
	seed  uint64
	lead  bool // a space before the first word: the text continues a prompt instead of filling a message
}

func newAnswer(prompt []uint32, lead bool) answer {
	buf := make([]byte, 0, 4*len(prompt))
	for _, t := range prompt {
		buf = binary.LittleEndian.AppendUint32(buf, t)
	}
	return answer{words: strings.Fields(answerWords), seed: xxhash.Sum64(buf), lead: lead}
}

// piece returns the text of token i.
func (a answer) piece(i int) string {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], a.seed+uint64(i)*0x9e3779b97f4a7c15)
	w := a.words[xxhash.Sum64(b[:])%uint64(len(a.words))]
	if i == 0 && !a.lead {
		return w
	}
	return " " + w
}

func (a answer) tokens(n int) []uint32 {
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = tokenID(a.piece(i))
	}
	return ids
}

func (a answer) text(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(a.piece(i))
	}
	return b.String()
}
