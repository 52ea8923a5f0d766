package deploy

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/warmpath/warmpath/internal/config"
)

// loadSettings loads a file of the gateway's settings.
func loadSettings(t *testing.T, text string) (*config.Config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "warmpath.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return config.Load([]string{"-config", path}, func(string) (string, bool) { return "", false }, os.Stderr)
}
