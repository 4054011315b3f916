package memory

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const key = "k"

// user calls a Locker for the key "k" and takes no error.
type user struct {
	t *testing.T
	l *Locker
}

func newUser(t *testing.T) user { return user{t, New()} }

func (u user) acquire(token string, ttl time.Duration) bool {
	u.t.Helper()
	ok, err := u.l.Acquire(context.Background(), key, token, ttl)
	require.NoError(u.t, err)
	return ok
}

func (u user) extend(token string, ttl time.Duration) bool {
	u.t.Helper()
	ok, err := u.l.Extend(context.Background(), key, token, ttl)
	require.NoError(u.t, err)
	return ok
}

func (u user) release(token string) bool {
	u.t.Helper()
	ok, err := u.l.Release(context.Background(), key, token)
	require.NoError(u.t, err)
	return ok
}

func (u user) fence(token string) (uint64, bool) {
	u.t.Helper()
	n, ok, err := u.l.Fence(context.Background(), key, token)
	require.NoError(u.t, err)
	return n, ok
}

// census counts what a Locker keeps.
type census struct{ entries, waiters, watchers, timers int }

// count takes the census of l, and fails the test if its parts contradict each other.
func count(t *testing.T, l *Locker) census {
	t.Helper()
	var c census
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.Lock()
		require.Len(t, s.locks, len(s.slots))
		if s.spare != nil {
			require.Zero(t, *s.spare, "a removed entry keeps something alive")
		}
		for _, slot := range s.slots[len(s.slots):cap(s.slots)] {
			require.Nil(t, slot.e, "an empty slot keeps an entry alive")
		}
		c.entries += len(s.slots)
		for pos, slot := range s.slots {
			e := slot.e
			require.Same(t, e, s.locks[e.key], "a slot has an entry that is not in the map")
			require.Equal(t, pos, e.pos)
			require.Equal(t, e.expires, slot.expires)

			var last *waiter
			for w := e.head; w != nil; w = w.next {
				require.Same(t, last, w.prev, "the queue is broken")
				require.False(t, w.served, "a waiter was granted the lock and is still in the queue")
				last = w
				c.waiters++
			}
			require.Same(t, last, e.tail, "the queue is broken")
			if e.head == nil {
				require.Equal(t, idle, e.alarm, "a timer runs without a waiter")
			} else {
				require.NotEqual(t, released, e.expires, "a free lock has a queue")
				require.LessOrEqual(t, e.alarm, e.expires, "the timer goes off too late")
			}
			if e.alarm != idle {
				c.timers++
			}
			for pos, w := range e.watchers {
				require.Equal(t, pos, w.pos)
			}
			c.watchers += len(e.watchers)
		}
		s.mu.Unlock()
	}
	return c
}

func TestHolding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUser(t)
		require.True(t, u.acquire("a", time.Second))
		assert.False(t, u.acquire("b", time.Second))
		assert.False(t, u.extend("b", time.Second))
		assert.False(t, u.release("b"))

		time.Sleep(time.Second - 1)
		assert.False(t, u.acquire("b", time.Second), "a nanosecond early")
		time.Sleep(1 * time.Nanosecond)
		assert.False(t, u.extend("a", time.Second), "an expired lock came back")
		assert.False(t, u.release("a"))
		require.True(t, u.acquire("b", time.Second), "late")

		assert.False(t, u.release("a"))
		assert.True(t, u.release("b"))
		assert.False(t, u.release("b"))
		assert.False(t, u.extend("b", time.Second))
		assert.Zero(t, count(t, u.l))
	})
}

func TestExtendReplaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, extend := range map[string]func(user, string, time.Duration) bool{
			"extend": user.extend, "acquire": user.acquire, // by the holder they are the same
		} {
			u := newUser(t)
			require.True(t, u.acquire("a", time.Second), name)
			for range 3 {
				require.True(t, extend(u, "a", 3*time.Second), name)
			}
			time.Sleep(3*time.Second - 1)
			require.False(t, u.acquire("b", time.Second), name)
			time.Sleep(1 * time.Nanosecond)
			require.True(t, u.acquire("b", time.Hour), name)

			require.True(t, extend(u, "b", time.Second), name)
			time.Sleep(time.Second)
			require.True(t, u.acquire("c", time.Second), name)
		}
	})
}

func TestLockersAreApart(t *testing.T) {
	u, other := newUser(t), newUser(t)
	require.True(t, u.acquire("a", time.Minute))
	require.True(t, other.acquire("b", time.Minute))
	assert.False(t, other.release("a"))
}

func TestZeroValue(t *testing.T) {
	u := user{t, &Locker{}}
	require.True(t, u.acquire("a", time.Minute))
	require.False(t, u.acquire("b", time.Minute))
	require.True(t, u.release("a"))
}

// operations are all methods; each reports its error and whether it claims to have done something.
var operations = map[string]func(ctx context.Context, l *Locker, ttl time.Duration) (bool, error){
	"acquire": func(ctx context.Context, l *Locker, ttl time.Duration) (bool, error) {
		return l.Acquire(ctx, key, "a", ttl)
	},
	"extend": func(ctx context.Context, l *Locker, ttl time.Duration) (bool, error) {
		return l.Extend(ctx, key, "a", ttl)
	},
	"release": func(ctx context.Context, l *Locker, _ time.Duration) (bool, error) {
		return l.Release(ctx, key, "a")
	},
	"wait": func(ctx context.Context, l *Locker, ttl time.Duration) (bool, error) {
		deadline, err := l.Wait(ctx, key, "a", ttl)
		return !deadline.IsZero(), err
	},
	"watch": func(ctx context.Context, l *Locker, _ time.Duration) (bool, error) {
		c, err := l.Watch(ctx, key)
		return c != nil, err
	},
	"fence": func(ctx context.Context, l *Locker, _ time.Duration) (bool, error) {
		n, ok, err := l.Fence(ctx, key, "a")
		return ok || n != 0, err
	},
}

func TestContextDoneBefore(t *testing.T) {
	dead, cancel := context.WithCancel(t.Context())
	cancel()
	for op, do := range operations {
		l := New()
		done, err := do(dead, l, time.Minute)
		assert.False(t, done, op)
		assert.ErrorIs(t, err, context.Canceled, op)
		assert.NotErrorIs(t, err, locker.ErrHeld, op)
		assert.EqualError(t, err, "context canceled", op)
		assert.Zero(t, count(t, l), op)

		u := user{t, l}
		require.True(t, u.acquire("a", time.Hour))
		before := count(t, l)
		_, err = do(dead, l, time.Minute)
		assert.ErrorIs(t, err, context.Canceled, op)
		assert.Equal(t, before, count(t, l), op)
		n, ok := u.fence("a")
		assert.True(t, ok, op)
		assert.NotZero(t, n, op)
	}
}

func TestNil(t *testing.T) {
	for op, do := range operations {
		done, err := do(t.Context(), nil, time.Minute)
		assert.False(t, done, op)
		assert.EqualError(t, err, "memory: nil Locker", op)
	}
}

func TestTTLMustBePositive(t *testing.T) {
	for _, op := range []string{"acquire", "extend", "wait"} {
		for _, ttl := range []time.Duration{0, -1, math.MinInt64} {
			l := New()
			done, err := operations[op](t.Context(), l, ttl)
			assert.False(t, done, op)
			assert.ErrorIs(t, err, locker.ErrInvalidTTL, op)
			assert.Zero(t, count(t, l), op)
		}
	}
}

func TestLongestTTL(t *testing.T) {
	const century = 100 * 365 * 24 * time.Hour
	synctest.Test(t, func(t *testing.T) {
		u := newUser(t)
		require.True(t, u.acquire("a", math.MaxInt64))
		time.Sleep(century)
		require.False(t, u.acquire("b", time.Second))
		require.True(t, u.extend("a", math.MaxInt64))

		w := u.wait(context.Background(), "b", math.MaxInt64)
		time.Sleep(century)
		require.False(t, w.returned(), "a lock with the longest ttl has passed to the next")
		require.True(t, u.release("a"))
		require.NoError(t, w.result().err)
		require.True(t, w.deadline.After(time.Now().Add(math.MaxInt64/4)), w.deadline)
		require.False(t, u.acquire("c", time.Second))
		require.True(t, u.extend("b", time.Second), "shorter again")
		time.Sleep(time.Second)
		require.True(t, u.acquire("c", time.Second))
	})
}

func TestFence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUser(t)
		_, ok := u.fence("a")
		require.False(t, ok, "it is free")

		var last uint64
		grows := func(token string) {
			t.Helper()
			n, ok := u.fence(token)
			require.True(t, ok)
			require.Greater(t, n, last)
			last = n
		}
		require.True(t, u.acquire("a", time.Second))
		grows("a")
		grows("a")
		_, ok = u.fence("b")
		require.False(t, ok, "another holds it")

		time.Sleep(time.Second)
		_, ok = u.fence("a")
		require.False(t, ok, "it has expired")
		require.True(t, u.acquire("b", time.Second))
		grows("b")
		_, ok = u.fence("a")
		require.False(t, ok, "another has taken over")

		require.True(t, u.release("b"))
		_, ok = u.fence("b")
		require.False(t, ok, "it was released")
		require.True(t, u.acquire("a", time.Second))
		grows("a")

		w := u.wait(context.Background(), "b", time.Second)
		_, ok = u.fence("b")
		require.False(t, ok, "it is in the queue")
		require.True(t, u.release("a"))
		require.NoError(t, w.result().err)
		grows("b")

		// The numbers of the next Locker go on above these, as the process's clock does.
		time.Sleep(time.Millisecond)
		began := uint64(time.Now().UnixMicro())
		u = newUser(t)
		require.True(t, u.acquire("a", time.Second))
		grows("a")
		require.Equal(t, began, last)
		grows("a")
		require.Equal(t, began+1, last)
	})
}

// Numbers of different keys, minted at the same time, are all different.
func TestFencesOfManyKeys(t *testing.T) {
	const keys, each = 16, 200
	l := New()
	var seen sync.Map
	var all sync.WaitGroup
	for i := range keys {
		all.Go(func() {
			key := fmt.Sprint("k", i)
			_, err := l.Acquire(t.Context(), key, "t", time.Minute)
			assert.NoError(t, err)
			for range each {
				n, ok, err := l.Fence(t.Context(), key, "t")
				assert.NoError(t, err)
				assert.True(t, ok)
				_, twice := seen.LoadOrStore(n, key)
				assert.False(t, twice)
			}
		})
	}
	all.Wait()
}

// The error of a Wait that gives up wraps both causes.
func TestErrorInTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUser(t)
		require.True(t, u.acquire("a", time.Minute))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		deadline, err := u.l.Wait(ctx, key, "b", time.Minute)
		assert.Equal(t, time.Second, time.Since(began))
		assert.Zero(t, deadline)
		assert.True(t, errors.Is(err, context.DeadlineExceeded) && errors.Is(err, locker.ErrHeld))
		assert.EqualError(t, err, "context deadline exceeded: the lock is held by another token")
	})
}
