package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/internal/lab"
)

func at(workload string, load float64, policy string, p95, mean, hit float64) cell {
	return cell{point: point{Workload: workload, Load: load, Gateways: 1}, mean: lab.Summary{Policy: policy, P95: p95, Mean: mean, Hit: hit}}
}

func TestScorecardComparesWithTheBestReferenceAndNoBound(t *testing.T) {
	var page strings.Builder
	writeScorecard(&page, []cell{
		at("rag", 0.5, "prefix", 1.05, 0.4, 0.7), at("rag", 0.5, "llm-d", 1, 0.6, 0.8), at("rag", 0.5, "oracle", 0.1, 0.1, 0.9),
		at("rag", 0.5, "dynamo", 2, 0.5, 0.3), at("rag", 0.5, "pooled", 0.5, 0.1, 0.9),
		at("rag", 1, "prefix", 12.34, 1.02, 0.7), at("rag", 1, "llm-d", 12.3, 1, 0.8),
	})
	want := "| rag | 0.5 | 1.050 | 1.000 llm-d | **1.05** | 0.400 | 0.500 dynamo | 0.80 | 0.700 | 0.800 llm-d | 2.10 |\n" +
		"| rag | 1 | 12.3 | 12.3 llm-d | 1.00 | 1.020 | 1.000 llm-d | 1.02 | 0.700 | 0.800 llm-d | – |\n"
	if got := page.String(); !strings.HasSuffix(got, "|\n"+want) {
		t.Errorf("got\n%s\nwant rows\n%s", got, want)
	}
}

func TestPoliciesTableShowsBoundsApart(t *testing.T) {
	var page strings.Builder
	writePolicies(&page, []cell{
		at("rag", 1, "oracle", 0.1, 0, 0.9), at("rag", 1, "prefix", 0.30004, 0, 0.7), at("rag", 1, "llm-d", 0.3, 0, 0.8), at("rag", 1, "dynamo", 0.4, 0, 0.8),
	}, p95, func(*lab.Summary) string { return "!" })
	want := "| workload | load | **prefix** | llm-d | dynamo | *oracle* |\n|---|---|---|---|---|---|\n| rag | 1 | **0.300**! | **0.300**! | 0.400! | 0.100! |\n"
	if got := page.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestRatiosAreBoldBeyondTheirLimits(t *testing.T) {
	gateways := func(workload string, n int, p95, hit float64) cell {
		c := at(workload, 1, "prefix", p95, 0, hit)
		c.Gateways = n
		return c
	}
	var page strings.Builder
	writeRatios(&page, []cell{
		gateways("chat", 1, 1, 0.9), gateways("chat", 8, 1.2, 0.89), gateways("rag", 1, 1, 0.9), gateways("rag", 8, 1.2, 0.87),
	}, axisNamed("gateways"), "1", func(workload string) float64 {
		return map[string]float64{"chat": 1.15, "rag": 1.45}[workload]
	})
	want := "| workload | 1 | 8 |\n|---|---|---|\n| chat | 1.000 ×1.00, 0.900 | 1.200 ×**1.20**, 0.890 |\n| rag | 1.000 ×1.00, 0.900 | 1.200 ×1.20, **0.870** |\n"
	if got := page.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestLabMakesItsPage makes a small one, with its pictures.
func TestLabMakesItsPage(t *testing.T) {
	out := t.TempDir()
	trace := filepath.Join(out, "trace.jsonl")
	if err := os.WriteFile(trace, []byte(strings.Repeat(`{"timestamp":0,"input_length":700,"output_length":5,"hash_ids":[0,7]}`+"\n", 20)), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"lab", "-out", out, "-trace", trace, "-workload", "chat", "-policy", "prefix,llm-d,pooled", "-span", "500ms", "-seeds", "2"}
	if err := run(args, nil); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(out, "lab.md"))
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	pictures := regexp.MustCompile(`\]\((lab/[a-z-]+\.svg)\)`).FindAllStringSubmatch(page, -1)
	if len(pictures) != 5 {
		t.Errorf("%d pictures on the page", len(pictures))
	}
	for _, p := range pictures {
		if lines(t, filepath.Join(out, p[1]))["prefix"] < 2 {
			t.Errorf("%s has no lines of ours", p[1])
		}
	}
	for _, want := range []string{
		"| chat | 0.5 | ", "| chat | 1.25 | ", "| trace | 0.47 | ", "| workload | 1 | 2 | 4 | 8 |", "| 2s | never |", "| 2s | 10s | never |",
		"| workload | 0.5 | 1 | 2 |", "| workload | 0.25 | 1 | 4 |", "0.5 s of arrivals, means over seeds 1 to 2",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q in\n%s", want, page)
		}
	}
	if strings.Contains(page, "NaN") || strings.Contains(page, "Inf") {
		t.Errorf("a figure is no number:\n%s", page)
	}
}
