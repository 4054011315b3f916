package singleflight

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/golockers/locker"
	"github.com/golockers/locker/memory"
	"github.com/golockers/locker/singleflight/slots"
)

var errNetwork = &net.OpError{Op: "read", Err: errors.New("connection reset")}

// A store may take as long as the backend's timeout, even if MaxHold is shorter. Callers that come
// meanwhile are given its value.
func TestStoreLongerThanMaxHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		p.onSet = func(context.Context) error { time.Sleep(2 * time.Second); return nil }
		l := NewLoader(p.locker(), p.cache(), p.slowly(0, "fresh"), WithMaxHold(time.Second),
			WithBackendTimeout(3*time.Second))
		require.NoError(t, (<-goLoad(t.Context(), l, "k")).err)
		time.Sleep(1500 * time.Millisecond)
		require.Equal(t, loaded{"fresh", nil, 0}, <-goLoad(t.Context(), l, "k"))
		require.Equal(t, 1, p.count("source"))
		time.Sleep(time.Minute)
		requireIdle(t, l, b, "k")
	})
}

// A cache that does not return from a store in time is not asked soon after.
func TestStoreHangsTripsTheBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		stuck := make(chan struct{})
		p.onSet = func(context.Context) error { <-stuck; return nil }
		l := NewLoader(p.locker(), p.cache(), p.slowly(0, "fresh"))
		require.NoError(t, (<-goLoad(t.Context(), l, "k")).err)
		time.Sleep(2*time.Second + time.Millisecond)
		p.reset()
		require.Equal(t, loaded{"fresh", nil, 0}, <-goLoad(t.Context(), l, "k"))
		require.Zero(t, p.count("get"))
		close(stuck)
		time.Sleep(time.Minute)
		requireIdle(t, l, b, "k")
	})
}

// A store that is answered shows that the cache answers: a read that fails next is the matter of
// its own key.
func TestStoreShowsThatTheCacheAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newBackend().process()
		p.onGet = func(_ context.Context, key string) error {
			if key == "fails" {
				return errNetwork
			}
			return nil
		}
		l := NewLoader(p.locker(), p.cache(), p.slowly(time.Second, "fresh"))
		for _, key := range []string{"k", "fails"} {
			require.NoError(t, (<-goLoad(t.Context(), l, key)).err)
			synctest.Wait()
		}
		p.reset()
		require.NoError(t, (<-goLoad(t.Context(), l, "another")).err)
		require.Equal(t, 1, p.count("acquire"), "the cache is not read, so the lock is of no use")
		time.Sleep(time.Minute)
	})
}

// Close waits for the release of a store that was left behind, even if the store returns first.
func TestCloseWaitsForTheReleaseOfAStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newBackend().process()
		p.onSet = func(context.Context) error { time.Sleep(3 * time.Second); return nil }
		p.onRelease = func(context.Context) (bool, error) { time.Sleep(2 * time.Second); return true, nil }
		l := NewLoader(p.locker(), p.cache(), p.slowly(0, "fresh"))
		require.NoError(t, (<-goLoad(t.Context(), l, "k")).err)
		time.Sleep(3500 * time.Millisecond) // the release began after two seconds
		start := time.Now()
		require.NoError(t, l.Close(t.Context()))
		require.Equal(t, 500*time.Millisecond, time.Since(start))
	})
}

// A cache that refuses a value is known to do so, also where the lock ends before the backend's
// timeout would.
func TestStoreIsRefusedUnderAShortLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		p.onSet = func(context.Context) error { return errAnswered }
		l := NewLoader(p.locker(), p.cache(), p.slowly(0, "fresh"), WithLockTTL(time.Second))
		for range 2 {
			require.Equal(t, loaded{"fresh", nil, 0}, <-goLoad(t.Context(), l, "k"))
			synctest.Wait()
		}
		require.Equal(t, 1, p.count("acquire"), "others would wait in vain")
		requireIdle(t, l, b, "k")
	})
}

// A value that is not to be stored, since the cache does not answer, is not stored either if the
// lock is lost as well.
func TestStoresNothingInASilentCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		p.onGet = func(context.Context, string) error {
			if p.count("get") > 1 { // under the lock
				return errNetwork
			}
			return nil
		}
		p.onExtend = func(context.Context) (bool, error) { return false, nil }
		l := NewLoader(p.locker(), p.addCache(), p.slowly(5*time.Second, "fresh"), WithLockTTL(time.Second))
		require.Equal(t, "fresh", (<-goLoad(t.Context(), l, "k")).v)
		time.Sleep(time.Minute)
		require.Zero(t, p.count("add")+p.count("set"))
		requireIdle(t, l, b, "k")
	})
}

// A process whose last caller leaves while it waits for the value stops waiting.
func TestWaitEndsWithItsLastCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		l := NewLoader(p.locker(), p.cache(), p.slowly(0, "fresh"))
		lease, err := locker.TryLock(t.Context(), b.locks, "k", time.Minute)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		c := goLoad(ctx, l, "k")
		synctest.Wait()
		cancel()
		require.ErrorIs(t, (<-c).err, context.Canceled)
		requireIdle(t, l, b, "another")
		require.NoError(t, lease.Unlock(t.Context()))
	})
}

// A value that was not stored, since the cache has one, does not make its key up to date.
func TestStoreOfNothingKeepsAKeyOutdated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		p.onAcquire = func(context.Context, string) error { return errAnswered } // so it is added
		l := NewLoader(p.locker(), p.addCache(), p.slowly(0, "fresh"))
		b.set("k", "old")
		l.outdated.add("k")
		require.Equal(t, "fresh", (<-goLoad(t.Context(), l, "k")).v)
		synctest.Wait()
		require.Equal(t, 1, p.count("add"))
		require.True(t, l.outdated.has("k"))
		time.Sleep(time.Minute)
	})
}

// hangingPut is a cache whose Put takes until its context ends.
type hangingPut struct{ *memory.Cache[string] }

func (c hangingPut) Put(ctx context.Context, _ ...*slots.Slot[string]) error {
	<-ctx.Done()
	return ctx.Err()
}

// A value that is being stored is not given to later callers once its lock is lost: an Update in
// another process may have returned since.
func TestValueBeingStoredEndsWithItsLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		p.onExtend = func(context.Context) (bool, error) { return false, errNetwork }
		cache := memory.NewCache(memory.CacheConfig[string]{TTL: time.Hour})
		var value atomic.Value
		value.Store("old")
		source := func(context.Context, string) (string, error) { return value.Load().(string), nil }
		stopped := NewLoader(p.locker(), hangingPut{cache}, source, WithLockTTL(200*time.Millisecond))
		other := NewLoader(b.locks, cache, source)
		require.Equal(t, loaded{"old", nil, 0}, <-goLoad(t.Context(), stopped, "k"))
		require.Equal(t, loaded{"old", nil, 0}, <-goLoad(t.Context(), stopped, "k"))
		require.NoError(t, other.Update(t.Context(), "k", func(context.Context) error { value.Store("new"); return nil }))
		require.Equal(t, loaded{"new", nil, 0}, <-goLoad(t.Context(), stopped, "k"))
		time.Sleep(time.Minute)
		requireIdle(t, stopped, b, "k")
	})
}
