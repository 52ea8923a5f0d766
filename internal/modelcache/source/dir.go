package source

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// dir is a directory. Links that lead out of it are refused.
type dir struct{ path string }

func newDir(path string) *dir { return &dir{path: path} }

// List walks the directory.
func (d *dir) List(ctx context.Context, each func(Object) bool) error {
	root, err := os.OpenRoot(d.path)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	return fs.WalkDir(root.FS(), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := root.Stat(path)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if !info.Mode().IsRegular() {
			return fmt.Errorf("%s in %s is not a file, nor a link to one: %w", path, d.path, fs.ErrInvalid)
		}
		if !each(Object{Path: path, Size: info.Size(), Version: dirVersion(info)}) {
			return fs.SkipAll
		}
		return ctx.Err()
	})
}

func dirVersion(info fs.FileInfo) string {
	return fmt.Sprintf("%d-%d", info.Size(), info.ModTime().UnixNano())
}

// Open opens a file of the directory.
func (d *dir) Open(_ context.Context, path string, offset, length int64, version string) (*Body, error) {
	f, err := os.OpenInRoot(d.path, path)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = fmt.Errorf("%s in %s is not a file", path, d.path)
	case version != "" && version != dirVersion(info):
		err = fmt.Errorf("%s: %w", path, ErrChanged)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	if length < 0 {
		length = max(0, info.Size()-offset)
	}
	return &Body{
		ReadCloser: struct {
			io.Reader
			io.Closer
		}{io.NewSectionReader(f, offset, length), f},
		Offset: offset, Size: info.Size(), Version: dirVersion(info),
	}, nil
}
