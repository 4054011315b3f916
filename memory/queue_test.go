package memory

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// waiting is a Wait under way.
type waiting struct {
	done     chan struct{}
	deadline time.Time
	err      error
	at       time.Time // when it returned
}

// wait calls Wait in a goroutine of the test's bubble, and returns when that is in the queue or has
// returned.
func (u user) wait(ctx context.Context, token string, ttl time.Duration) *waiting {
	w := &waiting{done: make(chan struct{})}
	go func() {
		defer close(w.done)
		w.deadline, w.err = u.l.Wait(ctx, key, token, ttl)
		w.at = time.Now()
	}()
	synctest.Wait()
	return w
}

// returned reports whether Wait has returned.
func (w *waiting) returned() bool {
	synctest.Wait()
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

// result waits until Wait has returned.
func (w *waiting) result() *waiting {
	<-w.done
	return w
}

func TestWaitOnAFreeLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUser(t)
		deadline, err := u.l.Wait(t.Context(), key, "a", time.Second)
		require.NoError(t, err)
		require.Equal(t, time.Now().Add(time.Second), deadline)
		require.False(t, u.acquire("b", time.Second))

		time.Sleep(time.Second) // expired is free as well
		deadline, err = u.l.Wait(t.Context(), key, "b", time.Minute)
		require.NoError(t, err)
		require.Equal(t, time.Now().Add(time.Minute), deadline)
	})
}

func TestDeadlineIsMonotonic(t *testing.T) {
	l := New()
	before := time.Now()
	deadline, err := l.Wait(t.Context(), key, "a", time.Hour)
	after := time.Now()
	require.NoError(t, err)
	require.Contains(t, deadline.String(), " m=", "no monotonic clock reading")
	require.False(t, deadline.Before(before.Add(time.Hour)))
	require.False(t, deadline.After(after.Add(time.Hour)))
	expires := l.lockOf(key).expires
	require.Equal(t, expires, deadline.Sub(start), "the deadline is not the expiry")
}

// lockOf returns a copy of the entry of key.
func (l *Locker) lockOf(key string) entry {
	s := l.lock(key)
	defer l.unlock(s)
	return *s.locks[key]
}

func TestFirstComeFirstServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUser(t)
		require.True(t, u.acquire("holder", time.Hour))
		const n = 10
		var queue [n]*waiting
		for i := range queue {
			queue[i] = u.wait(t.Context(), fmt.Sprint(i), time.Hour)
		}
		require.Equal(t, census{entries: 1, waiters: n, timers: 1}, count(t, u.l))
		previous := "holder"
		for i, w := range queue {
			time.Sleep(time.Minute)
			require.False(t, w.returned())
			require.True(t, u.release(previous))
			require.False(t, u.acquire("stranger", time.Hour), "the queue was overtaken")
			require.False(t, u.release(previous), "the lock was held on")
			require.NoError(t, w.result().err)
			require.Equal(t, time.Now().Add(time.Hour), w.deadline, "not the full ttl from the grant on")
			for _, later := range queue[i+1:] {
				require.False(t, later.returned())
			}
			previous = fmt.Sprint(i)
		}
		require.Equal(t, census{entries: 1}, count(t, u.l))
		require.True(t, u.release(previous))
		require.Zero(t, count(t, u.l))
	})
}

// A holder that vanishes costs the queue its ttl, and so does each waiter that vanishes after its
// grant.
func TestVanishedHolders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUser(t)
		began := time.Now()
		require.True(t, u.acquire("holder", time.Second))
		first := u.wait(t.Context(), "first", 10*time.Second)
		second := u.wait(t.Context(), "second", 100*time.Second)
		third := u.wait(t.Context(), "third", 1000*time.Second)

		require.NoError(t, first.result().err)
		assert.Equal(t, began.Add(1*time.Second), first.at)
		assert.Equal(t, began.Add(11*time.Second), first.deadline)
		require.NoError(t, second.result().err)
		assert.Equal(t, began.Add(11*time.Second), second.at)
		assert.Equal(t, began.Add(111*time.Second), second.deadline)
		require.NoError(t, third.result().err)
		assert.Equal(t, began.Add(111*time.Second), third.at)
		assert.Equal(t, began.Add(1111*time.Second), third.deadline)
		assert.Equal(t, census{entries: 1}, count(t, u.l))

		time.Sleep(time.Until(third.deadline) - 1)
		require.False(t, u.acquire("stranger", time.Second))
		time.Sleep(1 * time.Nanosecond)
		require.True(t, u.acquire("stranger", time.Second))
	})
}

// If an Acquire comes at the moment of expiry, before the timer, the queue is still served first.
func TestLineComesFirstAtExpiry(t *testing.T) {
	for _, ops := range []struct {
		name string
		do   func(user) bool
	}{
		{"acquire", func(u user) bool { return u.acquire("stranger", time.Second) }},
		{"acquire by the old holder", func(u user) bool { return u.acquire("holder", time.Second) }},
		{"extend", func(u user) bool { return u.extend("holder", time.Second) }},
		{"release", func(u user) bool { return u.release("holder") }},
		{"fence", func(u user) bool { _, ok := u.fence("holder"); return ok }},
	} {
		synctest.Test(t, func(t *testing.T) {
			u := newUser(t)
			require.True(t, u.acquire("holder", time.Second))
			w := u.wait(t.Context(), "waiter", time.Minute)
			time.Sleep(time.Second)
			assert.False(t, ops.do(u), ops.name)
			require.NoError(t, w.result().err)
			assert.Equal(t, time.Now().Add(time.Minute), w.deadline)
			assert.True(t, u.release("waiter"))
		})
	}
}

func TestExtendMovesTheTimer(t *testing.T) {
	for name, extend := range map[string]func(user, string, time.Duration) bool{
		"extend": user.extend, "acquire": user.acquire,
	} {
		for _, c := range []struct {
			name string
			ttl  time.Duration
		}{{"longer", time.Minute}, {"shorter", time.Millisecond}} {
			synctest.Test(t, func(t *testing.T) {
				u := newUser(t)
				require.True(t, u.acquire("holder", 10*time.Second))
				w := u.wait(t.Context(), "waiter", time.Second)
				next := u.wait(t.Context(), "next", time.Second)
				time.Sleep(5 * time.Second)
				require.True(t, extend(u, "holder", c.ttl))
				expiry := time.Now().Add(c.ttl)
				require.NoError(t, w.result().err)
				assert.Equal(t, expiry, w.at, "%s, %s", name, c.name)
				require.NoError(t, next.result().err)
				assert.Equal(t, expiry.Add(time.Second), next.at, "%s, %s", name, c.name)
			})
		}
	}
}

// A grant with a short ttl after one with a long ttl needs an earlier timer.
func TestGrantMovesTheTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUser(t)
		require.True(t, u.acquire("holder", time.Hour))
		u.wait(t.Context(), "short", time.Second)
		next := u.wait(t.Context(), "next", time.Second)
		granted := time.Now()
		require.True(t, u.release("holder"))
		require.NoError(t, next.result().err)
		assert.Equal(t, granted.Add(time.Second), next.at)
	})
}

// The timer is stopped when the last waiter leaves, and a later queue gets it again.
func TestTimerOfASecondQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUser(t)
		began := time.Now()
		require.True(t, u.acquire("holder", time.Hour))
		ctx, cancel := context.WithCancel(t.Context())
		left := u.wait(ctx, "left", time.Second)
		cancel()
		require.ErrorIs(t, left.result().err, context.Canceled)
		require.Equal(t, census{entries: 1}, count(t, u.l))

		w := u.wait(t.Context(), "waiter", time.Second)
		require.NoError(t, w.result().err)
		assert.Equal(t, began.Add(time.Hour), w.at)
	})
}

func TestLeavingTheQueue(t *testing.T) {
	const n = 5
	for leaver := range n {
		synctest.Test(t, func(t *testing.T) {
			u := newUser(t)
			require.True(t, u.acquire("holder", time.Hour))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var queue [n]*waiting
			for i := range queue {
				waitCtx := t.Context()
				if i == leaver {
					waitCtx = ctx
				}
				queue[i] = u.wait(waitCtx, fmt.Sprint(i), time.Hour)
			}
			cancel()
			err := queue[leaver].result().err
			require.ErrorIs(t, err, context.Canceled)
			require.ErrorIs(t, err, locker.ErrHeld)
			require.Equal(t, census{entries: 1, waiters: n - 1, timers: 1}, count(t, u.l))

			previous := "holder"
			for i, w := range queue {
				if i != leaver {
					require.False(t, w.returned())
					require.True(t, u.release(previous))
					require.NoError(t, w.result().err)
					previous = fmt.Sprint(i)
				}
			}
			require.True(t, u.release(previous))
			require.Zero(t, count(t, u.l))
		})
	}
}

// If the grant and the end of ctx coincide, Wait returns an error, and the next in the queue has
// the lock.
func TestGrantCrossesWithLeaving(t *testing.T) {
	for range 50 { // which of the two the waiter sees first is a matter of luck
		synctest.Test(t, func(t *testing.T) {
			u := newUser(t)
			require.True(t, u.acquire("holder", time.Hour))
			ctx, cancel := context.WithCancel(t.Context())
			crossing := u.wait(ctx, "crossing", time.Hour)
			next := u.wait(t.Context(), "next", time.Minute)
			require.True(t, u.release("holder"))
			cancel()
			deadline, err := crossing.result().deadline, crossing.err
			if err == nil { // it was back before cancel
				require.True(t, u.release("crossing"))
			} else {
				require.Zero(t, deadline)
				require.ErrorIs(t, err, context.Canceled)
				require.ErrorIs(t, err, locker.ErrHeld)
				require.False(t, u.release("crossing"), "the grant stayed")
			}
			require.NoError(t, next.result().err, "the grant was lost")
			require.Equal(t, time.Now().Add(time.Minute), next.deadline)
			require.True(t, u.release("next"))
			require.Zero(t, count(t, u.l))
		})
	}
}

// The same, one step at a time and with certainty, on the parts that Wait is made of.
func TestLeaveAfterGrant(t *testing.T) {
	join := func(u user, token string) (*shard, *waiter) {
		s, w, _ := u.l.takeOrJoin(key, token, time.Minute)
		require.NotNil(t, w)
		return s, w
	}
	leave := func(s *shard, w *waiter) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.leave(key, w, clock())
	}
	t.Run("passed on", func(t *testing.T) {
		u := newUser(t)
		u.acquire("holder", time.Hour)
		s, first := join(u, "first")
		_, second := join(u, "second")
		u.release("holder")
		leave(s, first)
		<-second.granted
		require.False(t, u.release("first"))
		require.True(t, u.release("second"))
		require.Zero(t, count(t, u.l))
	})
	t.Run("released", func(t *testing.T) {
		u := newUser(t)
		u.acquire("holder", time.Hour)
		s, w := join(u, "w")
		woken, err := u.l.Watch(t.Context(), key)
		require.NoError(t, err)
		u.release("holder")
		<-woken
		leave(s, w)
		require.Len(t, woken, 1, "the release woke no watcher")
		require.True(t, u.acquire("stranger", time.Hour))
	})
	t.Run("extended meanwhile by the same token", func(t *testing.T) {
		u := newUser(t)
		u.acquire("holder", time.Hour)
		s, w := join(u, "w")
		u.release("holder")
		require.True(t, u.acquire("w", 2*time.Hour))
		leave(s, w)
		require.True(t, u.release("w"), "a lock that another call was told it has was released")
	})
	t.Run("released and taken by another meanwhile", func(t *testing.T) {
		u := newUser(t)
		u.acquire("holder", time.Hour)
		s, w := join(u, "w")
		u.release("holder")
		u.release("w")
		require.True(t, u.acquire("other", time.Hour))
		leave(s, w)
		require.True(t, u.release("other"))
	})
	t.Run("released meanwhile and the entry used for another key", func(t *testing.T) {
		u := newUser(t)
		u.acquire("holder", time.Hour)
		s, w := join(u, "w")
		u.release("holder")
		u.release("w")
		leave(s, w)
		require.Zero(t, count(t, u.l))
	})
	t.Run("granted by its own leaving", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			u := user{t, New()}
			u.acquire("holder", time.Second)
			s, w := join(u, "w")
			u.l.lockOf(key).timer.Stop() // as if it came late
			time.Sleep(time.Second)
			leave(s, w)
			require.Zero(t, count(t, u.l))
			require.True(t, u.acquire("stranger", time.Second))
		})
	})
}

// quietly is a context whose end only Err shows.
type quietly struct {
	context.Context
	ended bool
}

func (c *quietly) Err() error {
	if c.ended {
		return context.Canceled
	}
	return nil
}

// A waiter that sees the grant first still checks its ctx.
func TestGrantSeenAfterTheEndOfContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUser(t)
		require.True(t, u.acquire("holder", time.Hour))
		ctx := &quietly{Context: context.Background()}
		w := u.wait(ctx, "waiter", time.Hour)
		ctx.ended = true
		require.True(t, u.release("holder"))
		require.ErrorIs(t, w.result().err, context.Canceled)
		require.ErrorIs(t, w.err, locker.ErrHeld)
		require.Zero(t, w.deadline)
		require.Zero(t, count(t, u.l))
	})
}

// If a waiter's ctx ends at the moment when the holder expires, it has the lock or does not. In
// both cases the lock is not lost.
func TestTimeoutAtExpiry(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			u := newUser(t)
			require.True(t, u.acquire("holder", time.Second))
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			w := u.wait(ctx, "waiter", time.Hour)
			if err := w.result().err; err == nil {
				require.True(t, u.release("waiter"))
			} else {
				require.ErrorIs(t, err, locker.ErrHeld)
			}
			require.Zero(t, count(t, u.l))
			require.True(t, u.acquire("stranger", time.Second))
		})
	}
}

func TestWaitByTheHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUser(t)
		require.True(t, u.acquire("holder", time.Second))
		w := u.wait(t.Context(), "waiter", time.Second)
		deadline, err := u.l.Wait(t.Context(), key, "holder", time.Minute)
		require.NoError(t, err)
		require.Equal(t, time.Now().Add(time.Minute), deadline)
		require.NoError(t, w.result().err)
		require.Equal(t, deadline, w.at)
	})
}

// Two waiters with the same token, which callers should avoid, are served one after the other.
func TestOneTokenTwiceInTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUser(t)
		require.True(t, u.acquire("holder", time.Hour))
		first := u.wait(t.Context(), "twin", time.Hour)
		between := u.wait(t.Context(), "between", time.Hour)
		second := u.wait(t.Context(), "twin", time.Hour)
		require.True(t, u.release("holder"))
		require.NoError(t, first.result().err)
		require.True(t, u.release("twin"))
		require.NoError(t, between.result().err)
		require.False(t, second.returned())
		require.False(t, u.release("twin"))
		require.True(t, u.release("between"))
		require.NoError(t, second.result().err)
		require.True(t, u.release("twin"))
		require.Zero(t, count(t, u.l))
	})
}
