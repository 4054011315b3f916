package singleflight

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/golockers/locker"
	"github.com/golockers/locker/memory"
)

// nested returns two Loaders over the same locks whose sources call each other's Load with a key.
func nested(b *fakeBackend, usersKey, ordersKey string, opts ...[]LoaderOption) (users, orders *Loader[string]) {
	opts = append(opts, nil, nil)
	p, q := b.process(), newBackend().process() // a cache each
	q.backend.locks = b.locks
	users = NewLoader(locker.Locker(b.locks), p.cache(), func(ctx context.Context, _ string) (string, error) {
		time.Sleep(time.Second)
		return orders.Load(ctx, ordersKey)
	}, opts[0]...)
	orders = NewLoader(locker.Locker(b.locks), q.cache(), func(ctx context.Context, _ string) (string, error) {
		time.Sleep(time.Second)
		return users.Load(ctx, usersKey)
	}, opts[1]...)
	return users, orders
}

// Loaders that share their locks, whose sources wait for each other, get an error that names both keys.
func TestNestedLoads(t *testing.T) {
	contexts(t, func(t *testing.T, ctx context.Context) {
		b := newBackend()
		users, orders := nested(b, "42", "42")
		other := goLoad(t.Context(), orders, "42") // may take the lock, or wait for it
		start := time.Now()
		_, err := users.Load(ctx, "42")
		require.ErrorIs(t, err, locker.ErrDeadlock)
		require.ErrorContains(t, err, `singleflight: load "42": the load of "42" with the lock "42" waits for it: `)
		require.ErrorIs(t, (<-other).err, locker.ErrDeadlock)
		require.LessOrEqual(t, time.Since(start), 5*time.Second)
		requireIdle(t, users, b, "42")
	})
}

// The lock counts, and not the key.
func TestNestedLoadsWithPrefixes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		users, _ := nested(b, "7", "a/7", []LoaderOption{WithKeyPrefix("a/")})
		_, err := users.Load(t.Context(), "7")
		require.ErrorIs(t, err, locker.ErrDeadlock)
		require.ErrorContains(t, err, `singleflight: load "a/7": the load of "7" with the lock "a/7" waits for it: `)
		requireIdle(t, users, b, "7")

		users, _ = nested(b, "7", "7", []LoaderOption{WithKeyPrefix("users/")}, []LoaderOption{WithKeyPrefix("orders/")})
		_, err = users.Load(t.Context(), "7")
		require.ErrorContains(t, err, `the call for "7" calls itself`)
	})
}

// A nested load of another key goes through, and so does one of the same key that is in the cache.
func TestNestedLoadOfAnotherKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p, q := b.process(), newBackend().process()
		inner := NewLoader(locker.Locker(b.locks), q.cache(), func(context.Context, string) (string, error) { return "fresh", nil })
		outer := NewLoader(locker.Locker(b.locks), p.cache(), func(ctx context.Context, key string) (string, error) {
			return inner.Load(ctx, "other")
		})
		v, err := outer.Load(t.Context(), "42")
		require.NoError(t, err)
		require.Equal(t, "fresh", v)
		v, err = outer.Load(t.Context(), "other") // its own lock, and a value that is there
		require.NoError(t, err)
		require.Equal(t, "fresh", v)
	})
}

// Every source carries the lease of its load: that of a caller, of a refresh, and of several keys.
func TestSourceCarriesLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := memory.New()
		b := newBackend()
		b.stale["k"] = "stale"
		deadlock := make(chan error, 10)
		source := func(ctx context.Context, key string) (string, error) {
			deadlock <- locker.Do(ctx, locks, key, time.Minute, nothing)
			return "fresh", ctx.Err()
		}
		l := NewLoader(locker.Locker(locks), b.process().staleCache(), source)
		for range 2 {
			_, err := l.Load(t.Context(), "k")
			require.NoError(t, err)
			require.ErrorIs(t, <-deadlock, locker.ErrDeadlock)
			synctest.Wait()
			delete(b.values, "k")
			delete(b.stale, "k")
		}
		require.NoError(t, l.Close(t.Context()))

		many := NewBatchLoader(locker.Locker(locks), memory.NewCache(memory.CacheConfig[string]{TTL: time.Hour}),
			func(ctx context.Context, keys []string) (map[string]string, error) {
				values := make(map[string]string)
				for _, key := range keys {
					values[key], _ = source(ctx, key)
				}
				return values, nil
			})
		_, err := many.LoadMany(t.Context(), []string{"a", "b", "c"})
		require.NoError(t, err)
		for range 3 {
			require.ErrorIs(t, <-deadlock, locker.ErrDeadlock)
		}
		require.NoError(t, many.Close(t.Context()))
	})
}
