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

// TestALongListingComesInPages has a bucket of three pages, the last of which can be
// asked for by its token alone.
func TestALongListingComesInPages(t *testing.T) {
	var asked []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token := r.URL.Query().Get("continuation-token")
		asked = append(asked, token)
		next := map[string]string{"": "t 1/+", "t 1/+": "t2", "t2": ""}[token]
		fmt.Fprintf(w, `<ListBucketResult><Name>models</Name><IsTruncated>%v</IsTruncated><NextContinuationToken>%s</NextContinuationToken>
			<Contents><Key>llm/%d</Key><Size>10</Size></Contents></ListBucketResult>`, next != "", next, len(asked))
	}))
	defer srv.Close()
	s := open(t, "s3://models/llm", "", Config{Endpoint: srv.URL, Region: "here"})
	objects, err := list(t, s)
	if err != nil || len(objects) != 3 || objects[2].Path != "3" || !slices.Equal(asked, []string{"", "t 1/+", "t2"}) {
		t.Errorf("%+v, %v; asked for %q", objects, err, asked)
	}
	asked = nil
	if err := s.List(t.Context(), func(Object) bool { return false }); err != nil || len(asked) > 2 {
		t.Errorf("%v; asked for %q after the reader had left", err, asked)
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

func TestTheTokenGoesToItsServerAlone(t *testing.T) {
	var elsewhere []string
	note := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		elsewhere = append(elsewhere, r.Header.Get("Authorization"))
	})
	other := httptest.NewServer(note)
	defer other.Close()
	for name, c := range map[string]struct {
		to   func(self string) string
		want []string
	}{
		"another host":          {func(string) string { return strings.Replace(other.URL, "127.0.0.1", "localhost", 1) }, []string{""}},
		"another port":          {func(string) string { return other.URL }, []string{""}},
		"the same server":       {func(self string) string { return self + "/moved" }, []string{"Bearer secret"}},
		"from https to http":    {func(self string) string { return strings.Replace(self, "https", "http", 1) + "/plain" }, nil},
		"a file of the machine": {func(string) string { return "file:///etc/passwd" }, nil},
		"in a circle":           {func(self string) string { return self }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			elsewhere = nil
			here := ""
			srv := httptest.NewUnstartedServer(nil)
			srv.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/moved" {
					note(w, r)
					return
				}
				here = r.Header.Get("Authorization")
				http.Redirect(w, r, c.to(srv.URL), http.StatusFound)
			})
			if strings.Contains(name, "https") {
				srv.StartTLS()
			} else {
				srv.Start()
			}
			defer srv.Close()
			s, err := New(srv.URL, "", Config{}, func(name string) (string, bool) { return "secret", name == "MODELCACHE_TOKEN" })
			if err != nil {
				t.Fatal(err)
			}
			s.(*web).client.Transport.(*http.Transport).TLSClientConfig = srv.Client().Transport.(*http.Transport).TLSClientConfig
			body, err := s.Open(t.Context(), "f", 0, -1, "")
			if err == nil {
				_ = body.Close()
			}
			if (err == nil) != (c.want != nil) {
				t.Errorf("the answer is %v", err)
			}
			if here != "Bearer secret" || !slices.Equal(elsewhere, c.want) {
				t.Errorf("the server got %q, the one it redirected to %q", here, elsewhere)
			}
		})
	}
	// What net/http itself would take a token to: a redirect within one host's name.
	first, _ := http.NewRequest(http.MethodGet, "https://example.com/f", nil)
	for target, want := range map[string]string{"https://example.com/g": "t", "http://example.com/f": "", "https://example.com:8443/f": "", "https://sub.example.com/f": ""} {
		next, _ := http.NewRequest(http.MethodGet, target, nil)
		next.Header.Set("Authorization", "t")
		if err := redirect(next, []*http.Request{first}); err != nil || next.Header.Get("Authorization") != want {
			t.Errorf("to %s: %q, %v", target, next.Header.Get("Authorization"), err)
		}
	}
}

// TestNamesReachTheServerAsTheyAre has names that mean something in a URL.
func TestNamesReachTheServerAsTheyAre(t *testing.T) {
	var got string
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.URL.Path }))
	defer srv.Close()
	s := open(t, srv.URL+"/m", "v1", Config{})
	for _, name := range []string{"a b", "100%.bin", "a%2fb", "%2e%2e/%2e%2e/x", "a?b", "a#b", "a+b", "ä", "sub/a;b=c", "a:b"} {
		body, err := s.Open(t.Context(), name, 0, -1, "")
		if err != nil {
			t.Errorf("%q: %v", name, err)
			continue
		}
		_ = body.Close()
		if got != "/m/v1/"+name {
			t.Errorf("%q is asked for as %q", name, got)
		}
	}
}

// TestSecretsInURLsAreNotShown looks at every place that shows a repository.
func TestSecretsInURLsAreNotShown(t *testing.T) {
	srv := httptest.NewServer(http.NotFoundHandler())
	host := strings.TrimPrefix(srv.URL, "http://")
	secret := "http://me:hidden@" + host + "/{revision}/m?sig=hidden"
	if got, want := Redacted(secret), "http://"+host+"/{revision}/m"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	s := open(t, secret, "v1", Config{})
	_, missing := s.Open(t.Context(), "f", 0, -1, "")
	srv.Close()
	_, down := s.Open(t.Context(), "f", 0, -1, "")
	_, noPlace := New("http://me:hidden@h/m?sig=hidden", "v1", Config{}, os.LookupEnv)
	_, noURL := New("http://me:hidden@h:x/m", "", Config{}, os.LookupEnv)
	_, endpoint := New("s3://b", "", Config{Endpoint: "https://me:hidden@h"}, os.LookupEnv)
	for i, err := range []error{missing, down, noPlace, noURL, endpoint} {
		if err == nil || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%d: %v", i, err)
		}
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
	if _, err := New("s3://b", "", Config{Endpoint: "https://h/s3"}, os.LookupEnv); err == nil {
		t.Error("an endpoint with a path, which requests would not have, is accepted")
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
