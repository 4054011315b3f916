package memcache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	gomemcache "github.com/bradfitz/gomemcache/memcache"
	"github.com/golockers/locker/internal/bytecache"
	"github.com/golockers/locker/internal/inflight"
	"github.com/golockers/locker/singleflight/slots"
)

// CacheConfig describes a [Cache]. The zero value is not valid: it has no TTL.
type CacheConfig[V any] struct {
	// TTL is how long Get returns a value. It is rounded up to a millisecond.
	TTL time.Duration

	// Stale is how much longer Stale returns it.
	Stale time.Duration

	// TTLOf, if it is not nil, returns the ttl of a value in place of TTL. A value whose ttl is 0
	// or less is not stored: Set then deletes what is there, and Add reports false.
	TTLOf func(v V) time.Duration

	// Jitter is the largest fraction by which the ttl of a value is shortened at random, from 0 to 1,
	// so that values that were stored together do not expire together. With 0.1 a ttl of ten minutes
	// is nine to ten.
	Jitter float64

	// Prefix is the prefix of the items' keys. The default is "cache:". It must differ from that
	// of the locks.
	Prefix string

	// Marshal and Unmarshal convert a value to what the server stores and back. The default is
	// encoding/json. Unmarshal must return an error for bytes that Marshal cannot have made.
	Marshal   func(v V) ([]byte, error)
	Unmarshal func(b []byte) (V, error)
}

// Cache keeps values in memcached, for a Loader of package singleflight or for use by itself: it is
// a singleflight.Cache, Adder, StaleCache and Deleter, and a slots.Keeper. It is safe for concurrent
// use.
//
// The value of k is the item "cache:k", or a hash of that as for locks. Its flags are 1130455912
// (the bytes "Cach"), and it contains the time until which the value is fresh, in milliseconds
// since 1970, a colon, and what Marshal returned. An item with other flags or without that time
// is an error that names the key, and so is a value that Unmarshal rejects. A Loader then loads
// the value and replaces the item.
//
// The server refuses an item of more than 1 MiB (its option -I) and then drops the previous one:
// Set returns an error.
//
// # Absent values
//
// A Loader caches whatever its source returns without an error. To remember for a while that a key
// does not exist, let the source return a value that means this, such as a nil pointer, and give
// it a shorter ttl with TTLOf.
//
// # Time
//
// The wall clocks of the clients decide whether a value is fresh, since memcached counts whole
// seconds, and the client cannot ask it for the time that is left. A value is fresh for its ttl
// by the clock of the process that stored it; in a process whose clock is ahead of that one it
// ends earlier by as much, and later in one whose clock is behind. Keep the clocks synchronized,
// to within a fraction of the shortest ttl. The item itself expires two to three seconds after
// the end of Stale, however wrong the clocks are. If that is more than 30 days away, the client's
// clock decides again; if it is after 2038-01-19, the item expires on that date.
//
// # Requests
//
// Each method takes one request, with three exceptions: Stale takes none if CacheConfig.Stale is 0,
// Add beside an item takes two if that is fresh and three if it is stale, and Look takes one or two
// more for each load that begins. While a load is under way and there is no stale value, its item is
// in the value's place, with the flags 1282367844 (the bytes "Load").
//
// A method returns when its context ends, as the package documentation describes under Contexts.
// A Set or Add whose caller has left may still take effect. Set, Add and Delete of this Cache for
// the same key wait for it.
type Cache[V any] struct{ values bytecache.Cache[V] }

// NewCache returns a Cache on the servers of client. If client is nil or c is invalid, every
// operation returns an error. The caller closes client.
func NewCache[V any](client *gomemcache.Client, c CacheConfig[V]) *Cache[V] {
	return &Cache[V]{bytecache.New("memcache", bytecache.Config[V](c),
		func(prefix string, stale time.Duration) bytecache.Store {
			return &cacheStore{l: New(client), prefix: prefix, stale: stale, now: time.Now}
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
// did. If the item changes under it three times in a row, that is an error.
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
	stale  time.Duration
	now    func() time.Time
}

// cacheFlags mark an item as a value of a Cache: the bytes "Cach".
const cacheFlags = 0x43616368

func (s *cacheStore) Get(ctx context.Context, key string) (b []byte, ok bool, err error) {
	item, err := s.get(ctx, key)
	if err != nil || item == nil {
		return nil, false, err
	}
	b, end, err := cachedValue(item)
	if err != nil || !s.isFresh(end) {
		return nil, false, err
	}
	return b, true, nil
}

func (s *cacheStore) Stale(ctx context.Context, key string) (b []byte, ok bool, err error) {
	if s.stale == 0 && s.l.client != nil {
		return nil, false, nil
	}
	item, err := s.get(ctx, key)
	if err != nil || item == nil {
		return nil, false, err
	}
	b, end, err := cachedValue(item)
	if err != nil || s.now().Sub(end) >= s.stale {
		return nil, false, err
	}
	return b, true, nil
}

func (s *cacheStore) isFresh(end time.Time) bool { return s.now().Before(end) }

// get returns the item of key, or nil if there is none.
func (s *cacheStore) get(ctx context.Context, key string) (*gomemcache.Item, error) {
	item, err := cacheCall(ctx, s, key, false, func(itemKey string) (*gomemcache.Item, error) {
		return s.l.client.Get(itemKey)
	})
	if errors.Is(err, gomemcache.ErrCacheMiss) {
		return nil, nil
	}
	return item, err
}

func (s *cacheStore) Set(ctx context.Context, key string, b []byte, ttl time.Duration) error {
	return s.write(ctx, key, func(itemKey string) error {
		return s.l.client.Set(s.item(itemKey, b, ttl))
	})
}

// Add tries add, which memcached refuses beside a stale value. That is replaced by cas, which is
// refused if anything has changed since it was read.
func (s *cacheStore) Add(ctx context.Context, key string, b []byte, ttl time.Duration) (bool, error) {
	for range passes {
		err := s.write(ctx, key, func(itemKey string) error {
			return s.l.client.Add(s.item(itemKey, b, ttl))
		})
		if !errors.Is(err, gomemcache.ErrNotStored) {
			return err == nil, err
		}
		old, err := s.get(ctx, key)
		if err != nil {
			return false, err
		}
		if old == nil {
			continue
		}
		_, end, err := cachedValue(old)
		if err != nil || s.isFresh(end) {
			return false, err
		}
		if old.CasID == 0 {
			return false, errNoCAS
		}
		err = s.write(ctx, key, func(itemKey string) error {
			item := s.item(itemKey, b, ttl)
			item.CasID = old.CasID
			return s.l.client.CompareAndSwap(item)
		})
		if !errors.Is(err, gomemcache.ErrCASConflict) && !errors.Is(err, gomemcache.ErrCacheMiss) {
			return err == nil, err
		}
	}
	return false, errChanging
}

func (s *cacheStore) Delete(ctx context.Context, key string) error {
	err := s.write(ctx, key, s.l.client.Delete)
	if errors.Is(err, gomemcache.ErrCacheMiss) {
		return nil
	}
	return err
}

// write makes a request that writes.
func (s *cacheStore) write(ctx context.Context, key string, request func(itemKey string) error) error {
	_, err := cacheCall(ctx, s, key, true, func(itemKey string) (struct{}, error) {
		return struct{}{}, request(itemKey)
	})
	return err
}

// cacheCall makes a request about key's item, inOrder after those that callers have left behind.
func cacheCall[T any](ctx context.Context, s *cacheStore, key string, inOrder bool,
	request func(itemKey string) (T, error)) (v T, err error) {
	if s.l.client == nil {
		return v, errNoClient
	}
	if inOrder {
		if err := s.l.calls.Wait(ctx, key); err != nil {
			return v, err
		}
	}
	return inflight.Do(ctx, &s.l.calls, key, s.l.timeout(), func() (T, error) {
		return request(itemKey(s.prefix, key))
	})
}

// item returns an item for b that is fresh for ttl from now.
func (s *cacheStore) item(itemKey string, b []byte, ttl time.Duration) *gomemcache.Item {
	now := s.now()
	fresh := 1 + now.UnixMilli() + bytecache.Ceil(ttl, time.Millisecond) // UnixMilli rounds down
	value := append(strconv.AppendInt(nil, fresh, 10), ':')
	return &gomemcache.Item{
		Key: itemKey, Value: append(value, b...), Flags: cacheFlags,
		Expiration: expiration(now, bytecache.Sum(ttl, s.stale)),
	}
}

// cachedValue returns what item holds, and until when that is fresh. An item that holds a load has
// none, and its end is the zero time.
func cachedValue(item *gomemcache.Item) (b []byte, end time.Time, err error) {
	if item.Flags == loadFlags {
		return nil, end, nil
	}
	ms, b, ok := bytes.Cut(item.Value, []byte{':'})
	n, err := strconv.ParseInt(string(ms), 10, 64)
	if item.Flags != cacheFlags || !ok || err != nil {
		return nil, end, fmt.Errorf("the item %q is not a value of a Cache: %d bytes with flags %d",
			item.Key, len(item.Value), item.Flags)
	}
	return b, time.UnixMilli(n), nil
}

// expiration returns the expiration with which an item lives for at least d; see [seconds].
func expiration(now time.Time, d time.Duration) int32 {
	const (
		spare = 2
		most  = 30 * 24 * 60 * 60 // a larger number is a date to memcached
	)
	n := bytecache.Ceil(d, time.Second) + spare
	if n > most {
		n += now.Unix()
	}
	return int32(min(n, math.MaxInt32))
}
