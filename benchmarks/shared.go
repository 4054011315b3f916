package main

import (
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// shared is memory that all processes of a fleet see. Each lock has a slot in it, where its holders register and
// deregister, so of two holders at once the second notices.
type shared struct {
	path   string
	memory []byte
}

// slot is of one lock, on a cache line of its own.
type slot struct {
	holders  atomic.Int32
	_        int32
	overlaps atomic.Int64 // times that a holder found another
	entries  atomic.Int64
	released atomic.Int64 // when the last holder was about to unlock, on the wall clock
	_        [32]byte
}

const (
	slots    = 1024
	slotSize = int(unsafe.Sizeof(slot{}))
)

func newShared() (*shared, error) {
	file, err := os.CreateTemp("", "locker-benchmark-")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if err := file.Truncate(int64(slots * slotSize)); err != nil {
		return nil, err
	}
	return openShared(file.Name())
}

func openShared(path string) (*shared, error) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	memory, err := syscall.Mmap(int(file.Fd()), 0, slots*slotSize,
		syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", path, err)
	}
	return &shared{path, memory}, nil
}

func (s *shared) slot(i int) *slot {
	return (*slot)(unsafe.Pointer(&s.memory[i%slots*slotSize]))
}

func (s *shared) clear() { clear(s.memory) }

// sums returns how many times a lock was held, over all slots, and how many of these overlapped with another.
func (s *shared) sums() (entries, overlaps int64) {
	for i := range slots {
		entries += s.slot(i).entries.Load()
		overlaps += s.slot(i).overlaps.Load()
	}
	return entries, overlaps
}

func (s *shared) remove() {
	_ = syscall.Munmap(s.memory)
	os.Remove(s.path)
}

// enter registers a holder that asked for the lock at asked and has it now. If it waited when the lock was
// released, enter returns how long ago that was.
func (s *slot) enter(asked, now time.Time) (handOff time.Duration, waited bool) {
	if s.holders.Add(1) != 1 {
		s.overlaps.Add(1)
	}
	s.entries.Add(1)
	released := s.released.Load()
	return time.Duration(now.UnixNano() - released), released > asked.UnixNano()
}

// leave deregisters a holder that is about to release the lock.
func (s *slot) leave(now time.Time) {
	s.released.Store(now.UnixNano())
	s.holders.Add(-1)
}
