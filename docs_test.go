package warmpath_test

import (
	"cmp"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
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

// TestLinksLeadSomewhere follows every relative link of every page, to its heading.
func TestLinksLeadSomewhere(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	pages, links := 0, 0
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && (path != "." && strings.HasPrefix(d.Name(), ".") || slices.Contains([]string{"bin", "build", "dist", "node_modules"}, d.Name())) {
			return cmp.Or(err, filepath.SkipDir)
		}
		if d.IsDir() || filepath.Ext(path) != ".md" {
			return nil
		}
		pages++
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, ":") {
				continue
			}
			links++
			file := path
			if target != "" {
				file = filepath.Join(filepath.Dir(path), target)
			}
			info, err := os.Stat(file)
			if err != nil {
				t.Errorf("%s links to %s: %v", path, m[1], err)
			} else if anchor != "" && !info.IsDir() && !slices.Contains(anchors(t, file), anchor) {
				t.Errorf("%s links to %s, and %s has no such heading", path, m[1], file)
			}
		}
		return nil
	})
	if err != nil || pages < 10 || links < 30 {
		t.Errorf("%d links of %d pages, %v", links, pages, err)
	}
}

// anchors returns the names of a page's headings, as links have them.
func anchors(t *testing.T, path string) (names []string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllSubmatch(text, -1) {
		name := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(string(m[1])), "")
		names = append(names, strings.ReplaceAll(name, " ", "-"))
	}
	return names
}

// TestKindsOfFaultsHaveTests looks for every test that docs/operations.md and
// docs/bench.md name.
func TestKindsOfFaultsHaveTests(t *testing.T) {
	tests := map[string]bool{}
	name := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)[A-Za-z0-9]+)\(`)
	eachFile(t, func(_, file string, text []byte) {
		if strings.HasSuffix(file, "_test.go") {
			for _, m := range name.FindAllSubmatch(text, -1) {
				tests[string(m[1])] = true
			}
		}
	})
	for path, least := range map[string]int{"docs/operations.md": 40, "docs/bench.md": 10} {
		page, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		named := regexp.MustCompile("`((?:Test|Fuzz)[A-Za-z0-9]+)`").FindAllSubmatch(page, -1)
		if len(named) < least {
			t.Errorf("%s names %d tests", path, len(named))
		}
		for _, m := range named {
			if !tests[string(m[1])] {
				t.Errorf("%s names %s, which is not there", path, m[1])
			}
		}
	}
}

// TestDashboardAndRulesKnowTheMetrics looks in docs/metrics.md for every metric that
// the dashboard and the rules ask for.
func TestDashboardAndRulesKnowTheMetrics(t *testing.T) {
	page, err := os.ReadFile("docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"deploy/grafana/warmpath.json", "deploy/prometheus/rules.yml"} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		asked := regexp.MustCompile(`\b(warmpath_[a-z0-9_]+?)(_bucket|_sum|_count)?\b`).FindAllSubmatch(text, -1)
		if len(asked) < 10 {
			t.Errorf("%s asks for %d metrics", path, len(asked))
		}
		for _, m := range asked {
			if !strings.Contains(string(page), "| `"+string(m[1])+"`") {
				t.Errorf("%s asks for %s, which is not in docs/metrics.md", path, m[1])
			}
		}
	}
}

// TestAlertsSayWhatToDo compares the alerts with the table of docs/operations.md.
func TestAlertsSayWhatToDo(t *testing.T) {
	names := func(path, pattern string) (found []string) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(pattern).FindAllSubmatch(text, -1) {
			found = append(found, string(m[1]))
		}
		return found
	}
	alerts := names("deploy/prometheus/rules.yml", `alert: (Warmpath[A-Za-z]+)`)
	rows := names("docs/operations.md", "(?m)^\\| `(Warmpath[A-Za-z]+)` \\|")
	if len(alerts) < 10 || !slices.Equal(alerts, rows) {
		t.Errorf("alerts %q, documented %q", alerts, rows)
	}
}
