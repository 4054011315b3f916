package locker_test

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
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// crowd are callers that wait for the lock of "k", in the order in which they came.
type crowd struct {
	wg     sync.WaitGroup
	mu     sync.Mutex
	served []int
	errs   []error
}

// join adds a caller that holds the lock for hold, and returns once it waits.
func (c *crowd) join(ctx context.Context, l locker.Locker, hold time.Duration, opts ...locker.Option) {
	c.mu.Lock()
	i := len(c.errs)
	c.errs = append(c.errs, nil)
	c.mu.Unlock()
	c.wg.Go(func() {
		lease, err := locker.Lock(ctx, l, "k", time.Minute, opts...)
		c.mu.Lock()
		c.errs[i] = err
		if err == nil {
			c.served = append(c.served, i)
		}
		c.mu.Unlock()
		if err == nil {
			time.Sleep(hold)
			_ = lease.Unlock(context.WithoutCancel(ctx))
		}
	})
	synctest.Wait()
}

// unlockAfter unlocks the lock some time later.
func unlockAfter(t *testing.T, lease *locker.Lease, d time.Duration) {
	time.AfterFunc(d, func() { assert.NoError(t, lease.Unlock(context.Background())) })
}

func ascending(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// requests returns how many requests n callers of a process make that wait for a lock for a minute
// and then give up.
func requests(t *testing.T, l locker.Locker, f *fake, n int) (acquired, released int) {
	ctx, cancel := context.WithCancel(t.Context())
	before, _, _ := f.counts()
	var c crowd
	for range n {
		c.join(ctx, l, 0)
	}
	time.Sleep(time.Minute)
	start := time.Now()
	cancel()
	c.wg.Wait()
	assert.Zero(t, time.Since(start))
	for _, err := range c.errs {
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, locker.ErrHeld)
	}
	after, _, released := f.counts()
	return after - before, released
}

func TestOneOfALinePolls(t *testing.T) {
	for name, watches := range map[string]bool{"polling": false, "watching": true} {
		bubble(t, name, func(t *testing.T) {
			f := &fake{}
			w := &watched{fake: f}
			l := locker.Locker(f)
			if watches {
				l = w
			}
			tryLock(t, l, time.Hour)
			one, released := requests(t, l, f, 1)
			assert.Zero(t, released)
			many, released := requests(t, l, f, 200)
			assert.Zero(t, released)
			assert.InDelta(t, one, many, float64(one)/4)
			assert.Zero(t, locker.Lines(), "kept for a key that nobody waits for")
			if watches {
				synctest.Wait()
				assert.Len(t, w.watchers, 2, "one subscription for each crowd")
				assert.Zero(t, w.live)
			}
		})
	}
}

func TestFirstComeFirstServedInALine(t *testing.T) {
	const callers = 50
	for name, watches := range map[string]bool{"polling": false, "watching": true} {
		bubble(t, name, func(t *testing.T) {
			f := &fake{}
			w := &watched{fake: f}
			l := locker.Locker(f)
			if watches {
				l = w
			}
			unlockAfter(t, tryLock(t, l, time.Hour), time.Second)
			var c crowd
			for range callers {
				c.join(t.Context(), l, 20*time.Millisecond)
			}
			time.Sleep(time.Second)
			before, _, _ := f.counts()
			c.wg.Wait()
			assert.Equal(t, ascending(callers), c.served)
			if watches {
				after, _, _ := f.counts()
				assert.LessOrEqual(t, after-before, callers+5, "one attempt for each turn")
				assert.Len(t, w.watchers, 1, "handed on")
				synctest.Wait()
				assert.Zero(t, w.live)
			}
		})
	}
}

// Whoever waits behind one that leaves moves up, also if that one was the first and its attempt has
// no answer yet.
func TestLeavingALine(t *testing.T) {
	bubble(t, "the first, on the wire", func(t *testing.T) {
		l := &fake{}
		n := 0
		l.onAcquire = func(ctx context.Context, token string, ttl time.Duration) (bool, error) {
			if n++; n == 1 {
				return blackhole(ctx, token, ttl)
			}
			return l.doAcquire(ctx, "k", token, ttl)
		}
		first, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		third, leave := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer leave()
		var c crowd
		start := time.Now()
		c.join(first, l, 0)
		c.join(t.Context(), l, 0)
		c.join(third, l, 0)
		c.wg.Wait()
		assert.Equal(t, time.Second, time.Since(start))
		assert.ErrorIs(t, c.errs[0], context.DeadlineExceeded)
		assert.NoError(t, c.errs[1])
		assert.ErrorIs(t, c.errs[2], context.DeadlineExceeded)
		assert.NotErrorIs(t, c.errs[2], locker.ErrHeld, "nobody has found the lock to be held")
	})
	bubble(t, "one in the middle", func(t *testing.T) {
		l := &fake{}
		unlockAfter(t, tryLock(t, l, time.Hour), 10*time.Second)
		middle, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		var c crowd
		c.join(t.Context(), l, time.Millisecond)
		c.join(middle, l, 0)
		c.join(t.Context(), l, time.Millisecond)
		c.wg.Wait()
		assert.Equal(t, []int{0, 2}, c.served)
	})
	bubble(t, "the first, whose watch goes on", func(t *testing.T) {
		l := &watched{fake: &fake{}}
		unlockAfter(t, tryLock(t, l, time.Hour), 10*time.Second)
		first, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		var c crowd
		start := time.Now()
		c.join(first, l, 0)
		c.join(t.Context(), l, 0)
		time.Sleep(5 * time.Second)
		l.mu.Lock()
		assert.Equal(t, 1, l.live, "it has ended with the context of the first")
		l.mu.Unlock()
		c.wg.Wait()
		assert.Equal(t, 10*time.Second, time.Since(start), "not woken")
		assert.NoError(t, c.errs[1])
		assert.Len(t, l.watchers, 1)
		synctest.Wait()
		assert.Zero(t, l.live)
	})
	bubble(t, "the first panics", func(t *testing.T) {
		l := &fake{}
		unlockAfter(t, tryLock(t, l, time.Hour), 10*time.Second)
		var panics atomic.Bool
		l.onAcquire = func(ctx context.Context, token string, ttl time.Duration) (bool, error) {
			if panics.Swap(false) {
				panic("boom")
			}
			return l.doAcquire(ctx, "k", token, ttl)
		}
		go func() {
			assert.Panics(t, func() { _, _ = locker.Lock(t.Context(), l, "k", time.Minute) })
		}()
		synctest.Wait()
		var c crowd
		c.join(t.Context(), l, 0)
		panics.Store(true)
		c.wg.Wait()
		assert.NoError(t, c.errs[0])
		assert.Zero(t, locker.Lines())
	})
	bubble(t, "a watch that panics is the first one's panic", func(t *testing.T) {
		l := &watched{fake: &fake{}}
		l.onWatch = func(context.Context) (<-chan struct{}, error) { time.Sleep(time.Second); panic("boom") }
		unlockAfter(t, tryLock(t, l, time.Hour), 10*time.Second)
		go func() {
			assert.Panics(t, func() { _, _ = locker.Lock(t.Context(), l, "k", time.Minute) })
		}()
		synctest.Wait()
		var c crowd
		c.join(t.Context(), l, 0)
		c.wg.Wait()
		assert.NoError(t, c.errs[0])
	})
}

// A backend's error is that of everyone in the line, at once, and costs one request.
func TestALineFailsAsAWhole(t *testing.T) {
	const callers = 100
	bubble(t, "an error of the backend", func(t *testing.T) {
		l := &fake{}
		tryLock(t, l, time.Hour)
		var c crowd
		for range callers {
			c.join(t.Context(), l, 0)
		}
		before, _, _ := l.counts()
		l.acquireBy(func(context.Context, string, time.Duration) (bool, error) { return false, errBackend })
		start := time.Now()
		c.wg.Wait()
		assert.LessOrEqual(t, time.Since(start), 50*time.Millisecond)
		for _, err := range c.errs {
			require.ErrorIs(t, err, errBackend)
			require.NotErrorIs(t, err, locker.ErrHeld)
		}
		after, _, _ := l.counts()
		assert.Equal(t, 1, after-before)
		assert.Zero(t, locker.Lines())
	})
	bubble(t, "those with WithRetry try again, one for all", func(t *testing.T) {
		l := &fake{}
		tryLock(t, l, time.Hour, locker.WithToken("first"))
		var c crowd
		for range callers {
			c.join(t.Context(), l, time.Millisecond, locker.WithRetry())
		}
		down := time.Now()
		var attempts atomic.Int64
		l.acquireBy(func(ctx context.Context, token string, ttl time.Duration) (bool, error) {
			if time.Since(down) < 10*time.Second {
				attempts.Add(1)
				time.Sleep(10 * time.Millisecond) // which others use to come
				return false, errBackend
			}
			return l.doAcquire(ctx, "k", token, ttl)
		})
		_, err := l.doRelease(t.Context(), "k", "first")
		require.NoError(t, err)
		c.wg.Wait()
		assert.ElementsMatch(t, ascending(callers), c.served)
		assert.Less(t, attempts.Load(), int64(callers*10), "each tries by itself")
	})
	for name, tooLong := range map[string]error{
		"a ttl that is not possible": locker.ErrInvalidTTL, "a token that is not possible": locker.ErrInvalidToken,
	} {
		bubble(t, name+" is only one caller's error", func(t *testing.T) {
			l := &fake{}
			unlockAfter(t, tryLock(t, l, time.Hour), 5*time.Second)
			var c crowd
			c.join(t.Context(), l, 0)
			c.join(t.Context(), l, 0)
			var failed atomic.Bool
			l.acquireBy(func(ctx context.Context, token string, ttl time.Duration) (bool, error) {
				if !failed.Swap(true) {
					return false, fmt.Errorf("%w: too long", tooLong)
				}
				return l.doAcquire(ctx, "k", token, ttl)
			})
			c.wg.Wait()
			assert.ErrorIs(t, c.errs[0], tooLong)
			assert.NoError(t, c.errs[1])
		})
	}
}

func TestLinesAreApart(t *testing.T) {
	bubble(t, "of keys and of Lockers", func(t *testing.T) {
		a, b := &fake{}, &fake{}
		tryLock(t, a, time.Hour)
		tryLock(t, b, time.Hour)
		var c crowd
		c.join(t.Context(), a, 0, locker.WithBackoff(func(int) time.Duration { return time.Hour }))
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := locker.Lock(ctx, a, "other", time.Minute)
		assert.NoError(t, err)
		b.doReleaseAll()
		_, err = locker.Lock(ctx, b, "k", time.Minute)
		assert.NoError(t, err)
		assert.Zero(t, time.Since(start))
		a.doReleaseAll()
		c.wg.Wait()
	})
	bubble(t, "of Lockers that cannot be map keys: each polls by itself", func(t *testing.T) {
		f := &fake{}
		type uncomparable struct {
			*fake
			_ func()
		}
		l := uncomparable{fake: f}
		unlockAfter(t, tryLock(t, l, time.Hour), time.Second)
		var c crowd
		for range 10 {
			c.join(t.Context(), l, 0)
		}
		n, _, _ := f.counts()
		assert.Equal(t, 11, n)
		assert.Zero(t, locker.Lines())
		c.wg.Wait()
		assert.ElementsMatch(t, ascending(10), c.served)
	})
}

// Everyone in a line counts as waiting, and no longer when it ends.
func TestALineIsObserved(t *testing.T) {
	bubble(t, "gauge", func(t *testing.T) {
		f := &fake{}
		counts := &tally{}
		l := locker.Observed(f, counts)
		unlockAfter(t, tryLock(t, f, time.Hour), 10*time.Second)
		var c crowd
		for i := range 10 {
			c.join(t.Context(), l, 0)
			assert.Equal(t, [2]int{i + 1, 0}, counts.now())
		}
		c.wg.Wait()
		synctest.Wait()
		assert.Zero(t, counts.now())
	})
}

// The token of the holder is given the lock (C5), although others wait for it.
func TestTheHolderDoesNotWaitForItself(t *testing.T) {
	bubble(t, "in a line", func(t *testing.T) {
		l := &fake{}
		holder := tryLock(t, l, time.Hour, locker.WithToken("t"))
		var c crowd
		c.join(t.Context(), l, 0)
		again, err := locker.Lock(t.Context(), l, "k", time.Hour, locker.WithToken("t"))
		require.NoError(t, err)
		again.Detach()
		require.NoError(t, holder.Unlock(t.Context()))
		c.wg.Wait()
		assert.NoError(t, c.errs[0])
	})
}

// Callers that come and go at any time exclude each other, all end, and nothing is left.
func TestStormInLines(t *testing.T) {
	for name, watches := range map[string]bool{"polling": false, "watching": true} {
		t.Run(name, func(t *testing.T) {
			f := &fake{}
			w := &watched{fake: f}
			l := locker.Locker(f)
			if watches {
				l = w
			}
			var fails, holds, turns atomic.Int32
			f.onAcquire = func(ctx context.Context, token string, ttl time.Duration) (bool, error) {
				if fails.Add(1)%50 == 0 {
					return false, errBackend
				}
				return f.doAcquire(ctx, "k", token, ttl)
			}
			var wg sync.WaitGroup
			for i := range 32 {
				wg.Go(func() {
					rng := rand.New(rand.NewPCG(uint64(i), 1))
					for range 50 {
						ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rng.IntN(20))*time.Millisecond)
						lease, err := locker.Lock(ctx, l, "k", time.Minute, locker.WithRetry())
						if err == nil {
							assert.EqualValues(t, 1, holds.Add(1))
							turns.Add(1)
							holds.Add(-1)
							assert.NoError(t, lease.Unlock(ctx))
						} else if !errors.Is(err, context.DeadlineExceeded) {
							assert.NoError(t, err)
						}
						cancel()
					}
				})
			}
			wg.Wait()
			assert.Greater(t, turns.Load(), int32(32))
			assert.Eventually(t, func() bool { return locker.Lines() == 0 }, 5*time.Second, time.Millisecond)
		})
	}
}

func (f *fake) doReleaseAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.holder)
}

// lateContext ends a moment after its deadline, as on a busy machine.
type lateContext struct {
	context.Context
	deadline time.Time
}

func (c lateContext) Deadline() (time.Time, bool) { return c.deadline, true }

// punctual is a Locker whose client fails at the deadline of the context, if that is near.
type punctual struct{ locker.Locker }

func (l punctual) Acquire(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	if d, ok := ctx.Deadline(); ok {
		time.Sleep(time.Until(d))
		return false, context.DeadlineExceeded
	}
	return l.Locker.Acquire(ctx, key, token, ttl)
}

// A client that fails at the deadline of the first of a line, before its context has ended, does not
// fail the others.
func TestPollDeadlineOfTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := punctual{plain{new(fake)}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second+time.Millisecond)
		defer cancel()
		var c crowd
		c.join(lateContext{ctx, time.Now().Add(time.Second)}, l, 0)
		c.join(t.Context(), l, 0)
		c.wg.Wait()
		require.ErrorIs(t, c.errs[0], context.DeadlineExceeded)
		require.NoError(t, c.errs[1])
		time.Sleep(time.Minute) // the cleanup
	})
}
