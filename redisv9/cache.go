package redisv9

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/golockers/locker/internal/bytecache"
	"github.com/golockers/locker/internal/redislock"
	"github.com/golockers/locker/singleflight/slots"
	"github.com/redis/go-redis/v9"
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
// programs can read it, write it and delete it. A value without an expiry is fresh until it is
// deleted. A value that Unmarshal rejects, or that is not a string, is an error that names the
// key; a Loader then loads the value and replaces it.
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
// remains. The server measures both, so no client's clock matters.
//
// # Requests
//
// Each method is one request, for any number of keys, and Stale none if CacheConfig.Stale is 0. What
// writes uses scripts. The load of k is the key "!load:{cache:k}", or for a k with a hash tag
// "!load:{tag}cache:k"; a Cache uses no other keys. With a client that reads
// from replicas, values appear and vanish late: let a Cache read from masters.
//
// A method returns when its context ends, as the package documentation describes under Contexts.
// A Set or Add whose caller has left may still take effect. Set, Add and Delete of this Cache for
// the same key wait for it.
type Cache[V any] struct{ values bytecache.Cache[V] }

// NewCache returns a Cache on the servers of client, which may be any that [New] takes. If client
// or c is invalid, every operation returns an error. The caller closes client.
//
// On a Ring, a Delete or Set while the key's shard seems to be down is done on another shard. When
// the shard is up again, Get returns the old value. The package documentation describes under "What
// is promised" how to prevent that.
func NewCache[V any](client redis.UniversalClient, c CacheConfig[V]) *Cache[V] {
	return &Cache[V]{bytecache.New("redisv9", bytecache.Config[V](c),
		func(prefix string, stale time.Duration) bytecache.Store {
			_, single := client.(*redis.Client)
			return &cacheStore{New(client), prefix, bytecache.Ceil(stale, time.Millisecond), single}
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
// did. If go-redis repeated the request, so that Add cannot know whether it did, that is an error.
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
	l      *Locker // for its client
	prefix string
	stale  int64 // milliseconds
	single bool  // all keys are on one server
}

// Get asks for the remaining time first. So a value that another process stores between the two
// commands counts as fresh, or as not there yet, but a stale one never as fresh.
func (s *cacheStore) Get(ctx context.Context, key string) (b []byte, ok bool, err error) {
	if s.stale == 0 {
		return s.get(ctx, key)
	}
	return s.read(ctx, key, func(ctx context.Context) ([]byte, error) {
		pipe := s.l.client.Pipeline()
		pttl := pipe.Do(ctx, "pttl", s.prefix+key) // PTTL's Duration overflows
		value := pipe.Get(ctx, s.prefix+key)
		if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
			return nil, err
		}
		const noExpiry = -1
		left, err := pttl.Int64()
		if err == nil && left != noExpiry && left <= s.stale {
			err = redis.Nil
		}
		if err != nil {
			return nil, err
		}
		return value.Bytes()
	})
}

func (s *cacheStore) Stale(ctx context.Context, key string) (b []byte, ok bool, err error) {
	if s.stale == 0 {
		return nil, false, s.l.locks.Err
	}
	return s.get(ctx, key)
}

func (s *cacheStore) get(ctx context.Context, key string) (b []byte, ok bool, err error) {
	return s.read(ctx, key, func(ctx context.Context) ([]byte, error) {
		return s.l.client.Get(ctx, s.prefix+key).Bytes()
	})
}

func (s *cacheStore) read(ctx context.Context, key string, request func(context.Context) ([]byte, error)) (
	b []byte, ok bool, err error) {
	r := redislock.NewSending(ctx, key)
	b, err = redislock.Call(&s.l.locks.Caller, r, func() ([]byte, error) { return request(r.Ctx) })
	if errors.Is(err, redis.Nil) {
		return nil, false, nil
	}
	return b, err == nil, err
}

func (s *cacheStore) Set(ctx context.Context, key string, b []byte, ttl time.Duration) error {
	p := newPayload(ctx, key, b)
	_, err := s.write(p, func() (bool, error) { return s.put(p, key, always, s.lifetime(ttl), false) })
	return err
}

func (s *cacheStore) Add(ctx context.Context, key string, b []byte, ttl time.Duration) (added bool, err error) {
	p := newPayload(ctx, key, b)
	return s.write(p, func() (bool, error) {
		added, err := s.put(p, key, ifNotFresh, s.lifetime(ttl), false)
		if n := p.Sends(); err == nil && !added && n > 1 {
			return false, fmt.Errorf("not added by the last of %d requests, but perhaps by an earlier one", n)
		}
		return added, err
	})
}

func (s *cacheStore) Delete(ctx context.Context, key string) error {
	p := newPayload(ctx, key, nil)
	_, err := s.write(p, func() (bool, error) {
		request := []any{"del"}
		for _, k := range s.keys(key) {
			request = append(request, k)
		}
		return true, s.l.client.Do(p.Ctx, request...).Err()
	})
	return err
}

// lifetime returns how long a value is kept, in milliseconds.
func (s *cacheStore) lifetime(ttl time.Duration) int64 {
	return bytecache.Ceil(ttl, time.Millisecond) + s.stale
}

// write makes a request about p's key, after those that callers have left behind.
func (s *cacheStore) write(p *payload, request func() (bool, error)) (bool, error) {
	return redislock.CallInOrder(&s.l.locks.Caller, p.Sending, request)
}

// payload is a value on its way to the server. Its Sending has the key in place of a token, and
// counts how often the value was sent.
type payload struct {
	*redislock.Sending
	value []byte
}

func newPayload(ctx context.Context, key string, value []byte) *payload {
	return &payload{redislock.NewSending(ctx, key), value}
}

// MarshalBinary implements [encoding.BinaryMarshaler].
func (p *payload) MarshalBinary() ([]byte, error) {
	if _, err := p.Sending.MarshalBinary(); err != nil {
		return nil, err
	}
	return p.value, nil
}
