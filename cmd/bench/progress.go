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
	unit     string // of total and done
	total    int
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

// step counts n more that came to an end.
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
	line := fmt.Sprintf("%s: %d of %d %s, ", p.name, p.done, p.total, p.unit)
	if failed > 0 {
		line += fmt.Sprintf("%d failed, ", failed)
	}
	line += fmt.Sprintf("%.0f s", time.Since(p.began).Seconds())
	if p.terminal {
		line = "\r" + line + "\x1b[K"
	} else {
		line += "\n"
	}
	_, _ = fmt.Fprint(p.out, line)
}

// end clears the line.
func (p *progress) end() {
	if p.terminal {
		_, _ = fmt.Fprint(p.out, "\r\x1b[K")
	}
}
