package redisv9

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/golockers/locker/cache"
	"github.com/golockers/locker/internal/bytecache"
	"github.com/golockers/locker/internal/redislock"
	"github.com/redis/go-redis/v9"
)

// CacheConfig describes a [Cache]: TTL, Stale, TTLOf, Jitter, Prefix, Marshal and Unmarshal, as
// [cache.Config] says. The zero value is not valid: it has no TTL.
type CacheConfig[V any] = cache.Config[V]

// Cache keeps values in Redis. The value of k is the key "cache:k", without anything around what
// Marshal returned, so other programs can read it, write it and delete it. A value without an expiry
// is fresh until it is deleted. A key that is not a string is an error that names it.
//
// A value is stored for its ttl and Stale together, and it is fresh as long as more than Stale
// remains. The server measures both, so no client's clock matters.
//
// Each method is one request, for any number of keys, and Stale none if CacheConfig.Stale is 0. What
// writes uses scripts. The load of k is the key "!load:{cache:k}", or for a k with a hash tag
// "!load:{tag}cache:k". With a client that reads from replicas, values appear and vanish late.
type Cache[V any] = cache.Cache[V]

// NewCache returns a Cache on the servers of client, which may be any that [New] takes. If client
// or c is invalid, every operation returns an error. The caller closes client.
//
// On a Ring, a Delete or Set while the key's shard seems to be down is done on another shard. When
// the shard is up again, Get returns the old value. The package documentation describes under "What
// is promised" how to prevent that.
func NewCache[V any](client redis.UniversalClient, c CacheConfig[V]) *Cache[V] {
	_, single := client.(*redis.Client)
	return cache.New("redisv9", &cacheStore{New(client), single}, c)
}

// cacheStore keeps the bytes of a Cache.
type cacheStore struct {
	l      *Locker // for its client
	single bool    // all keys are on one server
}

func (s *cacheStore) Err() error { return s.l.locks.Err }

// Get asks for the remaining time first. So a value that another process stores between the two
// commands counts as fresh, or as not there yet, but a stale one never as fresh.
func (s *cacheStore) Get(ctx context.Context, key string, spare time.Duration) (b []byte, ok bool, err error) {
	if spare == 0 {
		return s.read(ctx, key, func(ctx context.Context) ([]byte, error) {
			return s.l.client.Get(ctx, key).Bytes()
		})
	}
	return s.read(ctx, key, func(ctx context.Context) ([]byte, error) {
		pipe := s.l.client.Pipeline()
		pttl := pipe.Do(ctx, "pttl", key) // PTTL's Duration overflows
		value := pipe.Get(ctx, key)
		if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
			return nil, err
		}
		const noExpiry = -1
		left, err := pttl.Int64()
		if err == nil && left != noExpiry && left <= millis(spare) {
			err = redis.Nil
		}
		if err != nil {
			return nil, err
		}
		return value.Bytes()
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

func (s *cacheStore) Set(ctx context.Context, key string, b []byte, d time.Duration) error {
	p := newPayload(ctx, key, b)
	_, err := s.write(p, func() (bool, error) { return s.put(p, key, always, d, 0) })
	return err
}

func (s *cacheStore) Add(ctx context.Context, key string, b []byte, d, spare time.Duration) (added bool, err error) {
	p := newPayload(ctx, key, b)
	return s.write(p, func() (bool, error) {
		added, err := s.put(p, key, ifNotFresh, d, spare)
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

// millis returns how many milliseconds d lasts, which the server counts.
func millis(d time.Duration) int64 { return bytecache.Ceil(d, time.Millisecond) }

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
