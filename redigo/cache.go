package redigo

import (
	"context"
	"errors"
	"time"

	"github.com/golockers/locker/cache"
	"github.com/golockers/locker/internal/bytecache"
	"github.com/gomodule/redigo/redis"
)

// CacheConfig describes a [Cache]: TTL, Stale, TTLOf, Jitter, Prefix, Marshal and Unmarshal, as
// [cache.Config] says. The zero value is not valid: it has no TTL.
type CacheConfig[V any] = cache.Config[V]

// Cache keeps values in Redis, in the format of redisv9.Cache: the value of k is the key "cache:k",
// just what Marshal returned. A value without an expiry is fresh until it is deleted. A key that is
// not a string is an error that names it.
//
// A value is stored for its ttl and Stale together, and it is fresh as long as more than Stale
// remains. The server measures both, so no client's clock matters: it must
// know PSETEX and PTTL (Redis 2.6), and to begin a load SET with PX (2.6.12).
//
// Get, Set and Delete are one request each, Add is two, and Stale is one, or none if
// CacheConfig.Stale is 0. Look is one for any number of keys, or two if a load begins, and Put two for
// each key. They use WATCH and MULTI. The load of k is the key "!load:{cache:k}".
type Cache[V any] = cache.Cache[V]

// NewCache returns a Cache on the server that pool's connections lead to; pool must be one that
// [New] takes. If pool is nil or c is invalid, every operation returns an error. The caller
// closes pool.
func NewCache[V any](pool *redis.Pool, c CacheConfig[V]) *Cache[V] {
	l := New(pool)
	l.prefix = "" // the keys of a Store are complete
	return cache.New("redigo", &cacheStore{l}, c)
}

// cacheStore keeps the bytes of a Cache.
type cacheStore struct{ l *Locker } // for its connections

func (s *cacheStore) Err() error {
	if s.l.pool == nil {
		return errNilPool
	}
	return nil
}

// Get asks for the remaining time first. So a value that another process stores between the two
// commands counts as fresh, or as not there yet, but a stale one never as fresh.
func (s *cacheStore) Get(ctx context.Context, key string, spare time.Duration) (b []byte, ok bool, err error) {
	return found(cacheCall(ctx, s, key, false, func(o *operation) ([]byte, error) {
		if spare == 0 {
			replies, err := o.do(command{"GET", o.key})
			if err != nil {
				return nil, err
			}
			return redis.Bytes(replies[0], nil)
		}
		replies, err := o.do(command{"PTTL", o.key}, command{"GET", o.key})
		if err != nil {
			return nil, err
		}
		left, err := redis.Int64(replies[0], nil)
		if err != nil || !isFresh(left, spare) {
			return nil, err
		}
		return redis.Bytes(replies[1], nil)
	}))
}

// isFresh reports whether a value with that many milliseconds left, by the server's reply, lasts for
// longer than spare: -1 means that there is no expiry, or no key on servers before Redis 2.8, and -2
// that there is no key.
func isFresh(left int64, spare time.Duration) bool { return left == -1 || left > millis(spare) }

func found(b []byte, err error) ([]byte, bool, error) {
	if errors.Is(err, redis.ErrNil) {
		err = nil
	}
	return b, b != nil, err
}

func (s *cacheStore) Set(ctx context.Context, key string, b []byte, d time.Duration) error {
	_, err := cacheCall(ctx, s, key, true, func(o *operation) (struct{}, error) {
		_, err := o.multi(store(key, d, b)...)
		return struct{}{}, err
	})
	return err
}

// Add writes only if nothing has changed since it found no fresh value. If the stale one expires
// meanwhile, servers differ in whether that is a change; both are right.
func (s *cacheStore) Add(ctx context.Context, key string, b []byte, d, spare time.Duration) (added bool, err error) {
	return cacheCall(ctx, s, key, true, func(o *operation) (bool, error) {
		for range 1 + maxRepeats {
			replies, err := o.do(command{"WATCH", o.key}, command{"EXISTS", o.key}, command{"PTTL", o.key})
			if err != nil {
				return false, err
			}
			exists, err1 := redis.Bool(replies[1], nil)
			left, err2 := redis.Int64(replies[2], nil)
			if err := errors.Join(err1, err2); err != nil {
				return false, err
			}
			if exists && isFresh(left, spare) {
				_, err := o.do(command{"UNWATCH"})
				o.watching = err != nil
				return false, err
			}
			results, err := o.multi(store(key, d, b)...)
			if err != nil || results != nil {
				return err == nil, err
			}
		}
		return false, errChanged
	})
}

func (s *cacheStore) Delete(ctx context.Context, key string) error {
	_, err := cacheCall(ctx, s, key, true, func(o *operation) (struct{}, error) {
		_, err := o.do(command{"DEL", o.key, loadKey(key)})
		return struct{}{}, err
	})
	return err
}

// millis returns how many milliseconds d lasts, which the server counts.
func millis(d time.Duration) int64 { return bytecache.Ceil(d, time.Millisecond) }

// cacheCall runs an operation on key over a connection from the pool, inOrder after those that
// callers have left behind.
func cacheCall[T any](ctx context.Context, s *cacheStore, key string, inOrder bool,
	call func(*operation) (T, error)) (v T, err error) {
	if inOrder {
		if err := s.l.calls.Wait(ctx, key); err != nil {
			return v, err
		}
	}
	v, err = operate(ctx, s.l, key, key, call)
	if refused := (*refusal)(nil); errors.As(err, &refused) {
		err = refused // without what do says about locks
	}
	return v, err
}
