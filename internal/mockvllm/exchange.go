package mockvllm

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"mime"
	"net"
	"net/http"
	"strings"
	"time"
)

// errAnswered ends a handler that must not write any more: the connection is gone or the answer complete.
var errAnswered = errors.New("answered")

// apiError is an answer in vLLM's error shape.
type apiError struct {
	status  int
	kind    string
	message string
	param   string
}

func (e *apiError) Error() string { return e.message }

func badRequest(param, format string, args ...any) *apiError {
	return &apiError{http.StatusBadRequest, "BadRequestError", fmt.Sprintf(format, args...), param}
}

// body returns the error as JSON, in the dialect of the path that was asked.
func (e *apiError) body(anthropic bool) []byte {
	type detail struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    int     `json:"code"`
	}
	var v any
	if anthropic {
		v = map[string]any{"type": "error", "error": map[string]string{"type": e.kind, "message": e.message}}
	} else {
		d := detail{Message: e.message, Type: e.kind, Code: e.status}
		if e.param != "" {
			d.Param = &e.param
		}
		v = map[string]detail{"error": d}
	}
	b, _ := json.Marshal(v)
	return b
}

// exchange is one HTTP request that the engine works for, and its answer. Everything written passes through it, so
// that faults strike every API alike.
type exchange struct {
	s         *Server
	w         http.ResponseWriter
	r         *http.Request
	rc        *http.ResponseController
	body      []byte
	fault     Faults
	anthropic bool
	events    int // stream events written
}

// serve wraps the handler of an inference endpoint.
func (s *Server) serve(h func(*exchange) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.inFlight.Add(1)
		defer s.inFlight.Add(-1)
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the client left before it had asked
		}
		s.received.add(Received{Method: r.Method, Path: r.URL.Path, Header: r.Header.Clone(), Body: body})
		x := &exchange{
			s: s, w: w, r: r, body: body,
			rc:        http.NewResponseController(w),
			fault:     s.faults.take(),
			anthropic: strings.HasPrefix(r.URL.Path, "/v1/messages"),
		}
		err = x.begin()
		if err == nil {
			err = h(x)
		}
		if e, ok := errors.AsType[*apiError](err); ok {
			x.w.Header().Set("Content-Type", "application/json")
			x.w.WriteHeader(e.status)
			_, _ = x.w.Write(e.body(x.anthropic))
		}
	}
}

// begin applies what happens before a request is looked at.
func (x *exchange) begin() error {
	if err := x.pause(x.fault.HeaderDelay); err != nil {
		return err
	}
	if x.fault.After == 0 {
		if err := x.disrupt(); err != nil {
			return err
		}
	}
	if x.fault.Status != 0 {
		if x.fault.RetryAfter > 0 {
			x.w.Header().Set("Retry-After", fmt.Sprint(int((x.fault.RetryAfter+time.Second-1)/time.Second)))
		}
		return &apiError{x.fault.Status, http.StatusText(x.fault.Status), "injected fault", ""}
	}
	if x.r.Method != http.MethodPost {
		return nil
	}
	if t, _, _ := mime.ParseMediaType(x.r.Header.Get("Content-Type")); t != "application/json" {
		return &apiError{http.StatusBadRequest, "Bad Request", "Unsupported Media Type: Only 'application/json' is allowed", ""}
	}
	return nil
}

// decode reads the body as JSON; unknown fields are accepted, as in vLLM.
func decode(body []byte, v any) error {
	if err := json.Unmarshal(body, v); err != nil {
		return &apiError{http.StatusBadRequest, "Bad Request", "JSON decode error: " + err.Error(), ""}
	}
	return nil
}

// id returns prefix and the client's X-Request-Id, or a random id.
func (x *exchange) id(prefix string) string {
	if id := x.r.Header.Get("X-Request-Id"); id != "" {
		return prefix + id
	}
	return fmt.Sprintf("%s%016x", prefix, rand.Uint64())
}

// reply answers with one JSON value.
func (x *exchange) reply(v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if x.fault.Error {
		return injected
	}
	x.w.Header().Set("Content-Type", "application/json")
	if x.fault.Cut {
		x.w.Header().Set("Content-Length", fmt.Sprint(len(data)))
		_, _ = x.w.Write(data[:len(data)/2])
		_ = x.rc.Flush()
	}
	if x.fault.After > 0 {
		if err := x.disrupt(); err != nil {
			return err
		}
	}
	_, err = x.w.Write(data)
	return err
}

// stream sends the headers of an event stream. vLLM does so before the prefill: they say nothing about it.
func (x *exchange) stream() error {
	x.w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	x.w.Header().Set("Cache-Control", "no-cache")
	x.w.WriteHeader(http.StatusOK)
	return x.rc.Flush()
}

// event sends one event and flushes it; name may be empty.
func (x *exchange) event(name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return x.send(name, data)
}

// done sends OpenAI's end of stream.
func (x *exchange) done() error { return x.send("", []byte("[DONE]")) }

func (x *exchange) send(name string, data []byte) error {
	if x.events > 0 {
		if err := x.pause(x.fault.EventDelay); err != nil {
			return err
		}
	}
	if err := x.strike(); err != nil {
		return err
	}
	x.events++
	return x.write(name, data)
}

func (x *exchange) write(name string, data []byte) error {
	buf := make([]byte, 0, len(name)+len(data)+16)
	if name != "" {
		buf = append(append(append(buf, "event: "...), name...), '\n')
	}
	buf = append(append(append(buf, "data: "...), data...), "\n\n"...)
	if _, err := x.w.Write(buf); err != nil {
		return err
	}
	return x.rc.Flush()
}

// follow calls emit for each token of each choice when it is generated. finish is empty until the choice's last call,
// which has no text if the choice stopped by itself or was aborted. It closes the job.
func (x *exchange) follow(j *job, emit func(i int, text, finish string) error) error {
	defer j.close()
	sent := make([]int, len(j.choices))
	ended := make([]bool, len(j.choices))
	tokens := 0
	for open := len(j.choices); open > 0; {
		if err := j.wait(x.r.Context()); err != nil {
			return errAnswered
		}
		for i, c := range j.choices {
			if ended[i] {
				continue
			}
			p := j.progress(i)
			for ; sent[i] < p.generated; sent[i]++ {
				if x.fault.Abort && tokens >= x.fault.After {
					j.close()
					p = j.progress(i)
					p.aborted = true
					break
				}
				tokens++
				finish := ""
				if sent[i]+1 == c.output && c.reason == "length" {
					finish, ended[i] = c.reason, true
				}
				if err := emit(i, c.answer.piece(sent[i]), finish); err != nil {
					return err
				}
			}
			if p.ended && !ended[i] {
				ended[i] = true
				if err := emit(i, "", c.finish(p)); err != nil {
					return err
				}
			}
			if ended[i] {
				open--
			}
		}
	}
	return nil
}

// pause waits, unless the client leaves or the server stops.
func (x *exchange) pause(d time.Duration) error {
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	return x.waitFor(t.C)
}

// waitFor waits for c, which may be nil. When the server stops it drops the connection instead of answering.
func (x *exchange) waitFor(c <-chan time.Time) error {
	select {
	case <-c:
		return nil
	case <-x.r.Context().Done():
		return errAnswered
	case <-x.s.stop:
		panic(http.ErrAbortHandler)
	}
}

// strike applies the faults that are due after so many events.
func (x *exchange) strike() error {
	if x.events != x.fault.After {
		return nil
	}
	if x.fault.Error {
		return x.breakStream()
	}
	return x.disrupt()
}

// disrupt resets the connection or answers no more.
func (x *exchange) disrupt() error {
	switch {
	case x.fault.Cut, x.fault.Garbage:
		conn, _, err := x.rc.Hijack()
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		if x.fault.Garbage {
			_, _ = conn.Write([]byte("\x00\xffHTTP/9 what\r\ndata: {\x01\n\n"))
		}
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // close with RST, as a killed process does with unread data
		}
		_ = conn.Close()
		return errAnswered
	case x.fault.Hang:
		return x.waitFor(nil)
	}
	return nil
}

// injected is the error of [Faults].Error.
var injected = &apiError{http.StatusInternalServerError, "InternalServerError", "injected fault", ""}

// breakStream ends a stream as vLLM ends one whose engine died: an error event, then [DONE], under status 200.
func (x *exchange) breakStream() error {
	name := ""
	if x.anthropic {
		name = "error"
	}
	err := x.write(name, injected.body(x.anthropic))
	if err == nil && !x.anthropic {
		err = x.write("", []byte("[DONE]"))
	}
	if err != nil {
		return err
	}
	return errAnswered
}
