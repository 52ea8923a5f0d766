package warmpath_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/internal/auth"
	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/modelcache"
)

// TestExamplesLoad loads every file of examples as the command that it is for does.
func TestExamplesLoad(t *testing.T) {
	files, err := filepath.Glob("examples/*.yaml")
	if err != nil || len(files) < 6 {
		t.Fatalf("%q, %v", files, err)
	}
	index, err := os.ReadFile("examples/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		name := filepath.Base(path)
		if !strings.Contains(string(index), "("+name+")") {
			t.Errorf("examples/README.md does not name %s", name)
		}
		switch name {
		case "keys.yaml":
			_, err = auth.Read(auth.Config{KeysFile: path, SaltSecret: "sixteen characters"}, nil)
		case "model.yaml":
			_, err = modelcache.Load(path)
		default:
			_, err = config.Load([]string{"-config", path}, func(string) (string, bool) { return "", false }, os.Stderr)
		}
		if err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}
