package cohort_test

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/cohort"
	"github.com/golockers/locker/memory"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// faulty is a backend with a queue whose requests a test can observe and break.
type faulty struct {
	*memory.Locker
	limit      time.Duration // the longest ttl that it can express; 0: any
	onWait     func()
	late       time.Duration // how long a grant is on the way
	leaving    time.Duration // how long it takes to leave the queue
	onExtend   func(ttl time.Duration)
	onExtended func()
	onRelease  func() error
	onFence    func()
	holder     atomic.Value // the token that Wait granted the lock to last
	expires    atomic.Value // when that hold does
	acquires   atomic.Int64
}

func (f *faulty) Acquire(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	f.acquires.Add(1)
	return f.Locker.Acquire(ctx, key, token, ttl)
}

func (f *faulty) Fence(ctx context.Context, key, token string) (uint64, bool, error) {
	n, ok, err := f.Locker.Fence(ctx, key, token)
	if f.onFence != nil {
		f.onFence()
	}
	return n, ok, err
}

func (f *faulty) tooLong(ttl time.Duration) bool { return f.limit > 0 && ttl > f.limit }

func (f *faulty) Wait(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
	if f.onWait != nil {
		f.onWait()
	}
	if f.tooLong(ttl) {
		return time.Time{}, locker.ErrInvalidTTL
	}
	deadline, err := f.Locker.Wait(ctx, key, token, ttl)
	if err == nil {
		f.holder.Store(token)
		f.expires.Store(deadline)
		time.Sleep(f.late)
	} else {
		time.Sleep(f.leaving)
	}
	return deadline, err
}

func (f *faulty) Extend(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	if f.onExtend != nil {
		f.onExtend(ttl)
	}
	if f.tooLong(ttl) {
		return false, locker.ErrInvalidTTL
	}
	extended, err := f.Locker.Extend(ctx, key, token, ttl)
	if f.onExtended != nil {
		f.onExtended()
	}
	return extended, err
}

func (f *faulty) Release(ctx context.Context, key, token string) (bool, error) {
	if f.onRelease != nil {
		if err := f.onRelease(); err != nil {
			return false, err
		}
	}
	return f.Locker.Release(ctx, key, token)
}

// steal gives the lock of "k" to another process, as a backend that has lost its data may do.
func (f *faulty) steal(t *testing.T) {
	t.Helper()
	ok, err := f.Locker.Release(t.Context(), "k", f.holder.Load().(string))
	require.NoError(t, err)
	require.True(t, ok)
	ok, err = f.Locker.Acquire(t.Context(), "k", "thief", time.Hour)
	require.NoError(t, err)
	require.True(t, ok)
}

// inBubble runs f in a bubble over a faulty backend.
func inBubble(t *testing.T, name string, f func(t *testing.T, b *faulty)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f(t, &faulty{Locker: memory.New()})
			time.Sleep(2 * time.Minute)
		})
	})
}

func TestGrantsNothingThatTheBackendHasLost(t *testing.T) {
	for op, notice := range map[string]func(*locker.Lease) error{
		"extend": func(lease *locker.Lease) error { return lease.Extend(context.Background(), time.Minute) },
		"fence":  func(lease *locker.Lease) error { _, err := lease.Fence(context.Background()); return err },
	} {
		inBubble(t, op, func(t *testing.T, b *faulty) {
			l := cohort.New(b, cohort.WithMaxTenure(30*time.Second))
			tenure := startTenure(t, l, 1, time.Second)
			b.steal(t)
			require.ErrorIs(t, notice(tenure.holder), locker.ErrNotHeld)
			time.Sleep(time.Minute)
			tenure.queue.requireWaiting(t, "two holders: the thief and the next here")
			_, err := b.Locker.Release(t.Context(), "k", "thief")
			require.NoError(t, err)
			tenure.awaitNext(t)
			tenure.unlock(t)
			assert.Zero(t, cohort.Entries(l))
		})
	}
}

// An Extend that a release overtakes must not shorten the lock of the next holder.
func TestExtendOvertakenByRelease(t *testing.T) {
	inBubble(t, "", func(t *testing.T, b *faulty) {
		l := cohort.New(b, cohort.WithMaxTenure(10*time.Second))
		tenure := startTenure(t, l, 0, 5*time.Second)
		tenure.queue = join(t.Context(), l, 1, time.Hour)
		token := tenure.holder.Token()
		extended := make(chan bool, 1)
		b.onExtend = func(time.Duration) { time.Sleep(time.Second) }
		go func() {
			ok, _ := l.Extend(t.Context(), "k", token, 20*time.Second)
			extended <- ok
		}()
		synctest.Wait()
		b.onExtend = nil
		tenure.passToNext(t)
		assert.False(t, <-extended)
		for range 60 {
			time.Sleep(time.Minute - time.Second)
			ok, err := b.Acquire(t.Context(), "k", "other", time.Second)
			require.NoError(t, err)
			require.False(t, ok, "two holders")
		}
		tenure.unlock(t)
	})
}

// Every waiter asks for the longest ttl, so an extension leaves none of them its ttl in full.
func TestLargestTTL(t *testing.T) {
	b := &faulty{Locker: memory.New()}
	var extensions atomic.Int64
	b.onExtend = func(time.Duration) { extensions.Add(1) }
	l := cohort.New(b, cohort.WithMaxTenure(time.Minute))
	const n = 4
	first := mustLock(t, l, time.Minute)
	var wg sync.WaitGroup
	var waiting atomic.Int64
	for range n {
		wg.Go(func() {
			waiting.Add(1)
			assert.NoError(t, mustLock(t, l, math.MaxInt64).Unlock(context.Background()))
		})
	}
	require.Eventually(t, func() bool { return waiting.Load() == n }, time.Minute, time.Millisecond)
	require.NoError(t, first.Unlock(t.Context()))
	wg.Wait()
	assert.LessOrEqual(t, extensions.Load(), int64(n))
}

// quietly is a context whose end only Err reports.
type quietly struct {
	context.Context
	ended atomic.Bool
}

func (q *quietly) Err() error {
	if q.ended.Load() {
		return context.Canceled
	}
	return nil
}

// A grant that crosses with leaving is given up on the backend, even if the first request for that is lost.
func TestGrantToALeaverIsNotLost(t *testing.T) {
	inBubble(t, "", func(t *testing.T, b *faulty) {
		l := cohort.New(b)
		lease := startTenure(t, l, 0, time.Hour).holder
		ctx := &quietly{Context: context.Background()}
		left := make(chan error)
		go func() {
			_, err := l.Wait(ctx, "k", "leaver", time.Hour)
			left <- err
		}()
		synctest.Wait()
		ctx.ended.Store(true)
		var requests atomic.Int64
		b.onRelease = func() error {
			if requests.Add(1) <= 3 {
				return errors.New("down")
			}
			return nil
		}
		require.NoError(t, lease.Unlock(t.Context()), "it is handed on")
		err := <-left
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, locker.ErrHeld)
		time.Sleep(time.Second)
		assert.EqualValues(t, 4, requests.Load())
		_, err = locker.TryLock(t.Context(), b, "k", time.Second)
		assert.NoError(t, err)
	})
}

// If a program recovers the panic of a backend, the other callers do not wait forever.
func TestBackendPanics(t *testing.T) {
	panicOnce := func() func() {
		done := false
		return func() {
			if !done {
				done = true
				panic("backend")
			}
		}
	}
	inBubble(t, "while it waits", func(t *testing.T, b *faulty) {
		l := cohort.New(b)
		b.onWait = panicOnce()
		assert.PanicsWithValue(t, "backend", func() { mustLock(t, l, time.Minute) })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		lease, err := locker.Lock(ctx, l, "k", time.Minute)
		require.NoError(t, err)
		assert.NoError(t, lease.Unlock(ctx))
	})
	inBubble(t, "while it gives up a tenure", func(t *testing.T, b *faulty) {
		l := cohort.New(b, cohort.WithMaxHandoffs(0))
		tenure := startTenure(t, l, 1, time.Minute)
		fail := panicOnce()
		b.onRelease = func() error { fail(); return nil }
		assert.PanicsWithValue(t, "backend", func() { _ = tenure.holder.Unlock(t.Context()) })
		tenure.awaitNext(t) // when the ttl of what was not released has passed
		tenure.unlock(t)
	})
	inBubble(t, "while it extends", func(t *testing.T, b *faulty) {
		l := cohort.New(b)
		tenure := startTenure(t, l, 1, time.Minute)
		fail := panicOnce()
		b.onExtend = func(time.Duration) { fail() }
		assert.PanicsWithValue(t, "backend", func() { _ = tenure.holder.Extend(t.Context(), time.Hour) })
		tenure.passToNext(t)
		tenure.unlock(t)
	})
}

// A token whose release had an unknown outcome can be used again once the lock is certainly gone.
func TestTokenAfterAReleaseOfUnknownOutcome(t *testing.T) {
	inBubble(t, "", func(t *testing.T, b *faulty) {
		l := cohort.New(b)
		lease := startTenure(t, l, 0, time.Minute).holder
		down := errors.New("down")
		b.onRelease = func() error { return down }
		require.ErrorIs(t, lease.Unlock(t.Context()), down)
		b.onRelease = nil
		_, err := l.Acquire(t.Context(), "k", lease.Token(), time.Minute)
		require.Error(t, err)
		time.Sleep(2 * time.Minute)
		again, err := locker.TryLock(t.Context(), l, "k", time.Minute, locker.WithToken(lease.Token()))
		require.NoError(t, err)
		require.NoError(t, again.Unlock(t.Context()))
		assert.Zero(t, cohort.Entries(l))
	})
}

// A holder whose ttl ends while its extension is under way has lost the lock, whatever the reply.
func TestExpiresDuringItsExtension(t *testing.T) {
	inBubble(t, "", func(t *testing.T, b *faulty) {
		l := cohort.New(b, cohort.WithMaxTenure(10*time.Second))
		tenure := startTenure(t, l, 1, time.Second)
		token := tenure.holder.Token()
		b.onExtended = func() { time.Sleep(1500 * time.Millisecond) }
		extended := make(chan bool)
		go func() {
			ok, _ := l.Extend(context.Background(), "k", token, time.Minute)
			extended <- ok
		}()
		tenure.awaitNext(t)
		assert.False(t, <-extended, "two holders")
		tenure.unlock(t)
	})
}

// The holder's ttl may end while the lock is extended for the next one: the lock is handed on only once.
func TestHandsOnOnce(t *testing.T) {
	inBubble(t, "", func(t *testing.T, b *faulty) {
		l := cohort.New(b, cohort.WithMaxTenure(10*time.Second))
		tenure := startTenure(t, l, 0, time.Second)
		tenure.queue = join(t.Context(), l, 1, time.Hour)
		b.onExtend = func(time.Duration) { time.Sleep(2 * time.Second) }
		tenure.passToNext(t)
		assert.Equal(t, time.Hour, time.Until(tenure.holder.Deadline()))
		time.Sleep(10 * time.Second)
		ok, err := b.Acquire(t.Context(), "k", "other", time.Second)
		require.NoError(t, err)
		assert.False(t, ok, "two holders")
		tenure.unlock(t)
	})
}

// A number that is minted while the lock passes on could be greater than the next holder's.
func TestFenceWhileTheLockPassesOn(t *testing.T) {
	inBubble(t, "", func(t *testing.T, b *faulty) {
		l := cohort.New(b)
		tenure := startTenure(t, l, 1, time.Minute)
		b.onFence = func() {
			b.onFence = nil
			tenure.passToNext(t)
		}
		_, ok, err := l.Fence(t.Context(), "k", tenure.holder.Token())
		require.NoError(t, err)
		assert.False(t, ok)

		token := tenure.holder.Token()
		b.onFence = func() { // while it is being released
			b.onRelease = func() error { time.Sleep(time.Second); return nil }
			go tenure.unlock(t)
			synctest.Wait()
		}
		_, ok, err = l.Fence(t.Context(), "k", token)
		require.NoError(t, err)
		assert.False(t, ok)
	})
}

// A deadline is that of the backend's lock, even if the reply took longer than a tenure lasts.
func TestLateGrant(t *testing.T) {
	inBubble(t, "", func(t *testing.T, b *faulty) {
		l := cohort.New(b)
		b.late = time.Second
		lease := startTenure(t, l, 0, time.Minute).holder
		assert.False(t, lease.Deadline().After(b.expires.Load().(time.Time)))
		assert.NoError(t, lease.Unlock(t.Context()))
	})
}

// A ttl that the backend can just express leaves no room for a tenure.
func TestTTLAtTheLimit(t *testing.T) {
	inBubble(t, "", func(t *testing.T, b *faulty) {
		l := cohort.New(b)
		b.limit = time.Minute
		first := mustLock(t, l, time.Minute)
		queue := join(t.Context(), l, 5, time.Minute)
		require.NoError(t, first.Unlock(t.Context()))
		queue.serveAll(t, 0)
		tenure := startTenure(t, l, 1, time.Second)
		assert.NoError(t, tenure.holder.Extend(t.Context(), time.Minute))
		assert.Equal(t, time.Minute, time.Until(tenure.holder.Deadline()))
		tenure.passToNext(t)
		tenure.unlock(t)
	})
}

// A holder that shortened its lock and vanished is passed over when that ends.
func TestPassesOverAShortenedHolder(t *testing.T) {
	inBubble(t, "", func(t *testing.T, b *faulty) {
		l := cohort.New(b)
		tenure := startTenure(t, l, 1, time.Hour)
		require.NoError(t, tenure.holder.Extend(t.Context(), time.Second))
		start := time.Now()
		tenure.awaitNext(t)
		assert.Equal(t, time.Second, time.Since(start))
		tenure.unlock(t)
	})
}

// One extension leaves time for the next holders as well.
func TestExtendsForTheTenure(t *testing.T) {
	inBubble(t, "", func(t *testing.T, b *faulty) {
		l := cohort.New(b, cohort.WithMaxTenure(time.Minute))
		tenure := startTenure(t, l, 0, time.Second)
		queue := join(t.Context(), l, 5, time.Hour)
		extensions := 0
		b.onExtend = func(time.Duration) { extensions++ }
		tenure.unlock(t)
		queue.serveAll(t, time.Second)
		assert.Equal(t, 1, extensions)
	})
}

// While a drive that no caller needs any more is on its way back, TryLock asks the backend. Once others have come
// and have a tenure, it does not.
func TestAbandonedDrive(t *testing.T) {
	inBubble(t, "", func(t *testing.T, b *faulty) {
		l := cohort.New(b)
		other := mustLock(t, b.Locker, time.Minute)
		first, leave := context.WithCancel(t.Context())
		driver := join(first, l, 1, time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		rest := join(ctx, l, 2, time.Minute)
		leave()
		driver.requireGone(t)
		synctest.Wait() // and the two are a cohort's drive now
		b.leaving = time.Second
		cancel()
		rest.requireGone(t)
		synctest.Wait()
		require.Equal(t, 1, cohort.Entries(l))
		require.NoError(t, other.Unlock(t.Context()))
		lease, err := locker.TryLock(t.Context(), l, "k", time.Minute)
		require.NoError(t, err, "the lock is free")

		queue := join(t.Context(), l, 2, time.Minute)
		time.Sleep(2 * time.Second)
		require.NoError(t, lease.Unlock(t.Context()))
		require.NoError(t, queue.next(t).Unlock(t.Context()))
		asked := b.acquires.Load()
		_, err = locker.TryLock(t.Context(), l, "k", time.Minute)
		assert.ErrorIs(t, err, locker.ErrHeld)
		assert.Equal(t, asked, b.acquires.Load())
		require.NoError(t, queue.next(t).Unlock(t.Context()))
	})
}
