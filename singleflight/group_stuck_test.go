package singleflight

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A fn that never returns holds up its key for a second, also when no caller waits that long.
func TestStuckFnAndImpatientCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group[int]
		stuck := make(chan struct{})
		start := time.Now()
		impatient := func(fn func(context.Context) (int, error)) error {
			ctx, cancel := context.WithTimeout(context.Background(), 900*time.Millisecond)
			defer cancel()
			_, _, err := g.Do(ctx, "k", fn)
			return err
		}
		require.Error(t, impatient(func(context.Context) (int, error) { <-stuck; return 0, nil }))
		var calls, served int
		for range 4000 {
			if impatient(func(context.Context) (int, error) { calls++; return 1, nil }) == nil {
				if served == 0 {
					require.LessOrEqual(t, time.Since(start), 900*time.Millisecond+unwindTime)
				}
				served++
			}
		}
		require.GreaterOrEqual(t, served, 3998)
		require.Equal(t, served, calls)
		close(stuck)
		synctest.Wait()
		requireEmpty(t, &g)
	})
}

// When each fn is stuck, one more is called each second, and no more.
func TestStuckFnsAddUpSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group[int]
		stuck := make(chan struct{})
		var running atomic.Int32
		for range 1000 { // 100 seconds
			ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
			g.Do(ctx, "k", func(context.Context) (int, error) {
				running.Add(1)
				<-stuck
				return 0, nil
			})
			cancel()
		}
		require.LessOrEqual(t, running.Load(), int32(100))
		require.GreaterOrEqual(t, running.Load(), int32(80), "the key is tried again and again")
		close(stuck)
		synctest.Wait()
		requireEmpty(t, &g)
	})
}

// Every way for a chain of flights to end leaves nothing: the one that waits is abandoned, forgotten or served,
// before or after the stuck one returns.
func TestChainsOfAbandonedFlights(t *testing.T) {
	for _, returns := range []time.Duration{500 * time.Millisecond, time.Minute} {
		for _, patience := range []time.Duration{100 * time.Millisecond, 700 * time.Millisecond, 3 * time.Second} {
			for _, forget := range []bool{false, true} {
				synctest.Test(t, func(t *testing.T) {
					var g Group[int]
					begin := func(patience, takes time.Duration) {
						ctx, cancel := context.WithTimeout(context.Background(), patience)
						goDo(ctx, &g, "k", func(context.Context) (int, error) { time.Sleep(takes); return 0, nil })
						time.AfterFunc(time.Hour, cancel)
					}
					begin(time.Millisecond, returns)
					time.Sleep(2 * time.Millisecond)
					begin(patience, 2*time.Second)
					time.Sleep(50 * time.Millisecond)
					begin(patience, 2*time.Second)
					time.Sleep(patience)
					if forget {
						g.Forget("k")
					}
					begin(time.Hour, time.Second)
					start := time.Now()
					v, _, err := g.Do(context.Background(), "k", func(context.Context) (int, error) { return 0, nil })
					require.Zero(t, v)
					require.NoError(t, err)
					require.LessOrEqual(t, time.Since(start), unwindTime+2*time.Second)
					time.Sleep(2 * time.Minute)
					requireEmpty(t, &g)
				})
			}
		}
	}
}
