// Package sse finds the events in a server-sent event stream that passes by in
// pieces of any size. It only looks: relaying the bytes is the caller's.
package sse

import "bytes"

// Limit is the longest event that is handed out. Longer ones are counted and
// passed over, so that a stream cannot make its watcher hold its whole length.
const Limit = 1 << 20

// Scanner finds events. Give it the stream's pieces in order with [Scanner.Feed].
// Lines end in LF or CR LF. The zero value, with OnData set, is at a stream's start.
type Scanner struct {
	// OnData is called with each event's data as soon as the event is complete. The
	// slice is valid during the call. Comments and events without data are not handed out.
	OnData func(data []byte)
	// TooLong counts the events longer than [Limit].
	TooLong int

	line  []byte // the part of a line that came in earlier pieces
	inner bool   // the stream stands inside that line
	lost  bool   // the line is too long and was not kept
	data  []byte // the data lines of the event so far
	some  bool   // there are data lines
	over  bool   // the event is too long
}

// keepBytes is how much memory a reset keeps.
const keepBytes = 64 << 10

// Reset goes back to a stream's start and keeps OnData and what memory is usual.
func (s *Scanner) Reset() {
	if cap(s.line)+cap(s.data) > keepBytes {
		s.line, s.data = nil, nil
	}
	s.line, s.data = s.line[:0], s.data[:0]
	s.inner, s.lost, s.some, s.over, s.TooLong = false, false, false, false, 0
}

// Within reports whether the stream stands inside an event, so that nothing of
// one's own may be written there.
func (s *Scanner) Within() bool { return s.inner || s.some || s.over }

// Feed takes the next piece of the stream.
func (s *Scanner) Feed(piece []byte) {
	for len(piece) > 0 {
		end := bytes.IndexByte(piece, '\n')
		if end < 0 {
			s.keep(piece)
			return
		}
		line := piece[:end]
		piece = piece[end+1:]
		if s.inner {
			s.keep(line)
			line = s.line
		}
		if !s.lost {
			s.take(bytes.TrimSuffix(line, cr), piece)
		}
		s.line, s.inner, s.lost = s.line[:0], false, false
	}
}

// keep stores a part of a line until the rest comes.
func (s *Scanner) keep(part []byte) {
	s.inner = true
	if s.lost || len(s.line)+len(part) > Limit {
		s.lost, s.over = true, true
		return
	}
	s.line = append(s.line, part...)
}

var (
	prefix = []byte("data:")
	cr     = []byte("\r")
)

// take reads one whole line; rest is what follows it in the same piece.
func (s *Scanner) take(line, rest []byte) {
	if len(line) == 0 {
		s.end()
		return
	}
	data, found := bytes.CutPrefix(line, prefix)
	if !found {
		return
	}
	if len(data) > 0 && data[0] == ' ' {
		data = data[1:]
	}
	if !s.some && !s.over && len(data) < Limit && len(rest) > 0 && (rest[0] == '\n' || len(rest) > 1 && rest[0] == '\r' && rest[1] == '\n') {
		s.OnData(data) // the common event: one line, here whole
		return
	}
	if len(s.data)+len(data) >= Limit {
		s.over = true
	}
	if s.over {
		return
	}
	if s.some {
		s.data = append(s.data, '\n')
	}
	s.some = true
	s.data = append(s.data, data...)
}

// end is at an event's end.
func (s *Scanner) end() {
	switch {
	case s.over:
		s.TooLong++
	case s.some:
		s.OnData(s.data)
	}
	s.data, s.some, s.over = s.data[:0], false, false
}
