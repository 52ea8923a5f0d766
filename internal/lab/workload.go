// Package lab runs routing policies in virtual time: the gateway's own router and
// the published rules of other gateways, on the same arrivals, over the scheduler
// and KV cache of internal/mockvllm. Twelve thousand requests on eight replicas
// take about a second, the same seed gives the same numbers, and no GPU is needed.
package lab

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Run is a run of prompt tokens that prompts have in common or not as a whole:
// a system prompt, a document, a message, an answer. Equal IDs mean equal tokens.
type Run struct {
	ID        uint32
	Tokens    int
	Generated bool // a model's answer in an earlier turn
}

// maxRun is how many tokens a run has at most: token ids are made of the run's
// ID and the place in it.
const maxRun = 1 << 12

// Request is one request of a workload.
type Request struct {
	At      time.Duration // of arrival; of a later turn, set when it comes
	Runs    []Run
	Answer  Run    // what will be generated
	Session uint64 // the same for all turns of a session
	// Next is the session's next turn, which is sent Think after this one's end.
	Next  *Request
	Think time.Duration
}

// Tokens returns how many tokens the prompt has.
func (r *Request) Tokens() int {
	n := 0
	for _, run := range r.Runs {
		n += run.Tokens
	}
	return n
}

// Workload makes the arrivals of one simulation.
type Workload struct {
	Name     string
	Replicas int    // that it is meant for
	Engine   string // preset that it is meant for
	Make     func(rnd *rand.Rand) []*Request
}

// ReadTrace reads a trace in Mooncake's format, JSON lines or gzip of these:
// timestamp in ms, input_length, output_length, hash_ids of 512-token blocks. The
// timestamps stand in ticks of 3 s; each request is spread over its tick. Scale
// stretches time: 0.75 is 4/3 of the load.
func ReadTrace(r io.Reader, scale float64, rnd *rand.Rand) ([]*Request, error) {
	const block, tick = 512, 3.0
	buffered := bufio.NewReader(r)
	if magic, err := buffered.Peek(2); err == nil && magic[0] == 0x1f && magic[1] == 0x8b {
		z, err := gzip.NewReader(buffered)
		if err != nil {
			return nil, err
		}
		buffered = bufio.NewReader(z)
	}
	var out []*Request
	lines := bufio.NewScanner(buffered)
	lines.Buffer(nil, 16<<20)
	for n := 1; lines.Scan(); n++ {
		var line struct {
			Timestamp float64  `json:"timestamp"`
			Input     int      `json:"input_length"`
			Output    int      `json:"output_length"`
			Hashes    []uint32 `json:"hash_ids"`
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return nil, fmt.Errorf("trace line %d: %w", n, err)
		}
		if line.Input < 1 || len(line.Hashes) != (line.Input+block-1)/block {
			return nil, fmt.Errorf("trace line %d: %d blocks for %d tokens", n, len(line.Hashes), line.Input)
		}
		q := &Request{At: seconds((line.Timestamp/1000 + rnd.Float64()*tick) * scale), Answer: Run{ID: 1<<19 + uint32(n), Tokens: max(1, line.Output)}}
		left := line.Input
		for _, h := range line.Hashes {
			q.Runs = append(q.Runs, Run{ID: h, Tokens: min(block, left)})
			left -= block
		}
		q.Session = uint64(line.Hashes[min(1, len(line.Hashes)-1)]) + 1 // every request shares the first block
		out = append(out, q)
	}
	slices.SortStableFunc(out, func(a, b *Request) int { return int(a.At - b.At) })
	return out, lines.Err()
}

func seconds(s float64) time.Duration { return time.Duration(math.Round(s * 1e9)) }

// ids hands out IDs of runs.
type ids struct{ last uint32 }

// text returns runs of together n tokens that nothing else has.
func (i *ids) text(n int) []Run {
	var runs []Run
	for n > 0 {
		i.last++
		runs = append(runs, Run{ID: i.last, Tokens: min(n, maxRun)})
		n -= maxRun
	}
	return runs
}

func between(rnd *rand.Rand, low, high int) int { return low + rnd.IntN(high-low+1) }

// zipf returns a sampler of 0..n-1, the first being the most frequent.
func zipf(rnd *rand.Rand, skew float64, n int) func() int {
	sums := make([]float64, n)
	total := 0.0
	for i := range sums {
		total += 1 / math.Pow(float64(i+1), skew)
		sums[i] = total
	}
	return func() int {
		at, _ := slices.BinarySearch(sums, rnd.Float64()*total)
		return at
	}
}

// arrivals calls each at Poisson times until the span is over.
func arrivals(rnd *rand.Rand, rate float64, span time.Duration, each func(at time.Duration)) {
	for t := rnd.ExpFloat64() / rate; t < span.Seconds(); t += rnd.ExpFloat64() / rate {
		each(seconds(t))
	}
}

// Workloads returns the generated workloads at a load: 1 is what the name's rate
// says, for its number of replicas.
func Workloads(load float64, span time.Duration) []Workload {
	shared := func(n, tokens int, skew, rate float64, own, answer [2]int) func(*rand.Rand) []*Request {
		return func(rnd *rand.Rand) []*Request {
			var id ids
			prompts := make([][]Run, n)
			for i := range prompts {
				prompts[i] = id.text(tokens)
			}
			pick := zipf(rnd, skew, n)
			var out []*Request
			arrivals(rnd, rate*load, span, func(at time.Duration) {
				q := &Request{At: at, Session: uint64(len(out)) + 1}
				q.Runs = append(q.Runs, prompts[pick()]...)
				q.Runs = append(q.Runs, id.text(between(rnd, own[0], own[1]))...)
				q.Answer = id.text(between(rnd, answer[0], answer[1]))[0]
				out = append(out, q)
			})
			return out
		}
	}
	sessions := func(systems, system int, rate float64, turns, user, answer [2]int, think float64) func(*rand.Rand) []*Request {
		return func(rnd *rand.Rand) []*Request {
			var id ids
			prompts := make([][]Run, systems)
			for i := range prompts {
				prompts[i] = id.text(system)
			}
			var out []*Request
			mean := float64(turns[0]+turns[1]) / 2
			arrivals(rnd, rate*load/mean, span, func(at time.Duration) {
				history := slices.Clone(prompts[rnd.IntN(systems)])
				var first, last *Request
				for range between(rnd, turns[0], turns[1]) {
					history = append(slices.Clip(history), id.text(between(rnd, user[0], user[1]))...)
					q := &Request{Runs: history, Answer: id.text(between(rnd, answer[0], answer[1]))[0], Session: uint64(len(out)) + 1, Think: seconds(rnd.ExpFloat64() * think)}
					if last == nil {
						q.At, first = at, q
					} else {
						last.Next = q
					}
					said := q.Answer
					said.Generated = true
					history = append(slices.Clip(history), said)
					last = q
				}
				out = append(out, first)
			})
			return out
		}
	}
	return []Workload{
		{"prompts", 16, "8b", shared(400, 1536, 0, 225, [2]int{100, 1600}, [2]int{50, 200})},
		{"systems", 16, "8b", shared(50, 2048, 1.0, 225, [2]int{100, 1200}, [2]int{50, 200})},
		{"rag", 16, "8b", shared(1500, 8192, 1.0, 60, [2]int{30, 230}, [2]int{50, 200})},
		{"hot", 8, "8b", shared(1, 16384, 0, 80, [2]int{50, 500}, [2]int{50, 200})},
		{"unshared", 16, "8b", func(rnd *rand.Rand) []*Request {
			var id ids
			var out []*Request
			arrivals(rnd, 120*load, span, func(at time.Duration) {
				out = append(out, &Request{At: at, Runs: id.text(between(rnd, 200, 4000)), Answer: id.text(between(rnd, 50, 200))[0], Session: uint64(len(out)) + 1})
			})
			return out
		}},
		{"chat", 16, "8b", sessions(5, 1536, 200, [2]int{2, 12}, [2]int{50, 450}, [2]int{80, 280}, 5)},
		{"agents", 16, "8b", sessions(8, 6144, 60, [2]int{10, 40}, [2]int{200, 1800}, [2]int{40, 200}, 1)},
		{"mixed", 16, "8b", func(rnd *rand.Rand) []*Request {
			var id ids
			var out []*Request
			arrivals(rnd, 60*load, span, func(at time.Duration) {
				n := 200
				if rnd.IntN(40) == 0 {
					n = 100_000
				}
				out = append(out, &Request{At: at, Runs: id.text(n), Answer: id.text(100)[0], Session: uint64(len(out)) + 1})
			})
			return out
		}},
		{"bursts", 8, "70b", func(rnd *rand.Rand) []*Request {
			var id ids
			var out []*Request
			for burst := range max(1, int(span.Seconds()/20*load)) {
				prompt := id.text(8192)
				for range 200 {
					q := &Request{At: seconds(float64(burst)*20/load + rnd.Float64()*0.01), Session: uint64(len(out)) + 1}
					q.Runs = append(slices.Clone(prompt), id.text(50)...)
					q.Answer = id.text(50)[0]
					out = append(out, q)
				}
			}
			slices.SortStableFunc(out, func(a, b *Request) int { return int(a.At - b.At) })
			return out
		}},
	}
}

// WorkloadNames lists the generated workloads.
func WorkloadNames() string {
	var names []string
	for _, w := range Workloads(1, time.Minute) {
		names = append(names, w.Name)
	}
	return strings.Join(names, ", ")
}
