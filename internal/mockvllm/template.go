package mockvllm

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"
)

// imageTokens is the run of placeholder tokens that an image becomes.
const imageTokens = 64

// turn is one message, whatever API it came from.
type turn struct {
	role, name string
	reasoning  string
	parts      []part
	toolCalls  json.RawMessage
}

// part is a piece of a message: text, or the address (or data) of something that becomes placeholders.
type part struct{ text, media string }

func textTurn(role, text string) turn { return turn{role: role, parts: []part{{text: text}}} }

// prompt is everything that the chat template renders.
type prompt struct {
	kwargs    map[string]json.RawMessage
	tools     []json.RawMessage
	documents []json.RawMessage
	turns     []turn
	generate  bool // end with the opening of the assistant's message
	open      bool // leave the last message open, for the model to continue
}

// tokens renders the prompt in the manner of ChatML. What stands in front decides what prefixes two requests share:
// template arguments, tools and documents come before the messages, JSON in its own key order.
func (p prompt) tokens() []uint32 {
	var ids []uint32
	section := func(name string, values []json.RawMessage) {
		if len(values) == 0 {
			return
		}
		ids = append(ids, special(name))
		for _, v := range values {
			ids = encode(ids, compact(v)+"\n")
		}
	}
	for _, k := range slices.Sorted(maps.Keys(p.kwargs)) {
		ids = append(ids, special("<|kwarg|>"))
		ids = encode(ids, k+"="+compact(p.kwargs[k])+"\n")
	}
	section("<|tools|>", p.tools)
	section("<|documents|>", p.documents)
	for i, t := range p.turns {
		ids = t.render(ids)
		if !p.open || i < len(p.turns)-1 {
			ids = encode(append(ids, special("<|im_end|>")), "\n")
		}
	}
	if p.generate && !p.open {
		ids = turn{role: "assistant"}.render(ids)
	}
	return ids
}

// render appends the message without its end. Role and text are encoded apart, as the tokens of an answer are those
// of its text alone.
func (t turn) render(ids []uint32) []uint32 {
	head := t.role
	if t.name != "" {
		head += " " + t.name
	}
	ids = encode(append(ids, special("<|im_start|>")), head)
	ids = encode(ids, "\n")
	ids = encode(ids, t.reasoning)
	for _, p := range t.parts {
		if p.media != "" {
			ids = append(ids, mediaTokens(p.media)...)
			continue
		}
		ids = encode(ids, p.text)
	}
	return encode(ids, compact(t.toolCalls))
}

// mediaTokens are ids made of a hash of the content's address: real placeholders are equal for all images, and the
// image's hash in the block keys tells them apart.
func mediaTokens(media string) []uint32 {
	ids := make([]uint32, imageTokens)
	h := xxhash.Sum64String(media)
	for i := range ids {
		ids[i] = uint32(h+uint64(i)*0x9e3779b9) & (1<<31 - 1)
	}
	return ids
}

// compact removes white space between JSON values and keeps the order of keys; null becomes nothing.
func compact(v json.RawMessage) string {
	var b bytes.Buffer
	if len(v) == 0 || string(v) == "null" || json.Compact(&b, v) != nil {
		return ""
	}
	return b.String()
}

// contentParts reads a message's content, which is a string, null, or a list of parts. Image, audio and video parts
// become media keyed by their address. Of Anthropic's blocks tool results nest another content, and ids and cache_control
// are not rendered.
func contentParts(raw json.RawMessage) ([]part, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	var text string
	if raw[0] == '"' {
		if err := json.Unmarshal(raw, &text); err != nil {
			return nil, err
		}
		return []part{{text: text}}, nil
	}
	var list []json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, err
	}
	var parts []part
	for _, item := range list {
		if len(item) > 0 && item[0] == '"' {
			if err := json.Unmarshal(item, &text); err != nil {
				return nil, err
			}
			parts = append(parts, part{text: text})
			continue
		}
		var p struct {
			Type     string          `json:"type"`
			Text     string          `json:"text"`
			Thinking string          `json:"thinking"`
			Name     string          `json:"name"`
			Input    json.RawMessage `json:"input"`
			ImageURL json.RawMessage `json:"image_url"`
			Source   json.RawMessage `json:"source"`
			Content  json.RawMessage `json:"content"`
		}
		if err := json.Unmarshal(item, &p); err != nil {
			return nil, err
		}
		switch {
		case p.Type == "tool_result":
			nested, err := contentParts(p.Content)
			if err != nil {
				return nil, err
			}
			parts = append(parts, nested...)
		case p.Type == "image_url" || p.Type == "input_image":
			parts = append(parts, part{media: imageAddress(p.ImageURL)})
		case p.Type == "image":
			parts = append(parts, part{media: compact(p.Source)})
		case p.Type == "tool_use":
			parts = append(parts, part{text: p.Name + compact(p.Input)})
		case p.Type == "thinking":
			parts = append(parts, part{text: p.Thinking})
		case strings.HasSuffix(p.Type, "text") || p.Type == "" || p.Type == "refusal":
			parts = append(parts, part{text: p.Text})
		default:
			parts = append(parts, part{media: compact(item)})
		}
	}
	return parts, nil
}

// imageAddress takes both forms of image_url: a string, and an object with the url inside.
func imageAddress(raw json.RawMessage) string {
	var o struct {
		URL string `json:"url"`
	}
	if json.Unmarshal(raw, &o.URL) != nil {
		_ = json.Unmarshal(raw, &o)
	}
	return "image:" + o.URL
}
