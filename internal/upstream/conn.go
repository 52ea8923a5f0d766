package upstream

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
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

	answered bool       // a byte of the answer to the last request has come
	sending  chan error // ends what is under way of that request; nil if nothing is
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
	if s, ok := c.raw.(*socket.Conn); ok && !s.Quiet() {
		return false
	}
	if c.rw == c.raw {
		return true
	}
	_ = c.raw.SetReadDeadline(past) // TLS reads more than it hands out: what it holds is seen, and nothing waited for
	var b [1]byte
	n, err := c.rw.Read(b[:])
	_ = c.raw.SetReadDeadline(time.Time{})
	return n == 0 && errors.Is(err, os.ErrDeadlineExceeded)
}

// close ends the connection, and all use of the request that was last sent on it.
func (c *conn) close() {
	c.host.client.open.Add(-1)
	c.in.free()
	_ = c.raw.Close() // nothing is owed to the other side; TLS would wait up to 5 s to say goodbye to one that reads nothing
	c.sent(false)
}

// past is a deadline that ends all reading and writing at once.
var past = time.Unix(1, 0)

func (c *conn) abort() { _ = c.raw.SetDeadline(past) } // without one, Close will do

// exchange sends a request and reads the answer's head. If it fails, the connection
// must be closed.
func (c *conn) exchange(ctx context.Context, req *Request) (*Response, error) {
	c.answered = false
	stop := context.AfterFunc(ctx, c.abort)
	unsent := c.send(req)
	if unsent != nil { // there may be an answer that says why, but it is not waited for
		_ = c.raw.SetReadDeadline(time.Now().Add(time.Second))
		if ctx.Err() != nil { // abort may have been before
			c.abort()
		}
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
	return &Response{Status: h.status, Header: h.header, Length: h.length, conn: c, stop: stop, keep: unsent == nil && !h.close}, nil
}

// joined is the longest request that is copied into one piece.
const joined = 8 << 10

// send writes a request. A server may answer before it has read all of a long one, and
// read no more then: what the system does not take at once is under way when send
// returns.
func (c *conn) send(req *Request) (err error) {
	b := new(headBuffer)
	if spare, ok := heads.Get().(*headBuffer); ok {
		b = spare
	}
	*b = appendHead((*b)[:0], req)
	head, body := *b, req.Body
	n := 0
	if len(head)+len(body) <= joined {
		*b = append(head, body...)
		_, err = c.rw.Write(*b)
		n = len(head) + len(body)
	} else if s, ok := c.rw.(*socket.Conn); ok {
		n, err = s.Offer(head, body)
	}
	if err == nil && n < len(head)+len(body) {
		c.sending = make(chan error, 1)
		both := net.Buffers{head[min(n, len(head)):], body[max(0, n-len(head)):]}
		release := func() {}
		if req.Hold != nil {
			release = req.Hold()
		}
		go func() {
			_, err := both.WriteTo(c.rw)
			release()
			c.sending <- err
		}()
		return nil
	}
	if cap(*b) <= 2*joined {
		heads.Put(b)
	}
	return err
}

// lateWrite is how long a request may be on its way yet when its answer is over. Most
// often it has been sent, and the goroutine that did it has not run since.
const lateWrite = 50 * time.Millisecond

// sent waits until nothing of a request is being sent any more, not for long if that is
// to end well, and reports whether it did.
func (c *conn) sent(well bool) bool {
	if c.sending == nil {
		return well
	}
	if well {
		_ = c.raw.SetWriteDeadline(time.Now().Add(lateWrite)) // without one, Close will do
	} else {
		c.abort()
	}
	err := <-c.sending
	c.sending = nil
	if well && err == nil {
		_ = c.raw.SetWriteDeadline(time.Time{})
	}
	return well && err == nil
}

type headBuffer []byte

var heads sync.Pool // of *headBuffer

// ErrRequest is for a request that would be read as something else than it is. Nothing
// of it is sent.
var ErrRequest = errors.New("the request's method, target or header cannot be sent")

// sendable reports whether nothing of the request's head can be taken for more than it is.
func (r *Request) sendable() bool {
	for name, values := range r.Header {
		if !isToken(name) {
			return false
		}
		for _, v := range values {
			if !isValue(v) {
				return false
			}
		}
	}
	return isToken(r.Method) && isTarget(r.Target) && isTarget(r.Host)
}

func appendHead(b []byte, req *Request) []byte {
	b = append(append(append(b, req.Method...), ' '), req.Target...)
	b = append(append(b, " HTTP/1.1\r\nHost: "...), req.Host...)
	for name, values := range req.Header {
		for _, value := range values {
			b = append(append(append(append(b, '\r', '\n'), name...), ": "...), value...)
		}
	}
	if len(req.Body) > 0 || req.Method == http.MethodPost || req.Method == http.MethodPut || req.Method == http.MethodPatch {
		b = strconv.AppendInt(append(b, "\r\nContent-Length: "...), int64(len(req.Body)), 10)
	}
	return append(b, "\r\n\r\n"...)
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

	conn  *conn
	stop  func() bool
	keep  bool // the connection, when all has been read
	piece []byte
	err   error // after the piece
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
	if c.sent(whole) {
		c.in.free()
		c.host.put(c)
	} else {
		c.close()
	}
}
