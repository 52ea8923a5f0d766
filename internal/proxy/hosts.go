package proxy

import (
	"sync"

	"github.com/warmpath/warmpath/internal/replica"
	"github.com/warmpath/warmpath/internal/upstream"
)

// hosts are the replicas as servers, by slot. A reader takes no lock.
type hosts struct {
	mu sync.Mutex
	table[*upstream.Host]
}

// host returns the server that a replica is.
func (p *Proxy) host(r *replica.Replica) *upstream.Host {
	if h := p.hosts.row(r.Slot); h != nil {
		return h
	}
	p.hosts.mu.Lock()
	defer p.hosts.mu.Unlock()
	h := p.hosts.row(r.Slot)
	if h == nil {
		h = p.upstream.Host(r.URL)
		p.hosts.set(r.Slot, h)
	}
	return h
}

// close closes the connections that are not in use.
func (h *hosts) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if rows := h.rows.Load(); rows != nil {
		for _, host := range *rows {
			if host != nil {
				host.Close()
			}
		}
	}
}
