package source

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var content = []byte("0123456789")

// serveBucket serves the same objects as an HTTP server and as a bucket named models.
func serveBucket(t *testing.T) *httptest.Server {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Query().Has("list-type"):
			fmt.Fprint(w, `<ListBucketResult><Name>models</Name><KeyCount>3</KeyCount>
				<Contents><Key>llm/v 1/</Key><Size>0</Size></Contents>
				<Contents><Key>llm/v 1/a b</Key><Size>10</Size><ETag>"e"</ETag></Contents>
				<Contents><Key>llm/v 1/sub/c</Key><Size>10</Size><ETag>"e"</ETag></Contents></ListBucketResult>`)
		case r.URL.Path == "/models/llm/v 1/a b" || r.URL.Path == "/models/llm/v 1/sub/c":
			w.Header().Set("ETag", `"e"`)
			http.ServeContent(w, r, "", time.Unix(1, 0), bytes.NewReader(content))
		case strings.HasSuffix(r.URL.Path, "/secret"):
			w.WriteHeader(http.StatusForbidden)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(srv.Close)
	t.Setenv("AWS_ACCESS_KEY_ID", "key")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	return srv
}

func open(t *testing.T, repository, revision string, cfg Config) Source {
	t.Helper()
	s, err := New(repository, revision, cfg, func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func sources(t *testing.T) map[string]Source {
	t.Helper()
	srv := serveBucket(t)
	dir := t.TempDir()
	for _, name := range []string{"llm/v 1/a b", "llm/v 1/sub/c"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s3 := Config{Endpoint: srv.URL, Region: "here"}
	return map[string]Source{
		"directory":      open(t, dir+"/llm", "v 1", Config{}),
		"file URL":       open(t, "file://"+dir+"/llm/{revision}", "v 1", Config{}),
		"HTTP":           open(t, srv.URL+"/models/llm/", "v 1", Config{}),
		"bucket":         open(t, "s3://models/llm", "v 1", s3),
		"object storage": open(t, "object-storage/models/llm", "v 1", s3),
	}
}

func TestEverySourceReadsPartsOfFiles(t *testing.T) {
	for name, s := range sources(t) {
		t.Run(name, func(t *testing.T) {
			for _, c := range []struct {
				path           string
				offset, length int64
				want           string
			}{
				{"a b", 0, -1, "0123456789"}, {"sub/c", 0, 4, "0123"}, {"a b", 3, 4, "3456"}, {"a b", 7, -1, "789"},
			} {
				body, err := s.Open(t.Context(), c.path, c.offset, c.length, "")
				if err != nil {
					t.Fatal(err)
				}
				got, err := io.ReadAll(body)
				_ = body.Close()
				if err != nil || string(got) != c.want || body.Offset != c.offset || body.Size != 10 || body.Version == "" {
					t.Errorf("%+v: %q, %+v, %v", c, got, body, err)
				}
			}
		})
	}
}

func TestEverySourceSaysWhatCannotBeHelped(t *testing.T) {
	for name, s := range sources(t) {
		t.Run(name, func(t *testing.T) {
			if _, err := s.Open(t.Context(), "nothing", 0, 4, ""); !errors.Is(err, fs.ErrNotExist) || !Permanent(err) {
				t.Errorf("a missing file: %v", err)
			}
			if _, err := s.Open(t.Context(), "a b", 0, 4, `"another"`); !errors.Is(err, ErrChanged) {
				t.Errorf("another version: %v", err)
			}
		})
	}
}

func list(t *testing.T, s Source) (objects []Object, err error) {
	t.Helper()
	err = s.List(t.Context(), func(o Object) bool { objects = append(objects, o); return true })
	return objects, err
}

func TestListings(t *testing.T) {
	for name, s := range sources(t) {
		objects, err := list(t, s)
		if name == "HTTP" {
			if !errors.Is(err, ErrNoListing) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		slices.SortFunc(objects, func(a, b Object) int { return strings.Compare(a.Path, b.Path) })
		if len(objects) != 2 || objects[0].Path != "a b" || objects[0].Size != 10 || objects[1].Path != "sub/c" {
			t.Errorf("%s: %+v", name, objects)
		}
		body, err := s.Open(t.Context(), "a b", 0, -1, objects[0].Version)
		if err != nil {
			t.Errorf("%s: the listing's version: %v", name, err)
			continue
		}
		_ = body.Close()
	}
}

func TestForbiddenIsPermanent(t *testing.T) {
	srv := serveBucket(t)
	for _, s := range []Source{
		open(t, srv.URL+"/models", "", Config{}), open(t, "s3://models", "", Config{Endpoint: srv.URL, Region: "here"}),
	} {
		if _, err := s.Open(t.Context(), "secret", 0, 1, ""); !errors.Is(err, fs.ErrPermission) {
			t.Error(err)
		}
	}
}

func TestLinksOutOfADirectoryAreRefused(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, content, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"absolute": outside, "relative": "../../../../../../../../etc/hostname", "directory": filepath.Dir(outside), "to nothing": "nowhere"} {
		dir := t.TempDir()
		if err := os.Symlink(target, filepath.Join(dir, "link")); err != nil {
			t.Fatal(err)
		}
		s := open(t, dir, "", Config{})
		if objects, err := list(t, s); err == nil {
			t.Errorf("%s: listed %+v", name, objects)
		}
		if body, err := s.Open(t.Context(), "link", 0, -1, ""); err == nil {
			_ = body.Close()
			t.Errorf("%s: opened", name)
		}
	}
	if _, err := open(t, t.TempDir(), "", Config{}).Open(t.Context(), "../outside", 0, -1, ""); err == nil {
		t.Error("a path out of the directory is opened")
	}
}

func TestAServerThatSendsSomethingElseIsNoticed(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		header string
		offset int64 // of the body, -1 for an error
	}{
		"what was asked for":     {206, "bytes 4-7/10", 4},
		"another offset":         {206, "bytes 0-3/10", -1},
		"no offset":              {206, "", -1},
		"nonsense":               {206, "bytes x-y/z", -1},
		"an end before begin":    {206, "bytes 4-2/10", -1},
		"a size before the end":  {206, "bytes 4-7/6", -1},
		"the whole file":         {200, "", 0},
		"not satisfiable":        {416, "bytes */4", -1},
		"a server error":         {500, "", -1},
		"a redirect to nowhere":  {302, "", -1},
		"a size that is unknown": {206, "bytes 4-7/*", 4},
	} {
		t.Run(name, func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if c.header != "" {
					w.Header().Set("Content-Range", c.header)
				}
				w.WriteHeader(c.status)
			}))
			defer srv.Close()
			body, err := open(t, srv.URL, "", Config{}).Open(t.Context(), "f", 4, 4, "")
			if c.offset < 0 {
				if err == nil || Permanent(err) {
					t.Errorf("%v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			_ = body.Close()
			if body.Offset != c.offset {
				t.Errorf("offset %d", body.Offset)
			}
		})
	}
}

func TestTheTokenGoesToItsHostAlone(t *testing.T) {
	var elsewhere, here string
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { elsewhere = r.Header.Get("Authorization") }))
	defer other.Close()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		here = r.Header.Get("Authorization")
		http.Redirect(w, r, strings.Replace(other.URL, "127.0.0.1", "localhost", 1), http.StatusFound)
	}))
	defer srv.Close()
	s, err := New(srv.URL, "", Config{}, func(name string) (string, bool) { return "secret", name == "MODELCACHE_TOKEN" })
	if err != nil {
		t.Fatal(err)
	}
	if body, err := s.Open(t.Context(), "f", 0, -1, ""); err == nil {
		_ = body.Close()
	}
	if here != "Bearer secret" || elsewhere != "" {
		t.Errorf("the host got %q, the one it redirected to %q", here, elsewhere)
	}
}

func TestRepositoriesOfNoKnownFormAreRefused(t *testing.T) {
	for _, c := range [][2]string{
		{"models/llm", ""}, {"ftp://x/y", ""}, {"s3://", ""}, {"", ""}, {"/models", "../x"}, {"/models", "v1?x"}, {"/models", `a\b`},
	} {
		if _, err := New(c[0], c[1], Config{}, func(string) (string, bool) { return "", false }); err == nil {
			t.Errorf("%q %q is accepted", c[0], c[1])
		}
	}
	if _, err := New("s3://b", "", Config{Endpoint: "nowhere"}, os.LookupEnv); err == nil {
		t.Error("an endpoint that is no URL is accepted")
	}
}

func TestCancelledRequestsEnd(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	srv := serveBucket(t)
	for _, s := range []Source{
		open(t, srv.URL, "", Config{}), open(t, "s3://models", "", Config{Endpoint: srv.URL, Region: "here"}),
	} {
		if _, err := s.Open(ctx, "a b", 0, 1, ""); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}

func FuzzContentRange(f *testing.F) {
	f.Add("bytes 0-99/1000")
	f.Add("bytes 5-5/*")
	f.Add("bytes -1-5/7")
	f.Fuzz(func(t *testing.T, text string) {
		begin, size, err := parseContentRange(text)
		if err == nil && (begin < 0 || size != -1 && size <= begin) {
			t.Errorf("%q: %d of %d", text, begin, size)
		}
	})
}
