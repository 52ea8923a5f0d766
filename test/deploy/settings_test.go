package deploy

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/warmpath/warmpath/internal/config"
)

// loadSettings loads a file of the gateway's settings. Its sources are looked at by
// [sources]; here an address stands for each.
func loadSettings(t *testing.T, text string) (*config.Config, error) {
	t.Helper()
	text = regexp.MustCompile(`(?m)^( *- )(kubernetes|dns|dns\+srv|file):\S+`).ReplaceAllString(text, "${1}http://10.0.0.1:8000")
	lines := regexp.MustCompile(`(?m)^ *- http://10\.0\.0\.1:8000\n`)
	seen := false
	text = lines.ReplaceAllStringFunc(text, func(line string) string {
		if seen {
			return ""
		}
		seen = true
		return line
	})
	path := filepath.Join(t.TempDir(), "warmpath.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return config.Load([]string{"-config", path}, func(string) (string, bool) { return "", false }, os.Stderr)
}
