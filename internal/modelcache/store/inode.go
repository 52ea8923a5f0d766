package store

import (
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// inode is a file whatever its names are.
type inode struct{ device, number uint64 }

func inodeOf(info fs.FileInfo) inode {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return inode{uint64(st.Dev), st.Ino} //nolint:unconvert // its type differs between systems
	}
	return inode{}
}

// links is how many names a file has.
func links(info fs.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(st.Nlink) //nolint:unconvert // its type differs between systems
	}
	return 1
}

func (s *Store) openRead(name string) (*os.File, error) { return s.openPlain(name, os.O_RDONLY) }

// open tells that some process on this node has a file of a model open or mapped,
// which is how an engine holds weights, lease or not. Files that a pinned or leased
// model shares say nothing about this one. The kernel knows: it grants a write lease
// (fcntl F_SETLEASE) only on a file that nobody else has open. Where it cannot tell,
// the answer is no.
func (s *Store) open(e *Entry, entries []*Entry) bool {
	explained := map[string]bool{}
	for _, other := range entries {
		if other.Model != e.Model && (len(other.Pins) > 0 || len(other.Leases) > 0) {
			for name := range other.names() {
				explained[name] = true
			}
		}
	}
	for _, f := range e.files {
		if e.Published && !explained[f.Digest.Hex()] && s.fileOpen(modelDir(e.Model)+"/"+f.Path) {
			return true
		}
	}
	return false
}

func (s *Store) fileOpen(name string) bool {
	f, err := s.openPlain(name, os.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }() // and the lease with it
	return openElsewhere(f)
}
