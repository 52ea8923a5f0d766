package modelcache

import (
	"context"
	"crypto/sha256"
	"runtime"

	"golang.org/x/sync/errgroup"

	"github.com/warmpath/warmpath/internal/modelcache/fetch"
	"github.com/warmpath/warmpath/internal/modelcache/manifest"
	"github.com/warmpath/warmpath/internal/modelcache/source"
)

// Digest makes a source's manifest by reading all its files, several at once.
func Digest(ctx context.Context, from source.Source) (*manifest.Manifest, error) {
	return digest(ctx, fetch.New(fetch.DefaultConfig()), from)
}

func digest(ctx context.Context, f *fetch.Fetcher, from source.Source) (*manifest.Manifest, error) {
	objects, err := list(ctx, f, from)
	if err != nil {
		return nil, err
	}
	files := make([]manifest.File, len(objects))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(2 * runtime.GOMAXPROCS(0))
	for i, o := range objects {
		group.Go(func() error {
			h := sha256.New()
			err := f.Stream(ctx, from, o, h)
			files[i] = manifest.File{Path: o.Path, Size: o.Size, Digest: manifest.SumDigest(h.Sum(nil))}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return manifest.New(files)
}
