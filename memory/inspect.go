package memory

import (
	"context"
	"iter"
	"strings"
	"time"

	"github.com/golockers/locker"
)

// Inspect reports who holds the lock of key, for how long, and how many wait for it.
//
// An error means that ctx was done.
func (l *Locker) Inspect(ctx context.Context, key string) (locker.Info, error) {
	if err := l.check(ctx, 1); err != nil {
		return locker.Info{Key: key}, err
	}
	s := l.lock(key)
	defer l.unlock(s)
	now := clock()
	return s.find(key, now).info(key, now), nil
}

// List yields the locks that are held and whose keys begin with prefix. It looks at all keys, a
// 64th of them at a time. The body of the loop may call the Locker.
//
// An error means that ctx was done.
func (l *Locker) List(ctx context.Context, prefix string) iter.Seq2[locker.Info, error] {
	return func(yield func(locker.Info, error) bool) {
		for i := range shardCount {
			if err := l.check(ctx, 1); err != nil {
				yield(locker.Info{}, err)
				return
			}
			for _, info := range l.shards[i].list(prefix) {
				if !yield(info, nil) {
					return
				}
			}
		}
	}
}

func (s *shard) list(prefix string) (held []locker.Info) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := clock()
	for key, e := range s.locks {
		if !strings.HasPrefix(key, prefix) {
			continue
		}
		s.grant(e, now)
		if info := e.info(key, now); info.Token != "" {
			held = append(held, info)
		}
	}
	return held
}

// info returns the state of the lock. A nil entry is a free lock.
func (e *entry) info(key string, now time.Duration) locker.Info {
	info := locker.Info{Key: key}
	if e == nil || e.expires <= now {
		return info
	}
	info.Token, info.TTL = e.token, e.expires-now
	for w := e.head; w != nil; w = w.next {
		info.Waiters++
	}
	return info
}
