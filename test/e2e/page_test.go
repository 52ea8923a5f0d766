//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// pictures is where the pictures go.
const pictures = "../../build"

// browse has a headless browser open a page: it returns the page's text and leaves a
// picture of it.
func browse(t *testing.T, url, name string, width, height int) string {
	t.Helper()
	path := installed(t, "chromium")
	if err := os.MkdirAll(pictures, 0o755); err != nil {
		t.Fatal(err)
	}
	file, err := filepath.Abs(filepath.Join(pictures, fmt.Sprintf("%s-%d.png", name, width)))
	if err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) string {
		args = append([]string{
			"--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--user-data-dir=" + t.TempDir(), "--timeout=5000",
			fmt.Sprintf("--window-size=%d,%d", width, height),
		}, args...)
		out, err := exec.CommandContext(t.Context(), path, append(args, url)...).Output()
		if err != nil {
			t.Fatalf("the browser: %v", err)
		}
		return string(out)
	}
	run("--screenshot=" + file)
	if info, err := os.Stat(file); err != nil || info.Size() < 5000 {
		t.Errorf("there is no picture %s: %v", file, err)
	}
	dom := regexp.MustCompile(`(?s)<(script|style).*?</(script|style)>`).ReplaceAllString(run("--dump-dom"), "")
	return strings.Join(strings.Fields(regexp.MustCompile(`<[^>]*>`).ReplaceAllString(dom, " ")), " ")
}

// TestAdminPageInABrowser opens the pages in a real browser, wide and narrow.
func TestAdminPageInABrowser(t *testing.T) {
	installed(t, "chromium")
	o := observe(t, nil)
	o.load(t, 12*time.Second)
	for _, width := range []int{1280, 400} {
		fleet := browse(t, o.AdminAddr()+"/", "admin", width, 1400)
		for _, want := range []string{"Fleet at a glance", "3 of 3 replicas ready", "Hit rate", "Why the other prompt tokens were computed: new", "TTFT P95 per replica, last ten minutes", "Last decisions", "completed", "mock"} {
			if !strings.Contains(fleet, want) {
				t.Errorf("%d pixels: the page does not say %q: %s", width, want, fleet)
			}
		}
		for _, url := range o.replicas {
			if !strings.Contains(fleet, strings.TrimPrefix(url, "http://")) {
				t.Errorf("%s is not on the page", url)
			}
		}
		if !regexp.MustCompile(`\d+ % \d+ ms \d+ ms`).MatchString(fleet) {
			t.Errorf("no replica has a hit rate and quantiles: %s", fleet)
		}
		if d := browse(t, o.AdminAddr()+"/decisions", "decisions", width, 1400); !strings.Contains(d, "Their candidates") || !strings.Contains(d, "(chosen)") {
			t.Errorf("the decisions say %s", d)
		}
		if e := browse(t, o.AdminAddr()+"/explain", "explain", width, 600); !strings.Contains(e, "Where would it go?") {
			t.Errorf("explain says %s", e)
		}
	}
}
