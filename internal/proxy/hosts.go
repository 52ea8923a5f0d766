package proxy

import (
	"sync"

	"github.com/warmpath/warmpath/internal/replica"
	"github.com/warmpath/warmpath/internal/upstream"
)

// hosts are the replicas as servers, by slot. A reader takes no lock.
type hosts struct {
	mu sync.Mutex
	table[server]
}

// server is a replica that has or had a slot.
type server struct {
	of *replica.Replica
	*upstream.Host
}

// host returns the server that a replica is.
func (p *Proxy) host(r *replica.Replica) *upstream.Host {
	if row := p.hosts.row(r.Slot); row.of == r {
		return row.Host
	}
	p.hosts.mu.Lock()
	defer p.hosts.mu.Unlock()
	row := p.hosts.row(r.Slot)
	if row.of == r {
		return row.Host
	}
	h := p.upstream.Host(r.URL)
	if r.Gone() { // the slot may be another's, and nobody will come for what is kept
		h.Close()
		return h
	}
	if row.of != nil {
		row.Close()
	}
	p.hosts.set(r.Slot, server{r, h})
	return h
}

// close closes the connections that are not in use.
func (h *hosts) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if rows := h.rows.Load(); rows != nil {
		for _, host := range *rows {
			if host.of != nil {
				host.Close()
			}
		}
	}
}
