package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/warmpath/warmpath/internal/modelcache/manifest"
)

// ErrBusy means that another pull has the lock.
var ErrBusy = errors.New("another pull of the same model is under way")

// lockPoll is how often a waiting process looks: flock cannot be given up when a
// context ends.
const lockPoll = 20 * time.Millisecond

// LockModel waits until no other pull of the model runs on this node.
func (s *Store) LockModel(ctx context.Context, model manifest.Digest) (unlock func(), err error) {
	return s.lock(ctx, modelLock(model))
}

// LockFile waits until no other pull of the file runs on this node. name is a
// Plan entry's.
func (s *Store) LockFile(ctx context.Context, name string) (unlock func(), err error) {
	return s.lock(ctx, locks+"/file-"+name)
}

func modelLock(model manifest.Digest) string { return locks + "/model-" + model.Hex() }

func (s *Store) lock(ctx context.Context, name string) (func(), error) {
	for {
		unlock, err := s.tryLock(name)
		if !errors.Is(err, ErrBusy) {
			return unlock, err
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(lockPoll):
		}
	}
}

// tryLock takes a lock or returns ErrBusy. A lock ends with its process. Lock files
// are removed when they are released, so a lock counts only if the file is still
// the one under its name.
func (s *Store) tryLock(name string) (func(), error) {
	f, err := s.root.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR) {
			_ = f.Close()
			return nil, ErrBusy
		}
		if !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EOPNOTSUPP) { // else it is as if it did nothing
			_ = f.Close()
			return nil, fmt.Errorf("flock %s: %w", name, err)
		}
	}
	mine, err := f.Stat()
	if err == nil {
		var named fs.FileInfo
		if named, err = s.root.Lstat(name); err == nil && os.SameFile(mine, named) {
			return func() {
				if name != lockFile {
					_ = s.root.Remove(name)
				}
				_ = f.Close()
			}, nil
		}
	}
	_ = f.Close()
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil, ErrBusy // removed by the one who had it: look again
	}
	return nil, err
}

// busy tells that a pull of the model runs.
func (s *Store) busy(model manifest.Digest) bool {
	unlock, err := s.tryLock(modelLock(model))
	if err != nil {
		return true
	}
	unlock()
	return false
}

// locksWork takes a lock twice. The second attempt must fail; on some network file
// systems it does not.
func (s *Store) locksWork() (bool, error) {
	name := locks + "/probe-" + randomName()
	unlock, err := s.tryLock(name)
	if err != nil {
		return false, err
	}
	defer unlock()
	second, err := s.tryLock(name)
	if err == nil {
		second()
		return false, nil
	}
	if errors.Is(err, ErrBusy) {
		return true, nil
	}
	return false, err
}
