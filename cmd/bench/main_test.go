package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func output(t *testing.T, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	if err := run(append([]string{"simulate"}, args...), &out); err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return out.String()
}

func TestSimulatePrintsTheSameForTheSameSeed(t *testing.T) {
	args := []string{"-workload", "chat,rag", "-span", "3s", "-policy", "prefix,llm-d", "-seed", "4"}
	first := output(t, args...)
	if second := output(t, args...); second != first {
		t.Errorf("first\n%s\nthen\n%s", first, second)
	}
	if n := strings.Count(first, "\n"); n != 5 {
		t.Errorf("%d lines, want a head and four rows:\n%s", n, first)
	}
	for line := range strings.Lines(output(t, append(args, "-json")...)) {
		var r row
		if err := json.Unmarshal([]byte(line), &r); err != nil || r.Requests == 0 || r.P95 <= 0 || r.Workload == "" || r.Policy == "" {
			t.Errorf("%v: %s", err, line)
		}
	}
}

func TestSimulateReadsATrace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace.jsonl")
	if err := os.WriteFile(path, []byte(`{"timestamp":0,"input_length":700,"output_length":5,"hash_ids":[0,7]}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := output(t, "-trace", path, "-policy", "prefix", "-replicas", "2"); !strings.Contains(got, "trace  prefix") {
		t.Errorf("got\n%s", got)
	}
}

func TestWhatIsWrongIsNamed(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.jsonl")
	if err := os.WriteFile(bad, []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"subcommand":        {"sim"},
		`"none"`:            {"simulate", "-workload", "none"},
		`"best"`:            {"simulate", "-span", "1s", "-policy", "best"},
		`"9b"`:              {"simulate", "-engine", "9b"},
		"-load":             {"simulate", "-load", "1,0"},
		`"two"`:             {"simulate", "-gateways", "1,two"},
		`"-3" for flag -ga`: {"simulate", "-gateways", "-3"},
		`"1,0" for flag -g`: {"simulate", "-gateways", "1,0"},
		"-replicas must be": {"simulate", "-replicas", "-3"},
		"-span must be":     {"simulate", "-span", "-1s"},
		"-slo must be":      {"simulate", "-slo", "-1s"},
		"1 is there":        {"simulate", "-load", "1,2,1.0"},
		`"never"`:           {"simulate", "-load-lag", "20ms,soon"},
		`write "never"`:     {"simulate", "-prefix-lag", "-1s"},
		"-seeds":            {"simulate", "-seeds", "0"},
		`"nothing"`:         {"simulate", "-workload", "chat,nothing"},
		"varies":            {"simulate", "-picture", "x.svg"},
		"load and gateways": {"simulate", "-load", "1,2", "-gateways", "1,2", "-picture", "x.svg"},
		"-out":              {"lab"},
		"-span must be a":   {"lab", "-out", "x", "-span", "0"},
		"-trace-seeds":      {"lab", "-out", "x", "-trace-seeds", "0"},
		"trace line 1":      {"simulate", "-trace", bad},
		"no such file":      {"simulate", "-trace", bad + "x"},
	} {
		if err := run(args, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %s", args, err, want)
		}
	}
}

// TestEveryCommandTeaches: -h of each shows an example, and docs/bench.md and the
// overview name it; flags that the examples use are there.
func TestEveryCommandTeaches(t *testing.T) {
	page, err := os.ReadFile("../../docs/bench.md")
	if err != nil {
		t.Fatal(err)
	}
	for name := range commands {
		if !strings.Contains(usage, "\n  "+name+" ") || !bytes.Contains(page, []byte("`"+name+"`")) {
			t.Errorf("%s is not in the overview and docs/bench.md", name)
		}
		if err := run([]string{name, "-h"}, &bytes.Buffer{}); !errors.Is(err, flag.ErrHelp) {
			t.Errorf("%s -h: %v", name, err)
		}
	}
	for name, help := range map[string]string{"ttft": ttftUsage, "load": loadUsage, "limits": limitsUsage, "eval": evalUsage, "compare": compareUsage, "report": reportUsage, "serve-config": serveConfigUsage} {
		if !strings.Contains(help, "\n  bench "+name+" ") {
			t.Errorf("the help of %s has no example", name)
		}
	}
}
