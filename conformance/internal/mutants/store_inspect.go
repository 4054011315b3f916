package mutants

import (
	"context"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/golockers/locker"
)

// inspect returns the state of a lock.
func (s *store) inspect(key string) locker.Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.advance(key)
	return s.infoLocked(key)
}

func (s *store) infoLocked(key string) locker.Info {
	info := locker.Info{Key: key, Waiters: len(s.queues[key])}
	if it, ok := s.live(key); ok {
		info.Token, info.TTL = it.token, time.Until(it.expires)
	}
	return info
}

// list returns the locks that are held, in the order of their keys.
func (s *store) list(prefix string) (all []locker.Info) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var keys []string
	for key := range s.items {
		if strings.HasPrefix(key, prefix) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	for _, key := range keys {
		if info := s.infoLocked(key); info.Token != "" {
			all = append(all, info)
		}
	}
	return all
}

// pageSize is how many locks a List reads in one step.
const pageSize = 100

// pages yields what list returns, in pages that each begin after the last key of the one before.
func pages(ctx context.Context, list func() []locker.Info) iter.Seq2[locker.Info, error] {
	return func(yield func(locker.Info, error) bool) {
		for last := ""; ; {
			if err := ctx.Err(); err != nil {
				yield(locker.Info{}, err)
				return
			}
			n := 0
			for _, info := range list() {
				if info.Key <= last {
					continue
				}
				if !yield(info, nil) {
					return
				}
				last = info.Key
				if n++; n == pageSize {
					break
				}
			}
			if n < pageSize {
				return
			}
		}
	}
}
