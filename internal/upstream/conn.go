package upstream

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/internal/socket"
)

// conn is a connection. One request at a time owns it.
type conn struct {
	host  *Host
	raw   net.Conn
	rw    net.Conn // raw, or TLS on it
	in    reader
	since time.Time // when it became idle

	answered bool // a byte of the answer to the last request has come
	once     sync.Once
}

func newConn(h *Host, raw net.Conn) *conn {
	h.client.open.Add(1)
	raw = socket.Wrap(raw)
	c := &conn{host: h, raw: raw, rw: raw}
	c.in.src = raw
	return c
}

// quiet reports whether an idle connection is open and holds nothing to be read.
func (c *conn) quiet() bool {
	s, ok := c.raw.(*socket.Conn)
	return !ok || s.Quiet() // another is not looked at
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
	rest, unsent := c.send(req)
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
	return &Response{Status: h.status, Header: h.header, Length: h.length, conn: c, stop: stop, sending: rest, keep: unsent == nil && !h.close}, nil
}

// joined is the longest request that is copied into one piece.
const joined = 8 << 10

// send writes a request. A server may answer before it has read all of a long one, and
// read no more then: what the system does not take at once is under way when send
// returns.
func (c *conn) send(req *Request) (rest *sending, err error) {
	b := new(headBuffer)
	if spare, ok := heads.Get().(*headBuffer); ok {
		b = spare
	}
	defer func() {
		if rest == nil && cap(*b) <= 2*joined {
			heads.Put(b)
		}
	}()
	if *b, err = appendHead((*b)[:0], req); err != nil {
		return nil, err
	}
	head, body := *b, req.Body
	if len(head)+len(body) <= joined {
		*b = append(head, body...)
		_, err = c.rw.Write(*b)
		return nil, err
	}
	n := 0
	if s, ok := c.rw.(*socket.Conn); ok {
		if n, err = s.Offer(head, body); err != nil || n == len(head)+len(body) {
			return nil, err
		}
	}
	head, body = head[min(n, len(head)):], body[max(0, n-len(head)):]
	rest = new(sending)
	release := req.hold()
	go func() {
		both := net.Buffers{head, body}
		_, err := both.WriteTo(c.rw)
		release()
		rest.end(c, err == nil)
	}()
	return rest, nil
}

// sending is the rest of a request that is sent while its answer is awaited. Of its
// end and the answer's, the later one decides what becomes of the connection.
type sending struct {
	ends  atomic.Int32
	whole [2]bool
}

func (s *sending) end(c *conn, whole bool) {
	s.whole[0] = whole
	s.meet(c)
}

func (s *sending) answered(c *conn, whole bool) {
	if s.whole[1] = whole; whole {
		_ = c.raw.SetWriteDeadline(time.Now().Add(lateWrite)) // without one, it may stay open
	} else {
		c.abort()
	}
	s.meet(c)
}

// lateWrite is how long a request may be on its way yet when its answer is over. Most
// often it has been sent, and the goroutine that did it has not run since.
const lateWrite = 50 * time.Millisecond

func (s *sending) meet(c *conn) {
	if s.ends.Add(1) < 2 {
		return
	}
	if s.whole[0] && s.whole[1] {
		_ = c.raw.SetWriteDeadline(time.Time{})
	}
	c.finish(s.whole[0] && s.whole[1])
}

// finish ends the use of a connection, and keeps it if it can be used again.
func (c *conn) finish(whole bool) {
	if whole {
		c.host.put(c)
	} else {
		c.close()
	}
}

type headBuffer []byte

var heads sync.Pool // of *headBuffer

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
	sending *sending // nil if the request was sent before the head came
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

// Close ends the exchange. The connection is used again if the whole body has come.
func (r *Response) Close() {
	c := r.conn
	if c == nil {
		return
	}
	r.Ready() // a short rest may be here
	whole := r.keep && errors.Is(r.err, io.EOF) && c.in.empty()
	whole = r.stop() && whole
	r.conn, r.piece = nil, nil
	c.in.free()
	if r.sending != nil {
		r.sending.answered(c, whole)
	} else {
		c.finish(whole)
	}
}
