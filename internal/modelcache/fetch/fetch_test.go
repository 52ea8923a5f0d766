package fetch

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/warmpath/warmpath/internal/modelcache/manifest"
	"github.com/warmpath/warmpath/internal/modelcache/source"
	"github.com/warmpath/warmpath/internal/modelcache/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var quick = Config{Connections: 3, RangeMiB: 2, Attempts: 3, StallTimeout: 200 * time.Millisecond, RetryDelay: time.Millisecond}

// fault answers a request instead of the server if it returns true. nth counts the
// requests of a test, from 1.
type fault func(w http.ResponseWriter, r *http.Request, content []byte, nth int64) bool

type server struct {
	*httptest.Server
	requests atomic.Int64
}

func serve(t *testing.T, content []byte, f fault) *server {
	t.Helper()
	s := &server{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		nth := s.requests.Add(1)
		w.Header().Set("ETag", `"v1"`)
		if f == nil || !f(w, r, content, nth) {
			http.ServeContent(w, r, "", time.Unix(1, 0), bytes.NewReader(content))
		}
	}))
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	return s
}

func (s *server) source(t *testing.T) source.Source {
	t.Helper()
	from, err := source.New(s.URL, "", source.Config{}, func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	return from
}

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(n)}).Read(b)
	return b
}

func digestOf(content []byte) manifest.Digest {
	sum := sha256.Sum256(content)
	return manifest.SumDigest(sum[:])
}

// partial is a place for a file of a size; reopen gives it again as a later pull finds it.
func partial(t *testing.T, size int64) (reopen func() *store.Partial) {
	t.Helper()
	s, err := store.Open(store.Config{Path: t.TempDir(), MaxBytes: 1 << 30, High: 1, Low: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	part := store.Part{Name: hex.EncodeToString([]byte(t.Name())[:8]), Size: size}
	if _, err := s.Reserve(t.Context(), &store.Plan{Model: digestOf(nil), Parts: []store.Part{part}}); err != nil {
		t.Fatal(err)
	}
	return func() *store.Partial {
		p, err := s.OpenPartial(part)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		return p
	}
}

func ranged(r *http.Request) (from, to int) {
	_, _ = fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &from, &to)
	return from, to
}

func part206(w http.ResponseWriter, from, to, size int, body []byte) {
	w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to, size))
	w.Header().Set("Content-Length", fmt.Sprint(len(body)))
	w.WriteHeader(http.StatusPartialContent)
	_, _ = w.Write(body)
}

func status(code int) fault {
	return func(w http.ResponseWriter, _ *http.Request, _ []byte, _ int64) bool {
		w.WriteHeader(code)
		return true
	}
}

func once(f fault) fault {
	var used atomic.Bool
	return func(w http.ResponseWriter, r *http.Request, content []byte, nth int64) bool {
		return !used.Swap(true) && f(w, r, content, nth)
	}
}

// silent sends half of what was asked for and then nothing.
func silent(w http.ResponseWriter, r *http.Request, content []byte, _ int64) bool {
	from, to := ranged(r)
	if to == 0 {
		to = len(content) - 1
	}
	w.Header().Set("Content-Length", fmt.Sprint(to-from+1))
	if r.Header.Get("Range") != "" {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to, len(content)))
		w.WriteHeader(http.StatusPartialContent)
	}
	_, _ = w.Write(content[from : from+(to-from)/2])
	_ = http.NewResponseController(w).Flush()
	<-r.Context().Done()
	return true
}

func cut(w http.ResponseWriter, r *http.Request, content []byte, _ int64) bool {
	from, to := ranged(r)
	if to == 0 {
		to = len(content) - 1
	}
	w.Header().Set("Content-Length", fmt.Sprint(to-from+1))
	if r.Header.Get("Range") != "" {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to, len(content)))
		w.WriteHeader(http.StatusPartialContent)
	}
	_, _ = w.Write(content[from : from+(to-from)*3/4])
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

// whole answers everything with the whole file.
func whole(w http.ResponseWriter, _ *http.Request, content []byte, _ int64) bool {
	w.Header().Set("Content-Length", fmt.Sprint(len(content)))
	_, _ = w.Write(content)
	return true
}

// chunked is whole without a length.
func chunked(w http.ResponseWriter, _ *http.Request, content []byte, _ int64) bool {
	_, _ = w.Write(content[:len(content)/2])
	_ = http.NewResponseController(w).Flush()
	_, _ = w.Write(content[len(content)/2:])
	return true
}

// TestDownload asks servers that do what servers do. What Download returns is the
// digest of what is on the disk, whatever the server said.
func TestDownload(t *testing.T) {
	const big = 5*store.ChunkBytes + 77
	for _, c := range []struct {
		name  string
		size  int
		fault fault
		want  string // part of the error; "" if the file must be right
		is    error  // what the error is
		most  int64  // requests
	}{
		{name: "a good server", size: big, most: 3},
		{name: "an empty file is not asked for", size: 0, fault: status(500), most: 0},
		{name: "one byte", size: 1, most: 1},
		{name: "whole chunks", size: 4 * store.ChunkBytes, most: 2},
		{name: "a cut body", size: big, fault: once(cut), most: 4},
		{name: "every third body cut", size: big, fault: func(w http.ResponseWriter, r *http.Request, content []byte, nth int64) bool {
			return nth%3 == 0 && cut(w, r, content, nth)
		}, most: 8},
		{name: "silence", size: big, fault: once(silent), most: 4},
		{name: "silence always", size: store.ChunkBytes, fault: silent, want: "fetch.stallTimeout", most: 3},
		{name: "silence before the header", size: store.ChunkBytes, fault: func(_ http.ResponseWriter, r *http.Request, _ []byte, _ int64) bool {
			<-r.Context().Done()
			return true
		}, want: "fetch.stallTimeout", most: 3},
		{name: "busy once", size: big, fault: once(status(503)), most: 4},
		{name: "busy always", size: store.ChunkBytes, fault: status(503), want: "status 503", most: 3},
		{name: "not there", size: big, fault: status(404), is: fs.ErrNotExist, most: 3},
		{name: "forbidden", size: big, fault: status(403), is: fs.ErrPermission, most: 3},
		{name: "a range beyond the end", size: store.ChunkBytes, fault: status(416), want: "ends before byte", most: 3},
		{name: "Range ignored", size: big, fault: whole, most: 4},
		{name: "Range ignored and no length", size: big, fault: chunked, most: 4},
		{name: "Range ignored behind the beginning", size: big, fault: func(w http.ResponseWriter, r *http.Request, content []byte, nth int64) bool {
			from, _ := ranged(r)
			return from > 0 && whole(w, r, content, nth)
		}, most: 4},
		{name: "Range ignored and cut once", size: store.ChunkBytes * 3, fault: func(w http.ResponseWriter, r *http.Request, content []byte, nth int64) bool {
			if r.Header.Get("Range") == "" && nth < 4 {
				return cut(w, r, content, nth)
			}
			return whole(w, r, content, nth)
		}, most: 5},
		{name: "another range", size: big, fault: once(func(w http.ResponseWriter, _ *http.Request, content []byte, _ int64) bool {
			part206(w, 7, len(content)-1, len(content), content[7:])
			return true
		}), most: 4},
		{name: "a range without saying which", size: big, fault: once(func(w http.ResponseWriter, _ *http.Request, content []byte, _ int64) bool {
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write(content)
			return true
		}), most: 4},
		{name: "a range of a file of another size", size: store.ChunkBytes, fault: func(w http.ResponseWriter, _ *http.Request, content []byte, _ int64) bool {
			part206(w, 0, len(content)-1, len(content)+1, content)
			return true
		}, want: fmt.Sprintf("has %d bytes at the source, not %d", store.ChunkBytes+1, store.ChunkBytes), most: 3},
		{name: "longer bodies than asked for", size: big, fault: func(w http.ResponseWriter, r *http.Request, content []byte, _ int64) bool {
			from, _ := ranged(r)
			part206(w, from, len(content)-1, len(content), content[from:])
			return true
		}, most: 3},
		{name: "shorter bodies than asked for", size: 4 * store.ChunkBytes, fault: func(w http.ResponseWriter, r *http.Request, content []byte, _ int64) bool {
			from, _ := ranged(r)
			part206(w, from, from+store.ChunkBytes-1, len(content), content[from:from+store.ChunkBytes])
			return true
		}, most: 4},
		{name: "bodies too short to bring anything", size: big, fault: func(w http.ResponseWriter, r *http.Request, content []byte, _ int64) bool {
			from, _ := ranged(r)
			part206(w, from, from+9, len(content), content[from:from+10])
			return true
		}, want: "given up after 3 attempts", most: 9},
		{name: "an error page with a good status", size: big, fault: once(func(w http.ResponseWriter, _ *http.Request, _ []byte, _ int64) bool {
			_, _ = io.WriteString(w, "<html>busy</html>")
			return true
		}), most: 5},
		{name: "compressed all the same", size: store.ChunkBytes, fault: func(w http.ResponseWriter, r *http.Request, content []byte, _ int64) bool {
			if got := r.Header.Get("Accept-Encoding"); got != "identity" {
				http.Error(w, "Accept-Encoding is "+got, http.StatusNotAcceptable)
				return true
			}
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			_, _ = z.Write(content[:store.ChunkBytes/2])
			_ = z.Close()
			return true
		}, want: "Content-Encoding gzip", most: 6},
	} {
		t.Run(c.name, func(t *testing.T) {
			content := random(c.size)
			srv := serve(t, content, c.fault)
			var present, received atomic.Int64
			file := File{
				Object: source.Object{Path: "f", Size: int64(c.size)}, From: srv.source(t), To: partial(t, int64(c.size))(),
				Progress: func(n int64) { present.Add(n) }, Received: func(n int64) { received.Add(n) },
			}
			f := New(quick)
			got, err := f.Download(t.Context(), file)
			switch {
			case c.want != "" || c.is != nil:
				if err == nil || !strings.Contains(err.Error(), c.want) || c.is != nil && !errors.Is(err, c.is) {
					t.Errorf("%s, %v; want an error with %q, %v", got, err, c.want, c.is)
				}
			case err != nil:
				t.Error(err)
			case got != digestOf(content) || present.Load() != int64(c.size):
				t.Errorf("%s with %d bytes reported, want %s and %d", got, present.Load(), digestOf(content), c.size)
			}
			if n := srv.requests.Load(); n > c.most {
				t.Errorf("%d requests, at most %d are needed", n, c.most)
			}
			if f.Received() != received.Load() {
				t.Errorf("%d bytes received in all, %d for the one file", f.Received(), received.Load())
			}
		})
	}
}

// TestADifferentVersionEndsTheDownload lets the file change behind the first range.
func TestADifferentVersionEndsTheDownload(t *testing.T) {
	content := random(4 * store.ChunkBytes)
	srv := serve(t, content, func(w http.ResponseWriter, r *http.Request, _ []byte, nth int64) bool {
		if nth > 1 {
			w.Header().Set("ETag", `"v2"`)
			http.ServeContent(w, r, "", time.Unix(2, 0), bytes.NewReader(random(4*store.ChunkBytes+1)))
			return true
		}
		return false
	})
	file := File{Object: source.Object{Path: "f", Size: int64(len(content)), Version: `"v1"`}, From: srv.source(t), To: partial(t, int64(len(content)))()}
	if _, err := New(quick).Download(t.Context(), file); !errors.Is(err, source.ErrChanged) {
		t.Error(err)
	}
}

// TestACancelledDownloadKeepsWhatItHas ends a download in its middle. A later one asks
// for the rest alone.
func TestACancelledDownloadKeepsWhatItHas(t *testing.T) {
	content := random(6 * store.ChunkBytes)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var mu sync.Mutex
	asked := 0
	srv := serve(t, content, func(_ http.ResponseWriter, r *http.Request, _ []byte, nth int64) bool {
		from, to := ranged(r)
		if nth == 3 && ctx.Err() == nil {
			<-r.Context().Done()
			return true
		}
		mu.Lock()
		defer mu.Unlock()
		if ctx.Err() != nil {
			asked += to - from + 1
		}
		return false
	})
	reopen := partial(t, int64(len(content)))
	patient := quick
	patient.StallTimeout = time.Minute
	var present atomic.Int64
	file := File{Object: source.Object{Path: "f", Size: int64(len(content))}, From: srv.source(t), To: reopen(), Progress: func(n int64) {
		if present.Add(n) == 4*store.ChunkBytes {
			cancel()
		}
	}}
	if _, err := New(patient).Download(ctx, file); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	file.To.Close()
	file.To, file.Progress = reopen(), nil
	got, err := New(patient).Download(t.Context(), file)
	if err != nil || got != digestOf(content) {
		t.Errorf("%s, %v", got, err)
	}
	if asked != 2*store.ChunkBytes {
		t.Errorf("%d bytes were asked for again, %d were missing", asked, 2*store.ChunkBytes)
	}
}

// TestAnErrorOfTheDiskIsNotTheSources does not ask again for what cannot be written.
func TestAnErrorOfTheDiskIsNotTheSources(t *testing.T) {
	content := random(store.ChunkBytes)
	srv := serve(t, content, nil)
	part := partial(t, store.ChunkBytes)()
	part.Close()
	file := File{Object: source.Object{Path: "f", Size: store.ChunkBytes}, From: srv.source(t), To: part}
	if _, err := New(quick).Download(t.Context(), file); !errors.Is(err, fs.ErrClosed) {
		t.Error(err)
	}
	if n := srv.requests.Load(); n != 1 {
		t.Errorf("%d requests", n)
	}
}

// TestSmallFilesAndStreamsSurviveFaults is what manifests and their making rest on.
func TestSmallFilesAndStreamsSurviveFaults(t *testing.T) {
	content := random(3 * store.ChunkBytes)
	for _, c := range []struct {
		name         string
		fault        fault
		small, whole string // parts of the errors, "" for none
	}{
		{name: "a good server"},
		{name: "busy once", fault: once(status(503))},
		{name: "busy always", fault: status(503), small: "status 503", whole: "status 503"},
		{name: "cut once", fault: once(cut)},
		{name: "cut always", fault: cut, small: "given up after 3 attempts", whole: "given up after 3 attempts"}, // of the last byte
		{name: "silent once", fault: once(silent)},
		{name: "not there", fault: status(404), small: "file does not exist", whole: "file does not exist"},
		{name: "Range ignored", fault: func(w http.ResponseWriter, r *http.Request, content []byte, nth int64) bool {
			if nth%2 == 1 {
				return cut(w, r, content, nth)
			}
			return whole(w, r, content, nth)
		}},
		{name: "longer than listed", fault: func(w http.ResponseWriter, r *http.Request, content []byte, nth int64) bool {
			return whole(w, r, append(bytes.Clone(content), 'x'), nth)
		}, small: "longer than", whole: "more than"},
		{name: "shorter than listed", fault: func(w http.ResponseWriter, r *http.Request, content []byte, nth int64) bool {
			return whole(w, r, content[:len(content)-1], nth)
		}, small: "-", whole: "bytes were listed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			judge := func(what string, got []byte, err error, want string) {
				t.Helper()
				switch {
				case want == "-":
				case want != "":
					if err == nil || !strings.Contains(err.Error(), want) {
						t.Errorf("%s: %v, want %q", what, err, want)
					}
				case err != nil || !bytes.Equal(got, content):
					t.Errorf("%s: %d bytes, %v", what, len(got), err)
				}
			}
			got, err := New(quick).ReadAll(t.Context(), serve(t, content, c.fault).source(t), "f", int64(len(content)))
			judge("small", got, err, c.small)
			if c.fault != nil && strings.HasSuffix(c.name, " once") { // another once
				return
			}
			var sink bytes.Buffer
			err = New(quick).Stream(t.Context(), serve(t, content, c.fault).source(t), source.Object{Path: "f", Size: int64(len(content))}, &sink)
			judge("stream", sink.Bytes(), err, c.whole)
		})
	}
	for name, f := range map[string]fault{"cut": cut, "busy": status(503), "silent": silent} {
		var sink bytes.Buffer
		err := New(quick).Stream(t.Context(), serve(t, content, once(f)).source(t), source.Object{Path: "f", Size: int64(len(content))}, &sink)
		if err != nil || !bytes.Equal(sink.Bytes(), content) {
			t.Errorf("stream, %s once: %d bytes, %v", name, sink.Len(), err)
		}
	}
}

// listing is a source that only lists.
type listing func(ctx context.Context, each func(source.Object) bool) error

func (l listing) List(ctx context.Context, each func(source.Object) bool) error { return l(ctx, each) }

func (listing) Open(context.Context, string, int64, int64, string) (*source.Body, error) {
	return nil, errors.New("not asked for")
}

func TestListings(t *testing.T) {
	calls := 0
	three := func(_ context.Context, each func(source.Object) bool) error {
		for i := range 3 {
			if !each(source.Object{Path: fmt.Sprint(i)}) {
				return nil
			}
		}
		return nil
	}
	hangs := func(ctx context.Context, each func(source.Object) bool) error {
		each(source.Object{Path: "0"})
		<-ctx.Done()
		return ctx.Err()
	}
	for _, c := range []struct {
		name  string
		list  listing
		most  int
		calls int
		want  string
	}{
		{"good", three, 3, 1, ""},
		{"too many", three, 2, 1, "more than 2 files"},
		{"endless", func(_ context.Context, each func(source.Object) bool) error {
			for each(source.Object{}) {
			}
			return nil
		}, 1000, 1, "more than 1000 files"},
		{"silent once", func(ctx context.Context, each func(source.Object) bool) error {
			if calls == 1 {
				return hangs(ctx, each)
			}
			return three(ctx, each)
		}, 3, 2, ""},
		{"silent always", hangs, 3, 3, "fetch.stallTimeout"},
		{"none", func(context.Context, func(source.Object) bool) error { return source.ErrNoListing }, 3, 1, "no listing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			calls = 0
			counted := listing(func(ctx context.Context, each func(source.Object) bool) error {
				calls++
				return c.list(ctx, each)
			})
			objects, err := New(quick).List(t.Context(), counted, c.most)
			if c.want == "" && (err != nil || len(objects) != 3) || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%d objects, %v", len(objects), err)
			}
			if calls != c.calls {
				t.Errorf("%d calls, want %d", calls, c.calls)
			}
		})
	}
}

func TestPausesAreBounded(t *testing.T) {
	for _, first := range []time.Duration{0, time.Millisecond, 200 * time.Millisecond, time.Minute, 1<<63 - 1} {
		f := New(Config{Connections: 1, RetryDelay: first})
		for failures := 1; failures <= 20; failures++ {
			least := min(first<<min(failures-1, 20), maxDelay)
			if first >= maxDelay {
				least = first
			}
			if d := f.delay(failures); d < least/2 || d > max(first, maxDelay) {
				t.Errorf("after %d failures with retryDelay %v the pause is %v", failures, first, d)
			}
		}
	}
}
