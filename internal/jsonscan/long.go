package jsonscan

import "math"

// Long remembers where the longest strings of one text end, so that whoever walks a
// part of the text that has been walked before need not look again for their closing
// quotes. It has room for all strings that are longer than one maxLong-th of the text,
// if they have more than minLong bytes: what is not remembered is soon found. The zero
// value remembers nothing. It refers to the text.
type Long struct {
	text []byte
	n    int
	at   [maxLong]struct{ first, end uint32 } // of their insides, in the text's order
}

const (
	maxLong = 32
	minLong = 1 << 10
)

// add notes the string of text whose quotes are at open and end.
func (l *Long) add(text []byte, open, end int) {
	if end-open <= max(minLong, len(text)/maxLong) || l.n == maxLong || uint64(len(text)) > math.MaxUint32 {
		return
	}
	l.text = text
	l.at[l.n].first, l.at[l.n].end = uint32(open+1), uint32(end)
	l.n++
}

// closing returns where the string closes whose inside begins at data[i], -1 if that is
// not known. If data is a part of the text, it ends where the text's memory does.
func (l *Long) closing(data []byte, i int) int {
	off := cap(l.text) - cap(data)
	if off < 0 || off+i >= len(l.text) || &l.text[off+i] != &data[i] {
		return -1
	}
	for _, a := range l.at[:l.n] {
		if end := int(a.end) - off; int(a.first) == off+i && end < len(data) {
			return end
		}
	}
	return -1
}
