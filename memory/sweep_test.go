package memory

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// sweepAll sweeps each shard once.
func (u user) sweepAll() {
	for i := range u.l.shards {
		u.l.shards[i].sweep()
	}
}

// round returns a number of operations, of any kind and key, that sweep every entry of l. That
// takes up to two looks for each: when an entry is removed, the last one takes its slot and may be
// looked at again.
func (l *Locker) round() int {
	most := 0
	for i := range l.shards {
		most = max(most, len(l.shards[i].locks))
	}
	return (2*most/sweepSize + 1) * shardCount * sweepEvery
}

func TestSweep(t *testing.T) {
	const n = 3000
	for op, do := range operations {
		synctest.Test(t, func(t *testing.T) {
			u := newUser(t)
			for i := range n {
				ttl := time.Second
				if i%10 == 0 {
					ttl = time.Hour
				}
				ok, err := u.l.Acquire(t.Context(), fmt.Sprint(i), "a", ttl)
				require.True(t, ok)
				require.NoError(t, err)
			}
			require.Equal(t, census{entries: n}, count(t, u.l), "swept before it has expired")
			time.Sleep(time.Second)

			ctx, cancel := context.WithCancel(context.Background())
			before := count(t, u.l).entries
			for i := range u.l.round() {
				_, err := do(ctx, u.l, time.Minute)
				require.NoError(t, err)
				if i%256 == 0 {
					after := count(t, u.l).entries
					require.LessOrEqual(t, before-after, (256/sweepEvery+1)*sweepSize, "too much work at once")
					before = after
				}
			}
			cancel()
			synctest.Wait() // for the watchers to leave
			u.release("a")
			assert.Equal(t, census{entries: n / 10}, count(t, u.l), op)
			for i := 0; i < n; i += 10 {
				ok, err := u.l.Release(t.Context(), fmt.Sprint(i), "a")
				require.True(t, ok)
				require.NoError(t, err)
			}
			require.Zero(t, count(t, u.l))
		})
	}
}

// A sweep also looks at the entry that takes the slot of a removed one.
func TestSweepRemovesAllItMay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s shard
		for i := range 2 * sweepSize {
			s.hold(s.add(fmt.Sprint(i)), "a", time.Second, clock())
		}
		time.Sleep(time.Second)
		s.sweep()
		require.Len(t, s.locks, sweepSize)
		s.sweep()
		require.Empty(t, s.locks)
	})
}

// Sweeping keeps up with holders that vanish all the time.
func TestSweepKeepsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUser(t)
		const ttl, live = time.Second, 1000
		most := 0
		for i := range 20 * live {
			ok, err := u.l.Acquire(t.Context(), fmt.Sprint(i), "a", ttl)
			require.True(t, ok)
			require.NoError(t, err)
			time.Sleep(ttl / live)
			if i%live == 0 {
				most = max(most, count(t, u.l).entries)
			}
		}
		require.GreaterOrEqual(t, most, live)
		require.LessOrEqual(t, most, 4*live)
	})
}

// A sweep that sees an expired lock with a queue passes it on: it does not remove it, nor wait for
// the timer.
func TestSweepServesTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUser(t)
		require.True(t, u.acquire("holder", time.Second))
		w := u.wait(t.Context(), "waiter", time.Minute)
		u.l.lockOf(key).timer.Stop() // as if it came late
		time.Sleep(2 * time.Second)
		require.False(t, w.returned())
		u.sweepAll()
		require.NoError(t, w.result().err)
		require.Equal(t, time.Now().Add(time.Minute), w.deadline)
	})
}

// A timer that was stopped too late may find that its entry is gone or has another key.
func TestLateTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUser(t)
		s := &u.l.shards[0]
		e := s.add("old")
		s.hold(e, "a", time.Hour, clock())
		s.join(e, &waiter{token: "b", ttl: time.Hour, granted: make(chan struct{})}, clock())
		e.remove(e.head)
		timer := e.timer
		s.release(e, clock())
		require.Zero(t, count(t, u.l))

		timer.Reset(0)
		synctest.Wait()
		require.Zero(t, count(t, u.l))

		require.Same(t, e, s.add("new"), "not used again: this test tests nothing")
		s.hold(e, "a", time.Minute, clock())
		w := &waiter{token: "b", ttl: time.Hour, granted: make(chan struct{})}
		s.join(e, w, clock())
		timer.Reset(0)
		synctest.Wait()
		require.Equal(t, census{entries: 1, waiters: 1, timers: 1}, count(t, u.l))
		began := time.Now()
		<-w.granted
		require.Equal(t, time.Minute, time.Since(began))
	})
}

// A map that was large once is given back.
func TestLargeMapIsGivenBack(t *testing.T) {
	var s shard
	for i := range keepSize + 1 {
		s.add(fmt.Sprint(i))
	}
	for len(s.slots) > 0 {
		s.tidy(s.slots[0].e, clock())
	}
	require.Nil(t, s.locks)
	require.Nil(t, s.slots)
	s.add("again")
	require.Len(t, s.locks, 1)
}
