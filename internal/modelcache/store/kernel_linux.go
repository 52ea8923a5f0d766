package store

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// openElsewhere tells that another open file or a mapping has the same content. The
// kernel grants a write lease (fcntl F_SETLEASE) only where there is none. Where it
// cannot tell, the answer is no.
func openElsewhere(f *os.File) bool {
	_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK)
	return errors.Is(err, unix.EAGAIN)
}

// takeBlocks takes a file's space from the disk, where the file system can.
func takeBlocks(f *os.File, size int64) error {
	err := unix.Fallocate(int(f.Fd()), 0, 0, size)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return nil
	}
	return err
}
