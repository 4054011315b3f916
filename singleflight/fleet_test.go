package singleflight

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golockers/locker"
	"github.com/golockers/locker/memory"
)

// Of the calls of 8 processes one runs, and the others get its value, also those that begin while the
// slot has it. After that the next call runs.
func TestFleetDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShared()
		var fleets []*Fleet[string]
		for range 8 {
			fleets = append(fleets, NewFleet[string](s.locks, s.cache))
		}
		var ran atomic.Int64
		fn := func(context.Context) (string, error) {
			ran.Add(1)
			time.Sleep(5 * time.Second)
			return "v", nil
		}
		for round := range 3 {
			began := time.Now()
			var callers sync.WaitGroup
			for i := range 8 * 20 {
				callers.Go(func() {
					v, shared, err := fleets[i%8].Do(t.Context(), "k", fn)
					assert.NoError(t, err)
					assert.Equal(t, "v", v)
					assert.True(t, shared)
				})
			}
			callers.Wait()
			require.EqualValues(t, round+1, ran.Load())
			require.Equal(t, 5*time.Second, time.Since(began))
			synctest.Wait()
			time.Sleep(defaultSlotTTL - time.Nanosecond)
			v, shared, err := fleets[round].Do(t.Context(), "k", fn)
			require.NoError(t, err)
			require.Equal(t, "v", v)
			require.True(t, shared, "it is in the slot")
			require.EqualValues(t, round+1, ran.Load())
			time.Sleep(time.Nanosecond)
		}
		v, shared, err := fleets[0].Do(t.Context(), "other", fn)
		require.NoError(t, err)
		require.Equal(t, "v", v)
		require.False(t, shared)
		for _, f := range fleets {
			require.NoError(t, f.Close(t.Context()))
		}
		_, _, err = fleets[0].Do(t.Context(), "k", fn)
		require.ErrorIs(t, err, locker.ErrClosed)
	})
}

// An error goes to the calls of all processes that waited for it, and to no later one.
func TestFleetDoFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShared()
		var ran atomic.Int64
		fn := func(context.Context) (string, error) {
			ran.Add(1)
			time.Sleep(time.Second)
			return "", locker.ErrNotHeld
		}
		var callers sync.WaitGroup
		var remote atomic.Int64
		a, b := NewFleet[string](s.locks, s.cache, WithSentinels(locker.ErrNotHeld)), NewFleet[string](s.locks, s.cache, WithSentinels(locker.ErrNotHeld))
		for _, f := range []*Fleet[string]{a, b} {
			for range 10 {
				callers.Go(func() {
					_, _, err := f.Do(t.Context(), "k", fn)
					assert.ErrorIs(t, err, locker.ErrNotHeld)
					if errors.As(err, new(*RemoteError)) {
						remote.Add(1)
					}
				})
			}
		}
		callers.Wait()
		require.EqualValues(t, 1, ran.Load())
		require.EqualValues(t, 10, remote.Load())
		time.Sleep(time.Millisecond)
		_, _, err := b.Do(t.Context(), "k", fn)
		require.Equal(t, locker.ErrNotHeld, err)
		require.EqualValues(t, 2, ran.Load())
	})
}

// A caller that leaves does not end fn for the others, and fn is its own caller's.
func TestFleetCallerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShared()
		a, b := NewFleet[string](s.locks, s.cache), NewFleet[string](s.locks, s.cache)
		first, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		go func() {
			_, _, err := a.Do(first, "k", func(ctx context.Context) (string, error) {
				time.Sleep(5 * time.Second)
				return "the first's", ctx.Err()
			})
			assert.ErrorIs(t, err, context.DeadlineExceeded)
		}()
		synctest.Wait()
		v, shared, err := b.Do(t.Context(), "k", func(context.Context) (string, error) { return "own", nil })
		require.NoError(t, err)
		require.Equal(t, "the first's", v)
		require.True(t, shared)
	})
}

// A process that dies is replaced when its lock has expired. One that was only stopped cannot publish
// after that.
func TestFleetProcessStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShared()
		stopped := pollLocker{&fakeProcess{backend: &fakeBackend{locks: s.locks}}}
		stopped.onExtend = func(context.Context) (bool, error) { return false, errors.New("stopped") }
		a := NewFleet[string](stopped, s.cache, WithMaxHold(time.Hour))
		b := NewFleet[string](s.locks, s.cache, WithSlotTTL(time.Minute))
		go func() {
			v, shared, err := a.Do(t.Context(), "k", func(context.Context) (string, error) {
				time.Sleep(30 * time.Second)
				return "old", nil
			})
			assert.NoError(t, err)
			assert.Equal(t, "old", v)
			assert.False(t, shared)
		}()
		synctest.Wait()
		began := time.Now()
		v, shared, err := b.Do(t.Context(), "k", func(context.Context) (string, error) { return "new", nil })
		require.NoError(t, err)
		require.Equal(t, "new", v)
		require.False(t, shared)
		require.Less(t, time.Since(began), 12*time.Second, "the lock's ttl, and a poll")
		time.Sleep(40 * time.Second)
		v, shared, err = b.Do(t.Context(), "k", notToRun)
		require.NoError(t, err)
		require.Equal(t, "new", v)
		require.True(t, shared)
	})
}

func notToRun(context.Context) (string, error) { return "", errors.New("called") }

func TestFleetMisuse(t *testing.T) {
	s := newShared()
	ctx := t.Context()
	for want, f := range map[string]*Fleet[string]{
		`singleflight: do "k": nil Fleet`:   nil,
		`singleflight: do "k": nil Locker`:  NewFleet[string](nil, s.cache),
		`singleflight: do "k": nil slots`:   NewFleet[string](s.locks, nil),
		`config: TTL is 0 and TTLOf is nil`: NewFleet[string](s.locks, memory.NewCache(memory.CacheConfig[string]{})),
	} {
		_, _, err := f.Do(ctx, "k", notToRun)
		require.ErrorContains(t, err, want)
	}
	_, _, err := NewFleet[string](s.locks, s.cache).Do(ctx, "k", nil)
	require.EqualError(t, err, `singleflight: do "k": nil function`)
	require.ErrorContains(t, (*Fleet[string])(nil).Close(ctx), "nil Fleet")
	_, _, err = new(Fleet[string]).Do(ctx, "k", notToRun)
	require.ErrorContains(t, err, "nil Fleet")

	f := NewFleet[string](s.locks, s.cache)
	require.NoError(t, f.Close(ctx))
	_, _, err = f.Do(ctx, "k", notToRun)
	require.EqualError(t, err, `singleflight: do "k": the Loader is closed`)
	f = NewFleet[string](s.locks, s.cache)
	_, _, err = f.Do(ctx, "k", func(ctx context.Context) (string, error) {
		v, _, err := f.Do(ctx, "k", notToRun)
		return v, err
	})
	require.ErrorContains(t, err, "calls itself")
	v, _, err := f.Do(ctx, "outer", func(ctx context.Context) (string, error) {
		v, _, err := f.Do(ctx, "inner", func(context.Context) (string, error) { return "inner", nil })
		return v + "!", err
	})
	require.NoError(t, err)
	require.Equal(t, "inner!", v)
}

// The outcome of another call is shared: also an error from another process, and what a caller gets
// that is the only one left.
func TestFleetDoSharesOutcomeOfAnotherCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShared()
		a, b := NewFleet[string](s.locks, s.cache), NewFleet[string](s.locks, s.cache)
		never := func(context.Context) (string, error) { t.Error("called"); return "", nil }
		for _, failure := range []error{nil, locker.ErrNotHeld} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			go func() {
				_, shared, err := a.Do(ctx, "k", func(context.Context) (string, error) {
					time.Sleep(time.Minute)
					return "v", failure
				})
				assert.ErrorIs(t, err, context.DeadlineExceeded)
				assert.False(t, shared, "the caller has left")
			}()
			synctest.Wait()
			var callers sync.WaitGroup
			for _, f := range []*Fleet[string]{a, b} {
				callers.Go(func() {
					_, shared, err := f.Do(t.Context(), "k", never)
					assert.Equal(t, failure == nil, err == nil)
					assert.True(t, shared)
				})
			}
			callers.Wait()
			cancel()
			time.Sleep(time.Minute) // the slot is empty
		}
		require.NoError(t, a.Close(t.Context()))
		require.NoError(t, b.Close(t.Context()))
	})
}

// A value that is found in its slot is not refreshed: that would call fn after Do has returned.
func TestFleetDoesNotRefreshAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShared()
		f := NewFleet[string](s.locks, s.cache, WithRefreshAhead(time.Minute))
		var ran atomic.Int64
		for range 3 {
			v, _, err := f.Do(t.Context(), "k", func(context.Context) (string, error) { ran.Add(1); return "v", nil })
			require.NoError(t, err)
			require.Equal(t, "v", v)
			synctest.Wait()
		}
		require.EqualValues(t, 1, ran.Load())
		require.NoError(t, f.Close(t.Context()))
	})
}
