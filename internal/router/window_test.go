package router

import (
	"fmt"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/replica"
)

// TestCountersCorrectTheCapacityWhereAnswersDoNotTell has prompts of which all but
// the question are believed to be cached, and engines that count what the test says.
func TestCountersCorrectTheCapacityWhereAnswersDoNotTell(t *testing.T) {
	const blocks = 8192
	type engine struct {
		hit     float64       // of what is predicted, this is cached
		beside  float64       // times as many requests of other gateways'
		every   time.Duration // its counters are read
		windows int
		tells   bool // answers do
		blind   bool // it has no counter of cached tokens
		restart bool // in the middle of the last window
		long    int  // windows that an answer takes
	}
	f := func(name string, e engine, least, most float64, gap float64, known bool) {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, 1)
			rep := f.model.Replicas[0]
			f.r.Told(rep, replica.Facts{BlockSize: 16, Blocks: blocks + nullBlocks})
			system := text(200_000, 1)
			prompt, cached := 0.0, 0.0
			var open []func()
			read := func() {
				facts := replica.Facts{At: f.now, Prompt: prompt, Cached: cached}
				if e.blind {
					facts.Cached = 0
				}
				f.r.Counted(rep, facts)
			}
			ask := func(i int) {
				req := &Request{Prompt: f.prompt(conversation(system, fmt.Sprint("question ", i))), Stream: true}
				l := f.acquire(req)
				f.pass(l.Predicted())
				l.Prefilled(f.now)
				tokens, predicted := l.Tokens()
				prompt += float64(tokens) * (1 + e.beside)
				cached += float64(predicted) * e.hit * (1 + e.beside)
				o := Outcome{End: Completed, Prefilled: true}
				if e.tells {
					o.Prompt, o.Cached, o.CachedKnown = tokens, predicted, true
				}
				if e.long > 0 {
					open = append(open, func() { l.Done(o, f.now) })
					return
				}
				l.Done(o, f.now)
			}
			for i := range blocks * 16 / 50_000 * 5 { // it fills up
				f.serve(&Request{Prompt: f.prompt(conversation(text(200_000, uint64(i+2))))})
			}
			ask(-1)
			read()
			for w := range e.windows {
				for i := range 4 {
					ask(w*10 + i)
				}
				if e.restart && w == e.windows-1 {
					f.r.Emptied(rep)
				}
				f.pass(e.every)
				if w >= e.long { // the first answers end
					for range min(4, len(open)) {
						open[0]()
						open = open[1:]
					}
				}
				read()
			}
			for _, end := range open {
				end()
			}
			f.idle()
			st := f.r.States(f.now)[0]
			if share := float64(st.Capacity) / blocks; share < least || share > most {
				t.Errorf("%v of the capacity is believed, want %v to %v", share, least, most)
			}
			if st.Windowed != known || known && (st.WindowGap < gap-.01 || st.WindowGap > gap+.01) {
				t.Errorf("the gap is %v, known: %v; want %v, %v", st.WindowGap, st.Windowed, gap, known)
			}
		})
	}
	const s = time.Second
	f("all is there, and there may be room for more", engine{hit: 1, every: 20 * s, windows: 3}, 1.05, 1.10, 0, true)
	f("nearly all", engine{hit: .97, every: 20 * s, windows: 3}, 1, 1, .03, true)
	f("a tenth is missing", engine{hit: .9, every: 20 * s, windows: 1}, .85, .91, .1, true)
	f("a tenth is missing, with others' requests", engine{hit: .9, beside: 7, every: 20 * s, windows: 1}, .85, .91, .1, true)
	f("nothing is there: no more than three tenths a window", engine{hit: .001, every: 20 * s, windows: 1}, .65, .71, 1, true)
	f("nothing is there, for long: an eighth stays", engine{hit: .001, every: 20 * s, windows: 9}, .12, .13, 1, true)
	f("more is there than was believed", engine{hit: 1.001, every: 20 * s, windows: 1}, 1.02, 1.04, -.001, true)
	f("windows are not too short", engine{hit: .5, every: 2 * s, windows: 7}, 1, 1, 0, false)
	f("short readings add up", engine{hit: .9, every: 3 * s, windows: 6}, .85, .91, .1, true)
	f("answers tell", engine{hit: .5, every: 20 * s, windows: 3, tells: true}, .99, 1.2, 0, false)
	f("answers tell, and take longer than a window", engine{hit: .5, every: 20 * s, windows: 5, tells: true, long: 2}, .99, 1.2, 0, false)
	f("there is no such counter", engine{hit: .5, every: 20 * s, windows: 3, blind: true}, 1, 1, 0, false)
	f("a restart within", engine{hit: .5, every: 20 * s, windows: 1, restart: true}, 1, 1, 0, false)
}
