package singleflight

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := breaker{timeout: 2 * time.Second, pause: time.Second}
		live, gone := context.Background(), cancelled()
		others := func() (n int) { // how many of other keys are not asked
			for i := range 100 {
				if !b.allows(strconv.Itoa(i)) {
					n++
				}
			}
			return n
		}
		require.True(t, b.allows("a"))
		require.Equal(t, errAnswered, b.failed(live, "a", time.Now(), errAnswered), "an answer")
		require.True(t, b.allows("a"))

		// The backend has just answered, so only the key is left alone.
		b.succeeded("b", time.Now())
		require.ErrorIs(t, b.failed(live, "a", time.Now(), errDown), errDown)
		require.False(t, b.allows("a"))
		require.LessOrEqual(t, others(), 3, "the key, and what has the same hash")
		b.succeeded("a", time.Now())
		require.True(t, b.allows("a"))

		// The backend has not answered for a while, so all keys are left alone.
		time.Sleep(500 * time.Millisecond)
		require.True(t, isNoAnswer(b.failed(gone, "a", time.Now(), gone.Err())), "no answer in time")
		require.Equal(t, 100, others())
		b.succeeded("b", time.Now())
		require.Zero(t, others())

		// An error that took long counts as no answer.
		began := time.Now()
		time.Sleep(500 * time.Millisecond)
		require.True(t, isNoAnswer(b.failed(live, "c", began, errAnswered)))
		require.Equal(t, 100, others())
	})
}

// After the pause there is one probe at a time, and after each that fails another pause. No more than four
// probes that do not return are in progress, except those that began more than thirty timeouts ago.
func TestBreakerProbes(t *testing.T) {
	for name, stuck := range map[string]bool{"failing": false, "stuck": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := breaker{timeout: 2 * time.Second, pause: time.Second}
				var probes, running atomic.Int32
				release := make(chan struct{})
				probe := func() {
					probes.Add(1)
					running.Add(1)
					defer running.Add(-1)
					if stuck {
						<-release
					} else {
						b.failed(context.Background(), "k", time.Now(), errDown)
					}
				}
				b.failed(context.Background(), "k", time.Now(), errDown)
				skip := func(d time.Duration) {
					for end := time.Now().Add(d); time.Now().Before(end); {
						require.False(t, b.allows("k"))
						require.ErrorIs(t, b.skip("k", probe), errDown)
						time.Sleep(100 * time.Millisecond)
						synctest.Wait()
					}
				}
				skip(50 * time.Second)
				if stuck {
					require.EqualValues(t, 4, running.Load())
				} else {
					require.InDelta(t, 48, probes.Load(), 3)
				}
				skip(50 * time.Second)
				if stuck {
					require.EqualValues(t, 8, running.Load(), "the first four do not count after a minute")
				} else {
					require.InDelta(t, 95, probes.Load(), 5)
				}
				close(release)
			})
		})
	}
}

// When no caller has come for a long time since a backend failed, the next ones ask it, and find that it is back
// or trip the breaker again.
func TestBreakerForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := breaker{timeout: 2 * time.Second, pause: time.Second}
		for _, all := range []bool{true, false} {
			trip := func() {
				b.succeeded("b", time.Now())
				if all {
					time.Sleep(time.Second)
				}
				b.failed(context.Background(), "a", time.Now(), errDown)
			}
			trip()
			require.Equal(t, !all, b.allows("b"))
			time.Sleep(30 * time.Second)
			require.False(t, b.allows("a"))
			time.Sleep(2 * time.Second)
			require.True(t, b.allows("a"))
			trip()
			require.False(t, b.allows("a"))
		}
	})
}

func cancelled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}
