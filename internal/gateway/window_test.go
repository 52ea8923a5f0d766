package gateway_test

import (
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/mockvllm"
)

// TestCountersCloseTheLoopWhereAnswersDoNotTell has clients ask for no usage. What the
// engine's counters say of its cache is in the metric, and what is believed follows.
func TestCountersCloseTheLoopWhereAnswersDoNotTell(t *testing.T) {
	if testing.Short() {
		t.Skip("a window takes 15 seconds")
	}
	f := func(name string, forgets bool, gap, room, predicted float64) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMock(t, func(c *mockvllm.Config) { c.Blocks = 2048 })
			g := start(t, func(c *config.Config) {
				c.Replica.WarmUp, c.Replica.ScrapeInterval = false, 200*time.Millisecond
			}, m.url)
			ask := func(i int) (cached int) {
				body := strings.Replace(forms()[0].body(words(i, 32<<10)), `"max_tokens":64`, `"max_tokens":1,"stream":true`, 1)
				a := g.must(chatPath, body)
				if strings.Contains(a.body, "usage") {
					t.Fatalf("the answer tells: %s", a.body)
				}
				cached, _ = a.predicted()
				return cached
			}
			ask(0)
			ask(1)
			g.idle()
			before := g.replicas()[0]
			for sum := 0; sum < 100_000; {
				if forgets {
					beside(t, m.url+"/reset_prefix_cache", "")
				}
				for range 2 { // the second of each is a hit in any case
					sum += ask(0) + ask(1)
				}
			}
			g.idle()
			within(t, 40*time.Second, "a window is judged", func() bool { return len(g.series("warmpath_window_gap_ratio")) == 1 })
			after, got := g.replicas()[0], g.metric("warmpath_window_gap_ratio")
			if got < gap-.1 || got > gap+.1 {
				t.Errorf("the gap is %v, want %v", got, gap)
			}
			if after["window_gap"] != got {
				t.Errorf("/replicas has a gap of %v, the metric %v", after["window_gap"], got)
			}
			if got, want := after.number("capacity_blocks"), int(room*float64(before.number("held_blocks"))); forgets && (got < want-2 || got > want+2) {
				t.Errorf("there is believed to be room for %d blocks, want %d of %d held", got, want, before.number("held_blocks"))
			} else if was := before.number("capacity_blocks"); !forgets && got < was {
				t.Errorf("there is believed to be room for %d blocks, was %d", got, was)
			}
			prompt := before.number("held_blocks") / 2 * before.number("block_size")
			if got, want := ask(0), predicted*float64(prompt); float64(got) < want*.9 || float64(got) > want*1.1 {
				t.Errorf("%d of the %d tokens of the prompt used least recently are predicted, want %.0f", got, prompt, want)
			}
			if n := g.metric("warmpath_cached_tokens_total"); n != 0 {
				t.Errorf("%v cached tokens are known from answers", n)
			}
		})
	}
	// No more than three tenths of what is held go at a time: six of the ten of one of the two prompts.
	f("half is not there", true, .5, .7, .4)
	f("all is there", false, 0, 1, 1)
}
