package grade

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// TestAgreesWithTheLabelsOfGSM8K needs the folder of gsm8k_test.jsonl.gz and
// gsm8k_labelled_solutions.jsonl.gz (openai/grade-school-math, MIT) in GSM8K.
func TestAgreesWithTheLabelsOfGSM8K(t *testing.T) {
	dir := os.Getenv("GSM8K")
	if dir == "" {
		t.Skip("set GSM8K to the folder of the data")
	}
	problems, solutions := 0, 0
	lines(t, filepath.Join(dir, "gsm8k_test.jsonl.gz"), func(line []byte) {
		var p struct{ Question, Answer string }
		if err := json.Unmarshal(line, &p); err != nil {
			t.Fatal(err)
		}
		problems++
		if outcome, found := Grade(p.Answer, p.Answer, ""); outcome != Right {
			t.Errorf("%q: %s, %q", p.Answer, outcome, found)
		}
	})
	lines(t, filepath.Join(dir, "gsm8k_labelled_solutions.jsonl.gz"), func(line []byte) {
		var s struct {
			Truth, Solution string
			Label           bool `json:"is_correct"`
		}
		if err := json.Unmarshal(line, &s); err != nil {
			t.Fatal(err)
		}
		solutions++
		if outcome, found := Grade(s.Solution, s.Truth, "A:"); (outcome == Right) != s.Label {
			t.Errorf("%s with %q, reference %q, label %v:\n%s", outcome, found, s.Truth, s.Label, s.Solution)
		}
	})
	t.Logf("%d references, %d labelled solutions", problems, solutions)
}

func lines(t *testing.T, path string, each func([]byte)) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	z, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	for s := bufio.NewScanner(z); s.Scan(); {
		each(s.Bytes())
	}
}
