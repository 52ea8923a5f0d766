package modelcache

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/warmpath/warmpath/internal/modelcache/fetch"
	"github.com/warmpath/warmpath/internal/modelcache/manifest"
	"github.com/warmpath/warmpath/internal/modelcache/source"
	"github.com/warmpath/warmpath/internal/modelcache/store"
)

// Config is a configuration file: one model, and the cache that it goes to.
type Config struct {
	Model  ModelConfig   `yaml:"model"`
	Cache  CacheConfig   `yaml:"cache"`
	Source source.Config `yaml:"source"`
	Fetch  fetch.Config  `yaml:"fetch"`
}

// ModelConfig names a model and says what it must be.
type ModelConfig struct {
	// Repository is where the model's revisions are; source.New has the forms.
	Repository string `yaml:"repository"`
	// Revision is a path element below the repository. It may be empty.
	Revision string `yaml:"revision"`
	// ExpectedDigest is the digest of the model's manifest: the one value that is
	// trusted.
	ExpectedDigest string `yaml:"expectedDigest"`
	// Manifest is a manifest's file on this node, for sources that neither have one
	// nor can be listed.
	Manifest string `yaml:"manifest"`
}

// CacheConfig is where models are kept and how much of the disk they get.
type CacheConfig struct {
	// NodeLocalPath is an absolute path. The directory belongs to the cache alone.
	NodeLocalPath string `yaml:"nodeLocalPath"`
	// MaxSizeGiB is the most that the cache takes, downloads under way included.
	MaxSizeGiB float64 `yaml:"maxSizeGiB"`
	// EvictionPolicy is lru, the only one there is.
	EvictionPolicy string `yaml:"evictionPolicy"`
	// HighWatermark is the part of MaxSizeGiB above which a pull evicts, LowWatermark
	// the part that it evicts down to.
	HighWatermark float64 `yaml:"highWatermark"`
	LowWatermark  float64 `yaml:"lowWatermark"`
}

// maxConfigBytes is far above any configuration file.
const maxConfigBytes = 1 << 20

// DefaultConfig returns what a file need not say.
func DefaultConfig() Config {
	return Config{
		Cache: CacheConfig{EvictionPolicy: "lru", HighWatermark: 0.9, LowWatermark: 0.8},
		Fetch: fetch.DefaultConfig(),
	}
}

// Load reads a configuration file. An unknown key is an error.
func Load(path string) (Config, error) {
	cfg := DefaultConfig()
	f, err := os.Open(path)
	if err != nil {
		return cfg, err
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxConfigBytes+1))
	if err == nil && len(text) > maxConfigBytes {
		err = errors.New("too long for a configuration file")
	}
	if err == nil {
		cfg, err = ParseConfig(text)
	}
	if err != nil {
		return cfg, fmt.Errorf("%s: %w", path, err)
	}
	return cfg, nil
}

// ParseConfig reads a configuration file's text.
func ParseConfig(text []byte) (Config, error) {
	cfg := DefaultConfig()
	err := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict()).Decode(&cfg)
	if err != nil && !errors.Is(err, io.EOF) {
		return cfg, errors.New(strings.TrimSpace(yaml.FormatError(err, false, true)))
	}
	return cfg, cfg.check()
}

func (c *Config) check() error {
	k := c.Cache
	switch {
	case k.NodeLocalPath == "" || k.NodeLocalPath[0] != '/':
		return fmt.Errorf("cache.nodeLocalPath is %q, must be an absolute path", k.NodeLocalPath)
	case !(k.MaxSizeGiB > 0) || k.MaxSizeGiB > math.MaxInt32:
		return fmt.Errorf("cache.maxSizeGiB is %v, must be above 0", k.MaxSizeGiB)
	case k.EvictionPolicy != "lru":
		return fmt.Errorf("cache.evictionPolicy is %q, must be lru", k.EvictionPolicy)
	case !(0 < k.LowWatermark && k.LowWatermark <= k.HighWatermark && k.HighWatermark <= 1):
		return fmt.Errorf("cache.lowWatermark is %v and cache.highWatermark %v, must be 0 < low <= high <= 1", k.LowWatermark, k.HighWatermark)
	case c.Fetch.Connections < 1 || c.Fetch.Connections > 64:
		return fmt.Errorf("fetch.connections is %d, must be 1 to 64", c.Fetch.Connections)
	case c.Fetch.RangeMiB < 1 || c.Fetch.RangeMiB > 1024:
		return fmt.Errorf("fetch.rangeMiB is %d, must be 1 to 1024", c.Fetch.RangeMiB)
	case c.Fetch.Attempts < 1 || c.Fetch.Attempts > 20:
		return fmt.Errorf("fetch.attempts is %d, must be 1 to 20", c.Fetch.Attempts)
	case c.Fetch.StallTimeout <= 0 || c.Fetch.RetryDelay < 0:
		return fmt.Errorf("fetch.stallTimeout is %v and fetch.retryDelay %v, must be above 0", c.Fetch.StallTimeout, c.Fetch.RetryDelay)
	}
	return nil
}

// Store returns the settings of the cache's directory.
func (c *Config) Store() store.Config {
	return store.Config{
		Path: c.Cache.NodeLocalPath, MaxBytes: int64(c.Cache.MaxSizeGiB * (1 << 30)),
		High: c.Cache.HighWatermark, Low: c.Cache.LowWatermark,
	}
}

// Resolve turns the model's settings into a model that can be pulled. lookup finds
// environment variables.
func (c *Config) Resolve(lookup func(string) (string, bool)) (Model, error) {
	if c.Model.Repository == "" {
		return Model{}, errors.New("model.repository is not set")
	}
	digest, err := manifest.ParseDigest(c.Model.ExpectedDigest)
	if err != nil {
		return Model{}, fmt.Errorf("model.expectedDigest: %w; `modelcache manifest %s` computes it",
			err, strings.TrimSuffix(source.Redacted(c.Model.Repository)+"/"+c.Model.Revision, "/"))
	}
	from, err := source.New(c.Model.Repository, c.Model.Revision, c.Source, lookup)
	if err != nil {
		return Model{}, err
	}
	m := Model{Digest: digest, Name: strings.TrimSpace(source.Redacted(c.Model.Repository) + " " + c.Model.Revision), Source: from}
	if c.Model.Manifest != "" {
		text, err := os.ReadFile(c.Model.Manifest)
		if err != nil {
			return Model{}, fmt.Errorf("model.manifest: %w", err)
		}
		if m.Manifest, err = manifest.Parse(text); err != nil {
			return Model{}, fmt.Errorf("model.manifest %s: %w", c.Model.Manifest, err)
		}
		if got := m.Manifest.Digest(); got != digest {
			return Model{}, fmt.Errorf("model.manifest %s has %s, model.expectedDigest is %s", c.Model.Manifest, got, digest)
		}
	}
	return m, nil
}
