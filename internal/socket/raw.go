//go:build linux && (amd64 || arm64) && !race && !msan && !asan

package socket

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// These calls are not announced. None of them can block: package net sets sockets so
// that they do not. Memory stays where it is while its address is in an argument of
// RawSyscall (package unsafe, pattern 4).

func read(fd uintptr, to []byte) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall(syscall.SYS_READ, fd, uintptr(unsafe.Pointer(unsafe.SliceData(to))), uintptr(len(to)))
	return int(n), errno
}

func peek(fd uintptr) (int, syscall.Errno) {
	var b [1]byte
	n, _, errno := syscall.RawSyscall6(syscall.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(&b)), 1, unix.MSG_PEEK|unix.MSG_DONTWAIT, 0, 0)
	return int(n), errno
}

func write(fd uintptr, a, b []byte) (int, syscall.Errno) {
	if len(b) == 0 {
		n, _, errno := syscall.RawSyscall(syscall.SYS_WRITE, fd, uintptr(unsafe.Pointer(unsafe.SliceData(a))), uintptr(len(a)))
		return int(n), errno
	}
	v := [2]syscall.Iovec{{Base: unsafe.SliceData(a), Len: uint64(len(a))}, {Base: unsafe.SliceData(b), Len: uint64(len(b))}}
	n, _, errno := syscall.RawSyscall(syscall.SYS_WRITEV, fd, uintptr(unsafe.Pointer(&v)), 2)
	return int(n), errno
}
