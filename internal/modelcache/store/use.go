package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/warmpath/warmpath/internal/modelcache/manifest"
)

// MaxLease is the longest time that a lease can be asked for at once.
const MaxLease = 24 * time.Hour

// ErrAbsent means that a model is not whole in the cache.
var ErrAbsent = errors.New("the model is not in the cache, or not whole")

// ErrNoLease means that there is no such lease, or no more.
var ErrNoLease = errors.New("no such lease, or it has expired")

// Use marks a model as used and, if pin is not "", pins it under that name. The model
// is whole as far as its files' sizes and times tell; otherwise the error is
// ErrAbsent, and nothing is marked.
func (s *Store) Use(ctx context.Context, model manifest.Digest, pin string) error {
	return s.locked(ctx, func() error {
		if err := s.whole(model); err != nil {
			return err
		}
		if err := s.touch(model); err != nil {
			return err
		}
		if pin == "" {
			return nil
		}
		return s.pin(model, pin)
	})
}

func (s *Store) pin(model manifest.Digest, name string) error {
	if err := CheckName(name); err != nil {
		return err
	}
	pins := stateDir(model) + "/pins"
	if err := s.root.MkdirAll(pins, 0o755); err != nil {
		return err
	}
	if _, err := s.root.Lstat(pins + "/" + name); err == nil {
		return nil
	}
	f, err := s.root.Create(pins + "/" + name)
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), s.syncDir(pins), s.syncDir(stateDir(model)), s.syncDir(state))
}

// Unpin removes a pin; without a name, all of the model's. It returns how many there
// were.
func (s *Store) Unpin(ctx context.Context, model manifest.Digest, name string) (int, error) {
	removed := 0
	err := s.locked(ctx, func() error {
		e, err := s.entry(model)
		if err != nil {
			return err
		}
		for _, p := range e.Pins {
			if name == "" || p == name {
				if err := s.root.Remove(stateDir(model) + "/pins/" + p); err != nil {
					return err
				}
				removed++
			}
		}
		return nil
	})
	return removed, err
}

// Lease keeps a whole model until ttl has passed or the lease is released. An ID that
// exists already is renewed.
func (s *Store) Lease(ctx context.Context, model manifest.Digest, holder string, ttl time.Duration) (Lease, error) {
	return s.lease(ctx, model, Lease{ID: randomName(), Holder: holder}, ttl, false)
}

// Renew prolongs a lease to ttl from now. The error is ErrNoLease if it has ended.
func (s *Store) Renew(ctx context.Context, id string, ttl time.Duration) (Lease, error) {
	model, l, err := s.findLease(id)
	if err != nil {
		return Lease{}, err
	}
	return s.lease(ctx, model, l, ttl, true)
}

func (s *Store) lease(ctx context.Context, model manifest.Digest, l Lease, ttl time.Duration, renew bool) (Lease, error) {
	if err := CheckTTL(ttl); err != nil {
		return Lease{}, err
	}
	err := s.locked(ctx, func() error {
		if renew {
			if _, _, err := s.findLease(l.ID); err != nil {
				return err
			}
		} else if err := s.whole(model); err != nil {
			return err
		}
		if err := s.touch(model); err != nil {
			return err
		}
		dir := stateDir(model) + "/leases"
		if err := s.root.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := s.dropExpired(model); err != nil {
			return err
		}
		l.Expires = time.Now().Add(ttl).Truncate(time.Millisecond)
		return s.writeLease(model, l)
	})
	return l, err
}

func (s *Store) writeLease(model manifest.Digest, l Lease) error {
	text, err := json.Marshal(l)
	if err != nil {
		return err
	}
	return s.writeFile(stateDir(model)+"/leases/"+l.ID, text)
}

// CheckTTL says what is wrong with the time that a lease is asked for.
func CheckTTL(ttl time.Duration) error {
	if ttl <= 0 || ttl > MaxLease {
		return fmt.Errorf("ttl is %v, must be above 0 and at most %v", ttl, MaxLease)
	}
	return nil
}

// dropExpired removes a model's leases that have ended. It must run under lock.
func (s *Store) dropExpired(model manifest.Digest) error {
	leases, err := s.leases(model)
	if err != nil {
		return err
	}
	for _, l := range leases {
		if l.Expires.Before(time.Now()) {
			_ = s.root.Remove(stateDir(model) + "/leases/" + l.ID)
		}
	}
	return nil
}

// Release ends a lease.
func (s *Store) Release(ctx context.Context, id string) error {
	return s.locked(ctx, func() error {
		model, _, err := s.findLease(id)
		if err != nil {
			return err
		}
		if err := s.touch(model); err != nil {
			return err
		}
		return s.root.Remove(stateDir(model) + "/leases/" + id)
	})
}

func (s *Store) findLease(id string) (manifest.Digest, Lease, error) {
	entries, err := s.Entries()
	if err != nil {
		return "", Lease{}, err
	}
	for _, e := range entries {
		for _, l := range e.Leases {
			if l.ID == id && l.Expires.After(time.Now()) {
				return e.Model, l, nil
			}
		}
	}
	return "", Lease{}, ErrNoLease
}

// touch makes a model the most recently used one.
func (s *Store) touch(model manifest.Digest) error {
	name := stateDir(model) + "/used"
	if err := s.root.MkdirAll(stateDir(model), 0o755); err != nil {
		return err
	}
	f, err := s.root.Create(name)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	now := time.Now()
	return s.root.Chtimes(name, now, now)
}

// whole checks a published model by its files' names, kinds, sizes and times.
func (s *Store) whole(model manifest.Digest) error {
	m, err := s.Manifest(model)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrAbsent, err)
	}
	expected := make(map[string]bool, len(m.Files))
	for _, f := range m.Files {
		if err := s.looksRight(modelDir(model)+"/"+f.Path, f.Size); err != nil {
			return fmt.Errorf("%w: %w", ErrAbsent, err)
		}
		expected[f.Path] = true
	}
	extra, err := s.strangers(model, expected)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrAbsent, err)
	}
	if len(extra) > 0 {
		return fmt.Errorf("%w: %s is not one of its files", ErrAbsent, extra[0])
	}
	return nil
}

// looksRight checks a file without reading it.
func (s *Store) looksRight(name string, size int64) error {
	info, err := s.root.Lstat(name)
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is not a file", name)
	case info.Size() != size:
		return fmt.Errorf("%s has %d bytes, not %d", name, info.Size(), size)
	case !info.ModTime().Equal(stamp):
		return fmt.Errorf("%s was written to since it was published", name)
	}
	return nil
}

// strangers are files in a model's directory that are not the model's: an engine
// would read them too.
func (s *Store) strangers(model manifest.Digest, expected map[string]bool) ([]string, error) {
	var extra []string
	base := modelDir(model)
	err := fs.WalkDir(s.root.FS(), base, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := strings.TrimPrefix(path, base+"/"); !entry.IsDir() && !expected[name] {
			extra = append(extra, name)
		}
		return nil
	})
	return extra, err
}
