package prefix

import (
	"bytes"
	"slices"

	"github.com/warmpath/warmpath/internal/jsonscan"
	"github.com/warmpath/warmpath/internal/openai"
)

// Prompt is the identity of a request: one chain, or one for each prompt of a
// batch. A Prompt may be used for one request after another; Read then reuses
// its memory, and what it gave out before is overwritten.
type Prompt struct {
	Chains []Chain
	// Tokens is the estimate for the whole request, prompts without a chain included.
	Tokens int
	// Home tells sessions apart: the hash after the first user message, which all
	// turns of a session share and sessions under one system prompt do not.
	Home Hash

	builder builder
	members []member
	long    jsonscan.Long // of the request that is being read
	err     error
}

type member struct{ name, value []byte }

// Tags of the canonical stream.
const (
	tagHead byte = iota + 1
	tagTools
	tagItem // an element of an array
	tagMessage
	tagRole
	tagField
	tagText
	tagPart
	tagMedia
	tagContinue
	tagString
	tagScalar
	tagObject
	tagArray
	tagEnd
)

// Read makes p the identity of r. Requests that an engine renders to the same
// tokens up to some point get equal cuts up to there; requests that differ in
// anything that changes the rendered prompt differ from there on. White space
// between JSON tokens never matters, nor does the order of members, except
// inside tools, which templates print as they came. Strings are compared as
// sent: the same text with other escapes is another prompt. The error says that
// a part of the prompt is not JSON; p is of no use then.
func (p *Prompt) Read(r *openai.Request) error {
	p.Chains, p.members = p.Chains[:0], p.members[:0]
	p.Tokens, p.Home, p.err = 0, 0, nil
	p.long = r.Prompt.Long
	switch r.Endpoint {
	case openai.Chat, openai.Messages, openai.Responses:
		p.begin(textRule, r)
		p.conversation(&r.Prompt)
		p.end()
	case openai.Completions:
		p.completions(r)
	}
	if p.Home == 0 && len(p.Chains) > 0 {
		if cuts := p.Chains[0].Cuts; len(cuts) > 0 {
			p.Home = cuts[len(cuts)-1].Hash
		}
	}
	clear(p.members[:cap(p.members)]) // spans of the request, which need not live as long as the prompt
	p.long = jsonscan.Long{}
	return p.err
}

// Reset lets go of the last request.
func (p *Prompt) Reset() {
	p.Chains, p.Tokens, p.Home = p.Chains[:0], 0, 0
}

// check keeps the error of a scanner that has walked a value to its end.
func (p *Prompt) check(s *jsonscan.Scanner) { p.fail(s.End()) }

// fail keeps the first error.
func (p *Prompt) fail(err error) {
	if p.err == nil {
		p.err = err
	}
}

// begin starts a chain, with everything that may change a prompt from its first
// token on.
func (p *Prompt) begin(rule string, r *openai.Request) {
	if len(p.Chains) < cap(p.Chains) { // take the memory of an earlier chain
		p.builder.chain = p.Chains[:len(p.Chains)+1][len(p.Chains)]
	} else {
		p.builder.chain = Chain{}
	}
	p.builder.start(rule, r.Model, r.Prompt.Salt)
	for i, value := range r.Prompt.Head {
		if value == nil || isDefault(value) {
			continue
		}
		p.builder.tag(tagHead)
		p.builder.tag(byte(i))
		p.value(value)
	}
}

func (p *Prompt) end() {
	p.builder.finish()
	p.Tokens += int(p.builder.chain.Tokens)
	p.Chains = append(p.Chains, p.builder.chain)
}

// isDefault reports whether a head member says no more than its absence does.
func isDefault(value []byte) bool {
	switch string(value) {
	case `{}`, `[]`, `""`, `"auto"`, `"disabled"`:
		return true
	}
	return false
}

func (p *Prompt) conversation(in *openai.Prompt) {
	b := &p.builder
	if in.Tools != nil {
		p.tools(in.Tools)
	}
	if in.System != nil && string(in.System) != `""` {
		p.message(`"system"`, in.System)
	}
	s := jsonscan.Again(in.Turns, &p.long)
	if s.Kind() != jsonscan.Array { // responses: input is one user message
		p.message(`"user"`, in.Turns)
		p.markHome()
	} else {
		for s.Enter(); s.Element(); {
			p.turn(&s)
		}
		p.check(&s)
	}
	if in.Continue {
		b.tag(tagContinue)
		b.cut()
	}
}

// tools writes each tool as it came, less white space.
func (p *Prompt) tools(value []byte) {
	s := jsonscan.Again(value, &p.long)
	if s.Kind() == jsonscan.Array {
		for s.Enter(); s.Element(); {
			p.builder.tag(tagTools)
			p.ordered(&s)
		}
	} else {
		p.builder.tag(tagTools)
		p.ordered(&s)
	}
	p.check(&s)
	p.builder.cut()
}

// message writes a message of a role, a JSON string, and a content alone.
func (p *Prompt) message(role string, content []byte) {
	b := &p.builder
	b.tag(tagMessage)
	b.tag(tagRole)
	p.value([]byte(role))
	p.content(content, role == `"system"`)
	b.units += perMessage
	b.cut()
}

// turn writes the message at s or, in the responses format, the item.
func (p *Prompt) turn(s *jsonscan.Scanner) {
	b := &p.builder
	before := int32(len(b.chain.Cuts)) - 1
	b.tag(tagMessage)
	user, generated := p.fields(s)
	b.units += perMessage
	b.cut()
	end := int32(len(b.chain.Cuts)) - 1
	switch {
	case user:
		p.markHome()
	case generated && before >= 0 && end > before:
		if last := len(b.chain.Answers) - 1; last >= 0 && b.chain.Answers[last].End == before {
			b.chain.Answers[last].End = end
		} else {
			b.chain.Answers = append(b.chain.Answers, Span{before, end})
		}
	}
}

func (p *Prompt) markHome() {
	if cuts := p.builder.chain.Cuts; p.Home == 0 && len(cuts) > 0 {
		p.Home = cuts[len(cuts)-1].Hash
	}
}

// fieldRank orders a message's members as templates do; members it does not know
// come after these, by name.
func fieldRank(name []byte) int {
	switch string(name) {
	case "role":
		return 0
	case "name":
		return 1
	case "tool_call_id":
		return 2
	case "reasoning", "reasoning_content":
		return 3
	case "content":
		return 4
	case "tool_calls":
		return 5
	}
	return 6
}

// fields writes the members of the message at s, and reports whether its role is
// user and whether a model generated it.
func (p *Prompt) fields(s *jsonscan.Scanner) (user, generated bool) {
	if s.Kind() != jsonscan.Object {
		p.value(s.Span())
		return false, false
	}
	b := &p.builder
	from := p.gather(s)
	to := len(p.members)
	slices.SortFunc(p.members[from:to], func(x, y member) int {
		if d := fieldRank(x.name) - fieldRank(y.name); d != 0 {
			return d
		}
		return bytes.Compare(x.name, y.name)
	})
	system := false
	for i := from; i < to; i++ {
		m := p.members[i]
		switch string(m.name) {
		case "role":
			switch string(m.value) {
			case `"user"`:
				user = true
			case `"assistant"`:
				generated = true
			case `"system"`, `"developer"`:
				system = true
			}
			b.tag(tagRole)
			p.value(m.value)
		case "content":
			p.content(m.value, system)
		case "reasoning_content": // another name for reasoning, sorted behind it
			if i == from || string(p.members[i-1].name) != "reasoning" {
				p.field([]byte("reasoning"), m.value)
			}
		case "type":
			switch string(m.value) {
			case `"message"`: // the responses format's name for what chat sends bare
				continue
			case `"function_call"`, `"reasoning"`, `"custom_tool_call"`, `"mcp_call"`:
				generated = true
			}
			p.field(m.name, m.value)
		case "tool_calls", "annotations":
			if string(m.value) != `[]` {
				p.field(m.name, m.value)
			}
		default:
			p.field(m.name, m.value)
		}
	}
	p.members = p.members[:from]
	return user, generated
}

func (p *Prompt) field(name, value []byte) {
	p.builder.tag(tagField)
	p.builder.name(name)
	p.value(value)
}

// billingHeader begins a system text part whose first line Claude Code changes
// on every request, and which vLLM therefore drops (renderers/chat_utils.py).
var billingHeader = []byte("x-anthropic-billing-header")

// content writes a message's content: a string, or a list of parts. A string
// and a single text part are the same prompt.
func (p *Prompt) content(value []byte, system bool) {
	s := jsonscan.Again(value, &p.long)
	if s.Kind() != jsonscan.Array {
		p.part(value, system)
		return
	}
	for s.Enter(); s.Element(); {
		p.part(s.Span(), system)
	}
	p.check(&s)
}

// text writes the string that a text part, or a content, is: a span of the body.
func (p *Prompt) text(value []byte, system bool) {
	raw := value[1 : len(value)-1]
	if system && bytes.HasPrefix(raw, billingHeader) {
		s := jsonscan.Again(value, &p.long)
		s.Skip()
		p.check(&s)
		_, rest, found := bytes.Cut(raw, []byte(`\n`))
		if !found {
			return
		}
		raw = rest
	}
	p.builder.tag(tagText)
	p.fail(jsonscan.Pieces(raw, p.builder.text))
}

// part writes one content part. Only a text part's text reaches the prompt; an
// image or another medium is known by a hash of all that describes it.
func (p *Prompt) part(value []byte, system bool) {
	var kind, text []byte
	s := jsonscan.Again(value, &p.long)
	switch s.Kind() {
	case jsonscan.String:
		p.text(value, system)
		return
	case jsonscan.Object:
		s.Enter()
		for name, ok := s.Member(); ok; name, ok = s.Member() {
			switch string(name) {
			case "type":
				kind = s.Span()
			case "text":
				if s.Kind() == jsonscan.String {
					text = s.Span()
				} else {
					s.Skip()
				}
			default:
				s.Skip()
			}
		}
		p.check(&s)
	}
	switch string(kind) {
	case `"text"`, `"input_text"`, `"output_text"`:
		if text != nil {
			p.text(text, system)
			return
		}
	}
	if isMedia(kind) {
		p.media(value)
		return
	}
	p.builder.tag(tagPart)
	p.value(value)
}

func isMedia(kind []byte) bool {
	for _, word := range [...]string{"image", "audio", "video", "file"} {
		if bytes.Contains(kind, []byte(word)) {
			return true
		}
	}
	return false
}

// completions reads a prompt that is a text, a list of token ids, or a list of
// texts or such lists.
func (p *Prompt) completions(r *openai.Request) {
	s := jsonscan.Again(r.Prompt.Turns, &p.long)
	first := s
	if s.Kind() == jsonscan.Array {
		first.Enter()
	}
	switch {
	case r.Prompt.Turns == nil: // prompt_embeds alone
		p.begin(textRule, r)
		p.end()
		return
	case s.Kind() == jsonscan.String:
		p.one(r, &s)
	case first.Element() && first.Kind() == jsonscan.Number:
		p.tokens(r, &s)
	default:
		for s.Enter(); s.Element(); {
			switch {
			case len(p.Chains) == maxChains:
				p.Tokens += len(s.Raw()) * perASCII / unit
			case s.Kind() == jsonscan.String:
				p.one(r, &s)
			case s.Kind() == jsonscan.Array:
				p.tokens(r, &s)
			default:
				s.Skip()
			}
		}
	}
	p.check(&s)
}

// one reads the text at s.
func (p *Prompt) one(r *openai.Request, s *jsonscan.Scanner) {
	p.begin(textRule, r)
	p.builder.tag(tagText)
	if value := s.Span(); value != nil {
		p.fail(jsonscan.Whole(value[1:len(value)-1], p.builder.text))
	}
	p.builder.units -= perPrompt // a bare text has no generation prompt
	p.end()
}

// tokens reads the list of token ids at s.
func (p *Prompt) tokens(r *openai.Request, s *jsonscan.Scanner) {
	p.begin(tokenRule, r)
	b := &p.builder
	n, since := 0, 0
	for s.Enter(); s.Element(); {
		id := s.Raw()
		b.digest.write(id)
		b.digest.tag(',')
		n++
		since++
		b.since++
		b.units += unit
		if since == tokenZone(n) {
			b.cut()
			since = 0
		}
	}
	p.end()
}

func tokenZone(n int) int {
	switch {
	case n <= tzone1:
		return tz1
	case n <= tzone2:
		return tz2
	}
	return tz3
}
