package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"time"
)

// patience is how long a client waits for a whole answer.
const patience = 20 * time.Second

// client behaves in one way after another until ctx ends.
func (s *stage) client(ctx context.Context, random *rand.Rand) {
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	c := &http.Client{Transport: transport}
	var prompts []string
	for p := range s.want {
		prompts = append(prompts, p)
	}
	for ctx.Err() == nil {
		prompt := prompts[random.IntN(len(prompts))]
		switch random.IntN(16) {
		case 0:
			s.leave(c, prompt, random)
		case 1:
			s.leave(c, prompt, random)
		case 2:
			s.tooMuch(c)
		case 3:
			s.nonsense(c, random)
		case 4:
			s.half(prompt)
		case 5:
			s.deaf(ctx, prompt)
		case 6, 7, 8:
			s.patient(c, prompt, false)
		default:
			s.patient(c, prompt, true)
		}
	}
}

func request(prompt string, stream bool) []byte {
	body, err := json.Marshal(map[string]any{"model": "mock", "stream": stream, "max_tokens": 12, "messages": []map[string]string{{"role": "user", "content": prompt}}})
	if err != nil {
		panic(err)
	}
	return body
}

// ask sends a request and reads the whole answer.
func (s *stage) ask(ctx context.Context, c *http.Client, prompt string, stream bool) (status int, body string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.gateway.Addr()+"/v1/chat/completions", bytes.NewReader(request(prompt, stream)))
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

// content returns a stream's text, whether it had its last event, and whether it says
// that something went wrong.
func content(body string) (text string, done, failed bool) {
	for line := range strings.Lines(body) {
		data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			done = true
			continue
		}
		var c struct {
			Error   json.RawMessage
			Choices []struct {
				Delta, Message struct{ Content string }
				Finish         string `json:"finish_reason"`
			}
		}
		if json.Unmarshal([]byte(data), &c) != nil {
			failed = true // and whoever parses it knows
			continue
		}
		failed = failed || len(c.Error) > 0
		for _, choice := range c.Choices {
			text += choice.Delta.Content + choice.Message.Content
			failed = failed || choice.Finish == "abort"
		}
	}
	return text, done, failed
}

// patient is a client that wants its answer, and must get it unless a part of it had
// come when its replica broke.
func (s *stage) patient(c *http.Client, prompt string, stream bool) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	began := time.Now()
	status, body, err := s.ask(ctx, c, prompt, stream)
	took := time.Since(began).Round(time.Millisecond)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		s.fail("no whole answer within %v, so far status %d %q", took, status, body)
		return
	case status != http.StatusOK:
		s.fail("after %v: status %d, %v: %s", took, status, err, body)
		return
	}
	if !stream {
		text, _, failed := content("data: " + body)
		switch {
		case err != nil && body == "":
			s.fail("after %v: an answer of which nothing came: %v", took, err)
		case err != nil:
			s.count("told")
		case failed:
			s.fail("after %v: an answer that was given up could have been another's: %s", took, body)
		case text != s.want[prompt]:
			s.fail("an answer is silently other than it should be: %q, not %q", text, s.want[prompt])
		default:
			s.count("whole")
		}
		return
	}
	text, done, failed := content(body)
	event := strings.HasPrefix(body, `data: {"error"`)
	switch {
	case event || err != nil && body == "":
		s.fail("after %v: an error although nothing of an answer had come: %q, %v", took, body, err)
	case failed || err != nil:
		s.count("told")
	case !done:
		s.fail("a stream is silently short: %q", body)
	case text != s.want[prompt]:
		s.fail("a stream is silently other than it should be: %q, not %q", text, s.want[prompt])
	default:
		s.count("whole")
	}
}

// leave goes away at any moment.
func (s *stage) leave(c *http.Client, prompt string, random *rand.Rand) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(random.IntN(60_000))*time.Microsecond)
	defer cancel()
	_, _, _ = s.ask(ctx, c, prompt, random.IntN(2) == 0)
	s.count("left")
}

// tooMuch sends more than is allowed.
func (s *stage) tooMuch(c *http.Client) {
	resp, err := c.Post(s.gateway.Addr()+"/v1/chat/completions", "application/json", strings.NewReader(strings.Repeat("x", 2<<20)))
	if err != nil {
		s.fail("too much: %v", err)
		return
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusRequestEntityTooLarge {
		s.fail("too much: status %d", resp.StatusCode)
	}
	s.count("refused")
}

// nonsense sends what is no request.
func (s *stage) nonsense(c *http.Client, random *rand.Rand) {
	switch random.IntN(3) {
	case 0:
		resp, err := c.Post(s.gateway.Addr()+"/v1/chat/completions", "application/json", strings.NewReader(`{"model":`))
		if err != nil || resp.StatusCode != http.StatusBadRequest {
			s.fail("nonsense: %v, %v", resp, err)
			return
		}
		_ = resp.Body.Close()
	case 1:
		resp, err := c.Post(s.gateway.Addr()+"/v1/chat/completions", "application/json", strings.NewReader(`{"model":"nobody","messages":[{"role":"user","content":"x"}]}`))
		if err != nil || resp.StatusCode != http.StatusNotFound {
			s.fail("an unknown model: %v, %v", resp, err)
			return
		}
		_ = resp.Body.Close()
	default:
		conn, err := s.dial()
		if err != nil {
			return
		}
		noise := make([]byte, 500)
		for i := range noise {
			noise[i] = byte(random.Uint32())
		}
		_, _ = conn.Write(noise)
		_, _ = io.Copy(io.Discard, io.LimitReader(conn, 1<<10))
		_ = conn.Close()
	}
	s.count("refused")
}

func (s *stage) dial() (net.Conn, error) {
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.gateway.Addr(), "http://"))
	if err != nil {
		s.fail("dial: %v", err)
		return nil, err
	}
	return conn, conn.SetDeadline(time.Now().Add(5 * time.Second))
}

// half stops in the middle of its request.
func (s *stage) half(prompt string) {
	conn, err := s.dial()
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	body := request(prompt, true)
	_, _ = fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nContent-Length: %d\r\n\r\n%s", len(body), body[:len(body)/2])
	answer, _ := io.ReadAll(conn)
	if !bytes.Contains(answer, []byte(" 408 ")) {
		s.fail("half a request got %q", answer)
	}
	s.count("refused")
}

// deaf asks and does not read for a while.
func (s *stage) deaf(ctx context.Context, prompt string) {
	conn, err := s.dial()
	if err != nil {
		return
	}
	body := request(prompt, true)
	_, _ = fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	wait(ctx, 300*time.Millisecond)
	_ = conn.Close()
	s.count("left")
}
