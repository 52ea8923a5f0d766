//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"
)

// object is a request's body.
type object map[string]any

// answer is what came of a request.
type answer struct {
	replica           string   // who gave it
	predicted, prompt int      // tokens that the gateway predicted to be cached, and of how many
	text              string   // generated, in the formats of chat and completions
	tokens            []uint32 // of the text, from completions with return_token_ids
	usage             usage
	first             time.Duration // until the first generated text of a stream
	took              time.Duration
	done              bool   // a stream's [DONE] was seen
	finish            string // the last finish_reason that was seen
	failure           string // a stream's error event
}

// usage is the fields of all formats; what one does not have is zero.
type usage struct {
	Prompt        int `json:"prompt_tokens"`
	Completion    int `json:"completion_tokens"`
	PromptDetails struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
	Input        int `json:"input_tokens"`
	InputDetails struct {
		Cached int `json:"cached_tokens"`
	} `json:"input_tokens_details"`
	CacheRead int `json:"cache_read_input_tokens"`
}

func (u *usage) cached() int { return u.PromptDetails.Cached + u.InputDetails.Cached + u.CacheRead }

// chunk is a whole answer, or an event of a chat or completions stream.
type chunk struct {
	Choices []struct {
		Text    string
		Tokens  []uint32 `json:"token_ids"`
		Delta   struct{ Content string }
		Message struct{ Content string }
		Finish  string `json:"finish_reason"`
	}
	Usage *usage
	Error json.RawMessage
}

func (a *answer) take(data []byte, since time.Time) error {
	var c chunk
	if err := json.Unmarshal(data, &c); err != nil {
		return fmt.Errorf("%w in %s", err, data)
	}
	if len(c.Error) > 0 && string(c.Error) != "null" {
		a.failure = string(c.Error)
	}
	if c.Usage != nil {
		a.usage = *c.Usage
	}
	for _, choice := range c.Choices {
		text := choice.Text + choice.Delta.Content + choice.Message.Content
		if text != "" && a.first == 0 {
			a.first = time.Since(since)
		}
		a.text += text
		a.tokens = append(a.tokens, choice.Tokens...)
		if choice.Finish != "" {
			a.finish = choice.Finish
		}
	}
	return nil
}

// send makes a request and reads its answer to the end. The answer of an error
// holds what came before it; onText, which may be nil, is called at the first
// text of a stream.
func send(ctx context.Context, base, path string, body object, onText func(*answer), header ...string) (*answer, error) {
	a := &answer{}
	data, err := json.Marshal(body)
	if err != nil {
		return a, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+path, bytes.NewReader(data))
	if err != nil {
		return a, err
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	began := time.Now()
	defer func() { a.took = time.Since(began) }()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return a, err
	}
	defer func() { _ = resp.Body.Close() }()
	a.replica = resp.Header.Get("X-Warmpath-Replica")
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		return a, fmt.Errorf("status %d: %s", resp.StatusCode, text)
	}
	if p := resp.Header.Get("X-Warmpath-Predicted"); p != "" {
		if _, err := fmt.Sscanf(p, "%d/%d", &a.predicted, &a.prompt); err != nil {
			return a, fmt.Errorf("X-Warmpath-Predicted: %q: %w", p, err)
		}
	}
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			return a, err
		}
		return a, a.take(text, began)
	}
	lines := bufio.NewReader(resp.Body)
	for {
		line, err := lines.ReadString('\n')
		if data, ok := strings.CutPrefix(strings.TrimSpace(line), "data:"); ok {
			if data = strings.TrimSpace(data); data == "[DONE]" {
				a.done = true
			} else if err := a.take([]byte(data), began); err != nil {
				return a, err
			}
			if a.first > 0 && onText != nil {
				onText(a)
				onText = nil
			}
		}
		switch {
		case err == io.EOF:
			return a, nil
		case err != nil:
			return a, err
		}
	}
}

// post is send to the gateway, for requests that must succeed.
func (s *stage) post(t *testing.T, path string, body object, header ...string) *answer {
	t.Helper()
	a, err := send(t.Context(), s.clients, path, body, nil, header...)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	if a.failure != "" {
		t.Fatalf("%s: an error on the stream: %s", path, a.failure)
	}
	return a
}

// json is post for answers of another kind.
func (s *stage) json(t *testing.T, path string, body object, into any) {
	t.Helper()
	data, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Post(s.clients+path, "application/json", bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: status %d, %v: %s", path, resp.StatusCode, err, text)
	}
	if err := json.Unmarshal(text, into); err != nil {
		t.Fatalf("%s: %v in %s", path, err, text)
	}
}

var vocabulary = strings.Fields("cluster fault resource schedule network storage cache model replica token prefix request latency gateway node pod image volume queue batch")

// words returns n random words, of about a token each. Nobody has seen them
// before, so that no cache holds them.
func words(n int) string {
	var b strings.Builder
	for range n {
		_, _ = fmt.Fprintf(&b, "%s ", vocabulary[rand.IntN(len(vocabulary))])
	}
	return b.String()
}

func message(role, content string) object { return object{"role": role, "content": content} }
