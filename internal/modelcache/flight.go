package modelcache

import (
	"context"
	"sync"

	"github.com/warmpath/warmpath/internal/modelcache/manifest"
)

// flights lets callers share pulls. A pull runs under a context of its own, which
// ends when its last caller has left; it does not matter who was first. That is what
// x/sync/singleflight does not do.
type flights struct {
	mu   sync.Mutex // guards what follows and the flights' callers
	open map[manifest.Digest]*flight
}

type flight struct {
	cancel   context.CancelFunc
	callers  int
	progress *Progress
	done     chan struct{} // closed when result and err are set
	result   Result
	err      error
}

// do joins the pull of a digest or begins it with f. The result says what the whole
// pull did; progress is followed until the caller leaves.
func (fs *flights) do(ctx context.Context, digest manifest.Digest, progress *Progress, f func(context.Context, *Progress) (Result, error)) (Result, error) {
	fl := fs.join(ctx, digest, f)
	progress.follow(fl.progress)
	select {
	case <-fl.done:
		fs.leave(digest, fl)
		return fl.result, fl.err
	case <-ctx.Done():
		fs.leave(digest, fl)
		return Result{}, context.Cause(ctx)
	}
}

func (fs *flights) join(ctx context.Context, digest manifest.Digest, f func(context.Context, *Progress) (Result, error)) *flight {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fl := fs.open[digest]; fl != nil {
		fl.callers++
		return fl
	}
	pull, cancel := context.WithCancel(context.WithoutCancel(ctx))
	fl := &flight{cancel: cancel, callers: 1, progress: &Progress{}, done: make(chan struct{})}
	if fs.open == nil {
		fs.open = map[manifest.Digest]*flight{}
	}
	fs.open[digest] = fl
	go func() {
		fl.result, fl.err = f(pull, fl.progress)
		fs.mu.Lock()
		if fs.open[digest] == fl {
			delete(fs.open, digest)
		}
		fs.mu.Unlock()
		close(fl.done)
		cancel()
	}()
	return fl
}

// leave ends a pull that nobody waits for. The last caller waits until it has
// stopped, so that what it held is free when its callers are gone; a new caller
// begins another.
func (fs *flights) leave(digest manifest.Digest, fl *flight) {
	fs.mu.Lock()
	fl.callers--
	last := fl.callers == 0
	if last && fs.open[digest] == fl {
		delete(fs.open, digest)
	}
	fs.mu.Unlock()
	if last {
		fl.cancel()
		<-fl.done
	}
}
