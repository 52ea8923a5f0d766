// Package prefix gives prompts an identity by which their beginnings can be
// compared, and keeps an index of which replica's KV cache holds which beginnings.
//
// A prompt becomes a [Chain]: a row of cuts, each with a hash of everything before
// it, so that two prompts share exactly the cuts of their common beginning. The
// cuts are placed by a fixed rule from what the client sent and nothing else: two
// gateways that have learned different things still cut alike. What is learned
// (tokens per byte, block sizes, capacities) enters the numbers that cuts carry,
// never their places.
package prefix

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/cespare/xxhash/v2"

	"github.com/warmpath/warmpath/internal/jsonscan"
)

// Hash stands for the whole prompt up to a cut: equal hashes mean equal
// beginnings of one model, salt and adapter.
type Hash uint64

// Cut is a place in a prompt where it may be compared with others.
type Cut struct {
	Hash   Hash
	Tokens int32 // tokens from the start up to here; an estimate unless the chain is Exact
}

// Span is a run of cuts: after cut Begin, up to and including cut End.
type Span struct{ Begin, End int32 }

// Chain is the identity of one prompt.
type Chain struct {
	Cuts []Cut
	// Answers are the runs of messages that a model generated. An engine that
	// produced such a run holds its KV cache as well, though the prompt it came
	// from ended at Begin.
	Answers []Span
	Tokens  int32 // of the whole prompt
	Exact   bool  // tokens were counted, not estimated (the client sent token ids)
}

// The rule by which text is cut: every zone's size of bytes since the last cut,
// and at the end of the tools and of every message, because that is where shared
// prompts and conversations part. Short prompts are cut finely: a missed
// 128 tokens matter to them; a 100 KB prompt has some 75 cuts and a 512 KB one
// some 136. (routing.md C3 would leave out the ends of short messages. With them
// a chain is a function of the prompt's beginning alone, and the end of every
// turn is a place where the next turn can be recognised.)
const (
	textRule  = "text/1"
	zone1, z1 = 16 << 10, 512
	zone2, z2 = 128 << 10, 2 << 10
	z3        = 8 << 10
)

// The rule for prompts of token ids: whole engine blocks of the usual size, in
// multiples of it farther on.
const (
	tokenRule   = "token/1"
	tzone1, tz1 = 4096, 16
	tzone2, tz2 = 32768, 64
	tz3         = 256
)

// Bounds on what one request may put into the index.
const (
	maxCuts   = 1 << 15
	maxChains = 256
)

// Tokens are estimated in twentieths, so that the weights are whole numbers:
// 0.25 a byte of ASCII, 0.7 a character beyond it, 6 a message with its role, 1,000 an image
// (routing.md C5). A factor learned per model is applied on top.
const (
	unit       = 20
	perASCII   = 5
	perRune    = 14
	perMessage = 5 * unit // its role is counted as text
	perMedia   = 1000 * unit
	perPrompt  = 4 * unit // the generation prompt
)

// builder writes one prompt's canonical stream and cuts it.
type builder struct {
	chain  Chain
	digest digest
	small  [16]byte
	offset int   // in the stream
	since  int   // the last cut
	units  int64 // estimated tokens so far
	muted  bool  // what is written becomes no part of the chain
}

func (b *builder) start(rule string, model string, salt []byte) {
	b.chain.Cuts = b.chain.Cuts[:0]
	b.chain.Answers = b.chain.Answers[:0]
	b.chain.Tokens, b.chain.Exact = 0, rule == tokenRule
	b.offset, b.since, b.units = 0, 0, 0
	b.digest.reset()
	b.digest.write([]byte(rule))
	b.seed([]byte(model))
	b.seed(salt)
}

// seed mixes in a value without moving the cuts.
func (b *builder) seed(value []byte) {
	binary.LittleEndian.PutUint64(b.small[:8], uint64(len(value)))
	b.digest.write(b.small[:8])
	b.digest.write(value)
}

// tag separates what comes before from what comes after. Tags are control
// characters, which no JSON string or number contains, so that a stream can be
// read back in one way only.
func (b *builder) tag(t byte) {
	b.digest.tag(t)
	b.offset++
	b.since++
}

// name writes a member's name, whose length is known before it begins.
func (b *builder) name(name []byte) {
	binary.LittleEndian.PutUint32(b.small[:4], uint32(len(name)))
	b.digest.write(b.small[:4])
	form := jsonscan.Form(0)
	if bytes.Contains(name, unicodeEscape) {
		form = jsonscan.Unicode
	}
	b.text(name, form) // control characters are resolved escapes
}

// text writes a string's raw bytes, cutting on the way. The form need not say
// whether any are beyond ASCII; ok is false if there is a control character.
func (b *builder) text(raw []byte, form jsonscan.Form) (ok bool) {
	ok = true
	for len(raw) > 0 {
		room := max(1, zone(b.offset)-b.since)
		piece := raw[:min(room, len(raw))]
		raw = raw[len(piece):]
		f := form
		if !b.digest.write(piece) {
			beyond, clean := jsonscan.Bytes(piece)
			f |= beyond
			ok = ok && clean
		}
		b.offset += len(piece)
		b.since += len(piece)
		b.units += estimate(piece, f)
		if len(piece) == room {
			b.cut()
		}
	}
	return ok
}

func zone(offset int) int {
	switch {
	case offset < zone1:
		return z1
	case offset < zone2:
		return z2
	}
	return z3
}

// cut ends the current run, unless nothing has been written since the last cut.
func (b *builder) cut() {
	if b.since == 0 || b.muted {
		return
	}
	b.since = 0
	if len(b.chain.Cuts) < maxCuts {
		b.chain.Cuts = append(b.chain.Cuts, Cut{Hash(b.digest.sum()), b.tokens()})
	}
}

// finish ends the prompt.
func (b *builder) finish() {
	b.cut()
	if !b.chain.Exact {
		b.units += perPrompt
	}
	b.chain.Tokens = b.tokens()
}

// maxTokens is more than any engine takes, and leaves room for factors.
const maxTokens = 1 << 27

func (b *builder) tokens() int32 { return int32(min(b.units/unit, maxTokens)) }

// UpTo returns the chain's own count of tokens up to a cut, 0 for none.
func (c *Chain) UpTo(cut int32) int32 {
	if cut < 0 {
		return 0
	}
	return c.Cuts[cut].Tokens
}

// AnswerAfter returns the chain's own count of tokens in the generated messages
// that begin after a cut, 0 if none do.
func (c *Chain) AnswerAfter(cut int32) int32 {
	for _, a := range slices.Backward(c.Answers) {
		if a.Begin == cut {
			return c.UpTo(a.End) - c.UpTo(a.Begin)
		}
		if a.Begin < cut {
			break
		}
	}
	return 0
}

// Rules returns a number for the rules by which prompts are cut: chains of gateways
// that have another have nothing in common.
func Rules() uint32 { return uint32(xxhash.Sum64String(textRule + " " + tokenRule)) }
