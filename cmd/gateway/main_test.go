package main

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"
)

func TestHashKeyPrintsAnEntryAndNotTheKey(t *testing.T) {
	const key = "sk-0123456789abcdef"
	want := fmt.Sprintf("  - name: team-a\n    sha256: %x\n", sha256.Sum256([]byte(key)))
	for _, in := range []string{key, key + "\n", key + "\r\n"} {
		var out strings.Builder
		if err := hashKey("team-a", strings.NewReader(in), &out); err != nil || out.String() != want {
			t.Errorf("%q: %v %q", in, err, out.String())
		}
	}
	for _, in := range []string{"", "short\n"} {
		var out strings.Builder
		if err := hashKey("team-a", strings.NewReader(in), &out); err == nil || out.Len() > 0 || !strings.Contains(err.Error(), "openssl rand -hex 32") {
			t.Errorf("%q: %v %q", in, err, out.String())
		}
	}
}
