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
	"github.com/golockers/locker/cache"
	"github.com/golockers/locker/internal/bytecache"
	"github.com/golockers/locker/internal/inflight"
)

// CacheConfig describes a [Cache]: TTL, Stale, TTLOf, Jitter, Prefix, Marshal and Unmarshal, as
// [cache.Config] says. The zero value is not valid: it has no TTL.
type CacheConfig[V any] = cache.Config[V]

// Cache keeps values in memcached. The value of k is the item "cache:k", or a hash of that as for
// locks, with the flags 1130455912 (the bytes "Cach"): the time until which it is kept, in
// milliseconds since 1970, a colon, and what Marshal returned. Any other item is an error that names
// the key. The server refuses an item of more than 1 MiB (its option -I) and drops the previous one.
//
// The wall clocks of the clients decide when that is, since the client cannot ask the server: where
// the clock is ahead, a value ends earlier by as much. Keep them synchronized to within a fraction of
// the shortest ttl. The item expires two to three seconds after the end of Stale, whatever the clocks;
// if that is more than 30 days away they decide again, and it does by 2038-01-19.
//
// Each method takes one request, with three exceptions: Stale takes none if CacheConfig.Stale is 0,
// Add beside an item two if that is fresh and three if it is stale, and Look two more for each load
// that begins. While a load is under way and there is no stale value, its item is in the value's
// place, with the flags 1282367844 (the bytes "Load").
type Cache[V any] = cache.Cache[V]

// NewCache returns a Cache on the servers of client. If client is nil or c is invalid, every
// operation returns an error. The caller closes client.
func NewCache[V any](client *gomemcache.Client, c CacheConfig[V]) *Cache[V] {
	return cache.New("memcache", &cacheStore{New(client), time.Now}, c)
}

// cacheStore keeps the bytes of a Cache.
type cacheStore struct {
	l   *Locker // for its client
	now func() time.Time
}

// cacheFlags mark an item as a value of a Cache: the bytes "Cach".
const cacheFlags = 0x43616368

func (s *cacheStore) Err() error {
	if s.l.client == nil {
		return errNoClient
	}
	return nil
}

func (s *cacheStore) Get(ctx context.Context, key string, spare time.Duration) (b []byte, ok bool, err error) {
	item, err := s.get(ctx, key)
	if err != nil || item == nil {
		return nil, false, err
	}
	b, end, err := cachedValue(item)
	if err != nil || !s.isFresh(end, spare) {
		return nil, false, err
	}
	return b, true, nil
}

// isFresh reports whether what ends then lasts for longer than spare.
func (s *cacheStore) isFresh(end time.Time, spare time.Duration) bool {
	return end.Sub(s.now()) > spare
}

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

func (s *cacheStore) Set(ctx context.Context, key string, b []byte, d time.Duration) error {
	return s.write(ctx, key, func(itemKey string) error {
		return s.l.client.Set(s.item(itemKey, b, d))
	})
}

// Add tries add, which memcached refuses beside a stale value. That is replaced by cas, which is
// refused if anything has changed since it was read.
func (s *cacheStore) Add(ctx context.Context, key string, b []byte, d, spare time.Duration) (bool, error) {
	for range passes {
		err := s.write(ctx, key, func(itemKey string) error {
			return s.l.client.Add(s.item(itemKey, b, d))
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
		if err != nil || s.isFresh(end, spare) {
			return false, err
		}
		if old.CasID == 0 {
			return false, errNoCAS
		}
		err = s.write(ctx, key, func(itemKey string) error {
			item := s.item(itemKey, b, d)
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
	if inOrder {
		if err := s.l.calls.Wait(ctx, key); err != nil {
			return v, err
		}
	}
	return inflight.Do(ctx, &s.l.calls, key, s.l.timeout(), func() (T, error) {
		return request(itemOf(key))
	})
}

// itemOf returns the key of the item for a key of a Store, which has the prefix of a cache.
func itemOf(key string) string { return itemKey(key[:1], key[1:]) }

// item returns an item for b that is kept for d from now.
func (s *cacheStore) item(itemKey string, b []byte, d time.Duration) *gomemcache.Item {
	now := s.now()
	end := 1 + now.UnixMilli() + bytecache.Ceil(d, time.Millisecond) // UnixMilli rounds down
	value := append(strconv.AppendInt(nil, end, 10), ':')
	return &gomemcache.Item{
		Key: itemKey, Value: append(value, b...), Flags: cacheFlags, Expiration: expiration(now, d),
	}
}

// cachedValue returns what item holds, and until when that is kept. An item that holds a load has
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
