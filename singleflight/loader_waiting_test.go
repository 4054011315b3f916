package singleflight

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/golockers/locker"
)

// waiter is a process whose lock is held by another, and whose wake-ups the test causes.
type waiter struct {
	*fakeProcess
	watch context.Context // of the subscription
	woken chan struct{}
}

// waits runs f in a bubble with a process that will be refused the lock of "k".
func waits(t *testing.T, name string, f func(t *testing.T, w *waiter)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := newBackend()
			w := &waiter{fakeProcess: b.process(), woken: make(chan struct{}, 1)}
			w.onWatch = func(ctx context.Context) (<-chan struct{}, error) {
				w.watch = ctx
				return w.woken, nil
			}
			lease, err := locker.TryLock(t.Context(), b.locks, "k", time.Hour)
			require.NoError(t, err)
			f(t, w)
			time.Sleep(time.Minute)
			require.NoError(t, lease.Unlock(t.Context()))
		})
	})
}

// A process that calls the source does not watch the lock meanwhile.
func TestWaitUnwatches(t *testing.T) {
	for name, sabotage := range map[string]func(w *waiter){
		"waited long": func(*waiter) {},
		"the cache fails": func(w *waiter) {
			w.onGet = func(context.Context, string) error {
				if w.count("get") > 1 {
					return errNetwork
				}
				return nil
			}
		},
	} {
		waits(t, name, func(t *testing.T, w *waiter) {
			sabotage(w)
			l := NewLoader(w.locker(), w.cache(), func(context.Context, string) (string, error) {
				require.Error(t, w.watch.Err())
				return "fresh", nil
			}, WithMaxWait(10*time.Second))
			require.Equal(t, "fresh", (<-goLoad(t.Context(), l, "k")).v)
		})
	}
}

// After two releases that left no value a process calls the source at a random moment: not at once
// with all others, and not later than MaxWait.
func TestWaitFruitless(t *testing.T) {
	for name, tc := range map[string]struct{ maxWait, most time.Duration }{
		"by default":       {0, 30 * time.Second},
		"MaxWait is short": {20*time.Second + time.Microsecond, 20*time.Second + time.Microsecond},
	} {
		waits(t, name, func(t *testing.T, w *waiter) {
			l := NewLoader(w.locker(), w.cache(), w.slowly(0, "fresh"), WithMaxWait(tc.maxWait))
			c := goLoad(t.Context(), l, "k")
			for range 2 {
				time.Sleep(10 * time.Second)
				w.woken <- struct{}{}
			}
			got := <-c
			require.Equal(t, "fresh", got.v)
			require.Greater(t, got.took, 20*time.Second)
			require.LessOrEqual(t, got.took, tc.most)
		})
	}
}

// A subscription that takes too long is not relied on: the process polls.
func TestWaitPollsWithoutASubscription(t *testing.T) {
	waits(t, "", func(t *testing.T, w *waiter) {
		w.onWatch = func(context.Context) (<-chan struct{}, error) {
			time.Sleep(time.Second)
			return w.woken, nil
		}
		l := NewLoader(w.locker(), w.cache(), w.slowly(0, "must not load"))
		c := goLoad(t.Context(), l, "k")
		time.Sleep(1200 * time.Millisecond)
		w.backend.set("k", "fresh")
		got := <-c
		require.Equal(t, "fresh", got.v)
		require.LessOrEqual(t, got.took, 1200*time.Millisecond+2*lastPoll)
	})
}
