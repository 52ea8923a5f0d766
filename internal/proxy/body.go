package proxy

import (
	"context"
	"errors"
	"io"
	"math/bits"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

var errTooLarge = errors.New("body too large")

// buffers is memory for bodies, in classes that double from 4 KiB to 2 MiB.
type buffers struct{ classes [maxClass + 1]sync.Pool }

const (
	minClass = 12
	maxClass = 21
)

// body is a request's body in memory. Attempts read it after one another, and a
// transport may go on reading after it has returned an answer; the memory goes
// back when the last reader is closed.
type body struct {
	data  []byte
	class int // of its memory, -1 if that is not used again
	from  *buffers
	users atomic.Int32
}

// body returns a body of size bytes, with whatever is in the memory.
func (m *buffers) body(size int) *body {
	b := &body{class: -1, from: m}
	b.users.Store(1)
	if class := max(minClass, bits.Len(uint(max(1, size)-1))); class <= maxClass {
		b.class = class
		if spare, ok := m.classes[class].Get().(*[]byte); ok {
			b.data = (*spare)[:size]
		} else {
			b.data = make([]byte, size, 1<<class)
		}
	} else {
		b.data = make([]byte, size)
	}
	return b
}

// release ends one use of the memory.
func (b *body) release() {
	if b.users.Add(-1) == 0 && b.class >= 0 {
		spare := b.data[:0]
		b.data = nil
		b.from.classes[b.class].Put(&spare)
	}
}

// readBody reads a request's body of at most limit bytes.
func (m *buffers) readBody(r *http.Request, limit int64) (*body, error) {
	if r.ContentLength > limit {
		return nil, errTooLarge
	}
	if r.ContentLength >= 0 {
		b := m.body(int(r.ContentLength))
		if _, err := io.ReadFull(r.Body, b.data); err != nil {
			b.release()
			return nil, err
		}
		return b, nil
	}
	data, err := io.ReadAll(io.LimitReader(r.Body, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, errTooLarge
	}
	b := &body{data: data, class: -1}
	b.users.Store(1)
	return b, nil
}

// reader returns a reader of the whole body, which its user must close.
func (b *body) reader() io.ReadCloser {
	b.users.Add(1)
	return &bodyReader{body: b}
}

// getBody is reader, as http.Request wants it.
func (b *body) getBody() (io.ReadCloser, error) { return b.reader(), nil }

// bodyReader reads a body. Read and Close may be called at the same time, as
// transports do.
type bodyReader struct {
	mu   sync.Mutex
	body *body // nil when closed
	off  int
}

// Read fills p from what has not been read yet.
func (r *bodyReader) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.body == nil {
		return 0, http.ErrBodyReadAfterClose
	}
	if r.off == len(r.body.data) {
		return 0, io.EOF
	}
	n := copy(p, r.body.data[r.off:])
	r.off += n
	return n, nil
}

// Close ends the reading.
func (r *bodyReader) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.body != nil {
		r.body.release()
		r.body = nil
	}
	return nil
}

// writeTo writes at most limit bytes of what has not been read yet to w, without
// copying them on the way.
func (r *bodyReader) writeTo(w io.Writer, limit int64) (int64, error) {
	r.mu.Lock()
	b := r.body
	if b == nil {
		r.mu.Unlock()
		return 0, http.ErrBodyReadAfterClose
	}
	b.users.Add(1) // Close may come while the write waits
	rest := b.data[r.off:]
	rest = rest[:min(int64(len(rest)), limit)]
	r.off += len(rest)
	r.mu.Unlock()
	defer b.release()
	n, err := w.Write(rest)
	return int64(n), err
}

// conn is a connection to a replica. The transport hands a body of known length
// to its connection's ReadFrom as a limited reader; one of ours goes out in a
// single write instead of in copies of 32 KiB.
type conn struct{ *net.TCPConn }

// ReadFrom writes what it reads from src.
func (c conn) ReadFrom(src io.Reader) (int64, error) {
	if limited, ok := src.(*io.LimitedReader); ok {
		if body, ok := limited.R.(*bodyReader); ok {
			n, err := body.writeTo(c.TCPConn, limited.N)
			limited.N -= n
			return n, err
		}
	}
	return c.TCPConn.ReadFrom(src)
}

// dial returns a function for the transport that makes such connections.
func dial(timeout time.Duration) func(context.Context, string, string) (net.Conn, error) {
	d := &net.Dialer{Timeout: timeout, KeepAlive: keepAlive}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := d.DialContext(ctx, network, address)
		if tcp, ok := c.(*net.TCPConn); ok {
			return conn{tcp}, err
		}
		return c, err
	}
}

// keepAlive is the time between two signs of life on a silent connection: a host
// that has vanished is found out during a long prefill too.
const keepAlive = 30 * time.Second
