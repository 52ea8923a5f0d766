package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/warmpath/warmpath/internal/modelcache/manifest"
)

// ErrNoRoom means that a model cannot get the space it needs.
var ErrNoRoom = errors.New("no room in the model cache")

// Plan is what a model needs on the disk.
type Plan struct {
	Model manifest.Digest
	// Source is remembered for people.
	Source string
	// Parts are the files. A part whose name is the hex of a blob's digest is that blob
	// once it is whole.
	Parts []Part
}

// Bytes is the sum of the parts' sizes.
func (p *Plan) Bytes() int64 {
	var sum int64
	for _, part := range p.Parts {
		sum += part.Size
	}
	return sum
}

// PartName names the download of a file with the given digest or other identity in
// hex. Where locks do nothing, no two pulls share a download.
func (s *Store) PartName(hex string) string {
	if s.shared {
		return hex
	}
	return hex + "-" + randomName()
}

// Reserve takes the space for what of a plan is not here yet, in the cache's limit
// and on the disk, and evicts least recently used models for it. If that cannot be
// enough, it evicts nothing and the error is ErrNoRoom. The caller has the model's
// lock. Evicted models are returned, also with an error.
func (s *Store) Reserve(ctx context.Context, plan *Plan) (evicted []*Entry, err error) {
	if whole := plan.Bytes(); whole > s.cfg.MaxBytes {
		return nil, fmt.Errorf("%w: the model has %s and cache.maxSizeGiB allows %s in all", ErrNoRoom, gib(whole), gib(s.cfg.MaxBytes))
	}
	err = s.locked(ctx, func() error {
		if err := s.sweep(plan); err != nil {
			return err
		}
		need := s.missing(plan)
		if evicted, err = s.makeRoom(need, plan); err != nil {
			return err
		}
		return s.take(plan)
	})
	return evicted, err
}

// missing is the bytes of a plan that are neither a blob nor reserved.
func (s *Store) missing(plan *Plan) int64 {
	var need int64
	counted := map[string]bool{}
	for _, p := range plan.Parts {
		if !counted[p.Name] && !s.hasBlob(p) && s.size(partials+"/"+p.Name+"/data") != p.Size {
			need += p.Size
		}
		counted[p.Name] = true
	}
	return need
}

func (s *Store) hasBlob(p Part) bool { return s.looksRight(blobs+"/"+p.Name, p.Size) == nil }

// size is a regular file's, -1 if there is none.
func (s *Store) size(name string) int64 {
	info, err := s.root.Lstat(name)
	if err != nil || !info.Mode().IsRegular() {
		return -1
	}
	return info.Size()
}

// take writes down what a pull needs, so that nothing evicts it, and takes the space.
func (s *Store) take(plan *Plan) error {
	dir := stateDir(plan.Model)
	_, before := s.root.Lstat(dir)
	if err := s.root.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	err := errors.Join(s.writeHint(dir+"/plan", planText(plan.Parts)), s.writeHint(dir+"/source", []byte(plan.Source+"\n")), s.touch(plan.Model))
	if err != nil {
		return err
	}
	var taken []string
	for _, p := range plan.Parts {
		if s.hasBlob(p) {
			continue
		}
		_, absent := s.root.Lstat(partials + "/" + p.Name)
		if err = s.takeSpace(p); err != nil {
			break
		}
		if absent != nil {
			taken = append(taken, p.Name)
		}
	}
	if err == nil {
		return nil
	}
	for _, name := range taken {
		_ = s.root.RemoveAll(partials + "/" + name)
	}
	if before != nil {
		_ = s.root.RemoveAll(dir)
	}
	if errors.Is(err, unix.ENOSPC) {
		err = fmt.Errorf("%w: the disk of %s is full: %w", ErrNoRoom, s.cfg.Path, err)
	}
	return err
}

// What a pull writes beside the files: state, and a journal of less than a byte for
// each 64 KiB.
const (
	stateBytes   = 256 << 10
	journalShift = 16
)

// makeRoom evicts models until need more bytes fit below the low watermark, if they
// do not fit below the high one as it is. It must run under lock.
func (s *Store) makeRoom(need int64, plan *Plan) ([]*Entry, error) {
	used, err := s.used()
	if err != nil {
		return nil, err
	}
	free, err := s.free()
	if err != nil {
		return nil, err
	}
	free -= stateBytes + need>>journalShift
	if need == 0 || used+need <= s.watermark(s.cfg.High) && need <= free {
		return nil, nil
	}
	entries, err := s.Entries()
	if err != nil {
		return nil, err
	}
	candidates, kept := s.evictable(entries, plan)
	var can int64
	freed := s.freedBy(entries, candidates, plan)
	for _, bytes := range freed {
		can += bytes
	}
	if used+need-can > s.cfg.MaxBytes {
		return nil, fmt.Errorf("%w: the model needs %s more, %s of cache.maxSizeGiB %s are used and %s of them can be evicted%s",
			ErrNoRoom, gib(need), gib(used), gib(s.cfg.MaxBytes), gib(can), kept)
	}
	if need > free+can {
		return nil, fmt.Errorf("%w: the model needs %s more, the disk of %s has %s free and %s can be evicted%s",
			ErrNoRoom, gib(need), s.cfg.Path, gib(max(0, free)), gib(can), kept)
	}
	var evicted []*Entry
	for i, e := range candidates {
		if used+need <= s.watermark(s.cfg.Low) && need <= free {
			break
		}
		if err := s.remove(e, plan); err != nil {
			return evicted, err
		}
		used, free = used-freed[i], free+freed[i]
		evicted = append(evicted, e)
	}
	return evicted, nil
}

func (s *Store) watermark(part float64) int64 { return int64(part * float64(s.cfg.MaxBytes)) }

// evictable are the models that may go, in the order in which they should; kept says
// for people why the others may not.
func (s *Store) evictable(entries []*Entry, plan *Plan) (candidates []*Entry, kept string) {
	var reasons []string
	for _, e := range entries {
		if plan != nil && e.Model == plan.Model {
			continue
		}
		if why := s.whyKept(e, entries); why != "" {
			reasons = append(reasons, fmt.Sprintf("%s (%s) is %s", e.Model, gib(e.Bytes), why))
			continue
		}
		candidates = append(candidates, e)
	}
	if len(reasons) > 0 {
		kept = "; " + strings.Join(reasons, "; ") + " (modelcache unpin, or a larger cache.maxSizeGiB)"
	}
	return candidates, kept
}

func (s *Store) whyKept(e *Entry, entries []*Entry) string {
	if why := e.kept(time.Now()); why != "" {
		return why
	}
	if s.busy(e.Model) {
		return "being pulled"
	}
	if s.open(e, entries) {
		return "open in a process"
	}
	return ""
}

// freedBy is what removing each candidate in turn frees: what no other model needs.
func (s *Store) freedBy(entries, candidates []*Entry, plan *Plan) []int64 {
	needed := map[string]int{}
	for _, e := range entries {
		for name := range e.names() {
			needed[name]++
		}
	}
	if plan != nil {
		for _, p := range plan.Parts {
			needed[p.Name]++
		}
	}
	freed := make([]int64, len(candidates))
	for i, e := range candidates {
		for name := range e.names() {
			if needed[name]--; needed[name] == 0 {
				freed[i] += max(0, s.size(blobs+"/"+name)) + max(0, s.size(partials+"/"+name+"/data"))
			}
		}
	}
	return freed
}

// names are the blobs and downloads that a model needs.
func (e *Entry) names() map[string]bool {
	names := map[string]bool{}
	for _, f := range e.files {
		names[f.Digest.Hex()] = true
	}
	for _, p := range e.parts {
		names[p.Name] = true
	}
	return names
}

// remove evicts a model: its directory disappears at once, then its state, then what
// nothing else needs. It must run under lock.
func (s *Store) remove(e *Entry, plan *Plan) error {
	if err := s.away(modelDir(e.Model)); err != nil {
		return err
	}
	if err := s.away(stateDir(e.Model)); err != nil {
		return err
	}
	return s.sweep(plan)
}

// away makes a directory disappear from its place, then removes it. What cannot be
// removed is tried again by the next sweep.
func (s *Store) away(dir string) error {
	trash := tmp + "/" + randomName()
	err := s.root.Rename(dir, trash)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := s.syncDir(filepath.Dir(dir)); err != nil {
		return err
	}
	_ = s.root.RemoveAll(trash)
	return nil
}

// sweep removes what no model needs: trees that were being made or removed when a
// process died, blobs without a model, downloads without a plan. What cannot be
// removed stays, counts as used and is tried again. It must run under lock.
func (s *Store) sweep(plan *Plan) error {
	leftovers, err := s.names(tmp)
	if err != nil {
		return err
	}
	for _, name := range leftovers {
		_ = s.root.RemoveAll(tmp + "/" + name)
	}
	entries, err := s.Entries()
	if err != nil {
		return err
	}
	needed := map[string]bool{}
	for _, e := range entries {
		for name := range e.names() {
			needed[name] = true
		}
		_ = s.dropExpired(e.Model)
		s.settle(e)
	}
	if plan != nil {
		for _, p := range plan.Parts {
			needed[p.Name] = true
		}
	}
	names, err := s.names(partials) // before blobs, which they may be links of
	if err != nil {
		return err
	}
	for _, name := range names {
		_, whole := s.root.Lstat(blobs + "/" + name)
		if whole == nil || !needed[name] && s.abandoned(name) {
			_ = s.root.RemoveAll(partials + "/" + name)
		}
	}
	if names, err = s.names(blobs); err != nil {
		return err
	}
	for _, name := range names {
		info, err := s.root.Lstat(blobs + "/" + name)
		if err == nil && !needed[name] && links(info) <= 1 {
			_ = s.root.Remove(blobs + "/" + name)
		}
	}
	return nil
}

// settle puts right what was written down while the clock was ahead: a last use that
// has yet to come would keep a model the last to go until then, and a lease that ends
// later than any may would keep it for as long. It must run under lock.
func (s *Store) settle(e *Entry) {
	now := time.Now()
	if e.LastUse.After(now.Add(clockSlack)) {
		_ = s.root.Chtimes(stateDir(e.Model)+"/used", now, now)
	}
	for _, l := range e.Leases {
		if l.Expires.After(now.Add(MaxLease + clockSlack)) {
			l.Expires = now.Add(MaxLease).Truncate(time.Millisecond)
			_ = s.writeLease(e.Model, l)
		}
	}
}

// clockSlack is more than a clock is set back by in normal running.
const clockSlack = time.Minute

// abandoned tells that a download that is in no plan is nobody's. Where locks do
// nothing it may be another process's; one that nothing was written to for a day is
// not.
func (s *Store) abandoned(name string) bool {
	if s.shared {
		return true
	}
	info, err := s.root.Lstat(partials + "/" + name + "/journal")
	if errors.Is(err, fs.ErrNotExist) { // it was reserved and never begun
		info, err = s.root.Lstat(partials + "/" + name)
	}
	return err == nil && time.Since(info.ModTime()) > 24*time.Hour
}

// used is the bytes of blobs, downloads at their full size, and leftovers. A model's
// directory adds nothing, except where it holds what is not a blob.
func (s *Store) used() (int64, error) {
	seen := map[inode]bool{}
	var sum int64
	for _, dir := range []string{blobs, partials, models, tmp} {
		err := fs.WalkDir(s.root.FS(), dir, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return ignoreAbsent(err)
			}
			info, err := entry.Info()
			if err != nil {
				return ignoreAbsent(err)
			}
			if id := inodeOf(info); info.Mode().IsRegular() && !seen[id] {
				seen[id] = true
				sum += info.Size()
			}
			return nil
		})
		if err != nil {
			return 0, err
		}
	}
	return sum, nil
}

// ignoreAbsent lets a walk go on when another process removed what it came to.
func ignoreAbsent(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Used returns the bytes that the cache takes on the disk, downloads at their full size.
func (s *Store) Used() (int64, error) { return s.used() }

// free is what the disk has left for us.
func (s *Store) free() (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(s.cfg.Path, &st); err != nil {
		return 0, &os.PathError{Op: "statfs", Path: s.cfg.Path, Err: err}
	}
	return int64(st.Bavail) * int64(st.Bsize), nil //nolint:unconvert // its type differs between systems
}

func gib(n int64) string {
	if n < 1<<30 {
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}

// Evict removes a model, which may be incomplete. It refuses one that is pinned,
// leased, being pulled or open in a process.
func (s *Store) Evict(ctx context.Context, model manifest.Digest) error {
	return s.locked(ctx, func() error {
		entries, err := s.Entries()
		if err != nil {
			return err
		}
		for _, e := range entries {
			if e.Model != model {
				continue
			}
			if why := s.whyKept(e, entries); why != "" {
				return fmt.Errorf("%s stays: it is %s", model, why)
			}
			return s.remove(e, nil)
		}
		return fmt.Errorf("%s: %w", model, ErrAbsent)
	})
}

// Trim evicts least recently used models down to the low watermark, if the cache is
// above the high one.
func (s *Store) Trim(ctx context.Context) (evicted []*Entry, err error) {
	err = s.locked(ctx, func() error {
		if err := s.sweep(nil); err != nil {
			return err
		}
		used, err := s.used()
		if err != nil || used <= s.watermark(s.cfg.High) {
			return err
		}
		entries, err := s.Entries()
		if err != nil {
			return err
		}
		candidates, _ := s.evictable(entries, nil)
		freed := s.freedBy(entries, candidates, nil)
		for i, e := range candidates {
			if used <= s.watermark(s.cfg.Low) {
				break
			}
			if err := s.remove(e, nil); err != nil {
				return err
			}
			used -= freed[i]
			evicted = append(evicted, e)
		}
		return nil
	})
	return evicted, err
}
