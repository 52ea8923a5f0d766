package socket

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"
)

// pair returns a wrapped connection and its other side.
func pair(t *testing.T) (*Conn, *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	other, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c, err := Listener{l}.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = c.Close(), other.Close() })
	return c.(*Conn), other.(*net.TCPConn)
}

// noise returns n bytes that are the same in each run.
func noise(n int) []byte {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// TestAllBytesArriveInTheirOrder: more than one call copies, and than the system holds.
func TestAllBytesArriveInTheirOrder(t *testing.T) {
	for _, n := range []int{0, 1, 4096, 3*most + 17, 20 << 20} {
		c, other := pair(t)
		data := noise(n)
		var wg sync.WaitGroup
		wg.Go(func() {
			if m, err := c.Write(data); m != n || err != nil {
				t.Errorf("write of %d: %d, %v", n, m, err)
			}
			_ = c.CloseWrite()
		})
		wg.Go(func() {
			got, err := io.ReadAll(other)
			if err != nil || !bytes.Equal(got, data) {
				t.Errorf("of %d bytes %d came, or others: %v", n, len(got), err)
			}
			_, _ = other.Write(got)
			_ = other.CloseWrite()
		})
		wg.Go(func() {
			got, err := io.ReadAll(struct{ io.Reader }{c})
			if err != nil || !bytes.Equal(got, data) {
				t.Errorf("of %d bytes %d came back, or others: %v", n, len(got), err)
			}
		})
		wg.Wait()
	}
}

func TestAnOfferTakesWhatThereIsRoomFor(t *testing.T) {
	a, b := noise(1000), noise(20<<20)
	for name, pieces := range map[string][2][]byte{"both": {a, b}, "the first alone": {b, nil}, "the second alone": {nil, b}, "a long first": {b, a}} {
		c, other := pair(t)
		whole := append(bytes.Clone(pieces[0]), pieces[1]...)
		n, err := c.Offer(pieces[0], pieces[1])
		if err != nil || n == 0 || n == len(whole) {
			t.Errorf("%s: %d of %d, %v", name, n, len(whole), err)
		}
		if m, err := c.Offer(whole[n:], nil); m > len(whole)-n || err != nil {
			t.Errorf("%s: again %d, %v", name, m, err)
		} else {
			n += m
		}
		_ = c.CloseWrite()
		if got, err := io.ReadAll(other); err != nil || !bytes.Equal(got, whole[:n]) {
			t.Errorf("%s: %d bytes were offered, %d came, or others: %v", name, n, len(got), err)
		}
	}
	c, other := pair(t)
	if n, err := c.Offer(a, a); n != 2*len(a) || err != nil {
		t.Errorf("%d of what fits, %v", n, err)
	}
	if n, err := c.Offer(nil, nil); n != 0 || err != nil {
		t.Errorf("%d of nothing, %v", n, err)
	}
	_ = c.CloseWrite()
	if got, _ := io.ReadAll(other); !bytes.Equal(got, append(bytes.Clone(a), a...)) {
		t.Errorf("%d bytes came", len(got))
	}
}

func TestQuietIsOpenWithNothingToRead(t *testing.T) {
	eventually := func(c *Conn, want bool, what string) {
		t.Helper()
		for range 1000 {
			if c.Quiet() == want {
				return
			}
			time.Sleep(time.Millisecond)
		}
		t.Errorf("%s: quiet is not %v", what, want)
	}
	c, other := pair(t)
	eventually(c, true, "new")
	_, _ = other.Write([]byte("x"))
	eventually(c, false, "a byte has come")
	if n, err := c.Read(make([]byte, 2)); n != 1 || err != nil {
		t.Errorf("the byte was taken: %d, %v", n, err)
	}
	eventually(c, true, "it was read")
	_ = other.Close()
	eventually(c, false, "the other side has closed")
	_ = c.Close()
	eventually(c, false, "closed")
	c, other = pair(t)
	_, _ = other.SetLinger(0), other.Close()
	eventually(c, false, "reset")
}

// TestErrorsAreThoseOfPackageNet, which callers tell apart.
func TestErrorsAreThoseOfPackageNet(t *testing.T) {
	one := make([]byte, 1)
	much := make([]byte, 20<<20)
	write := func(c *Conn) error { _, err := c.Write(much); return err }
	read := func(c *Conn) error { _, err := c.Read(one); return err }
	offer := func(c *Conn) error { _, err := c.Offer(one, nil); return err }
	soon := func(c *Conn, _ *net.TCPConn) { _ = c.SetDeadline(time.Now().Add(10 * time.Millisecond)) }
	closed := func(c *Conn, _ *net.TCPConn) { _ = c.Close() }
	reset := func(_ *Conn, other *net.TCPConn) {
		_, _ = other.SetLinger(0), other.Close()
		time.Sleep(20 * time.Millisecond) // until that has come
	}
	for _, test := range []struct {
		name  string
		state func(*Conn, *net.TCPConn)
		do    func(*Conn) error
		want  error
		op    string
	}{
		{"read past a deadline", soon, read, os.ErrDeadlineExceeded, "read"},
		{"write past a deadline", soon, write, os.ErrDeadlineExceeded, "write"},
		{"read of a closed one", closed, read, net.ErrClosed, "read"},
		{"write to a closed one", closed, write, net.ErrClosed, "write"},
		{"offer to a closed one", closed, offer, net.ErrClosed, "write"},
		{"read of a reset one", reset, read, syscall.ECONNRESET, "read"},
		{"write to a reset one", reset, write, syscall.EPIPE, "write"},
		{"read at the end", func(_ *Conn, other *net.TCPConn) { _ = other.Close() }, read, io.EOF, ""},
	} {
		c, other := pair(t)
		test.state(c, other)
		err := test.do(c)
		if errors.Is(err, syscall.ECONNRESET) && errors.Is(test.want, syscall.EPIPE) {
			err = test.want // the first call after a reset may have that
		} else if op := (*net.OpError)(nil); test.op != "" && (!errors.As(err, &op) || op.Op != test.op || op.Timeout() != errors.Is(test.want, os.ErrDeadlineExceeded)) {
			t.Errorf("%s: %#v", test.name, err)
		}
		if !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", test.name, err, test.want)
		}
	}
}

func TestClosingWakesWhoeverWaits(t *testing.T) {
	c, _ := pair(t)
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("read: %v", err)
		}
	})
	wg.Go(func() {
		if _, err := c.Write(make([]byte, 20<<20)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("write: %v", err)
		}
	})
	time.Sleep(20 * time.Millisecond)
	_ = c.Close()
	wg.Wait()
}

func TestWritesOfManyDoNotMix(t *testing.T) {
	c, other := pair(t)
	const each = 3 << 20
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() { _, _ = c.Write(bytes.Repeat([]byte{byte('a' + i)}, each)) })
	}
	go func() {
		wg.Wait()
		_ = c.CloseWrite()
	}()
	got, _ := io.ReadAll(other)
	if len(got) != 4*each {
		t.Fatalf("%d bytes came", len(got))
	}
	for run := range 4 {
		if part := got[run*each : (run+1)*each]; bytes.Count(part, part[:1]) != each {
			t.Error("two writes were mixed")
		}
	}
}

func TestNetHTTPServesOverIt(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body)
	}))
	s.Listener = Listener{s.Listener}
	s.StartTLS()
	defer s.Close()
	data := noise(5 << 20)
	for range 3 {
		resp, err := s.Client().Post(s.URL, "", bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes, or others: %v", len(got), err)
		}
	}
}

func TestWrapLeavesOthersAsTheyAre(t *testing.T) {
	a, b := net.Pipe()
	defer func() { _, _ = a.Close(), b.Close() }()
	if Wrap(a) != a {
		t.Error("a pipe was wrapped")
	}
	c, _ := pair(t)
	if Wrap(c) != net.Conn(c) {
		t.Error("a wrapped connection was wrapped again")
	}
}

func BenchmarkExchange(b *testing.B) {
	for name, wrap := range map[string]func(net.Conn) net.Conn{"net": func(c net.Conn) net.Conn { return c }, "socket": Wrap} {
		b.Run(name, func(b *testing.B) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = l.Close() }()
			go func() {
				c, err := l.Accept()
				if err != nil {
					return
				}
				c = wrap(c)
				p := make([]byte, 256)
				for {
					n, err := c.Read(p)
					if err != nil {
						return
					}
					_, _ = c.Write(p[:n])
				}
			}()
			c, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = c.Close() }()
			c = wrap(c)
			p := make([]byte, 256)
			b.ReportAllocs()
			for b.Loop() {
				_, _ = c.Write(p)
				_, _ = c.Read(p)
			}
		})
	}
}
