package store

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/warmpath/warmpath/internal/modelcache/manifest"
)

// Rescue makes the best of what the disk holds of a model before anything is
// fetched: a manifest that is lost is made again from the model's directory, blobs
// that are lost are linked again from there, what was written to is hashed and is
// either right or removed. The caller has the model's lock.
func (s *Store) Rescue(ctx context.Context, model manifest.Digest) (*manifest.Manifest, error) {
	m, err := s.Manifest(model)
	if err != nil {
		if m, err = s.rebuildManifest(ctx, model); err != nil {
			return nil, err
		}
	}
	for _, f := range m.Files {
		if err := s.rescueBlob(ctx, modelDir(model)+"/"+f.Path, f.Digest, f.Size); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// RescueBlob does for one file what Rescue does for those of a model.
func (s *Store) RescueBlob(ctx context.Context, file manifest.Digest, size int64) error {
	return s.rescueBlob(ctx, "", file, size)
}

// rescueBlob leaves under the blob's name either what is right or nothing. twin is
// another name that may have the content, or "".
func (s *Store) rescueBlob(ctx context.Context, twin string, file manifest.Digest, size int64) error {
	blob := blobFile(file)
	if s.looksRight(blob, size) == nil {
		return nil
	}
	if _, err := s.root.Lstat(blob); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err // a disk that does not answer says nothing about the file
	}
	for _, name := range []string{blob, twin} {
		if name == "" || s.size(name) != size {
			continue
		}
		if s.looksRight(name, size) != nil {
			right, err := s.hashIs(ctx, name, file)
			if err != nil {
				return err
			}
			if !right {
				continue
			}
			if err := s.trust(name); err != nil {
				return err
			}
		}
		if name == blob {
			return nil
		}
		if err := s.root.RemoveAll(blob); err != nil {
			return err
		}
		return s.root.Link(name, blob)
	}
	return s.root.RemoveAll(blob)
}

// hashIs tells that a file has a digest. What the disk cannot read any more does not.
func (s *Store) hashIs(ctx context.Context, name string, file manifest.Digest) (bool, error) {
	digest, err := s.hash(ctx, name, make([]byte, hashBuffer))
	if errors.Is(err, unix.EIO) {
		return false, nil
	}
	return digest == file, err
}

// trust sets what looksRight looks at, on content that was just hashed.
func (s *Store) trust(name string) error {
	if err := s.root.Chtimes(name, stamp, stamp); err != nil {
		return err
	}
	f, err := s.root.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return f.Sync()
}

// distrust makes every later look at a file fail, so that it is hashed again and
// replaced before anybody gets it.
func (s *Store) distrust(name string) error {
	now := time.Now()
	return s.root.Chtimes(name, now, now)
}

// rebuildManifest hashes a model's directory. It is a manifest only if its digest is
// the directory's name.
func (s *Store) rebuildManifest(ctx context.Context, model manifest.Digest) (*manifest.Manifest, error) {
	base := modelDir(model)
	var files []manifest.File
	buffer := make([]byte, hashBuffer)
	err := fs.WalkDir(s.root.FS(), base, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		size := s.size(path)
		if size < 0 {
			return fmt.Errorf("%s is not a file", path)
		}
		digest, err := s.hash(ctx, path, buffer)
		files = append(files, manifest.File{Path: strings.TrimPrefix(path, base+"/"), Size: size, Digest: digest})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrAbsent, err)
	}
	m, err := manifest.New(files)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrAbsent, err)
	}
	if m.Digest() != model {
		return nil, fmt.Errorf("%w: its manifest is lost and its directory has another digest", ErrAbsent)
	}
	return m, nil
}

// hashBuffer is read at once; a multiple of the page size that stays in a core's
// second cache.
const hashBuffer = 512 << 10

func (s *Store) hash(ctx context.Context, name string, buffer []byte) (manifest.Digest, error) {
	f, err := s.openRead(name)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	h := sha256.New()
	for {
		n, err := f.Read(buffer)
		_, _ = h.Write(buffer[:n])
		if errors.Is(err, io.EOF) {
			return manifest.SumDigest(h.Sum(nil)), nil
		}
		if err != nil {
			return "", err
		}
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
	}
}

// Fault is a file of a published model that is not what it must be.
type Fault struct {
	Model manifest.Digest
	Path  string
	Why   string
}

// Report is what a verification found.
type Report struct {
	Files  int
	Bytes  int64
	Faults []Fault
}

// Verify hashes every file of the given models, several at once. A file that is wrong
// is marked, so that the next pull of the model replaces it. progress, which may be
// nil, is called with the bytes that were hashed since its last call.
func (s *Store) Verify(ctx context.Context, which []manifest.Digest, progress func(int64)) (Report, error) {
	var (
		mu     sync.Mutex
		report Report
	)
	fault := func(model manifest.Digest, path, why string) {
		mu.Lock()
		defer mu.Unlock()
		report.Faults = append(report.Faults, Fault{Model: model, Path: path, Why: why})
	}
	workers := runtime.GOMAXPROCS(0)
	buffers := make(chan []byte, workers)
	for range workers {
		buffers <- make([]byte, hashBuffer)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(workers)
	hashed := map[inode]manifest.Digest{} // files that models share are hashed once; only this goroutine's
	present := map[manifest.Digest]bool{} // when its turn came: what is evicted meanwhile has no faults
	for _, model := range which {
		present[model] = s.published(model)
		m, err := s.Manifest(model)
		if err != nil {
			fault(model, manifest.Name, err.Error())
			continue
		}
		expected := make(map[string]bool, len(m.Files))
		for _, f := range m.Files {
			expected[f.Path] = true
			name := modelDir(model) + "/" + f.Path
			info, err := s.root.Lstat(name)
			switch {
			case err != nil:
				fault(model, f.Path, err.Error())
				continue
			case !info.Mode().IsRegular():
				fault(model, f.Path, "is not a file")
				continue
			case info.Size() != f.Size:
				fault(model, f.Path, fmt.Sprintf("has %d bytes, not %d", info.Size(), f.Size))
				continue
			case hashed[inodeOf(info)] == f.Digest:
				continue
			}
			hashed[inodeOf(info)] = f.Digest
			group.Go(func() error {
				buffer := <-buffers
				defer func() { buffers <- buffer }()
				digest, err := s.hash(ctx, name, buffer)
				if ctx.Err() != nil {
					return err
				}
				if progress != nil {
					progress(f.Size)
				}
				mu.Lock()
				report.Files++
				report.Bytes += f.Size
				mu.Unlock()
				switch {
				case err != nil && !errors.Is(err, unix.EIO):
					fault(model, f.Path, err.Error())
				case err != nil || digest != f.Digest:
					why := fmt.Sprintf("has %s, must have %s", digest, f.Digest)
					if err != nil {
						why = "the disk cannot read it: " + err.Error()
					}
					if err := s.distrust(name); err != nil {
						why += "; it could not be marked: " + err.Error()
					}
					fault(model, f.Path, why)
				}
				return nil
			})
		}
		extra, err := s.strangers(model, expected)
		if err != nil {
			fault(model, ".", err.Error())
		}
		for _, name := range extra {
			fault(model, name, "is not one of the model's files")
		}
	}
	err := group.Wait()
	report.Faults = slices.DeleteFunc(report.Faults, func(f Fault) bool { return present[f.Model] && !s.published(f.Model) })
	return report, err
}

// published tells that a model's directory is there.
func (s *Store) published(model manifest.Digest) bool {
	info, err := s.root.Lstat(modelDir(model))
	return err == nil && info.IsDir()
}

// Warm reads a model's files so that they are in the page cache when the engine maps
// them.
func (s *Store) Warm(ctx context.Context, model manifest.Digest) error {
	m, err := s.Manifest(model)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for _, f := range m.Files {
		group.Go(func() error {
			file, err := s.openRead(modelDir(model) + "/" + f.Path)
			if err != nil {
				return err
			}
			defer func() { _ = file.Close() }()
			buffer := make([]byte, hashBuffer)
			for ctx.Err() == nil {
				if _, err := file.Read(buffer); errors.Is(err, io.EOF) {
					return nil
				} else if err != nil {
					return err
				}
			}
			return context.Cause(ctx)
		})
	}
	return group.Wait()
}
