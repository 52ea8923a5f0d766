package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/warmpath/warmpath/internal/modelcache/manifest"
)

// Entry is what the disk says of a model.
type Entry struct {
	Model manifest.Digest `json:"digest"`
	// Source is where it came from, as repository and revision; for people.
	Source string `json:"source"`
	// Published tells that the model's directory is there; without it a pull has not
	// ended.
	Published bool `json:"published"`
	// Bytes is the sum of its files' sizes. What it shares with others counts for each.
	Bytes int64 `json:"bytes"`
	// LastUse is the LRU order.
	LastUse time.Time `json:"last_use"`
	Pins    []string  `json:"pins"`
	Leases  []Lease   `json:"leases"`

	files []manifest.File // nil if the manifest is lost
	parts []Part          // what a pull that has not ended needs
}

// Part is a file on its way: a name that is safe in a path, and a size in bytes.
type Part struct {
	Name string
	Size int64
}

// Lease keeps a model for as long as somebody renews it.
type Lease struct {
	ID      string    `json:"id"`
	Holder  string    `json:"holder"`
	Expires time.Time `json:"expires"`
}

// kept says why a model must not be evicted, "" if it may.
func (e *Entry) kept(now time.Time) string {
	if len(e.Pins) > 0 {
		return "pinned by " + strings.Join(e.Pins, ", ")
	}
	for _, l := range e.Leases {
		if l.Expires.After(now) {
			return "leased by " + l.Holder
		}
	}
	return ""
}

// Entries lists all models, least recently used first.
func (s *Store) Entries() ([]*Entry, error) {
	seen := map[manifest.Digest]bool{}
	for _, dir := range []string{models, state} {
		names, err := s.names(dir)
		if err != nil {
			return nil, err
		}
		for _, n := range names {
			if d := modelOf(n); d != "" {
				seen[d] = true
			}
		}
	}
	entries := make([]*Entry, 0, len(seen))
	for d := range seen {
		e, err := s.entry(d)
		if err != nil {
			return nil, err
		}
		entries = append(entries, e)
	}
	slices.SortFunc(entries, func(a, b *Entry) int {
		if c := a.LastUse.Compare(b.LastUse); c != 0 {
			return c
		}
		return strings.Compare(string(a.Model), string(b.Model))
	})
	return entries, nil
}

// entry reads one model's state. Files that are missing or cannot be understood are
// as good as absent; only a disk that does not answer is an error.
func (s *Store) entry(model manifest.Digest) (*Entry, error) {
	e := &Entry{Model: model, Published: s.published(model), Pins: []string{}, Leases: []Lease{}}
	dir := stateDir(model)
	if m, err := s.Manifest(model); err == nil {
		e.files, e.Bytes = m.Files, m.Bytes()
	}
	if text, err := s.readSmall(dir+"/plan", manifest.MaxBytes); err == nil {
		e.parts = parsePlan(string(text))
	}
	if e.files == nil {
		for _, p := range e.parts {
			e.Bytes += p.Size
		}
	}
	if text, err := s.readSmall(dir+"/source", 4096); err == nil {
		e.Source = strings.TrimSpace(string(text))
	}
	if info, err := s.root.Lstat(dir + "/used"); err == nil {
		e.LastUse = info.ModTime()
	}
	pins, err := s.names(dir + "/pins")
	if err != nil {
		return nil, err
	}
	for _, p := range pins {
		if CheckName(p) == nil {
			e.Pins = append(e.Pins, p)
		}
	}
	slices.Sort(e.Pins)
	e.Leases, err = s.leases(model)
	return e, err
}

// leases reads a model's leases. One that cannot be read is kept for as long as one
// that was just written might last: better too long than an engine without weights.
func (s *Store) leases(model manifest.Digest) ([]Lease, error) {
	dir := stateDir(model) + "/leases"
	ids, err := s.names(dir)
	if err != nil {
		return nil, err
	}
	leases := make([]Lease, 0, len(ids))
	for _, id := range ids {
		if CheckName(id) != nil || strings.Contains(id, ".") {
			continue // being written
		}
		var l Lease
		text, err := s.readSmall(dir+"/"+id, 4096)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil || json.Unmarshal(text, &l) != nil || l.ID != id {
			info, err := s.root.Lstat(dir + "/" + id)
			if err != nil {
				continue
			}
			l = Lease{ID: id, Holder: "unknown", Expires: info.ModTime().Add(MaxLease)}
		}
		leases = append(leases, l)
	}
	slices.SortFunc(leases, func(a, b Lease) int { return strings.Compare(a.ID, b.ID) })
	return leases, nil
}

// Manifest returns what a model consists of, if that is known. The text is checked
// against the model's digest.
func (s *Store) Manifest(model manifest.Digest) (*manifest.Manifest, error) {
	text, err := s.readSmall(stateDir(model)+"/manifest", manifest.MaxBytes)
	if err != nil {
		return nil, err
	}
	m, err := manifest.Parse(text)
	if err == nil && m.Digest() != model {
		err = fmt.Errorf("the manifest of %s in the cache has another digest", model)
	}
	return m, err
}

func planText(parts []Part) []byte {
	var b strings.Builder
	for _, p := range parts {
		fmt.Fprintf(&b, "%s %d\n", p.Name, p.Size)
	}
	return []byte(b.String())
}

// parsePlan reads what planText wrote, and skips lines that it did not.
func parsePlan(text string) []Part {
	var parts []Part
	for line := range strings.Lines(text) {
		name, digits, ok := strings.Cut(strings.TrimSpace(line), " ")
		size, err := strconv.ParseInt(digits, 10, 64)
		if ok && err == nil && size >= 0 && CheckName(name) == nil {
			parts = append(parts, Part{Name: name, Size: size})
		}
	}
	return parts
}

// CheckName says what is wrong with the name of a pin or a part.
func CheckName(name string) error {
	if name == "" || len(name) > 200 || strings.Trim(name, ".") == "" {
		return fmt.Errorf("name %q is empty, too long, or dots alone", name)
	}
	for _, c := range name {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '.' && c != '_' && c != '-' {
			return fmt.Errorf("name %q has %q; letters, digits, '.', '_' and '-' are allowed", name, c)
		}
	}
	return nil
}
