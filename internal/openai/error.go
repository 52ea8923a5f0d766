package openai

import (
	"encoding/json"
	"math"
	"net/http"
	"strconv"
	"time"
)

// Error is an error in OpenAI's form, which every SDK of the API can read.
type Error struct {
	Status     int           // HTTP status
	Type       string        // class, e.g. invalid_request_error
	Code       string        // machine-readable reason, e.g. model_not_found
	Param      string        // the offending field, "" for null
	Message    string        // for people
	RetryAfter time.Duration // > 0: sent as Retry-After, in whole seconds
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
	body := e.JSON()
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(e.Status)
	_, _ = w.Write(body) // the client has gone if this fails
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
