package belief

import (
	"syscall"
	"time"
	"unsafe"
)

// clockMonotonic is CLOCK_MONOTONIC, which is also the clock of Go's monotonic times.
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

// base is one moment by both clocks. The shared clock was read first, so the result of [At] is
// never late, and is early by no more than the time between the two readings.
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
