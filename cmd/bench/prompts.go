package main

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/warmpath/warmpath/internal/bench"
	"github.com/warmpath/warmpath/internal/lab"
)

// prompts makes real requests of a workload's. Equal runs become equal tokens or
// text; answers of earlier turns become what the server really said, so that the
// next turn finds the generated blocks in its cache.
type prompts struct {
	model      string
	chat       bool   // messages of text; else lists of token ids
	vocabulary int    // token ids are below
	mayEnd     bool   // the engine may end an answer before the workload says
	salt       uint32 // other tokens for the same runs
	seen       *beginnings
}

// turns makes a schedule of arrivals, and says how many requests it has.
func (p *prompts) turns(requests []*lab.Request) (turns []*bench.Turn, total int) {
	for _, session := range requests {
		turns = append(turns, p.session(session))
		for r := session; r != nil; r = r.Next {
			total++
		}
	}
	return turns, total
}

// session makes the turns of one session.
func (p *prompts) session(r *lab.Request) *bench.Turn {
	if r == nil {
		return nil
	}
	repeated := 0
	if p.seen != nil {
		repeated = p.seen.note(r)
	}
	return &bench.Turn{At: r.At, Think: r.Think, Next: p.session(r.Next), Call: func(said []bench.Answer) bench.Call {
		call := p.call(r, said)
		call.Repeated = repeated
		return call
	}}
}

// beginnings are the beginnings of the prompts so far, as hashes of their runs.
type beginnings map[uint64]bool

// note returns how many of a prompt's first tokens an earlier one begins with, and
// remembers this one with its answer.
func (b *beginnings) note(r *lab.Request) int {
	h, repeated, known := uint64(0), 0, true
	for _, run := range append(slices.Clip(r.Runs), r.Answer) {
		h = draw(run.ID, int(uint32(h)^uint32(h>>32))) + uint64(run.Tokens)
		if known = known && (*b)[h]; known {
			repeated += run.Tokens
		}
		(*b)[h] = true
	}
	return min(repeated, r.Tokens())
}

// body is a request; the engine must generate exactly as many tokens as the
// workload says.
type body struct {
	Model     string          `json:"model"`
	Prompt    json.RawMessage `json:"prompt,omitempty"`
	Messages  []message       `json:"messages,omitempty"`
	MaxTokens int             `json:"max_tokens"`
	Stream    bool            `json:"stream"`
	Options   struct {
		Usage bool `json:"include_usage"`
	} `json:"stream_options"`
	Temperature float64 `json:"temperature"`
	IgnoreEOS   bool    `json:"ignore_eos,omitempty"`
	ReturnIDs   bool    `json:"return_token_ids,omitempty"`
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

func (p *prompts) call(r *lab.Request, said []bench.Answer) bench.Call {
	b := body{Model: p.model, MaxTokens: r.Answer.Tokens, Stream: true, IgnoreEOS: !p.mayEnd}
	b.Options.Usage = true
	call := bench.Call{Path: "/v1/completions", Keep: r.Next != nil}
	if p.chat {
		call.Path, b.Messages = "/v1/chat/completions", messages(p.salted(r.Runs), said)
	} else {
		b.Prompt, b.ReturnIDs = p.tokens(r, said), r.Next != nil
	}
	data, err := json.Marshal(b)
	if err != nil {
		panic("BUG: a request must be representable as JSON: " + err.Error())
	}
	call.Body = data
	return call
}

// salted returns the runs under other IDs.
func (p *prompts) salted(runs []lab.Run) []lab.Run {
	if p.salt == 0 {
		return runs
	}
	out := slices.Clone(runs)
	for i := range out {
		out[i].ID += p.salt * 0x9E3779B1 // spread over all IDs
	}
	return out
}

// tokens returns a prompt as a list of token ids.
func (p *prompts) tokens(r *lab.Request, said []bench.Answer) []byte {
	list := make([]byte, 0, 6*r.Tokens()+2)
	list = append(list, '[')
	add := func(id uint32) {
		if len(list) > 1 {
			list = append(list, ',')
		}
		list = strconv.AppendUint(list, uint64(id), 10)
	}
	answers := 0
	for _, run := range p.salted(r.Runs) {
		if run.Generated {
			if answers++; answers <= len(said) && len(said[answers-1].IDs) > 0 {
				for _, id := range said[answers-1].IDs {
					add(id)
				}
				continue
			}
		}
		for j := range run.Tokens {
			add(firstToken + uint32(draw(run.ID, j)%uint64(p.vocabulary-firstToken)))
		}
	}
	return append(list, ']')
}

// firstToken is the least id in prompts. Many vocabularies begin with control
// tokens and single bytes.
const firstToken = 1000

// messages returns a prompt as a conversation: what stands before the first
// answer is a system prompt and the user's first message, or that alone.
func messages(runs []lab.Run, said []bench.Answer) []message {
	var all []message
	answers := 0
	say := func(role, text string) {
		if last := len(all) - 1; last >= 0 && all[last].Role == role {
			all[last].Content += text
			return
		}
		all = append(all, message{role, strings.TrimPrefix(text, " ")})
	}
	for i, run := range runs {
		switch {
		case run.Generated:
			answers++
			if answers <= len(said) {
				all = append(all, message{"assistant", said[answers-1].Text})
				continue
			}
			say("assistant", words(run))
		case i == 0 && len(runs) > 1 && !runs[1].Generated:
			say("system", words(run))
		default:
			say("user", words(run))
		}
	}
	return all
}

// common are words of one token each, with the space before them, in the
// vocabularies of most models and in mockvllm's.
var common = strings.Fields("about after again air all also and any are back been both but call can case come could day did do does down each " +
	"end even few find first for from get give go good great had hand has have he help her here high him his home how if in into is it its " +
	"just keep kind know last left life like line long")

// words returns the text of a run, a word for each token.
func words(run lab.Run) string {
	var b strings.Builder
	for j := range run.Tokens {
		b.WriteByte(' ')
		b.WriteString(common[draw(run.ID, j)%uint64(len(common))])
	}
	return b.String()
}

// draw returns a number that the place in a run decides (splitmix64).
func draw(run uint32, place int) uint64 {
	x := (uint64(run)<<32 | uint64(place)) + 0x9E3779B97F4A7C15
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}
