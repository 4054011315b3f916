package redisv9

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/redislock"
	"github.com/golockers/locker/internal/redisscan"
	"github.com/redis/go-redis/v9"
)

// Inspect reports who holds the lock of key, for how long, and how many processes wait in the
// queue, in one request. Those that have gone are counted until the queue passes them over. If the
// permits of a semaphore share a queue, its places are counted for each of them. A lock that was
// released to a process and not taken yet has the token "offer:" and the process's place. A lock of
// package redigo, a plain time and a value of another type are errors. Unlike all other operations,
// Inspect and List are answered by a replica as well, which may lag. [locker.Break] changes nothing
// there: it is an error, [locker.ErrNotHeld] for a lock that the replica does not know.
func (l *Locker) Inspect(ctx context.Context, key string) (locker.Info, error) {
	return l.locks.Inspect(ctx, key)
}

// List yields the locks that are held and whose keys begin with prefix. It walks through all keys
// of each server with SCAN, about a thousand in one request, and makes a request for each lock, up
// to four at the same time. It remembers the keys that it has met, since SCAN repeats itself.
//
// On a Cluster it asks all masters, and on a Ring the shards that are up. A client that is not
// one of go-redis's own does not show its servers: the error is then [errors.ErrUnsupported].
func (l *Locker) List(ctx context.Context, prefix string) iter.Seq2[locker.Info, error] {
	return l.locks.List(ctx, prefix, l.scans)
}

// scans returns a Scan for each server that has locks.
func (l *Locker) scans(ctx context.Context) (all []redisscan.Scan, err error) {
	var mu sync.Mutex
	add := func(_ context.Context, server *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, func(cursor uint64, match string) (redisscan.Page, error) {
			s := redislock.NewSending(ctx, "")
			return redislock.Call(&l.locks.Caller, s, func() (redisscan.Page, error) {
				keys, next, err := server.Scan(s.Ctx, cursor, match, 1000).Result()
				return redisscan.Page{Keys: keys, Next: next}, err
			})
		})
		return nil
	}
	type function = func(context.Context, *redis.Client) error
	switch c := l.client.(type) {
	case *redis.Client:
		err = add(ctx, c)
	case *redis.Ring:
		err = c.ForEachShard(ctx, add)
	case interface {
		ForEachMaster(context.Context, function) error
	}:
		err = c.ForEachMaster(ctx, add)
	default:
		err = fmt.Errorf("%T does not show its servers: %w", c, errors.ErrUnsupported)
	}
	return all, err
}
