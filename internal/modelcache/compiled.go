package modelcache

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/warmpath/warmpath/internal/modelcache/manifest"
	"github.com/warmpath/warmpath/internal/modelcache/source"
	"github.com/warmpath/warmpath/internal/modelcache/store"
)

// CompileKey is what an engine's compile cache (vLLM's VLLM_CACHE_ROOT) depends on.
type CompileKey struct {
	Model manifest.Digest
	// Engine is the version, with whatever else distinguishes builds and hardware; Flags
	// those that change what is compiled. Both are compared as they are.
	Engine, Flags string
}

// name is the key's ref in the store.
func (k CompileKey) name() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%s", k.Model, k.Engine, k.Flags))
	return "compile-" + hex.EncodeToString(sum[:])
}

// SaveCompiled keeps a directory under a key, as a model of its own: verified, shared
// where files are equal, evicted by last use.
func (c *Cache) SaveCompiled(ctx context.Context, key CompileKey, dir string) (manifest.Digest, error) {
	from, err := source.New(dir, "", source.Config{}, os.LookupEnv)
	if err != nil {
		return "", err
	}
	contents, err := digest(ctx, c.fetch, from)
	if err != nil {
		return "", err
	}
	m := Model{
		Digest: contents.Digest(), Manifest: contents, Source: from,
		Name: strings.TrimSpace(fmt.Sprintf("compiled for %s by %s %s", key.Model, key.Engine, key.Flags)),
	}
	if _, err := c.Ensure(ctx, m, "", nil); err != nil {
		return "", err
	}
	return m.Digest, c.store.SetRef(ctx, key.name(), m.Digest)
}

// RestoreCompiled copies what a key has into a directory, which engines write to: it
// must not be the cache's own. Files that are there are left. The error is
// store.ErrAbsent if there is nothing.
func (c *Cache) RestoreCompiled(ctx context.Context, key CompileKey, dir string) error {
	digest, err := c.store.Ref(key.name())
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("nothing was saved for this model, engine and flags: %w", store.ErrAbsent)
	}
	if err != nil {
		return err
	}
	lease, err := c.store.Lease(ctx, digest, "restore", store.MaxLease)
	if err != nil {
		return err
	}
	defer func() { _ = c.store.Release(context.WithoutCancel(ctx), lease.ID) }()
	contents, err := c.store.Manifest(digest)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	into, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = into.Close() }()
	for _, f := range contents.Files {
		if err := restore(into, c.store.ModelPath(digest), f); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// restore copies one file and proves it on the way.
func restore(into *os.Root, from string, file manifest.File) error {
	if _, err := into.Lstat(file.Path); err == nil {
		return nil
	}
	if err := into.MkdirAll(path.Dir(file.Path), 0o755); err != nil {
		return err
	}
	src, err := os.OpenInRoot(from, file.Path)
	if err != nil {
		return err
	}
	defer func() { _ = src.Close() }()
	temporary := file.Path + ".modelcache-restore"
	dst, err := into.OpenFile(temporary, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	h := sha256.New()
	_, err = io.Copy(io.MultiWriter(dst, h), src)
	if err == nil && manifest.SumDigest(h.Sum(nil)) != file.Digest {
		err = fmt.Errorf("%s: %w", file.Path, ErrDigest)
	}
	if err = errors.Join(err, dst.Close()); err != nil {
		_ = into.Remove(temporary)
		return err
	}
	return into.Rename(temporary, file.Path)
}
