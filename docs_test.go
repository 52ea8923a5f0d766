package warmpath_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestMetricsAreDocumented compares the names in the code with docs/metrics.md.
func TestMetricsAreDocumented(t *testing.T) {
	code, docs := map[string]bool{}, map[string]bool{}
	name := regexp.MustCompile(`"(warmpath_[a-z0-9_]+)"`)
	eachFile(t, func(dir, file string, text []byte) {
		if strings.HasPrefix(dir, "internal/") && !strings.HasSuffix(file, "_test.go") {
			for _, m := range name.FindAllSubmatch(text, -1) {
				code[string(m[1])] = true
			}
		}
	})
	page, err := os.ReadFile("docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `(warmpath_[a-z0-9_]+)`").FindAllSubmatch(page, -1) {
		docs[string(m[1])] = true
	}
	for n := range code {
		if !docs[n] {
			t.Errorf("%s is not in docs/metrics.md", n)
		}
	}
	for n := range docs {
		if !code[n] {
			t.Errorf("docs/metrics.md has %s, which is nowhere in the code", n)
		}
	}
}
