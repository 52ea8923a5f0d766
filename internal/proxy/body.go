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

var (
	errTooLarge = errors.New("body too large")
	errNoRoom   = errors.New("no room for the body")
)

// buffers is memory for bodies, in classes that double from 4 KiB to 2 MiB.
type buffers struct {
	classes [maxClass + 1]sync.Pool
	limit   int64        // bytes that bodies may take together, 0 for no limit
	used    atomic.Int64 // bytes that they take
}

const (
	minClass = 12
	maxClass = 21
)

// spareRoom is left behind a large body for what may be added to it.
const spareRoom = 256

// body is a request's body in memory. Attempts read it after one another, and a
// transport may go on reading after it has returned an answer; the memory goes
// back when the last reader is closed.
type body struct {
	data  []byte
	class int   // of its memory, -1 if that is not used again
	taken int64 // of the limit on all bodies
	from  *buffers
	users atomic.Int32
}

// reserve takes n more bytes for the body of those that all may take.
func (b *body) reserve(n int) error {
	if used := b.from.used.Add(int64(n)); b.from.limit > 0 && used > b.from.limit {
		b.from.used.Add(-int64(n))
		return errNoRoom
	}
	b.taken += int64(n)
	return nil
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
		b.data = make([]byte, size, size+spareRoom)
	}
	return b
}

// release ends one use of the memory.
func (b *body) release() {
	if b.users.Add(-1) > 0 {
		return
	}
	b.from.used.Add(-b.taken)
	if b.class >= 0 {
		spare := b.data[:0]
		b.data = nil
		b.from.classes[b.class].Put(&spare)
	}
}

// How much of a body is read, and counted, at a time: a client that says its body will
// be long takes little room of others before it sends.
const (
	firstStep = 64 << 10
	maxStep   = 1 << 20
)

// readBody reads a body that is said to be of length bytes, or -1, and may have limit.
func (m *buffers) readBody(from io.Reader, length, limit int64) (*body, error) {
	if length > limit {
		return nil, errTooLarge
	}
	if length < 0 {
		return m.readUnknown(from, limit)
	}
	b := m.body(int(length))
	for off := 0; off < len(b.data); {
		step := min(max(off, firstStep), maxStep, len(b.data)-off)
		err := b.reserve(step)
		if err == nil {
			_, err = io.ReadFull(from, b.data[off:off+step])
		}
		if err != nil {
			b.release()
			return nil, err
		}
		off += step
	}
	return b, nil
}

// readUnknown reads a body of which nobody said how long it is.
func (m *buffers) readUnknown(from io.Reader, limit int64) (*body, error) {
	b, n := m.body(1<<minClass), 0
	err := b.reserve(len(b.data))
	for err == nil {
		var more int
		more, err = from.Read(b.data[n:])
		n += more
		switch {
		case int64(n) > limit:
			err = errTooLarge
		case err == nil && n == len(b.data):
			err = b.grow()
		}
	}
	if !errors.Is(err, io.EOF) {
		b.release()
		return nil, err
	}
	b.data = b.data[:n]
	return b, nil
}

// grow doubles the body's memory. Nobody else may have the body yet.
func (b *body) grow() error {
	if err := b.reserve(len(b.data)); err != nil {
		return err
	}
	larger := b.from.body(2 * len(b.data))
	copy(larger.data, b.data)
	larger.data, b.data = b.data, larger.data
	larger.class, b.class = b.class, larger.class
	larger.release()
	return nil
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

// copies is memory for answers on their way. A stream holds its piece of it as long
// as it lives, and events are short.
type copies struct{ streams, wholes sync.Pool }

const (
	streamPiece = 2 << 10
	wholePiece  = 32 << 10
)

func (c *copies) get(stream bool) *[]byte {
	pool, size := &c.wholes, wholePiece
	if stream {
		pool, size = &c.streams, streamPiece
	}
	if b, ok := pool.Get().(*[]byte); ok {
		return b
	}
	b := make([]byte, size)
	return &b
}

func (c *copies) put(b *[]byte, stream bool) {
	if stream {
		c.streams.Put(b)
	} else {
		c.wholes.Put(b)
	}
}

// conn is a connection to a replica. The transport hands a body of known length
// to its connection's ReadFrom as a limited reader; one of ours goes out in a
// single write instead of in copies of 32 KiB.
type conn struct {
	*net.TCPConn
	count *atomic.Int64
	once  *sync.Once
}

// Close closes the connection, which is then counted no more.
func (c conn) Close() error {
	c.once.Do(func() { c.count.Add(-1) })
	return c.TCPConn.Close()
}

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

// dial returns a function for the transport that makes such connections, and counts
// those that are open.
func dial(timeout time.Duration, count *atomic.Int64) func(context.Context, string, string) (net.Conn, error) {
	d := &net.Dialer{Timeout: timeout, KeepAlive: keepAlive}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := d.DialContext(ctx, network, address)
		if tcp, ok := c.(*net.TCPConn); ok {
			count.Add(1)
			return conn{tcp, count, new(sync.Once)}, err
		}
		return c, err
	}
}

// keepAlive is the time between two signs of life on a silent connection: a host
// that has vanished is found out during a long prefill too.
const keepAlive = 30 * time.Second
