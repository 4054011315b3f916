package locker_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/cohort"
	"github.com/golockers/locker/conformance"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/memory"
	"github.com/golockers/locker/redisv9"
	"github.com/golockers/locker/singleflight"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestObservedDirectly(t *testing.T) {
	bubble(t, "methods", func(t *testing.T) {
		j := &journal{}
		ctx := t.Context()
		l := locker.Observed(memory.New(), j)
		must := func(want bool, ok bool, err error) {
			t.Helper()
			assert.NoError(t, err)
			assert.Equal(t, want, ok)
		}
		ok, err := l.Acquire(ctx, "k", "a", time.Minute)
		must(true, ok, err)
		ok, err = l.Acquire(ctx, "k", "b", time.Minute)
		must(false, ok, err)
		ok, err = l.Extend(ctx, "k", "a", time.Minute)
		must(true, ok, err)
		ok, err = l.Extend(ctx, "k", "b", time.Minute)
		must(false, ok, err)
		n, ok, err := l.(locker.Fencer).Fence(ctx, "k", "a")
		must(true, ok, err)
		assert.NotZero(t, n)
		woken, err := l.(locker.Watcher).Watch(ctx, "k")
		require.NoError(t, err)
		waitCtx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err = l.(locker.Waiter).Wait(waitCtx, "k", "b", time.Minute)
		assert.ErrorIs(t, err, locker.ErrHeld)
		ok, err = l.Release(ctx, "k", "a")
		must(true, ok, err)
		<-woken
		ok, err = l.Release(ctx, "k", "a")
		must(false, ok, err)
		deadline, err := l.(locker.Waiter).Wait(ctx, "k", "b", time.Minute)
		require.NoError(t, err)
		for info, err := range l.(locker.Lister).List(ctx, "") {
			assert.NoError(t, err)
			assert.Equal(t, locker.Info{Key: "k", Token: "b", TTL: time.Minute}, info)
		}
		assert.Equal(t, time.Minute, time.Until(deadline))
		assert.Equal(t, []string{"acquired k 0", "refused k 0 held", "extended k 0", "lost k 0 not held", "waiting k 0",
			"refused k 1 held", "unlocked k 0", "unlock failed k 0 not held", "acquired k 0"}, j.take())

		dead, cancel := context.WithCancel(ctx)
		cancel()
		_, err = l.Acquire(dead, "k", "a", time.Minute)
		assert.Error(t, err)
		_, err = l.Extend(dead, "k", "a", time.Minute)
		assert.Error(t, err)
		_, err = l.Release(dead, "k", "a")
		assert.Error(t, err)
		_, err = l.(locker.Waiter).Wait(dead, "k", "a", time.Minute)
		assert.Error(t, err)
		assert.Equal(t, []string{"failed k 0 error", "extend failed k 0 error", "unlock failed k 0 error",
			"failed k 0 error"}, j.take())
	})
	for name, inner := range map[string]func(m *memory.Locker) locker.Locker{
		"queue": func(m *memory.Locker) locker.Locker { return m },
		"polls": func(m *memory.Locker) locker.Locker { return plain{m} },
	} {
		bubble(t, "under a cohort: "+name, func(t *testing.T) {
			j, above := &journal{}, &journal{}
			m := memory.New()
			theirs := tryLock(t, m, time.Hour)
			l := locker.Observed(cohort.New(locker.Observed(inner(m), j)), above)
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() {
					assert.NoError(t, locker.Do(context.Background(), l, "k", time.Minute,
						func(context.Context) error { return nil }))
				})
			}
			time.Sleep(time.Second)
			assert.Equal(t, []string{"waiting k 0"}, j.take())
			assert.Equal(t, []string{"waiting k 0", "waiting k 0", "waiting k 0"}, above.take())
			assert.NoError(t, theirs.Unlock(t.Context()))
			wg.Wait()
			count := func(j *journal, kind string) (n int) {
				for _, line := range j.events {
					if line.Kind.String() == kind {
						n++
					}
				}
				return n
			}
			assert.LessOrEqual(t, count(j, "acquired"), 2, "tenures")
			assert.Equal(t, count(j, "acquired"), count(j, "unlocked"))
			assert.Zero(t, count(j, "refused"), "each attempt of a drive")
			assert.Equal(t, 3, count(above, "acquired"))
			assert.Equal(t, 3, count(above, "unlocked"))
			assert.Len(t, above.events, 6)
		})
	}
	bubble(t, "a Loader's", func(t *testing.T) {
		j := &journal{}
		loader := singleflight.NewLoader(locker.Observed(memory.New(), j), noCache{},
			func(context.Context, string) (string, error) {
				time.Sleep(time.Second)
				return "v", nil
			})
		v, err := loader.Load(t.Context(), "k")
		require.NoError(t, err)
		assert.Equal(t, "v", v)
		synctest.Wait()
		assert.Equal(t, []string{"acquired k 0", "unlocked k 1"}, j.take())
	})
}

// noCache has nothing and keeps nothing.
type noCache struct{}

func (noCache) Get(context.Context, string) (v string, found bool, err error) { return "", false, nil }
func (noCache) Set(context.Context, string, string) error                     { return nil }

// An observed Locker keeps the contract as the one behind it does.
func TestObservedConformance(t *testing.T) {
	t.Parallel()
	l := locker.Observed(memory.New(), locker.LogObserver(slog.New(slog.DiscardHandler)))
	conformance.Run(t, conformance.Config{New: func(testing.TB, string) locker.Locker { return l }})
}

// A queue on a server reports that a caller waits.
func TestObservedOnRedis(t *testing.T) {
	t.Parallel()
	client := redis.NewClient(&redis.Options{Addr: testserver.Redis(t).Addr})
	t.Cleanup(func() { assert.NoError(t, client.Close()) })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	bare := redisv9.New(client)
	held, err := locker.Lock(ctx, bare, "k", time.Minute)
	require.NoError(t, err)
	j := &journal{}
	waits := make(chan struct{})
	j.use = func(_ context.Context, e locker.Event) {
		if e.Kind == locker.Waiting {
			close(waits)
		}
	}
	done := make(chan error, 1)
	go func() {
		done <- locker.Do(ctx, locker.Observed(bare, j), "k", time.Minute, func(context.Context) error { return nil })
	}()
	select {
	case <-waits:
	case err := <-done:
		t.Fatal("did not wait:", err)
	}
	require.NoError(t, held.Unlock(ctx))
	require.NoError(t, <-done)
	var kinds []locker.EventKind
	for _, e := range j.events {
		kinds = append(kinds, e.Kind)
	}
	assert.Equal(t, []locker.EventKind{locker.Waiting, locker.Acquired, locker.Unlocked}, kinds)
}

func TestObservedBadInput(t *testing.T) {
	for want, l := range map[string]locker.Locker{
		"nil Observer": locker.Observed(memory.New(), nil),
		"nil Locker":   locker.Observed(nil, &journal{}),
	} {
		ctx := t.Context()
		_, err := locker.Lock(ctx, l, "k", time.Minute)
		assert.EqualError(t, err, `locker: lock "k": `+want)
		_, err = locker.Resume(ctx, l, "k", "t", time.Minute)
		assert.EqualError(t, err, `locker: resume "k": `+want)
		_, err = locker.LockAll(ctx, l, []string{"k"}, time.Minute)
		assert.EqualError(t, err, `locker: lock all "k": `+want)
		_, err = l.Acquire(ctx, "k", "t", time.Minute)
		assert.EqualError(t, err, want)
		_, err = l.Extend(ctx, "k", "t", time.Minute)
		assert.EqualError(t, err, want)
		_, err = l.Release(ctx, "k", "t")
		assert.EqualError(t, err, want)
		_, err = l.(locker.Waiter).Wait(ctx, "k", "t", time.Minute)
		assert.EqualError(t, err, want)
		_, err = l.(locker.Watcher).Watch(ctx, "k")
		assert.EqualError(t, err, want)
		_, _, err = l.(locker.Fencer).Fence(ctx, "k", "t")
		assert.EqualError(t, err, want)
		_, err = locker.Break(ctx, l, "k")
		assert.EqualError(t, err, `locker: break "k": `+want)
		for _, err := range l.(locker.Lister).List(ctx, "") {
			assert.EqualError(t, err, want)
		}
		waitCtx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		_, err = locker.Lock(waitCtx, cohort.New(l), "k", time.Minute)
		assert.ErrorContains(t, err, want)
	}
}
