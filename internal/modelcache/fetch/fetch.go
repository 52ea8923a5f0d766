// Package fetch downloads one file in parallel ranges into a store's partial file
// and hashes it on the way.
//
// Ranges are taken in the file's order, so that the hash, which needs the bytes in
// order, follows closely and reads them back from the page cache. What a broken
// connection delivered is kept to the last whole chunk; what a server does instead
// of what it was asked for is noticed and asked for again, a bounded number of times.
package fetch

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/warmpath/warmpath/internal/modelcache/manifest"
	"github.com/warmpath/warmpath/internal/modelcache/source"
	"github.com/warmpath/warmpath/internal/modelcache/store"
)

// Config is how hard a source is asked.
type Config struct {
	// Connections is the most ranges that are read at once, of all files together.
	Connections int `yaml:"connections"`
	// RangeMiB is the most that one request asks for: long against the time to a first
	// byte, short enough that all connections end at about the same time.
	RangeMiB int `yaml:"rangeMiB"`
	// Attempts is how often in a row a range is asked for without one new chunk.
	Attempts int `yaml:"attempts"`
	// StallTimeout is how long a connection may deliver nothing.
	StallTimeout time.Duration `yaml:"stallTimeout"`
	// RetryDelay is the pause before the second attempt; it doubles with each.
	RetryDelay time.Duration `yaml:"retryDelay"`
}

// DefaultConfig suits object stores: eight connections fill 10 Gbit/s.
func DefaultConfig() Config {
	return Config{Connections: 8, RangeMiB: 16, Attempts: 5, StallTimeout: 30 * time.Second, RetryDelay: 200 * time.Millisecond}
}

// Fetcher downloads from any source.
type Fetcher struct {
	cfg         Config
	connections *semaphore.Weighted
	buffers     sync.Pool
	received    atomic.Int64
}

// New returns a fetcher.
func New(cfg Config) *Fetcher {
	return &Fetcher{
		cfg: cfg, connections: semaphore.NewWeighted(int64(cfg.Connections)),
		buffers: sync.Pool{New: func() any { b := make([]byte, store.ChunkBytes); return &b }},
	}
}

// Received returns the bytes that sources have sent, also those in vain.
func (f *Fetcher) Received() int64 { return f.received.Load() }

// File is what is to be downloaded.
type File struct {
	source.Object
	From source.Source
	To   *store.Partial
	// Progress, which may be nil, gets the bytes that became present, those that were
	// there already included. A restart takes them back.
	Progress func(bytes int64)
	// Received, which may be nil, gets the bytes that the source sent, also in vain.
	Received func(bytes int64)
}

// errWhole means that a source sends whole files only.
var errWhole = errors.New("the source does not serve ranges")

// Download completes the partial file and returns the digest of what is there.
func (f *Fetcher) Download(ctx context.Context, file File) (manifest.Digest, error) {
	digest, err := f.parallel(ctx, file)
	if errors.Is(err, errWhole) {
		digest, err = f.whole(ctx, file)
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", file.Path, err)
	}
	return digest, nil
}

// parallel fetches what is missing in ranges.
func (f *Fetcher) parallel(ctx context.Context, file File) (manifest.Digest, error) {
	part := file.To
	present := newPresence(part)
	file.report(present.bytes())
	rangeChunks := f.cfg.RangeMiB << 20 / store.ChunkBytes
	group, ctx := errgroup.WithContext(ctx)
	var digest manifest.Digest
	group.Go(func() (err error) {
		digest, err = f.hash(ctx, part, present)
		return err
	})
	group.Go(func() error {
		for begin := 0; begin < part.Chunks(); {
			if part.Have(begin) {
				begin++
				continue
			}
			end := begin + 1
			for end < part.Chunks() && end-begin < rangeChunks && !part.Have(end) {
				end++
			}
			if err := f.connections.Acquire(ctx, 1); err != nil {
				return err
			}
			from := begin
			group.Go(func() error {
				defer f.connections.Release(1)
				return f.chunks(ctx, file, present, from, end)
			})
			begin = end
		}
		return nil
	})
	err := group.Wait()
	if errors.Is(err, errWhole) {
		file.report(-present.bytes())
	}
	return digest, err
}

// chunks fetches the chunks [begin, end), in as many attempts as it takes while each
// brings something.
func (f *Fetcher) chunks(ctx context.Context, file File, present *presence, begin, end int) error {
	return f.retry(ctx, func() (bool, error) {
		got, err := f.attempt(ctx, file, begin, end, func(i int) {
			present.add(i)
			file.report(present.chunkBytes(i))
		})
		begin += got
		return got > 0, err
	})
}

// retry makes attempts until one succeeds, nothing can help, or as many in a row as
// are allowed brought nothing.
func (f *Fetcher) retry(ctx context.Context, attempt func() (brought bool, err error)) error {
	failures := 0
	for {
		brought, err := attempt()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case source.Permanent(err), errors.Is(err, errWhole), errors.Is(err, errDisk):
			return err
		case brought:
			failures = 0
		}
		failures++
		if failures >= f.cfg.Attempts {
			return fmt.Errorf("given up after %d attempts without a new byte: %w", failures, err)
		}
		if err := pause(ctx, f.delay(failures)); err != nil {
			return err
		}
	}
}

// maxDelay bounds the pauses, so that a source that comes back is noticed.
const maxDelay = 30 * time.Second

// delay is the pause after a number of failures. A random part of it keeps the nodes
// that failed together from asking together.
func (f *Fetcher) delay(failures int) time.Duration {
	d := f.cfg.RetryDelay
	for range failures - 1 {
		if d >= maxDelay {
			break
		}
		d *= 2
	}
	if d > maxDelay {
		d = max(f.cfg.RetryDelay, maxDelay)
	}
	return d/2 + rand.N(d/2+1)
}

// errDisk marks errors of our own disk: the source cannot help.
var errDisk = errors.New("write")

// attempt asks once and returns how many whole chunks it brought.
func (f *Fetcher) attempt(ctx context.Context, file File, begin, end int, done func(int)) (got int, err error) {
	offset := int64(begin) * store.ChunkBytes
	length := min(int64(end)*store.ChunkBytes, file.To.Size()) - offset
	body, stop, err := f.open(ctx, file, offset, length)
	if err != nil {
		return 0, err
	}
	defer stop()
	if body.Offset != offset {
		return 0, errWhole
	}
	if body.Size >= 0 && body.Size != file.To.Size() {
		return 0, encoded(body, fmt.Errorf("the file has %d bytes at the source, not %d", body.Size, file.To.Size()))
	}
	got, err = f.copy(body, file.To, begin, end, done)
	return got, encoded(body, err)
}

// encoded says of an error that the source compresses what it must not.
func encoded(body *source.Body, err error) error {
	if err == nil || body.Encoding == "" || body.Encoding == "identity" || errors.Is(err, errDisk) {
		return err
	}
	return fmt.Errorf("%w; the source sent the file with Content-Encoding %s, it must be served as it is", err, body.Encoding)
}

// copy stores a body's chunks. The body may be longer than what was asked for: the
// rest is left.
func (f *Fetcher) copy(body io.Reader, part *store.Partial, begin, end int, done func(int)) (got int, err error) {
	buffer := f.buffers.Get().(*[]byte)
	defer f.buffers.Put(buffer)
	for i := begin; i < end; i++ {
		chunk := (*buffer)[:min(store.ChunkBytes, part.Size()-int64(i)*store.ChunkBytes)]
		if _, err := io.ReadFull(body, chunk); err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				err = fmt.Errorf("the body ended early: %w", io.ErrUnexpectedEOF)
			}
			return got, err
		}
		if err := part.Write(i, chunk); err != nil {
			return got, fmt.Errorf("%w: %w", errDisk, err)
		}
		done(i)
		got++
	}
	return got, nil
}

// open starts a request that ends when nothing has come for the stall timeout. What
// the reader does between two reads does not count.
func (f *Fetcher) open(ctx context.Context, file File, offset, length int64) (*source.Body, func(), error) {
	w := f.watch(ctx)
	body, err := file.From.Open(w.ctx, file.Path, offset, length, file.Version)
	if err != nil {
		err = w.explain(err)
		w.end()
		return nil, nil, err
	}
	w.timer.Stop()
	closer := body.ReadCloser
	body.ReadCloser = struct {
		io.Reader
		io.Closer
	}{readerFunc(func(p []byte) (int, error) {
		w.alive()
		n, err := closer.Read(p)
		w.timer.Stop()
		f.received.Add(int64(n))
		if file.Received != nil {
			file.Received(int64(n))
		}
		if err != nil {
			err = w.explain(err)
		}
		return n, err
	}), closer}
	return body, func() { w.end(); _ = closer.Close() }, nil
}

// watch ends a request's context when the source is silent for the stall timeout.
type watch struct {
	ctx     context.Context
	cancel  context.CancelCauseFunc
	timer   *time.Timer
	timeout time.Duration
	stalled error
}

func (f *Fetcher) watch(ctx context.Context) *watch {
	w := &watch{timeout: f.cfg.StallTimeout, stalled: fmt.Errorf("nothing came for %v (fetch.stallTimeout)", f.cfg.StallTimeout)}
	w.ctx, w.cancel = context.WithCancelCause(ctx)
	w.timer = time.AfterFunc(w.timeout, func() { w.cancel(w.stalled) })
	return w
}

func (w *watch) alive() { w.timer.Reset(w.timeout) }

func (w *watch) end() {
	w.timer.Stop()
	w.cancel(nil)
}

// explain says what ended a request.
func (w *watch) explain(err error) error {
	if errors.Is(context.Cause(w.ctx), w.stalled) {
		return w.stalled
	}
	return err
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// whole fetches the file from its beginning in one request, over whatever is there.
func (f *Fetcher) whole(ctx context.Context, file File) (manifest.Digest, error) {
	if err := f.connections.Acquire(ctx, 1); err != nil {
		return "", err
	}
	defer f.connections.Release(1)
	var present *presence
	err := f.retry(ctx, func() (bool, error) {
		if err := file.To.Reset(); err != nil {
			return false, fmt.Errorf("%w: %w", errDisk, err)
		}
		var reported int64
		present = newPresence(file.To)
		err := f.wholeOnce(ctx, file, present, func(i int) {
			reported += present.chunkBytes(i)
			file.report(present.chunkBytes(i))
		})
		if err != nil {
			file.report(-reported)
		}
		return false, err
	})
	if err != nil {
		return "", err
	}
	return f.hash(ctx, file.To, present)
}

func (f *Fetcher) wholeOnce(ctx context.Context, file File, present *presence, done func(int)) error {
	body, stop, err := f.open(ctx, file, 0, -1)
	if err != nil {
		return err
	}
	defer stop()
	if body.Size >= 0 && body.Size != file.To.Size() {
		return encoded(body, fmt.Errorf("the file has %d bytes at the source, not %d", body.Size, file.To.Size()))
	}
	_, err = f.copy(body, file.To, 0, file.To.Chunks(), func(i int) { present.add(i); done(i) })
	return encoded(body, err)
}

// hash hashes chunks in order as they become present.
func (f *Fetcher) hash(ctx context.Context, part *store.Partial, present *presence) (manifest.Digest, error) {
	h := sha256.New()
	buffer := f.buffers.Get().(*[]byte)
	defer f.buffers.Put(buffer)
	for i := range part.Chunks() {
		if err := present.wait(ctx, i); err != nil {
			return "", err
		}
		chunk, err := part.Read(i, *buffer)
		if err != nil {
			return "", err
		}
		_, _ = h.Write(chunk)
	}
	return manifest.SumDigest(h.Sum(nil)), nil
}

func (f File) report(bytes int64) {
	if f.Progress != nil && bytes != 0 {
		f.Progress(bytes)
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
