package lab

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestEveryWorkloadHasRequestsInAFewSeconds: a sweep over load must not have points at
// which nothing was measured.
func TestEveryWorkloadHasRequestsInAFewSeconds(t *testing.T) {
	for _, w := range Workloads(0.5, 5*time.Second) {
		if n := len(w.Make(rand.New(rand.NewPCG(1, 1)))); n == 0 {
			t.Errorf("%s has none", w.Name)
		}
	}
}
