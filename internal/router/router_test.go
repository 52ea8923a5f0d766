package router

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/openai"
	"github.com/warmpath/warmpath/internal/prefix"
	"github.com/warmpath/warmpath/internal/replica"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// fleet is a router over replicas that answer as the test says.
type fleet struct {
	t     *testing.T
	r     *Router
	model *replica.Model
	now   time.Time
}

func newFleet(t *testing.T, n int) *fleet {
	t.Helper()
	r, err := New(DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	f := &fleet{t: t, r: r, model: &replica.Model{Name: "m"}, now: epoch}
	for i := range n {
		f.model.Replicas = append(f.model.Replicas, replica.Virtual(fmt.Sprintf("r%d:80", i), i))
	}
	return f
}

func (f *fleet) prompt(body string) *prefix.Prompt {
	f.t.Helper()
	req, err := openai.Parse(openai.Chat, []byte(body))
	if err != nil {
		f.t.Fatal(err)
	}
	p := new(prefix.Prompt)
	if err := p.Read(&req); err != nil {
		f.t.Fatal(err)
	}
	return p
}

func (f *fleet) acquire(req *Request) *Lease {
	f.t.Helper()
	req.Model = f.model
	if req.Prompt == nil {
		req.Prompt = new(prefix.Prompt)
	}
	l, err := f.r.Acquire(req, f.now)
	if err != nil {
		f.t.Fatal(err)
	}
	return l
}

func (f *fleet) pass(d time.Duration) { f.now = f.now.Add(d) }

// serve runs one request alone, from choice to end.
func (f *fleet) serve(req *Request) *Lease {
	f.t.Helper()
	req.Stream = true
	l := f.acquire(req)
	f.pass(l.Predicted())
	l.Prefilled(f.now)
	l.Done(Outcome{End: Completed, Prefilled: true}, f.now)
	return l
}

// idle fails the test unless nothing is counted on any replica.
func (f *fleet) idle() {
	f.t.Helper()
	for _, s := range f.r.slots {
		if s != nil && (s.head != nil || s.tail != nil || s.sum != 0 || s.queued != 0 || s.tokens != 0 || s.decoding != 0) {
			f.t.Errorf("%s is not idle: %v s, %d tokens pending, %d decoding", s.replica.ID, s.sum, s.tokens, s.decoding)
		}
	}
}

func text(n int, seed uint64) string {
	r := rand.New(rand.NewPCG(seed, 1))
	var b strings.Builder
	for b.Len() < n {
		fmt.Fprintf(&b, "w%d ", r.IntN(10000))
	}
	return b.String()[:n]
}

func conversation(system string, turns ...string) string {
	var b strings.Builder
	b.WriteString(`{"model":"m","messages":[{"role":"system","content":"` + system + `"}`)
	for i, turn := range turns {
		b.WriteString(`,{"role":"` + [...]string{"user", "assistant"}[i%2] + `","content":"` + turn + `"}`)
	}
	b.WriteString(`]}`)
	return b.String()
}

func TestAPrefixGoesWhereItIsHeld(t *testing.T) {
	f := newFleet(t, 4)
	first := f.serve(&Request{Prompt: f.prompt(conversation(text(8000, 1), "one"))})
	for i := range 10 {
		l := f.serve(&Request{Prompt: f.prompt(conversation(text(8000, 1), fmt.Sprint("question ", i)))})
		if l.Replica() != first.Replica() {
			t.Fatalf("question %d went to %s, the prefix is on %s", i, l.Replica().ID, first.Replica().ID)
		}
		if prompt, cached := l.Tokens(); cached < prompt*9/10 {
			t.Errorf("%d of %d tokens predicted", cached, prompt)
		}
	}
	f.idle()
}

func TestNewPromptsGoToTheIdle(t *testing.T) { // bugs.md D01
	f := newFleet(t, 2)
	busy := f.model.Replicas[0]
	var open []*Lease
	f.model.Replicas = f.model.Replicas[:1]
	for i := range 50 {
		l := f.acquire(&Request{Prompt: f.prompt(conversation(text(2000, uint64(i)), "x")), Stream: true})
		open = append(open, l)
	}
	f.model.Replicas = append(f.model.Replicas, replica.Virtual("r1:80", 1))
	for i := range 20 {
		l := f.acquire(&Request{Prompt: f.prompt(conversation(text(2000, uint64(1000+i)), "y")), Stream: true})
		open = append(open, l)
		if l.Replica() == busy {
			t.Errorf("new prompt %d went to the replica with 50 in flight", i)
		}
	}
	for _, l := range open {
		l.Done(Outcome{End: Canceled}, f.now)
	}
	f.idle()
}

// TestSessionsUnderOneSystemPromptSpread is bugs.md D02: 200 sessions of 5 turns
// under one 4 KB system text, 50 at a time, on 4 replicas.
func TestSessionsUnderOneSystemPromptSpread(t *testing.T) {
	f := newFleet(t, 4)
	system := text(4096, 7)
	type chat struct {
		id    int
		turns []string
		home  *replica.Replica
		lease *Lease
		step  int // 0 to send, 1 prefilling, 2 decoding
		due   time.Time
	}
	load := map[*replica.Replica]int{}
	home, later, next := 0, 0, 0
	r := rand.New(rand.NewPCG(5, 5))
	var active []*chat
	for next < 200 || len(active) > 0 {
		for len(active) < 50 && next < 200 {
			active = append(active, &chat{id: next, due: f.now.Add(time.Duration(r.IntN(500)) * time.Millisecond)})
			next++
		}
		first := 0
		for i, c := range active {
			if c.due.Before(active[first].due) {
				first = i
			}
		}
		c := active[first]
		f.now = c.due
		switch c.step {
		case 0:
			c.turns = append(c.turns, text(150, uint64(c.id*10+len(c.turns))))
			c.lease = f.acquire(&Request{Prompt: f.prompt(conversation(system, c.turns...)), Stream: true})
			load[c.lease.Replica()]++
			if c.home == nil {
				c.home = c.lease.Replica()
			} else {
				later++
				if c.home == c.lease.Replica() {
					home++
				}
			}
			c.due = f.now.Add(c.lease.Predicted())
		case 1:
			c.lease.Prefilled(f.now)
			c.due = f.now.Add(time.Duration(500+r.IntN(1000)) * time.Millisecond)
		case 2:
			c.lease.Done(Outcome{End: Completed, Prefilled: true, Completion: 60}, f.now)
			c.turns = append(c.turns, text(240, uint64(c.id*10+len(c.turns))))
			c.due = f.now
			if len(c.turns) == 10 {
				active = append(active[:first], active[first+1:]...)
			}
		}
		c.step = (c.step + 1) % 3
	}
	most := 0
	for _, n := range load {
		most = max(most, n)
	}
	t.Logf("busiest %.2f x the mean, %.1f %% of later turns at home", float64(most)/250, 100*float64(home)/float64(later))
	if float64(most) > 1.5*250 {
		t.Errorf("the busiest replica got %d of 1000 requests", most)
	}
	if float64(home) < 0.9*float64(later) {
		t.Errorf("%d of %d later turns went where the session's first did", home, later)
	}
	f.idle()
}

func TestABurstOfOnePrefixStaysTogetherUntilWaitingCostsMore(t *testing.T) {
	f := newFleet(t, 8)
	counts := map[*replica.Replica]int{}
	var open []*Lease
	for range 500 {
		l := f.acquire(&Request{Prompt: f.prompt(conversation(text(32000, 3), "q")), Stream: true})
		counts[l.Replica()]++
		open = append(open, l)
		f.pass(20 * time.Microsecond)
	}
	most := 0
	for _, n := range counts {
		most = max(most, n)
	}
	if len(counts) < 2 || most > 500/4 {
		t.Errorf("500 requests went to %d replicas, %d to the busiest", len(counts), most)
	}
	for _, l := range open {
		l.Done(Outcome{End: Failed}, f.now)
	}
	f.idle()
}

func TestAFailingReplicaIsAvoidedForAWhile(t *testing.T) {
	f := newFleet(t, 4)
	bad := f.model.Replicas[2]
	got := 0
	for i := range 400 {
		l := f.acquire(&Request{Prompt: f.prompt(conversation(text(100, uint64(i)), "q")), Stream: true})
		f.pass(time.Millisecond)
		if l.Replica() == bad {
			got++
			l.Done(Outcome{End: Failed}, f.now)
		} else {
			l.Prefilled(f.now)
			l.Done(Outcome{End: Completed, Prefilled: true}, f.now)
		}
		f.pass(9 * time.Millisecond)
	}
	if got > 8 {
		t.Errorf("a replica that fails in 1 ms got %d of 400 requests", got)
	}
	f.pass(20 * time.Second)
	for i := range 40 {
		if f.serve(&Request{Prompt: f.prompt(conversation(text(100, uint64(5000+i)), "q"))}).Replica() == bad {
			return
		}
	}
	t.Error("it got none of 40 requests 20 s later")
}

func TestAFrozenReplicaGetsNothingMore(t *testing.T) {
	f := newFleet(t, 2)
	stuck := f.acquire(&Request{Prompt: f.prompt(conversation(text(400, 1), "q")), Stream: true})
	f.pass(2 * time.Second)
	for i := range 20 {
		l := f.serve(&Request{Prompt: f.prompt(conversation(text(400, 1), fmt.Sprint(i)))})
		if l.Replica() == stuck.Replica() {
			t.Fatalf("request %d went to the replica that has not moved for 2 s", i)
		}
	}
	stuck.Done(Outcome{End: Canceled}, f.now)
	f.idle()
}

func TestASlowReplicaIsFoundOut(t *testing.T) {
	f := newFleet(t, 2)
	slow := f.model.Replicas[0]
	for i := range 300 {
		l := f.acquire(&Request{Prompt: f.prompt(conversation(text(16000, uint64(i)), "q")), Stream: true})
		took := seconds(work(0, l.uncached))
		if l.Replica() == slow {
			took *= 4
		}
		f.pass(took)
		l.Prefilled(f.now)
		l.Done(Outcome{End: Completed, Prefilled: true}, f.now)
	}
	if p := f.r.slots[0].pace; p < 2.5 || p > 5 {
		t.Errorf("pace %.2f, want about 4", p)
	}
	if p := f.r.slots[1].pace; p < 0.8 || p > 1.25 {
		t.Errorf("pace %.2f, want about 1", p)
	}
}

func TestOneStallDoesNotMakeAReplicaSlow(t *testing.T) {
	f := newFleet(t, 2)
	stalled := f.model.Replicas[0]
	held := 0
	for i := range 1000 { // two minutes, in which nobody needs the second replica
		l := f.acquire(&Request{Prompt: f.prompt(conversation(text(4000, uint64(i)), "q")), Stream: true})
		took := seconds(work(0, l.uncached))
		if l.Replica() == stalled {
			if held++; held == 1 {
				took *= 30 // once
			}
		}
		f.pass(took)
		l.Prefilled(f.now)
		l.Done(Outcome{End: Completed, Prefilled: true}, f.now)
	}
	if held < 150 {
		t.Errorf("the replica that stalled once got %d of 1000 requests", held)
	}
}

// TestAReplicaThatWasSlowIsTriedAgain: its pace is not sampled while it gets nothing.
func TestAReplicaThatWasSlowIsTriedAgain(t *testing.T) {
	s := newSlot(replica.Virtual("r:80", 0))
	s.pace, s.samples, s.sampled = 8, 9, 0
	for after, want := range map[float64]float64{0: 8 / paceNoise, paceMemory: math.Sqrt(8) / paceNoise, 300: 1} {
		if got := s.steadyPace(1, moment(0).plus(after)); math.Abs(got-want) > 0.01 {
			t.Errorf("after %v s the pace counts as %.2f, want %.2f", after, got, want)
		}
	}
}

func TestSessionsStick(t *testing.T) {
	f := newFleet(t, 4)
	key := SessionKey("m", "header", "s1")
	first := f.serve(&Request{Prompt: f.prompt(conversation("a", "b")), Session: key})
	for i := range 20 {
		l := f.serve(&Request{Prompt: f.prompt(conversation(text(100, uint64(i)), "q")), Session: key})
		if l.Replica() != first.Replica() || l.Why() != Session {
			t.Fatalf("request %d of the session went to %s for %v", i, l.Replica().ID, l.Why())
		}
	}
	// It leaves a replica that keeps it waiting for longer than the slack.
	hold := f.acquire(&Request{Prompt: f.prompt(conversation(text(200_000, 99), "q")), Session: key, Stream: true})
	if l := f.serve(&Request{Prompt: f.prompt(conversation("c", "d")), Session: key}); l.Replica() == first.Replica() {
		t.Error("the session waits behind 6 s of work")
	}
	hold.Done(Outcome{End: Canceled}, f.now)

	response := SessionKey("m", "response", "resp_1")
	l := f.acquire(&Request{Prompt: f.prompt(conversation("a", "b"))})
	l.Done(Outcome{End: Completed, Prompt: 3000, Completion: 50, Response: response}, f.now)
	next := f.acquire(&Request{Prompt: f.prompt(conversation("", "and then?")), Previous: response})
	if prompt, cached := next.Tokens(); next.Replica() != l.Replica() || cached < 3000 || prompt < 3050 {
		t.Errorf("a continued response went to %s with %d of %d tokens cached", next.Replica().ID, cached, prompt)
	}
	next.Done(Outcome{End: Canceled}, f.now)
	f.idle()
}

func TestTriedReplicasAreNotChosenAgain(t *testing.T) {
	f := newFleet(t, 3)
	req := &Request{Prompt: f.prompt(conversation("a", "b"))}
	for range 3 {
		l := f.acquire(req)
		for _, r := range req.Tried {
			if r == l.Replica() {
				t.Fatal("a replica was chosen twice")
			}
		}
		req.Tried = append(req.Tried, l.Replica())
		l.Done(Outcome{End: Failed}, f.now)
	}
	if _, err := f.r.Acquire(req, f.now); !errors.Is(err, ErrNoReplica) {
		t.Errorf("got %v", err)
	}
	f.idle()
}

// TestANextTurnIsPredictedWithItsAnswer covers the previous prompt and what the
// replica said to it.
func TestANextTurnIsPredictedWithItsAnswer(t *testing.T) {
	f := newFleet(t, 2)
	system, answer := text(4000, 1), text(1600, 2)
	l := f.acquire(&Request{Prompt: f.prompt(conversation(system, "q")), Stream: true})
	l.Prefilled(f.now)
	l.Done(Outcome{End: Completed, Prefilled: true, Prompt: 1010, Completion: 401, Cached: 0, CachedKnown: true}, f.now)
	next := f.acquire(&Request{Prompt: f.prompt(conversation(system, "q", answer, "and?")), Stream: true})
	if _, cached := next.Tokens(); next.Replica() != l.Replica() || cached < 1010+350 || cached > 1010+400 {
		t.Errorf("%d tokens predicted, want about 1,410", cached)
	}
	next.Done(Outcome{End: Canceled}, f.now)
}

func TestARestartForgetsWhatWasHeld(t *testing.T) {
	f := newFleet(t, 2)
	l := f.serve(&Request{Prompt: f.prompt(conversation(text(8000, 1), "q"))})
	f.r.Emptied(l.Replica())
	next := f.serve(&Request{Prompt: f.prompt(conversation(text(8000, 1), "r"))})
	if _, cached := next.Tokens(); cached != 0 {
		t.Errorf("%d tokens predicted of an empty cache", cached)
	}
}

// TestAShortfallForgetsOnlyWhatIsOlder: the next request for a prefix comes while the
// first that found it gone is still being answered. What was used between the two
// times that it was computed is held.
func TestAShortfallForgetsOnlyWhatIsOlder(t *testing.T) {
	const others = 20
	f := newFleet(t, 1)
	ask := func(system uint64, question string) *Lease {
		l := f.acquire(&Request{Prompt: f.prompt(conversation(text(8000, system), question)), Stream: true})
		f.pass(l.Predicted())
		l.Prefilled(f.now)
		return l
	}
	for i := range uint64(others) {
		l := ask(i, "first")
		tokens, _ := l.Tokens()
		l.Done(Outcome{End: Completed, Prefilled: true, Prompt: tokens, CachedKnown: true}, f.now)
	}
	found, next := ask(0, "second"), ask(0, "third")
	tokens, _ := found.Tokens()
	found.Done(Outcome{End: Completed, Prefilled: true, Prompt: tokens, CachedKnown: true}, f.now)
	next.Done(Outcome{End: Canceled, Prefilled: true}, f.now)
	for i := range uint64(others) {
		l := ask(i, "last")
		if prompt, cached := l.Tokens(); cached < prompt*9/10 {
			t.Errorf("prefix %d: %d of %d tokens predicted", i, cached, prompt)
		}
		l.Done(Outcome{End: Canceled, Prefilled: true}, f.now)
	}
}

// TestPredictionsKeepToWholeBlocksAndLeaveOneToken is vLLM's rule: at most
// prompt - 1 tokens, rounded down to blocks.
func TestPredictionsKeepToWholeBlocksAndLeaveOneToken(t *testing.T) {
	f := newFleet(t, 1)
	f.r.Told(f.model.Replicas[0], replica.Facts{BlockSize: 128, Blocks: 1000})
	ids := make([]string, 512)
	for i := range ids {
		ids[i] = fmt.Sprint(i)
	}
	for n, want := range map[int]int{127: 0, 128: 0, 129: 128, 256: 128, 300: 256, 512: 384} {
		body := `{"model":"m","prompt":[` + strings.Join(ids[:n], ",") + `]}`
		for i := range 2 {
			req, err := openai.Parse(openai.Completions, []byte(body))
			if err != nil {
				t.Fatal(err)
			}
			p := new(prefix.Prompt)
			if err := p.Read(&req); err != nil {
				t.Fatal(err)
			}
			l := f.serve(&Request{Prompt: p})
			if prompt, cached := l.Tokens(); prompt != n || i == 1 && cached != want {
				t.Errorf("%d tokens: %d counted, %d predicted, want %d", n, prompt, cached, want)
			}
		}
	}
}

func TestUnusableSettingsAreRefusedByName(t *testing.T) {
	for want, edit := range map[string]func(*Config){
		"policy":        func(c *Config) { c.Policy = "best" },
		"index_bytes":   func(c *Config) { c.IndexBytes = 5 },
		"session_slack": func(c *Config) { c.SessionSlack = -1 },
		"decode_tokens": func(c *Config) { c.DecodeTokens = -1 },
	} {
		c := DefaultConfig()
		edit(&c)
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", want, err)
		}
	}
}

// TestNothingLeaks ends requests in every phase and way, in any order.
func TestNothingLeaks(t *testing.T) {
	f := newFleet(t, 3)
	r := rand.New(rand.NewPCG(9, 9))
	var open []*Lease
	for i := range 5000 {
		switch {
		case len(open) > 0 && r.IntN(3) == 0:
			k := r.IntN(len(open))
			l := open[k]
			o := Outcome{End: End(r.IntN(5)), Prompt: r.IntN(3000), Completion: r.IntN(50), Cached: r.IntN(2000), CachedKnown: r.IntN(2) == 0}
			if l.state == decoding && r.IntN(2) == 0 {
				o.Prefilled = true
			}
			l.Done(o, f.now)
			l.Done(o, f.now)
			l.Prefilled(f.now)
			open = append(open[:k], open[k+1:]...)
		case len(open) > 0 && r.IntN(3) == 0:
			open[r.IntN(len(open))].Prefilled(f.now)
		default:
			open = append(open, f.acquire(&Request{Prompt: f.prompt(conversation(text(600, uint64(i%40)), fmt.Sprint(i))), Stream: r.IntN(2) == 0}))
		}
		f.pass(time.Duration(r.IntN(30)) * time.Millisecond)
	}
	for _, l := range open {
		l.Done(Outcome{End: Canceled}, f.now)
	}
	f.idle()
}

// TestWhatAnEngineCannotHaveCountedTeachesNothing: its numbers are shared by all
// replicas.
func TestWhatAnEngineCannotHaveCountedTeachesNothing(t *testing.T) {
	f := newFleet(t, 2)
	body := conversation(text(4000, 1), "q")
	for _, counted := range []int{2_000_000_000, 1} {
		l := f.acquire(&Request{Prompt: f.prompt(body), Stream: true})
		l.Prefilled(f.now)
		l.Done(Outcome{End: Completed, Prefilled: true, Prompt: counted, CachedKnown: true}, f.now)
		next := f.acquire(&Request{Prompt: f.prompt(body), Stream: true})
		if prompt, _ := next.Tokens(); prompt < 500 || prompt > 2000 {
			t.Errorf("after %d tokens were reported, the prompt counts as %d", counted, prompt)
		}
		next.Done(Outcome{End: Canceled}, f.now)
	}
}

func TestARestartDuringARequestLeavesNothingOfIt(t *testing.T) {
	f := newFleet(t, 1)
	a := f.acquire(&Request{Prompt: f.prompt(conversation(text(4000, 1), "a")), Stream: true})
	f.r.Emptied(a.Replica())
	b := f.acquire(&Request{Prompt: f.prompt(conversation(text(4000, 1), "b")), Stream: true})
	a.Prefilled(f.now)
	a.Done(Outcome{End: Failed}, f.now)
	b.Done(Outcome{End: Failed}, f.now)
	c := f.acquire(&Request{Prompt: f.prompt(conversation(text(4000, 1), "c")), Stream: true})
	if _, cached := c.Tokens(); cached != 0 {
		t.Errorf("%d tokens are predicted of what nobody computed", cached)
	}
	c.Done(Outcome{End: Canceled}, f.now)
	f.idle()
}

func TestAReplicaOfOneBlockHoldsNothing(t *testing.T) {
	f := newFleet(t, 1)
	f.r.Told(f.model.Replicas[0], replica.Facts{BlockSize: 16, Blocks: 1})
	for range 2 {
		l := f.serve(&Request{Prompt: f.prompt(conversation(text(4000, 1), "a"))})
		if _, cached := l.Tokens(); cached > 16 {
			t.Errorf("%d tokens predicted", cached)
		}
	}
}
