package openai

import (
	"encoding/json"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// Error is an error in OpenAI's form, which every SDK of the API can read; for
// Messages it has what Anthropic's look for beside it.
type Error struct {
	Status     int           // HTTP status
	Type       string        // class, e.g. invalid_request_error
	Code       string        // machine-readable reason, e.g. model_not_found
	Param      string        // the offending field, "" for null
	Message    string        // for people
	RetryAfter time.Duration // > 0: sent as Retry-After, in whole seconds
	Final      bool          // sent as x-should-retry: false, by which SDKs know not to send the request again
	Endpoint   Endpoint      // whose clients will read it
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

func badRequest(message, param string) *Error {
	return &Error{Status: http.StatusBadRequest, Type: "invalid_request_error", Code: "invalid_request", Param: param, Message: message}
}

// Write sends the error as the whole answer.
func (e *Error) Write(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	if e.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(int(math.Ceil(e.RetryAfter.Seconds()))))
	}
	if e.Final {
		h.Set("X-Should-Retry", "false")
	}
	body := e.JSON()
	if e.Endpoint == Messages {
		body = append([]byte(`{"type":"error",`), body[1:]...)
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(e.Status)
	_, _ = w.Write(body) // the client has gone if this fails
}

// Event returns the error as an event of a stream, in the form that clients of
// the endpoint look for once the status is out.
func (e *Error) Event(endpoint Endpoint) []byte {
	data := e.JSON()
	switch endpoint {
	case Messages: // Anthropic's clients go by the event's name
		return slices.Concat([]byte("event: error\ndata: {\"type\":\"error\","), data[1:], []byte("\n\n"))
	case Responses:
		var flat struct {
			Error map[string]any `json:"error"`
		}
		if err := json.Unmarshal(data, &flat); err != nil {
			panic("BUG: an error's own JSON must be readable: " + err.Error())
		}
		flat.Error["type"] = "error"
		body, err := json.Marshal(flat.Error)
		if err != nil {
			panic("BUG: an error must be representable as JSON: " + err.Error())
		}
		return slices.Concat([]byte("event: error\ndata: "), body, []byte("\n\n"))
	}
	return slices.Concat([]byte("data: "), data, []byte("\n\n"))
}

// JSON returns the error's body, {"error":{…}}.
func (e *Error) JSON() []byte {
	var param *string
	if e.Param != "" {
		param = &e.Param
	}
	body, err := json.Marshal(map[string]any{"error": map[string]any{
		"message": e.Message, "type": e.Type, "param": param, "code": e.Code,
	}})
	if err != nil {
		panic("BUG: an error must be representable as JSON: " + err.Error())
	}
	return body
}
