package proxy

import (
	"bytes"

	"github.com/warmpath/warmpath/internal/openai"
)

// This file asks engines for usage on behalf of clients who did not, and takes out of
// the answer what comes of that, so that the client gets what it would have got.

// How usage is come by, for [Config.Usage].
const (
	UsageWatch = "watch" // read where the client asked for it
	UsageAsk   = "ask"   // asked for where a streaming client said nothing about it
)

// asking is the member that is added to a body.
const asking = `"stream_options":{"include_usage":true}`

// askUsage adds to the body of a streaming request, before its last brace, that usage
// is wanted. What a client says of stream_options, whatever it is, stays.
func (x *exchange) askUsage() {
	x.unasked.reset()
	if x.p.cfg.Usage != UsageAsk || !x.openai.Stream || x.openai.StreamOptions ||
		x.endpoint != openai.Chat && x.endpoint != openai.Completions {
		return
	}
	x.unasked.on = x.body.add(asking) == nil // else there is no room: it goes as it is
}

// unasked takes the chunk out of a stream that only tells usage. It holds back an
// event until it is whole, and what it lets pass it does not touch.
type unasked struct {
	on, done  bool
	held, out []byte
}

// maxHeld is the longest event that is held back.
const maxHeld = 64 << 10

// reset is for the next request.
func (u *unasked) reset() {
	u.on = false
	u.restart()
}

// restart is for another attempt's stream.
func (u *unasked) restart() {
	u.done, u.held, u.out = false, u.held[:0], u.out[:0]
}

// pass takes a piece of the stream and returns what of it goes on now, which is valid
// until the next call.
func (u *unasked) pass(piece []byte) []byte {
	if !u.on || u.done {
		return piece
	}
	u.held = append(u.held, piece...)
	u.out = u.out[:0]
	rest := u.held
	for !u.done {
		n := eventEnd(rest)
		if n < 0 {
			break
		}
		if tellsUsageAlone(rest[:n]) {
			u.done = true
		} else {
			u.out = append(u.out, rest[:n]...)
		}
		rest = rest[n:]
	}
	if u.done || len(rest) > maxHeld {
		u.out = append(u.out, rest...)
		rest = rest[:0]
	}
	u.held = append(u.held[:0], rest...)
	return u.out
}

// rest returns what is held back at the stream's end.
func (u *unasked) rest() []byte {
	if !u.on {
		return nil
	}
	rest := u.held
	u.held = u.held[:0]
	return rest
}

// eventEnd returns the length of the first event with its blank line, -1 if it is not whole.
func eventEnd(b []byte) int {
	for i := 0; ; {
		n := bytes.IndexByte(b[i:], '\n')
		if n < 0 {
			return -1
		}
		i += n + 1
		switch {
		case i < len(b) && b[i] == '\n':
			return i + 1
		case i+1 < len(b) && b[i] == '\r' && b[i+1] == '\n':
			return i + 2
		}
	}
}

// tellsUsageAlone reports whether an event is the chunk that include_usage adds: no
// choices, and usage.
func tellsUsageAlone(event []byte) bool {
	data, ok := bytes.CutPrefix(event, []byte("data:"))
	if !ok || !bytes.Contains(data, []byte(`"usage"`)) {
		return false
	}
	e := openai.ParseEvent(bytes.TrimSpace(data))
	return e.UsageSeen && e.NoChoices && !e.Failed
}
