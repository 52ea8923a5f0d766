package prefix

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"slices"

	"github.com/warmpath/warmpath/internal/jsonscan"
)

// This file writes JSON values into the canonical stream, so that what does not
// change a prompt does not show.

// gather appends the members of the object at s, the last of equal names and no
// nulls, and returns where they begin.
func (p *Prompt) gather(s *jsonscan.Scanner) (from int) {
	from = len(p.members)
	s.Enter()
	for name, ok := s.Member(); ok; name, ok = s.Member() {
		kind, value := s.Kind(), s.Span()
		i := from
		for i < len(p.members) && !bytes.Equal(p.members[i].name, name) {
			i++
		}
		switch {
		case i < len(p.members):
			p.members[i].value = value
		case kind != jsonscan.Null:
			p.members = append(p.members, member{name, value})
		}
	}
	return from
}

// media writes 16 hexadecimal digits for a part of any size.
func (p *Prompt) media(value []byte) {
	b := &p.builder
	outer := *b
	b.digest.reset()
	b.muted = true // a picture's bytes are not the prompt's
	p.value(value)
	sum := b.digest.sum()
	*b = outer

	binary.BigEndian.PutUint64(b.small[:8], sum)
	var digits [16]byte
	hex.Encode(digits[:], b.small[:8])
	b.tag(tagMedia)
	b.text(digits[:], 0)
	b.units = outer.units + perMedia
}

// value writes any JSON value so that white space and the order of members do
// not show.
func (p *Prompt) value(value []byte) {
	b := &p.builder
	s := jsonscan.Again(value, &p.long)
	switch s.Kind() {
	case jsonscan.Object:
		from := p.gather(&s)
		to := len(p.members)
		slices.SortFunc(p.members[from:to], func(x, y member) int { return bytes.Compare(x.name, y.name) })
		b.tag(tagObject)
		for i := from; i < to; i++ {
			m := p.members[i]
			p.field(m.name, m.value)
		}
		b.tag(tagEnd)
		p.members = p.members[:from]
	case jsonscan.Array:
		b.tag(tagArray)
		for s.Enter(); s.Element(); {
			b.tag(tagItem)
			p.value(s.Span())
		}
		b.tag(tagEnd)
	default:
		p.scalar(&s)
	}
	p.check(&s)
}

// ordered writes the value at s with its members in the order they came.
func (p *Prompt) ordered(s *jsonscan.Scanner) {
	b := &p.builder
	switch s.Kind() {
	case jsonscan.Object:
		b.tag(tagObject)
		s.Enter()
		for name, ok := s.Member(); ok; name, ok = s.Member() {
			b.tag(tagField)
			b.name(name)
			p.ordered(s)
		}
		b.tag(tagEnd)
	case jsonscan.Array:
		b.tag(tagArray)
		for s.Enter(); s.Element(); {
			b.tag(tagItem)
			p.ordered(s)
		}
		b.tag(tagEnd)
	default:
		p.scalar(s)
	}
}

func (p *Prompt) scalar(s *jsonscan.Scanner) {
	if s.Kind() == jsonscan.String {
		raw, form := s.Str()
		p.builder.tag(tagString)
		p.builder.text(raw, form)
		return
	}
	p.builder.tag(tagScalar)
	p.builder.text(s.Raw(), 0)
}
