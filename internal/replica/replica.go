// Package replica knows the engines behind the gateway: which there are, which
// of them can answer, which models each serves and what each says about itself.
// All of it is learned from the replicas and published for readers that take no
// lock.
package replica

import (
	"net/url"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
)

// Replica is one routing target: an engine with a KV cache of its own. A server
// that runs several data-parallel engines behind one address is as many replicas.
type Replica struct {
	ID   string // host:port, with /rank where there are several
	Hash uint64 // of ID, the same in every gateway
	Slot int    // small and dense: an index into tables; not another's until [Replica.Gone]

	// Whether it can be sent to is asked of every replica for every request: that is
	// close by what a router then needs.
	endpoint *endpoint
	draining atomic.Bool
	sleeping atomic.Bool // as the facts say

	facts atomic.Pointer[Facts]
	held  atomic.Int32 // requests under way
	gone  atomic.Bool

	URL  *url.URL
	Rank int // the engine's rank behind its address, or -1 if it is the only one
}

func newReplica(e *endpoint, id string, slot, rank int) *Replica {
	return &Replica{ID: id, Hash: xxhash.Sum64String(id), Slot: slot, URL: e.url, Rank: rank, endpoint: e}
}

// Virtual returns a replica that no network stands behind and that is always
// ready, for simulations.
func Virtual(id string, slot int) *Replica {
	e := &endpoint{url: &url.URL{Scheme: "http", Host: id}}
	e.state.Store(ready)
	return newReplica(e, id, slot, -1)
}

// Facts returns what the replica last said about itself; zero before it did.
func (r *Replica) Facts() Facts {
	if f := r.facts.Load(); f != nil {
		return *f
	}
	return Facts{}
}

// Facts is what a replica's metrics page says. A field is zero when the page
// does not tell.
type Facts struct {
	BlockSize int     // tokens in a block of KV cache
	Blocks    int     // blocks of KV cache
	Start     float64 // process start, seconds since the epoch
	Running   float64 // requests being computed
	Waiting   float64 // requests queued in the engine
	Usage     float64 // share of the KV cache that running requests hold, 0 to 1
	Sleeping  bool
	Prompt    float64 // prompt tokens so far
	Cached    float64 // of these, from the prefix cache
	At        time.Time
}

// Model is a model or adapter that some replica serves, or served when it was last asked.
type Model struct {
	Name     string
	Index    int    // small and dense, above 0, kept for the process's life
	Card     []byte // its entry in the replica's /v1/models, as sent
	Adapter  bool   // it names a parent, which it adapts
	Replicas []*Replica
}

// Ready reports whether any replica of the model is.
func (m *Model) Ready() bool {
	for _, r := range m.Replicas {
		if r.Ready() {
			return true
		}
	}
	return false
}

// Set is an immutable view of all replicas and models.
type Set struct {
	// Replicas are in the order of the addresses and what their sources found, then
	// those that leave.
	Replicas []*Replica
	Models   []*Model
	// Complete is true once every source has told its addresses, and every address its
	// models: a model that is not known then is known to nobody.
	Complete bool

	told   int // replicas whose address has
	any    *Model
	byName map[uint64]*Model
}

// Model returns the model of that name, or nil. With an empty name it returns
// the first model that all replicas serve, of those that have told, and that is no
// adapter.
func (s *Set) Model(name string) *Model {
	if name == "" {
		for _, m := range s.Models {
			if !m.Adapter && s.told > 0 && len(m.Replicas) == s.told {
				return m
			}
		}
		return nil
	}
	if m := s.byName[xxhash.Sum64String(name)]; m != nil && m.Name == name {
		return m
	}
	return nil
}

// Any returns a model without a name, of index 0, that all replicas serve but those
// that leave: for requests that name none.
func (s *Set) Any() *Model { return s.any }

// Known reports whether any replica has ever told its models.
func (s *Set) Known() bool { return len(s.Models) > 0 }
