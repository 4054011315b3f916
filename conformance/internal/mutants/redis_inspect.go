package mutants

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/redisscan"
	"github.com/redis/go-redis/v9"
)

var inspectScript = redis.NewScript(`return {redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1])}`)

// Inspect reports the holder. How many wait is not known.
func (l redisFull) Inspect(ctx context.Context, key string) (locker.Info, error) {
	none := locker.Info{Key: key}
	if err := over(ctx); err != nil {
		return none, err
	}
	reply, err := inspectScript.Run(ctx, l.c, []string{lockPrefix + key}).Slice()
	if _, err = outcome(ctx, "inspect", key, true, err); err != nil {
		return none, err
	}
	if len(reply) != 2 {
		return none, fmt.Errorf("inspect: unexpected reply %v", reply)
	}
	info := locker.Info{Key: key, Waiters: -1}
	if token, ok := reply[0].(string); ok {
		left, _ := reply[1].(int64)
		info.Token, info.TTL = token, time.Duration(left)*time.Millisecond
	}
	return info, nil
}

func (l redisFull) List(ctx context.Context, prefix string) iter.Seq2[locker.Info, error] {
	return l.list(ctx, prefix, l.Inspect)
}

func (l redisFull) list(ctx context.Context, prefix string, inspect func(context.Context, string) (locker.Info, error)) iter.Seq2[locker.Info, error] {
	return func(yield func(locker.Info, error) bool) {
		locks := redisscan.Locks{
			KeyPrefix: lockPrefix,
			Inspect:   func(key string) (locker.Info, error) { return inspect(ctx, key) },
			IsForeign: func(err error) bool { return redis.HasErrorPrefix(err, "WRONGTYPE") },
		}
		locks.List(prefix, []redisscan.Scan{func(cursor uint64, match string) (redisscan.Page, error) {
			if err := over(ctx); err != nil {
				return redisscan.Page{}, err
			}
			keys, next, err := l.c.Scan(ctx, cursor, match, 1000).Result()
			_, err = outcome(ctx, "list", prefix, true, err)
			return redisscan.Page{Keys: keys, Next: next}, err
		}}, yield)
	}
}

// inspectsErrorAsFree takes an error for a free lock.
type inspectsErrorAsFree struct{ redisFull }

func (l inspectsErrorAsFree) Inspect(ctx context.Context, key string) (locker.Info, error) {
	info, err := l.redisFull.Inspect(ctx, key)
	if err != nil && over(ctx) == nil {
		return locker.Info{Key: key}, nil
	}
	return info, err
}

// remembersInfo returns the last Info beside an error.
type remembersInfo struct{ redisFull }

func (l remembersInfo) Inspect(ctx context.Context, key string) (locker.Info, error) {
	info, err := l.redisFull.Inspect(ctx, key)
	if err != nil {
		info.Waiters = -1
	}
	return info, err
}

// inspectsForever does not pass ctx on.
type inspectsForever struct{ redisFull }

func (l inspectsForever) Inspect(ctx context.Context, key string) (locker.Info, error) {
	if err := over(ctx); err != nil {
		return locker.Info{Key: key}, err
	}
	info, err := l.redisFull.Inspect(context.WithoutCancel(ctx), key)
	if ended := over(ctx); ended != nil {
		return locker.Info{Key: key}, ended
	}
	return info, err
}

// listsErrorAsEnd ends a list at its first error.
type listsErrorAsEnd struct{ redisFull }

func (l listsErrorAsEnd) List(ctx context.Context, prefix string) iter.Seq2[locker.Info, error] {
	return func(yield func(locker.Info, error) bool) {
		for info, err := range l.redisFull.List(ctx, prefix) {
			if err != nil && over(ctx) == nil || !yield(info, err) {
				return
			}
		}
	}
}

// listsAroundErrors leaves out the locks that it cannot inspect.
type listsAroundErrors struct{ redisFull }

func (l listsAroundErrors) List(ctx context.Context, prefix string) iter.Seq2[locker.Info, error] {
	return l.list(ctx, prefix, func(ctx context.Context, key string) (locker.Info, error) {
		info, err := l.Inspect(ctx, key)
		if err != nil && over(ctx) == nil {
			return locker.Info{Key: key}, nil
		}
		return info, err
	})
}

// listsForever does not pass ctx on.
type listsForever struct{ redisFull }

func (l listsForever) List(ctx context.Context, prefix string) iter.Seq2[locker.Info, error] {
	return func(yield func(locker.Info, error) bool) {
		if err := over(ctx); err != nil {
			yield(locker.Info{}, err)
			return
		}
		for info, err := range l.redisFull.List(context.WithoutCancel(ctx), prefix) {
			if ended := over(ctx); ended != nil {
				info, err = locker.Info{}, ended
			}
			if !yield(info, err) || err != nil {
				return
			}
		}
	}
}

func redisInspectMutants() []Mutant {
	only := []string{"inspect/*", "list/*", "fault/inspect-unanswered", "fault/list-unanswered", "fault/hang-deadline"}
	return []Mutant{{
		Name:   "an error of an inspection as a free lock",
		Only:   only,
		Config: OnRedisFull(func(l redisFull) inspectsErrorAsFree { return inspectsErrorAsFree{l} }),
		Must:   []string{"fault/inspect-unanswered"},
	}, {
		Name:   "an Info beside an error",
		Only:   only,
		Config: OnRedisFull(func(l redisFull) remembersInfo { return remembersInfo{l} }),
		Must:   []string{"fault/inspect-unanswered", "inspect/context"},
	}, {
		Name:   "an inspection that does not honor ctx",
		Only:   only,
		Config: OnRedisFull(func(l redisFull) inspectsForever { return inspectsForever{l} }),
		Must:   []string{"fault/hang-deadline"},
	}, {
		Name:   "a list that ends without its error",
		Only:   only,
		Config: OnRedisFull(func(l redisFull) listsErrorAsEnd { return listsErrorAsEnd{l} }),
		Must:   []string{"fault/list-unanswered"},
		May:    []string{"fault/hang-deadline"},
	}, {
		Name:   "a list without the locks that cannot be inspected",
		Only:   only,
		Config: OnRedisFull(func(l redisFull) listsAroundErrors { return listsAroundErrors{l} }),
		Must:   []string{"fault/list-unanswered"},
	}, {
		Name:   "a list that does not honor ctx",
		Only:   only,
		Config: OnRedisFull(func(l redisFull) listsForever { return listsForever{l} }),
		Must:   []string{"fault/hang-deadline"},
	}}
}
