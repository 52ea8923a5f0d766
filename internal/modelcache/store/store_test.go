//go:build linux

package store

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/warmpath/warmpath/internal/modelcache/manifest"
)

func newStore(t testing.TB, maxBytes int64) *Store {
	t.Helper()
	return openStore(t, Config{Path: t.TempDir(), MaxBytes: maxBytes, High: 1, Low: 1})
}

func openStore(t testing.TB, cfg Config) *Store {
	t.Helper()
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// files are a model's contents by path.
type files map[string]string

func (f files) manifest(t *testing.T) *manifest.Manifest {
	t.Helper()
	var list []manifest.File
	for path, text := range f {
		sum := sha256.Sum256([]byte(text))
		list = append(list, manifest.File{Path: path, Size: int64(len(text)), Digest: manifest.SumDigest(sum[:])})
	}
	m, err := manifest.New(list)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func (s *Store) plan(m *manifest.Manifest) *Plan {
	plan := &Plan{Model: m.Digest(), Source: "test"}
	for _, f := range m.Files {
		plan.Parts = append(plan.Parts, Part{Name: s.PartName(f.Digest.Hex()), Size: f.Size})
	}
	return plan
}

// pull does what a download does, without a source.
func (s *Store) pull(ctx context.Context, m *manifest.Manifest, contents files) error {
	unlock, err := s.LockModel(ctx, m.Digest())
	if err != nil {
		return err
	}
	defer unlock()
	plan := s.plan(m)
	if _, err := s.Reserve(ctx, plan); err != nil {
		return err
	}
	for i, f := range m.Files {
		if err := s.pullFile(ctx, plan.Parts[i], f, contents[f.Path]); err != nil {
			return err
		}
	}
	return s.Publish(ctx, m)
}

func (s *Store) pullFile(ctx context.Context, part Part, f manifest.File, text string) error {
	unlock, err := s.LockFile(ctx, part.Name)
	if err != nil {
		return err
	}
	defer unlock()
	if s.HasBlob(f.Digest, f.Size) {
		return nil
	}
	p, err := s.OpenPartial(part)
	if err != nil {
		return err
	}
	for c := range p.Chunks() {
		if err := p.Write(c, []byte(text)[c*ChunkBytes:min((c+1)*ChunkBytes, len(text))]); err != nil {
			return err
		}
	}
	return p.Promote(ctx, f.Digest)
}

func mustPull(t *testing.T, s *Store, contents files) manifest.Digest {
	t.Helper()
	m := contents.manifest(t)
	if err := s.pull(t.Context(), m, contents); err != nil {
		t.Fatal(err)
	}
	if err := s.Use(t.Context(), m.Digest(), ""); err != nil {
		t.Fatal(err)
	}
	return m.Digest()
}

func sized(name string, bytes int) files {
	return files{"weights": name + strings.Repeat(".", bytes-len(name))}
}

// age makes a model the least recently used one.
func (s *Store) age(t *testing.T, model manifest.Digest, by time.Duration) {
	t.Helper()
	then := time.Now().Add(-by)
	if err := s.root.Chtimes(stateDir(model)+"/used", then, then); err != nil {
		t.Fatal(err)
	}
}

func has(s *Store, model manifest.Digest) bool { return s.whole(model) == nil }

// onDisk is every byte below the cache's directory, without state.
func onDisk(t *testing.T, s *Store) int64 {
	t.Helper()
	seen := map[uint64]bool{}
	var sum int64
	err := filepath.WalkDir(s.cfg.Path, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasPrefix(path, filepath.Join(s.cfg.Path, state)) {
			return err
		}
		info, err := d.Info()
		if id := inodeOf(info).number; err == nil && !seen[id] {
			seen[id] = true
			sum += info.Size()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

func TestLeastRecentlyUsedModelsGoFirst(t *testing.T) {
	s := newStore(t, 3000)
	a, b, c := mustPull(t, s, sized("a", 1000)), mustPull(t, s, sized("b", 1000)), mustPull(t, s, sized("c", 1000))
	s.age(t, b, time.Hour)
	s.age(t, a, time.Minute)
	d := mustPull(t, s, sized("d", 1500))
	if has(s, a) || has(s, b) || !has(s, c) || !has(s, d) {
		t.Errorf("a %v, b %v, c %v, d %v; a and b were to go", has(s, a), has(s, b), has(s, c), has(s, d))
	}
	if got := onDisk(t, s); got != 2500 {
		t.Errorf("%d bytes on the disk", got)
	}
}

func TestAPullEvictsFromTheHighWatermarkToTheLowOne(t *testing.T) {
	s := openStore(t, Config{Path: t.TempDir(), MaxBytes: 1000, High: 0.9, Low: 0.5})
	var models []manifest.Digest
	for _, name := range []string{"a", "b", "c", "d"} {
		models = append(models, mustPull(t, s, sized(name, 200)))
	}
	for i, m := range models {
		s.age(t, m, time.Duration(10-i)*time.Minute)
	}
	mustPull(t, s, sized("e", 100)) // 900: at the high watermark
	for _, m := range models {
		if !has(s, m) {
			t.Error("evicted below the high watermark")
		}
	}
	mustPull(t, s, sized("f", 50)) // 950: down to 500
	if got := onDisk(t, s); got != 350 {
		t.Errorf("%d bytes remain; 200 each had to go until 450 were left for 50 more", got)
	}
}

func TestTrimStopsAtTheLowWatermark(t *testing.T) {
	path := t.TempDir()
	s := openStore(t, Config{Path: path, MaxBytes: 1000, High: 1, Low: 1})
	for _, name := range []string{"a", "b", "c", "d"} {
		mustPull(t, s, sized(name, 200))
	}
	smaller := openStore(t, Config{Path: path, MaxBytes: 700, High: 0.9, Low: 0.6})
	evicted, err := smaller.Trim(t.Context())
	if err != nil || len(evicted) != 2 || onDisk(t, s) != 400 {
		t.Errorf("%v, %v, %d bytes remain", evicted, err, onDisk(t, s))
	}
}

func TestPinnedLeasedAndOpenModelsStay(t *testing.T) {
	for name, keep := range map[string]func(*testing.T, *Store, manifest.Digest){
		"pinned": func(t *testing.T, s *Store, m manifest.Digest) {
			if err := s.Use(t.Context(), m, "pod"); err != nil {
				t.Fatal(err)
			}
		},
		"leased": func(t *testing.T, s *Store, m manifest.Digest) {
			if _, err := s.Lease(t.Context(), m, "pod", time.Hour); err != nil {
				t.Fatal(err)
			}
		},
		"leased by a file that is damaged": func(t *testing.T, s *Store, m manifest.Digest) {
			l, err := s.Lease(t.Context(), m, "pod", time.Hour)
			if err == nil {
				err = os.WriteFile(filepath.Join(s.cfg.Path, stateDir(m), "leases", l.ID), []byte("{"), 0o644)
			}
			if err != nil {
				t.Fatal(err)
			}
		},
		"open": func(t *testing.T, s *Store, m manifest.Digest) {
			f, err := os.Open(s.ModelPath(m) + "/weights")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = f.Close() })
		},
		"mapped": func(t *testing.T, s *Store, m manifest.Digest) {
			f, err := os.Open(s.ModelPath(m) + "/weights")
			if err != nil {
				t.Fatal(err)
			}
			memory, err := unix.Mmap(int(f.Fd()), 0, 100, unix.PROT_READ, unix.MAP_SHARED)
			if err != nil {
				t.Fatal(err)
			}
			_ = f.Close()
			t.Cleanup(func() { _ = unix.Munmap(memory) })
		},
		"being pulled": func(t *testing.T, s *Store, m manifest.Digest) {
			unlock, err := s.LockModel(t.Context(), m)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(unlock)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, 1000)
			a := mustPull(t, s, sized("a", 600))
			keep(t, s, a)
			b := sized("b", 600).manifest(t)
			err := s.pull(t.Context(), b, sized("b", 600))
			if !errors.Is(err, ErrNoRoom) || !strings.Contains(err.Error(), a.Hex()) {
				t.Errorf("another pull: %v", err)
			}
			if err := s.Evict(t.Context(), a); err == nil {
				t.Error("evicted")
			}
			if _, err := s.Trim(t.Context()); err != nil {
				t.Error(err)
			}
			if !has(s, a) {
				t.Error("the model is gone")
			}
		})
	}
}

func TestRefusedPullsChangeNothing(t *testing.T) {
	s := newStore(t, 1000)
	old, pinned := mustPull(t, s, sized("old", 300)), mustPull(t, s, sized("pinned", 500))
	if err := s.Use(t.Context(), pinned, "pod"); err != nil {
		t.Fatal(err)
	}
	before := snapshot(t, s)
	for name, c := range map[string]struct {
		bytes int
		want  string
	}{
		"larger than the cache":         {1001, "cache.maxSizeGiB"},
		"larger than what may be freed": {501, "can be evicted"},
	} {
		contents := sized("new", c.bytes)
		err := s.pull(t.Context(), contents.manifest(t), contents)
		if !errors.Is(err, ErrNoRoom) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if after := snapshot(t, s); after != before {
			t.Errorf("%s: before\n%safter\n%s", name, before, after)
		}
	}
	if !has(s, old) {
		t.Error("a model was evicted in vain")
	}
}

func snapshot(t *testing.T, s *Store) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(s.cfg.Path, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			info, err := d.Info()
			if err != nil {
				return err
			}
			fmt.Fprintln(&b, path, info.Size())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestAFullDiskIsSeenBeforeAnythingIsWritten(t *testing.T) {
	s := newStore(t, 1<<60)
	old := mustPull(t, s, sized("old", 300))
	before := snapshot(t, s)
	plan := &Plan{Model: sized("new", 10).manifest(t).Digest(), Parts: []Part{{Name: "x", Size: 1 << 50}}}
	_, err := s.Reserve(t.Context(), plan)
	if !errors.Is(err, ErrNoRoom) || !strings.Contains(err.Error(), "the disk") {
		t.Error(err)
	}
	if after := snapshot(t, s); after != before || !has(s, old) {
		t.Errorf("before\n%safter\n%s", before, after)
	}
}

// TestADiskThatFillsUpMeanwhile needs the right to mount; elsewhere the part of it
// that does not is in TestAFullDiskIsSeenBeforeAnythingIsWritten.
func TestADiskThatFillsUpMeanwhile(t *testing.T) {
	path := t.TempDir()
	if err := unix.Mount("tmpfs", path, "tmpfs", 0, "size=8m"); err != nil {
		t.Skip("needs the right to mount: ", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
	s := openStore(t, Config{Path: path, MaxBytes: 1 << 30, High: 1, Low: 1})
	kept := mustPull(t, s, sized("kept", 1<<20))
	contents := sized("new", 4<<20)
	m := contents.manifest(t)
	plan := s.plan(m)
	if _, err := s.Reserve(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	free, err := s.free()
	if err != nil {
		t.Fatal(err)
	}
	// Foreign files take what is left but for our journal and state.
	if err := os.WriteFile(path+"/foreign", make([]byte, free-2*stateBytes), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := s.pull(t.Context(), m, contents); err != nil {
		t.Errorf("the space was reserved, and: %v", err)
	}
	for _, model := range []manifest.Digest{kept, m.Digest()} {
		if err := s.Use(t.Context(), model, "pod"); err != nil {
			t.Fatal(err)
		}
	}
	more := sized("more", 2<<20)
	before := snapshot(t, s)
	if err := s.pull(t.Context(), more.manifest(t), more); !errors.Is(err, ErrNoRoom) {
		t.Errorf("a disk full of foreign files: %v", err)
	}
	if after := snapshot(t, s); after != before || !has(s, kept) || !has(s, m.Digest()) {
		t.Errorf("before\n%safter\n%s", before, after)
	}
}

func TestRevisionsShareFiles(t *testing.T) {
	s := newStore(t, 2500)
	first := files{"a": strings.Repeat("a", 900), "b": strings.Repeat("b", 900), "config": strings.Repeat("1", 200)}
	second := files{"a": first["a"], "b": first["b"], "config": strings.Repeat("2", 200)}
	one := mustPull(t, s, first)
	two := mustPull(t, s, second)
	if got := onDisk(t, s); got != 2200 {
		t.Errorf("both take %d bytes", got)
	}
	if err := s.Evict(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	if got := onDisk(t, s); got != 2000 || !has(s, two) {
		t.Errorf("the second takes %d bytes, whole %v", got, has(s, two))
	}
	// A revision that replaces another in a cache that is full keeps what both share.
	s.age(t, two, time.Hour)
	third := files{"a": first["a"], "b": first["b"], "config": strings.Repeat("3", 600)}
	inode := inodeAt(t, s, two, "a")
	three := mustPull(t, s, third)
	if has(s, two) || inodeAt(t, s, three, "a") != inode {
		t.Error("the shared file was fetched again")
	}
}

func inodeAt(t *testing.T, s *Store, model manifest.Digest, path string) uint64 {
	t.Helper()
	info, err := os.Stat(s.ModelPath(model) + "/" + path)
	if err != nil {
		t.Fatal(err)
	}
	return inodeOf(info).number
}

func TestWhatWasWrittenToIsNotUsed(t *testing.T) {
	for name, damage := range map[string]func(string) error{
		"emptied":            func(f string) error { return errors.Join(os.Chmod(f, 0o644), os.Truncate(f, 0)) },
		"halved":             func(f string) error { return errors.Join(os.Chmod(f, 0o644), os.Truncate(f, 500)) },
		"longer":             func(f string) error { return errors.Join(os.Chmod(f, 0o644), os.Truncate(f, 2000)) },
		"a flipped bit":      func(f string) error { return patch(f, 10) },
		"removed":            os.Remove,
		"a link":             func(f string) error { return errors.Join(os.Remove(f), os.Symlink("/etc/hostname", f)) },
		"a link to the like": func(f string) error { return errors.Join(os.Rename(f, f+".x"), os.Symlink(f+".x", f)) },
		"a directory":        func(f string) error { return errors.Join(os.Remove(f), os.Mkdir(f, 0o755)) },
		"a file too many": func(f string) error {
			return os.WriteFile(filepath.Join(filepath.Dir(f), "extra.safetensors"), nil, 0o644)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, 10_000)
			contents := files{"w": strings.Repeat("w", 1000), "sub/x": "x", "empty": ""}
			m := mustPull(t, s, contents)
			if err := damage(s.ModelPath(m) + "/w"); err != nil {
				t.Fatal(err)
			}
			if err := s.Use(t.Context(), m, "pod"); !errors.Is(err, ErrAbsent) {
				t.Fatalf("used: %v", err)
			}
			if e, err := s.entry(m); err != nil || len(e.Pins) > 0 {
				t.Errorf("pinned all the same: %v, %v", e, err)
			}
			if _, err := s.Rescue(t.Context(), m); err != nil {
				t.Fatal(err)
			}
			if err := s.pull(t.Context(), contents.manifest(t), contents); err != nil {
				t.Fatal(err)
			}
			report, err := s.Verify(t.Context(), []manifest.Digest{m}, nil)
			if err != nil || len(report.Faults) > 0 || !has(s, m) {
				t.Errorf("after another pull: %+v, %v, whole %v", report, err, has(s, m))
			}
		})
	}
}

func patch(file string, at int64) error {
	if err := os.Chmod(file, 0o644); err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	var b [1]byte
	_, err = f.ReadAt(b[:], at)
	b[0] ^= 1
	_, err2 := f.WriteAt(b[:], at)
	return errors.Join(err, err2, f.Close())
}

func TestVerifyFindsABitThatFlippedWithoutATrace(t *testing.T) {
	s := newStore(t, 10_000)
	contents := files{"w": strings.Repeat("w", 1000), "x": "x"}
	m := mustPull(t, s, contents)
	file := s.ModelPath(m) + "/w"
	if err := errors.Join(patch(file, 999), os.Chtimes(file, stamp, stamp)); err != nil {
		t.Fatal(err)
	}
	if !has(s, m) {
		t.Fatal("a look finds it: the test tests nothing")
	}
	report, err := s.Verify(t.Context(), []manifest.Digest{m}, nil)
	if err != nil || len(report.Faults) != 1 || report.Faults[0].Path != "w" || report.Bytes != 1001 {
		t.Fatalf("%+v, %v", report, err)
	}
	if err := s.Use(t.Context(), m, ""); !errors.Is(err, ErrAbsent) {
		t.Errorf("used after that: %v", err)
	}
}

func TestWhatIsRightAfterAllIsNotFetchedAgain(t *testing.T) {
	for name, disturb := range map[string]func(*Store, manifest.Digest, string) error{
		"touched": func(s *Store, m manifest.Digest, _ string) error {
			return os.Chtimes(s.ModelPath(m)+"/w", time.Now(), time.Now())
		},
		"the blob is lost": func(s *Store, _ manifest.Digest, blob string) error { return os.Remove(blob) },
		"the blob is a link": func(s *Store, _ manifest.Digest, blob string) error {
			return errors.Join(os.Remove(blob), os.Symlink("/etc/passwd", blob))
		},
		"the manifest is lost": func(s *Store, m manifest.Digest, _ string) error { return os.RemoveAll(s.cfg.Path + "/" + stateDir(m)) },
		"another manifest": func(s *Store, m manifest.Digest, _ string) error {
			return os.WriteFile(s.cfg.Path+"/"+stateDir(m)+"/manifest", []byte("x"), 0o644)
		},
		"the tree is lost": func(s *Store, m manifest.Digest, _ string) error { return os.RemoveAll(s.ModelPath(m)) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, 10_000)
			contents := files{"w": strings.Repeat("w", 1000), "sub/x": "x"}
			m := mustPull(t, s, contents)
			want := contents.manifest(t)
			inode := inodeAt(t, s, m, "w")
			if err := disturb(s, m, filepath.Join(s.cfg.Path, blobFile(want.Files[1].Digest))); err != nil {
				t.Fatal(err)
			}
			known, err := s.Rescue(t.Context(), m)
			if err != nil || known.Digest() != m {
				t.Fatalf("%v, %v", known, err)
			}
			if need := s.missing(s.plan(known)); need != 0 {
				t.Errorf("%d bytes are to be fetched", need)
			}
			if err := s.Publish(t.Context(), known); err != nil || !has(s, m) || inodeAt(t, s, m, "w") != inode {
				t.Errorf("%v, whole %v", err, has(s, m))
			}
		})
	}
}

func TestWhatCannotBeRemovedIsCountedAndTriedAgain(t *testing.T) {
	s := newStore(t, 10_000)
	contents := sized("a", 1000)
	m := mustPull(t, s, contents)
	blob, err := os.OpenFile(filepath.Join(s.cfg.Path, blobFile(contents.manifest(t).Files[0].Digest)), os.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	const immutable = 0x10 // FS_IMMUTABLE_FL of linux/fs.h
	if err := unix.IoctlSetPointerInt(int(blob.Fd()), unix.FS_IOC_SETFLAGS, immutable); err != nil {
		t.Skip("needs a file system with attributes and the right to set them: ", err)
	}
	defer func() { _ = unix.IoctlSetPointerInt(int(blob.Fd()), unix.FS_IOC_SETFLAGS, 0); _ = blob.Close() }()
	entries, err := s.Entries()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.locked(t.Context(), func() error { return s.remove(entries[0], nil) }); err != nil {
		t.Error(err)
	}
	used, err := s.Used()
	if err != nil || used != onDisk(t, s) || used != 1000 {
		t.Errorf("used %d, on the disk %d, %v", used, onDisk(t, s), err)
	}
	if err := unix.IoctlSetPointerInt(int(blob.Fd()), unix.FS_IOC_SETFLAGS, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Trim(t.Context()); err != nil {
		t.Error(err)
	}
	if got := onDisk(t, s); got != 0 || has(s, m) {
		t.Errorf("%d bytes remain", got)
	}
}

func TestLeavingsOfACrashAreRemoved(t *testing.T) {
	s := newStore(t, 10_000)
	m := mustPull(t, s, sized("a", 1000))
	for _, name := range []string{tmp + "/tree/w", blobs + "/" + strings.Repeat("0", 64), partials + "/nobodys/data"} {
		path := filepath.Join(s.cfg.Path, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, make([]byte, 500), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	mustPull(t, s, sized("b", 1000))
	if got := onDisk(t, s); got != 2000 || !has(s, m) {
		t.Errorf("%d bytes on the disk", got)
	}
}

func TestADownloadGoesOnWhereItWas(t *testing.T) {
	s := newStore(t, 1<<30)
	text := strings.Repeat("0123456789abcdef", 3*ChunkBytes/16) + "tail"
	contents := files{"w": text}
	m := contents.manifest(t)
	plan := s.plan(m)
	if _, err := s.Reserve(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(s.cfg.Path, partials, plan.Parts[0].Name)
	chunk := func(i int) []byte { return []byte(text)[i*ChunkBytes : min((i+1)*ChunkBytes, len(text))] }
	p, err := s.OpenPartial(plan.Parts[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range []int{3, 0, 1} {
		if err := p.Write(i, chunk(i)); err != nil {
			t.Fatal(err)
		}
	}
	p.Close()
	reopen := func(want ...bool) {
		t.Helper()
		p, err := s.OpenPartial(plan.Parts[0])
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		if !slices.Equal(p.have, want) {
			t.Errorf("%v is there, want %v", p.have, want)
		}
	}
	reopen(true, true, false, true)
	journal, err := os.ReadFile(dir + "/journal")
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, data []byte) {
		t.Helper()
		if err := os.WriteFile(dir+"/"+name, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("journal", journal[:len(journal)-1]) // the last record, of chunk 1, was cut
	reopen(true, false, false, true)
	write("journal", journal)
	if err := patch(dir+"/data", 5); err != nil { // bytes that never reached the disk
		t.Fatal(err)
	}
	reopen(false, true, false, true)
	write("journal", append(slices.Clone(journal), "\xff\xff\xff\xff garbage at the end"...))
	reopen(false, true, false, true)
	write("journal", nil)
	reopen(false, false, false, false)
	write("journal", []byte("mcj0nonsense"))
	reopen(false, false, false, false)
}

func TestNobodyWritesToAPublishedFile(t *testing.T) {
	s := newStore(t, 1<<30)
	contents := sized("w", 2*ChunkBytes)
	m := contents.manifest(t)
	plan := s.plan(m)
	if _, err := s.Reserve(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	p, err := s.OpenPartial(plan.Parts[0])
	if err != nil {
		t.Fatal(err)
	}
	text := []byte(contents["weights"])
	for i := range 2 {
		if err := p.Write(i, text[i*ChunkBytes:(i+1)*ChunkBytes]); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Offer(t.Context(), m.Files[0].Digest); err != nil {
		t.Fatal(err)
	}
	if err := p.Reset(); err != nil { // a pull that thinks that it has to begin again
		t.Fatal(err)
	}
	p.Close()
	again, err := s.OpenPartial(plan.Parts[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Write(0, make([]byte, ChunkBytes)); err != nil {
		t.Fatal(err)
	}
	again.Close()
	if right, err := s.hashIs(t.Context(), blobFile(m.Files[0].Digest), m.Files[0].Digest); err != nil || !right {
		t.Errorf("the blob has changed: %v", err)
	}
}

// TestWithoutLocksEveryPullHasAFileOfItsOwn stands for a file system on which flock
// always succeeds.
func TestWithoutLocksEveryPullHasAFileOfItsOwn(t *testing.T) {
	s := newStore(t, 1<<30)
	s.shared = false
	contents := sized("w", 2*ChunkBytes)
	m := contents.manifest(t)
	one, two := s.plan(m), s.plan(m)
	for _, plan := range []*Plan{one, two} {
		if _, err := s.Reserve(t.Context(), plan); err != nil {
			t.Fatal(err)
		}
	}
	first, err := s.OpenPartial(one.Parts[0])
	if err != nil {
		t.Fatal(err)
	}
	second, err := s.OpenPartial(two.Parts[0])
	if err != nil {
		t.Fatal(err)
	}
	text := []byte(contents["weights"])
	for i := range 2 {
		if err := first.Write(i, text[i*ChunkBytes:(i+1)*ChunkBytes]); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(first.Promote(t.Context(), m.Files[0].Digest), s.Publish(t.Context(), m)); err != nil {
		t.Fatal(err)
	}
	if err := second.Write(0, make([]byte, ChunkBytes)); err != nil { // still on its way
		t.Fatal(err)
	}
	if report, err := s.Verify(t.Context(), []manifest.Digest{m.Digest()}, nil); err != nil || len(report.Faults) > 0 {
		t.Errorf("the published file has changed: %+v, %v", report, err)
	}
	second.Close()
	if got := onDisk(t, s); got != 2*ChunkBytes {
		t.Errorf("%d bytes remain", got)
	}
}

func TestLocksAreFoundOutAboutAndEndWithTheirHolder(t *testing.T) {
	s := newStore(t, 1000)
	if !s.Locks() {
		t.Skip("no file locks here")
	}
	m := sized("a", 10).manifest(t).Digest()
	unlock, err := s.LockModel(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	other := openStore(t, s.cfg)
	ctx, cancel := context.WithTimeout(t.Context(), 3*lockPoll)
	defer cancel()
	if _, err := other.LockModel(ctx, m); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a second holder: %v", err)
	}
	unlock()
	unlock, err = other.LockModel(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
	if names, err := s.names(locks); err != nil || len(names) != 0 {
		t.Errorf("%v remain, %v", names, err)
	}
}

func TestLeasesOutliveTheProcess(t *testing.T) {
	s := newStore(t, 1000)
	m := mustPull(t, s, sized("a", 100))
	l, err := s.Lease(t.Context(), m, "pod", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Use(t.Context(), m, "pin"); err != nil {
		t.Fatal(err)
	}
	again := openStore(t, s.cfg)
	e, err := again.entry(m)
	if err != nil || len(e.Leases) != 1 || e.Leases[0].Holder != "pod" || !slices.Equal(e.Pins, []string{"pin"}) {
		t.Fatalf("%+v, %v", e, err)
	}
	if renewed, err := again.Renew(t.Context(), l.ID, 2*time.Hour); err != nil || !renewed.Expires.After(l.Expires) {
		t.Errorf("%+v, %v", renewed, err)
	}
	if err := again.Release(t.Context(), l.ID); err != nil {
		t.Error(err)
	}
	if err := again.Release(t.Context(), l.ID); !errors.Is(err, ErrNoLease) {
		t.Errorf("released twice: %v", err)
	}
	if n, err := again.Unpin(t.Context(), m, "other"); err != nil || n != 0 {
		t.Errorf("%d, %v", n, err)
	}
	if n, err := again.Unpin(t.Context(), m, ""); err != nil || n != 1 {
		t.Errorf("%d, %v", n, err)
	}
	if err := again.Evict(t.Context(), m); err != nil {
		t.Error(err)
	}
}

func TestAnExpiredLeaseKeepsNothing(t *testing.T) {
	s := newStore(t, 1000)
	m := mustPull(t, s, sized("a", 100))
	l, err := s.Lease(t.Context(), m, "pod", time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	for l.Expires.After(time.Now()) {
		time.Sleep(time.Until(l.Expires))
	}
	if _, err := s.Renew(t.Context(), l.ID, time.Hour); !errors.Is(err, ErrNoLease) {
		t.Errorf("renewed: %v", err)
	}
	if err := s.Evict(t.Context(), m); err != nil {
		t.Error(err)
	}
	for _, ttl := range []time.Duration{0, -1, MaxLease + 1} {
		if _, err := s.Lease(t.Context(), m, "pod", ttl); err == nil {
			t.Errorf("a lease of %v", ttl)
		}
	}
}

func TestNamesFromOutsideStayInTheirDirectory(t *testing.T) {
	s := newStore(t, 1000)
	m := mustPull(t, s, sized("a", 100))
	before := snapshot(t, s)
	for _, name := range []string{"", ".", "..", "../x", "a/b", "/x", "a\x00", "ä", strings.Repeat("x", 201)} {
		if name != "" && s.Use(t.Context(), m, name) == nil {
			t.Errorf("a pin %q", name)
		}
		if s.SetRef(t.Context(), name, m) == nil {
			t.Errorf("a ref %q", name)
		}
		if _, err := s.Ref(name); err == nil {
			t.Errorf("ref %q", name)
		}
		if err := s.Release(t.Context(), name); !errors.Is(err, ErrNoLease) {
			t.Errorf("a lease %q: %v", name, err)
		}
	}
	if after := snapshot(t, s); after != before {
		t.Errorf("before\n%safter\n%s", before, after)
	}
	plan := parsePlan("../../x 5\n/x 5\na/b 5\n\nok 5\nok -5\nok\n")
	if len(plan) != 1 || plan[0].Name != "ok" {
		t.Errorf("a plan of %+v", plan)
	}
}

func TestARefMadeByHandIsFound(t *testing.T) {
	s := newStore(t, 1000)
	m := mustPull(t, s, sized("a", 100))
	for _, text := range []string{string(m), string(m) + "\n", "  " + string(m) + "\r\n\n"} {
		if err := os.WriteFile(filepath.Join(s.cfg.Path, refs, "name"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Ref("name"); err != nil || got != m {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
}

func TestOpenRefusesWhatItCannotUse(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	linked := t.TempDir()
	if err := os.Symlink(t.TempDir(), filepath.Join(linked, blobs)); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{"relative": "cache", "a file": file, "below a file": file + "/x", "a directory of its own that leads elsewhere": linked, "not writable": "/proc/self/cache"} {
		if s, err := Open(Config{Path: path, MaxBytes: 1}); err == nil {
			_ = s.Close()
			t.Errorf("%s: opened", name)
		} else if !strings.Contains(err.Error(), "cache.nodeLocalPath") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzJournal(f *testing.F) {
	f.Add([]byte(journalMagic + "\x0a\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00xxxxxxxx"))
	f.Add([]byte{})
	s := newStore(f, 1<<20)
	f.Fuzz(func(t *testing.T, journal []byte) {
		part := Part{Name: "x", Size: 10}
		if err := s.takeSpace(part); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(s.cfg.Path, partials, "x", "journal"), journal, 0o644); err != nil {
			t.Fatal(err)
		}
		p, err := s.OpenPartial(part)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		if err := p.Write(0, []byte("0123456789")); err != nil {
			t.Fatal(err)
		}
		again, err := s.OpenPartial(part)
		if err != nil {
			t.Fatal(err)
		}
		defer again.Close()
		if !again.Have(0) {
			t.Error("a chunk that was written is forgotten")
		}
	})
}

func FuzzPlan(f *testing.F) {
	f.Add("a 1\nb 2\n")
	f.Add("../x 1\n")
	f.Fuzz(func(t *testing.T, text string) {
		parts := parsePlan(text)
		if again := parsePlan(string(planText(parts))); !slices.Equal(again, parts) {
			t.Errorf("%+v is read back as %+v", parts, again)
		}
		for _, p := range parts {
			if strings.ContainsAny(p.Name, "/\\") || p.Name == ".." || p.Size < 0 {
				t.Errorf("%+v", p)
			}
		}
	})
}

// unprivileged runs f as a user whom file modes bind, and to whom the directory
// belongs. A thread's own file system identity does for the superuser.
func unprivileged(t *testing.T, dir string, f func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		f()
		return
	}
	const nobody = 65534
	if err := errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chown(dir, nobody, -1)); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends with its goroutine
		if _, err := unix.SetfsuidRetUid(nobody); err != nil {
			t.Error(err)
			return
		}
		f()
	}()
	<-done
}

// TestAProvenDownloadThatWasLeftIsTakenUp ends a pull at each point behind the proof,
// at which the file is read-only already.
func TestAProvenDownloadThatWasLeftIsTakenUp(t *testing.T) {
	for name, leave := range map[string]func(p *Partial, file manifest.Digest) error{
		"sealed": func(p *Partial, _ manifest.Digest) error { return p.seal() },
		"sealed, then begun again": func(p *Partial, _ manifest.Digest) error {
			return errors.Join(p.seal(), p.Reset())
		},
		"sealed, then cut": func(p *Partial, _ manifest.Digest) error {
			return errors.Join(p.data.Truncate(5), p.seal())
		},
		"a blob already": func(p *Partial, file manifest.Digest) error { return p.Offer(context.Background(), file) },
		"a blob already, then begun again": func(p *Partial, file manifest.Digest) error {
			return errors.Join(p.Offer(context.Background(), file), p.Reset())
		},
		"a blob already, then cut": func(p *Partial, file manifest.Digest) error {
			return errors.Join(p.Offer(context.Background(), file), p.data.Truncate(5))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			unprivileged(t, dir, func() {
				if err := leftAndTakenUp(dir, t, leave); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func leftAndTakenUp(dir string, t *testing.T, leave func(*Partial, manifest.Digest) error) error {
	s, err := Open(Config{Path: dir, MaxBytes: 1 << 30, High: 1, Low: 1})
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	contents := sized("w", 2*ChunkBytes)
	m := contents.manifest(t)
	plan := s.plan(m)
	if _, err := s.Reserve(t.Context(), plan); err != nil {
		return err
	}
	p, err := s.OpenPartial(plan.Parts[0])
	if err != nil {
		return err
	}
	text := []byte(contents["weights"])
	for i := range 2 {
		if err := p.Write(i, text[i*ChunkBytes:(i+1)*ChunkBytes]); err != nil {
			return err
		}
	}
	if err := leave(p, m.Files[0].Digest); err != nil {
		return err
	}
	p.Close()
	if err := s.RescueBlob(t.Context(), m.Files[0].Digest, m.Files[0].Size); err != nil {
		return err
	}
	if err := s.pull(t.Context(), m, contents); err != nil {
		return err
	}
	return s.Use(t.Context(), m.Digest(), "")
}

func TestEndedLeasesLeaveNoFiles(t *testing.T) {
	s := newStore(t, 1<<30)
	model := mustPull(t, s, sized("a", 100))
	for range 20 {
		if _, err := s.Lease(t.Context(), model, "pod", time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(2 * time.Millisecond)
	l, err := s.Lease(t.Context(), model, "pod", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if names, err := s.names(stateDir(model) + "/leases"); err != nil || !slices.Equal(names, []string{l.ID}) {
		t.Errorf("%d files, %v", len(names), err)
	}
}

// TestAClockThatWasAheadKeepsNothingForEver leaves a last use and a lease of the year
// after next.
func TestAClockThatWasAheadKeepsNothingForEver(t *testing.T) {
	s := newStore(t, 1000)
	ahead := time.Now().AddDate(2, 0, 0)
	old, young := mustPull(t, s, sized("old", 400)), mustPull(t, s, sized("young", 400))
	if err := s.root.Chtimes(stateDir(old)+"/used", ahead, ahead); err != nil {
		t.Fatal(err)
	}
	l, err := s.Lease(t.Context(), young, "pod", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	l.Expires = ahead
	if err := s.writeLease(young, l); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Trim(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, model := range []manifest.Digest{old, young} {
		e, err := s.entry(model)
		if err != nil {
			t.Fatal(err)
		}
		if e.LastUse.After(time.Now()) {
			t.Errorf("last used %v", e.LastUse)
		}
		if model == young && (len(e.Leases) != 1 || e.Leases[0].Expires.After(time.Now().Add(MaxLease)) || e.Leases[0].Expires.Before(time.Now().Add(MaxLease-time.Minute))) {
			t.Errorf("leases %+v", e.Leases)
		}
	}
}

// TestWhatALostPullReservedIsRemovedWithoutLocks has a pull that ended before it began
// a file.
func TestWhatALostPullReservedIsRemovedWithoutLocks(t *testing.T) {
	s := newStore(t, 1<<30)
	s.shared = false
	m := sized("w", 500).manifest(t)
	plan := s.plan(m)
	if _, err := s.Reserve(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	if err := s.root.RemoveAll(stateDir(m.Digest())); err != nil {
		t.Fatal(err)
	}
	dir := partials + "/" + plan.Parts[0].Name
	for _, c := range []struct {
		age  time.Duration
		kept bool
	}{{time.Hour, true}, {25 * time.Hour, false}} {
		then := time.Now().Add(-c.age)
		if err := errors.Join(s.root.Chtimes(dir, then, then), s.sweep(nil)); err != nil {
			t.Fatal(err)
		}
		if _, err := s.root.Lstat(dir); (err == nil) != c.kept {
			t.Errorf("after %v: %v", c.age, err)
		}
	}
	if used, err := s.used(); err != nil || used != 0 {
		t.Errorf("%d bytes stay, %v", used, err)
	}
}

// TestEvictionFreesWhatADownloadSharesWithABlob has a model whose pull ended between
// its publication and the end of its plan.
func TestEvictionFreesWhatADownloadSharesWithABlob(t *testing.T) {
	s := newStore(t, 1<<30)
	contents := sized("w", 500)
	m := contents.manifest(t)
	part := Part{Name: "download", Size: 500}
	plan := &Plan{Model: m.Digest(), Parts: []Part{part}}
	if _, err := s.Reserve(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	p, err := s.OpenPartial(part)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.Write(0, []byte(contents["weights"])), p.Offer(t.Context(), m.Files[0].Digest)); err != nil {
		t.Fatal(err)
	}
	p.Close()
	text, err := s.readSmall(stateDir(m.Digest())+"/plan", 1000)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Publish(t.Context(), m), s.takeSpace(part), s.root.RemoveAll(partials+"/download"), s.root.Mkdir(partials+"/download", 0o755),
		s.root.Link(blobFile(m.Files[0].Digest), partials+"/download/data"), s.writeHint(stateDir(m.Digest())+"/plan", text)); err != nil {
		t.Fatal(err)
	}
	if err := s.Evict(t.Context(), m.Digest()); err != nil {
		t.Fatal(err)
	}
	if used, err := s.used(); err != nil || used != 0 {
		t.Errorf("%d bytes stay after the eviction, %v", used, err)
	}
}

// TestAModelThatIsEvictedMeanwhileHasNoFaults evicts while the files are hashed.
func TestAModelThatIsEvictedMeanwhileHasNoFaults(t *testing.T) {
	s := newStore(t, 1<<30)
	many := files{}
	for i := range 100 {
		many[fmt.Sprint(i)] = fmt.Sprint("file ", i)
	}
	gone, wrong := mustPull(t, s, many), mustPull(t, s, sized("w", 100))
	if err := os.Remove(s.ModelPath(wrong) + "/weights"); err != nil {
		t.Fatal(err)
	}
	evict := sync.OnceValue(func() error { return os.RemoveAll(s.ModelPath(gone)) })
	report, err := s.Verify(t.Context(), []manifest.Digest{wrong, gone}, func(int64) { _ = evict() })
	if err := errors.Join(err, evict()); err != nil {
		t.Fatal(err)
	}
	if len(report.Faults) != 1 || report.Faults[0].Model != wrong {
		t.Errorf("%+v", report.Faults)
	}
}

// TestADirectoryOfOthersIsNotTouched has directories of the cache's names in which other
// programs keep what is theirs.
func TestADirectoryOfOthersIsNotTouched(t *testing.T) {
	for name, theirs := range map[string][]string{
		"a root":            {"tmp/work", "var/x"},
		"tmp alone":         {"tmp/work"},
		"blobs of another":  {"blobs/sha256-1234", "manifests/x"},
		"a hub's model":     {"blobs/abcd", "refs/main", "snapshots/1/w"},
		"models of a user":  {"models/llm/w"},
		"one file":          {"notes"},
		"blobs, half of it": {"blobs/x", "models/x", "state/x", "tmp/x"},
	} {
		for _, existing := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, existing %v", name, existing), func(t *testing.T) {
				dir := t.TempDir()
				for _, f := range theirs {
					path := filepath.Join(dir, f)
					if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte("theirs"), 0o644)); err != nil {
						t.Fatal(err)
					}
				}
				before, err := os.ReadDir(dir)
				if err != nil {
					t.Fatal(err)
				}
				if s, err := Open(Config{Path: dir, MaxBytes: 1, High: 1, Low: 1, Existing: existing}); err == nil {
					_, _ = s.Trim(t.Context())
					_ = s.Close()
					t.Error("it is taken for a cache")
				} else if !strings.Contains(err.Error(), "model cache") {
					t.Error(err)
				}
				after, err := os.ReadDir(dir)
				if err != nil || len(after) != len(before) {
					t.Errorf("%v, %v", after, err)
				}
				for _, f := range theirs {
					if _, err := os.Stat(filepath.Join(dir, f)); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
}

func TestACachesOwnDirectoryIsKnownAgain(t *testing.T) {
	dir := t.TempDir()
	cfg := Config{Path: dir, MaxBytes: 1 << 30, High: 1, Low: 1}
	existing := cfg
	existing.Existing = true
	if _, err := Open(existing); err == nil {
		t.Error("an empty directory is a cache already")
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) > 0 {
		t.Errorf("looking made %v, %v", names, err)
	}
	if err := os.Mkdir(filepath.Join(dir, "lost+found"), 0o700); err != nil { // a file system of its own
		t.Fatal(err)
	}
	openStore(t, cfg)
	if err := os.WriteFile(filepath.Join(dir, "notes"), nil, 0o644); err != nil { // later, by hand
		t.Fatal(err)
	}
	openStore(t, existing)
	if err := os.Remove(filepath.Join(dir, marker)); err != nil { // made before there was a marker
		t.Fatal(err)
	}
	openStore(t, existing)
	if err := os.RemoveAll(filepath.Join(dir, tmp)); err != nil { // a crash in the first Open, behind the marker
		t.Fatal(err)
	}
	openStore(t, existing)
}
