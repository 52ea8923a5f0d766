package logwriter

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// sink takes writes, and stands still until released is closed, if it is not nil.
type sink struct {
	released chan struct{}
	mu       sync.Mutex
	writes   []string
}

// all returns what was written, with a bar after each write.
func (s *sink) all() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.writes, "|")
}

func (s *sink) Write(b []byte) (int, error) {
	if s.released != nil {
		<-s.released
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes = append(s.writes, string(b))
	return len(b), nil
}

func none(t *testing.T) func(int) {
	return func(n int) { t.Errorf("%d lines were dropped", n) }
}

func TestLinesGoOutTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := &sink{}
		w := New(to, none(t))
		for i := range 3 {
			_, _ = fmt.Fprintf(w, "%d\n", i)
			time.Sleep(delay / 4)
		}
		synctest.Wait()
		if early := to.all(); early != "" {
			t.Errorf("%q was written already", early)
		}
		time.Sleep(delay)
		synctest.Wait()
		_, _ = fmt.Fprintf(w, "later\n")
		w.Close()
		w.Close()
		if got := to.all(); got != "0\n1\n2\n|later\n" {
			t.Errorf("%q was written", got)
		}
	})
}

func TestAWarningDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := &sink{}
		w := New(to, none(t))
		log := slog.New(w.Handler(slog.NewTextHandler(w, nil))).With("component", "c").WithGroup("g")
		log.Info("first")
		log.Warn("second", "a", 1)
		log.Error("third")
		synctest.Wait()
		all := to.all()
		if strings.Count(all, "\n") != 3 || !strings.Contains(all, "second component=c g.a=1") {
			t.Errorf("%q was written at once", all)
		}
		log.Info("fourth")
		synctest.Wait()
		if strings.Contains(to.all(), "fourth") {
			t.Error("what is no warning did not wait")
		}
		w.Close()
	})
}

// TestAReaderThatStandsStillHoldsUpNobody: memory is bounded, what is lost is told, and
// no line is torn.
func TestAReaderThatStandsStillHoldsUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to, told := &sink{released: make(chan struct{})}, 0
		w := New(to, func(n int) { told += n })
		line := append(bytes.Repeat([]byte("x"), 1023), '\n')
		const lines = 5000
		for range lines {
			_, _ = w.Write(line)
			w.hurry()
			time.Sleep(time.Millisecond)
		}
		if n := len(w.waiting); n > most {
			t.Errorf("%d bytes wait, at most %d may", n, most)
		}
		close(to.released)
		time.Sleep(2 * delay)
		synctest.Wait()
		all := strings.ReplaceAll(to.all(), "|", "")
		if written := len(all) / len(line); written+told != lines || len(all)%len(line) != 0 || told == 0 {
			t.Errorf("of %d lines %d were written and %d told to be dropped", lines, written, told)
		}
	})
}

func TestCloseDoesNotWaitForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := &sink{released: make(chan struct{})}
		w := New(to, none(t))
		began := time.Now()
		_, _ = fmt.Fprintln(w, "a line")
		time.Sleep(2 * delay) // it is being written
		_, _ = fmt.Fprintln(w, "another")
		w.Close()
		if took := time.Since(began); took > 2*patience {
			t.Errorf("it took %v", took)
		}
		close(to.released)
		synctest.Wait()
		if to.all() != "a line\n|another\n" {
			t.Errorf("%q was written", to.all())
		}
	})
}

// TestNothingIsLostBesideClose: neither that lines were dropped, nor a line that comes
// while it writes, nor the ones behind that.
func TestNothingIsLostBesideClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := &sink{released: make(chan struct{})}
		var log *slog.Logger
		w := New(to, func(n int) { log.Warn("dropped", "lines", n) })
		log = slog.New(w.Handler(slog.NewTextHandler(w, nil)))
		log.Info("first")
		time.Sleep(2 * delay) // it is being written
		for range 2 * most >> 10 {
			_, _ = fmt.Fprintln(w, strings.Repeat("x", 1<<10))
		}
		time.AfterFunc(patience/2, func() { close(to.released) })
		w.Close()
		if !strings.Contains(to.all(), "dropped") {
			t.Error("nobody was told of what was dropped")
		}
	})
	synctest.Test(t, func(t *testing.T) {
		to := &sink{released: make(chan struct{})}
		w := New(to, none(t))
		log := slog.New(w.Handler(slog.NewTextHandler(w, nil)))
		log.Info("first")
		go w.Close()
		synctest.Wait()
		log.Warn("while it writes")
		synctest.Wait()
		close(to.released)
		time.Sleep(10 * delay)
		log.Info("afterwards")
		time.Sleep(10 * delay)
		synctest.Wait()
		for _, line := range []string{"while it writes", "afterwards"} {
			if !strings.Contains(to.all(), line) {
				t.Errorf("%q is not in %q", line, to.all())
			}
		}
	})
}

func TestALineOfAnyLengthIsWritten(t *testing.T) {
	to := &sink{}
	w := New(to, none(t))
	long := strings.Repeat("y", 2*most)
	_, _ = w.Write([]byte(long))
	w.Close()
	if to.all() != long {
		t.Error("it was not")
	}
}

func BenchmarkWrite(b *testing.B) {
	w := New(&bytes.Buffer{}, func(int) {})
	line := bytes.Repeat([]byte("x"), 200)
	b.ReportAllocs()
	for b.Loop() {
		_, _ = w.Write(line)
	}
}
