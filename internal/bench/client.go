// Package bench measures servers of OpenAI's API from the outside: a [Client]
// sends one request and times what comes back, a [Loop] sends a schedule of them
// whatever the server does, and a [Tally] adds the answers up. Tokens are what
// usage says they are, never counted chunks; the time to first token runs from
// when a request was due to the first event that carries a generated token, so
// that neither headers nor a chunk with a role count, and a client or a server
// that falls behind cannot hide it.
package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/warmpath/warmpath/internal/openai"
	"github.com/warmpath/warmpath/internal/sse"
)

// Config says where a client sends.
type Config struct {
	Endpoint string        // base URL, with or without /v1 at its end
	Token    string        // bearer token, "" for none
	Header   http.Header   // further headers
	Timeout  time.Duration // of a whole request; 0 is none
}

// Client sends requests to one endpoint. It is safe for concurrent use.
type Client struct {
	base    string
	header  http.Header
	timeout time.Duration
	http    *http.Client
}

// New returns a client. Close it at the end.
func New(cfg Config) (*Client, error) {
	u, err := url.Parse(cfg.Endpoint)
	if err != nil {
		return nil, fmt.Errorf("endpoint: %w", err)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("endpoint %q is not a URL such as http://127.0.0.1:8080", cfg.Endpoint)
	}
	c := &Client{
		base:    strings.TrimSuffix(strings.TrimRight(cfg.Endpoint, "/"), "/v1"),
		header:  http.Header{},
		timeout: cfg.Timeout,
		http: &http.Client{Transport: &http.Transport{
			MaxIdleConnsPerHost: 1 << 16, // a connection that is closed and opened again is time that the server did not take
			IdleConnTimeout:     3 * time.Second,
			DisableCompression:  true, // which would hold events back
			DialContext:         (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		}},
	}
	maps.Copy(c.header, cfg.Header)
	c.header.Set("Content-Type", "application/json")
	if cfg.Token != "" {
		c.header.Set("Authorization", "Bearer "+cfg.Token)
	}
	return c, nil
}

// Close closes the idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Call is one request for a stream of tokens.
type Call struct {
	Path string // such as /v1/completions
	Body []byte // JSON; without include_usage the answer's tokens stay unknown
	Keep bool   // hand out what was generated, for a session's next turn or for a grader
	// Repeated is how many of the prompt's first tokens an earlier request of the
	// schedule begins with; it is copied to the answer.
	Repeated int
	Tag      int // copied to the answer, for who sends many at a time
}

// Failure is the kind of a failure.
type Failure string

// The kinds of failures; None is success.
const (
	None         Failure = ""
	NotConnected Failure = "no connection"
	Status       Failure = "status"      // an answer other than 200
	ErrorEvent   Failure = "error event" // an error inside an answer that began with 200
	Aborted      Failure = "aborted"     // the engine gave the request up: finish_reason abort
	Cut          Failure = "cut"         // the answer ended before its end
	Empty        Failure = "no token"    // the answer ended well, without one generated token
	TimedOut     Failure = "timeout"
	Stopped      Failure = "stopped" // by the caller
)

// Answer is what came of a request.
type Answer struct {
	At      time.Duration // when it was due after the run's start; set by loops
	Late    time.Duration // how long after it was due the request was sent; set by [Loop]
	Sent    time.Time
	First   time.Duration // from Sent to the first generated token of any kind, 0 if there was none
	Said    time.Duration // to the first one that is not reasoning, 0 if there was none
	Last    time.Duration // to the last one
	Took    time.Duration // to the end of the answer
	Usage   openai.Usage  // zero if the server reported none
	Replica string        // that answered, by Warmpath's header; "" if nobody said
	Code    int           // HTTP status, 0 without an answer

	// Gaps are the times between the chunks that carried tokens. A chunk may carry
	// several tokens, so these are not times between tokens.
	Gaps []time.Duration
	// FirstTokens is how many tokens the first such chunk carried, if the server told
	// (continuous usage, token ids); else 0.
	FirstTokens int
	Whole       bool // the server did not stream: the first token came with the last
	Repeated    int  // of the call
	Tag         int  // of the call

	// Text, Thought and IDs are what was generated, if Call.Keep asked for it: the
	// answer, the reasoning before it, and the ids only if the server gives them (vLLM:
	// return_token_ids).
	Text, Thought string
	IDs           []uint32
	Finish        string // finish_reason, if Call.Keep asked for it

	Failure Failure
	Err     error // says more about a failure
}

// TTFT is the time to first token from when the request was due.
func (a *Answer) TTFT() time.Duration { return a.Late + a.First }

// TPOT is the mean time of a token after those of the first chunk; false when there
// was none, no usage, or all came at once.
func (a *Answer) TPOT() (time.Duration, bool) {
	n := a.Usage.Completion - max(1, a.FirstTokens)
	if n < 1 || a.First == 0 || a.Whole {
		return 0, false
	}
	return (a.Last - a.First) / time.Duration(n), true
}

// E2E is the time to the end of the answer from when the request was due.
func (a *Answer) E2E() time.Duration { return a.Late + a.Took }

// Cause is the kind of the failure, of a status with its number; "" for a success.
func (a *Answer) Cause() string {
	if a.Failure == Status {
		return fmt.Sprintf("status %d", a.Code)
	}
	return string(a.Failure)
}

// failure is an error of a kind.
type failure struct {
	kind Failure
	err  error
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

func fail(kind Failure, format string, args ...any) error {
	return &failure{kind, fmt.Errorf(format, args...)}
}

// Send sends a request and reads its answer to the end.
func (c *Client) Send(ctx context.Context, call Call) Answer {
	limited := ctx
	if c.timeout > 0 {
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeout(ctx, c.timeout)
		defer cancel()
	}
	a := Answer{Sent: time.Now(), Repeated: call.Repeated, Tag: call.Tag}
	err := c.exchange(limited, call, &a)
	a.Took = time.Since(a.Sent)
	switch f, _ := errors.AsType[*failure](err); {
	case err == nil:
	case ctx.Err() != nil:
		a.Failure, a.Err = Stopped, ctx.Err()
	case limited.Err() != nil:
		a.Failure, a.Err = TimedOut, fmt.Errorf("no end of the answer after %v", c.timeout)
	case f != nil:
		a.Failure, a.Err = f.kind, err
	default:
		a.Failure, a.Err = Cut, err
	}
	return a
}

func (c *Client) exchange(ctx context.Context, call Call, a *Answer) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+call.Path, bytes.NewReader(call.Body))
	if err != nil {
		return err
	}
	req.Header = c.header.Clone()
	resp, err := c.http.Do(req)
	if err != nil {
		if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
			return &failure{NotConnected, err}
		}
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	a.Replica = resp.Header.Get("X-Warmpath-Replica")
	a.Code = resp.StatusCode
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, excerptBytes))
		return fail(Status, "status %d: %s", resp.StatusCode, text)
	}
	r := &reader{answer: a, keep: call.Keep}
	if kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); kind == "application/json" {
		return r.whole(resp.Body)
	}
	return r.stream(resp.Body)
}

// excerptBytes is how much of what a server said about an error is kept.
const excerptBytes = 300

func excerpt(data []byte) []byte { return data[:min(len(data), excerptBytes)] }

// reader reads one answer.
type reader struct {
	answer  *Answer
	keep    bool
	text    strings.Builder
	thought strings.Builder
	now     time.Duration // since the request was sent
	ended   bool          // the format's closing event was there
	err     error         // the first failure that an event told
}

func (r *reader) stream(body io.Reader) error {
	scanner := sse.Scanner{OnData: r.take}
	buf := make([]byte, 32<<10)
	for {
		n, err := body.Read(buf)
		r.now = time.Since(r.answer.Sent)
		scanner.Feed(buf[:n])
		if err == nil {
			continue
		}
		if err == io.EOF {
			scanner.Feed([]byte("\n\n")) // some servers leave the last event's end out
			err = nil
		}
		return r.end(err)
	}
}

// whole reads the answer of a server that does not stream: its first token is
// there when all are.
func (r *reader) whole(body io.Reader) error {
	data, err := io.ReadAll(body)
	r.now = time.Since(r.answer.Sent)
	if err == nil {
		r.ended, r.answer.Whole = true, true
		r.note(openai.ParseAnswer(data), data)
	}
	return r.end(err)
}

// take reads one event of a stream.
func (r *reader) take(data []byte) { r.note(openai.ParseEvent(data), data) }

func (r *reader) note(e openai.Event, data []byte) {
	a := r.answer
	if e.UsageSeen {
		a.Usage = e.Usage // of several reports the last one counts
	}
	if e.Token {
		r.token(data, e.Usage.Completion)
	}
	if r.keep {
		r.collect(data)
	}
	r.ended = r.ended || e.Last
	switch {
	case r.err != nil:
	case e.Failed:
		r.err = fail(ErrorEvent, "the answer said: %s", excerpt(data))
	case e.Aborted:
		r.err = fail(Aborted, "the answer said: %s", excerpt(data))
	}
}

// token takes the times of an event that carries generated tokens; counted is how
// many the answer had by then, if the event tells.
func (r *reader) token(data []byte, counted int) {
	a := r.answer
	if a.First > 0 {
		a.Gaps = append(a.Gaps, r.now-a.Last)
	}
	if a.Said == 0 {
		c := parse(data)
		if a.First == 0 {
			a.FirstTokens = max(counted, len(c.IDs))
		}
		if said := c.Delta.Content + c.Message.Content + c.Text; said != "" || c.Delta.thought()+c.Message.thought() == "" {
			a.Said = r.now
		}
	}
	if a.First == 0 {
		a.First = r.now
	}
	a.Last = r.now
}

// said is a piece of a chat's answer. Engines name its reasoning differently.
type said struct {
	Content   string `json:"content"`
	Reasoning string `json:"reasoning"`
	Older     string `json:"reasoning_content"`
}

func (s said) thought() string {
	if s.Reasoning != "" {
		return s.Reasoning
	}
	return s.Older
}

// piece is the first choice of an event of chat or completions.
type piece struct {
	Text    string   `json:"text"`
	Delta   said     `json:"delta"`
	Message said     `json:"message"`
	IDs     []uint32 `json:"token_ids"`
	Finish  string   `json:"finish_reason"`
}

func parse(data []byte) piece {
	var e struct {
		Choices []piece `json:"choices"`
	}
	if json.Unmarshal(data, &e) != nil || len(e.Choices) == 0 {
		return piece{}
	}
	return e.Choices[0]
}

// collect keeps what an event generated.
func (r *reader) collect(data []byte) {
	c := parse(data)
	r.text.WriteString(c.Text + c.Delta.Content + c.Message.Content)
	r.thought.WriteString(c.Delta.thought() + c.Message.thought())
	r.answer.IDs = append(r.answer.IDs, c.IDs...)
	if c.Finish != "" {
		r.answer.Finish = c.Finish
	}
}

// end judges an answer of which no more comes.
func (r *reader) end(err error) error {
	r.answer.Text, r.answer.Thought = r.text.String(), r.thought.String()
	switch {
	case r.err != nil:
		return r.err
	case err != nil:
		return fail(Cut, "after %v: %w", r.now.Round(time.Millisecond), err)
	case !r.ended:
		return fail(Cut, "the stream ended after %v without %s", r.now.Round(time.Millisecond), openai.Done)
	case r.answer.First == 0:
		return fail(Empty, "no event carried a generated token")
	}
	return nil
}
