package modelcache

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/warmpath/warmpath/internal/modelcache/fetch"
	"github.com/warmpath/warmpath/internal/modelcache/manifest"
	"github.com/warmpath/warmpath/internal/modelcache/source"
	"github.com/warmpath/warmpath/internal/modelcache/store"
)

func TestMain(m *testing.M) {
	_ = errors.Join(os.Setenv("AWS_ACCESS_KEY_ID", "key"), os.Setenv("AWS_SECRET_ACCESS_KEY", "secret"))
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"), goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"))
}

const mib = 1 << 20

// check compares a model's directory with what it must be.
func check(t *testing.T, dir string, files map[string][]byte) {
	t.Helper()
	seen := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		seen++
		got, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		if want, ok := files[name]; !ok || string(want) != string(got) {
			t.Errorf("%s has %d bytes that are not its own", name, len(got))
		}
		return err
	})
	want := len(files)
	if _, ok := files[manifest.Name]; ok {
		want--
	}
	if err != nil || seen != want {
		t.Errorf("%d files, want %d, %v", seen, want, err)
	}
}

// absent checks that nothing of a model is under its final name.
func absent(t *testing.T, c *Cache, m Model) {
	t.Helper()
	if _, err := os.Lstat(c.Store().ModelPath(m.Digest)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("something is under the final name: %v", err)
	}
}

func TestEnsureFetchesOnce(t *testing.T) {
	files := weights(1, 9*mib+17)
	o, web := published(t, files)
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, "llm/v1", name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	for name, m := range map[string]Model{
		"HTTP": web, "bucket": o.bucket(t, web.Digest), "directory": resolve(t, dir+"/llm", web.Digest, source.Config{}),
	} {
		t.Run(name, func(t *testing.T) {
			c := newCache(t, 1<<30)
			progress := &Progress{}
			r, err := c.Ensure(t.Context(), m, "pod", progress)
			if err != nil {
				t.Fatal(err)
			}
			check(t, r.Path, files)
			if present, total := progress.Read(); r.Hit || r.Downloaded != 9*mib+1017 || present != total || total != r.Downloaded {
				t.Errorf("%+v, %d of %d", r, present, total)
			}
			o.down.Store(true)
			defer o.down.Store(false)
			again, err := c.Ensure(t.Context(), m, "pod", nil)
			if err != nil || !again.Hit || again.Path != r.Path {
				t.Errorf("the second time: %+v, %v", again, err)
			}
		})
	}
}

func TestAModelWithoutAManifestIsProvenAsAWhole(t *testing.T) {
	files := weights(2, 3*mib)
	m := manifestOf(t, files)
	o := newOrigin(t, files)
	c := newCache(t, 1<<30)
	r, err := c.Ensure(t.Context(), o.bucket(t, m.Digest()), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	check(t, r.Path, files)

	wrong := o.bucket(t, manifestOf(t, weights(3, 3*mib)).Digest())
	o.sent.Store(0)
	_, err = c.Ensure(t.Context(), wrong, "", nil)
	if !errors.Is(err, ErrDigest) || !strings.Contains(err.Error(), m.Digest().Hex()) {
		t.Error(err)
	}
	absent(t, c, wrong)
	if got := o.sent.Load(); got != 2*(3*mib+1000) {
		t.Errorf("%d bytes were sent for two tries", got)
	}
	if _, err := c.Ensure(t.Context(), o.web(t, wrong.Digest), "", nil); !errors.Is(err, source.ErrNoListing) || !strings.Contains(err.Error(), manifest.Name) {
		t.Errorf("HTTP without a manifest: %v", err)
	}
	local := o.web(t, m.Digest())
	local.Manifest = m
	if r, err := newCache(t, 1<<30).Ensure(t.Context(), local, "", nil); err != nil {
		t.Errorf("HTTP with a manifest of one's own: %v", err)
	} else {
		check(t, r.Path, files)
	}
}

// once lets a fault happen at its first opportunity alone.
func once(f func(http.ResponseWriter, *http.Request, string, []byte) bool) func(http.ResponseWriter, *http.Request, string, []byte) bool {
	var done atomic.Bool
	return func(w http.ResponseWriter, r *http.Request, name string, content []byte) bool {
		return strings.HasSuffix(name, ".safetensors") && !done.Swap(true) && f(w, r, name, content)
	}
}

// faults are what servers do instead of what they were asked for, each for the large
// file alone. passing tells that a retry is worth it even if it always happens,
// because something arrives each time.
var faults = map[string]struct {
	answer  func(http.ResponseWriter, *http.Request, []byte)
	passing bool
}{
	"wrong bytes": {answer: func(w http.ResponseWriter, r *http.Request, content []byte) {
		bad := append([]byte{}, content...)
		bad[len(bad)/2] ^= 1
		serveFile(w, r, bad)
	}},
	"wrong bytes without a version": {answer: func(w http.ResponseWriter, r *http.Request, content []byte) {
		bad := append([]byte{}, content...)
		for i := range 3 {
			bad[i*len(bad)/3] ^= 1
		}
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(string(bad)))
	}},
	"wrong offset": {answer: func(w http.ResponseWriter, r *http.Request, content []byte) {
		r.Header.Set("Range", "bytes=1-1048576")
		serveFile(w, r, content)
	}},
	"wrong offset under the right one's name": {answer: func(w http.ResponseWriter, r *http.Request, content []byte) {
		var from, to int
		_, _ = fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &from, &to)
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to, len(content)))
		w.WriteHeader(http.StatusPartialContent)
		_, _ = w.Write(content[len(content)-(to-from+1):])
		if from >= len(content)-(to-from+1) {
			panic(http.ErrAbortHandler)
		}
	}},
	"the range is ignored": {passing: true, answer: func(w http.ResponseWriter, r *http.Request, content []byte) {
		r.Header.Del("Range")
		serveFile(w, r, content)
	}},
	"416": {answer: func(w http.ResponseWriter, _ *http.Request, content []byte) {
		w.Header().Set("Content-Range", "bytes */"+strconv.Itoa(len(content)))
		w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
	}},
	"a cut body": {passing: true, answer: func(w http.ResponseWriter, r *http.Request, content []byte) {
		serveFile(&cutting{ResponseWriter: w, left: mib + 1000}, r, content)
	}},
	"a body cut within the first chunk": {answer: func(w http.ResponseWriter, r *http.Request, content []byte) {
		serveFile(&cutting{ResponseWriter: w, left: 1000}, r, content)
	}},
	"no body": {answer: func(w http.ResponseWriter, r *http.Request, content []byte) {
		serveFile(&cutting{ResponseWriter: w}, r, content)
	}},
	"a shorter file": {answer: func(w http.ResponseWriter, r *http.Request, content []byte) {
		serveFile(w, r, content[:len(content)-1])
	}},
	"a longer file": {answer: func(w http.ResponseWriter, r *http.Request, content []byte) { serveFile(w, r, append(content, 0)) }},
	"an empty file": {answer: func(w http.ResponseWriter, r *http.Request, _ []byte) { serveFile(w, r, nil) }},
	"an error page": {answer: func(w http.ResponseWriter, _ *http.Request, _ []byte) {
		_, _ = w.Write([]byte("<html>sign in</html>"))
	}},
	"500":                   {answer: func(w http.ResponseWriter, _ *http.Request, _ []byte) { w.WriteHeader(http.StatusInternalServerError) }},
	"503":                   {answer: func(w http.ResponseWriter, _ *http.Request, _ []byte) { w.WriteHeader(http.StatusServiceUnavailable) }},
	"the connection breaks": {answer: func(http.ResponseWriter, *http.Request, []byte) { panic(http.ErrAbortHandler) }},
}

// cutting ends a body early.
type cutting struct {
	http.ResponseWriter
	left int
}

// Write writes what is left and breaks the connection.
func (c *cutting) Write(p []byte) (int, error) {
	n := min(c.left, len(p))
	_, _ = c.ResponseWriter.Write(p[:n])
	if c.left -= n; c.left == 0 {
		_ = http.NewResponseController(c.ResponseWriter).Flush()
		panic(http.ErrAbortHandler)
	}
	return n, nil
}

// Unwrap lets the response be flushed.
func (c counted) Unwrap() http.ResponseWriter { return c.ResponseWriter }

func TestAFaultOfTheSourceIsSurvivedOnce(t *testing.T) {
	for name, f := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			files := weights(4, 5*mib)
			o, m := published(t, files)
			for _, m := range []Model{m, o.bucket(t, m.Digest)} {
				o.set(once(func(w http.ResponseWriter, r *http.Request, _ string, content []byte) bool {
					f.answer(w, r, content)
					return true
				}))
				c := newCache(t, 1<<30)
				progress := &Progress{}
				r, err := c.Ensure(t.Context(), m, "", progress)
				if err != nil {
					t.Fatal(m.Name, err)
				}
				check(t, r.Path, files)
				if present, total := progress.Read(); present != total {
					t.Errorf("%s: the progress ends at %d of %d", m.Name, present, total)
				}
			}
		})
	}
}

func TestASteadyFaultOfTheSourceIsAClearErrorAndNothingIsPublished(t *testing.T) {
	for name, f := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			files := weights(5, 5*mib)
			o, m := published(t, files)
			for _, m := range []Model{m, o.bucket(t, m.Digest)} {
				o.set(func(w http.ResponseWriter, r *http.Request, name string, content []byte) bool {
					if !strings.HasSuffix(name, ".safetensors") {
						return false
					}
					f.answer(w, r, content)
					return true
				})
				c := newCache(t, 1<<30)
				r, err := c.Ensure(t.Context(), m, "", nil)
				if f.passing {
					if err != nil {
						t.Error(m.Name, err)
						continue
					}
					check(t, r.Path, files)
					continue
				}
				if err == nil || !strings.Contains(err.Error(), "model-1.safetensors") {
					t.Errorf("%s: %v", m.Name, err)
				}
				absent(t, c, m)
				o.set(nil)
				if r, err := c.Ensure(t.Context(), m, "", nil); err != nil {
					t.Errorf("%s, after it has ended: %v", m.Name, err)
				} else {
					check(t, r.Path, files)
				}
			}
		})
	}
}

func TestASourceThatFallsSilentIsAskedAgain(t *testing.T) {
	files := weights(6, 3*mib)
	o, m := published(t, files)
	gone := make(chan struct{})
	t.Cleanup(func() { close(gone) })
	o.set(once(func(w http.ResponseWriter, r *http.Request, _ string, content []byte) bool {
		w.Header().Set("Content-Length", strconv.Itoa(len(content)))
		_, _ = w.Write(content[:mib+100])
		_ = http.NewResponseController(w).Flush()
		select {
		case <-r.Context().Done():
		case <-gone:
		}
		return true
	}))
	c := newCache(t, 1<<30)
	cfg := quick
	cfg.StallTimeout = 100 * time.Millisecond
	c.fetch = fetch.New(cfg)
	r, err := c.Ensure(t.Context(), m, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	check(t, r.Path, files)
}

func TestAResumedPullFetchesWhatIsMissing(t *testing.T) {
	for _, listed := range []bool{true, false} {
		t.Run(fmt.Sprint("with a manifest: ", listed), func(t *testing.T) {
			files := weights(7, 9*mib)
			o, m := published(t, files)
			m = o.bucket(t, m.Digest)
			if !listed {
				o.mu.Lock()
				delete(o.files, manifest.Name)
				o.mu.Unlock()
			}
			dir := t.TempDir()
			o.set(func(w http.ResponseWriter, r *http.Request, name string, _ []byte) bool {
				if !strings.HasSuffix(name, ".safetensors") || strings.HasPrefix(r.Header.Get("Range"), "bytes=0-") {
					return false
				}
				for haveChunks(t, dir) < 1 {
					time.Sleep(time.Millisecond)
				}
				w.WriteHeader(http.StatusForbidden) // ends the pull
				return true
			})
			if _, err := cacheIn(t, dir, 1<<30).Ensure(t.Context(), m, "", nil); !errors.Is(err, fs.ErrPermission) {
				t.Fatal(err)
			}
			have := haveChunks(t, dir)
			o.set(nil)
			before := len(o.spans())
			r, err := cacheIn(t, dir, 1<<30).Ensure(t.Context(), m, "", nil)
			if err != nil {
				t.Fatal(err)
			}
			check(t, r.Path, files)
			if want := int64(9*mib - have*mib); r.Downloaded < want || r.Downloaded > want+1000 {
				t.Errorf("%d bytes came, %d chunks were there", r.Downloaded, have)
			}
			if have < 1 || len(o.spans()) == before {
				t.Error("the test tests nothing")
			}
			left, _ := os.ReadDir(dir + "/partial")
			if len(left) > 0 {
				t.Errorf("%v remain", left)
			}
		})
	}
}

// haveChunks counts the chunks of files of a chunk or more that the journals have.
func haveChunks(t *testing.T, dir string) int {
	t.Helper()
	journals, err := filepath.Glob(dir + "/partial/*/journal")
	if err != nil {
		t.Error(err)
	}
	n := 0
	for _, j := range journals {
		text, err := os.ReadFile(j)
		if err == nil && len(text) >= 12 && binary.LittleEndian.Uint64(text[4:]) >= mib {
			n += (len(text) - 12) / 12
		}
	}
	return n
}

func TestAChangedFileIsNotMixedWithItsOldSelf(t *testing.T) {
	files := weights(8, 5*mib)
	digest := manifestOf(t, files).Digest()
	o := newOrigin(t, files)
	m := o.bucket(t, digest)
	changed := weights(9, 5*mib)["model-1.safetensors"]
	o.set(func(w http.ResponseWriter, r *http.Request, name string, _ []byte) bool {
		if !strings.HasSuffix(name, ".safetensors") || strings.HasPrefix(r.Header.Get("Range"), "bytes=0-") {
			return false
		}
		serveFile(w, r, changed)
		return true
	})
	c := newCache(t, 1<<30)
	if _, err := c.Ensure(t.Context(), m, "", nil); !errors.Is(err, source.ErrChanged) {
		t.Error(err)
	}
	absent(t, c, m)
}

func TestNamesThatLeaveTheCacheAreRefusedBeforeAnythingIsCreated(t *testing.T) {
	sum := strings.Repeat("a", 64)
	for _, name := range []string{"../../x", "/x", "a/../../x", `..\x`, "", ".", "a/./b"} {
		o := newOrigin(t, map[string][]byte{manifest.Name: []byte("modelcache-manifest 1\n" + sum + " 1 " + name + "\n")})
		dir := t.TempDir()
		c := cacheIn(t, dir+"/cache", 1<<30)
		m := o.web(t, manifest.Digest("sha256:"+sum))
		if _, err := c.Ensure(t.Context(), m, "", nil); err == nil || !strings.Contains(err.Error(), "name") && !strings.Contains(err.Error(), "form") {
			t.Errorf("manifest with %q: %v", name, err)
		}
		if name != "" {
			listed := newOrigin(t, map[string][]byte{name: []byte("x")})
			if _, err := c.Ensure(t.Context(), listed.bucket(t, m.Digest), "", nil); err == nil || !strings.Contains(err.Error(), "name") {
				t.Errorf("listing with %q: %v", name, err)
			}
		}
		if left, _ := os.ReadDir(dir); len(left) != 1 {
			t.Errorf("%q: %v", name, left)
		}
		for _, d := range []string{"partial", "blobs", "models", "state"} {
			if left, _ := os.ReadDir(dir + "/cache/" + d); len(left) > 0 {
				t.Errorf("%q: %v in %s", name, left, d)
			}
		}
	}
}

// slow holds the large file's bytes back until release is closed.
func (o *origin) slow(release <-chan struct{}, begun chan<- struct{}) {
	var one sync.Once
	o.set(func(_ http.ResponseWriter, r *http.Request, name string, _ []byte) bool {
		if strings.HasSuffix(name, ".safetensors") {
			one.Do(func() { close(begun) })
			select {
			case <-release:
			case <-r.Context().Done():
			}
		}
		return false
	})
}

func TestTheFirstCallersDepartureLeavesThePullToTheOthers(t *testing.T) {
	files := weights(10, 4*mib)
	o, m := published(t, files)
	release, begun := make(chan struct{}), make(chan struct{})
	o.slow(release, begun)
	c := newCache(t, 1<<30)
	first, leave := context.WithCancel(t.Context())
	results := make(chan error, 2)
	left := make(chan error)
	go func() { _, err := c.Ensure(first, m, "", nil); left <- err }()
	<-begun
	for range 2 {
		go func() { _, err := c.Ensure(t.Context(), m, "", nil); results <- err }()
	}
	c.waitForCallers(m.Digest, 3)
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("the first: %v", err)
	}
	close(release)
	for range 2 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	if got := o.sent.Load(); got != 4*mib+1000 {
		t.Errorf("%d bytes were sent for one model", got)
	}
}

// waitForCallers returns when so many wait for a pull.
func (c *Cache) waitForCallers(d manifest.Digest, n int) {
	for {
		c.flights.mu.Lock()
		fl := c.flights.open[d]
		enough := fl != nil && fl.callers == n
		c.flights.mu.Unlock()
		if enough {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func TestTheLastCallersDepartureEndsThePull(t *testing.T) {
	o, m := published(t, weights(11, 4*mib))
	release, begun := make(chan struct{}), make(chan struct{})
	defer close(release)
	o.slow(release, begun)
	c := newCache(t, 1<<30)
	ctx, leave := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	for range 2 {
		go func() { _, err := c.Ensure(ctx, m, "", nil); ended <- err }()
	}
	<-begun
	c.waitForCallers(m.Digest, 2)
	leave()
	for range 2 {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	// Nothing runs any more: the model's lock is free.
	short, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	unlock, err := c.Store().LockModel(short, m.Digest)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}

func TestManyCachesOverOneDirectoryFetchOnce(t *testing.T) {
	files := weights(12, 8*mib)
	o, m := published(t, files)
	dir := t.TempDir()
	var callers sync.WaitGroup
	for range 8 {
		c := cacheIn(t, dir, 1<<30)
		for range 3 {
			callers.Go(func() {
				r, err := c.Ensure(t.Context(), m, "", nil)
				if err != nil {
					t.Error(err)
					return
				}
				check(t, r.Path, files)
			})
		}
	}
	callers.Wait()
	if got := o.sent.Load(); got != 8*mib+1000 {
		t.Errorf("%d bytes were sent for one model", got)
	}
}

func TestTwoRevisionsPulledAtOnceShareTheirFiles(t *testing.T) {
	one := weights(13, 8*mib)
	two := maps.Clone(one)
	two["config.json"] = []byte("{}")
	o1, m1 := published(t, one)
	o2, m2 := published(t, two)
	dir := t.TempDir()
	var pulls sync.WaitGroup
	for _, m := range []Model{m1, m2} {
		pulls.Go(func() {
			if _, err := cacheIn(t, dir, 1<<30).Ensure(t.Context(), m, "", nil); err != nil {
				t.Error(err)
			}
		})
	}
	pulls.Wait()
	if got := o1.sent.Load() + o2.sent.Load(); got != 8*mib+1000+2 {
		t.Errorf("%d bytes were sent", got)
	}
	check(t, filepath.Join(dir, "models", "sha256-"+m1.Digest.Hex()), one)
	check(t, filepath.Join(dir, "models", "sha256-"+m2.Digest.Hex()), two)
}

func TestAModelInUseAndAPullUnderWayAreNotEvicted(t *testing.T) {
	c := newCache(t, 10*mib)
	oa, a := published(t, weights(14, 4*mib))
	ob, b := published(t, weights(15, 4*mib))
	oc, third := published(t, weights(16, 4*mib))
	if _, err := c.Ensure(t.Context(), a, "pod", nil); err != nil {
		t.Fatal(err)
	}
	release, begun := make(chan struct{}), make(chan struct{})
	ob.slow(release, begun)
	loaded := make(chan error)
	go func() { _, err := c.Ensure(t.Context(), b, "pod", nil); loaded <- err }()
	<-begun
	_, err := c.Ensure(t.Context(), third, "", nil)
	if !errors.Is(err, store.ErrNoRoom) || !strings.Contains(err.Error(), "pinned by pod") || !strings.Contains(err.Error(), "being pulled") {
		t.Error(err)
	}
	if oc.sent.Load() > 0 {
		t.Error("bytes were fetched for a model that has no room")
	}
	close(release)
	if err := <-loaded; err != nil {
		t.Error(err)
	}
	check(t, c.Store().ModelPath(a.Digest), oa.files)
	check(t, c.Store().ModelPath(b.Digest), ob.files)
	for _, m := range []Model{a, b} {
		if _, err := c.Store().Unpin(t.Context(), m.Digest, ""); err != nil {
			t.Fatal(err)
		}
	}
	if r, err := c.Ensure(t.Context(), third, "", nil); err != nil || len(r.Evicted) != 1 || r.Evicted[0] != a.Digest {
		t.Errorf("after unpin: %+v, %v", r, err)
	}
}

func TestReplacingARevisionTakesOnlyWhatIsNew(t *testing.T) {
	dir := t.TempDir()
	c := cacheIn(t, dir, 1<<30)
	old := map[string][]byte{}
	for i := range 10 {
		old[fmt.Sprintf("shard-%d.safetensors", i)] = weights(uint64(20+i), 2*mib)["model-1.safetensors"]
	}
	next := maps.Clone(old)
	next["shard-0.safetensors"] = weights(40, 2*mib)["model-1.safetensors"]
	_, m1 := published(t, old)
	o2, m2 := published(t, next)
	if _, err := c.Ensure(t.Context(), m1, "", nil); err != nil {
		t.Fatal(err)
	}
	var peak atomic.Int64
	watch, stop := context.WithCancel(t.Context())
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		for watch.Err() == nil {
			if used, err := c.Store().Used(); err == nil {
				peak.Store(max(peak.Load(), used))
			}
		}
	}()
	r, err := c.Ensure(t.Context(), m2, "", nil)
	stop()
	<-watched
	if err != nil || r.Downloaded != 2*mib || o2.sent.Load() != 2*mib {
		t.Errorf("%+v, %v", r, err)
	}
	if got := peak.Load(); got < 20*mib || got > 22*mib+100_000 {
		t.Errorf("%d bytes at the peak, 22 MiB are old and new together", got)
	}
}

func TestACompileCacheIsKeptPerModelEngineAndFlags(t *testing.T) {
	c := newCache(t, 1<<30)
	_, m := published(t, weights(50, mib))
	saved := t.TempDir()
	if err := errors.Join(os.MkdirAll(saved+"/torch_compile_cache/ab", 0o755), os.WriteFile(saved+"/torch_compile_cache/ab/x.py", []byte("code"), 0o644)); err != nil {
		t.Fatal(err)
	}
	key := CompileKey{Model: m.Digest, Engine: "vllm 0.32.0", Flags: "-O2"}
	if err := c.RestoreCompiled(t.Context(), key, t.TempDir()); !errors.Is(err, store.ErrAbsent) {
		t.Errorf("nothing was saved: %v", err)
	}
	digest, err := c.SaveCompiled(t.Context(), key, saved)
	if err != nil {
		t.Fatal(err)
	}
	into := t.TempDir()
	if err := c.RestoreCompiled(t.Context(), key, into); err != nil {
		t.Fatal(err)
	}
	file := into + "/torch_compile_cache/ab/x.py"
	if got, err := os.ReadFile(file); err != nil || string(got) != "code" {
		t.Errorf("%q, %v", got, err)
	}
	// The engine writes to what it got; the cache's own does not change.
	if err := os.WriteFile(file, []byte("more"), 0o644); err != nil {
		t.Fatal(err)
	}
	if report, err := c.Store().Verify(t.Context(), []manifest.Digest{digest}, nil); err != nil || len(report.Faults) > 0 {
		t.Errorf("%+v, %v", report, err)
	}
	for _, other := range []CompileKey{{m.Digest, "vllm 0.33.0", "-O2"}, {m.Digest, "vllm 0.32.0", ""}, {digest, "vllm 0.32.0", "-O2"}} {
		if err := c.RestoreCompiled(t.Context(), other, t.TempDir()); !errors.Is(err, store.ErrAbsent) {
			t.Errorf("%+v: %v", other, err)
		}
	}
	if err := c.Store().Evict(t.Context(), digest); err != nil {
		t.Errorf("it is not in use any more: %v", err)
	}
	if err := c.RestoreCompiled(t.Context(), key, t.TempDir()); !errors.Is(err, store.ErrAbsent) {
		t.Errorf("after it was evicted: %v", err)
	}
}

func TestADamagedModelIsFetchedAgainWhereItIsDamaged(t *testing.T) {
	files := weights(51, 4*mib)
	files["model-2.safetensors"] = weights(52, 2*mib)["model-1.safetensors"]
	o, m := published(t, files)
	c := newCache(t, 1<<30)
	r, err := c.Ensure(t.Context(), m, "pod", nil)
	if err != nil {
		t.Fatal(err)
	}
	damaged := r.Path + "/model-2.safetensors"
	if err := errors.Join(os.Chmod(damaged, 0o644), os.Truncate(damaged, mib)); err != nil {
		t.Fatal(err)
	}
	o.sent.Store(0)
	if again, err := c.Ensure(t.Context(), m, "pod", nil); err != nil || again.Hit {
		t.Errorf("%+v, %v", again, err)
	}
	check(t, r.Path, files)
	if got := o.sent.Load(); got != 2*mib {
		t.Errorf("%d bytes were sent for a file of %d", got, 2*mib)
	}
}

// TestAModelOfManyFilesNeedsFewOfThemOpen pulls more files than the process may have
// open, in both ways to prove them.
func TestAModelOfManyFilesNeedsFewOfThemOpen(t *testing.T) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	few := limit
	few.Cur = min(few.Cur, 200)
	files := map[string][]byte{}
	for i := range 2 * few.Cur {
		files[fmt.Sprintf("part-%04d", i)] = fmt.Appendf(nil, "%d", i)
	}
	listed, unlisted := t.TempDir(), t.TempDir()
	for name, content := range files {
		if err := errors.Join(os.WriteFile(filepath.Join(listed, name), content, 0o644), os.WriteFile(filepath.Join(unlisted, name), content, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	m := manifestOf(t, files)
	if err := os.WriteFile(filepath.Join(listed, manifest.Name), m.Text(), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit) })
	for name, dir := range map[string]string{"with a manifest": listed, "without": unlisted} {
		t.Run(name, func(t *testing.T) {
			from, err := source.New(dir, "", source.Config{}, os.LookupEnv)
			if err != nil {
				t.Fatal(err)
			}
			c := newCache(t, 1<<30)
			if _, err := c.Ensure(t.Context(), Model{Digest: m.Digest(), Name: dir, Source: from}, "", nil); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestTheFirstAnswersOfASourceMayBeBad spoils the manifest and the listing, on which
// everything else rests and for which all other pulls of the model wait.
func TestTheFirstAnswersOfASourceMayBeBad(t *testing.T) {
	for name, f := range map[string]func(w http.ResponseWriter, r *http.Request, text []byte){
		"busy": func(w http.ResponseWriter, _ *http.Request, _ []byte) { w.WriteHeader(http.StatusServiceUnavailable) },
		"silent": func(w http.ResponseWriter, r *http.Request, _ []byte) {
			w.Header().Set("Content-Length", "1000")
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		},
		"cut": func(http.ResponseWriter, *http.Request, []byte) { panic(http.ErrAbortHandler) },
		"wrong": func(w http.ResponseWriter, _ *http.Request, text []byte) {
			_, _ = w.Write(append([]byte("x"), text...))
		},
	} {
		for _, listed := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, listed %v", name, listed), func(t *testing.T) {
				files := weights(9, mib)
				m := manifestOf(t, files)
				if listed {
					files[manifest.Name] = m.Text()
				}
				o := newOrigin(t, files)
				spoil := atomic.Bool{}
				spoil.Store(true)
				inner := o.Config.Handler
				o.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					first := r.URL.Query().Has("list-type") && name != "wrong" || listed && strings.HasSuffix(r.URL.Path, manifest.Name)
					if first && spoil.Swap(false) {
						f(w, r, m.Text())
						return
					}
					inner.ServeHTTP(w, r)
				})
				c := newCache(t, 1<<30)
				cfg := quick
				cfg.StallTimeout = 300 * time.Millisecond
				c.fetch = fetch.New(cfg)
				r, err := c.Ensure(t.Context(), o.bucket(t, m.Digest()), "", nil)
				if err != nil {
					t.Fatal(err)
				}
				delete(files, manifest.Name)
				check(t, r.Path, files)
				if spoil.Load() && (listed || name != "wrong") {
					t.Error("nothing was spoiled")
				}
			})
		}
	}
}

// TestFilesThatCannotBeOneDirectoryAreNotFetched has keys that a bucket may have.
func TestFilesThatCannotBeOneDirectoryAreNotFetched(t *testing.T) {
	files := map[string][]byte{"a": make([]byte, mib), "a/b": make([]byte, mib)}
	o := newOrigin(t, files)
	digest := manifestOf(t, weights(1, 1)).Digest()
	_, err := newCache(t, 1<<30).Ensure(t.Context(), o.bucket(t, digest), "", nil)
	if err == nil || !strings.Contains(err.Error(), "a is a file and a directory") {
		t.Error(err)
	}
	if n := o.sent.Load(); n > 0 {
		t.Errorf("%d bytes were fetched", n)
	}
}
