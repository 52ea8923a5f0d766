package share

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/warmpath/warmpath/internal/router"
)

// Times between what a gateway tells.
const (
	loadEvery   = 5 * time.Millisecond   // at least, between two batches of load
	prefixEvery = 250 * time.Millisecond // between two batches of prefixes
	openEvery   = time.Second            // between two lists of all requests under way
	leaseEvery  = 3 * time.Second
	leaseLasts  = 10 * time.Second
	keysLast    = time.Hour // streams that nobody writes to
	sameAfter   = 15 * time.Second
)

// Bounds on the streams. A trimmed stream is read as well as a whole one.
const (
	loadEntries    = 4096
	prefixBytes    = 64 << 20
	minEntries     = 64
	maxEntries     = 1 << 16
	prefixAtOnce   = 256 << 10 // bytes of chains in a batch
	startBatchSize = 4 << 10   // guessed before there is one
)

// telling is the side that writes. It belongs to one goroutine.
type telling struct {
	*Share
	numbers [2]uint64 // of the last batch, by channel
	spare   []router.Event
	again   backoff
	failing bool
	unsent  []byte  // a batch of prefixes that Redis did not take
	size    float64 // of batches of prefixes, averaged

	opened, leased, turned time.Time // when each was last done
}

func newTelling(s *Share) *telling { return &telling{Share: s, size: startBatchSize} }

// run tells until ctx ends.
func (t *telling) run(ctx context.Context) {
	tick := time.NewTicker(prefixEvery)
	defer tick.Stop()
	defer t.leave(ctx)
	t.turned = time.Now()
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case <-t.out.wake:
			if t.failing { // the list of all will tell it
				continue
			}
			err = t.tellLoad(ctx)
			if err == nil && !pause(ctx, loadEvery) {
				return
			}
		case <-tick.C:
			err = t.tellRest(ctx)
		}
		t.count()
		if err == nil {
			if t.failing {
				t.log.Info("Redis takes what this gateway sends again")
			}
			t.failing = false
			t.metrics.Telling.Set(1)
			t.again.reset()
			continue
		}
		if ctx.Err() != nil {
			return
		}
		t.failing, t.opened = true, time.Time{}
		t.metrics.Telling.Set(0)
		t.metrics.WriteErrors.Inc()
		t.trouble.complain("write", err)
		if !pause(ctx, t.again.next()) {
			return
		}
	}
}

func (t *telling) count() {
	for channel, n := range t.out.takeDropped() {
		t.metrics.Dropped[channel].Add(float64(n))
	}
}

// begin returns an empty batch for a channel.
func (t *telling) begin(channel int) *batch {
	t.numbers[channel]++
	return newBatch(t.id, t.numbers[channel])
}

// add puts a batch on its way, with the time that its stream lasts without another.
func (t *telling) add(ctx context.Context, p redis.Pipeliner, channel int, data []byte) {
	entries := int64(loadEntries)
	if channel == prefixChannel {
		entries = int64(min(maxEntries, max(minEntries, prefixBytes/t.size)))
	}
	p.XAdd(ctx, &redis.XAddArgs{Stream: t.keys[channel], MaxLen: entries, Approx: true, Values: []any{field, data}})
	p.Expire(ctx, t.keys[channel], keysLast)
	t.metrics.BytesOut[channel].Add(float64(len(data)))
}

// field is the one field of a stream's entries.
const field = "d"

func (t *telling) exec(ctx context.Context, p redis.Pipeliner) error {
	if p.Len() == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	_, err := p.Exec(ctx)
	return err
}

// tellLoad sends the load that waits.
func (t *telling) tellLoad(ctx context.Context) error {
	events, since := t.out.takeLoad(t.spare)
	t.spare = events
	notices := t.out.takeNotices()
	if len(events)+len(notices) == 0 {
		return nil
	}
	b := t.begin(loadChannel)
	b.notices(notices)
	b.loads(events)
	if len(events) > 0 {
		t.echoes.note(t.numbers[loadChannel], since)
	}
	p := t.client.Pipeline()
	t.add(ctx, p, loadChannel, b.data)
	if err := t.exec(ctx, p); err != nil {
		t.out.unsent(notices)
		t.metrics.Dropped[loadChannel].Add(float64(len(events)))
		return err
	}
	t.metrics.RecordsOut[loadChannel].Add(float64(b.records))
	return nil
}

// tellRest sends what is due: prefixes, the list of requests under way, the lease.
func (t *telling) tellRest(ctx context.Context) error {
	now := time.Now()
	p := t.client.Pipeline()
	var records [2]int
	var notices []notice
	if now.Sub(t.opened) >= openEvery-prefixEvery/2 {
		t.opened = now
		b := t.begin(loadChannel)
		if !t.failing { // what waits says more than the list: for what prompts work is
			t.spare, _ = t.out.takeLoad(t.spare)
			b.loads(t.spare)
		}
		t.spare = t.out.takeOpen(t.spare)
		b.open(t.spare)
		notices = t.out.takeNotices()
		b.notices(notices)
		b.notices(t.drained())
		for hash, f := range t.out.takeFacts() {
			b.facts(hash, f)
		}
		t.echoes.note(t.numbers[loadChannel], time.Now())
		records[loadChannel] = b.records
		t.add(ctx, p, loadChannel, b.data)
	}
	if t.unsent == nil {
		t.unsent, records[prefixChannel] = t.held()
	}
	if t.unsent != nil {
		t.add(ctx, p, prefixChannel, t.unsent)
	}
	lease := now.Sub(t.leased) >= leaseEvery
	if lease {
		p.Set(ctx, t.lease, version, leaseLasts)
		p.Expire(ctx, t.keys[prefixChannel], keysLast)
	}
	if now.Sub(t.turned) >= sameAfter {
		t.turned = now
		t.out.rest()
	}
	if err := t.exec(ctx, p); err != nil {
		t.out.unsent(notices)
		return err
	}
	t.unsent = nil
	if lease {
		t.leased = now
	}
	for channel, n := range records {
		t.metrics.RecordsOut[channel].Add(float64(n))
	}
	return nil
}

// drained returns which replicas are kept without requests.
func (t *telling) drained() (list []notice) {
	for _, r := range t.pool.Set().Replicas {
		if r.Draining() {
			list = append(list, notice{r.Hash, isDrained})
		}
	}
	return list
}

// held returns a batch of what the prefix channel has to tell, nil if it is nothing.
func (t *telling) held() (data []byte, records int) {
	events := t.out.takeHeld(prefixAtOnce)
	if len(events) == 0 {
		return nil, 0
	}
	b := t.begin(prefixChannel)
	for i := range events {
		if events[i].Kind == router.Keeps {
			b.keeps(&events[i])
		} else {
			b.holds(&events[i])
		}
	}
	t.size += 0.05 * (float64(len(b.data)) - t.size)
	return b.data, b.records
}

// leave tells the others that nothing of this gateway is under way any more.
func (t *telling) leave(ctx context.Context) {
	if t.failing {
		return
	}
	ctx = context.WithoutCancel(ctx)
	b := t.begin(loadChannel)
	b.leave()
	p := t.client.Pipeline()
	t.add(ctx, p, loadChannel, b.data)
	if data, _ := t.held(); data != nil {
		t.add(ctx, p, prefixChannel, data)
	}
	p.Del(ctx, t.lease)
	_ = t.exec(ctx, p) // they will notice without
}

// jitter returns a time around d.
func jitter(d time.Duration) time.Duration { return d*3/4 + rand.N(d/2+1) }
