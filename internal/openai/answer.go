package openai

import (
	"bytes"

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
	Aborted   bool   // finish_reason abort: the engine gave the request up
	Last      bool   // the format's closing event
	Preamble  bool   // it came before the engine began (responses only)
	ID        string // the response's id (responses only)
}

// Done is the payload that closes OpenAI's streams.
const Done = "[DONE]"

// notable are the quoted words without which an event can only carry content.
// They cannot stand unescaped inside a string, so a miss is certain.
var notable = [...][]byte{[]byte(`"usage"`), []byte(`"error"`), []byte(`"abort"`), []byte(`"response"`), []byte(`"message_stop"`)}

// Notable reports whether an event can say more than that content was generated.
// It lets a reader who has seen the first token pass over the others unread.
func Notable(data []byte) bool {
	if len(data) > 0 && data[0] != '{' {
		return true
	}
	for _, word := range notable {
		if bytes.Contains(data, word) {
			return true
		}
	}
	return false
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
	delta, kind := false, ""
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
			delta = content(&s)
		case "response", "message":
			e.object(&s)
		default:
			s.Skip()
		}
	}
	if s.Err() != nil {
		return Event{}
	}
	switch kind {
	case "response.output_text.delta", "response.reasoning_text.delta", "response.reasoning_summary_text.delta",
		"response.reasoning_part.delta", "response.function_call_arguments.delta", "response.mcp_call_arguments.delta",
		"response.refusal.delta", "response.code_interpreter_call_code.delta", "content_block_delta":
		e.Token = e.Token || delta
	case "response.created", "response.queued", "response.in_progress":
		e.Preamble = true
	case "response.completed", "response.incomplete", "message_stop":
		e.Last = true
	case "response.failed", "error":
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
	for s.Enter(); s.Element(); {
		if s.Kind() != jsonscan.Object {
			s.Skip()
			continue
		}
		s.Enter()
		for name, ok := s.Member(); ok; name, ok = s.Member() {
			switch string(name) {
			case "delta":
				e.Token = content(s) || e.Token
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

// content reports whether a delta holds anything that was generated. A role, an
// empty string, null or an empty list is nothing.
func content(s *jsonscan.Scanner) bool {
	if s.Kind() != jsonscan.Object {
		return filled(s)
	}
	found := false
	s.Enter()
	for name, ok := s.Member(); ok; name, ok = s.Member() {
		switch string(name) {
		case "content", "reasoning", "reasoning_content", "refusal", "tool_calls", "function_call", "audio", // chat
			"text", "thinking", "partial_json": // messages
			found = filled(s) || found
		default:
			s.Skip()
		}
	}
	return found
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

// object reads the response inside a responses event, or the message inside a
// messages event.
func (e *Event) object(s *jsonscan.Scanner) {
	if s.Kind() != jsonscan.Object {
		s.Skip()
		return
	}
	s.Enter()
	for name, ok := s.Member(); ok; name, ok = s.Member() {
		switch string(name) {
		case "id":
			e.ID = str(s)
		case "usage":
			e.usage(s)
		default:
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
	extra := 0 // Anthropic's parts of the prompt that input_tokens does not count
	s.Enter()
	for name, ok := s.Member(); ok; name, ok = s.Member() {
		switch string(name) {
		case "prompt_tokens", "input_tokens":
			u.Prompt = count(s)
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
			u.Cached, u.CachedKnown = count(s), true
			extra += u.Cached
		case "cache_creation_input_tokens":
			extra += count(s)
		default:
			s.Skip()
		}
	}
	u.Prompt += extra
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
