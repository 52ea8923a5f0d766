package bench

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// server answers after a time, like [Client.Send].
func server(takes time.Duration) func(context.Context, Call) Answer {
	return func(ctx context.Context, call Call) Answer {
		a := Answer{Sent: time.Now(), First: takes, Last: takes, Took: takes, Text: string(call.Body)}
		if !sleepUntil(ctx, a.Sent.Add(takes)) {
			a.Failure, a.Err = Stopped, ctx.Err()
		}
		return a
	}
}

func fixed(body string) func([]Answer) Call {
	return func([]Answer) Call { return Call{Body: []byte(body)} }
}

func every(gap time.Duration, n int) (turns []*Turn) {
	for i := range n {
		turns = append(turns, &Turn{At: time.Duration(i) * gap, Call: fixed("")})
	}
	return turns
}

func TestRequestsAreSentWhenDueHoweverSlowTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tally Tally
		l := Loop{Send: server(time.Minute), InFlight: 1000, Done: tally.Add}
		took := l.Run(t.Context(), every(10*time.Millisecond, 500))
		if want := 499*10*time.Millisecond + time.Minute; took != want || len(tally.TTFT) != 500 {
			t.Errorf("%d answers after %v, want 500 after %v", len(tally.TTFT), took, want)
		}
		if late := slices.Max(tally.Late); late != 0 {
			t.Errorf("sent %v late", late)
		}
	})
}

// TestWaitingForASlotIsLatenessAndCounts: a client that sends the next request
// when there is room hides the queue that it made itself, unless it measures from
// when the request was due.
func TestWaitingForASlotIsLatenessAndCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tally Tally
		l := Loop{Send: server(100 * time.Millisecond), InFlight: 1, Done: tally.Add}
		l.Run(t.Context(), every(10*time.Millisecond, 20))
		for i, late := range tally.Late {
			if want := time.Duration(i) * 90 * time.Millisecond; late != want || tally.TTFT[i] != want+100*time.Millisecond {
				t.Fatalf("request %d: %v late, first token after %v; want %v and 100 ms more", i, late, tally.TTFT[i], want)
			}
		}
		if got := tally.LateP99(); got != 19*90*time.Millisecond {
			t.Errorf("P99 of lateness is %v", got)
		}
	})
}

func TestTheNextTurnComesAfterTheThinkTimeAndSeesTheAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var heard []string
		third := &Turn{Call: func(said []Answer) Call {
			for _, a := range said {
				heard = append(heard, a.Text)
			}
			return Call{Body: []byte("three")}
		}}
		first := &Turn{At: time.Second, Call: fixed("one"), Think: 5 * time.Second, Next: &Turn{Call: fixed("two"), Think: 7 * time.Second, Next: third}}
		var sent []time.Duration
		start := time.Now().Add(lead)
		l := Loop{Send: server(2 * time.Second), InFlight: 1, Done: func(a Answer, _ int) {
			sent = append(sent, a.Sent.Sub(start))
			if a.Late != 0 {
				t.Errorf("%q: %v late", a.Text, a.Late)
			}
		}}
		l.Run(t.Context(), []*Turn{first})
		if want := []time.Duration{time.Second, 8 * time.Second, 17 * time.Second}; !slices.Equal(sent, want) {
			t.Errorf("sent at %v, want %v", sent, want)
		}
		if !slices.Equal(heard, []string{"one", "two"}) {
			t.Errorf("the third turn knows %v", heard)
		}
	})
}

func TestAFailedTurnEndsItsSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turn := func(next *Turn) *Turn { return &Turn{Call: fixed(""), Next: next} }
		calls := 0
		var tally Tally
		l := Loop{InFlight: 4, Done: tally.Add, Send: func(context.Context, Call) Answer {
			if calls++; calls == 2 {
				return Answer{Sent: time.Now(), Failure: Cut, Err: errors.New("cut")}
			}
			return Answer{Sent: time.Now(), First: 1}
		}}
		l.Run(t.Context(), []*Turn{turn(turn(turn(turn(nil))))})
		if calls != 2 || tally.Failed() != 1 || tally.Failures[Cut] != 1 || tally.Dropped != 2 || len(tally.TTFT) != 1 || tally.Err == nil {
			t.Errorf("%d requests, %+v", calls, tally)
		}
	})
}

func TestStoppingEndsWhatIsUnderWayAndSendsNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithTimeout(t.Context(), 95*time.Millisecond)
		defer stop()
		var tally Tally
		l := Loop{Send: server(time.Hour), InFlight: 3, Done: tally.Add}
		took := l.Run(ctx, every(10*time.Millisecond, 100))
		if took > 100*time.Millisecond || tally.Failures[Stopped] != 3 {
			t.Errorf("after %v: %+v", took, tally)
		}
	})
}

// TestAServerThatAnswersOneAtATime is the same over sockets: that the server lets
// requests wait shows in the times to first token, not in when they are sent.
func TestAServerThatAnswersOneAtATime(t *testing.T) {
	const n, gap, takes = 12, 5 * time.Millisecond, 25 * time.Millisecond
	one := make(chan struct{}, 1)
	client := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		one <- struct{}{}
		time.Sleep(takes)
		<-one
		write(w, role, hello, usage, done)
	}, Config{})
	turns := every(gap, n)
	for _, turn := range turns {
		turn.Call = func([]Answer) Call { return call }
	}
	var tally Tally
	l := Loop{Send: client.Send, InFlight: n, Done: tally.Add}
	l.Run(t.Context(), turns)
	if tally.Failed() > 0 || len(tally.TTFT) != n {
		t.Fatalf("%+v", tally)
	}
	if slowest, want := slices.Max(tally.TTFT), n*takes-(n-1)*gap; slowest < want {
		t.Errorf("the slowest took %v, want at least %v", slowest, want)
	}
	if tally.Prompt != n*40 || tally.Cached != n*16 || tally.Output != n*9 || !tally.CachedKnown {
		t.Errorf("tokens %+v", tally)
	}
}

func TestQuantiles(t *testing.T) {
	times := []time.Duration{5, 1, 4, 2, 3}
	for q, want := range map[float64]time.Duration{0: 1, .5: 3, .8: 5, 1: 5} {
		if got := Quantile(times, q); got != want {
			t.Errorf("%v: %d, want %d", q, got, want)
		}
	}
	if Quantile(nil, .5) != 0 || times[0] != 5 {
		t.Error("none has one, or the order was changed")
	}
}
