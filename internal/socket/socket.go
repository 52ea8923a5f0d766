// Package socket makes TCP connections whose reads and writes cost a gateway less.
//
// The Go runtime announces every system call to its scheduler, for the call may block:
// that wakes the runtime's monitor, a thread that from then on looks every 20 µs
// whether a processor has to be taken away from a call that lasts, until all processors
// are idle again. A read or write of a socket that does not block does no more than
// copy, and it is not worth a watch. With few connections the watch took a fifth of all
// that a request costs. Here such calls are made as the runtime makes its own: without
// a word to the scheduler. Waiting is the network poller's, as for every connection of
// package net.
//
// Where that is not known to work (raw.go says where it is), and under detectors of races
// and of bad memory, which have to be told of what the kernel writes, the calls are the
// usual ones.
package socket

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
)

// most is the most that one call copies: a processor that copies cannot be stopped for
// the garbage collector, and a mebibyte takes 0.1 to 0.2 ms.
const most = 1 << 20

// Conn is a TCP connection. Its methods may be used as those of every [net.Conn].
type Conn struct {
	*net.TCPConn
	in, out half
}

// half is one direction of a connection.
type half struct {
	mu     sync.Mutex
	by     func(func(fd uintptr) (done bool)) error // makes a call, and again when it could not be made
	call   func(fd uintptr) (done bool)
	pieces [2][]byte // what the call is for; both only for writing
	wait   bool      // until the call can be made
	n      int       // what came of it
	errno  syscall.Errno
}

// Wrap returns the connection that c is: a [*Conn] if c is a connection of TCP that can
// be one, or else c.
func Wrap(c net.Conn) net.Conn {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return c
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return c
	}
	s := &Conn{TCPConn: tcp}
	s.in.by, s.in.call = raw.Read, s.in.receive
	s.out.by, s.out.call = raw.Write, s.out.send
	return s
}

// Listener has the connections that it accepts wrapped.
type Listener struct{ net.Listener }

// Accept waits for the next connection.
func (l Listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return Wrap(c), nil
}

// Read reads what has come, and waits if that is nothing.
func (c *Conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	n, err := c.in.do(p, nil, true)
	if err != nil {
		return 0, c.failure("read", err)
	}
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

// Write writes all of p.
func (c *Conn) Write(p []byte) (int, error) {
	n, err := c.out.do(p, nil, true)
	return n, c.failure("write", err)
}

// Offer writes as much of a and then b as the system takes at once, and returns how
// much that is. It waits for nothing but a Write that is under way.
func (c *Conn) Offer(a, b []byte) (int, error) {
	n, err := c.out.do(a, b, false)
	return n, c.failure("write", err)
}

// Quiet reports whether the connection is open and nothing has come that is not read.
// It takes nothing, and waits for nothing but a Read that is under way.
func (c *Conn) Quiet() bool {
	_, err := c.in.do(nil, nil, false)
	return errors.Is(err, syscall.EAGAIN)
}

// do makes calls, for one caller at a time.
func (h *half) do(a, b []byte, wait bool) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pieces, h.wait, h.n, h.errno = [2][]byte{a, b}, wait, 0, 0
	err := h.by(h.call)
	h.pieces = [2][]byte{}
	if err == nil && h.errno != 0 {
		err = h.errno
	}
	return h.n, err
}

// receive reads once, or looks whether it could, if there is nowhere to read to.
func (h *half) receive(fd uintptr) bool {
	to := h.pieces[0]
	for {
		if len(to) == 0 {
			h.n, h.errno = peek(fd)
		} else {
			h.n, h.errno = read(fd, to[:min(len(to), most)])
		}
		switch {
		case h.errno == syscall.EINTR:
		case h.errno == syscall.EAGAIN && h.wait:
			return false
		default:
			return true
		}
	}
}

// send writes both pieces until the system takes no more.
func (h *half) send(fd uintptr) bool {
	for {
		a, b := h.pieces[0], h.pieces[1]
		if len(a) == 0 && len(b) == 0 {
			return true
		}
		a = a[:min(len(a), most)]
		b = b[:min(len(b), most-len(a))]
		n, errno := write(fd, a, b)
		switch errno {
		case 0:
			h.n += n
			h.pieces[0] = h.pieces[0][min(n, len(a)):]
			h.pieces[1] = h.pieces[1][n-min(n, len(a)):]
		case syscall.EINTR:
		case syscall.EAGAIN:
			return !h.wait
		default:
			h.errno = errno
			return true
		}
	}
}

// failure returns an error as package net has it.
func (c *Conn) failure(op string, err error) error {
	if err == nil {
		return nil
	}
	if errno, bare := err.(syscall.Errno); bare { //nolint:errorlint // one of do's own
		return &net.OpError{Op: op, Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: os.NewSyscallError(op, errno)}
	}
	if raw := (*net.OpError)(nil); errors.As(err, &raw) {
		raw.Op = op // it has that of the RawConn
	}
	return err
}
