// Package store keeps verified models on a node's disk.
//
// Everything it knows is in the files themselves, and read again whenever it
// matters; there is no index that could disagree with them:
//
//	blobs/<hex>                    a verified file, named by its SHA-256, read-only
//	models/sha256-<hex>/           a published model: hard links to blobs
//	state/sha256-<hex>/manifest    its files; the name is the digest of this text
//	                  /plan        what a pull that has not ended needs: name and bytes a line
//	                  /source      where it came from, for people
//	                  /used        touched at each use: the LRU order
//	                  /pins/<name>, /leases/<id>
//	partial/<name>/data, journal   a file on its way, its space already taken from the disk
//	refs/<name>                    the digest of a model that is asked for by another name
//	locks/<name>                   flock: one pull of a model or a file on this node
//	lock                           flock: one process at a time changes what is published or reserved
//	tmp/                           trees that are being made or removed, only under lock
//	modelcache.dir                 says that the directory is a cache
//
// A blob's name says what its content was when it was published. Its modification
// time is set to one constant then, so that a look at size and time tells whether
// anything wrote to it since; what fails the look is hashed before it is used.
package store

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/warmpath/warmpath/internal/modelcache/manifest"
)

const (
	blobs    = "blobs"
	models   = "models"
	state    = "state"
	partials = "partial"
	refs     = "refs"
	locks    = "locks"
	tmp      = "tmp"
	lockFile = "lock"
	marker   = "modelcache.dir"

	modelPrefix = "sha256-"
)

// stamp is the modification time of every blob that nothing wrote to. A whole
// second, because some file systems keep no more.
var stamp = time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)

// Config is where and how much to keep.
type Config struct {
	// Path is the cache's directory. It belongs to the cache alone and is made if it
	// is not there.
	Path string
	// Existing tells that it must be a cache already: nothing is made.
	Existing bool
	// MaxBytes is the most that models, partial downloads included, may take.
	MaxBytes int64
	// High is the part of MaxBytes above which models are evicted before a pull, Low
	// the part that they are evicted down to.
	High, Low float64
}

// Store is a cache's directory. Several processes may have it open.
type Store struct {
	cfg  Config
	root *os.Root
	// shared tells that flock works here, so that a partial download may be handed on
	// from one process to the next.
	shared bool
}

// Open makes the directory if necessary.
func Open(cfg Config) (*Store, error) {
	if !filepath.IsAbs(cfg.Path) {
		return nil, fmt.Errorf("cache.nodeLocalPath is %q, must be an absolute path", cfg.Path)
	}
	if !cfg.Existing {
		if err := os.MkdirAll(cfg.Path, 0o755); err != nil {
			return nil, fmt.Errorf("cache.nodeLocalPath: %w", err)
		}
	}
	root, err := os.OpenRoot(cfg.Path)
	if err != nil {
		return nil, fmt.Errorf("cache.nodeLocalPath: %w", err)
	}
	s := &Store{cfg: cfg, root: root}
	if err := s.prepare(); err != nil {
		_ = root.Close()
		return nil, fmt.Errorf("cache.nodeLocalPath %s: %w", cfg.Path, err)
	}
	return s, nil
}

// ownDirs are what a cache's directory has.
func ownDirs() []string { return []string{blobs, models, state, partials, refs, locks, tmp} }

// claim refuses a directory with anybody else's files: a cache removes from blobs and
// tmp what it does not know, and other programs have directories of these names.
func (s *Store) claim() error {
	marked := func() bool { _, err := s.root.Lstat(marker); return err == nil }
	if marked() {
		return nil
	}
	names, err := s.names(".")
	if err != nil {
		return err
	}
	names = slices.DeleteFunc(names, func(name string) bool { return name == "lost+found" })
	foreign := slices.ContainsFunc(ownDirs(), func(d string) bool { return !slices.Contains(names, d) }) // else a cache from before the marker
	switch {
	case marked(): // another process was faster; it marks before it makes anything
		return nil
	case s.cfg.Existing && foreign:
		return errors.New("is not a model cache; name the directory that an ensure has filled")
	case len(names) > 0 && foreign:
		return fmt.Errorf("has %q in it and is no model cache; name a directory that is empty or not there: it must be the cache's alone", slices.Min(names))
	}
	f, err := s.root.OpenFile(marker, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}

func (s *Store) prepare() error {
	if err := s.claim(); err != nil {
		return err
	}
	for _, d := range ownDirs() {
		info, err := s.root.Lstat(d)
		if errors.Is(err, fs.ErrNotExist) {
			if err := s.root.Mkdir(d, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		if !info.IsDir() {
			return fmt.Errorf("%s is not a directory; a cache's own directories must not be links", d)
		}
	}
	shared, err := s.locksWork()
	s.shared = shared
	return err
}

// Close releases the directory. Pulls must have ended.
func (s *Store) Close() error { return s.root.Close() }

// Locks tells that file locks work on this file system. Without them the cache is
// right but neither shares nor resumes downloads.
func (s *Store) Locks() bool { return s.shared }

// ModelPath is where a model is when it is published.
func (s *Store) ModelPath(model manifest.Digest) string {
	return filepath.Join(s.cfg.Path, modelDir(model))
}

func modelDir(model manifest.Digest) string { return models + "/" + modelPrefix + model.Hex() }
func stateDir(model manifest.Digest) string { return state + "/" + modelPrefix + model.Hex() }

// modelOf is the digest of a directory in models or state, "" if it is no model's.
func modelOf(name string) manifest.Digest {
	if len(name) <= len(modelPrefix) {
		return ""
	}
	d, err := manifest.ParseDigest("sha256:" + name[len(modelPrefix):])
	if err != nil || name[:len(modelPrefix)] != modelPrefix {
		return ""
	}
	return d
}

func blobFile(file manifest.Digest) string { return blobs + "/" + file.Hex() }

func randomName() string {
	var b [8]byte
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// names lists a directory, empty if it is not there.
func (s *Store) names(dir string) ([]string, error) {
	f, err := s.root.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return f.Readdirnames(-1)
}

// writeFile makes a small file appear whole or not at all, also after a crash of the
// machine.
func (s *Store) writeFile(name string, data []byte) error {
	if err := s.replaceFile(name, data, (*os.File).Sync); err != nil {
		return err
	}
	return s.syncDir(filepath.Dir(name))
}

// writeHint is writeFile for what may be lost with the machine's power, at the price
// of work that is done again.
func (s *Store) writeHint(name string, data []byte) error {
	return s.replaceFile(name, data, func(*os.File) error { return nil })
}

func (s *Store) replaceFile(name string, data []byte, sync func(*os.File) error) error {
	temporary := name + "." + randomName()
	f, err := s.root.OpenFile(temporary, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = sync(f)
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = s.root.Rename(temporary, name)
	}
	if err != nil {
		_ = s.root.Remove(temporary)
	}
	return err
}

// readSmall reads a file that must not be long.
func (s *Store) readSmall(name string, limit int64) ([]byte, error) {
	f, err := s.root.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("%s is longer than %d bytes", name, limit)
	}
	return data, err
}

func (s *Store) syncDir(dir string) error {
	f, err := s.root.Open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return f.Sync()
}

// locked runs f while no other process changes what is published or reserved. f
// must not wait for anything but the disk.
func (s *Store) locked(ctx context.Context, f func() error) error {
	unlock, err := s.lock(ctx, lockFile)
	if err != nil {
		return err
	}
	defer unlock()
	return f()
}
