//go:build !(linux && (amd64 || arm64) && !race && !msan && !asan)

package socket

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

func read(fd uintptr, to []byte) (int, syscall.Errno) { return result(unix.Read(int(fd), to)) }

func peek(fd uintptr) (int, syscall.Errno) {
	n, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
	return result(n, err)
}

func write(fd uintptr, a, b []byte) (int, syscall.Errno) {
	if len(a) == 0 {
		a, b = b, nil
	}
	if len(b) == 0 {
		return result(unix.Write(int(fd), a))
	}
	return result(unix.Writev(int(fd), [][]byte{a, b}))
}

func result(n int, err error) (int, syscall.Errno) {
	if errno := syscall.Errno(0); errors.As(err, &errno) {
		return 0, errno
	}
	return n, 0
}
