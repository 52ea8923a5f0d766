package upstream

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/textproto"
	"strings"
	"sync"

	"golang.org/x/net/http/httpguts"
)

// This file reads answers (RFC 9112), and refuses what is not one in every way.

// Bounds on an answer's head and on what may stand beside its chunks.
const (
	maxHead    = 64 << 10
	maxFields  = 256
	maxLine    = 256     // a chunk's size with its extensions
	maxTrailer = 2 << 10 // all trailer fields of an answer
)

var (
	errNone     = errors.New("the replica closed the connection before it answered")
	errHeadSize = errors.New("the head of the replica's answer is too long")
	errField    = errors.New("the replica's answer has a malformed header")
	errStatus   = errors.New("the replica's answer has a malformed status line")
	errLength   = errors.New("the replica's answer has no clear length")
	errChunk    = errors.New("the replica's answer has a malformed chunk")
)

// head is what stands before a body.
type head struct {
	status int
	header http.Header
	length int64 // -1 if it is not known
	close  bool  // the connection ends with the answer
	chunks bool
}

// phase is where in a body the reader stands.
type phase uint8

const (
	ended   phase = iota // nothing of the body is left
	counted              // left bytes are
	open                 // it ends with the connection
	size                 // before a chunk's size
	chunk                // left bytes of the chunk are
	after                // behind a chunk's data, before its line end
	trailer              // behind the last chunk
)

// reader reads answers out of a buffer that it fills.
type reader struct {
	src  io.Reader
	buf  []byte
	r, w int // what has been read stands between
	some bool
	full bool // the last filling took all the room there was

	phase phase
	left  int64
	extra int // bytes of trailer so far
}

// Buffers are small while an answer may be a stream whose events are short, and
// large for the rest of one that fills them.
const (
	small = 4 << 10
	large = 32 << 10
)

var smalls, larges sync.Pool // of *[small]byte, *[large]byte

func buffer(n int) []byte {
	switch {
	case n <= small:
		if b, ok := smalls.Get().(*[small]byte); ok {
			return b[:]
		}
		return new([small]byte)[:]
	case n <= large:
		if b, ok := larges.Get().(*[large]byte); ok {
			return b[:]
		}
		return new([large]byte)[:]
	}
	return make([]byte, n)
}

// free gives the buffer back.
func (d *reader) free() {
	switch len(d.buf) {
	case small:
		smalls.Put((*[small]byte)(d.buf))
	case large:
		larges.Put((*[large]byte)(d.buf))
	}
	d.buf, d.r, d.w, d.full = nil, 0, 0, false
}

func (d *reader) empty() bool { return d.r == d.w }

// fill reads once. Slices of the buffer are not valid any more then.
func (d *reader) fill() error {
	if rest := d.w - d.r; d.buf == nil || d.full && rest < len(d.buf) && len(d.buf) == small {
		d.move(buffer(len(d.buf) + 1))
	} else if d.r > 0 {
		copy(d.buf, d.buf[d.r:d.w])
		d.r, d.w = 0, rest
	}
	if d.w == len(d.buf) {
		d.move(buffer(2 * len(d.buf)))
	}
	n, err := d.src.Read(d.buf[d.w:])
	d.full = n == len(d.buf)-d.w
	d.w += n
	d.some = d.some || n > 0
	if n > 0 {
		return nil
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return err
}

// move goes on in another buffer.
func (d *reader) move(to []byte) {
	w := copy(to, d.buf[d.r:d.w])
	d.free()
	d.buf, d.w = to, w
}

// head reads the head of the answer to a request of that method. Of informational
// answers, which may come first, it takes no notice.
func (d *reader) head(method string) (h head, err error) {
	d.some = d.w > d.r
	for total := 0; ; {
		n := headEnd(d.buf[d.r:d.w])
		switch {
		case n >= 0 && total+n <= maxHead:
			if h, err = parseHead(d.buf[d.r:d.r+n], method); err != nil {
				return h, err
			}
			total += n
			d.r += n
			if h.status < 200 && h.status != http.StatusSwitchingProtocols {
				continue
			}
			d.begin(&h)
			return h, nil
		case n >= 0 || total+d.w-d.r >= maxHead:
			return h, errHeadSize
		}
		if err = d.fill(); errors.Is(err, io.EOF) {
			if err = errNone; d.some {
				err = io.ErrUnexpectedEOF
			}
		}
		if err != nil {
			return h, err
		}
	}
}

var headEnds = []byte("\r\n\r\n")

func headEnd(b []byte) int {
	if n := bytes.Index(b, headEnds); n >= 0 {
		return n + len(headEnds)
	}
	return -1
}

// begin is at the start of a body.
func (d *reader) begin(h *head) {
	d.left, d.extra = h.length, 0
	switch {
	case h.chunks:
		d.phase = size
	case h.length == 0:
		d.phase = ended
	case h.length > 0:
		d.phase = counted
	default:
		d.phase = open
	}
}

// parseHead reads a whole head, with the empty line at its end.
func parseHead(b []byte, method string) (h head, err error) {
	text := string(b[:len(b)-2]) // its parts live as long as the longest
	line, text, _ := strings.Cut(text, "\r\n")
	if len(line) < len("HTTP/1.1 200") || line[:7] != "HTTP/1." || line[7] != '0' && line[7] != '1' || line[8] != ' ' || len(line) > 12 && line[12] != ' ' || !isValue(line) {
		return h, errStatus
	}
	for _, c := range []byte(line[9:12]) {
		if c < '0' || c > '9' {
			return h, errStatus
		}
		h.status = 10*h.status + int(c-'0')
	}
	if h.status < 100 {
		return h, errStatus
	}
	if h.header, err = parseFields(text); err != nil {
		return h, err
	}
	return h, h.frame(line[7] == '1', method)
}

// parseFields reads header fields, each with its line end.
func parseFields(text string) (http.Header, error) {
	n := strings.Count(text, "\r\n")
	if n > maxFields {
		return nil, errHeadSize
	}
	header, values := make(http.Header, n), make([]string, n)
	for text != "" {
		line, rest, _ := strings.Cut(text, "\r\n")
		name, value, found := strings.Cut(line, ":")
		value = strings.Trim(value, " \t")
		if !found || !isToken(name) || !isValue(value) {
			return nil, errField
		}
		name = textproto.CanonicalMIMEHeaderKey(name)
		if old := header[name]; old != nil {
			header[name] = append(old, value)
		} else {
			values[0] = value
			header[name], values = values[:1:1], values[1:]
		}
		text = rest
	}
	return header, nil
}

// frame finds out where the body ends.
func (h *head) frame(keeps bool, method string) error {
	h.length = -1
	h.close = !keeps
	for _, list := range h.header["Connection"] {
		for word := range strings.SplitSeq(list, ",") {
			h.close = h.close || isWord(strings.Trim(word, " \t"), "close")
		}
	}
	encoding, lengths := h.header["Transfer-Encoding"], h.header["Content-Length"]
	switch {
	case len(encoding) > 0:
		if len(encoding) > 1 || len(lengths) > 0 || !keeps || !isWord(encoding[0], "chunked") {
			return errLength
		}
		h.chunks = true
	case len(lengths) > 1:
		return errLength
	case len(lengths) == 1:
		if h.length = number(lengths[0], 10); h.length < 0 {
			return errLength
		}
	}
	if method == http.MethodHead || h.status < 200 || h.status == http.StatusNoContent || h.status == http.StatusNotModified {
		h.length, h.chunks = 0, false
	}
	h.close = h.close || h.status < 200 || !h.chunks && h.length < 0
	return nil
}

// number returns the number that digits are, -1 if they are not one of a sane size.
func number(digits string, base int64) int64 {
	if digits == "" || len(digits) > 15 {
		return -1
	}
	n := int64(0)
	for _, c := range []byte(digits) {
		d := int64(c - '0')
		if c > '9' {
			d = int64((c|0x20)-'a') + 10
		}
		if c < '0' || d >= base {
			return -1
		}
		n = n*base + d
	}
	return n
}

// decode returns what the buffer holds of the body, and [io.EOF] at its end. What
// belongs to chunks and not to the body is taken out in place.
func (d *reader) decode() (piece []byte, err error) {
	begin, to := d.r, d.r
	for {
		have := d.w - d.r
		switch d.phase {
		case ended:
			return d.buf[begin:to], io.EOF
		case counted, open, chunk:
			if have == 0 {
				return d.buf[begin:to], nil
			}
			if d.phase != open {
				have = int(min(int64(have), d.left))
				d.left -= int64(have)
			}
			if to != d.r {
				copy(d.buf[to:], d.buf[d.r:d.r+have])
			}
			to, d.r = to+have, d.r+have
			switch {
			case d.left > 0 || d.phase == open:
			case d.phase == chunk:
				d.phase = after
			default:
				d.phase = ended
			}
		default:
			line := bytes.IndexByte(d.buf[d.r:d.w], '\n')
			if line < 0 && have <= maxLine+1 {
				return d.buf[begin:to], nil
			}
			if line < 0 || !d.line(d.buf[d.r:d.r+line]) {
				return d.buf[begin:to], errChunk
			}
			d.r += line + 1
		}
	}
}

// line takes a line that stands beside chunks, less its last byte.
func (d *reader) line(b []byte) bool {
	b, ok := bytes.CutSuffix(b, []byte("\r"))
	if !ok || len(b) > maxLine {
		return false
	}
	switch d.phase {
	case after:
		d.phase = size
		return len(b) == 0
	case size:
		digits, extension, _ := bytes.Cut(bytes.TrimRight(b, " \t"), []byte(";"))
		d.left = number(string(digits), 16)
		if d.phase = chunk; d.left == 0 {
			d.phase = trailer
		}
		return d.left >= 0 && isValue(string(extension))
	}
	if len(b) == 0 {
		d.phase = ended
		return true
	}
	name, value, found := bytes.Cut(b, []byte(":"))
	d.extra += len(b)
	return found && d.extra <= maxTrailer && isToken(string(name)) && isValue(string(value))
}

// ended returns what an error means for a body of which more was to come.
func (d *reader) ended(err error) error {
	if !errors.Is(err, io.EOF) || d.phase == open {
		return err
	}
	return io.ErrUnexpectedEOF
}

// isWord reports whether text is a word of ASCII letters, small or capital.
func isWord(text, word string) bool { return len(text) == len(word) && strings.EqualFold(text, word) }

// What can be a field's name, or a method, and a field's value.
var isToken, isValue = httpguts.ValidHeaderFieldName, httpguts.ValidHeaderFieldValue
