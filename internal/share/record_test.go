package share

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/warmpath/warmpath/internal/prefix"
	"github.com/warmpath/warmpath/internal/replica"
	"github.com/warmpath/warmpath/internal/router"
)

// heard is a listener that keeps everything.
type heard struct {
	events []router.Event
	lists  [][]router.Event
	left   int
	words  []notice
	pages  []replica.Facts
}

func (h *heard) event(e *router.Event) {
	event := *e
	if e.Chain != nil {
		event.Chain = &prefix.Chain{Cuts: append([]prefix.Cut(nil), e.Chain.Cuts...), Tokens: e.Chain.Tokens, Exact: e.Chain.Exact}
	}
	h.events = append(h.events, event)
}

func (h *heard) open(list []router.Event)        { h.lists = append(h.lists, list) }
func (h *heard) notice(n notice)                 { h.words = append(h.words, n) }
func (h *heard) facts(_ uint64, f replica.Facts) { h.pages = append(h.pages, f) }
func (h *heard) leave()                          { h.left++ }

func chain(tokens int32, hashes ...prefix.Hash) *prefix.Chain {
	c := &prefix.Chain{Tokens: tokens * int32(len(hashes))}
	for i, h := range hashes {
		c.Cuts = append(c.Cuts, prefix.Cut{Hash: h, Tokens: tokens * int32(i+1)})
	}
	return c
}

func TestBatchesAreReadAsTheyWereWritten(t *testing.T) {
	load := []router.Event{
		{Kind: router.Routed, Replica: 7, Lease: 1 << 40, Work: 1.5, Tokens: 12_000, Stream: true},
		{Kind: router.Routed, Replica: 8, Lease: 1<<40 + 1, Work: 0.25, Tokens: 1},
		{Kind: router.FirstSeen, Replica: 7, Lease: 1 << 40},
		{Kind: router.Ended, Replica: 7, Lease: 3},
		{Kind: router.Routed, Replica: 8, Lease: 4, Work: 1, Tokens: 512, Stream: true, Chain: chain(128, 1, 2, 3, 4), Factor: 1.5},
	}
	open := []router.Event{load[1], {Kind: router.FirstSeen, Replica: 9, Lease: 5}}
	exact := chain(16, 1, 2, 3)
	exact.Exact = true
	held := []router.Event{
		{Kind: router.Holds, Replica: 7, Chain: chain(128, 1, 2, 3, 4), Factor: 1, Prompt: 600, Answer: 20},
		{Kind: router.Holds, Replica: 8, Chain: chain(128, 1, 2, 9), Factor: 1.25, Known: true},
		{Kind: router.Holds, Replica: 7, Chain: exact, Factor: 1},
		{Kind: router.Dropped, Replica: 7, Chain: exact, Factor: 1},
		{Kind: router.Holds, Replica: 7, Chain: chain(128, 1<<63), Factor: 0.5},
	}
	keeps := router.Event{Kind: router.Keeps, Replica: 7, Session: 1<<63 + 5, Tokens: 700}

	b := newBatch(42, 17)
	for i := range load {
		b.load(&load[i])
	}
	b.open(open)
	b.open(nil)
	for i := range held {
		b.holds(&held[i])
	}
	b.keeps(&keeps)
	words := []notice{{7, isUnwell}, {99, isDrained}}
	b.notices(words)
	page := replica.Facts{BlockSize: 16, Blocks: 4096, Sleeping: true, Start: 1.7e9, Running: 3, Waiting: 4, Usage: 0.5, Prompt: 1e9, Cached: 5e8}
	b.facts(7, page)
	b.leave()
	h, r, err := readHead(b.data)
	if err != nil || h != (head{prefix.Rules(), 42, 17}) {
		t.Fatal(h, err)
	}
	got := &heard{}
	if n, err := r.records(got); err != nil || n != 17 {
		t.Fatal(n, err)
	}
	if want := append(append(load, held...), keeps); !reflect.DeepEqual(got.events, want) {
		t.Errorf("got\n%+v\nwant\n%+v", got.events, want)
	}
	if !reflect.DeepEqual(got.lists, [][]router.Event{open, nil}) || got.left != 1 || !reflect.DeepEqual(got.words, words) || !reflect.DeepEqual(got.pages, []replica.Facts{page}) {
		t.Errorf("got lists %+v, left %d", got.lists, got.left)
	}
}

// TestABatchIsSmall holds the sizes that docs/operations.md names.
func TestABatchIsSmall(t *testing.T) {
	b := newBatch(1, 1)
	for i := range uint64(1000) {
		e := router.Event{Kind: router.Routed, Replica: i % 8, Lease: i + 1, Work: 0.1, Tokens: 1000, Stream: true}
		b.load(&e)
		e.Kind = router.FirstSeen
		b.load(&e)
		e.Kind = router.Ended
		b.load(&e)
	}
	if n := len(b.data) / 1000; n > 20 {
		t.Errorf("%d bytes of load a request", n)
	}
	b = newBatch(1, 1)
	c := chain(128)
	for i := range 75 {
		c.Cuts = append(c.Cuts, prefix.Cut{Hash: prefix.Hash(rand.Uint64()), Tokens: int32(330 * (i + 1))})
	}
	b.holds(&router.Event{Kind: router.Holds, Replica: 1, Chain: c, Factor: 1})
	if n := len(b.data); n > 820 {
		t.Errorf("%d bytes for a prompt of 100 KB", n)
	}
}

// TestWhatCannotBeReadIsRefused cuts and alters a batch in every place: what is told
// of it is within bounds, and the error says that something is wrong.
func TestWhatCannotBeReadIsRefused(t *testing.T) {
	b := newBatch(42, 17)
	b.load(&router.Event{Kind: router.Routed, Replica: 7, Lease: 9, Work: 1.5, Tokens: 12_000, Stream: true})
	b.open([]router.Event{{Kind: router.FirstSeen, Replica: 9, Lease: 5}})
	b.holds(&router.Event{Kind: router.Holds, Replica: 7, Chain: chain(128, 1, 2, 3, 4), Factor: 1})
	whole := b.data
	for n := range len(whole) {
		h, r, err := readHead(whole[:n])
		if err != nil {
			continue
		}
		_ = h
		if got, err := r.records(&heard{}); err == nil && got == 3 {
			t.Errorf("a batch cut at %d of %d bytes is read to its end", n, len(whole))
		}
	}
	other := bytes.Clone(whole)
	other[0] = version + 1
	if _, _, err := readHead(other); !errors.Is(err, errVersion) {
		t.Errorf("another version: %v", err)
	}
	for _, factor := range []float64{0, -1, 1e9} {
		b := newBatch(1, 1)
		b.holds(&router.Event{Kind: router.Holds, Replica: 7, Chain: chain(128, 1), Factor: factor})
		_, r, _ := readHead(b.data)
		if _, err := r.records(&heard{}); err == nil {
			t.Errorf("a factor of %v is believed", factor)
		}
	}
	short := chain(128, 1, 2, 3)
	short.Tokens = 0
	for _, e := range []router.Event{{Kind: router.Holds}, {Kind: router.Routed, Tokens: 384, Work: 1}} {
		b, got := newBatch(1, 1), &heard{}
		if e.Chain, e.Factor = short, 1; e.Kind == router.Holds {
			b.holds(&e)
		} else {
			b.load(&e)
		}
		_, r, _ := readHead(b.data)
		if _, err := r.records(got); err == nil || len(got.events) > 0 {
			t.Errorf("a prompt that is shorter than its beginning is believed: %+v", got.events)
		}
	}
}

func FuzzRecords(f *testing.F) {
	b := newBatch(42, 17)
	b.load(&router.Event{Kind: router.Routed, Replica: 7, Lease: 9, Work: 1.5, Tokens: 12_000, Stream: true})
	b.load(&router.Event{Kind: router.Routed, Replica: 7, Lease: 10, Work: 1, Tokens: 384, Chain: chain(128, 1, 2, 3), Factor: 1})
	b.open([]router.Event{{Kind: router.Routed, Replica: 9, Lease: 5}, {Kind: router.FirstSeen, Replica: 9, Lease: 5}})
	b.holds(&router.Event{Kind: router.Holds, Replica: 7, Chain: chain(128, 1, 2, 3, 4), Factor: 1, Prompt: 5, Answer: 6})
	b.holds(&router.Event{Kind: router.Holds, Replica: 7, Chain: chain(128, 1, 2, 5), Factor: 1})
	b.keeps(&router.Event{Kind: router.Keeps, Replica: 7, Session: 5, Tokens: 6})
	b.notices([]notice{{7, wasDrained}})
	b.facts(7, replica.Facts{Blocks: 5})
	b.leave()
	f.Add(b.data)
	f.Fuzz(func(t *testing.T, data []byte) {
		_, r, err := readHead(data)
		if err != nil {
			return
		}
		got := &heard{}
		_, _ = r.records(got)
		for _, e := range got.events {
			if e.Work < 0 || e.Work > maxWork || e.Tokens < 0 || e.Tokens > maxTokens || e.Prompt < 0 || e.Answer < 0 {
				t.Errorf("out of bounds: %+v", e)
			}
			if e.Chain == nil {
				continue
			}
			last := int32(0)
			for _, c := range e.Chain.Cuts {
				if c.Tokens < last || c.Tokens > maxTokens {
					t.Errorf("tokens go from %d to %d", last, c.Tokens)
				}
				last = c.Tokens
			}
			if e.Chain.Tokens < last {
				t.Errorf("%d tokens in all, %d up to the last cut", e.Chain.Tokens, last)
			}
		}
	})
}
