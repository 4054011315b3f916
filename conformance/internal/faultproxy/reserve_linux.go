package faultproxy

import (
	"fmt"
	"os"
	"syscall"
)

// reserve takes a free port of 127.0.0.1 until release is called, with a socket that is bound and
// never listens. The proxy can listen on the port and stop. While it does not listen, connections
// are refused, but no other process is given the port.
func reserve() (addr string, release func(), err error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", nil, os.NewSyscallError("socket", err)
	}
	release = func() { syscall.Close(fd) }
	defer func() {
		if err != nil {
			release()
		}
	}()
	// With this option, which package net also sets, a socket may listen on a port to which other
	// sockets are bound that do not listen.
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		return "", nil, os.NewSyscallError("setsockopt", err)
	}
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return "", nil, os.NewSyscallError("bind", err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		return "", nil, os.NewSyscallError("getsockname", err)
	}
	in, ok := name.(*syscall.SockaddrInet4)
	if !ok {
		return "", nil, fmt.Errorf("unexpected address %v of a socket", name)
	}
	return fmt.Sprintf("127.0.0.1:%d", in.Port), release, nil
}
