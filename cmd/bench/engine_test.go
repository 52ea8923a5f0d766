package main

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/internal/lab"
)

// TestEveryTextNamesEveryEngine: a preset that is added has to be found by who
// reads -h and by who mistypes one.
func TestEveryTextNamesEveryEngine(t *testing.T) {
	for command, args := range map[string][]string{
		"simulate": {"simulate", "-engine", "9b"},
		"replay":   {"replay", "-engine", "9b", "-endpoint", "http://127.0.0.1:1"},
	} {
		err := run(args, &bytes.Buffer{})
		if err == nil || !strings.Contains(err.Error(), `"9b"`) || !strings.Contains(err.Error(), "-engine") {
			t.Fatalf("%v: %v", args, err)
		}
		help := helpOf(t, command, "engine")
		for name := range lab.Engines() {
			if !strings.Contains(err.Error(), name) {
				t.Errorf("%v: %v, which does not name %s", args, err, name)
			}
			if !strings.Contains(help, name) {
				t.Errorf("bench %s -h does not name %s: %s", command, name, help)
			}
		}
	}
}

// helpOf returns what a subcommand's -h says of a flag.
func helpOf(t *testing.T, command, name string) string {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	stderr := os.Stderr
	os.Stderr = file
	err = run([]string{command, "-h"}, &bytes.Buffer{})
	os.Stderr = stderr
	_ = file.Close()
	text, readErr := os.ReadFile(file.Name())
	if !errors.Is(err, flag.ErrHelp) || readErr != nil {
		t.Fatal(err, readErr)
	}
	_, rest, _ := strings.Cut(string(text), "\n  -"+name+" ")
	help, _, _ := strings.Cut(rest, "\n  -")
	return help
}
