package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"

	"github.com/warmpath/warmpath/internal/modelcache/manifest"
)

// Publish makes a model visible under its final name, all at once. Every file must be
// a blob; the error is ErrAbsent if one is not. A model that is there already gets
// the files that it lacks, one by one.
func (s *Store) Publish(ctx context.Context, m *manifest.Manifest) error {
	model := m.Digest()
	return s.locked(ctx, func() error {
		for _, f := range m.Files {
			if err := s.looksRight(blobFile(f.Digest), f.Size); err != nil {
				return fmt.Errorf("%w: %w", ErrAbsent, err)
			}
		}
		if err := s.syncDir(blobs); err != nil {
			return err
		}
		if err := s.root.MkdirAll(stateDir(model), 0o755); err != nil {
			return err
		}
		if err := s.writeFile(stateDir(model)+"/manifest", m.Text()); err != nil {
			return err
		}
		if err := s.link(m); err != nil {
			return err
		}
		if err := s.root.Remove(stateDir(model) + "/plan"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := s.touch(model); err != nil {
			return err
		}
		return s.sweep(nil)
	})
}

// HasBlob tells that a file is here, as far as its size and time tell.
func (s *Store) HasBlob(file manifest.Digest, size int64) bool {
	return s.looksRight(blobFile(file), size) == nil
}

// link builds the model's tree beside its place and moves it there.
func (s *Store) link(m *manifest.Manifest) error {
	model := m.Digest()
	final := modelDir(model)
	if info, err := s.root.Lstat(final); err == nil && info.IsDir() {
		return s.relink(m)
	} else if err == nil {
		if err := s.root.Remove(final); err != nil {
			return err
		}
	}
	tree := tmp + "/" + randomName()
	for _, f := range m.Files {
		name := tree + "/" + f.Path
		if err := s.root.MkdirAll(path.Dir(name), 0o755); err != nil {
			return err
		}
		if err := s.root.Link(blobFile(f.Digest), name); err != nil {
			return err
		}
	}
	if err := s.syncTree(tree); err != nil {
		return err
	}
	if err := s.root.Rename(tree, final); err != nil {
		return err
	}
	return s.syncDir(models)
}

// relink replaces what is wrong in a published tree; each file changes at once, and
// a process that has the old one open keeps it.
func (s *Store) relink(m *manifest.Manifest) error {
	final := modelDir(m.Digest())
	expected := make(map[string]bool, len(m.Files))
	for _, f := range m.Files {
		expected[f.Path] = true
	}
	extra, err := s.strangers(m.Digest(), expected)
	if err != nil {
		return err
	}
	for _, name := range extra {
		if err := s.root.Remove(final + "/" + name); err != nil {
			return err
		}
	}
	for _, f := range m.Files {
		name := final + "/" + f.Path
		if s.looksRight(name, f.Size) == nil {
			continue
		}
		if err := s.root.MkdirAll(path.Dir(name), 0o755); err != nil {
			return err
		}
		if info, err := s.root.Lstat(name); err == nil && info.IsDir() {
			if err := s.root.RemoveAll(name); err != nil {
				return err
			}
		}
		link := tmp + "/" + randomName()
		if err := s.root.Link(blobFile(f.Digest), link); err != nil {
			return err
		}
		if err := s.root.Rename(link, name); err != nil {
			return err
		}
	}
	return s.syncTree(final)
}

func (s *Store) syncTree(dir string) error {
	return fs.WalkDir(s.root.FS(), dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		return s.syncDir(path)
	})
}
