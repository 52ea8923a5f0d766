package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/warmpath/warmpath/internal/modelcache"
	"github.com/warmpath/warmpath/internal/modelcache/manifest"
	"github.com/warmpath/warmpath/internal/modelcache/store"
)

// compiled saves or restores an engine's compile cache.
func compiled(ctx context.Context, c *command) error {
	file := c.flags.String("config", "", "YAML `file` with the model and the cache; required")
	engine := c.flags.String("engine", "", "engine's `version` and what else distinguishes builds and hardware, as \"vllm 0.32.0 cuda H100\"; required")
	flags := c.flags.String("flags", "", "engine's `flags` that change what is compiled")
	dir := c.flags.String("dir", "", "the engine's VLLM_CACHE_ROOT, a `directory` outside the cache; required")
	words, err := c.parse(`save|restore -config model.yaml -engine VERSION [-flags FLAGS] -dir DIR

Keeps vLLM's compile cache for one model, engine version and set of flags: save after an
engine has started, restore before another one does. restore exits 0 when there is
nothing to restore: the engine compiles then.`, 1, 1)
	if err != nil {
		return err
	}
	if *engine == "" || *dir == "" {
		return errors.New("-engine and -dir must be set")
	}
	cfg, err := load(*file)
	if err != nil {
		return err
	}
	digest, err := manifest.ParseDigest(cfg.Model.ExpectedDigest)
	if err != nil {
		return fmt.Errorf("model.expectedDigest: %w", err)
	}
	path, err := filepath.Abs(*dir)
	if err != nil {
		return err
	}
	s, err := store.Open(cfg.Store())
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	cache := modelcache.New(s, cfg.Fetch, c.log)
	key := modelcache.CompileKey{Model: digest, Engine: *engine, Flags: *flags}
	switch words[0] {
	case "save":
		saved, err := cache.SaveCompiled(ctx, key, path)
		if err != nil {
			return err
		}
		c.log.Info("saved", "digest", saved)
		return nil
	case "restore":
		err := cache.RestoreCompiled(ctx, key, path)
		if errors.Is(err, store.ErrAbsent) {
			c.log.Info("nothing to restore", "err", err)
			return nil
		}
		return err
	}
	return fmt.Errorf("compiled %s: must be save or restore", words[0])
}
