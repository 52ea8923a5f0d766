package modelcache

import (
	"bytes"
	"crypto/sha256"
	"encoding/xml"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/modelcache/fetch"
	"github.com/warmpath/warmpath/internal/modelcache/manifest"
	"github.com/warmpath/warmpath/internal/modelcache/source"
	"github.com/warmpath/warmpath/internal/modelcache/store"
)

// base is the place of the model at an origin: a path, and bucket and prefix.
const base = "/models/llm/v1/"

// origin serves a model over HTTP and, with the same paths, as an S3 bucket.
type origin struct {
	*httptest.Server
	sent atomic.Int64 // bytes of files, the manifest left out
	down atomic.Bool  // every connection breaks

	mu    sync.Mutex // guards what follows
	files map[string][]byte
	asked []span // of the files
	// fault answers instead, if it returns true. It is called for files alone.
	fault func(w http.ResponseWriter, r *http.Request, name string, content []byte) bool
}

// span is a part of a file that was asked for; to is -1 for all that follows.
type span struct {
	name     string
	from, to int64
}

func newOrigin(t testing.TB, files map[string][]byte) *origin {
	t.Helper()
	o := &origin{files: files}
	o.Server = httptest.NewServer(http.HandlerFunc(o.serve))
	t.Cleanup(o.Close)
	return o
}

// set lets files answer as f says, as they should if it is nil.
func (o *origin) set(f func(w http.ResponseWriter, r *http.Request, name string, content []byte) bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.fault = f
}

func (o *origin) spans() []span {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.asked)
}

func (o *origin) serve(w http.ResponseWriter, r *http.Request) {
	if o.down.Load() {
		panic(http.ErrAbortHandler)
	}
	if r.URL.Query().Has("list-type") {
		o.list(w, r.URL.Query().Get("prefix"))
		return
	}
	name := strings.TrimPrefix(r.URL.Path, base)
	o.mu.Lock()
	content, ok := o.files[name]
	fault := o.fault
	if name != manifest.Name {
		s := span{name: name, to: -1}
		_, _ = fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &s.from, &s.to)
		o.asked = append(o.asked, s)
	}
	o.mu.Unlock()
	if !ok {
		http.Error(w, "<Error><Code>NoSuchKey</Code></Error>", http.StatusNotFound)
		return
	}
	if name != manifest.Name {
		w = counted{w, &o.sent}
		if fault != nil && fault(w, r, name, content) {
			return
		}
	}
	serveFile(w, r, content)
}

func serveFile(w http.ResponseWriter, r *http.Request, content []byte) {
	sum := sha256.Sum256(content)
	w.Header().Set("ETag", fmt.Sprintf("%q", fmt.Sprintf("%x", sum[:16])))
	http.ServeContent(w, r, "", time.Unix(1, 0), bytes.NewReader(content))
}

func (o *origin) list(w http.ResponseWriter, prefix string) {
	type object struct {
		Key  string
		Size int
		ETag string
	}
	answer := struct {
		XMLName  xml.Name `xml:"ListBucketResult"`
		Name     string
		Contents []object
	}{Name: "models"}
	o.mu.Lock()
	for name, content := range o.files {
		sum := sha256.Sum256(content)
		if key := path.Join("llm/v1") + "/" + name; strings.HasPrefix(key, prefix) {
			answer.Contents = append(answer.Contents, object{key, len(content), fmt.Sprintf("%x", sum[:16])})
		}
	}
	o.mu.Unlock()
	_ = xml.NewEncoder(w).Encode(answer)
}

type counted struct {
	http.ResponseWriter
	sum *atomic.Int64
}

// Write counts.
func (c counted) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p)
	c.sum.Add(int64(n))
	return n, err
}

// weights are a model's files: a large one, one of less than a chunk, an empty one.
func weights(seed uint64, large int) map[string][]byte {
	bytes := func(n int) []byte {
		b := make([]byte, n)
		_, _ = rand.NewChaCha8([32]byte{byte(seed), byte(n)}).Read(b)
		return b
	}
	return map[string][]byte{"model-1.safetensors": bytes(large), "sub/tokenizer.json": bytes(1000), "empty": {}}
}

func manifestOf(t testing.TB, files map[string][]byte) *manifest.Manifest {
	t.Helper()
	var list []manifest.File
	for name, content := range files {
		if name != manifest.Name {
			sum := sha256.Sum256(content)
			list = append(list, manifest.File{Path: name, Size: int64(len(content)), Digest: manifest.SumDigest(sum[:])})
		}
	}
	m, err := manifest.New(list)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// published is an origin with a model and its manifest.
func published(t testing.TB, files map[string][]byte) (*origin, Model) {
	t.Helper()
	m := manifestOf(t, files)
	files[manifest.Name] = m.Text()
	o := newOrigin(t, files)
	return o, o.web(t, m.Digest())
}

func (o *origin) web(t testing.TB, digest manifest.Digest) Model {
	t.Helper()
	return resolve(t, o.URL+"/models/llm", digest, source.Config{})
}

// bucket is the same model through S3.
func (o *origin) bucket(t testing.TB, digest manifest.Digest) Model {
	t.Helper()
	return resolve(t, "s3://models/llm", digest, source.Config{Endpoint: o.URL, Region: "here"})
}

func resolve(t testing.TB, repository string, digest manifest.Digest, cfg source.Config) Model {
	t.Helper()
	from, err := source.New(repository, "v1", cfg, func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	return Model{Digest: digest, Name: repository + " v1", Source: from}
}

var quick = fetch.Config{Connections: 4, RangeMiB: 2, Attempts: 3, StallTimeout: 10 * time.Second, RetryDelay: time.Millisecond}

func newCache(t testing.TB, maxBytes int64) *Cache {
	t.Helper()
	return cacheIn(t, t.TempDir(), maxBytes)
}

func cacheIn(t testing.TB, dir string, maxBytes int64) *Cache {
	t.Helper()
	s, err := store.Open(store.Config{Path: dir, MaxBytes: maxBytes, High: 1, Low: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return New(s, quick, slog.New(slog.DiscardHandler))
}
