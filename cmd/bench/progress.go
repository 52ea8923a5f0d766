package main

import (
	"fmt"
	"os"
	"time"
)

// progress tells how far a run is: on a terminal in one line that is written
// again and again, elsewhere in a line now and then.
type progress struct {
	out      *os.File
	name     string
	total    int
	terminal bool
	done     int
	began    time.Time
	told     time.Time
}

func newProgress(out *os.File, name string, total int) *progress {
	info, err := out.Stat()
	now := time.Now()
	return &progress{out: out, name: name, total: total, terminal: err == nil && info.Mode()&os.ModeCharDevice != 0, began: now, told: now}
}

// step counts n more requests that came to an end.
func (p *progress) step(n, failed int) {
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
	format := "%s: %d of %d requests, %d failed, %.0f s\n"
	if p.terminal {
		format = "\r%s: %d of %d requests, %d failed, %.0f s\x1b[K"
	}
	_, _ = fmt.Fprintf(p.out, format, p.name, p.done, p.total, failed, time.Since(p.began).Seconds())
}

// end clears the line.
func (p *progress) end() {
	if p.terminal {
		_, _ = fmt.Fprint(p.out, "\r\x1b[K")
	}
}
