package memory

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker"
	"github.com/stretchr/testify/require"
)

// storm runs many goroutines that contend for few locks by Wait and Acquire, with contexts that end
// at random, and holders that vanish. Two holders at a time are a data race and a wrong total.
func storm(t *testing.T, rounds int, pause func(maxi time.Duration) time.Duration) {
	const workers, keys = 32, 3
	l := New()
	var inside [keys]int // unguarded but for the lock
	var expect [keys]atomic.Int64
	var patient, granted, left, vanished atomic.Int64
	var wg sync.WaitGroup
	for worker := range workers {
		wg.Go(func() {
			for round := range rounds {
				k := rand.IntN(keys)
				key, token := fmt.Sprint(k), fmt.Sprint(worker, "/", round)
				ctx, cancel := context.Background(), func() {}
				mayLeave := rand.IntN(3) > 0
				if mayLeave {
					ctx, cancel = context.WithTimeout(ctx, pause(2*time.Millisecond))
				}
				vanish := rand.IntN(10) == 0
				ttl := time.Hour
				if vanish {
					ttl = time.Millisecond
				}
				var err error
				if rand.IntN(5) == 0 {
					var ok bool
					if ok, err = l.Acquire(context.Background(), key, token, ttl); err == nil && !ok {
						cancel()
						continue
					}
				} else {
					_, err = l.Wait(ctx, key, token, ttl)
				}
				switch {
				case err != nil:
					if !mayLeave || !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("wait: %v", err)
					}
					if errors.Is(err, locker.ErrHeld) {
						left.Add(1)
					}
					if ok, _ := l.Release(context.Background(), key, token); ok {
						t.Error("a waiter that gave up had the lock")
					}
				case vanish:
					vanished.Add(1)
				default:
					granted.Add(1)
					if !mayLeave {
						patient.Add(1)
					}
					inside[k]++
					expect[k].Add(1)
					if d := pause(100 * time.Microsecond); d%4 == 0 {
						time.Sleep(d)
					}
					if ok, err := l.Release(context.Background(), key, token); !ok || err != nil {
						t.Errorf("release: %v, %v: the holder had lost a lock of an hour", ok, err)
					}
				}
				cancel()
			}
		})
	}
	wg.Wait() // all waiters that did not leave have been served
	t.Logf("granted %d, of them to patient ones %d; left the queue %d, vanished %d",
		granted.Load(), patient.Load(), left.Load(), vanished.Load())
	for k := range keys {
		_, err := l.Wait(context.Background(), fmt.Sprint(k), "last", time.Hour)
		require.NoError(t, err)
		require.EqualValues(t, expect[k].Load(), inside[k])
		ok, err := l.Release(context.Background(), fmt.Sprint(k), "last")
		require.NoError(t, err)
		require.True(t, ok)
	}
	require.Positive(t, granted.Load())
	require.Positive(t, left.Load(), "no waiter was canceled in the queue: no storm")
	require.Positive(t, vanished.Load())
	require.Zero(t, count(t, l))
}

func random(maxi time.Duration) time.Duration { return rand.N(maxi) + 1 }

func TestStorm(t *testing.T) { storm(t, 300, random) }

// In a bubble all events of a millisecond happen at the same moment, so more of them cross.
func TestStormInStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		storm(t, 1000, func(maxi time.Duration) time.Duration {
			return random(maxi).Round(time.Millisecond / 2)
		})
	})
}

// Watchers come and go while a lock changes hands.
func TestWatchStorm(t *testing.T) {
	l := New()
	ctx, cancel := context.WithCancel(t.Context())
	var wakeUps atomic.Int64
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			for ctx.Err() == nil {
				watchCtx, cancel := context.WithTimeout(ctx, random(time.Millisecond))
				c, err := l.Watch(watchCtx, key)
				if err != nil {
					cancel()
					continue
				}
				select {
				case <-c:
					wakeUps.Add(1)
				case <-watchCtx.Done():
				}
				cancel()
			}
		})
		wg.Go(func() {
			token := fmt.Sprint(worker)
			for ctx.Err() == nil {
				if ok, _ := l.Acquire(context.Background(), key, token, time.Hour); ok {
					if ok, err := l.Release(context.Background(), key, token); !ok || err != nil {
						t.Errorf("release: %v, %v", ok, err)
					}
				}
			}
		})
	}
	require.Eventually(t, func() bool { return wakeUps.Load() > 0 }, time.Minute, time.Millisecond)
	cancel()
	wg.Wait()
	// The watchers are removed by goroutines of their contexts.
	require.Eventually(t, func() bool { return count(t, l) == census{} }, time.Minute, time.Millisecond)
}
