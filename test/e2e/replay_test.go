//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http/httptest"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/warmpath/warmpath/internal/lab"
	"github.com/warmpath/warmpath/internal/mockvllm"
)

// The replay: documents of 8,192 tokens with a question each, at a load at which
// four replicas cannot keep up without their caches. Prompts are long against
// what sockets cost, and time is stretched, so that two cores are enough for
// three fleets, gateways and clients at once.
const (
	replayEngine   = "8b"
	replayReplicas = 4
	replayScale    = 2.5
	// replayTolerance is how far the P95 of the time to first token may be from its
	// simulated value.
	replayTolerance = 0.15
	// replayLate is the share of that P95 by which one request in a hundred may be
	// late before the machine counts as too busy to measure on.
	replayLate = 0.1
)

var replayLoad = []string{"-workload", "rag", "-load", "0.25", "-span", "20s", "-seed", "1", "-json"}

// replayRow is what bench prints of a policy.
type replayRow struct {
	Policy   string  `json:"policy"`
	Requests int     `json:"requests"`
	P95      float64 `json:"ttft_p95"`
	Hit      float64 `json:"hit"`
	Failed   int     `json:"failed"`
	Late     float64 `json:"late_p99"`
}

// TestReplayAgreesWithSimulation sends the arrivals of a simulation over real
// sockets, through the gateway's binary to mock replicas in real time: policies
// must come out in the same order, and ours close to its simulated figure. It
// needs no vLLM.
func TestReplayAgreesWithSimulation(t *testing.T) {
	bench, gateway := build(t, "bench"), build(t, "gateway")
	policies := []string{"prefix", "least-tokens", "round-robin"}
	simulated := runBench(t, bench, append([]string{"simulate", "-replicas", strconv.Itoa(replayReplicas), "-engine", replayEngine, "-policy", strings.Join(policies, ",")}, replayLoad...)...)
	for attempt := 1; ; attempt++ {
		replayed := make([]replayRow, len(policies))
		var clients sync.WaitGroup
		for i, policy := range policies {
			s := &stage{urls: mockFleet(t), gateway: gateway}
			s.startGateway(t, "-policy", policy)
			clients.Go(func() {
				rows := runBench(t, bench, append([]string{"replay", "-endpoint", s.clients, "-time-scale", fmt.Sprint(replayScale)}, replayLoad...)...)
				replayed[i] = rows[0]
			})
		}
		clients.Wait()
		if t.Failed() {
			return
		}
		late := 0.0
		for i, r := range replayed {
			want := simulated[i]
			late = max(late, r.Late)
			t.Logf("%-12s P95 %.3f s, simulated %.3f (%+.1f %%); cached %.3f, simulated %.3f; %d requests, one in a hundred sent %.1f ms late",
				policies[i], r.P95, want.P95, 100*(r.P95/want.P95-1), r.Hit, want.Hit, r.Requests, 1000*r.Late)
			if r.Failed > 0 || r.Requests != want.Requests {
				t.Errorf("%s: %d requests answered and %d failed, %d simulated", policies[i], r.Requests, r.Failed, want.Requests)
			}
		}
		if late/replayScale > replayLate*simulated[0].P95 {
			if attempt < 2 {
				t.Log("the machine was too busy to send on time; once more")
				continue
			}
			t.Fatalf("the machine is too busy to measure on: requests were sent up to %.0f ms late", 1000*late)
		}
		if got, want := order(replayed, policies), order(simulated, policies); !slices.Equal(got, want) {
			t.Errorf("policies by P95: %v, simulated %v", got, want)
		}
		if r := replayed[0].P95/simulated[0].P95 - 1; math.Abs(r) > replayTolerance {
			t.Errorf("the P95 of prefix is %+.1f %% from its simulated value, want at most %.0f %%", 100*r, 100*replayTolerance)
		}
		return
	}
}

// mockFleet starts mock replicas whose time is stretched, and returns their URLs.
func mockFleet(t *testing.T) (urls []string) {
	t.Helper()
	cfg := lab.Engines()[replayEngine].Stretch(replayScale)
	cfg.KeepRequests = 0
	for range replayReplicas {
		replica := mockvllm.New(cfg)
		srv := httptest.NewServer(replica.Handler())
		t.Cleanup(func() {
			replica.Close()
			srv.CloseClientConnections()
			srv.Close()
		})
		urls = append(urls, srv.URL)
	}
	return urls
}

func runBench(t *testing.T, binary string, args ...string) (rows []replayRow) {
	cmd := exec.CommandContext(t.Context(), binary, args...)
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("bench %v: %v\n%s", args, err, said.String())
	}
	for lines := json.NewDecoder(strings.NewReader(string(out))); lines.More(); {
		var r replayRow
		if err := lines.Decode(&r); err != nil {
			t.Errorf("bench %v: %v in %s", args, err, out)
			break
		}
		rows = append(rows, r)
	}
	if len(rows) == 0 {
		t.Errorf("bench %v printed no row:\n%s%s", args, out, said.String())
		rows = []replayRow{{}}
	}
	return rows
}

// order returns the policies by the P95 of their rows, the best first.
func order(rows []replayRow, policies []string) []string {
	at := map[string]float64{}
	for i, p := range policies {
		at[p] = rows[i].P95
	}
	return slices.SortedFunc(slices.Values(policies), func(a, b string) int {
		if at[a] < at[b] {
			return -1
		}
		return 1
	})
}
