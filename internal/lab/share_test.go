package lab

import (
	"container/heap"
	"reflect"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/prefix"
	"github.com/warmpath/warmpath/internal/router"
)

// TestAWordIsWhatWasSaid: a router may use a chain again after it has told of it, and
// the others hear of it later.
func TestAWordIsWhatWasSaid(t *testing.T) {
	said := func() *prefix.Chain {
		return &prefix.Chain{Cuts: []prefix.Cut{{Hash: 1, Tokens: 128}, {Hash: 2, Tokens: 256}, {Hash: 3, Tokens: 384}}, Answers: []prefix.Span{{Begin: 0, End: 1}}, Tokens: 400}
	}
	f := &fleet{s: Scenario{Gateways: 2, PrefixLag: 250 * time.Millisecond}, now: time.Second}
	c := said()
	f.share(0, router.Event{Kind: router.Holds, Chain: c, Prompt: 400})
	c.Cuts[0].Hash, c.Answers[0].End, c.Tokens = 99, 99, 99
	if e := heap.Pop(&f.events).(event); e.at != 1250*time.Millisecond || !reflect.DeepEqual(e.word.Chain, said()) {
		t.Errorf("at %v the others hear of %+v, said was %+v", e.at, e.word.Chain, said())
	}
	f.share(0, router.Event{Kind: router.Routed, Work: 1})
	if e := heap.Pop(&f.events).(event); e.word.Chain != nil || e.word.Work != 1 {
		t.Errorf("a word of load is heard as %+v", e.word)
	}
}
