package memory

import (
	"context"
	"hash/maphash"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/golockers/locker/window"
)

var _ window.Enforcer = (*Locker)(nil)

// Count adds n to the count of key in the current window, for a Limiter of package window. Windows
// follow the monotonic clock. Later calls, with any key, remove a few old counts at a time, two
// windows after their last change.
//
// Count returns an error only if ctx was done. Nothing was counted then.
func (l *Locker) Count(ctx context.Context, key string, n int64, per time.Duration) (window.Counts, error) {
	c, _, err := l.CountUnder(ctx, key, n, window.Rule{Limit: math.MaxInt64, Per: per})
	return c, err
}

// CountUnder is Count if the rule allows n more, and otherwise changes nothing.
func (l *Locker) CountUnder(ctx context.Context, key string, n int64, r window.Rule) (
	c window.Counts, counted bool, err error) {
	if err := l.check(ctx, 1); err != nil {
		return c, false, err
	}
	c, counted = l.windows.count(windowKey{key, r.Per}, n, r)
	return c, counted, nil
}

// windows holds counts. Like locks, they are swept in small parts, one shard after the other.
type windows struct {
	shards [shardCount]windowShard
	swept  atomic.Uint32
}

type windowShard struct {
	mu     sync.Mutex
	places map[windowKey]int // in counts
	counts []windowCount     // in no order
	hand   int               // the next count to sweep
	ops    uint32
	peak   int // the most counts that there were
}

type windowKey struct {
	key string
	per time.Duration
}

type windowCount struct {
	windowKey
	number            int64 // of the window in which current was counted
	current, previous int64
}

func (w *windows) count(k windowKey, n int64, r window.Rule) (c window.Counts, counted bool) {
	s := &w.shards[maphash.String(seed, k.key)%shardCount]
	s.mu.Lock()
	c, counted = s.count(k, n, r)
	s.ops++
	due := s.ops%sweepEvery == 0
	s.mu.Unlock()
	if due {
		w.shards[w.swept.Add(1)%shardCount].sweep()
	}
	return c, counted
}

func (s *windowShard) count(k windowKey, n int64, r window.Rule) (c window.Counts, counted bool) {
	number, rest := windowAt(clock(), k.per)
	c.Left = rest
	place, exists := s.places[k]
	if exists {
		switch stored := s.counts[place]; stored.number {
		case number:
			c.Current, c.Previous = stored.current, stored.previous
		case number - 1:
			c.Previous = stored.current
		}
	}
	if counted = r.Allows(c, n); !counted || n == 0 {
		return c, counted
	}
	if c.Current += n; c.Current < 0 {
		c.Current = math.MaxInt64
	}
	if !exists {
		place = s.add(k)
	}
	s.counts[place] = windowCount{k, number, c.Current, c.Previous}
	return c, true
}

func (s *windowShard) add(k windowKey) (place int) {
	if s.places == nil {
		s.places = make(map[windowKey]int)
	}
	s.counts = append(s.counts, windowCount{})
	s.places[k] = len(s.counts) - 1
	s.peak = max(s.peak, len(s.counts))
	return len(s.counts) - 1
}

// windowAt returns the number of the window at a time, and how much of the window is left. The time
// may be negative.
func windowAt(now, per time.Duration) (number int64, left time.Duration) {
	number = int64(now / per)
	if now%per < 0 {
		number--
	}
	return number, time.Duration(number+1)*per - now
}

// sweep checks the next few counts and removes those that are no longer needed. The last count
// takes the place of a removed one.
func (s *windowShard) sweep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := clock()
	for range min(sweepSize, len(s.counts)) {
		if s.hand >= len(s.counts) {
			s.hand = 0
		}
		c := s.counts[s.hand]
		if number, _ := windowAt(now, c.per); c.number >= number-1 {
			s.hand++
			continue
		}
		last := len(s.counts) - 1
		s.counts[s.hand] = s.counts[last]
		s.places[s.counts[last].windowKey] = s.hand
		delete(s.places, c.windowKey)
		s.counts[last] = windowCount{}
		s.counts = s.counts[:last]
	}
	if len(s.counts) == 0 && s.peak > keepSize { // a map never shrinks
		s.places, s.counts, s.peak = nil, nil, 0
	}
}
