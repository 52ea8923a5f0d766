package main

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
)

// progress tells how far a run is: on a terminal in one line with a bar that is
// written again and again, elsewhere in a line now and then. It is safe for
// concurrent use.
type progress struct {
	mu       sync.Mutex
	out      *os.File
	name     string
	unit     string // of total and done
	total    int    // 0 if it is not known
	terminal bool
	done     int
	began    time.Time
	told     time.Time
}

func newProgress(out *os.File, name, unit string, total int) *progress {
	info, err := out.Stat()
	now := time.Now()
	return &progress{out: out, name: name, unit: unit, total: total, terminal: err == nil && info.Mode()&os.ModeCharDevice != 0, began: now, told: now}
}

// step counts n more that came to an end, of which so many of the whole run failed.
func (p *progress) step(n, failed int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done += n
	every := 10 * time.Second
	if p.terminal {
		every = 200 * time.Millisecond
	}
	if now := time.Now(); now.Sub(p.told) >= every {
		p.told = now
		p.tell(failed)
	}
}

func (p *progress) tell(failed int) {
	count := fmt.Sprintf("%d %s", p.done, p.unit)
	if p.total > 0 {
		count = fmt.Sprintf("%d of %d %s", p.done, p.total, p.unit)
	}
	line := p.name + ": " + count + ", "
	if failed > 0 {
		line += fmt.Sprintf("%d failed, ", failed)
	}
	line += fmt.Sprintf("%.0f s", time.Since(p.began).Seconds())
	if !p.terminal {
		_, _ = fmt.Fprintln(p.out, line)
		return
	}
	_, _ = fmt.Fprintf(p.out, "\r%s%s\x1b[K", p.bar(), line)
}

// bar is how far the run is, if that is known.
func (p *progress) bar() string {
	if p.total == 0 {
		return ""
	}
	const width = 24
	full := min(width, width*p.done/p.total)
	return "[" + strings.Repeat("=", full) + strings.Repeat(" ", width-full) + "] "
}

// end clears the line.
func (p *progress) end() {
	if p.terminal {
		_, _ = fmt.Fprint(p.out, "\r\x1b[K")
	}
}
