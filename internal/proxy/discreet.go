package proxy

import (
	"errors"
	"net"
	"net/textproto"
	"strings"
)

// discreetError is an error whose text shows nothing of an answer.
type discreetError struct {
	text string
	err  error
}

// Error returns the text.
func (e *discreetError) Error() string { return e.text }

// Unwrap returns the error behind it.
func (e *discreetError) Unwrap() error { return e.err }

// discreet takes out of a transport's error what it may quote of the answer that
// it could not read. What is left can be logged.
func discreet(err error) error {
	var op *net.OpError
	if err == nil || errors.As(err, &op) {
		return err
	}
	text, _, quotes := strings.Cut(err.Error(), `"`)
	if line := textproto.ProtocolError(""); errors.As(err, &line) {
		text, quotes = "the replica's answer has a malformed header", true
	}
	if !quotes {
		return err
	}
	return &discreetError{strings.TrimSpace(text), err}
}
