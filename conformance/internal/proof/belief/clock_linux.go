package belief

import (
	"syscall"
	"time"
	"unsafe"
)

// clockMonotonic is CLOCK_MONOTONIC, on which Go's own monotonic times are as well.
const clockMonotonic = 1

// Clock returns the time of a clock that all processes of the machine share, and that is never set.
func Clock() time.Duration {
	var now syscall.Timespec
	_, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockMonotonic, uintptr(unsafe.Pointer(&now)), 0)
	if errno != 0 {
		panic("belief: clock_gettime: " + errno.Error())
	}
	return time.Duration(now.Nano())
}

// base is one moment by both clocks. The shared clock was read first, so what [At] returns is
// never late, and early by no more than these two readings were apart.
var base = func() (b struct {
	clock time.Duration
	time  time.Time
}) {
	least := time.Hour
	for range 1000 {
		before, now, after := Clock(), time.Now(), Clock()
		if after-before < least {
			least, b.clock, b.time = after-before, before, now
		}
	}
	return b
}()

// At returns the time of [Clock] at t, which has a monotonic reading.
func At(t time.Time) time.Duration { return base.clock + t.Sub(base.time) }
