package redigo

import (
	"context"
	"errors"
	"time"

	"github.com/golockers/locker/internal/bytecache"
	"github.com/golockers/locker/singleflight/slots"
	"github.com/gomodule/redigo/redis"
)

// CacheConfig describes a [Cache]. The zero value is not valid: it has no TTL.
type CacheConfig[V any] struct {
	// TTL is how long Get returns a value. It is rounded up to a millisecond.
	TTL time.Duration

	// Stale is how much longer Stale returns it. All processes should use the same Stale for the
	// same keys: otherwise, a reader finds a value fresh for longer or shorter, by the difference
	// between the two.
	Stale time.Duration

	// TTLOf, if it is not nil, returns the ttl of a value in place of TTL. A value whose ttl is 0
	// or less is not stored: Set then deletes what is there, and Add reports false.
	TTLOf func(v V) time.Duration

	// Jitter is the largest fraction by which the ttl of a value is shortened at random, from 0 to 1,
	// so that values that were stored together do not expire together. With 0.1 a ttl of ten minutes
	// is nine to ten.
	Jitter float64

	// Prefix is the prefix of the keys on the server. The default is "cache:". It must differ
	// from that of the locks.
	Prefix string

	// Marshal and Unmarshal convert a value to what the server stores and back. The default is
	// encoding/json. Unmarshal must return an error for bytes that Marshal cannot have made.
	Marshal   func(v V) ([]byte, error)
	Unmarshal func(b []byte) (V, error)
}

// Cache keeps values in Redis, for a Loader of package singleflight or for use by itself: it is a
// singleflight.Cache, Adder, StaleCache and Deleter, and a slots.Keeper. It is safe for concurrent
// use.
//
// The value of k is the key "cache:k", without anything around what Marshal returned, so other
// programs can read it, write it and delete it. The format is that of redisv9.Cache. A value
// without an expiry is fresh until it is deleted. A value that Unmarshal rejects, or that is not
// a string, is an error that names the key; a Loader then loads the value and replaces it.
//
// # Absent values
//
// A Loader caches whatever its source returns without an error. To remember for a while that a key
// does not exist, let the source return a value that means this, such as a nil pointer, and give
// it a shorter ttl with TTLOf.
//
// # Time
//
// A value is stored for its ttl and Stale together, and it is fresh as long as more than Stale
// remains. The server measures both, so no client's clock matters, and WithClientClock has no
// counterpart here: the server must know PSETEX and PTTL, as Redis does since version 2.6.
//
// # Requests
//
// Get, Set and Delete are one request each, Add is two, and Stale is one, or none if
// CacheConfig.Stale is 0. Look is one for any number of keys, or two if a load begins, and Put two for
// each key. Add and Put use WATCH and MULTI; there are no scripts. To begin a load takes Redis 2.6.12.
//
// The load of k is the key "!load:{cache:k}"; a Cache uses no other keys.
//
// A method returns when its context ends, as the package documentation describes under Contexts.
// A Set or Add whose caller has left may still take effect. Set, Add and Delete of this Cache for
// the same key wait for it.
type Cache[V any] struct{ values bytecache.Cache[V] }

// NewCache returns a Cache on the server that pool's connections lead to; pool must be one that
// [New] takes. If pool is nil or c is invalid, every operation returns an error. The caller
// closes pool.
func NewCache[V any](pool *redis.Pool, c CacheConfig[V]) *Cache[V] {
	return &Cache[V]{bytecache.New("redigo", bytecache.Config[V](c),
		func(prefix string, stale time.Duration) bytecache.Store {
			return &cacheStore{New(pool, WithPrefix(prefix)), bytecache.Ceil(stale, time.Millisecond)}
		})}
}

// Get returns the value of key if there is a fresh one.
func (c *Cache[V]) Get(ctx context.Context, key string) (v V, ok bool, err error) {
	return c.values.Get(ctx, key)
}

// Stale returns the value of key, fresh or not, until it has been stale for CacheConfig.Stale. If
// that is 0, Stale finds none.
func (c *Cache[V]) Stale(ctx context.Context, key string) (v V, ok bool, err error) {
	return c.values.Stale(ctx, key)
}

// Set stores the value of key, whatever is there.
func (c *Cache[V]) Set(ctx context.Context, key string, v V) error {
	return c.values.Set(ctx, key, v)
}

// Add stores the value of key if there is no fresh one, in one atomic step, and reports whether it
// did. If the key changes under it four times in a row, that is an error.
func (c *Cache[V]) Add(ctx context.Context, key string, v V) (added bool, err error) {
	return c.values.Add(ctx, key, v)
}

// Look implements [slots.Keeper].
func (c *Cache[V]) Look(ctx context.Context, all ...*slots.Slot[V]) error {
	return c.values.Look(ctx, all...)
}

// Put implements [slots.Keeper].
func (c *Cache[V]) Put(ctx context.Context, all ...*slots.Slot[V]) error {
	return c.values.Put(ctx, all...)
}

// Delete removes the value of key, fresh or stale. It is not an error if there is none.
func (c *Cache[V]) Delete(ctx context.Context, key string) error {
	return c.values.Delete(ctx, key)
}

// cacheStore keeps the bytes of a Cache.
type cacheStore struct {
	l     *Locker // for its connections and its prefix
	stale int64   // milliseconds
}

// Get asks for the remaining time first. So a value that another process stores between the two
// commands counts as fresh, or as not there yet, but a stale one never as fresh.
func (s *cacheStore) Get(ctx context.Context, key string) (b []byte, ok bool, err error) {
	if s.stale == 0 {
		return s.get(ctx, key)
	}
	return found(cacheCall(ctx, s, key, false, func(o *operation) ([]byte, error) {
		replies, err := o.do(command{"PTTL", o.key}, command{"GET", o.key})
		if err != nil {
			return nil, err
		}
		left, err := redis.Int64(replies[0], nil)
		if err != nil || !s.fresh(left) {
			return nil, err
		}
		return redis.Bytes(replies[1], nil)
	}))
}

// fresh reports whether a value with that many milliseconds left, by the server's reply, is
// fresh: -1 means that there is no expiry, or no key on servers before Redis 2.8, and -2 that
// there is no key.
func (s *cacheStore) fresh(left int64) bool { return left == -1 || left > s.stale }

func (s *cacheStore) Stale(ctx context.Context, key string) (b []byte, ok bool, err error) {
	if s.stale == 0 && s.l.pool != nil {
		return nil, false, nil
	}
	return s.get(ctx, key)
}

func (s *cacheStore) get(ctx context.Context, key string) (b []byte, ok bool, err error) {
	return found(cacheCall(ctx, s, key, false, func(o *operation) ([]byte, error) {
		replies, err := o.do(command{"GET", o.key})
		if err != nil {
			return nil, err
		}
		return redis.Bytes(replies[0], nil)
	}))
}

func found(b []byte, err error) ([]byte, bool, error) {
	if errors.Is(err, redis.ErrNil) {
		err = nil
	}
	return b, b != nil, err
}

func (s *cacheStore) Set(ctx context.Context, key string, b []byte, ttl time.Duration) error {
	_, err := cacheCall(ctx, s, key, true, func(o *operation) (struct{}, error) {
		_, err := o.multi(s.store(o.key, key, s.lifetime(ttl), b)...)
		return struct{}{}, err
	})
	return err
}

// Add writes only if nothing has changed since it found no fresh value. If the stale one expires
// meanwhile, servers differ in whether that is a change; both are right.
func (s *cacheStore) Add(ctx context.Context, key string, b []byte, ttl time.Duration) (added bool, err error) {
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
			if exists && s.fresh(left) {
				_, err := o.do(command{"UNWATCH"})
				o.watching = err != nil
				return false, err
			}
			results, err := o.multi(s.store(o.key, key, s.lifetime(ttl), b)...)
			if err != nil || results != nil {
				return err == nil, err
			}
		}
		return false, errChanged
	})
}

func (s *cacheStore) Delete(ctx context.Context, key string) error {
	_, err := cacheCall(ctx, s, key, true, func(o *operation) (struct{}, error) {
		_, err := o.do(command{"DEL", o.key, s.loadKey(key)})
		return struct{}{}, err
	})
	return err
}

// lifetime returns how long a value is kept, in milliseconds.
func (s *cacheStore) lifetime(ttl time.Duration) int64 {
	return bytecache.Ceil(ttl, time.Millisecond) + s.stale
}

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
