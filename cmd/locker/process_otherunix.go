//go:build unix && !linux

package main

import "syscall"

// dieWithUs does nothing: only Linux can kill the command when locker is killed.
func dieWithUs(*syscall.SysProcAttr) {}
