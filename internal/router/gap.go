package router

// This file is why prompt tokens were not in the cache of the replica that took
// them, once the engine has told how many were.

// Gap is a prompt's tokens by why the replica had to compute them, or had not.
// New, Elsewhere, Restart, Evicted and Mismatch together are what it computed.
type Gap struct {
	New       int // no replica held them
	Elsewhere int // another replica held them, and this one was chosen nevertheless
	Restart   int // this replica held them before its cache was emptied: it restarted or slept
	Evicted   int // this replica was believed to hold them
	Unknown   int // it held them without our knowing: somebody else had sent them
	// Mismatch is Evicted on a replica that contradicts what is believed of it again
	// and again: its prompts are not what the gateway takes them for.
	Mismatch int
}

// Gap returns what [Lease.Done] found; it is zero if the engine told nothing that
// could be compared.
func (l *Lease) Gap() Gap { return l.gap }

// contradictions is from how many of them in a row on a replica counts as a mismatch.
const contradictions = 3

// doubt is how often a slot's real cache contradicted what was believed of it.
type doubt struct {
	count int
	since uint64 // the index's clock when the request of the last one that counted was sent
	depth int    // the most tokens that were cached at any
}

// contradicted takes a shortfall of a request sent at the index's clock at: tokens
// last used at used were missing behind those that were cached. One emptied cache contradicts once for each prompt it held;
// what counts is to contradict what was computed since.
func (d *doubt) contradicted(used, at uint64, cached int) {
	if d.count > 0 && used <= d.since {
		return
	}
	d.count++
	d.since, d.depth = at, max(d.depth, cached)
}

// kept takes a prediction that came true. One that held no further than the others
// failed, as a shared beginning does, proves nothing.
func (d *doubt) kept(cached int) {
	if cached > d.depth {
		*d = doubt{}
	}
}

// measure fills the lease's gap: of the prompt so many tokens were cached, and held
// were believed to be, the generated answer left out. lost is what was missing of
// these beyond noise.
func (l *Lease) measure(prompt, cached, held, lost, tolerance int) {
	r, c := l.router, &l.req.Prompt.Chains[0]
	g := Gap{}
	if d := &l.slot.doubt; d.count >= contradictions {
		g.Mismatch = lost
	} else {
		g.Evicted = lost
	}
	if more := cached - held - l.answer; more > tolerance {
		g.Unknown = more
	}
	if l.longest != l.slot.at() {
		tokens, _ := r.index.TokensAt(c, l.best.cuts-1)
		best := r.usable(l.longest, tokens+l.best.answer, prompt)
		if more := best - max(held, cached); more > r.index.Block(l.longest) {
			g.Elsewhere = more
		}
	}
	if l.lost > l.cut {
		tokens, _ := r.index.TokensAt(c, l.lost)
		g.Restart = max(0, r.usable(l.slot.at(), tokens, prompt)-max(held, cached)-g.Elsewhere)
	}
	g.New = max(0, prompt-cached-lost-g.Elsewhere-g.Restart)
	l.gap = g
}
