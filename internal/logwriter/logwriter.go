// Package logwriter writes a log for those who must not wait for it. Lines are kept in
// memory for a moment and go out many at a time, on a goroutine of their own: a request
// costs no system call for its line, and whoever reads the log and stands still holds
// up nobody.
package logwriter

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"time"
)

// delay is how long a line waits for others, unless it is a warning or worse.
const delay = 100 * time.Millisecond

// most is how many bytes wait while those before them are written. Lines beyond that
// are dropped and counted.
const most = 1 << 20

// Writer is the end of a log. Make it with [New]; it is safe for concurrent use.
type Writer struct {
	to      io.Writer
	dropped func(lines int)

	mu      sync.Mutex
	waiting []byte
	spare   []byte
	lost    int         // lines dropped that nobody was told of
	timer   *time.Timer // of the next flush
	hurried bool        // it is due
	writing bool        // to is being written to
	written sync.Cond   // that it is not any more
}

// New returns a writer to to. It calls dropped when lines had to be dropped and others
// can be written again. Close it at the end.
func New(to io.Writer, dropped func(lines int)) *Writer {
	w := &Writer{to: to, dropped: dropped}
	w.written.L = &w.mu
	w.timer = time.AfterFunc(delay, w.flush)
	return w
}

// Write takes a line to be written, or drops it. It does not fail.
func (w *Writer) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.waiting) > 0 && len(w.waiting)+len(line) > most {
		w.lost++
		return len(line), nil
	}
	if len(w.waiting) == 0 {
		w.timer.Reset(delay)
	}
	w.waiting = append(w.waiting, line...)
	return len(line), nil
}

// hurry has what waits written at once.
func (w *Writer) hurry() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.waiting) > 0 && !w.hurried {
		w.hurried = true
		w.timer.Reset(0)
	}
}

// flush writes what waits, unless a flush before this one still does: then that has
// another follow.
func (w *Writer) flush() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.writing {
		return
	}
	w.write()
	switch {
	case len(w.waiting) == 0:
	case w.hurried:
		w.timer.Reset(0)
	default:
		w.timer.Reset(delay)
	}
}

// write writes what waits. The lock is open meanwhile.
func (w *Writer) write() {
	lines, lost := w.waiting, w.lost
	w.waiting, w.spare, w.lost = w.spare[:0], nil, 0
	w.hurried, w.writing = false, true
	w.mu.Unlock()
	if len(lines) > 0 {
		_, _ = w.to.Write(lines) // there is nobody to tell
	}
	if lost > 0 {
		w.dropped(lost)
	}
	w.mu.Lock()
	w.spare, w.writing = lines[:0], false
	w.written.Broadcast()
}

// patience is how long Close waits for a reader that stands still.
const patience = time.Second

// Close writes what waits, if that can be done soon. A line that comes later is written
// as before.
func (w *Writer) Close() {
	done := make(chan struct{})
	go func() {
		w.drain()
		close(done)
	}()
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case <-done:
	case <-late.C:
	}
}

func (w *Writer) drain() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.writing || len(w.waiting) > 0 || w.lost > 0 { // that lines were dropped is a line, too
		if w.writing {
			w.written.Wait()
		} else {
			w.write()
		}
	}
}

// Handler returns a handler that logs through h, which must write to w, and has
// warnings and what is worse written at once.
func (w *Writer) Handler(h slog.Handler) slog.Handler { return handler{h, w} }

type handler struct {
	slog.Handler
	w *Writer
}

// Handle logs a record.
func (h handler) Handle(ctx context.Context, r slog.Record) error {
	err := h.Handler.Handle(ctx, r)
	if r.Level >= slog.LevelWarn {
		h.w.hurry()
	}
	return err
}

// WithAttrs returns a handler whose records have attributes.
func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return handler{h.Handler.WithAttrs(attrs), h.w}
}

// WithGroup returns a handler whose records have a group.
func (h handler) WithGroup(name string) slog.Handler {
	return handler{h.Handler.WithGroup(name), h.w}
}
