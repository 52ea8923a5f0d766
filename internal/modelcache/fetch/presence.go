package fetch

import (
	"context"
	"sync"

	"github.com/warmpath/warmpath/internal/modelcache/store"
)

// presence tells the hash which chunks it can read.
type presence struct {
	mu      sync.Mutex // guards what follows
	have    []bool
	changed chan struct{} // closed and replaced with each chunk that somebody waits for
	waiting int           // the chunk, -1 if nobody waits
	size    int64
}

func newPresence(part *store.Partial) *presence {
	p := &presence{have: make([]bool, part.Chunks()), changed: make(chan struct{}), waiting: -1, size: part.Size()}
	for i := range p.have {
		p.have[i] = part.Have(i)
	}
	return p
}

func (p *presence) add(i int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.have[i] = true
	if p.waiting == i {
		close(p.changed)
		p.changed, p.waiting = make(chan struct{}), -1
	}
}

// wait returns when a chunk is present. One goroutine waits at a time.
func (p *presence) wait(ctx context.Context, i int) error {
	p.mu.Lock()
	if p.have[i] {
		p.mu.Unlock()
		return ctx.Err()
	}
	p.waiting = i
	changed := p.changed
	p.mu.Unlock()
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (p *presence) chunkBytes(i int) int64 {
	return min(store.ChunkBytes, p.size-int64(i)*store.ChunkBytes)
}

func (p *presence) bytes() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	var sum int64
	for i, have := range p.have {
		if have {
			sum += p.chunkBytes(i)
		}
	}
	return sum
}
