package router

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/replica"
)

// average is one slot's load and requests in flight by their definition: each is reckoned
// from what happened, not from decision to decision.
type average struct {
	at       []time.Time // of reservations
	work     []float64
	changed  time.Time // when the requests in flight last did
	inFlight float64
	busy     float64 // then
}

func left(from, to time.Time) float64 { return math.Exp(-to.Sub(from).Seconds() / loadMemory) }

func (a *average) busyAt(now time.Time) float64 {
	return a.inFlight + left(a.changed, now)*(a.busy-a.inFlight)
}

func (a *average) loadAt(now time.Time) (load float64) {
	for i, at := range a.at {
		load += a.work[i] / loadMemory * left(at, now)
	}
	return load
}

func (a *average) add(n float64, now time.Time) {
	a.busy, a.changed = a.busyAt(now), now
	a.inFlight += n
}

// TestADecisionIsMadeFromWhatTheFormulasSay holds what every candidate is judged by to
// its definition, while requests come and go on parts of the fleet at odd moments.
func TestADecisionIsMadeFromWhatTheFormulasSay(t *testing.T) {
	const replicas = 7
	near := func(got, want float64) bool { return math.Abs(got-want) <= 1e-9*max(1, math.Abs(want)) }
	for seed := range uint64(6) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		f := newFleet(t, replicas)
		for i, rep := range f.model.Replicas {
			f.r.Told(rep, replica.Facts{BlockSize: 16 << (i % 3), Blocks: 100 + 30*i}) // soon full
		}
		var averages [replicas]average
		var open []*Lease
		for range 400 {
			if rnd.IntN(4) > 0 { // several things happen at the same moment
				f.pass(time.Duration(rnd.ExpFloat64() * rnd.Float64() * float64(time.Second)))
			}
			if rnd.IntN(100) == 0 {
				f.pass(time.Hour)
			}
			if len(open) > 0 && rnd.IntN(2) == 0 {
				i := rnd.IntN(len(open))
				l := open[i]
				open = append(open[:i], open[i+1:]...)
				l.Done(Outcome{End: Completed, Prefilled: true}, f.now)
				averages[l.Replica().Slot].add(-1, f.now)
				continue
			}
			from := rnd.IntN(replicas)
			req := &Request{
				Prompt: f.prompt(conversation(text(2000, uint64(rnd.IntN(3))), fmt.Sprint(rnd.IntN(5)), fmt.Sprint(rnd.IntN(100)))), Stream: rnd.IntN(2) == 0,
				Model: &replica.Model{Name: "m", Replicas: f.model.Replicas[from : from+1+rnd.IntN(replicas-from)]}, NoCache: rnd.IntN(10) == 0, Tried: f.model.Replicas[:rnd.IntN(2)],
			}
			c, err := f.r.decide(req, f.now)
			if err != nil {
				continue // it was tried
			}
			_, known := f.r.lookup(req, f.r.model(req.Model), nil)
			load, minWait, least := 0.0, math.Inf(1), math.Inf(1)
			for i, s := range f.r.chosen {
				a, slot := &f.r.candidates[i], s.at()
				want := &averages[slot]
				load += want.loadAt(f.now) / float64(len(f.r.chosen))
				minWait, least = min(minWait, a.Wait), min(least, a.Total)
				if a.InFlight != int(want.inFlight) || !near(a.Busy, max(want.busyAt(f.now), want.inFlight)) {
					t.Fatalf("seed %d, slot %d: %d in flight, %v on average; want %v and %v", seed, slot, a.InFlight, a.Busy, want.inFlight, want.busyAt(f.now))
				}
				missing := 0.0
				if n := int(known.Shared) - a.Cached; n > f.r.index.Block(slot) {
					missing = a.Pace * work(a.Cached, n)
				}
				if !near(a.Work, a.Pace*work(a.Cached, c.total-a.Cached)) || !near(a.Missing, missing) {
					t.Fatalf("seed %d, slot %d: %v s of work, %v of them on a shared beginning; want %v and %v", seed, slot, a.Work, a.Missing, a.Pace*work(a.Cached, c.total-a.Cached), missing)
				}
				weight := min(maxWeight, (1+loadWeight*min(1, c.fleet.Load/loadFull))*(1+c.fleet.MinWait/waitUnit))
				if want := a.Wait + weight*(a.Work+a.Evicted) - c.fleet.credit(a) + 100*decodeTime*a.Pace*float64(a.InFlight) + a.Penalty; !near(a.Total, want) {
					t.Fatalf("seed %d, slot %d: it costs %v, want %v", seed, slot, a.Total, want)
				}
				if f.r.held[slot].cached > f.r.held[f.r.chosen[c.longest].at()].cached {
					t.Fatalf("seed %d: slot %d holds more than who holds the most", seed, slot)
				}
			}
			if !near(c.fleet.Load, load) || c.fleet.MinWait != minWait || c.fleet.Least != least {
				t.Fatalf("seed %d: %v, want a load of %v, a wait of %v and a cost of %v", seed, c.fleet, load, minWait, least)
			}
			l, err := f.r.Acquire(req, f.now)
			if err != nil {
				t.Fatal(err)
			}
			if open = append(open, l); rnd.IntN(2) == 0 {
				l.Prefilled(f.now)
			}
			a := &averages[l.Replica().Slot]
			a.add(1, f.now)
			a.at, a.work = append(a.at, f.now), append(a.work, l.work)
		}
	}
}
