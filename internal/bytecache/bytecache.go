// Package bytecache has what the adapters' caches share: it turns a cache of bytes into a cache
// of values, and validates the configuration.
package bytecache

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/golockers/locker/internal/misuse"
	"github.com/golockers/locker/singleflight/slots"
)

// Config is the CacheConfig of the adapters with a server, which document it.
type Config[V any] struct {
	TTL, Stale time.Duration
	TTLOf      func(V) time.Duration
	Jitter     float64
	Prefix     string
	Marshal    func(V) ([]byte, error)
	Unmarshal  func([]byte) (V, error)
}

// Store is a cache of bytes on a server. Its errors name neither operation nor key.
type Store interface {
	Get(ctx context.Context, key string) (b []byte, ok bool, err error)
	Stale(ctx context.Context, key string) (b []byte, ok bool, err error)

	// Set and Add store b for a positive ttl.
	Set(ctx context.Context, key string, b []byte, ttl time.Duration) error
	Add(ctx context.Context, key string, b []byte, ttl time.Duration) (added bool, err error)

	Delete(ctx context.Context, key string) error

	slots.Keeper[[]byte]
}

// Cache is a cache of values in a Store.
type Cache[V any] struct {
	store   Store
	adapter string // the package that the errors name
	config  Config[V]
	err     error // what is wrong with config, which every operation returns
}

// DefaultPrefix is the prefix of the keys of a cache that has none.
const DefaultPrefix = "cache:"

// New returns a cache in the Store that newStore returns for a prefix and a staleness.
func New[V any](adapter string, c Config[V], newStore func(prefix string, stale time.Duration) Store) Cache[V] {
	if c.Prefix == "" {
		c.Prefix = DefaultPrefix
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
	err := CheckTimes(c.TTL, c.Stale, c.TTLOf != nil, c.Jitter)
	return Cache[V]{newStore(c.Prefix, c.Stale), adapter, c, err}
}

// CheckTimes returns what is wrong with the times of a CacheConfig.
func CheckTimes(ttl, stale time.Duration, hasTTLOf bool, jitter float64) error {
	switch {
	case ttl < 0:
		return misuse.New(fmt.Sprintf("CacheConfig.TTL is negative: %v", ttl))
	case stale < 0:
		return misuse.New(fmt.Sprintf("CacheConfig.Stale is negative: %v", stale))
	case !(jitter >= 0 && jitter <= 1):
		return misuse.New(fmt.Sprintf("CacheConfig.Jitter is not between 0 and 1: %v", jitter))
	case ttl == 0 && !hasTTLOf:
		return misuse.New("CacheConfig.TTL is 0 and TTLOf is nil")
	}
	return nil
}

// Error completes the error of an operation.
func Error(adapter, operation, key string, err error) error {
	return fmt.Errorf("%s: cache %s %.256q: %w", adapter, operation, key, err)
}

// Get returns the value of key if it is fresh.
func (c *Cache[V]) Get(ctx context.Context, key string) (v V, ok bool, err error) {
	return c.read(ctx, "get", key, c.store.Get)
}

// Stale returns the value of key, fresh or stale.
func (c *Cache[V]) Stale(ctx context.Context, key string) (v V, ok bool, err error) {
	return c.read(ctx, "stale", key, c.store.Stale)
}

func (c *Cache[V]) read(ctx context.Context, operation, key string,
	read func(context.Context, string) ([]byte, bool, error)) (v V, ok bool, err error) {
	var b []byte
	if err = c.err; err == nil {
		b, ok, err = read(ctx, key)
	}
	if ok && err == nil {
		if v, err = c.config.Unmarshal(b); err != nil {
			err = fmt.Errorf("unmarshal %d bytes: %w", len(b), err)
		}
	}
	if err != nil {
		var zero V
		return zero, false, Error(c.adapter, operation, key, err)
	}
	return v, ok, nil
}

// Set stores v, or deletes what is there if v is not to be stored.
func (c *Cache[V]) Set(ctx context.Context, key string, v V) error {
	b, ttl, err := c.encode(v)
	switch {
	case err != nil:
	case ttl <= 0:
		err = c.store.Delete(ctx, key)
	default:
		err = c.store.Set(ctx, key, b, ttl)
	}
	if err != nil {
		return Error(c.adapter, "set", key, err)
	}
	return nil
}

// Add stores v if it is to be stored and there is no fresh value.
func (c *Cache[V]) Add(ctx context.Context, key string, v V) (added bool, err error) {
	b, ttl, err := c.encode(v)
	if err == nil && ttl > 0 {
		added, err = c.store.Add(ctx, key, b, ttl)
	}
	if err != nil {
		return false, Error(c.adapter, "add", key, err)
	}
	return added, nil
}

// Delete removes the value of key.
func (c *Cache[V]) Delete(ctx context.Context, key string) error {
	err := c.err
	if err == nil {
		err = c.store.Delete(ctx, key)
	}
	if err != nil {
		return Error(c.adapter, "delete", key, err)
	}
	return nil
}

// encode returns the bytes of v and its ttl. If the ttl is not positive, it returns no bytes.
func (c *Cache[V]) encode(v V) (b []byte, ttl time.Duration, err error) {
	if c.err != nil {
		return nil, 0, c.err
	}
	ttl = c.config.TTL
	if c.config.TTLOf != nil {
		ttl = c.config.TTLOf(v)
	}
	if ttl <= 0 {
		return nil, 0, nil
	}
	if b, err = c.config.Marshal(v); err != nil {
		return nil, 0, fmt.Errorf("marshal: %w", err)
	}
	return b, Shorten(ttl, c.config.Jitter), nil
}

// Shorten returns a positive ttl, shortened by a random part of up to that fraction of it.
func Shorten(ttl time.Duration, jitter float64) time.Duration {
	if most := time.Duration(float64(ttl) * jitter); most > 0 {
		ttl = max(ttl-rand.N(most), 1)
	}
	return ttl
}

// Ceil returns how many units d lasts, rounded up.
func Ceil(d, unit time.Duration) int64 {
	n := int64(d / unit)
	if d%unit > 0 {
		n++
	}
	return n
}

// Sum returns a + b, which are not negative, or the longest Duration if that is longer.
func Sum(a, b time.Duration) time.Duration {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
