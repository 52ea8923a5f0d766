package openai

import (
	"bytes"
	"encoding/binary"
	"math/bits"

	"github.com/warmpath/warmpath/internal/jsonscan"
)

// Usage is what an engine reports about an answer's tokens.
type Usage struct {
	Prompt     int // all tokens of the prompt, cached ones included
	Completion int
	Cached     int // of Prompt, those that came from the prefix cache
	// CachedKnown tells an engine that reported 0 from one that did not report.
	CachedKnown bool
}

// Event is what one event of a stream, or one whole answer, says.
type Event struct {
	Token     bool  // it carries generated content: text, reasoning or a tool call
	Usage     Usage // valid if UsageSeen
	UsageSeen bool
	Failed    bool   // an error object, or a failed response
	Aborted   bool   // the engine gave the request up
	Last      bool   // the format's closing event
	NoChoices bool   // it has a list of choices, and that is empty
	Preamble  bool   // it came before the engine began, or tells nothing of it
	ID        string // the response's id (responses only)
}

// Done is the payload that closes OpenAI's streams.
const Done = "[DONE]"

// Plain reports whether an event surely says that content was generated, and nothing
// else. It lets a reader who has seen the first token pass over most of the others
// unread: one that holds some of the content's members, filled, and none of the few
// quoted words behind which there is more to say. A quote cannot stand unescaped
// inside a string, so none is missed; and letters that are written as escapes make
// an event not plain, whatever they spell.
func Plain(data []byte) bool {
	if len(data) == 0 || data[0] != '{' {
		return false
	}
	generated := false
	at := 0
	for ; at+8 <= len(data); at += 8 {
		w := binary.LittleEndian.Uint64(data[at:]) ^ quotes
		// A byte that was a quote is marked; of those above it, one may be that was none.
		for marks := (w - ones) &^ w & (ones << 7); marks != 0; marks &= marks - 1 {
			switch tells(data[at+bits.TrailingZeros64(marks)/8:]) {
			case tellsMore:
				return false
			case tellsContent:
				generated = true
			}
		}
	}
	for ; at < len(data); at++ {
		switch tells(data[at:]) {
		case tellsMore:
			return false
		case tellsContent:
			generated = true
		}
	}
	return generated && !bytes.Contains(data, letter)
}

const (
	ones   = 0x0101010101010101
	quotes = ones * '"'
)

// told is what a quoted word tells of its event.
type told int8

const (
	tellsNothing told = iota
	tellsContent      // something was generated
	tellsMore         // it must be read
)

// tells looks at the word behind the quote with which b begins, if it does.
func tells(b []byte) told {
	if len(b) < 2 || b[0] != '"' {
		return tellsNothing
	}
	b = b[1:]
	word, member := "", ""
	switch b[0] {
	case 'u':
		word = `usage"`
	case 'e':
		word = `error"`
	case 'a':
		word, member = `abort"`, `arguments"`
	case 'c':
		member = `content"`
	case 'd':
		member = `delta"`
	case 'm':
		word = `message_stop"`
	case 'p':
		member = `partial_json"`
	case 'r':
		if word, member = `response"`, `reasoning"`; begins(b, `reasoning_`) {
			member = `reasoning_content"`
		}
	case 't':
		if begins(b, `type"`) {
			if bytes.HasSuffix(text(b[len(`type"`):]), deltas) {
				return tellsNothing
			}
			return tellsMore
		}
		if member = `text"`; begins(b, `th`) {
			member = `thinking"`
		}
	default:
		return tellsNothing
	}
	switch {
	case word != "" && begins(b, word):
		return tellsMore
	case member != "" && begins(b, member) && len(text(b[len(member):])) > 0:
		return tellsContent
	}
	return tellsNothing
}

var (
	letter = []byte(`\u`)
	space  = []byte(" ")
	deltas = []byte("delta") // how the types of events end that bring content, and those of what is in them
)

func begins(b []byte, word string) bool { return len(b) >= len(word) && string(b[:len(word)]) == word }

// text returns the beginning of the string that follows a member's name, up to the
// next quote; nothing if what follows is no string, or not in the usual form.
func text(b []byte) []byte {
	if len(b) == 0 || b[0] != ':' { // it was no name but a string, as a model's may be
		return nil
	}
	b = bytes.TrimPrefix(b[1:], space)
	if len(b) == 0 || b[0] != '"' {
		return nil
	}
	b = b[1:]
	return b[:max(0, bytes.IndexByte(b, '"'))]
}

// ParseEvent reads the payload of one stream event, in any of the endpoints'
// formats. What is not JSON, or is none of them, is an event that says nothing.
func ParseEvent(data []byte) Event {
	var e Event
	if string(data) == Done {
		e.Last = true
		return e
	}
	s := jsonscan.New(data)
	if s.Kind() != jsonscan.Object {
		return e
	}
	kind, delta, named, responded, unreasoned := "", false, false, false, false
	s.Enter()
	for name, ok := s.Member(); ok; name, ok = s.Member() {
		switch string(name) {
		case "choices":
			e.choices(&s)
		case "usage":
			e.usage(&s)
		case "error":
			e.Failed = e.Failed || s.Kind() != jsonscan.Null
			s.Skip()
		case "type":
			kind = str(&s)
		case "delta":
			delta, unreasoned = content(&s)
		case "content_block", "item":
			named, _ = content(&s)
		case "response":
			responded = s.Kind() == jsonscan.Object
			e.response(&s)
		case "message":
			e.message(&s)
		default:
			s.Skip()
		}
	}
	if s.Err() != nil {
		return Event{}
	}
	switch kind {
	case "response.output_text.delta", "response.reasoning_text.delta", "response.reasoning_summary_text.delta",
		"response.function_call_arguments.delta", "response.custom_tool_call_input.delta", "response.mcp_call_arguments.delta",
		"response.refusal.delta", "response.code_interpreter_call_code.delta", "content_block_delta":
		e.Token = e.Token || delta
	case "response.output_item.added", "content_block_start": // a call's name is generated before its arguments
		e.Token = e.Token || named
	case "response.created", "response.queued", "response.in_progress":
		e.Preamble = responded
	case "ping":
		e.Preamble = true
	case "response.completed", "response.incomplete":
		e.Last = responded
	case "response.failed":
		e.Failed, e.Last = e.Failed || responded, responded
	case "message_delta": // an abort has no name in this format: vLLM sends no reason at all
		e.Aborted = e.Aborted || unreasoned && e.UsageSeen
	case "message_stop":
		e.Last = true
	case "error":
		e.Failed, e.Last = true, true
	}
	return e
}

// ParseAnswer reads a whole answer that was not streamed.
func ParseAnswer(body []byte) Event {
	var e Event
	s := jsonscan.New(body)
	if s.Kind() != jsonscan.Object {
		return e
	}
	s.Enter()
	for name, ok := s.Member(); ok; name, ok = s.Member() {
		switch string(name) {
		case "choices":
			e.choices(&s)
		case "usage":
			e.usage(&s)
		case "id":
			e.ID = str(&s)
		case "status":
			e.status(&s)
		case "error":
			e.Failed = e.Failed || s.Kind() != jsonscan.Null
			s.Skip()
		default:
			s.Skip()
		}
	}
	if s.Err() != nil {
		return Event{}
	}
	return e
}

// choices reads the choices of a chat or completions chunk.
func (e *Event) choices(s *jsonscan.Scanner) {
	if s.Kind() != jsonscan.Array {
		s.Skip()
		return
	}
	e.NoChoices = true
	for s.Enter(); s.Element(); {
		e.NoChoices = false
		if s.Kind() != jsonscan.Object {
			s.Skip()
			continue
		}
		s.Enter()
		for name, ok := s.Member(); ok; name, ok = s.Member() {
			switch string(name) {
			case "delta", "message":
				some, _ := content(s)
				e.Token = some || e.Token
			case "text":
				e.Token = filled(s) || e.Token
			case "finish_reason":
				e.Aborted = str(s) == "abort" || e.Aborted
			default:
				s.Skip()
			}
		}
	}
}

// content reports whether a delta, or another piece of an answer, holds anything
// that was generated: a role, an empty string, null or an empty list is nothing.
// It also tells a stop_reason that is there but null.
func content(s *jsonscan.Scanner) (found, unreasoned bool) {
	if s.Kind() != jsonscan.Object {
		return filled(s), false
	}
	s.Enter()
	for name, ok := s.Member(); ok; name, ok = s.Member() {
		switch string(name) {
		case "content", "reasoning", "reasoning_content", "refusal", "tool_calls", "function_call", "audio", // chat
			"text", "thinking", "partial_json", "name": // messages; name of responses, too
			found = filled(s) || found
		case "stop_reason":
			unreasoned = s.Kind() == jsonscan.Null
			s.Skip()
		default:
			s.Skip()
		}
	}
	return found, unreasoned
}

// filled takes a value and reports whether it is not empty and not null.
func filled(s *jsonscan.Scanner) bool {
	switch s.Kind() {
	case jsonscan.String:
		raw, _ := s.Str()
		return len(raw) > 0
	case jsonscan.Array:
		some := false
		for s.Enter(); s.Element(); s.Skip() {
			some = true
		}
		return some
	case jsonscan.Object:
		some := false
		s.Enter()
		for _, ok := s.Member(); ok; _, ok = s.Member() {
			some = true
			s.Skip()
		}
		return some
	}
	s.Skip()
	return false
}

// response reads the response inside an event of the responses format.
func (e *Event) response(s *jsonscan.Scanner) {
	if s.Kind() != jsonscan.Object {
		s.Skip()
		return
	}
	s.Enter()
	for name, ok := s.Member(); ok; name, ok = s.Member() {
		switch string(name) {
		case "id":
			e.ID = str(s)
		case "status":
			e.status(s)
		case "usage":
			e.usage(s)
		default:
			s.Skip()
		}
	}
}

// status reads the status of a response.
func (e *Event) status(s *jsonscan.Scanner) {
	switch str(s) {
	case "failed":
		e.Failed = true
	case "cancelled":
		e.Aborted = true
	}
}

// message reads the message inside an event of the messages format.
func (e *Event) message(s *jsonscan.Scanner) {
	if s.Kind() != jsonscan.Object {
		s.Skip()
		return
	}
	s.Enter()
	for name, ok := s.Member(); ok; name, ok = s.Member() {
		if string(name) == "usage" {
			e.usage(s)
		} else {
			s.Skip()
		}
	}
}

// usage reads a usage object in any of the three shapes: prompt_tokens and
// completion_tokens (chat, completions), input_tokens and output_tokens
// (responses), and Anthropic's, where input_tokens leaves out what was cached.
func (e *Event) usage(s *jsonscan.Scanner) {
	if s.Kind() != jsonscan.Object {
		s.Skip()
		return
	}
	var u Usage
	input, cached, created := 0, 0, 0 // Anthropic's three parts of a prompt; elsewhere input is all of it
	s.Enter()
	for name, ok := s.Member(); ok; name, ok = s.Member() {
		switch string(name) {
		case "prompt_tokens":
			u.Prompt = count(s)
		case "input_tokens":
			input = count(s)
		case "completion_tokens", "output_tokens":
			u.Completion = count(s)
		case "prompt_tokens_details", "input_tokens_details":
			if s.Kind() != jsonscan.Object {
				s.Skip()
				continue
			}
			s.Enter()
			for name, ok := s.Member(); ok; name, ok = s.Member() {
				if string(name) == "cached_tokens" && s.Kind() == jsonscan.Number {
					u.Cached, u.CachedKnown = count(s), true
				} else {
					s.Skip()
				}
			}
		case "cache_read_input_tokens":
			if s.Kind() != jsonscan.Number {
				s.Skip()
				continue
			}
			cached = count(s)
			u.Cached, u.CachedKnown = cached, true
		case "cache_creation_input_tokens":
			created = count(s)
		default:
			s.Skip()
		}
	}
	if u.Prompt == 0 {
		u.Prompt = input + cached + created
	}
	if s.Err() == nil && (u.Prompt > 0 || u.Completion > 0) {
		e.Usage, e.UsageSeen = u, true
	}
}

// count takes a number of tokens; what is not a sane one counts as 0.
func count(s *jsonscan.Scanner) int {
	n, ok := s.Int()
	if !ok || n < 0 || n > 1<<31 {
		return 0
	}
	return int(n)
}
