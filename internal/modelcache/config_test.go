package modelcache

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/internal/modelcache/manifest"
)

const document = `model:
  repository: object-storage/models/example-llm
  revision: sha256-7b8d3f2
  expectedDigest: sha256:REPLACE_WITH_REAL_DIGEST
cache:
  nodeLocalPath: /var/lib/model-cache
  maxSizeGiB: 500
  evictionPolicy: lru`

func TestTheDocumentsKeysAreRead(t *testing.T) {
	cfg, err := ParseConfig([]byte(document))
	if err != nil {
		t.Fatal(err)
	}
	if s := cfg.Store(); s.Path != "/var/lib/model-cache" || s.MaxBytes != 500<<30 || s.High != 0.9 || s.Low != 0.8 {
		t.Errorf("%+v", s)
	}
	_, err = cfg.Resolve(os.LookupEnv)
	if err == nil || !strings.Contains(err.Error(), "modelcache manifest object-storage/models/example-llm/sha256-7b8d3f2") {
		t.Errorf("the digest that is to be replaced: %v", err)
	}
	cfg.Model.ExpectedDigest = "sha256:" + strings.Repeat("a", 64)
	m, err := cfg.Resolve(os.LookupEnv)
	if err != nil || m.Name != "object-storage/models/example-llm sha256-7b8d3f2" {
		t.Errorf("%+v, %v", m, err)
	}
}

func TestSettingsThatMeanNothingAreRefusedByTheirName(t *testing.T) {
	for _, c := range [][2]string{
		{"expectedDigest:", "expectedDigets:"},
		{"cache:", "cash:"},
		{"maxSizeGiB: 500", "maxSizeGiB: 0"},
		{"maxSizeGiB: 500", "maxSizeGiB: .nan"},
		{"maxSizeGiB: 500", "maxSizeGiB: -1"},
		{"evictionPolicy: lru", "evictionPolicy: fifo"},
		{"/var/lib/model-cache", "model-cache"},
		{"evictionPolicy: lru", "evictionPolicy: lru\n  highWatermark: 0.5"},
		{"evictionPolicy: lru", "evictionPolicy: lru\nfetch:\n  connections: 0"},
		{"evictionPolicy: lru", "evictionPolicy: lru\nfetch:\n  rangeMiB: 0"},
		{"evictionPolicy: lru", "evictionPolicy: lru\nfetch:\n  attempts: 100"},
		{"evictionPolicy: lru", "evictionPolicy: lru\nfetch:\n  stallTimeout: 0s"},
	} {
		text := strings.Replace(document, c[0], c[1], 1)
		key, _, _ := strings.Cut(strings.TrimSpace(c[1][strings.LastIndex(c[1], "\n")+1:]), ":")
		if strings.HasPrefix(c[1], "model-cache") {
			key = "nodeLocalPath"
		}
		if _, err := ParseConfig([]byte(text)); err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("%q: %v", c[1], err)
		}
	}
	if _, err := ParseConfig(nil); err == nil || !strings.Contains(err.Error(), "cache.nodeLocalPath") {
		t.Errorf("nothing: %v", err)
	}
}

func TestAManifestOfOnesOwnMustHaveTheExpectedDigest(t *testing.T) {
	files := map[string][]byte{"w": []byte("w")}
	m := manifestOf(t, files)
	path := filepath.Join(t.TempDir(), manifest.Name)
	if err := os.WriteFile(path, m.Text(), 0o644); err != nil {
		t.Fatal(err)
	}
	cfg, err := ParseConfig([]byte(document))
	if err != nil {
		t.Fatal(err)
	}
	cfg.Model.Manifest = path
	for digest, good := range map[manifest.Digest]bool{m.Digest(): true, manifest.Digest("sha256:" + strings.Repeat("a", 64)): false} {
		cfg.Model.ExpectedDigest = string(digest)
		if got, err := cfg.Resolve(os.LookupEnv); (err == nil) != good || good && got.Manifest.Digest() != digest {
			t.Errorf("%s: %+v, %v", digest, got, err)
		}
	}
}

func FuzzParseConfig(f *testing.F) {
	f.Add([]byte(document))
	f.Add([]byte("model: {repository: &a x, revision: *a}\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		cfg, err := ParseConfig(text)
		if err != nil {
			return
		}
		if s := cfg.Store(); s.MaxBytes < 0 || !filepath.IsAbs(s.Path) || s.Low > s.High {
			t.Errorf("%+v", s)
		}
	})
}

// TestSettingsAreDocumented compares the keys and their defaults with docs/modelcache.md.
func TestSettingsAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/modelcache.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z]+\\.[A-Za-z]+)` \\| (.*?) \\|").FindAllStringSubmatch(string(page), -1) {
		documented[m[1]] = strings.Trim(strings.TrimSpace(m[2]), "`")
	}
	sections := reflect.ValueOf(DefaultConfig())
	for i := range sections.NumField() {
		section := sections.Field(i)
		for j := range section.NumField() {
			key := sections.Type().Field(i).Tag.Get("yaml") + "." + section.Type().Field(j).Tag.Get("yaml")
			shown, ok := documented[key]
			delete(documented, key)
			if !ok {
				t.Errorf("docs/modelcache.md lacks %s", key)
			} else if v := section.Field(j); !v.IsZero() && shown != fmt.Sprint(v.Interface()) {
				t.Errorf("%s is %v by default, docs/modelcache.md says %s", key, v.Interface(), shown)
			}
		}
	}
	for key := range documented {
		t.Errorf("docs/modelcache.md has %s, which is no key", key)
	}
}

// TestAModelsNameHasNoSecret looks at what is logged, kept on the disk and served.
func TestAModelsNameHasNoSecret(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Model = ModelConfig{Repository: "https://me:hidden@h/{revision}?sig=hidden", Revision: "v1", ExpectedDigest: "sha256:" + strings.Repeat("0", 64)}
	m, err := cfg.Resolve(func(string) (string, bool) { return "", false })
	if err != nil || m.Name != "https://h/{revision} v1" {
		t.Errorf("%q, %v", m.Name, err)
	}
	cfg.Model.ExpectedDigest = "none"
	if _, err := cfg.Resolve(func(string) (string, bool) { return "", false }); err == nil || strings.Contains(err.Error(), "hidden") {
		t.Error(err)
	}
}
