package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/warmpath/warmpath/internal/bench"
	"github.com/warmpath/warmpath/internal/report"
)

const limitsUsage = `usage: bench limits -endpoint URL -model NAME [-engine URL[,URL]] [flags]

Sweeps prompt length and concurrency in a closed loop with prompts that share nothing, and finds for each length where
throughput stops growing, where TTFT P95 breaks, and which limit was hit:

  KV capacity   the KV cache was full while requests waited, or requests were preempted
  batch size    requests waited while the cache had room: --max-num-seqs
  compute       all requests ran, and more of them only made each slower
  client        this program was too slow, so the figures are its own

The last three are told apart by the engines' /metrics, which -engine names: vLLM's own address, not the gateway's.

  bench limits -endpoint http://127.0.0.1:8000 -engine http://127.0.0.1:8000 -model m -prompts 1000,8000,32000 -users 1,2,4,8,16,32 -o limits.json
`

func limits(args []string, out io.Writer) error {
	var t target
	fs := flagsOf("limits", limitsUsage)
	t.register(fs)
	prompts := fs.String("prompts", "256,1024,4096,16384", "`tokens` of prompts, separated by commas")
	users := fs.String("users", "1,2,4,8,16,32,64", "`concurrencies`, separated by commas")
	output := fs.Int("output", 64, "`tokens` of each answer")
	rounds := fs.Int("rounds", 3, "each user sends this `number` of requests in a cell")
	cell := fs.Duration("cell", time.Minute, "a cell sends no more after this `time`")
	breaks := fs.Duration("ttft", 5*time.Second, "TTFT P95 above this `time` is broken; the row then ends, if throughput does not grow any more")
	as := fs.String("as", "tokens", "`form` of prompts: tokens or chat")
	vocabulary := fs.Int("vocabulary", 32_000, "with -as tokens: ids are below this `number`")
	seed := fs.Uint64("seed", 1, "of prompts")
	asJSON := fs.Bool("json", false, "print JSON")
	if err := t.parse(fs, args); err != nil {
		return err
	}
	lengths, err := ascending("-prompts", *prompts)
	if err != nil {
		return err
	}
	steps, err := ascending("-users", *users)
	if err != nil {
		return err
	}
	if *output < 1 || *rounds < 1 || *cell <= 0 || *breaks <= 0 || strings.Contains(t.endpoints, ",") {
		return errors.New("-output and -rounds must be at least 1, -cell and -ttft above 0; -endpoint takes one URL here")
	}
	ctx, stop := untilStopped()
	defer stop()
	found := &bench.LimitsReport{}
	total := &bench.Result{Version: bench.FormatVersion, Started: time.Now()}
	t.name(total, "limits", t.endpoints)
	total.Limits = found
	for i, length := range lengths {
		var row []bench.Cell
		for j, n := range steps {
			f := &loadFlags{
				target: t, concurrency: n, requests: n * *rounds, input: sizes{length, length}, output: sizes{*output, *output}, turns: sizes{1, 1}, groups: 1,
				as: *as, vocabulary: *vocabulary, seed: *seed<<16 + uint64(i)<<8 + uint64(j), ignoreEOS: true, duration: *cell,
			}
			c, err := f.cellOf(ctx, total)
			if err != nil {
				return err
			}
			c.Prompt, c.Output, c.Concurrency = length, *output, n
			row = append(row, c)
			if ctx.Err() != nil {
				return errors.New("stopped")
			}
			if judged := bench.Judge(row, breaks.Seconds()*1000); c.OK == 0 || judged.Broken > 0 && judged.Saturated > 0 {
				break
			}
		}
		found.Cells = append(found.Cells, row...)
		found.Rows = append(found.Rows, bench.Judge(row, breaks.Seconds()*1000))
	}
	if *asJSON {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", " ")
		err = encoder.Encode(total)
	} else {
		err = report.Limits(out, found)
	}
	if err != nil {
		return err
	}
	return t.finish([]*bench.Result{total})
}

// cellOf measures one point and adds its counts to the whole sweep's.
func (f *loadFlags) cellOf(ctx context.Context, total *bench.Result) (bench.Cell, error) {
	results, err := f.measure(ctx)
	if err != nil {
		return bench.Cell{}, err
	}
	r := results[0]
	total.Attempted += r.Attempted
	total.OK += r.OK
	total.Failed += r.Failed
	total.Cancelled += r.Cancelled
	for cause, n := range r.Failures {
		if total.Failures == nil {
			total.Failures = map[string]int{}
		}
		total.Failures[cause] += n
	}
	if total.FirstFail == "" {
		total.FirstFail = r.FirstFail
	}
	return bench.Cell{
		OK: r.OK, Failed: r.Failed, Seconds: r.Seconds, Throughput: r.PromptPerSecond + r.OutputPerSecond, OutputRate: r.OutputPerSecond,
		TTFT: r.TTFT, TPOT: r.TPOT, Client: r.Client, Engine: r.Engine,
	}, nil
}

// ascending reads numbers that are separated by commas.
func ascending(name, text string) ([]int, error) {
	var all []int
	for part := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(part))
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%s: %q is no number above 0", name, part)
		}
		all = append(all, n)
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}
