package replica

import (
	"net/url"
	"slices"
	"time"

	"github.com/warmpath/warmpath/internal/discovery"
)

// This file is how replicas join and leave while the gateway runs.

// A replica that is not discovered any more gets no new requests from then on; those
// under way go on. It is kept for a while: one that missed a readiness check comes
// back with its cache. Then all that is known of it is dropped and its slot is free.
const (
	leaveGrace  = 30 * time.Second
	leaveLimit  = 15 * time.Minute // from when on requests under way do not keep it either; they still go on
	retireEvery = time.Second
)

// arrange makes the endpoints those of a set.
func (p *Pool) arrange(set discovery.Set) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.complete = set.Complete
	var arranged []*endpoint
	for _, u := range set.URLs {
		id := discovery.ID(u)
		i := slices.IndexFunc(p.endpoints, func(e *endpoint) bool { return e.id == id && e.url.Scheme == u.Scheme })
		if i < 0 {
			arranged = append(arranged, p.join(u))
			continue
		}
		p.endpoints[i].stay()
		arranged = append(arranged, p.endpoints[i])
	}
	for _, e := range p.endpoints {
		if !slices.Contains(arranged, e) {
			e.leave()
			arranged = append(arranged, e)
		}
	}
	p.endpoints = arranged
	p.publish()
}

// join makes an endpoint. The caller holds mu.
func (p *Pool) join(u *url.URL) *endpoint {
	e := &endpoint{pool: p, id: discovery.ID(u), url: u, soon: make(chan struct{}, 1), stopped: make(chan struct{})}
	e.setRanks(1)
	return e
}

// leave keeps new requests away from an endpoint that is not discovered any more.
func (e *endpoint) leave() {
	if e.leaving.CompareAndSwap(false, true) {
		e.left = time.Now()
		e.pool.log.Info("replica has left: it gets no new requests", "replica", e.id)
	}
}

// stay takes an endpoint back that was leaving, or does nothing. It has to show that
// it is well as if it were new, for it may be another by now.
func (e *endpoint) stay() {
	if !e.leaving.Load() {
		return
	}
	e.pool.log.Info("replica is back", "replica", e.id)
	e.state.Store(fresh)
	e.returned.Store(true)
	e.leaving.Store(false)
	e.probeSoon()
}

// unwatched returns the endpoints that nothing probes yet.
func (p *Pool) unwatched() (list []*endpoint) {
	for _, e := range p.all() {
		if e.stop == nil {
			list = append(list, e)
		}
	}
	return list
}

func (p *Pool) all() []*endpoint {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.endpoints)
}

// retire drops the endpoints that left long enough ago, and frees their slots. What
// comes of a probe after that is nobody's, so none is under way by then.
func (p *Pool) retire(now time.Time) {
	for _, e := range p.all() {
		if !e.over(now) {
			continue
		}
		e.stop()
		<-e.stopped
		p.drop(e)
	}
}

// over reports whether an endpoint left long enough ago.
func (e *endpoint) over(now time.Time) bool {
	if !e.leaving.Load() {
		return false
	}
	since := now.Sub(e.left)
	return since >= leaveGrace && !e.busy() || since >= leaveLimit
}

func (e *endpoint) busy() bool {
	return slices.ContainsFunc(e.pool.of(e), func(r *Replica) bool { return r.held.Load() > 0 })
}

// of returns all replicas that were ever behind an endpoint.
func (p *Pool) of(e *endpoint) (list []*Replica) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.replicas {
		if r != nil && r.endpoint == e {
			list = append(list, r)
		}
	}
	return list
}

// drop forgets an endpoint. Its slots are free only when everybody knows.
func (p *Pool) drop(e *endpoint) {
	p.mu.Lock()
	p.endpoints = slices.DeleteFunc(p.endpoints, func(o *endpoint) bool { return o == e })
	p.publish()
	p.mu.Unlock()
	for _, r := range p.of(e) {
		r.Retire()
		p.notify(Event{Kind: Gone, Replica: r})
		p.mu.Lock()
		p.replicas[r.Slot] = nil
		p.mu.Unlock()
	}
	p.log.Info("replica is forgotten", "replica", e.id)
}

// Sources returns how the sources of replicas do.
func (p *Pool) Sources() []discovery.Status { return p.finder.Status() }

// Hold says that a request was given to the replica: its slot stays its own for a
// while if it leaves. [Replica.Release] says that the request is over.
func (r *Replica) Hold() { r.held.Add(1) }

// Release is the opposite of [Replica.Hold].
func (r *Replica) Release() { r.held.Add(-1) }

// Leaving reports whether the replica is not discovered any more.
func (r *Replica) Leaving() bool { return r.endpoint.leaving.Load() }

// Retire says that the replica has left for good, from before anybody is told on. A
// [Pool] does so itself; it is for those who have replicas without one.
func (r *Replica) Retire() {
	r.endpoint.leaving.Store(true)
	r.gone.Store(true)
}

// Gone reports whether the replica has left for good. Its slot may be another's.
func (r *Replica) Gone() bool { return r.gone.Load() }
