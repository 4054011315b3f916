package singleflight

import (
	"hash/maphash"
	"sync/atomic"
	"time"
)

// marks remembers for a short time that something happened to a key. It takes 8 KiB from the
// first mark on, however many keys there are, and nothing before that: it distinguishes keys by
// ten bits of their hashes. So a mark also applies to one in a thousand of the other keys, and
// must do no harm there. The zero value has no marks.
type marks struct {
	slots atomic.Pointer[[1 << 10]mark]
}

// mark is the instant at which something ends, or 0 if there is nothing.
type mark struct{ atomic.Int64 }

var markSeed = maphash.MakeSeed()

// of returns the mark of key, or nil if there are no marks yet.
func (m *marks) of(key string) *mark {
	slots := m.slots.Load()
	if slots == nil {
		return nil
	}
	return &slots[maphash.String(markSeed, key)%uint64(len(slots))]
}

// set marks key until that time.
func (m *marks) set(key string, until time.Time) { m.made(key).Store(instant(until)) }

// extend marks key until that time, or for longer if it is already.
func (m *marks) extend(key string, until time.Time) {
	s := m.made(key)
	for old := s.Load(); old == 0 || old < instant(until); old = s.Load() {
		if s.CompareAndSwap(old, instant(until)) {
			return
		}
	}
}

// made returns the mark of key. It creates the marks if there are none yet.
func (m *marks) made(key string) *mark {
	if m.slots.Load() == nil {
		m.slots.CompareAndSwap(nil, new([1 << 10]mark))
	}
	return m.of(key)
}

// has reports whether key is marked.
func (m *marks) has(key string) bool {
	s := m.of(key)
	if s == nil {
		return false
	}
	until := s.Load()
	return until != 0 && instant(time.Now()) < until
}

// clear removes key's mark.
func (m *marks) clear(key string) {
	if s := m.of(key); s != nil {
		s.Store(0)
	}
}

// epoch is what instants count from.
var epoch = time.Now()

// instant returns t on the monotonic clock as a number other than 0.
func instant(t time.Time) int64 { return int64(t.Sub(epoch)) | 1 }
