package memory

import (
	"context"
	"time"

	"github.com/golockers/locker/singleflight/slots"
)

// This file has what a Cache keeps of loads.

// Look implements [slots.Keeper].
func (c *Cache[V]) Look(ctx context.Context, all ...*slots.Slot[V]) error {
	for _, s := range all {
		if err := c.check(ctx, "look", s.Key); err != nil {
			return err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range all {
		now := clock()
		c.look(s, now)
		c.sweep(now)
	}
	return nil
}

func (c *Cache[V]) look(s *slots.Slot[V], now time.Duration) {
	kept := cacheSlot[V]{key: s.Key, fresh: never, end: never, loadEnd: never}
	if i, exists := c.index[s.Key]; exists {
		c.slots[i].read = true
		kept = c.slots[i]
	}
	if kept.fresh > now {
		s.Found, s.Value, s.Left = true, kept.v, kept.fresh-now
		if s.Left >= s.Ahead {
			return
		}
	}
	if kept.loadEnd <= now {
		kept.load, kept.failed = 0, false
	}
	if age := now - kept.failedAt; kept.failed && !s.Found && age < s.Since {
		s.Failed, s.Failure, s.Age = true, kept.failure, age
		return
	}
	if s.Hold <= 0 {
		return
	}
	if kept.load == 0 || kept.failed {
		c.loads++
		kept.load, kept.loadEnd, kept.failed, kept.failure = c.loads, never, false, ""
	}
	kept.loadEnd, kept.read = max(kept.loadEnd, after(now, s.Hold)), true
	s.Version = kept.load
	c.enter(kept, now)
}

// Put implements [slots.Keeper].
func (c *Cache[V]) Put(ctx context.Context, all ...*slots.Slot[V]) error {
	ttls := make([]time.Duration, len(all))
	for i, s := range all {
		s.Stored, s.Err = false, nil
		var err error
		if s.Failed {
			err = c.check(ctx, "put", s.Key)
		} else {
			ttls[i], err = c.ttl(ctx, "put", s.Key, s.Value)
		}
		if err != nil {
			return err
		}
		if s.Failed || ttls[i] > 0 && s.TTL != 0 {
			ttls[i] = s.TTL
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, s := range all {
		now := clock()
		if at, exists := c.index[s.Key]; exists && s.Version != 0 {
			kept := &c.slots[at]
			if kept.load == s.Version && kept.loadEnd > now && !kept.failed {
				s.Stored = true
				if s.Failed {
					kept.failed, kept.failure, kept.failedAt, kept.loadEnd = true, s.Failure, now, after(now, ttls[i])
				} else {
					c.put(s.Key, s.Value, ttls[i], now)
				}
			}
		}
		c.sweep(now)
	}
	return nil
}
