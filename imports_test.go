// Package warmpath_test holds the project to its own picture: which package may
// import which, and that each says what it is for.
package warmpath_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/warmpath/warmpath/"

// allowed is the picture of docs/architecture.md: what each package may import
// of the project's own. A package that is not named here may not exist.
var allowed = map[string][]string{
	"cmd/gateway":                  {"internal/auth", "internal/config", "internal/gateway", "internal/logwriter"},
	"cmd/mockvllm":                 {"internal/mockvllm"},
	"cmd/bench":                    {"internal/bench", "internal/grade", "internal/lab", "internal/plot", "internal/report"},
	"cmd/modelcache":               {"internal/modelcache", "internal/modelcache/agent", "internal/modelcache/manifest", "internal/modelcache/source", "internal/modelcache/store"},
	"internal/bench":               {"internal/openai", "internal/sse"},
	"internal/lab":                 {"internal/mockvllm", "internal/prefix", "internal/replica", "internal/router"},
	"internal/gateway":             {"internal/admin", "internal/auth", "internal/certs", "internal/config", "internal/metrics", "internal/mockvllm", "internal/proxy", "internal/replica", "internal/router", "internal/share", "internal/socket", "internal/trace"},
	"internal/config":              {"internal/auth", "internal/proxy", "internal/replica", "internal/router", "internal/share"},
	"internal/admin":               {"internal/replica", "internal/router"},
	"internal/proxy":               {"internal/auth", "internal/metrics", "internal/openai", "internal/prefix", "internal/replica", "internal/router", "internal/sse", "internal/trace", "internal/upstream"},
	"internal/router":              {"internal/prefix", "internal/replica"},
	"internal/prefix":              {"internal/jsonscan", "internal/openai"},
	"internal/openai":              {"internal/jsonscan"},
	"internal/jsonscan":            {},
	"internal/discovery":           {},
	"internal/replica":             {"internal/certs", "internal/discovery"},
	"internal/sse":                 {},
	"internal/logwriter":           {},
	"internal/socket":              {},
	"internal/upstream":            {"internal/socket"},
	"internal/trace":               {},
	"internal/metrics":             {},
	"internal/mockvllm":            {},
	"internal/modelcache/agent":    {"internal/modelcache", "internal/modelcache/manifest", "internal/modelcache/store"},
	"internal/modelcache":          {"internal/modelcache/fetch", "internal/modelcache/manifest", "internal/modelcache/source", "internal/modelcache/store"},
	"internal/modelcache/fetch":    {"internal/modelcache/manifest", "internal/modelcache/source", "internal/modelcache/store"},
	"internal/modelcache/store":    {"internal/modelcache/manifest"},
	"internal/modelcache/source":   {},
	"internal/modelcache/manifest": {},
	"internal/plot":                {},
	"internal/auth":                {},
	"internal/certs":               {},
	"internal/share":               {"internal/metrics", "internal/prefix", "internal/replica", "internal/router"},
	"internal/grade":               {},
	"internal/report":              {"internal/bench"},
}

func TestImportsPointOneWay(t *testing.T) {
	seen := map[string]bool{}
	eachFile(t, func(dir, name string, text []byte) {
		if strings.HasSuffix(name, "_test.go") || dir == "." || strings.HasPrefix(dir, "test/") {
			return
		}
		seen[dir] = true
		may, known := allowed[dir]
		if !known {
			t.Errorf("%s is in no picture: add it to docs/architecture.md and to this test", dir)
			return
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range file.Imports {
			path, ours := strings.CutPrefix(strings.Trim(i.Path.Value, `"`), module)
			if ours && !slices.Contains(may, path) {
				t.Errorf("%s/%s imports %s", dir, name, path)
			}
		}
	})
	for dir := range allowed {
		if !seen[dir] {
			t.Errorf("%s is in the picture but not there", dir)
		}
	}
}

func TestEveryPackageSaysWhatItIsFor(t *testing.T) {
	documented := map[string]bool{}
	eachFile(t, func(dir, name string, text []byte) {
		if strings.HasSuffix(name, "_test.go") {
			return
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ParseComments|parser.PackageClauseOnly)
		if err != nil {
			t.Fatal(err)
		}
		documented[dir] = documented[dir] || file.Doc != nil
	})
	for dir, is := range documented {
		if !is {
			t.Errorf("%s has no package comment", dir)
		}
	}
}

func eachFile(t *testing.T, f func(dir, name string, text []byte)) {
	t.Helper()
	root := "."
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != root {
			return filepath.SkipDir
		}
		if strings.HasSuffix(path, ".go") {
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			f(filepath.ToSlash(filepath.Dir(path)), d.Name(), text)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
