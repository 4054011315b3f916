package singleflight

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golockers/locker"
	"github.com/golockers/locker/memory"
)

func nothing(context.Context) error { return nil }

// underAccount returns a source that takes the lock "account" after a second, and its Locker.
func underAccount() (locks *memory.Locker, source func(context.Context, string) (string, error)) {
	locks = memory.New()
	return locks, func(ctx context.Context, _ string) (string, error) {
		time.Sleep(time.Second)
		return "fresh", locker.Do(ctx, locks, "account", time.Minute, nothing)
	}
}

// A caller that holds the lock that its own source wants does not wait for itself. A caller that has joined it waits
// until the lock is free.
func TestLeaseOfFirstCaller(t *testing.T) {
	contexts(t, func(t *testing.T, ctx context.Context) {
		b := newBackend()
		p := b.process()
		locks, source := underAccount()
		l := NewLoader(p.locker(), p.cache(), source)
		joined := make(chan loaded, 1)
		err := locker.Do(ctx, locks, "account", time.Minute, func(held context.Context) error {
			time.AfterFunc(500*time.Millisecond, func() { joined <- <-goLoad(ctx, l, "k") })
			start := time.Now()
			_, err := l.Load(held, "k")
			require.Equal(t, time.Second, time.Since(start))
			time.Sleep(4 * time.Second)
			return err
		})
		require.ErrorIs(t, err, locker.ErrDeadlock)
		require.NotErrorIs(t, err, locker.ErrNotHeld)
		got := <-joined
		require.NoError(t, got.err)
		require.Equal(t, "fresh", got.v)
		require.InDelta(t, 4500*time.Millisecond, got.took, float64(200*time.Millisecond))
		requireIdle(t, l, b, "k")
	})
}

// What a lease of the first caller causes is no failure for another process: that calls its own source.
func TestLeaseOfFirstCallerElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShared()
		locks, source := underAccount()
		a, b := NewLoader[string](s.locks, s.cache, source), NewLoader[string](s.locks, s.cache, source)
		var waits <-chan loaded
		require.NoError(t, locker.Do(t.Context(), locks, "account", time.Minute, func(held context.Context) error {
			failed := goLoad(held, a, "k")
			synctest.Wait()
			waits = goLoad(t.Context(), b, "k")
			require.ErrorIs(t, (<-failed).err, locker.ErrDeadlock)
			return nil
		}))
		got := <-waits
		require.NoError(t, got.err)
		require.Equal(t, "fresh", got.v)
		require.NoError(t, a.Close(t.Context()))
		require.NoError(t, b.Close(t.Context()))
	})
}

// Callers that carry the same lease get the error that one of them caused.
func TestLeaseOfAllCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		locks, source := underAccount()
		l := NewLoader(p.locker(), p.cache(), source)
		_ = locker.Do(t.Context(), locks, "account", time.Minute, func(held context.Context) error {
			first, second := goLoad(held, l, "k"), goLoad(held, l, "k")
			for _, c := range []<-chan loaded{first, second} {
				got := <-c
				require.ErrorIs(t, got.err, locker.ErrDeadlock)
				require.Equal(t, time.Second, got.took)
			}
			return nil
		})
		requireIdle(t, l, b, "k")
	})
}

// A source that the first caller has left may wait for a lock of that caller.
func TestLeaseOfCallerThatLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		locks, source := underAccount()
		l := NewLoader(p.locker(), p.cache(), source)
		go func() {
			assert.NoError(t, locker.Do(t.Context(), locks, "account", time.Minute, func(held context.Context) error {
				ctx, cancel := context.WithTimeout(held, 100*time.Millisecond)
				defer cancel()
				_, err := l.Load(ctx, "k")
				assert.Equal(t, context.DeadlineExceeded, err)
				time.Sleep(2 * time.Second)
				return nil
			}))
		}()
		time.Sleep(500 * time.Millisecond)
		got := <-goLoad(t.Context(), l, "k")
		require.NoError(t, got.err)
		require.InDelta(t, 1600*time.Millisecond, got.took, float64(200*time.Millisecond))
		require.Equal(t, 1, p.count("acquire"), "the second caller joined the load")
		requireIdle(t, l, b, "k")
	})
}

// A refresh, which no caller waits for, may wait for a lock of the caller that started it.
func TestLeaseOfRefresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		b.stale["k"] = "stale"
		p := b.process()
		locks, source := underAccount()
		l := NewLoader(p.locker(), p.staleCache(), source)
		require.NoError(t, locker.Do(t.Context(), locks, "account", time.Minute, func(held context.Context) error {
			v, err := l.Load(held, "k")
			require.Equal(t, "stale", v)
			time.Sleep(2 * time.Second)
			return err
		}))
		time.Sleep(time.Second)
		v, _ := b.get("k")
		require.Equal(t, "fresh", v)
		requireIdle(t, l, b, "k")
	})
}

// An ErrDeadlock of the source's own doing reaches every caller, whatever the first one carries.
func TestDeadlockOfSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		locks := memory.New()
		calls := 0
		l := NewLoader(p.locker(), p.cache(), func(ctx context.Context, _ string) (string, error) {
			calls++
			time.Sleep(time.Second)
			return "", locker.Do(ctx, locks, "a", time.Minute, func(ctx context.Context) error {
				return locker.Do(ctx, locks, "a", time.Minute, nothing)
			})
		})
		require.NoError(t, locker.Do(t.Context(), locks, "other", time.Minute, func(held context.Context) error {
			first, second, third := goLoad(held, l, "k"), goLoad(t.Context(), l, "k"), goLoad(t.Context(), l, "k")
			for _, c := range []<-chan loaded{first, second, third} {
				require.ErrorIs(t, (<-c).err, locker.ErrDeadlock)
			}
			return nil
		}))
		require.LessOrEqual(t, calls, 2)
		requireIdle(t, l, b, "k")
	})
}

// A Load whose caller holds the key's lock waits for nothing that waits for that lock.
func TestLoadWithinDo(t *testing.T) {
	contexts(t, func(t *testing.T, ctx context.Context) {
		b := newBackend()
		p := b.process()
		locks := locker.Observed(p.locker(), observerFunc(func(context.Context, locker.Event) {}))
		l := NewLoader(locks, p.cache(), p.slowly(0, "fresh"), WithKeyPrefix("lock/"))
		require.NoError(t, locker.Do(ctx, locks, "lock/k", time.Minute, func(held context.Context) error {
			other := goLoad(ctx, l, "k") // waits for the lock
			synctest.Wait()
			start := time.Now()
			_, err := l.Load(held, "k")
			require.EqualError(t, err, `singleflight: load "k": `+locker.ErrDeadlock.Error())
			require.ErrorIs(t, err, locker.ErrDeadlock)
			v, err := l.Load(held, "lock/k")
			require.NoError(t, err, "another lock")
			require.Equal(t, "fresh", v)
			p.onGet = func(context.Context, string) error { return errAnswered }
			_, err = l.Load(held, "k")
			require.ErrorIs(t, err, locker.ErrDeadlock)
			require.ErrorIs(t, err, errAnswered)
			p.onGet = nil
			require.Zero(t, time.Since(start))

			b.set("lock/k", "there")
			v, err = l.Load(held, "k")
			require.NoError(t, err)
			require.Equal(t, "there", v)
			require.Equal(t, "there", (<-other).v)
			return nil
		}))
		synctest.Wait()
		requireIdle(t, l, b, "lock/k")
	})
}

// The change of an Update does not wait for the lock that the Update holds.
func TestUpdateCarriesLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		locks := p.locker()
		l := NewLoader(locks, p.deleteCache(), p.slowly(0, "fresh"))
		other := NewLoader(locks, p.deleteCache(), p.slowly(0, "fresh"))
		start := time.Now()
		err := l.Update(t.Context(), "k", func(ctx context.Context) error {
			require.Equal(t, "k", locker.FromContext(ctx).Key())
			_, err := l.Load(ctx, "k")
			require.EqualError(t, err, `singleflight: the call for "k" calls itself`)
			_, err = other.Load(ctx, "k")
			require.ErrorIs(t, err, locker.ErrDeadlock)
			require.ErrorIs(t, other.Update(ctx, "k", nothing), locker.ErrDeadlock)
			return locker.Do(ctx, locks, "k", time.Minute, nothing)
		})
		require.ErrorIs(t, err, locker.ErrDeadlock)
		require.Zero(t, time.Since(start))
		requireIdle(t, l, b, "k")
	})
}
