package proxy

import (
	"bytes"
	"io"
	"maps"
	"mime"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
	"time"
)

// hopByHop are the headers that concern one connection only (RFC 9110, 7.6.1).
var hopByHop = [...]string{
	"Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization",
	"Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

// copyHeader copies what concerns the request or the answer itself.
func copyHeader(to, from http.Header) {
	maps.Copy(to, from)
	for _, list := range from["Connection"] {
		for name := range strings.SplitSeq(list, ",") {
			delete(to, textproto.CanonicalMIMEHeaderKey(textproto.TrimString(name)))
		}
	}
	for _, name := range hopByHop {
		delete(to, name)
	}
}

// isEventStream reports whether an answer is a stream of events, however its
// type is written.
func isEventStream(h http.Header) bool {
	media, _, _ := strings.Cut(h.Get("Content-Type"), ";")
	return strings.EqualFold(strings.TrimSpace(media), "text/event-stream")
}

// retryAfter returns what a Retry-After header in seconds asks for, else 0.
func retryAfter(h http.Header) time.Duration {
	n, err := strconv.Atoi(h.Get("Retry-After"))
	if err != nil || n < 0 {
		return 0
	}
	return time.Duration(n) * time.Second
}

// isForm reports whether the body is a form, as audio is sent.
func isForm(r *http.Request) bool {
	return strings.HasPrefix(r.Header.Get("Content-Type"), "multipart/form-data")
}

// formModel returns the field model of a form, "" if there is none.
func formModel(contentType string, body []byte) string {
	_, params, err := mime.ParseMediaType(contentType)
	if err != nil {
		return ""
	}
	form := multipart.NewReader(bytes.NewReader(body), params["boundary"])
	for {
		part, err := form.NextPart()
		if err != nil {
			return ""
		}
		if part.FormName() == "model" {
			name, err := io.ReadAll(io.LimitReader(part, 1<<10))
			if err != nil {
				return ""
			}
			return string(name)
		}
	}
}

// maxID is the longest name for a request that is taken from a client.
const maxID = 128

// isID reports whether a client's name for its request can go into logs and
// headers as it is; the engines make it a part of the answer's id.
func isID(id string) bool {
	if id == "" || len(id) > maxID {
		return false
	}
	for i := range len(id) {
		switch c := id[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case c == '-', c == '_', c == '.', c == ':', c == '=', c == '+':
		default:
			return false
		}
	}
	return true
}

// short returns what is shown of a text that a client made up.
func short(text string) string {
	const limit = 128
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit], "") + "…"
}
