package upstream

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// conn is a connection. One request at a time owns it.
type conn struct {
	host  *Host
	raw   net.Conn
	rw    net.Conn        // raw, or TLS on it
	fd    syscall.RawConn // of raw; nil if it has none
	look  func(fd uintptr) bool
	calm  bool // what look found: open, and nothing has come
	in    reader
	out   [2][]byte // what is being written
	since time.Time // when it became idle

	answered bool // a byte of the answer to the last request has come
	once     sync.Once
}

func newConn(h *Host, raw net.Conn) *conn {
	h.client.open.Add(1)
	c := &conn{host: h, raw: raw, rw: raw}
	c.in.src = raw
	if s, ok := raw.(syscall.Conn); ok {
		c.fd, _ = s.SyscallConn() // without one, it is not looked at
	}
	c.look = func(fd uintptr) bool {
		var b [1]byte
		_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		c.calm = err == syscall.EAGAIN //nolint:errorlint // it comes from the kernel as it is
		return true
	}
	return c
}

// quiet reports whether an idle connection is open and holds nothing to be read.
func (c *conn) quiet() bool {
	if c.fd == nil {
		return true
	}
	c.calm = false
	return c.fd.Read(c.look) == nil && c.calm
}

func (c *conn) close() {
	c.once.Do(func() {
		c.host.client.open.Add(-1)
		c.in.free()
		_ = c.rw.Close() // nothing is owed to the other side
	})
}

// past is a deadline that ends all reading and writing at once.
var past = time.Unix(1, 0)

func (c *conn) abort() { _ = c.raw.SetDeadline(past) } // without one, Close will do

// exchange sends a request and reads the answer's head. If it fails, the connection
// must be closed.
func (c *conn) exchange(ctx context.Context, req *Request) (*Response, error) {
	c.answered = false
	stop := context.AfterFunc(ctx, c.abort)
	sending, unsent := c.send(req)
	if errors.Is(unsent, errHead) {
		stop()
		return nil, unsent
	}
	if unsent != nil { // there may be an answer that says why, but it is not waited for
		_ = c.raw.SetReadDeadline(time.Now().Add(time.Second))
	}
	h, err := c.in.head(req.Method)
	c.answered = c.in.some
	if err != nil {
		stop()
		if unsent != nil {
			err = unsent
		}
		return nil, err
	}
	return &Response{Status: h.status, Header: h.header, Length: h.length, conn: c, stop: stop, sending: sending, keep: unsent == nil && !h.close}, nil
}

// What is sent together with the head, and what is sent while the answer is awaited:
// a server may answer before it has read all, and read no more then.
const (
	joined = 8 << 10
	inline = 64 << 10
)

// send writes a request. The rest of a long one is under way when it returns; its end
// comes on the channel.
func (c *conn) send(req *Request) (sending chan error, err error) {
	b, _ := heads.Get().(*[]byte)
	if b == nil {
		b = new([]byte)
		*b = make([]byte, 0, joined)
	}
	put := func() {
		if cap(*b) <= 4*joined {
			heads.Put(b)
		}
	}
	if *b, err = appendHead((*b)[:0], req); err != nil {
		put()
		return nil, err
	}
	switch body := req.Body; {
	case len(*b)+len(body) <= joined:
		*b = append(*b, body...)
		_, err = c.rw.Write(*b)
	case len(body) <= inline:
		err = c.write(*b, body)
	default:
		sending = make(chan error, 1)
		release := req.hold()
		go func() {
			sending <- c.write(*b, body)
			put()
			release()
		}()
		return sending, nil
	}
	put()
	return nil, err
}

var heads sync.Pool // of *[]byte

// write writes both, in one call to the system if it can.
func (c *conn) write(head, body []byte) error {
	c.out = [2][]byte{head, body}
	both := net.Buffers(c.out[:])
	_, err := both.WriteTo(c.rw)
	c.out = [2][]byte{}
	return err
}

// errHead is for a request that would be read as something else than it is.
var errHead = errors.New("the request's method, target or header cannot be sent")

func appendHead(b []byte, req *Request) ([]byte, error) {
	if !isToken(req.Method) || !isTarget(req.Target) || !isTarget(req.Host) {
		return b, errHead
	}
	b = append(append(append(b, req.Method...), ' '), req.Target...)
	b = append(append(b, " HTTP/1.1\r\nHost: "...), req.Host...)
	for name, values := range req.Header {
		for _, value := range values {
			if !isToken(name) || !isValue(value) {
				return b, errHead
			}
			b = append(append(append(append(b, '\r', '\n'), name...), ": "...), value...)
		}
	}
	if len(req.Body) > 0 || req.Method == http.MethodPost || req.Method == http.MethodPut || req.Method == http.MethodPatch {
		b = strconv.AppendInt(append(b, "\r\nContent-Length: "...), int64(len(req.Body)), 10)
	}
	return append(b, "\r\n\r\n"...), nil
}

// isTarget reports whether s can stand in a request line.
func isTarget(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] == 0x7f {
			return false
		}
	}
	return s != ""
}

// Response is an answer. One goroutine at a time may use it.
type Response struct {
	Status int
	Header http.Header // may be changed
	Length int64       // of the body, -1 if it is not known

	conn    *conn
	sending chan error // nil if the request was sent before the head came
	stop    func() bool
	keep    bool // the connection, when all has been read
	piece   []byte
	err     error // after the piece
}

// Ready reports whether Next would not wait: some of the body has come, or its end.
func (r *Response) Ready() bool {
	if len(r.piece) == 0 && r.err == nil {
		r.piece, r.err = r.conn.in.decode()
	}
	return len(r.piece) > 0 || r.err != nil
}

// Next returns what has come of the body since, and waits if that is nothing. Its error
// is [io.EOF] with the last piece, if the end came with it, or after it. The piece is
// valid until the next call.
func (r *Response) Next() ([]byte, error) {
	for !r.Ready() {
		if err := r.conn.in.fill(); err != nil {
			r.err = r.conn.in.ended(err)
		}
	}
	piece := r.piece
	r.piece = nil
	return piece, r.err
}

// Read reads the body as an [io.Reader] does.
func (r *Response) Read(p []byte) (int, error) {
	if len(r.piece) == 0 {
		piece, err := r.Next()
		r.piece, r.err = piece, err
	}
	n := copy(p, r.piece)
	if r.piece = r.piece[n:]; len(r.piece) > 0 {
		return n, nil
	}
	return n, r.err
}

// Close ends the exchange. The connection is used again if the whole body has come.
func (r *Response) Close() {
	c := r.conn
	if c == nil {
		return
	}
	r.Ready() // a short rest may be here
	whole := r.keep && errors.Is(r.err, io.EOF) && c.in.empty()
	if r.sending != nil {
		select {
		case err := <-r.sending:
			whole = whole && err == nil
		default:
			whole = false // closing it ends that too
		}
	}
	if !r.stop() {
		whole = false
	}
	r.conn, r.piece = nil, nil
	if !whole {
		c.close()
		return
	}
	c.in.free()
	c.host.put(c)
}
