package discovery

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
	"time"
)

// lookEvery is the time between two looks at a file. Looking is what works over
// network file systems and where a link is swapped, as Kubernetes does with mounted
// ConfigMaps.
const lookEvery = 500 * time.Millisecond

// maxFileBytes bounds a file of replicas.
const maxFileBytes = 1 << 20

// file is a list of replicas in a file: a base URL on each line. Empty lines and
// lines that begin with # do not count.
type file struct{ path string }

func newFile(raw string) (Source, error) {
	const form = "file:/path/to/replicas.txt"
	u, err := url.Parse(raw)
	if err != nil || u.Host != "" || u.RawQuery != "" || u.Fragment != "" || u.Path+u.Opaque == "" {
		return nil, fmt.Errorf("replica %q is not of the form %s", shown(raw), form)
	}
	return file{path: u.Path + u.Opaque}, nil
}

// Run sends the file's replicas whenever it has changed. A change counts when the
// file is the same at two looks: nobody is in the middle of writing it.
func (f file) Run(ctx context.Context, send func(Update)) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	var last, used []byte
	for first := true; ; first = false {
		text, err := f.read()
		switch {
		case err != nil:
			send(Update{Err: err})
			used = nil // when it is back it is news, whatever it says
		case first || bytes.Equal(text, last) && !bytes.Equal(text, used):
			urls, err := parseFile(text)
			if err != nil {
				err = fmt.Errorf("%s: %w", f.path, err)
			}
			send(Update{URLs: urls, Err: err})
			used = text
		}
		last = text
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (f file) read() ([]byte, error) {
	about, err := os.Stat(f.path)
	if err != nil {
		return nil, err
	}
	if !about.Mode().IsRegular() { // of what else there is, a read may never end
		return nil, fmt.Errorf("%s: it is no regular file", f.path)
	}
	from, err := os.Open(f.path)
	if err != nil {
		return nil, err
	}
	defer from.Close()
	text, err := io.ReadAll(io.LimitReader(from, maxFileBytes+1))
	if err == nil && len(text) > maxFileBytes {
		err = fmt.Errorf("%s: it is longer than %d bytes", f.path, maxFileBytes)
	}
	return text, err // never nil without an error: an empty file is not the same as none
}

// parseFile reads a file's text. One bad line spoils it all: half a set is worse
// than the last one.
func parseFile(text []byte) (urls []*url.URL, err error) {
	seen := map[string]bool{}
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		u, err := parseURL(line)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		if seen[ID(u)] {
			return nil, fmt.Errorf("line %d: replica %s is named twice", number, u)
		}
		seen[ID(u)] = true
		urls = append(urls, u)
	}
	return sorted(urls), nil
}
