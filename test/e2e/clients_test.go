//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// testClients lets the official Python clients talk to the gateway: what they can
// decode is what counts as compatible. clients.py has the checks.
func testClients(t *testing.T, s *stage) {
	cmd := exec.Command(clientPython(t), "clients.py", s.clients, model)
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("clients.py: %v\n%s", err, errOut.String())
	}
	checks := 0
	for line := range bytes.Lines(out) {
		var check struct{ Name, Error string }
		if err := json.Unmarshal(line, &check); err != nil {
			t.Fatalf("clients.py said %q: %v", line, err)
		}
		checks++
		t.Run(check.Name, func(t *testing.T) {
			if check.Error != "" {
				t.Error(check.Error)
			}
		})
	}
	if checks == 0 {
		t.Error("clients.py checked nothing")
	}
}

// clientPython returns a Python that has the packages of requirements.txt. They
// are installed once for each user.
func clientPython(t *testing.T) string {
	t.Helper()
	want, err := os.ReadFile("requirements.txt")
	if err != nil {
		t.Fatal(err)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	home := filepath.Join(cache, "warmpath-e2e")
	marker, python := filepath.Join(home, "installed.txt"), filepath.Join(home, "venv", "bin", "python")
	if have, err := os.ReadFile(marker); err == nil && bytes.Equal(have, want) {
		return python
	} else if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	base := os.Getenv("PYTHON")
	if base == "" {
		base = "python3"
	}
	for _, step := range [][]string{
		{base, "-m", "venv", "--clear", filepath.Join(home, "venv")},
		{python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", "requirements.txt"},
	} {
		if out, err := exec.Command(step[0], step[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("the clients cannot be installed (Python 3 with venv and PyPI are needed; PYTHON names another interpreter): %v: %v\n%s", step, err, out)
		}
	}
	if err := os.WriteFile(marker, want, 0o644); err != nil {
		t.Fatal(err)
	}
	return python
}
