package share

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/warmpath/warmpath/internal/metrics"
	"github.com/warmpath/warmpath/internal/prefix"
	"github.com/warmpath/warmpath/internal/replica"
	"github.com/warmpath/warmpath/internal/router"
)

// Times and bounds of hearing.
const (
	silence     = 3 * time.Second // after which another gateway's load does not count
	lookEvery   = 5 * time.Second // between two looks at whether the streams are still the same
	tickEvery   = 500 * time.Millisecond
	atOnce      = 64 // entries of each stream
	maxPeers    = 1024
	historyOld  = time.Hour
	historySize = 64 << 20
	// settling is how long a gateway that starts listens before it knows all that is
	// under way: everybody tells that once in openEvery.
	settling = openEvery + prefixEvery
)

// streamID is the id of a stream's entry: its server's time in ms, and a number.
type streamID struct{ ms, number uint64 }

func parseID(text string) (id streamID) {
	ms, number, _ := strings.Cut(text, "-")
	id.ms, _ = strconv.ParseUint(ms, 10, 64)
	id.number, _ = strconv.ParseUint(number, 10, 64)
	return id
}

func (i streamID) String() string { return fmt.Sprintf("%d-%d", i.ms, i.number) }

func (i streamID) before(o streamID) bool {
	return i.ms < o.ms || i.ms == o.ms && i.number < o.number
}

// peer is another gateway.
type peer struct {
	heard   time.Time
	numbers [2]uint64 // of its last batch, by channel
}

// hearing is the side that reads. It belongs to one goroutine.
type hearing struct {
	*Share
	channels []int // that are heard
	last     [2]streamID
	old      streamID // up to here, the load channel is from when this gateway could not hear
	peers    map[uint64]*peer
	lags     []time.Duration // the last ones of one's own echo
	again    backoff

	up       bool
	upSince  time.Time
	down     time.Time // since when it is not up
	ticked   time.Time
	faded    time.Time
	looked   time.Time
	lengths  [2]redis.XInfoStream // when it was last looked
	settled  bool
	set      *replica.Set // whose replicas the router knows
	from     uint64       // who sent the batch that is being applied
	now      time.Time    // when it came
	foreign  bool         // its prompts are cut by another rule
	late     bool         // it is load of the past: only words about replicas still count
	replayed bool         // it is history
}

func newHearing(s *Share) *hearing {
	h := &hearing{Share: s, peers: map[uint64]*peer{}, faded: time.Now()}
	if s.cfg.Channels != Prefix {
		h.channels = append(h.channels, loadChannel)
	}
	if s.cfg.Channels != Load {
		h.channels = append(h.channels, prefixChannel)
	}
	return h
}

// run hears until ctx ends.
func (h *hearing) run(ctx context.Context) {
	for ctx.Err() == nil {
		err := h.start(ctx)
		for err == nil {
			err = h.hear(ctx)
		}
		if ctx.Err() != nil {
			return
		}
		h.lost(err)
		h.tick(time.Now())
		if !pause(ctx, h.again.next()) {
			return
		}
	}
}

// lost says that nothing can be heard.
func (h *hearing) lost(err error) {
	h.metrics.ReadErrors.Inc()
	h.trouble.complain("read", err)
	if h.up {
		h.up, h.down, h.faded = false, time.Now(), time.Now()
		h.metrics.Hearing.Set(0)
	}
}

// start begins to hear, for the first time or again. Old load is of no use; drains and
// what was told of prefixes are, and of the latter the first time all that there is.
func (h *hearing) start(ctx context.Context) error {
	first := h.upSince.IsZero()
	began := time.Now()
	last, err := h.end(ctx, h.keys[loadChannel])
	if err != nil {
		return err
	}
	if first || h.last[loadChannel] == (streamID{}) || last.before(h.last[loadChannel]) {
		h.last[loadChannel] = last
	} else if time.Since(h.down) > silence {
		h.old = last
	}
	if first {
		h.know(ctx)
		if h.cfg.Channels != Load {
			if err := h.warmUp(ctx); err != nil {
				return err
			}
		}
	} else {
		if err := h.look(ctx); err != nil {
			return err
		}
		h.metrics.Reconnects.Inc()
		h.log.Info("what other gateways send over Redis is heard again", "down", time.Since(h.down).Round(time.Millisecond))
	}
	h.again.reset()
	h.up, h.upSince = true, began
	h.metrics.Hearing.Set(1)
	return nil
}

// end returns the id of a stream's last entry.
func (h *hearing) end(ctx context.Context, key string) (id streamID, err error) {
	ctx, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	entries, err := h.client.XRevRangeN(ctx, key, "+", "-", 1).Result()
	if err != nil || len(entries) == 0 {
		return id, err
	}
	return parseID(entries[0].ID), nil
}

// know waits a little for the replicas to tell what they are: nobody else's word
// about an engine counts before.
func (h *hearing) know(ctx context.Context) {
	for limit := time.Now().Add(h.cfg.WarmStart / 2); time.Now().Before(limit) && !h.pool.Set().Complete; {
		if !pause(ctx, 10*time.Millisecond) {
			return
		}
	}
	h.introduce()
}

// introduce makes the router know the replicas.
func (h *hearing) introduce() {
	if set := h.pool.Set(); set != h.set {
		h.set = set
		for _, r := range set.Replicas {
			h.router.Know(r)
		}
	}
}

// warmUp applies what was told of prefixes, the oldest first, back to what is too old
// or too much.
func (h *hearing) warmUp(ctx context.Context) error {
	began := time.Now()
	var entries []redis.XMessage
	size, to := 0, "+"
	for size < historySize {
		page, err := h.page(ctx, to)
		if err != nil {
			return err
		}
		for _, e := range page {
			size += len(data(e))
		}
		entries = append(entries, page...)
		if len(page) < atOnce {
			break
		}
		oldest := parseID(page[len(page)-1].ID)
		if newest := parseID(entries[0].ID); newest.ms-oldest.ms > uint64(historyOld.Milliseconds()) {
			break // by the one clock of Redis
		}
		to = "(" + oldest.String()
	}
	if len(entries) > 0 {
		h.last[prefixChannel] = parseID(entries[0].ID)
	}
	h.replayed = true
	for _, e := range slices.Backward(entries) {
		h.apply(prefixChannel, data(e))
	}
	h.replayed = false
	h.log.Info("warm start from what other gateways told", "batches", len(entries), "bytes", size, "took", time.Since(began).Round(time.Millisecond))
	return nil
}

func (h *hearing) page(ctx context.Context, to string) ([]redis.XMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, bulkTime)
	defer cancel()
	return h.client.XRevRangeN(ctx, h.keys[prefixChannel], to, "-", atOnce).Result()
}

func data(e redis.XMessage) []byte {
	text, _ := e.Values[field].(string)
	return []byte(text)
}

// hear waits for news, applies them, and does what time asks for.
func (h *hearing) hear(ctx context.Context) error {
	var streams []string
	for _, c := range h.channels {
		streams = append(streams, h.keys[c])
	}
	for _, c := range h.channels {
		streams = append(streams, h.last[c].String())
	}
	limit, cancel := context.WithTimeout(ctx, blockTime+commandTime)
	defer cancel()
	news, err := h.client.XRead(limit, &redis.XReadArgs{Streams: streams, Count: atOnce, Block: blockTime}).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return err
	}
	h.now = time.Now()
	h.introduce() // before others speak of replicas that are new here
	for _, s := range news {
		channel := loadChannel
		if s.Stream == h.keys[prefixChannel] {
			channel = prefixChannel
		}
		for _, e := range s.Messages {
			h.last[channel] = parseID(e.ID)
			h.late = channel == loadChannel && !h.old.before(h.last[channel])
			h.apply(channel, data(e))
		}
	}
	h.tick(h.now)
	if h.now.Sub(h.looked) >= lookEvery {
		return h.look(ctx)
	}
	return nil
}

// look finds out whether the streams are what they were: after a failover to a server
// that is behind, or after all was deleted, a reading after the last known entry
// could wait for ever.
func (h *hearing) look(ctx context.Context) error {
	h.looked = time.Now()
	for _, c := range h.channels {
		limit, cancel := context.WithTimeout(ctx, commandTime)
		info, err := h.client.XInfoStream(limit, h.keys[c]).Result()
		cancel()
		if err != nil && strings.Contains(err.Error(), "no such key") {
			info, err = &redis.XInfoStream{}, nil
		}
		if err != nil {
			return err
		}
		was := h.lengths[c]
		h.lengths[c] = *info
		if end := parseID(info.LastGeneratedID); end.before(h.last[c]) {
			if h.last[c] = end; c == prefixChannel {
				h.last[c] = streamID{} // of what is there, all may be news
			}
		}
		if c == prefixChannel && (info.Length < was.Length/2 || info.EntriesAdded < was.EntriesAdded) {
			h.out.forgetTold() // whoever starts now would miss it
		}
	}
	return nil
}

// apply takes a batch.
func (h *hearing) apply(channel int, text []byte) {
	h.metrics.BytesIn[channel].Add(float64(len(text)))
	head, records, err := readHead(text)
	switch {
	case errors.Is(err, errVersion):
		h.metrics.Skipped[metrics.Version].Inc()
		return
	case err != nil:
		h.metrics.Skipped[metrics.Malformed].Inc()
		return
	case head.gateway == h.id:
		if lag, ok := h.echoes.heard(head.number); ok && channel == loadChannel {
			h.metrics.Lag.Observe(lag.Seconds())
			h.lags = append(h.lags, lag)
		}
		return
	}
	if !h.replayed && !h.late && !h.meet(channel, head) {
		return
	}
	h.from, h.foreign = head.gateway, head.rule != prefix.Rules()
	if h.foreign && channel == prefixChannel {
		h.metrics.Skipped[metrics.Rule].Inc()
	}
	n, err := records.records(h)
	h.metrics.RecordsIn[channel].Add(float64(n))
	if err != nil {
		h.metrics.Skipped[metrics.Malformed].Inc()
	}
}

// meet notes that a gateway was heard, and what of it was missed.
func (h *hearing) meet(channel int, head head) bool {
	p := h.peers[head.gateway]
	if p == nil {
		if len(h.peers) >= maxPeers {
			return false
		}
		p = &peer{}
		h.peers[head.gateway] = p
	}
	if last := p.numbers[channel]; last > 0 && head.number > last+1 {
		h.metrics.Gaps.Add(float64(head.number - last - 1))
	}
	p.numbers[channel] = max(p.numbers[channel], head.number)
	p.heard = h.now
	return true
}

// event applies a record.
func (h *hearing) event(e *router.Event) {
	if h.late {
		return
	}
	if h.foreign && (e.Kind == router.Holds || e.Kind == router.Dropped) {
		return // its chains mean something else
	}
	if e.Kind == router.Routed && (h.foreign || h.cfg.Channels == Load) {
		e.Chain = nil
	}
	h.router.Apply(h.from, e, time.Now())
}

// open applies a list of requests under way.
func (h *hearing) open(list []router.Event) {
	if !h.late {
		h.router.Open(h.from, list, time.Now())
	}
}

// notice applies a word about a replica. That it is not well is checked, not believed.
func (h *hearing) notice(n notice) {
	for _, r := range h.pool.Set().Replicas {
		if r.Hash != n.replica {
			continue
		}
		switch n.kind {
		case isUnwell:
			if r.Ready() && !h.late {
				r.Doubt()
			}
		case wasDrained:
			r.Drain(true)
		case wasUndrained:
			r.Drain(false)
		case isDrained:
			if !h.settled && !h.out.orders(n.replica) { // it may have been undone here
				r.Drain(true)
			}
		}
	}
}

// facts takes what a replica told another gateway.
func (h *hearing) facts(hash uint64, f replica.Facts) {
	if h.late {
		return
	}
	for _, r := range h.pool.Set().Replicas {
		if r.Hash == hash {
			h.pool.Heard(r, f)
		}
	}
}

// leave takes a gateway for gone.
func (h *hearing) leave() { h.forget(h.from) }

func (h *hearing) forget(id uint64) {
	delete(h.peers, id)
	h.router.Open(id, nil, time.Now())
}

// tick does what time asks for: who is silent is gone, unless it is this gateway that
// hears nothing.
func (h *hearing) tick(now time.Time) {
	if now.Sub(h.ticked) < tickEvery {
		return
	}
	h.ticked = now
	h.introduce()
	if !h.up {
		h.router.Fade(now.Sub(h.faded), now)
		h.faded = now
		return // the parts of replicas stay as they were dealt
	}
	oldest := time.Duration(0)
	for id, p := range h.peers {
		quiet := min(now.Sub(p.heard), now.Sub(h.upSince))
		if quiet > silence {
			h.forget(id)
			continue
		}
		oldest = max(oldest, quiet)
	}
	h.metrics.Age.Set(oldest.Seconds())
	h.metrics.Peers.Set(float64(len(h.peers)))
	h.deal()
	if !h.settled && (h.cfg.Channels == Prefix || now.Sub(h.upSince) >= settling) {
		h.settled = true
		close(h.warmed)
	}
}

// deal tells the router which of how many gateways this is.
func (h *hearing) deal() {
	if h.cfg.Channels == Prefix {
		return // nobody's load is known
	}
	ids := make([]uint64, 0, len(h.peers)+1)
	for id := range h.peers {
		ids = append(ids, id)
	}
	ids = append(ids, h.id)
	slices.Sort(ids)
	h.members.Store(&ids)
	h.router.Peers(slices.Index(ids, h.id), len(ids), h.lag())
}

// lag returns the median of the last echoes.
func (h *hearing) lag() time.Duration {
	const enough = 32
	if n := len(h.lags); n > enough {
		h.lags = slices.Delete(h.lags, 0, n-enough)
	}
	if len(h.lags) == 0 {
		return loadEvery
	}
	sorted := slices.Sorted(slices.Values(h.lags))
	return sorted[len(sorted)/2]
}
