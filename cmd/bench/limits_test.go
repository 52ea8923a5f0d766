package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/internal/bench"
	"github.com/warmpath/warmpath/internal/mockvllm"
)

// TestLimitsAreTold apart by replicas that are each short of one thing.
func TestLimitsAreTold(t *testing.T) {
	batch, kv := quick(), quick()
	batch.MaxSeqs, batch.StepBase = 2, 4e6
	kv.Blocks, kv.StepBase = 40, 4e6 // holds three requests of 200 tokens
	for want, cfg := range map[bench.Limit]mockvllm.Config{bench.Batch: batch, bench.KVCapacity: kv} {
		_, url := replica(t, cfg)
		printed, results, err := measured(t, "limits", "-endpoint", url, "-engine", url, "-prompts", "160", "-users", "1,4,16", "-output", "40", "-rounds", "4")
		if err != nil {
			t.Fatal(err)
		}
		row := results[0].Limits.Rows[0]
		if row.Limit == bench.ClientSlow {
			t.Skip("this machine is too busy: " + row.Why)
		}
		if row.Limit != want || row.Saturated != 4 || !strings.Contains(printed, string(want)) {
			t.Errorf("want %s, found %+v\n%s", want, row, printed)
		}
	}
}

func TestCompareAndReportReadWhatLoadWrote(t *testing.T) {
	_, url := replica(t, quick())
	dir := t.TempDir()
	a, b, page := filepath.Join(dir, "a.json"), filepath.Join(dir, "b.json"), filepath.Join(dir, "r.html")
	for i, file := range []string{a, b} { // the second finds its prompts in the cache
		args := []string{"load", "-endpoint", url, "-requests", "20", "-concurrency", "1", "-shared", "4000", "-groups", "5", "-input", "16", "-output", "2", "-o", file, "-replica-start", []string{"9,10", "4"}[i]}
		if err := run(args, io.Discard); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	_ = run([]string{"compare", a, b}, &out)
	if !strings.Contains(out.String(), "replica start") || !strings.Contains(out.String(), "pass") || strings.Count(out.String(), "\n") != 11 {
		t.Errorf("compare:\n%s", out.String())
	}
	if err := run([]string{"compare", b, a}, io.Discard); err == nil || !strings.Contains(err.Error(), "goals were missed") {
		t.Errorf("the worse one: %v", err)
	}
	if err := run([]string{"report", "-o", page, a, b}, io.Discard); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(page); err != nil || !bytes.Contains(text, []byte("Scorecard")) {
		t.Errorf("%v: %d bytes", err, len(text))
	}
	out.Reset()
	if err := run([]string{"report", "-format", "markdown", a}, &out); err != nil || !strings.Contains(out.String(), "## Figures") {
		t.Errorf("%v:\n%s", err, out.String())
	}
	for want, args := range map[string][]string{"give two files": {"compare", a}, "no such file": {"compare", a, a + "x"}, "html or markdown": {"report", "-format", "pdf", a}, "give files": {"report"}} {
		if err := run(args, io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", args, err)
		}
	}
}

func TestServeConfigPrintsAScript(t *testing.T) {
	var out bytes.Buffer
	if err := run([]string{"serve-config", "--model", "/mnt/obs-models/Qwen2.5-72B-Instruct", "--gpus", "4"}, &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"vllm serve /mnt/obs-models/Qwen2.5-72B-Instruct", "--tensor-parallel-size 4", "--enable-prefix-caching", "--enable-chunked-prefill", "--max-num-batched-tokens 8192", "--gpu-memory-utilization 0.92", "# --enable-prefix-caching: "} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	out.Reset()
	if err := run([]string{"serve-config", "-model", "a b", "-gpus", "4", "-replicas", "2", "-quiet", "-max-model-len", "100"}, &out); err != nil || strings.Contains(out.String(), "#") || strings.Count(out.String(), "CUDA_VISIBLE_DEVICES") != 2 || !strings.Contains(out.String(), "'a b'") {
		t.Errorf("%v\n%s", err, out.String())
	}
	if sh, err := exec.LookPath("sh"); err == nil {
		check := exec.Command(sh, "-n")
		check.Stdin = &out
		if text, err := check.CombinedOutput(); err != nil {
			t.Errorf("not a shell's: %v %s", err, text)
		}
	}
	for want, args := range map[string][]string{"-model is missing": {}, "evenly": {"-model", "m", "-gpus", "3", "-replicas", "2"}, "-memory": {"-model", "m", "-memory", "2"}, "quotes": {"-model", "'"}} {
		if err := run(append([]string{"serve-config"}, args...), io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", args, err)
		}
	}
}
