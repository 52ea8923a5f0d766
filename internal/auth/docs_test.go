package auth

import (
	"os"
	"strings"
	"testing"
)

// TestDocsExampleCanBeRead reads the example of docs/configuration.md.
func TestDocsExampleCanBeRead(t *testing.T) {
	page, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "<!-- keys -->\n```yaml\n")
	example, _, _ := strings.Cut(rest, "```")
	if k := read(t, example, nil); len(k.List()) != 2 || k.List()[0].MaxRequests != 32 {
		t.Errorf("got %+v", k.List())
	}
}
