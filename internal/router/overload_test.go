package router

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// TestTheShortestWaitDecidesWhetherARequestIsTaken.
func TestTheShortestWaitDecidesWhetherARequestIsTaken(t *testing.T) {
	f := newFleet(t, 2)
	f.r.cfg.MaxWait = 5 * time.Second
	long := func(seed uint64) *Request {
		return &Request{Prompt: f.prompt(conversation(text(80_000, seed), "q")), Stream: true, Model: f.model} // some 3 s
	}
	for seed := range uint64(8) { // until something is known of both
		f.serve(long(seed))
	}
	var leases []*Lease
	var overload *OverloadError
	for seed := range uint64(20) {
		l, err := f.r.Acquire(long(100+seed), f.now)
		if errors.As(err, &overload) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		leases = append(leases, l)
	}
	if n := len(leases); n < 4 || n > 8 {
		t.Fatalf("%d requests of some 3 s were taken on 2 replicas", n)
	}
	if overload == nil || overload.Wait <= f.r.cfg.MaxWait || overload.RetryAfter() < time.Second || !strings.Contains(overload.Error(), "max_wait") {
		t.Fatalf("got %+v", overload)
	}
	if _, err := f.r.Acquire(&Request{Prompt: long(1).Prompt, Model: f.model, Tried: f.model.Replicas[:1]}, f.now); err != nil {
		t.Errorf("what was taken is refused when it is tried again: %v", err)
	}
	f.r.cfg.MaxWait = 0
	if _, err := f.r.Acquire(long(1), f.now); err != nil {
		t.Errorf("it is off: %v", err)
	}
	f.r.cfg.MaxWait = 5 * time.Second
	for _, l := range leases {
		l.Done(Outcome{End: Canceled}, f.now)
	}
}

func TestAStuckRequestIsNoQueue(t *testing.T) {
	f := newFleet(t, 1)
	for range 8 {
		f.serve(&Request{Prompt: f.prompt(conversation(text(80_000, 1), "q"))})
	}
	l := f.acquire(&Request{Prompt: f.prompt(conversation("a", "q")), Stream: true})
	f.pass(10 * time.Minute)
	if _, err := f.r.Acquire(&Request{Prompt: f.prompt(conversation("b", "q")), Model: f.model}, f.now); err != nil {
		t.Errorf("one request that nothing comes of shuts the replica: %v", err)
	}
	l.Done(Outcome{End: Canceled}, f.now)
}

// TestNobodyIsRefusedForAPaceThatIsAssumed.
func TestNobodyIsRefusedForAPaceThatIsAssumed(t *testing.T) {
	f := newFleet(t, 1)
	for seed := range uint64(30) {
		f.acquire(&Request{Prompt: f.prompt(conversation(text(80_000, seed), "q")), Stream: true})
	}
}
