//go:build e2e

package e2e

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// testRepeatedPrompt is the first question that users of a prefix cache ask: does
// the same long prompt come back sooner the second time? The stream carries no
// usage, as with clients that do not ask for it.
func testRepeatedPrompt(t *testing.T, s *stage) {
	rules := strings.Repeat("你是集群故障分析助手。以下规则在每次请求中保持不变：优先检查资源、调度、网络、存储和缓存，并给出验证命令。", 20)
	// The number keeps what an earlier run left in the caches out of it.
	prompt := fmt.Sprintf("%d%s\n问题：为什么推理服务的首 Token 时延突然升高？", 100+rand.IntN(900), rules)
	var rounds []time.Duration
	var by []string
	for round := range 4 {
		a := s.post(t, "/v1/chat/completions", object{
			"model": model, "stream": true, "temperature": 0, "max_tokens": 8, "messages": []object{message("user", prompt)},
		})
		if a.first == 0 || !a.done {
			t.Fatalf("round %d: no whole answer: text %q, [DONE] %v", round+1, a.text, a.done)
		}
		rounds = append(rounds, a.first.Round(time.Millisecond))
		by = append(by, a.replica)
	}
	repeated := slices.Sorted(slices.Values(rounds[1:]))
	t.Logf("time to first token: %v at first, then %v; from %v", rounds[0], rounds[1:], by)
	if median := repeated[len(repeated)/2]; median >= rounds[0] {
		t.Errorf("median of the repeated rounds %v, the first %v", median, rounds[0])
	}
}
