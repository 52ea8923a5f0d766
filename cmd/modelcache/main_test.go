package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"

	"github.com/warmpath/warmpath/internal/modelcache"
	"github.com/warmpath/warmpath/internal/modelcache/manifest"
	"github.com/warmpath/warmpath/internal/modelcache/source"
)

// asProgram makes the test binary the program itself, so that the tests can run it
// as processes and kill them.
const asProgram = "MODELCACHE_TEST_RUN"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// program is a process of modelcache.
func program(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	return cmd
}

const mib = 1 << 20

// site is a model behind an HTTP server, and a configuration file for it.
type site struct {
	config, cache string
	digest        manifest.Digest
	contents      map[string][]byte
	sent          atomic.Int64
	rate          atomic.Int64 // bytes a second for each request, 0 is unlimited

	mu    sync.Mutex // guards what follows
	asked map[string][][2]int64
}

func newSite(t *testing.T, contents map[string][]byte) *site {
	t.Helper()
	s := &site{contents: contents, asked: map[string][][2]int64{}}
	dir := t.TempDir()
	for name, content := range contents {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	from, err := source.New(dir, "", source.Config{}, os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	m, err := modelcache.Digest(t.Context(), from)
	if err != nil {
		t.Fatal(err)
	}
	s.digest = m.Digest()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.serve(w, r, m.Text()) }))
	t.Cleanup(srv.Close)
	s.cache = filepath.Join(t.TempDir(), "cache")
	s.config = filepath.Join(t.TempDir(), "model.yaml")
	text := fmt.Sprintf("model:\n  repository: %s/models\n  revision: v1\n  expectedDigest: %s\ncache:\n  nodeLocalPath: %s\n  maxSizeGiB: 1\n  evictionPolicy: lru\nfetch:\n  rangeMiB: 4\n",
		srv.URL, s.digest, s.cache)
	if err := os.WriteFile(s.config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *site) serve(w http.ResponseWriter, r *http.Request, manifestText []byte) {
	name := strings.TrimPrefix(r.URL.Path, "/models/v1/")
	if name == manifest.Name {
		_, _ = w.Write(manifestText)
		return
	}
	var span [2]int64
	_, _ = fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &span[0], &span[1])
	s.mu.Lock()
	s.asked[name] = append(s.asked[name], span)
	s.mu.Unlock()
	http.ServeContent(throttled{w, s, r.Context()}, r, "", time.Unix(1, 0), bytes.NewReader(s.contents[name]))
}

// throttled counts, and writes at the site's rate.
type throttled struct {
	http.ResponseWriter
	site *site
	ctx  context.Context
}

// Write takes the time that its bytes need.
func (w throttled) Write(p []byte) (int, error) {
	w.site.sent.Add(int64(len(p)))
	n, err := w.ResponseWriter.Write(p)
	if rate := w.site.rate.Load(); rate > 0 {
		select {
		case <-time.After(time.Duration(float64(n) / float64(rate) * float64(time.Second))):
		case <-w.ctx.Done():
			return n, w.ctx.Err()
		}
	}
	return n, err
}

func (s *site) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.asked)
}

func random(seed byte, n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

func (s *site) check(t *testing.T) {
	t.Helper()
	dir := filepath.Join(s.cache, "models", "sha256-"+s.digest.Hex())
	for name, want := range s.contents {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s has %d bytes that are not its own, %v", name, len(got), err)
		}
	}
}

// TestKilledAtAnyPoint kills pulls at random points, a hundred times in all. Whatever
// the moment: under the final name is nothing or the whole model, and the next pull
// asks for nothing that the journal has.
func TestKilledAtAnyPoint(t *testing.T) {
	kills := 100
	if testing.Short() {
		kills = 10
	}
	s := newSite(t, map[string][]byte{"a.safetensors": random(1, 24*mib+5), "b.safetensors": random(2, 8*mib), "config.json": []byte("{}"), "empty": {}})
	s.rate.Store(16 * mib)
	killed, resumed, whole := 0, 0, 0
	for killed < kills {
		have := s.journals(t)
		s.forget()
		cmd := program(t, "ensure", "-config", s.config)
		var said bytes.Buffer
		cmd.Stderr = &said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		patience := time.Duration(rand.Int64N(int64(250 * time.Millisecond)))
		timer := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
		err := cmd.Wait()
		timer.Stop()
		s.compare(t, have)
		if len(have) > 0 {
			resumed++
		}
		switch status := cmd.ProcessState.Sys().(syscall.WaitStatus); {
		case status.Signaled():
			killed++
		case err != nil:
			t.Fatalf("the pull failed: %v, %s", err, said.String())
		}
		if _, err := os.Lstat(filepath.Join(s.cache, "models", "sha256-"+s.digest.Hex())); err == nil {
			whole++
			s.check(t)
			if err := os.RemoveAll(s.cache); err != nil {
				t.Fatal(err)
			}
		}
		if t.Failed() {
			t.FailNow()
		}
	}
	t.Logf("%d kills, %d pulls began with something, %d models became whole", killed, resumed, whole)
	if resumed == 0 || whole == 0 {
		t.Error("the test tests nothing: change its times")
	}
}

// journals reads which chunks of which files are there: name to chunk numbers.
func (s *site) journals(t *testing.T) map[string][]int64 {
	t.Helper()
	have := map[string][]int64{}
	for name, content := range s.contents {
		text, err := os.ReadFile(filepath.Join(s.cache, "partial", digestOf(content).Hex(), "journal"))
		if err != nil {
			continue
		}
		for at := 12; at+12 <= len(text); at += 12 {
			have[name] = append(have[name], int64(text[at])|int64(text[at+1])<<8)
		}
	}
	for name, content := range s.contents { // blobs are there as a whole
		if _, err := os.Stat(filepath.Join(s.cache, "blobs", digestOf(content).Hex())); err == nil {
			for i := int64(0); i*mib < int64(len(content)); i++ {
				have[name] = append(have[name], i)
			}
		}
	}
	return have
}

// compare finds chunks that were there and were asked for again.
func (s *site) compare(t *testing.T, have map[string][]int64) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, spans := range s.asked {
		for _, span := range spans {
			for _, chunk := range have[name] {
				if span[0] < (chunk+1)*mib && chunk*mib <= span[1] {
					t.Errorf("%s: chunk %d was there, and bytes %d to %d were asked for", name, chunk, span[0], span[1])
				}
			}
		}
	}
}

func digestOf(content []byte) manifest.Digest {
	sum := sha256.Sum256(content)
	return manifest.SumDigest(sum[:])
}

func TestFiftyProcessesFetchOnce(t *testing.T) {
	s := newSite(t, map[string][]byte{"w.safetensors": random(3, 12*mib), "config.json": []byte("{}")})
	s.rate.Store(32 * mib)
	var processes sync.WaitGroup
	for range 50 {
		processes.Go(func() {
			out, err := program(t, "ensure", "-config", s.config).Output()
			want := filepath.Join(s.cache, "models", "sha256-"+s.digest.Hex()) + "\n"
			if err != nil || string(out) != want {
				t.Errorf("%q, %v", out, err)
			}
		})
	}
	processes.Wait()
	s.check(t)
	if got := s.sent.Load(); got != 12*mib+2 {
		t.Errorf("%d bytes were sent for a model of %d", got, 12*mib+2)
	}
}

// TestTheFirstProcessLeaves interrupts the process that downloads: another goes on
// from there.
func TestTheFirstProcessLeaves(t *testing.T) {
	s := newSite(t, map[string][]byte{"w.safetensors": random(4, 16*mib)})
	s.rate.Store(8 * mib)
	first := program(t, "ensure", "-config", s.config)
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	for s.sent.Load() < 6*mib {
		time.Sleep(time.Millisecond)
	}
	second := program(t, "ensure", "-config", s.config)
	if err := second.Start(); err != nil {
		t.Fatal(err)
	}
	_ = first.Process.Signal(syscall.SIGTERM)
	if err := first.Wait(); err == nil {
		t.Error("the first ended well: the test tests nothing")
	}
	have := s.journals(t)
	s.rate.Store(0)
	if err := second.Wait(); err != nil {
		t.Error(err)
	}
	s.check(t)
	if len(have["w.safetensors"]) == 0 {
		t.Error("the first left nothing: the test tests nothing")
	}
	// The connections that were cut had at most a chunk each under way, and what the
	// kernel held for them.
	if got := s.sent.Load(); got > 2*16*mib-int64(len(have["w.safetensors"]))*mib+8*mib {
		t.Errorf("%d bytes were sent, %d chunks were kept", got, len(have["w.safetensors"]))
	}
}

func TestTheWholeCommandLine(t *testing.T) {
	s := newSite(t, map[string][]byte{"w.safetensors": random(5, 3*mib), "config.json": []byte("{}")})
	command := func(args ...string) (string, error) {
		var out bytes.Buffer
		err := run(t.Context(), args, &out, io.Discard)
		return out.String(), err
	}
	must := func(args ...string) string {
		t.Helper()
		out, err := command(args...)
		if err != nil {
			t.Fatalf("%q: %v", args, err)
		}
		return out
	}
	link := filepath.Join(t.TempDir(), "model")
	path := strings.TrimSpace(must("ensure", "-config", s.config, "-pin", "pod", "-warm", "-link", link))
	if target, err := os.Readlink(link); err != nil || target != path {
		t.Errorf("the link leads to %q, %v", target, err)
	}
	s.check(t)
	if got := must("ensure", "-config", s.config, "-pin", "pod", "-link", link); strings.TrimSpace(got) != path {
		t.Errorf("again: %q", got)
	}
	text := must("manifest", path)
	if m, err := manifest.Parse([]byte(text)); err != nil || m.Digest() != s.digest {
		t.Errorf("the published directory has another digest: %v", err)
	}
	t.Chdir(filepath.Dir(path))
	if again := must("manifest", filepath.Base(path)); again != text {
		t.Error("a relative directory has another manifest")
	}
	if got := must("list", "-config", s.config); !strings.Contains(got, string(s.digest)) || !strings.Contains(got, "pod") {
		t.Error(got)
	}
	var listed struct {
		Models []struct {
			Digest string   `json:"digest"`
			Pins   []string `json:"pins"`
		} `json:"models"`
		Used int64 `json:"used_bytes"`
	}
	if err := json.Unmarshal([]byte(must("list", "-cache", s.cache, "-json")), &listed); err != nil || len(listed.Models) != 1 || !slices.Equal(listed.Models[0].Pins, []string{"pod"}) || listed.Used != 3*mib+2 {
		t.Errorf("%+v, %v", listed, err)
	}
	must("verify", "-config", s.config, s.digest.Hex()[:8])
	flip(t, filepath.Join(path, "w.safetensors"))
	if out, err := command("verify", "-config", s.config); err == nil || !strings.Contains(out, "w.safetensors") {
		t.Errorf("verify does not see a flipped bit: %s, %v", out, err)
	}
	must("ensure", "-config", s.config, "-pin", "pod")
	s.check(t)
	if _, err := command("evict", "-config", s.config, s.digest.Hex()); err == nil || !strings.Contains(err.Error(), "pinned by pod") {
		t.Errorf("evict: %v", err)
	}
	compiledDir := t.TempDir()
	if err := os.WriteFile(filepath.Join(compiledDir, "x"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	must("compiled", "save", "-config", s.config, "-engine", "vllm 0.32.0", "-dir", compiledDir)
	into := filepath.Join(t.TempDir(), "root")
	must("compiled", "restore", "-config", s.config, "-engine", "vllm 0.32.0", "-dir", into)
	must("compiled", "restore", "-config", s.config, "-engine", "vllm 0.33.0", "-dir", into)
	if got, err := os.ReadFile(filepath.Join(into, "x")); err != nil || string(got) != "x" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := command("unpin", "-config", s.config, "-pin", "other", s.digest.Hex()); err == nil {
		t.Error("a pin that is not there is removed")
	}
	must("unpin", "-cache", s.cache, s.digest.Hex()[:6])
	must("evict", "-cache", s.cache)
	must("evict", "-cache", s.cache, string(s.digest))
	if _, err := os.Stat(path); err == nil {
		t.Error("the model is still there")
	}
}

func flip(t *testing.T, file string) {
	t.Helper()
	info, err := os.Stat(file)
	if err == nil {
		err = os.Chmod(file, 0o644)
	}
	text, err2 := os.ReadFile(file)
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	text[len(text)/3] ^= 4
	if err := errors.Join(os.WriteFile(file, text, 0o644), os.Chtimes(file, info.ModTime(), info.ModTime())); err != nil {
		t.Fatal(err)
	}
}

func TestServeStopsWithItsContext(t *testing.T) {
	s := newSite(t, map[string][]byte{"w": random(6, mib)})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := run(ctx, []string{"serve", "-config", s.config, "-listen", "127.0.0.1:0"}, io.Discard, io.Discard); err != nil {
		t.Error(err)
	}
}

func TestBadCommandLinesAreRefused(t *testing.T) {
	s := newSite(t, map[string][]byte{"w": random(7, 10)})
	absent := filepath.Join(t.TempDir(), "absent")
	taken := filepath.Join(t.TempDir(), "taken")
	if err := os.WriteFile(taken, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{},
		{"nothing"},
		{"ensure"},
		{"ensure", "-config", absent},
		{"ensure", "-config", s.config, "extra"},
		{"ensure", "-config", s.config, "-pin", "../x"},
		{"ensure", "-config", s.config, "-link", taken},
		{"serve"},
		{"serve", "-config", s.config, "-pin", ""},
		{"serve", "-config", s.config, "-check", "0s"},
		{"serve", "-config", s.config, "-listen", "nowhere:-1"},
		{"list"},
		{"list", "-cache", absent},
		{"list", "-cache", taken},
		{"list", "-cache", s.cache, "-config", s.config},
		{"verify", "-cache", absent},
		{"evict", "-cache", absent, "x"},
		{"unpin", "-cache", absent},
		{"unpin", "-cache", s.cache, "abcdef"},
		{"manifest"},
		{"manifest", "models/llm"},
		{"manifest", absent},
		{"compiled", "-config", s.config},
		{"compiled", "drop", "-config", s.config, "-engine", "e", "-dir", absent},
		{"compiled", "save", "-config", s.config},
	} {
		if err := run(t.Context(), args, io.Discard, io.Discard); err == nil {
			t.Errorf("%q: accepted", args)
		}
	}
	if _, err := os.Stat(absent); err == nil {
		t.Error("a cache was made where one was to be looked at")
	}
	for _, args := range [][]string{{"-h"}, {"help"}, {"ensure", "-h"}, {"serve", "-h"}, {"list", "-h"}, {"verify", "-h"}, {"evict", "-h"}, {"unpin", "-h"}, {"manifest", "-h"}, {"compiled", "-h"}} {
		var help bytes.Buffer
		if err := run(t.Context(), args, io.Discard, &help); !errors.Is(err, flag.ErrHelp) || !strings.Contains(help.String(), "usage: modelcache") {
			t.Errorf("%q: %v", args, err)
		}
	}
}

// TestALinkIsReplacedWhateverAnotherProcessLeft has what an ensure leaves that ends
// between making a link and giving it its name, as one with this process's number did.
func TestALinkIsReplacedWhateverAnotherProcessLeft(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "model")
	if err := os.Symlink("left", filepath.Join(dir, fmt.Sprintf(".model.%d", os.Getpid()))); err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{"/one", "/two"} {
		if err := replaceLink(target, link); err != nil {
			t.Fatal(err)
		}
		if got, err := os.Readlink(link); err != nil || got != target {
			t.Errorf("%s, %v", got, err)
		}
	}
	var many errgroup.Group
	for range 20 {
		many.Go(func() error { return replaceLink("/three", link) })
	}
	if err := many.Wait(); err != nil {
		t.Error(err)
	}
	if err := replaceLink("/one", filepath.Join(dir, "missing", "model")); err == nil || !strings.Contains(err.Error(), "-link") {
		t.Error(err)
	}
}
