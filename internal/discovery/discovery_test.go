package discovery

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must happen.
const patience = 20 * time.Second

func texts(urls []*url.URL) string {
	var list []string
	for _, u := range urls {
		list = append(list, u.String())
	}
	return strings.Join(list, " ")
}

// logBuffer is a log that may be read while it is written.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logBuffer) count(text string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Count(b.text.String(), text)
}

// running is a finder that runs, with the sets it found.
type running struct {
	*Finder
	t    *testing.T
	log  logBuffer
	sets chan Set
}

func run(t *testing.T, places ...string) *running {
	t.Helper()
	r := &running{t: t, sets: make(chan Set, 1000)}
	f, err := New(places, slog.New(slog.NewTextHandler(&r.log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	r.Finder = f
	r.begin()
	return r
}

func (r *running) begin() {
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.Run(ctx, func(s Set) { r.sets <- s })
	}()
	r.t.Cleanup(func() {
		cancel()
		<-done
	})
}

// want waits until the last set is this one, and returns how long that took.
func (r *running) want(what, urls string) time.Duration {
	r.t.Helper()
	began := time.Now()
	deadline := time.After(patience)
	for last := ""; ; {
		select {
		case s := <-r.sets:
			if last = texts(s.URLs); last == urls {
				return time.Since(began)
			}
		case <-deadline:
			r.t.Fatalf("%s: the last set is %q, want %q\n%s", what, last, urls, &r.log.text)
		}
	}
}

// status returns how the only source does.
func (r *running) status() Status { return r.Status()[0] }

// eventually waits for a condition that must come true.
func (r *running) eventually(what string, f func() bool) {
	r.t.Helper()
	for began := time.Now(); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Since(began) > patience {
			r.t.Fatalf("not within %v: %s\n%s", patience, what, &r.log.text)
		}
	}
}

func TestPlaces(t *testing.T) {
	for _, good := range []string{
		"http://h:1", "https://[::1]:8000/team/a/", "file:/etc/replicas.txt", "file:replicas.txt", "file:///x",
		"dns://vllm.ns.svc:8000", "dns://vllm:8000?scheme=https&refresh=1m&server=127.0.0.1:53", "dns+srv://_http._tcp.vllm.ns.svc",
		"kubernetes://ns/vllm:http", "kubernetes:///vllm:8000", "kubernetes://ns/vllm:http?scheme=https&api=http://127.0.0.1:8001",
	} {
		f, err := New([]string{good}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Errorf("%s: %v", good, err)
			continue
		}
		if given := strings.HasPrefix(good, "http"); f.Set().Complete != given || (len(f.Status()) == 0) != given {
			t.Errorf("%s: an address is known at once, what a source has is not", good)
		}
	}
	for bad, why := range map[string]string{
		"":                                "is not a URL like",
		"h:1":                             "is not a URL like http://host:port, nor one of a source",
		"ftp://h":                         "is not a URL like",
		"http://user:secret@%zz":          `"…@%zz"`,
		"http://user:secret@h":            "has a user",
		"http://h/v1":                     "leave out /v1",
		"file:":                           "not of the form file:",
		"file://host/path":                "not of the form file:",
		"file:/path?x=1":                  "not of the form file:",
		"dns://name":                      "not of the form dns://name:port",
		"dns://:8000":                     "not of the form dns://name:port",
		"dns://name:8000/path":            "not of the form dns://name:port",
		"dns+srv://_http._tcp.name:8000":  "not of the form dns+srv:",
		"dns://name:1?ttl=5":              `unknown option "ttl": it takes scheme, server, refresh`,
		"dns://name:1?scheme=ftp":         "scheme must be http or https",
		"dns://name:1?refresh=10ms":       "refresh must be a duration of at least 1s",
		"dns://name:1?refresh=5":          "refresh must be a duration",
		"dns://name:1?server=127.0.0.1":   "server must be host:port",
		"dns://user@name:1":               "not of the form",
		"kubernetes://ns/vllm":            "not of the form kubernetes://namespace/service:port",
		"kubernetes://ns/vllm:":           "not of the form kubernetes:",
		"kubernetes://ns/a/b:http":        "not of the form kubernetes:",
		"kubernetes://Ns_/vllm:http":      "not of the form kubernetes:",
		"kubernetes://ns/vllm:1?api=h:1":  "api must be a URL",
		"kubernetes://ns/vllm:1?labels=a": "unknown option",
		"http://:8000":                    "is not a URL like",
		"http://h:0":                      "its port must be 1 to 65535",
		"http://h:65536":                  "its port must be 1 to 65535",
		"dns://name:0":                    "its port must be 1 to 65535",
		"dns://name:70000":                "its port must be 1 to 65535",
		"dns://10.0.0.1:8000":             "is an address and no name: write http://10.0.0.1:8000",
		"dns://[::1]:8000?scheme=https":   "write https://[::1]:8000",
		"dns://user:secret@name:1":        `"…@name:1"`,
		"file://user:secret@host/path":    `"…@host/path"`,
		"kubernetes://ns/vllm:1?api=http://u:secret@h":           "has a user in its options",
		"kubernetes://ns/vllm:1?api=http%3A%2F%2Fu%3Asecret%40h": "has a user in its options",
		"h:1/" + strings.Repeat("x", 1<<20):                      "xxx…",
	} {
		if _, err := New([]string{bad}, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), why) || len(err.Error()) > 1000 {
			t.Errorf("%.100q: error %.2000v, want %q", bad, err, why)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: the error has the password in it: %v", bad, err)
		}
	}
	for _, twice := range [][]string{
		{"http://a:1", "https://a:1/"},
		{"dns://a:1", "dns://a:1"},
		{"http://a:1/x", "http://a:1/x/"},
		{"http://a:1", "http://A:1"},
		{"http://a", "http://a:80"},
		{"https://a:443", "https://a"},
		{"http://[::1]:8000", "http://[0:0::1]:8000"},
	} {
		if _, err := New(twice, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "named twice") {
			t.Errorf("%v: error %v", twice, err)
		}
	}
}

// TestURLsAreBaseURLs has what a base URL cannot have left out of it.
func TestURLsAreBaseURLs(t *testing.T) {
	for raw, want := range map[string]string{
		"http://h:1?": "http://h:1", "http://h:1?key=x#y": "http://h:1", "http://h:1/a%2Fb/": "http://h:1/a/b", "http://[fe80::1%25eth0]:1": "http://[fe80::1%25eth0]:1",
	} {
		if u, err := parseURL(raw); err != nil || u.String()+"/health" != want+"/health" {
			t.Errorf("%s becomes %s, %v; want %s", raw, u, err, want)
		}
	}
}

// told is a source that the test speaks for.
type told struct{ say chan Update }

func (s told) Run(ctx context.Context, send func(Update)) {
	for {
		select {
		case u := <-s.say:
			send(u)
		case <-ctx.Done():
			return
		}
	}
}

func set(list ...string) (u Update) {
	for _, text := range list {
		parsed, _ := url.Parse(text)
		u.URLs = append(u.URLs, parsed)
	}
	return u
}

// TestSetsAreMergedAndKept has two sources and an address between them.
func TestSetsAreMergedAndKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := told{make(chan Update)}, told{make(chan Update)}
		r := &running{t: t, sets: make(chan Set, 1000)}
		r.Finder, _ = New([]string{"http://given:1"}, slog.New(slog.NewTextHandler(&r.log, nil)))
		r.places = []*place{{name: "a", source: a}, r.places[0], {name: "b", source: b}}
		r.begin()
		next := func(what, urls string, complete bool) {
			t.Helper()
			time.Sleep(time.Second)
			synctest.Wait()
			if urls == "" {
				if len(r.sets) > 0 {
					t.Errorf("%s: a set %q", what, texts((<-r.sets).URLs))
				}
				return
			}
			if len(r.sets) != 1 {
				t.Fatalf("%s: %d sets", what, len(r.sets))
			}
			if s := <-r.sets; texts(s.URLs) != urls || s.Complete != complete {
				t.Errorf("%s: %q complete %v, want %q %v", what, texts(s.URLs), s.Complete, urls, complete)
			}
		}
		next("before anything is found", "", false)
		if s := r.Set(); texts(s.URLs) != "http://given:1" || s.Complete {
			t.Error("what is given is known at once:", s)
		}
		b.say <- set()
		next("nothing", "", false)
		b.say <- set("http://b:1")
		next("one source", "http://given:1 http://b:1", false)
		a.say <- set("http://a:1")
		a.say <- set("http://a:1", "http://a:2")
		b.say <- set("http://b:1", "http://a:2", "http://given:1")
		next("what comes together is one set, in the order of the places", "http://a:1 http://a:2 http://given:1 http://b:1", true)
		a.say <- set("http://a:1", "http://a:2")
		next("the same again", "", true)
		for range 3 {
			a.say <- Update{Err: errors.New("out of order")}
			a.say <- set()
		}
		next("a source that fails", "", true)
		if n := r.log.count("replicas cannot be discovered"); n != 2 { // once for each source
			t.Errorf("%d complaints", n)
		}
		if s := fmt.Sprint(r.Status()); s != "[{a 2 false 6} {b 3 true 1}]" {
			t.Error("the status is", s)
		}
		a.say <- set("http://a:3")
		next("another set", "http://a:3 http://given:1 http://b:1 http://a:2", true)
		if n := r.log.count("replicas are discovered again"); n != 2 {
			t.Errorf("%d times well again", n)
		}
	})
}

// crowd is a file of n replicas.
func crowd(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "http://10.0.%d.%d:1\n", i/256, i%256)
	}
	return b.String()
}

func TestFile(t *testing.T) { synctest.Test(t, testFile) }

func testFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "replicas.txt")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	write("# of the east\nhttp://b:1/\r\n\n  http://a:1\n")
	r := run(t, "file:"+path)
	r.want("the first set", "http://a:1 http://b:1")
	write("http://a:1\nhttp://c:1")
	if took := r.want("another set", "http://a:1 http://c:1"); took > 5*lookEvery {
		t.Errorf("it took %v", took)
	}
	for i, bad := range []string{"http://d:1\nd:2\n", "http://d:1\nhttps://d:1", "", "# none\n", strings.Repeat("#", maxFileBytes+1), crowd(maxReplicas + 1)} {
		failures := r.status().Failures
		write(bad)
		r.eventually(fmt.Sprintf("bad content %d is noticed", i), func() bool { return r.status().Failures > failures })
		if s := r.status(); s.OK || s.Replicas != 2 || len(r.sets) > 0 {
			t.Errorf("%.20q: %+v", bad, s)
		}
		write("http://a:1\nhttp://c:1")
		r.eventually("good content again", func() bool { return r.status().OK })
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	r.eventually("it is gone", func() bool { return !r.status().OK })
	write("http://a:1\nhttp://c:1")
	r.eventually("it is back", func() bool { return r.status().OK })
	if n, m := r.log.count("cannot be discovered"), r.log.count("discovered again"); n != m || n != 7 {
		t.Errorf("%d complaints, %d times well again", n, m)
	}
	for _, why := range []string{"line 2: replica", "line 2: replica https://d:1 is named twice", "it has no replica", "longer than 1048576 bytes", "it has 4097 replicas", "no such file"} {
		if r.log.count(why) == 0 {
			t.Errorf("the log does not say %q:\n%s", why, &r.log.text)
		}
	}
	if len(r.sets) > 0 {
		t.Error("there was another set:", texts((<-r.sets).URLs))
	}
}

// TestWhatIsNoFileIsNotRead names what a read of never ends, or never would.
func TestWhatIsNoFileIsNotRead(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Skip(err)
	}
	for _, path := range []string{pipe, "/dev/zero", t.TempDir()} {
		r := run(t, "file:"+path) // its end is waited for
		r.eventually(path+" is refused", func() bool { return r.log.count("it is no regular file") == 1 })
	}
}

// TestMountedConfigMap swaps links as a kubelet does: the file's, and its directory, are
// links, and what they lead to goes away.
func TestMountedConfigMap(t *testing.T) {
	dir := t.TempDir()
	mount := func(version, text string) {
		t.Helper()
		old, _ := os.Readlink(filepath.Join(dir, "..data"))
		check := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		check(os.Mkdir(filepath.Join(dir, version), 0o700))
		check(os.WriteFile(filepath.Join(dir, version, "replicas.txt"), []byte(text), 0o600))
		check(os.Symlink(version, filepath.Join(dir, "..data_tmp")))
		check(os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
		if old != "" {
			check(os.RemoveAll(filepath.Join(dir, old)))
			return
		}
		check(os.Symlink("..data/replicas.txt", filepath.Join(dir, "replicas.txt")))
	}
	mount("..1", "http://a:1")
	r := run(t, "file:"+filepath.Join(dir, "replicas.txt"))
	r.want("the first mount", "http://a:1")
	mount("..2", "http://a:1\nhttp://b:1")
	r.want("another", "http://a:1 http://b:1")
	if r.status().Failures > 0 {
		t.Errorf("trouble that is none: %s", &r.log.text)
	}
}

// TestFileThatIsBeingWritten changes the file faster than it is looked at.
func TestFileThatIsBeingWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "replicas.txt")
	if err := os.WriteFile(path, []byte("http://a:1\nhttp://b:1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		r := run(t, "file:"+path)
		time.Sleep(lookEvery / 2)
		synctest.Wait()
		<-r.sets
		for i := range 10 {
			if err := os.WriteFile(path, fmt.Appendf(nil, "http://a:1\n#%d", i), 0o600); err != nil {
				t.Fatal(err)
			}
			time.Sleep(lookEvery)
		}
		if len(r.sets) > 0 {
			t.Error("half a file was taken for a whole one")
		}
		time.Sleep(2 * lookEvery)
		if len(r.sets) != 1 {
			t.Error("the whole file was not taken")
		}
	})
}

func FuzzFile(f *testing.F) {
	f.Add("http://a:1\n# b\n\nhttps://[::1]:8000/x/\n")
	f.Add("http://a:1\nhttp://a:1")
	f.Add("h\x00ttp://a")
	f.Fuzz(func(t *testing.T, text string) {
		urls, err := parseFile([]byte(text))
		if err != nil && urls != nil {
			t.Error("a set with an error")
		}
		seen := map[string]bool{}
		for _, u := range urls {
			again, err := parseURL(u.String())
			if err != nil || *again != *u {
				t.Errorf("%q becomes %q: %v", text, u, err)
			}
			if seen[ID(u)] {
				t.Errorf("%s twice", u)
			}
			seen[ID(u)] = true
		}
	})
}
