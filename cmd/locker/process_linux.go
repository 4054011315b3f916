package main

import (
	"runtime"
	"syscall"
)

// dieWithUs makes the kernel kill the command when locker is killed. It does so when the thread ends
// that has started the command, so the calling goroutine, which lives as long as locker, keeps its
// thread.
func dieWithUs(attr *syscall.SysProcAttr) {
	runtime.LockOSThread()
	attr.Pdeathsig = syscall.SIGKILL
}
