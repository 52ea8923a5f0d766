// Package router decides which replica answers a request, and keeps account of
// what each has been given. A decision reserves: from the moment of choice the
// work counts on that replica and the prompt counts as held by it, until the
// [Lease] is done. So a burst of requests spreads although no answer has come yet.
package router

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/warmpath/warmpath/internal/prefix"
	"github.com/warmpath/warmpath/internal/replica"
)

// Config is the settings of a [Router].
type Config struct {
	// Policy is the name of the policy for requests that ask for none.
	Policy string `yaml:"policy"`
	// Shadow is the name of a policy of which is recorded what it would have done
	// instead, "" for none.
	Shadow string `yaml:"shadow"`
	// IndexBytes bounds the memory that the index of prefixes takes.
	IndexBytes int64 `yaml:"index_bytes"`
	// SessionSlack is how much longer a session waits for its own replica than it
	// would elsewhere before it moves.
	SessionSlack time.Duration `yaml:"session_slack"`
	// DecodeTokens is a taste: how many tokens of other requests' answers a gain in
	// time to first token is worth. A replica counts as busier by the time that this
	// many tokens of each answer it is generating would take. Higher spreads more
	// evenly, lower keeps to caches.
	DecodeTokens int `yaml:"decode_tokens"`
	// MaxWait is the longest predicted wait, on the replica where it is the shortest,
	// with which a request is still taken; 0 takes all.
	MaxWait time.Duration `yaml:"max_wait"`
	// Seed makes random choices the same in every run; 0 makes them different.
	Seed uint64 `yaml:"-"`
}

// DefaultConfig returns the settings that suit most fleets.
func DefaultConfig() Config {
	return Config{Policy: PrefixPolicy, IndexBytes: 512 << 20, SessionSlack: 2 * time.Second, DecodeTokens: 100, MaxWait: 30 * time.Second}
}

// Validate reports the first setting that cannot work.
func (c *Config) Validate() error {
	if _, err := PolicyByName(c.Policy); err != nil {
		return fmt.Errorf("policy: %w", err)
	}
	if _, err := PolicyByName(c.Shadow); c.Shadow != "" && err != nil {
		return fmt.Errorf("shadow: %w", err)
	}
	if c.IndexBytes < 1<<20 {
		return fmt.Errorf("index_bytes must be at least 1 MiB, not %d bytes", c.IndexBytes)
	}
	if c.SessionSlack < 0 {
		return fmt.Errorf("session_slack must not be negative, but is %v", c.SessionSlack)
	}
	if c.DecodeTokens < 0 {
		return fmt.Errorf("decode_tokens must not be negative, but is %d", c.DecodeTokens)
	}
	if c.MaxWait < 0 {
		return fmt.Errorf("max_wait must not be negative, but is %v", c.MaxWait)
	}
	return nil
}

// ErrNoReplica is returned when no replica that serves the model can be sent to and
// has not been tried.
var ErrNoReplica = errors.New("no replica is ready")

// Request is what a decision is made from.
type Request struct {
	Prompt   *prefix.Prompt // must not change until the lease is done
	Model    *replica.Model
	Policy   Policy // nil for the configured one
	Stream   bool
	NoCache  bool               // the engine will not look into its cache for it
	Tried    []*replica.Replica // not to be chosen again
	Session  prefix.Hash        // 0 for none
	Previous prefix.Hash        // the response that it continues, 0 for none
	ID       string             // its name, for [Router.Decisions]
}

// Costs within the slack count as equal. It is narrow for prompts that are new: it
// only hides what is noise of the estimates. Where other gateways share the
// replicas, what they have sent in the last few lags is not known yet, and all of
// them would take the same that looks idle. A prompt that continues something is
// worth more where that is held than this one request shows, since it is likely to
// be continued again: it does not leave for a passing difference.
const (
	slack        = 10 * time.Millisecond
	slackLags    = 3
	maxSlack     = 100 * time.Millisecond
	slackHistory = 80 * time.Millisecond
)

// Router is safe for concurrent use. Its methods do no I/O and hold its one lock
// for microseconds.
type Router struct {
	cfg    Config
	policy Policy
	shadow Policy    // nil for none
	made   time.Time // moment 0

	mu       sync.Mutex // guards all below
	index    *prefix.Index
	slots    []*slot
	byHash   map[uint64]*slot // by the replica's hash
	leases   uint64           // how many there have been
	share    share
	models   []modelState // by model index
	sessions sessions
	sequence uint64
	random   *rand.Rand
	last     *decisions
	memory   memory  // of the slots' averages
	pace     float64 // the median of the slots'
	paced    moment  // when it was last taken
	paces    []float64
	// Memory for one decision.
	matches    prefix.Matches
	held       []holding   // by slot
	holders    []int32     // the slots that hold anything
	chosen     []*slot     // the replicas that can take the request
	candidates []Candidate // the same ones
}

// holding is what a slot holds of a request.
type holding struct {
	cached int // tokens that can be reused
	// Of its last chain that the slot holds any of:
	cuts   int32 // how many it holds
	answer int   // tokens that it generated behind them
}

// modelState is what is learned about one model's prompts.
type modelState struct {
	factor  float64 // tokens counted per token estimated
	samples int
	carry   float64 // the share of generated tokens that the next turn finds cached
}

// New returns a router that knows nothing yet.
func New(cfg Config) (*Router, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	policy, err := PolicyByName(cfg.Policy)
	if err != nil {
		return nil, err
	}
	shadow := Policy(nil)
	if cfg.Shadow != "" {
		if shadow, err = PolicyByName(cfg.Shadow); err != nil {
			return nil, err
		}
	}
	seed := cfg.Seed
	if seed == 0 {
		seed = rand.Uint64()
	}
	return &Router{
		cfg: cfg, policy: policy, shadow: shadow, made: time.Now(), last: new(decisions), index: prefix.NewIndex(cfg.IndexBytes), sessions: newSessions(),
		random: rand.New(rand.NewPCG(seed, 1)), byHash: map[uint64]*slot{}, share: share{leases: map[uint64]map[uint64]*Lease{}},
	}, nil
}

// moment returns a time on the router's own clock.
func (r *Router) moment(t time.Time) moment { return moment(t.Sub(r.made)) }

// Acquire chooses a replica for the request and reserves it there. The lease must
// be ended by [Lease.Done], whatever happens.
func (r *Router) Acquire(req *Request, now time.Time) (*Lease, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, err := r.decide(req, now)
	if err != nil {
		return nil, err
	}
	l := r.reserve(req, &c)
	r.record(l, &c)
	if req.Session != 0 {
		r.sessions.put(req.Session, session{slot: l.slot, at: now})
		l.tellKept(req.Session, 0)
	}
	return l, nil
}

// choice is a decision before it is carried out: index and longest are of r.chosen.
type choice struct {
	at       time.Time
	now      moment // the same
	fleet    Fleet
	policy   Policy
	previous *session
	total    int // tokens of the prompt
	longest  int // who holds the most of it
	index    int
	why      Reason
}

// decide chooses a replica for the request.
func (r *Router) decide(req *Request, now time.Time) (c choice, err error) {
	r.gather(req)
	if len(r.chosen) == 0 {
		return c, ErrNoReplica
	}
	c.at, c.now = now, r.moment(now)
	c.previous = r.sessions.get(req.Previous, now)
	var known prefix.Known
	c.total, known = r.lookup(req, r.model(req.Model), c.previous)
	r.assess(&c, req, known)
	if err := r.overloaded(req, c.fleet.MinWait); err != nil {
		return c, err
	}
	if c.policy = req.Policy; c.policy == nil {
		c.policy = r.policy
	}
	c.index, c.why = r.choose(c.policy, &c, req)
	return c, nil
}

// assess leaves what the request would cost on each of r.chosen in r.candidates, and the
// fleet and who holds the most in c.
func (r *Router) assess(c *choice, req *Request, known prefix.Known) {
	f := &c.fleet
	*f = Fleet{
		MinWait: math.Inf(1), HeldWait: math.Inf(1), Slack: r.share.slack().Seconds(), Home: req.Prompt.Home, Sequence: r.sequence, Random: r.random.Uint64(),
		DecodeTokens: float64(r.cfg.DecodeTokens), Branches: int(known.Branches),
	}
	r.sequence++
	history := false
	if known.Tokens > known.Shared+prefix.DefaultBlock {
		// It has a history beyond what many share. Copies of a shared beginning are for
		// new prompts to make.
		f.Slack, f.Branches = max(f.Slack, slackHistory.Seconds()), 0
		history = true
	}
	pace := r.fleetPace(c.now)
	holders, most, oldest := 0, -1, uint64(1)
	cached, whole, beginning := -1, 0.0, 0.0 // most replicas hold as much as the one before: its work at pace 1
	for i, s := range r.chosen {
		a, at := &r.candidates[i], s.at()
		s.count(c.now, &r.memory)
		inFlight := s.inFlight()
		a.Hash, a.InFlight, a.Busy = s.hash, inFlight, max(s.busy, float64(inFlight))
		a.Wait, a.Pace, a.Penalty = s.wait(c.now), s.steadyPace(pace, c.now), s.penaltyAt(c.now)
		a.Mine = !history && r.share.mine(i)

		held := r.held[at].cached
		if held > most {
			most, c.longest = held, i
		}
		a.Cached = 0
		if !req.NoCache {
			a.Cached = min(held, c.total-1)
		}
		missing := int(known.Shared) - a.Cached
		if a.Cached != cached {
			cached, whole, beginning = a.Cached, work(a.Cached, c.total-a.Cached), work(a.Cached, missing)
		}
		a.Work = a.Pace * whole
		evicted, age := r.index.Pressure(at, c.total-a.Cached)
		a.Evicted, a.age = 0, age
		if evicted > 0 {
			a.Evicted = a.Pace * work(0, evicted)
		}
		oldest = max(oldest, age)
		a.Missing = 0
		if missing > 0 && missing > r.index.Block(at) {
			a.Missing = a.Pace * beginning
		} else {
			holders++
			f.Held += a.Busy
			f.HeldWait = min(f.HeldWait, a.Wait)
		}
		f.Load += s.load
		f.MinWait = min(f.MinWait, a.Wait)
	}
	f.Load /= float64(len(r.chosen))
	if holders > 0 {
		f.Held /= float64(holders)
	} else {
		f.HeldWait = 0
	}
	candidates := r.candidates[:len(r.chosen)]
	for i := range candidates {
		if a := &candidates[i]; a.Evicted > 0 {
			younger := 1 - float64(a.age)/float64(oldest)
			a.Evicted *= younger * younger * younger * younger
		}
	}
	f.Price(candidates)
}

// fleetPace returns the median of the paces that were sampled lately, or for want
// of such ever. It is not older than a second.
func (r *Router) fleetPace(now moment) float64 {
	if r.pace > 0 && now.since(r.paced) < 1 {
		return r.pace
	}
	r.paced = now
	for _, within := range [...]float64{paceMemory, math.Inf(1)} {
		r.paces = r.paces[:0]
		for _, s := range r.slots {
			if s != nil && s.samples > 0 && now.since(s.sampled) <= within {
				r.paces = append(r.paces, s.pace)
			}
		}
		if n := len(r.paces); n > 0 {
			slices.Sort(r.paces)
			r.pace = math.Sqrt(r.paces[(n-1)/2] * r.paces[n/2])
			return r.pace
		}
	}
	r.pace = 1
	return r.pace
}

// gather leaves the replicas that can take the request in r.chosen: the ready ones,
// or, where none is, those that are believed to be down.
func (r *Router) gather(req *Request) {
	chosen := r.chosen[:0]
	for _, rep := range req.Model.Replicas {
		if rep.Ready() && !slices.Contains(req.Tried, rep) {
			chosen = append(chosen, r.slot(rep))
		}
	}
	if len(chosen) == 0 {
		for _, rep := range req.Model.Replicas {
			if rep.LastResort() && !slices.Contains(req.Tried, rep) {
				chosen = append(chosen, r.slot(rep))
			}
		}
	}
	r.chosen = chosen
	for len(r.candidates) < len(r.chosen) {
		r.candidates = append(r.candidates, Candidate{})
	}
}

// slot returns the state of a replica, made when it is first seen.
func (r *Router) slot(rep *replica.Replica) *slot {
	if rep.Slot < len(r.slots) {
		if s := r.slots[rep.Slot]; s != nil {
			return s
		}
	}
	return r.addSlot(rep)
}

func (r *Router) addSlot(rep *replica.Replica) *slot {
	for len(r.slots) <= rep.Slot {
		r.slots = append(r.slots, nil)
		r.held = append(r.held, holding{})
	}
	s := newSlot(rep)
	r.slots[rep.Slot], r.byHash[rep.Hash] = s, s
	return s
}

func (r *Router) model(m *replica.Model) *modelState {
	for len(r.models) <= m.Index {
		r.models = append(r.models, modelState{factor: 1, carry: 1})
	}
	return &r.models[m.Index]
}

// factorOf is what a chain's own count of tokens is multiplied with.
func (m *modelState) factorOf(c *prefix.Chain) float64 {
	if c.Exact {
		return 1
	}
	return m.factor
}

// lookup leaves in r.held what each slot can reuse for the prompt, and returns how
// many tokens the prompt has, with what is known of it if it is but one chain.
func (r *Router) lookup(req *Request, m *modelState, previous *session) (total int, known prefix.Known) {
	for _, s := range r.holders {
		r.held[s] = holding{}
	}
	r.holders = r.holders[:0]
	unchained := req.Prompt.Tokens
	for i := range req.Prompt.Chains {
		c := &req.Prompt.Chains[i]
		factor := m.factorOf(c)
		known = r.index.Find(c, &r.matches)
		tokens := int(known.Tokens) + int(factor*float64(c.Tokens-c.UpTo(known.Cut)))
		for _, s := range r.matches.Holders {
			match, held := &r.matches.BySlot[s], &r.held[s]
			held.cuts, held.answer = match.Cut+1, 0
			if match.Answer > 0 {
				answer := factor * float64(c.AnswerAfter(match.Cut))
				held.answer = int(m.carry * min(float64(match.Answer), answer))
			}
			held.cached += r.usable(int(s), int(match.Tokens)+held.answer, tokens)
			r.holders = append(r.holders, s)
		}
		total += tokens
		unchained -= int(c.Tokens)
	}
	total += int(m.factor * float64(unchained))
	if previous != nil {
		total += previous.tokens
		s := previous.slot.at()
		r.held[s].cached += previous.tokens
		r.holders = append(r.holders, int32(s))
	}
	if len(req.Prompt.Chains) != 1 {
		known = prefix.Known{}
	}
	return max(1, total), known
}

// usable returns how many of the tokens that a replica holds a prompt can use:
// the engine computes the last one in any case, and it reuses whole blocks.
func (r *Router) usable(slot, held, total int) int {
	block := r.index.Block(slot)
	return max(0, min(held, total-1)/block*block)
}

// choose returns which of r.chosen takes the request. What a request continues,
// and the session it belongs to, come before the policy.
func (r *Router) choose(policy Policy, c *choice, req *Request) (int, Reason) {
	candidates := r.candidates[:len(r.chosen)]
	if c.previous != nil {
		if i := r.indexOf(c.previous.slot); i >= 0 {
			return i, Session // its memory is in that process alone
		}
	}
	if len(candidates) == 1 {
		return 0, Only
	}
	if s := r.sessions.get(req.Session, c.at); s != nil && policy == Policy(byPrefix{}) {
		if i := r.indexOf(s.slot); i >= 0 && candidates[i].Wait+candidates[i].Penalty <= c.fleet.MinWait+r.cfg.SessionSlack.Seconds() {
			return i, Session
		}
	}
	return policy.Choose(c.fleet, candidates)
}

func (r *Router) indexOf(s *slot) int { return slices.Index(r.chosen, s) }

// Told takes what a replica says of its cache.
func (r *Router) Told(rep *replica.Replica, f replica.Facts) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if rep.Gone() {
		return
	}
	r.slot(rep)
	blocks := f.Blocks
	if blocks > 0 {
		blocks = max(1, blocks-nullBlocks)
	}
	r.index.SetSlot(rep.Slot, f.BlockSize, blocks)
}

// nullBlocks is how many of its blocks vLLM keeps for itself.
const nullBlocks = 1

// Emptied takes notice that a replica's cache holds nothing any more.
func (r *Router) Emptied(rep *replica.Replica) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if rep.Gone() {
		return
	}
	r.index.Reset(rep.Slot)
	r.slot(rep).doubt = doubt{}
}

// Gone takes notice that a replica has left for good: [replica.Replica.Gone] says so
// from before this call on. All that is known of it is dropped, so that its number can
// be another's. Requests that are still under way there end without a trace.
func (r *Router) Gone(rep *replica.Replica) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if rep.Slot >= len(r.slots) || r.slots[rep.Slot] == nil || r.slots[rep.Slot].replica != rep {
		return
	}
	s := r.slots[rep.Slot]
	s.gone = true
	r.slots[rep.Slot] = nil
	if r.byHash[rep.Hash] == s {
		delete(r.byHash, rep.Hash)
	}
	r.index.Free(rep.Slot)
}

// State is what the router believes about one replica.
type State struct {
	Replica       *replica.Replica
	InFlight      int     // requests it was given that are not done
	Decoding      int     // of these, the prefilled ones
	PendingTokens int     // uncached prompt tokens not prefilled yet
	Wait          float64 // seconds a new request would wait
	Pace          float64 // seconds it takes for a second of reference work
	Penalty       float64 // seconds
	HeldBlocks    int64   // of KV cache, by prefixes
	Capacity      int64   // blocks believed to be there for prefixes
	// WindowGap is the share of the tokens predicted to be cached that the engine's
	// counters did not show in the last window of requests whose answers did not
	// tell, below 0 if they showed more; Windowed is whether there was one lately.
	WindowGap float64
	Windowed  bool
}

// States returns the state of every replica that was seen, by slot.
func (r *Router) States(now time.Time) []State {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := r.moment(now)
	var out []State
	for _, s := range r.slots {
		if s == nil {
			continue
		}
		gap, windowed := s.window.windowGap(now)
		out = append(out, State{
			Replica: s.replica, InFlight: s.inFlight(), Decoding: int(s.decoding), PendingTokens: s.tokens, Wait: s.wait(at), Pace: s.pace,
			Penalty: s.penaltyAt(at), HeldBlocks: r.index.Blocks(s.at()), Capacity: r.index.Capacity(s.at()),
			WindowGap: gap, Windowed: windowed,
		})
	}
	return out
}

// IndexBytes returns the memory that the index takes.
func (r *Router) IndexBytes() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.index.Bytes()
}
