// Package cache turns a store of bytes into a cache of values, for a Loader of package singleflight or
// for use by itself. The caches of the adapters with a server are its [Cache]: encoding, prefixes, and
// fresh, stale and absent values are the same on all of them, and the adapters bring a [Store].
package cache

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/golockers/locker/internal/misuse"
)

// Config describes a [Cache]. The zero value is not valid: it has no TTL.
type Config[V any] struct {
	// TTL is how long Get returns a value. It is rounded up to a millisecond. More than 100 years
	// count as 100 years.
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

// longest is the longest time that a Store is asked to keep something for.
const longest = 100 * 365 * 24 * time.Hour

// Err returns what is wrong with the times of c, or nil.
func (c *Config[V]) Err() error {
	switch {
	case c.TTL < 0:
		return misuse.New(fmt.Sprintf("config: TTL is negative: %v", c.TTL))
	case c.Stale < 0:
		return misuse.New(fmt.Sprintf("config: Stale is negative: %v", c.Stale))
	case !(c.Jitter >= 0 && c.Jitter <= 1):
		return misuse.New(fmt.Sprintf("config: Jitter is not between 0 and 1: %v", c.Jitter))
	case c.TTL == 0 && c.TTLOf == nil:
		return misuse.New("config: TTL is 0 and TTLOf is nil")
	}
	return nil
}

// Lifetime returns how long v is to be fresh. If that is 0 or less, v is not to be stored.
func (c *Config[V]) Lifetime(v V) time.Duration {
	ttl := c.TTL
	if c.TTLOf != nil {
		ttl = c.TTLOf(v)
	}
	base := min(ttl, longest) // more, as a float64, may be no duration
	if most := time.Duration(float64(base) * c.Jitter); most > 0 {
		ttl = max(base-rand.N(most), 1)
	}
	return ttl
}

// Cache is a cache of values in a [Store]: a singleflight.Cache, Adder, StaleCache and Deleter, and a
// slots.Keeper. It is safe for concurrent use.
//
// The value of k is under the key "cache:k", or that with another Prefix. A value that Unmarshal rejects is an error that names the key; a
// Loader then loads the value and replaces it.
//
// # Absent values
//
// To remember for a while that a key does not exist, let the source of a Loader return a value that
// means this, such as a nil pointer, and give it a shorter ttl with TTLOf.
//
// # Errors
//
// A method returns when its context ends. A Set or Add whose caller has left may still take effect; on
// the adapters' stores, Set, Add and Delete of this Cache for the same key wait for it. An invalid
// Config is an error of every method, and so is a Cache that is not from New, or has no Store.
type Cache[V any] struct {
	store   Store
	adapter string // the package that the errors name
	config  Config[V]
	err     error // which every operation returns
}

// invalid returns why the Cache can never work, or nil.
func (c *Cache[V]) invalid() error {
	if c.err == nil && c.store == nil {
		return misuse.New("nil Store")
	}
	return c.err
}

// New returns a Cache in s. Its errors begin with the name of the package that brings s.
func New[V any](adapter string, s Store, c Config[V]) *Cache[V] {
	if c.Prefix == "" {
		c.Prefix = "cache:"
	}
	if c.Marshal == nil {
		c.Marshal = func(v V) ([]byte, error) { return json.Marshal(v) }
	}
	if c.Unmarshal == nil {
		c.Unmarshal = func(b []byte) (v V, err error) {
			err = json.Unmarshal(b, &v)
			return v, err
		}
	}
	err := c.Err()
	if err == nil && s != nil {
		err = s.Err()
	}
	c.Stale = min(c.Stale, longest)
	return &Cache[V]{s, adapter, c, err}
}

// Get returns the value of key if there is a fresh one.
func (c *Cache[V]) Get(ctx context.Context, key string) (v V, ok bool, err error) {
	return c.read(ctx, "get", key, c.config.Stale)
}

// Stale returns the value of key, fresh or not, until it has been stale for Config.Stale. If that is
// 0, Stale finds none and asks for none.
func (c *Cache[V]) Stale(ctx context.Context, key string) (v V, ok bool, err error) {
	if c.config.Stale == 0 && c.invalid() == nil {
		return v, false, nil
	}
	return c.read(ctx, "stale", key, 0)
}

func (c *Cache[V]) read(ctx context.Context, operation, key string, spare time.Duration) (v V, ok bool, err error) {
	err = c.do(operation, key, func(full string) error {
		b, found, err := c.store.Get(ctx, full, spare)
		if found && err == nil {
			v, err = c.decode(b)
			ok = err == nil
		}
		return err
	})
	return v, ok, err
}

// Set stores the value of key, whatever is there.
func (c *Cache[V]) Set(ctx context.Context, key string, v V) error {
	return c.do("set", key, func(full string) error {
		b, d, err := c.encode(v)
		switch {
		case err != nil:
			return err
		case d <= 0:
			return c.store.Delete(ctx, full)
		}
		return c.store.Set(ctx, full, b, d)
	})
}

// Add stores the value of key if there is no fresh one, in one atomic step, and reports whether it
// did. If the server cannot tell whether it did, that is an error.
func (c *Cache[V]) Add(ctx context.Context, key string, v V) (added bool, err error) {
	err = c.do("add", key, func(full string) error {
		b, d, err := c.encode(v)
		if err == nil && d > 0 {
			added, err = c.store.Add(ctx, full, b, d, c.config.Stale)
		}
		return err
	})
	return added && err == nil, err
}

// Delete removes the value of key, fresh or stale. It is not an error if there is none.
func (c *Cache[V]) Delete(ctx context.Context, key string) error {
	return c.do("delete", key, func(full string) error { return c.store.Delete(ctx, full) })
}

// do makes a request about a key, of which request gets the full name, and completes its error.
func (c *Cache[V]) do(operation, key string, request func(full string) error) error {
	err := c.invalid()
	if err == nil {
		err = request(c.config.Prefix + key)
	}
	if err != nil {
		return fmt.Errorf("%s: cache %s %.256q: %w", cmp.Or(c.adapter, "cache"), operation, key, err)
	}
	return nil
}

// encode returns the bytes of v and how long they are kept. If that is 0, v is not to be stored.
func (c *Cache[V]) encode(v V) (b []byte, d time.Duration, err error) {
	ttl := c.config.Lifetime(v)
	if ttl <= 0 {
		return nil, 0, nil
	}
	if b, err = c.config.Marshal(v); err != nil {
		return nil, 0, fmt.Errorf("marshal: %w", err)
	}
	return b, min(ttl, longest) + c.config.Stale, nil
}

func (c *Cache[V]) decode(b []byte) (v V, err error) {
	if v, err = c.config.Unmarshal(b); err != nil {
		var zero V
		return zero, fmt.Errorf("unmarshal %d bytes: %w", len(b), err)
	}
	return v, nil
}
