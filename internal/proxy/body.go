package proxy

import (
	"bytes"
	"errors"
	"io"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
)

var (
	errTooLarge = errors.New("body too large")
	errNoRoom   = errors.New("no room for the body")
)

// buffers is memory for bodies, in classes that double from 4 KiB to 8 MiB.
type buffers struct {
	classes [maxClass + 1]sync.Pool
	limit   int64        // bytes that bodies may take together, 0 for no limit
	used    atomic.Int64 // bytes that they take
}

const (
	minClass = 12
	maxClass = 23
)

// spareRoom is left behind a large body for what may be added to it.
const spareRoom = 256

// body is a request's body in memory. Attempts send it after one another, and one may
// go on sending when its answer has begun; the memory goes back when the last use ends.
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

// add writes a member behind the last of the body, which must be a JSON object: of two
// with one name the engine's parser takes the last. Nobody else may have the body yet,
// and what was found in it is found no more.
func (b *body) add(member string) error {
	at := bytes.LastIndexByte(b.data, '}')
	if !bytes.HasSuffix(bytes.TrimSpace(b.data[:at]), []byte("{")) {
		member = "," + member
	}
	if err := b.reserve(len(member)); err != nil {
		return err
	}
	n := len(b.data)
	if cap(b.data) >= n+len(member) {
		b.data = slices.Insert(b.data, at, []byte(member)...)
		return nil
	}
	larger := b.from.body(n + len(member))
	copy(larger.data, b.data[:at])
	copy(larger.data[at:], member)
	copy(larger.data[at+len(member):], b.data[at:])
	larger.data, b.data = b.data, larger.data
	larger.class, b.class = b.class, larger.class
	larger.release()
	return nil
}

// use returns the function that ends one more use of the memory.
func (b *body) use() func() {
	b.users.Add(1)
	return b.release
}
