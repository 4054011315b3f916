package memory

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/golockers/locker/cache"
	"github.com/golockers/locker/internal/misuse"
)

// CacheConfig describes a [Cache]. The zero value is not valid: it has no TTL.
type CacheConfig[V any] struct {
	// TTL is how long Get returns a value.
	TTL time.Duration

	// Stale is how much longer Stale returns it.
	Stale time.Duration

	// TTLOf, if it is not nil, returns the ttl of a value in place of TTL. A value whose ttl is 0
	// or less is not stored: Set then deletes what is there, and Add reports false.
	TTLOf func(v V) time.Duration

	// Jitter is the largest fraction by which the ttl of a value is shortened at random, from 0 to 1,
	// so that values that were stored together do not expire together. With 0.1 a ttl of ten minutes
	// is nine to ten.
	Jitter float64

	// MaxEntries is how many values the Cache keeps; 0 means no limit. A full Cache drops a value
	// that has not been read for a while to make room for another.
	MaxEntries int
}

// Cache keeps values in this process, for a Loader of package singleflight or for use by itself: it
// is a singleflight.Cache, Adder, StaleCache and Deleter, and a slots.Keeper. It is safe for
// concurrent use and must not be copied. Each Cache is a backend of its own.
//
// Values are kept as they are: all callers that get a value of a reference type share what it
// refers to, and must not change it.
//
// # Absent values
//
// A Loader caches whatever its source returns without an error. To remember for a while that a key
// does not exist, let the source return a value that means this, such as a nil pointer, and give
// it a shorter ttl with TTLOf.
//
// # Memory
//
// Each operation, whatever its key, looks at two other values, removes them if they have expired,
// and adds at most one value. So a Cache that is in use keeps no more than about twice as many
// values as are fresh or stale, and one that is not used keeps what it has.
type Cache[V any] struct {
	times cache.Config[V]
	most  int // entries; 0: no limit

	mu    sync.Mutex
	index map[string]int // of a key in slots
	slots []cacheSlot[V]
	hand  int // the slot that the next sweep looks at
	peak  int // the most slots that there were
	loads uint64
}

type cacheSlot[V any] struct {
	key        string
	v          V
	fresh, end time.Duration // until when, by clock
	read       bool          // since makeRoom looked at it

	load     uint64        // the version of the load that is under way, or has failed; 0: none
	loadEnd  time.Duration // until when the load is remembered
	failed   bool
	failedAt time.Duration
	failure  string
}

// never is the end of what is not there.
const never = time.Duration(math.MinInt64)

// keptUntil returns when nothing of s is needed any more.
func (s *cacheSlot[V]) keptUntil() time.Duration { return max(s.end, s.loadEnd) }

// sweepSlots is how many slots an operation sweeps.
const sweepSlots = 2

// NewCache returns an empty Cache. If c is invalid, every operation returns an error.
func NewCache[V any](c CacheConfig[V]) *Cache[V] {
	return &Cache[V]{times: cache.Config[V]{TTL: c.TTL, Stale: c.Stale, TTLOf: c.TTLOf, Jitter: c.Jitter}, most: c.MaxEntries}
}

// Get returns the value of key if there is a fresh one.
//
// An error means that ctx was done, or that the CacheConfig is invalid. The same holds for the
// other methods.
func (c *Cache[V]) Get(ctx context.Context, key string) (v V, ok bool, err error) {
	return c.find(ctx, "get", key, func(s *cacheSlot[V]) time.Duration { return s.fresh })
}

// Stale returns the value of key, fresh or not, until it has been stale for CacheConfig.Stale.
func (c *Cache[V]) Stale(ctx context.Context, key string) (v V, ok bool, err error) {
	return c.find(ctx, "stale", key, func(s *cacheSlot[V]) time.Duration { return s.end })
}

// find returns the value of key if it has not reached the given end.
func (c *Cache[V]) find(ctx context.Context, operation, key string, end func(*cacheSlot[V]) time.Duration) (
	v V, ok bool, err error) {
	if err := c.check(ctx, operation, key); err != nil {
		return v, false, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := clock()
	if i, exists := c.index[key]; exists && end(&c.slots[i]) > now {
		c.slots[i].read = true
		v, ok = c.slots[i].v, true
	}
	c.sweep(now)
	return v, ok, nil
}

// Set stores the value of key, whatever is there.
func (c *Cache[V]) Set(ctx context.Context, key string, v V) error {
	ttl, err := c.ttl(ctx, "set", key, v)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := clock()
	c.put(key, v, ttl, now)
	c.sweep(now)
	return nil
}

// Add stores the value of key if there is no fresh one, in one atomic step, and reports whether it
// did.
func (c *Cache[V]) Add(ctx context.Context, key string, v V) (added bool, err error) {
	ttl, err := c.ttl(ctx, "add", key, v)
	if err != nil {
		return false, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := clock()
	if i, exists := c.index[key]; ttl > 0 && (!exists || c.slots[i].fresh <= now) {
		c.put(key, v, ttl, now)
		added = true
	}
	c.sweep(now)
	return added, nil
}

// Delete removes the value of key, fresh or stale. It is not an error if there is none.
func (c *Cache[V]) Delete(ctx context.Context, key string) error {
	if err := c.check(ctx, "delete", key); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.remove(key)
	c.sweep(clock())
	return nil
}

func (c *Cache[V]) check(ctx context.Context, operation, key string) error {
	err := c.times.Err()
	if err == nil && c.most < 0 {
		err = misuse.New(fmt.Sprintf("config: MaxEntries is negative: %d", c.most))
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("memory: cache %s %.256q: %w", operation, key, err)
	}
	return nil
}

func (c *Cache[V]) ttl(ctx context.Context, operation, key string, v V) (time.Duration, error) {
	if err := c.check(ctx, operation, key); err != nil {
		return 0, err
	}
	return c.times.Lifetime(v), nil
}

// put stores v for ttl, or removes what is there if ttl is not positive.
func (c *Cache[V]) put(key string, v V, ttl, now time.Duration) {
	if ttl <= 0 {
		c.remove(key)
		return
	}
	fresh := after(now, ttl)
	c.enter(cacheSlot[V]{key: key, v: v, fresh: fresh, end: after(fresh, c.times.Stale), loadEnd: never}, now)
}

// enter puts s in its key's place.
func (c *Cache[V]) enter(s cacheSlot[V], now time.Duration) {
	if i, exists := c.index[s.key]; exists {
		c.slots[i] = s
		return
	}
	if c.most > 0 && len(c.slots) >= c.most {
		c.makeRoom(now)
	}
	if c.index == nil {
		c.index = make(map[string]int)
	}
	c.index[s.key] = len(c.slots)
	c.slots = append(c.slots, s)
	c.peak = max(c.peak, len(c.slots))
}

// makeRoom removes the first value that has ended, or that has not been read since makeRoom last
// looked at it. It looks at sweepSize of them, and then takes the next.
func (c *Cache[V]) makeRoom(now time.Duration) {
	for range sweepSize {
		s := &c.slots[c.hand%len(c.slots)]
		if !s.read || s.keptUntil() <= now {
			break
		}
		s.read = false
		c.hand++
	}
	c.remove(c.slots[c.hand%len(c.slots)].key)
}

// sweep looks at the next few slots and removes values that have ended.
func (c *Cache[V]) sweep(now time.Duration) {
	for range min(sweepSlots, len(c.slots)) {
		if c.hand >= len(c.slots) {
			c.hand = 0
		}
		if s := &c.slots[c.hand]; s.keptUntil() > now {
			c.hand++
		} else {
			c.remove(s.key) // another is in that slot now
		}
	}
}

// remove removes the value of key, if there is one. The last one takes its slot.
func (c *Cache[V]) remove(key string) {
	i, exists := c.index[key]
	if !exists {
		return
	}
	delete(c.index, key)
	last := len(c.slots) - 1
	if i < last {
		c.slots[i] = c.slots[last]
		c.index[c.slots[i].key] = i
	}
	c.slots[last] = cacheSlot[V]{}
	c.slots = c.slots[:last]
	if last == 0 && c.peak > keepSize {
		c.index, c.slots, c.peak = nil, nil, 0
	}
}
