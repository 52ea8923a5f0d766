package source

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// web is a directory of an HTTP server. It cannot be listed.
type web struct {
	base   *url.URL
	token  string
	client *http.Client
}

// newWeb returns a source that sends token, if there is one, as a bearer token.
func newWeb(base *url.URL, token string) *web {
	return &web{base: base, token: token, client: &http.Client{Transport: transport(), CheckRedirect: redirect}}
}

// maxRedirects is net/http's own.
const maxRedirects = 10

// redirect follows a server's redirects, but sends the token on to the same scheme,
// host and port alone: net/http would to other ports, to subdomains, and from https
// to http.
func redirect(req *http.Request, via []*http.Request) error {
	if len(via) >= maxRedirects {
		return fmt.Errorf("stopped after %d redirects", maxRedirects)
	}
	if first := via[0].URL; req.URL.Scheme != first.Scheme || req.URL.Host != first.Host {
		req.Header.Del("Authorization")
	}
	return nil
}

// transport keeps as many connections as downloads may use. How long a server may be
// silent is the caller's to say, with the context.
func transport() *http.Transport {
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		TLSHandshakeTimeout: 10 * time.Second,
		IdleConnTimeout:     30 * time.Second,
		MaxIdleConnsPerHost: 64,
		DisableCompression:  true, // a range of compressed bytes is a range of something else
	}
}

// List returns ErrNoListing.
func (w *web) List(context.Context, func(Object) bool) error { return ErrNoListing }

// Open sends a GET.
func (w *web) Open(ctx context.Context, path string, offset, length int64, version string) (*Body, error) {
	elements := strings.Split(path, "/")
	for i, e := range elements {
		elements[i] = url.PathEscape(e)
	}
	u := w.base.JoinPath(elements...)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept-Encoding", "identity")
	if w.token != "" {
		req.Header.Set("Authorization", "Bearer "+w.token)
	}
	if ranged := byteRange(offset, length); ranged != "" {
		req.Header.Set("Range", ranged)
		if strong(version) {
			req.Header.Set("If-Range", version)
		}
	}
	resp, err := w.client.Do(req)
	if err != nil {
		if failed, ok := errors.AsType[*url.Error](err); ok { // it shows the whole URL
			err = fmt.Errorf("%s %s: %w", failed.Op, Redacted(failed.URL), failed.Err)
		}
		return nil, err
	}
	body, err := readHeader(resp.StatusCode, resp.Header, resp.ContentLength, offset)
	if err == nil && version != "" && body.Version != "" && body.Version != version {
		err = ErrChanged
	}
	if err != nil {
		_ = resp.Body.Close()
		return nil, fmt.Errorf("%s: %w", Redacted(u.String()), err)
	}
	body.ReadCloser = resp.Body
	return body, nil
}

// byteRange is the Range header of a part, "" for a whole file.
func byteRange(offset, length int64) string {
	switch {
	case offset == 0 && length < 0:
		return ""
	case length < 0:
		return fmt.Sprintf("bytes=%d-", offset)
	default:
		return fmt.Sprintf("bytes=%d-%d", offset, offset+length-1)
	}
}

// strong tells that an ETag promises equal bytes.
func strong(version string) bool { return strings.HasPrefix(version, `"`) }

// readHeader finds out what an answer's body is. The status of an error becomes an
// error that Permanent can judge.
func readHeader(status int, header http.Header, contentLength, offset int64) (*Body, error) {
	body := &Body{Size: -1, Version: header.Get("ETag"), Encoding: header.Get("Content-Encoding")}
	switch status {
	case http.StatusOK:
		body.Size = contentLength
	case http.StatusPartialContent:
		begin, size, err := parseContentRange(header.Get("Content-Range"))
		if err != nil {
			return nil, err
		}
		if begin != offset {
			return nil, fmt.Errorf("asked for bytes from %d on and got them from %d on", offset, begin)
		}
		body.Offset, body.Size = begin, size
	case http.StatusNotFound, http.StatusGone:
		return nil, fmt.Errorf("status %d: %w", status, fs.ErrNotExist)
	case http.StatusUnauthorized, http.StatusForbidden:
		return nil, fmt.Errorf("status %d: %w", status, fs.ErrPermission)
	case http.StatusPreconditionFailed:
		return nil, fmt.Errorf("status %d: %w", status, ErrChanged)
	case http.StatusRequestedRangeNotSatisfiable:
		return nil, fmt.Errorf("status %d: the file at the source ends before byte %d", status, offset)
	default:
		return nil, fmt.Errorf("status %d", status)
	}
	return body, nil
}

// parseContentRange reads "bytes 0-99/1000" and returns 0 and 1000; the size is -1
// if it is "*".
func parseContentRange(text string) (begin, size int64, err error) {
	bad := fmt.Errorf("Content-Range is %q", text) //nolint:revive // a header's name
	rest, ok := strings.CutPrefix(text, "bytes ")
	span, whole, ok2 := strings.Cut(rest, "/")
	first, last, ok3 := strings.Cut(span, "-")
	if !ok || !ok2 || !ok3 {
		return 0, 0, bad
	}
	begin, err = strconv.ParseInt(first, 10, 64)
	end, err2 := strconv.ParseInt(last, 10, 64)
	if err != nil || err2 != nil || begin < 0 || end < begin {
		return 0, 0, bad
	}
	if whole == "*" {
		return begin, -1, nil
	}
	size, err = strconv.ParseInt(whole, 10, 64)
	if err != nil || size <= end {
		return 0, 0, bad
	}
	return begin, size, nil
}
