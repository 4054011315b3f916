package singleflight

import (
	"sync"
	"sync/atomic"
)

// outdated has the keys whose value in the cache may be older than the source: a change was made,
// and it is not known that the old value was deleted. What the cache has for them does not count. The
// zero value has none.
type outdated struct {
	n atomic.Int32 // of keys, for has

	mu   sync.Mutex
	keys table[string, uint64] // when each was added, as a number that grows
	last uint64
	busy bool // a goroutine is deleting their values
}

// maxOutdated is how many keys may be outdated. Beyond that, Update refuses other keys.
const maxOutdated = 1 << 16

func (o *outdated) has(key string) bool { return o.n.Load() != 0 && o.when(key) != 0 }

// hasRoom reports whether key may be added.
func (o *outdated) hasRoom(key string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.keys.m) < maxOutdated || o.keys.get(key) != 0
}

// add adds key, and returns a number for remove.
func (o *outdated) add(key string) (added uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last++
	o.setLocked(key, o.last)
	return o.last
}

// remove takes key out, unless it was added again since. The store or deletion that replaced the
// old value must have begun after add returned that number.
func (o *outdated) remove(key string, added uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.keys.get(key) == added {
		o.setLocked(key, 0)
	}
}

// when returns the number that a store or deletion beginning now must pass to remove, or 0 if key
// is not outdated.
func (o *outdated) when(key string) (added uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.keys.get(key)
}

func (o *outdated) setLocked(key string, added uint64) {
	o.keys.set(key, added)
	o.n.Store(int32(len(o.keys.m)))
}

// snapshot returns the keys.
func (o *outdated) snapshot() (keys []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for key := range o.keys.m {
		keys = append(keys, key)
	}
	return keys
}

// claim reports whether the caller must delete the values of the keys, and go on until release
// reports true.
func (o *outdated) claim() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	claimed := !o.busy
	o.busy = true
	return claimed
}

// release reports whether there are no keys left. Then the next claim succeeds.
func (o *outdated) release() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.busy = len(o.keys.m) > 0
	return !o.busy
}
