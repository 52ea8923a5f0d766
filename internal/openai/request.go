// Package openai knows the wire formats of the API that the gateway serves: the
// few request fields that routing needs, the error form, and what an answer says
// about tokens, errors and its own end. It covers OpenAI's chat completions,
// completions and responses, and Anthropic's messages, as vLLM serves them.
package openai

import (
	"github.com/warmpath/warmpath/internal/jsonscan"
)

// Endpoint is one of the API's request formats.
type Endpoint uint8

// The endpoints whose prompts the gateway understands, and Other for every body
// that is only looked at for its model.
const (
	Other Endpoint = iota
	Chat
	Completions
	Responses
	Messages
)

// String returns the short name that metrics and logs use.
func (e Endpoint) String() string {
	return [...]string{"other", "chat", "completions", "responses", "messages"}[e]
}

// Request is what routing needs to know of a request body. Its byte slices are
// spans of the body and live as long as it; strings are copies.
type Request struct {
	Endpoint Endpoint
	Model    string // "" when the body names none
	Stream   bool
	// StreamOptions is true if the body has stream_options, whatever they are.
	StreamOptions bool

	// User, Session and Previous are the body's user, session_id and
	// previous_response_id, "" when absent.
	User, Session, Previous string
	// ReadsNoCache is true for requests that the engine computes without looking
	// into its prefix cache: those that ask for log probabilities of their prompt.
	ReadsNoCache bool

	Prompt Prompt
}

// Prompt holds the raw JSON values of the members that become the rendered
// prompt, nil where the body has none (or null).
type Prompt struct {
	System []byte // messages: system; responses: instructions
	Tools  []byte
	Turns  []byte // chat and messages: messages; responses: input; completions: prompt
	Salt   []byte // cache_salt
	// Continue is true when the prompt ends inside its last message
	// (continue_final_message, or add_generation_prompt false).
	Continue bool
	// Long knows where the longest strings of the members end, for who walks them
	// ([jsonscan.Again]).
	Long jsonscan.Long
	// Head holds every other member that changes the rendered prompt as a whole, in
	// an order of its own.
	Head [len(headNames)][]byte
}

// headNames are the members, beside tools and turns, from which the engines
// render a prompt (vLLM 0.32: chat_completion/protocol.py, responses/protocol.py,
// anthropic/protocol.py). What a chat template does with them is its own
// business, so any of them may change the prompt from its first token on. Their
// order is part of a prompt's identity: add at the end.
var headNames = [...]string{
	"chat_template", "chat_template_kwargs", "documents", "tool_choice",
	"reasoning_effort", "reasoning", "thinking", "response_format", "text",
	"truncate_prompt_tokens", "truncation_side", "truncation", "add_special_tokens",
	"mm_processor_kwargs", "media_io_kwargs", "previous_input_messages", "prompt_embeds",
	"output_config",
}

// Parse reads body as a request to endpoint. The error is an [*Error] with
// status 400 that tells the client what is wrong. Everything is checked to be JSON
// but the inside of the prompt's members, which whoever reads those checks.
func Parse(endpoint Endpoint, body []byte) (Request, error) {
	r := Request{Endpoint: endpoint}
	s := jsonscan.New(body)
	if s.Kind() != jsonscan.Object {
		s.Skip()
		if err := s.End(); err != nil {
			return r, badRequest(err.Error(), "")
		}
		return r, badRequest("the request body must be a JSON object", "")
	}
	echo, logprobs := false, false
	s.Enter()
	for name, ok := s.Member(); ok; name, ok = s.Member() {
		switch string(name) {
		case "model":
			r.Model = str(&s)
		case "stream":
			r.Stream = s.Bool()
		case "stream_options":
			r.StreamOptions = true
			s.Skip()
		case "user":
			r.User = str(&s)
		case "session_id":
			r.Session = str(&s)
		case "previous_response_id":
			r.Previous = str(&s)
		case "prompt_logprobs": // 0 is a request, too
			r.ReadsNoCache = s.Kind() != jsonscan.Null && (endpoint == Chat || endpoint == Completions)
			s.Skip()
		case "echo":
			echo = s.Bool()
		case "logprobs":
			logprobs = s.Kind() != jsonscan.Null
			s.Skip()
		default:
			if endpoint == Other && string(name) != "cache_salt" {
				s.Skip()
			} else {
				r.Prompt.take(endpoint, name, &s)
			}
		}
	}
	if err := s.End(); err != nil {
		return r, badRequest(err.Error(), "")
	}
	if echo && (endpoint == Chat || endpoint == Completions && logprobs) {
		r.ReadsNoCache = true
	}
	return r, r.Prompt.check(endpoint)
}

// Invalid returns the error for a body in which a reader of its [Prompt] found
// something that is not JSON.
func Invalid(body []byte) *Error {
	s := jsonscan.New(body)
	s.Skip()
	if err := s.End(); err != nil {
		return badRequest(err.Error(), "")
	}
	return badRequest("the request body is not valid JSON", "")
}

// take reads the value of a member that may belong to the prompt.
func (p *Prompt) take(endpoint Endpoint, name []byte, s *jsonscan.Scanner) {
	switch string(name) {
	case "messages":
		if endpoint == Chat || endpoint == Messages {
			p.Turns = p.value(s)
			return
		}
	case "input":
		if endpoint == Responses {
			p.Turns = p.value(s)
			return
		}
	case "prompt":
		if endpoint == Completions {
			p.Turns = p.value(s)
			return
		}
	case "system":
		if endpoint == Messages {
			p.System = p.value(s)
			return
		}
	case "instructions":
		if endpoint == Responses {
			p.System = p.value(s)
			return
		}
	case "tools":
		p.Tools = p.value(s)
		return
	case "cache_salt":
		p.Salt = p.value(s)
		return
	case "add_generation_prompt":
		if s.Kind() == jsonscan.False {
			p.Continue = true
		}
	case "continue_final_message":
		if s.Bool() {
			p.Continue = true
		}
		return
	default:
		for i := range headNames {
			if string(name) == headNames[i] {
				p.Head[i] = p.value(s)
				return
			}
		}
	}
	s.Skip()
}

// check refuses the prompts that have the wrong JSON type, which no engine takes.
func (p *Prompt) check(endpoint Endpoint) error {
	field, want := "", ""
	switch endpoint {
	case Chat, Messages:
		if p.Turns == nil || p.Turns[0] != '[' {
			field, want = "messages", "an array of messages"
		}
	case Completions:
		if p.Turns == nil && p.embeds() == nil || p.Turns != nil && p.Turns[0] != '[' && p.Turns[0] != '"' {
			field, want = "prompt", "a string, an array of token ids or an array of those"
		}
	case Responses:
		if p.Turns == nil || p.Turns[0] != '[' && p.Turns[0] != '"' {
			field, want = "input", "a string or an array of items"
		}
	}
	if field == "" {
		return nil
	}
	return badRequest("'"+field+"' must be "+want, field)
}

func (p *Prompt) embeds() []byte {
	for i := range headNames {
		if headNames[i] == "prompt_embeds" {
			return p.Head[i]
		}
	}
	return nil
}

// value takes a member's value; null counts as absent.
func (p *Prompt) value(s *jsonscan.Scanner) []byte {
	if s.Kind() == jsonscan.Null {
		s.Skip()
		return nil
	}
	return s.Mark(&p.Long)
}

// str takes a string value with its escapes resolved; other kinds are "".
func str(s *jsonscan.Scanner) string {
	if s.Kind() != jsonscan.String {
		s.Skip()
		return ""
	}
	raw, form := s.Str()
	if form&jsonscan.Escaped != 0 {
		raw = jsonscan.Unescape(raw)
	}
	return string(raw)
}
