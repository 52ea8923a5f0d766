package modelcache

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/warmpath/warmpath/internal/modelcache/fetch"
	"github.com/warmpath/warmpath/internal/modelcache/manifest"
	"github.com/warmpath/warmpath/internal/modelcache/source"
	"github.com/warmpath/warmpath/internal/modelcache/store"
)

const (
	// downloads is how often a file, or a model without a manifest, is downloaded before
	// its content counts as wrong at the source.
	downloads = 2
	// filesAtOnce is how many files are pulled at once: each has a goroutine that hashes,
	// and small files must not wait for each other's round trips.
	filesAtOnce = 8
	// maxFiles is more than any model has.
	maxFiles = 100_000
)

// publishedManifest reads the source's manifest and proves it. The error is
// fs.ErrNotExist if there is none.
func (c *Cache) publishedManifest(ctx context.Context, m Model) (*manifest.Manifest, error) {
	for try := 1; ; try++ {
		text, err := c.fetch.ReadAll(ctx, m.Source, manifest.Name, manifest.MaxBytes)
		if err != nil {
			return nil, err
		}
		found, err := manifest.Parse(text)
		switch {
		case err != nil:
			err = fmt.Errorf("%w: %s at the source: %w", ErrDigest, manifest.Name, err)
		case found.Digest() == m.Digest:
			return found, nil
		default:
			err = fmt.Errorf("%w: the manifest at the source has %s, expected is %s", ErrDigest, found.Digest(), m.Digest)
		}
		if try == downloads {
			return nil, err
		}
		c.log.Warn("wrong content", "file", manifest.Name, "source", m.Name, "err", err)
	}
}

// listing is the contents of a source without a manifest. A file's download is named
// by where it is and which version, so that it can be resumed.
func (c *Cache) listing(ctx context.Context, m Model) ([]content, error) {
	objects, err := list(ctx, c.fetch, m.Source)
	if err != nil {
		return nil, err
	}
	contents := make([]content, 0, len(objects))
	for _, o := range objects {
		id := sha256.Sum256(fmt.Appendf(nil, "%s\n%s\n%d\n%s", m.Name, o.Path, o.Size, o.Version))
		contents = append(contents, content{Object: o, part: store.Part{Name: c.store.PartName(hex.EncodeToString(id[:])), Size: o.Size}})
	}
	return contents, nil
}

// list returns a source's files, sorted and with names that are safe and can be those
// of one directory, without the manifest.
func list(ctx context.Context, f *fetch.Fetcher, from source.Source) ([]source.Object, error) {
	objects, err := f.List(ctx, from, maxFiles)
	if errors.Is(err, source.ErrNoListing) {
		return nil, fmt.Errorf("no %s at the source: %w; put the file that `modelcache manifest` makes beside the model's files, or name a local one in model.manifest", manifest.Name, err)
	}
	if err != nil {
		return nil, err
	}
	objects = slices.DeleteFunc(objects, func(o source.Object) bool { return o.Path == manifest.Name })
	if len(objects) == 0 {
		return nil, errors.New("the source has no files there: check model.repository and model.revision")
	}
	slices.SortFunc(objects, func(a, b source.Object) int { return strings.Compare(a.Path, b.Path) })
	paths := make([]string, 0, len(objects))
	for _, o := range objects {
		paths = append(paths, o.Path)
	}
	return objects, manifest.CheckPaths(paths)
}

// pullListed fetches what is missing of a model whose files' digests are known. Each
// file is a blob as soon as it is proven.
func (c *Cache) pullListed(ctx context.Context, m Model, contents []content, progress *Progress) error {
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(filesAtOnce)
	files := make([]manifest.File, 0, len(contents))
	begun := map[manifest.Digest]bool{}
	for _, o := range contents {
		files = append(files, manifest.File{Path: o.Path, Size: o.Size, Digest: o.digest})
		if begun[o.digest] {
			progress.present.Add(o.Size)
			continue
		}
		begun[o.digest] = true
		group.Go(func() error { return c.blob(inner, m, o, progress) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	all, err := manifest.New(files)
	if err != nil {
		return err
	}
	return c.store.Publish(ctx, all)
}

// blob makes one file a blob, unless another pull just did.
func (c *Cache) blob(ctx context.Context, m Model, o content, progress *Progress) error {
	unlock, err := c.store.LockFile(ctx, o.part.Name)
	if err != nil {
		return err
	}
	defer unlock()
	if c.store.HasBlob(o.digest, o.Size) {
		progress.present.Add(o.Size)
		return nil
	}
	for try := 1; ; try++ {
		got, part, err := c.download(ctx, m, o, progress)
		if err != nil {
			return err
		}
		if got == o.digest {
			return part.Promote(ctx, got)
		}
		progress.present.Add(-o.Size)
		c.count(func(n *Counts) { n.BadFiles++ })
		c.log.Warn("wrong content", "file", o.Path, "source", m.Name, "got", got, "expected", o.digest)
		if err := again(part, try); err != nil {
			return err
		}
		if try == downloads {
			return fmt.Errorf("%w: %s was downloaded %d times; it has %s, the manifest says %s", ErrDigest, o.Path, try, got, o.digest)
		}
	}
}

// again empties a download that has wrong content for the next try, which keeps the
// space, or removes it after the last.
func again(part *store.Partial, try int) error {
	if try == downloads {
		return part.Discard()
	}
	defer part.Close()
	return part.Reset()
}

// download completes one file and returns what it is. The caller ends the partial
// file; after an error it is closed and keeps what is good.
func (c *Cache) download(ctx context.Context, m Model, o content, progress *Progress) (manifest.Digest, *store.Partial, error) {
	part, err := c.store.OpenPartial(o.part)
	if err != nil {
		return "", nil, fmt.Errorf("%s: %w", o.Path, err)
	}
	digest, err := c.fetch.Download(ctx, fetch.File{
		Object: o.Object, From: m.Source, To: part, Progress: func(n int64) { progress.present.Add(n) }, Received: func(n int64) { progress.received.Add(n) },
	})
	if errors.Is(err, syscall.ENOSPC) {
		return "", nil, errors.Join(err, part.Discard()) // others need the room
	}
	if err != nil {
		part.Close()
		return "", nil, err
	}
	return digest, part, nil
}

// pullUnlisted fetches a model of which only the digest as a whole is known. Nothing
// of it is a blob before all of it is proven.
func (c *Cache) pullUnlisted(ctx context.Context, m Model, contents []content, progress *Progress) error {
	for try := 1; ; try++ {
		files, parts, err := c.downloadAll(ctx, m, contents, progress)
		if err != nil {
			return err
		}
		all, err := manifest.New(files)
		if err == nil && all.Digest() == m.Digest {
			return c.publishAll(ctx, all, parts)
		}
		c.count(func(n *Counts) { n.BadFiles++ })
		for _, p := range parts {
			err = errors.Join(err, again(p, try))
		}
		if err != nil {
			return err
		}
		progress.present.Store(0)
		c.log.Warn("wrong content", "source", m.Name, "got", all.Digest(), "expected", m.Digest)
		if try == downloads {
			return fmt.Errorf("%w: the source has no %s, and its files, downloaded %d times, have %s, expected is %s", ErrDigest, manifest.Name, try, all.Digest(), m.Digest)
		}
	}
}

func (c *Cache) downloadAll(ctx context.Context, m Model, contents []content, progress *Progress) ([]manifest.File, []*store.Partial, error) {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(filesAtOnce)
	files := make([]manifest.File, len(contents))
	parts := make([]*store.Partial, len(contents))
	for i, o := range contents {
		group.Go(func() error {
			digest, part, err := c.download(ctx, m, o, progress)
			files[i], parts[i] = manifest.File{Path: o.Path, Size: o.Size, Digest: digest}, part
			if err != nil {
				return err
			}
			return part.Rest()
		})
	}
	err := group.Wait()
	if err != nil {
		for _, p := range parts {
			if p != nil {
				p.Close()
			}
		}
	}
	return files, parts, err
}

func (c *Cache) publishAll(ctx context.Context, all *manifest.Manifest, parts []*store.Partial) error {
	for i, p := range parts {
		defer p.Close()
		if err := p.Offer(ctx, all.Files[i].Digest); err != nil {
			return err
		}
	}
	return c.store.Publish(ctx, all)
}
