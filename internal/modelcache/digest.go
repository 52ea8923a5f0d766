package modelcache

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"runtime"

	"golang.org/x/sync/errgroup"

	"github.com/warmpath/warmpath/internal/modelcache/manifest"
	"github.com/warmpath/warmpath/internal/modelcache/source"
)

// Digest makes a source's manifest by reading all its files, several at once.
// progress, which may be nil, gets the bytes that were read.
func Digest(ctx context.Context, from source.Source, progress func(int64)) (*manifest.Manifest, error) {
	objects, err := List(ctx, from)
	if err != nil {
		return nil, err
	}
	files := make([]manifest.File, len(objects))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(2 * runtime.GOMAXPROCS(0))
	for i, o := range objects {
		group.Go(func() error {
			digest, err := digestObject(ctx, from, o, progress)
			files[i] = manifest.File{Path: o.Path, Size: o.Size, Digest: digest}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return manifest.New(files)
}

func digestObject(ctx context.Context, from source.Source, o source.Object, progress func(int64)) (manifest.Digest, error) {
	body, err := from.Open(ctx, o.Path, 0, -1, o.Version)
	if err != nil {
		return "", fmt.Errorf("%s: %w", o.Path, err)
	}
	defer func() { _ = body.Close() }()
	h := sha256.New()
	buffer := make([]byte, 256<<10)
	var size int64
	for {
		n, err := body.Read(buffer)
		_, _ = h.Write(buffer[:n])
		size += int64(n)
		if progress != nil {
			progress(int64(n))
		}
		switch {
		case err == io.EOF && size == o.Size: //nolint:errorlint // io.Reader's contract
			return manifest.SumDigest(h.Sum(nil)), nil
		case err == io.EOF: //nolint:errorlint // io.Reader's contract
			return "", fmt.Errorf("%s: %d bytes were listed and %d came", o.Path, o.Size, size)
		case err != nil:
			return "", fmt.Errorf("%s: %w", o.Path, err)
		case ctx.Err() != nil:
			return "", context.Cause(ctx)
		}
	}
}
