package semaphore_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/lockertest"
	"github.com/golockers/locker/memory"
	"github.com/golockers/locker/semaphore"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAcquire(t *testing.T) {
	t.Parallel()
	l := memory.New()
	s := semaphore.New(l, "imports", 2)
	first, err := s.Acquire(t.Context(), time.Minute, locker.WithOwner("first"))
	require.NoError(t, err)
	second, err := s.TryAcquire(t.Context(), time.Minute)
	require.NoError(t, err)
	assert.Equal(t, "imports", first.Key())
	assert.ElementsMatch(t, []int{1, 2}, []int{s.Permit(first), s.Permit(second)})
	info, err := l.Inspect(t.Context(), fmt.Sprintf("imports/%d", s.Permit(first)))
	require.NoError(t, err)
	assert.Equal(t, first.Token(), info.Token)
	assert.True(t, strings.HasPrefix(info.Token, "first/"), info.Token)

	_, err = s.TryAcquire(t.Context(), time.Minute)
	require.ErrorIs(t, err, locker.ErrHeld)
	assert.EqualError(t, err, `locker: try lock "imports": the lock is held by another token`)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = s.Acquire(ctx, time.Minute)
	require.ErrorIs(t, err, locker.ErrHeld)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.Equal(t, 1, strings.Count(err.Error(), "locker:"), err)

	require.NoError(t, first.Unlock(t.Context()))
	assert.Zero(t, s.Permit(first))
	require.ErrorIs(t, first.Unlock(t.Context()), locker.ErrNotHeld)
	require.NoError(t, second.Unlock(t.Context()))
}

func TestDo(t *testing.T) {
	t.Parallel()
	s := semaphore.New(memory.New(), "imports", 2)
	boom := errors.New("boom")
	err := s.Do(t.Context(), time.Minute, func(ctx context.Context) error {
		assert.Equal(t, "imports", locker.FromContext(ctx).Key())
		_, err := s.Acquire(ctx, time.Minute)
		require.ErrorIs(t, err, locker.ErrDeadlock)
		ran, err := semaphore.New(memory.New(), "imports", 1).TryDo(ctx, time.Minute, func(context.Context) error { return nil })
		assert.True(t, ran, "another semaphore")
		require.NoError(t, err)
		return boom
	})
	require.ErrorIs(t, err, boom)

	held, err := s.Acquire(t.Context(), time.Minute)
	require.NoError(t, err)
	ran, err := s.TryDo(t.Context(), time.Minute, func(context.Context) error {
		ran, err := s.TryDo(t.Context(), time.Minute, func(context.Context) error { return nil })
		assert.False(t, ran)
		return err
	})
	assert.True(t, ran)
	require.NoError(t, err)
	require.NoError(t, held.Unlock(t.Context()))
}

// Bad arguments return one clear error, and WithRetry does not retry.
func TestBadArguments(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		s    *semaphore.Semaphore
		want string
	}{
		{semaphore.New(memory.New(), "imports", 0), `semaphore: acquire "imports": 0 permits: a semaphore has 1 or more`},
		{semaphore.New(memory.New(), "imports", -1), `semaphore: acquire "imports": -1 permits: a semaphore has 1 or more`},
		{semaphore.New(nil, "imports", 1), `semaphore: acquire "imports": nil Locker`},
		{semaphore.New(memory.New(), "", 1), `locker: lock "": invalid key: empty`},
	} {
		_, err := test.s.Acquire(t.Context(), time.Minute, locker.WithRetry())
		require.EqualError(t, err, test.want)
		_, err = test.s.TryAcquire(t.Context(), time.Minute)
		require.Error(t, err)
		require.Error(t, test.s.Do(t.Context(), time.Minute, func(context.Context) error { return nil }))
		ran, err := test.s.TryDo(t.Context(), time.Minute, func(context.Context) error { return nil })
		require.Error(t, err)
		assert.False(t, ran)
	}
	_, err := semaphore.New(memory.New(), "imports", 1).Acquire(t.Context(), 0, locker.WithRetry())
	require.ErrorIs(t, err, locker.ErrInvalidTTL)
}

// A permit is kept alive, and its loss is noticed.
func TestLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := memory.New()
		s := semaphore.New(l, "imports", 1)
		lease, err := s.Acquire(t.Context(), time.Second, locker.WithKeepAlive())
		require.NoError(t, err)
		time.Sleep(time.Minute)
		require.NoError(t, lease.Err())
		_, err = locker.Break(t.Context(), l, "imports/1")
		require.NoError(t, err)
		<-lease.Lost()
		require.ErrorIs(t, lease.Unlock(t.Context()), locker.ErrNotHeld)
	})
}

// MinHold keeps only the permit that was taken.
func TestMinHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := semaphore.New(memory.New(), "imports", 2)
		nothing := func(context.Context) error { return nil }
		start := time.Now()
		for range 4 {
			require.NoError(t, s.Do(t.Context(), time.Second, nothing, locker.WithMinHold(time.Minute)))
		}
		took := time.Since(start)
		assert.GreaterOrEqual(t, took, time.Minute)
		assert.Less(t, took, 2*time.Minute, "two at a time")
	})
}

// Another process resumes a permit that was left behind.
func TestResume(t *testing.T) {
	t.Parallel()
	l := memory.New()
	s := semaphore.New(l, "imports", 3)
	var leases []*locker.Lease
	for range 3 {
		lease, err := s.Acquire(t.Context(), time.Minute)
		require.NoError(t, err)
		leases = append(leases, lease)
	}
	other := semaphore.NewLocker(l, 3)
	for _, lease := range leases {
		lease.Detach()
		permit := s.Permit(lease)
		resumed, err := locker.Resume(t.Context(), other, "imports", lease.Token(), time.Minute)
		require.NoError(t, err)
		assert.Equal(t, permit, other.Permit("imports", lease.Token()))
		require.NoError(t, resumed.Unlock(t.Context()))
		assert.Zero(t, other.Permit("imports", lease.Token()))
	}
}

// An observer gets the events of the semaphore, not those of its locks.
func TestObserved(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var got []string
	waiting := make(chan struct{}, 1)
	s := semaphore.New(locker.Observed(memory.New(), observer(func(e locker.Event) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, e.Kind.String()+" "+e.Key)
		if e.Kind == locker.Waiting {
			waiting <- struct{}{}
		}
	})), "imports", 1)
	first, err := s.Acquire(t.Context(), time.Minute)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() {
		done <- s.Do(t.Context(), time.Minute, func(context.Context) error { return nil })
	}()
	<-waiting
	require.NoError(t, first.Unlock(t.Context()))
	require.NoError(t, <-done)
	mu.Lock()
	defer mu.Unlock()
	assert.ElementsMatch(t, []string{
		"acquired imports", "waiting imports", "unlocked imports", "acquired imports", "unlocked imports",
	}, got)
}

type observer func(e locker.Event)

func (o observer) Observe(_ context.Context, e locker.Event) { o(e) }

// Different names are different semaphores, however long the names are.
func TestNames(t *testing.T) {
	t.Parallel()
	l := memory.New()
	for _, length := range []int{1, 999, 1000, 1001, 1023} {
		for _, end := range []string{"a", "b"} {
			s := semaphore.New(l, strings.Repeat("n", length)+end, 2)
			for range 2 {
				_, err := s.TryAcquire(t.Context(), time.Minute)
				require.NoError(t, err)
			}
			_, err := s.TryAcquire(t.Context(), time.Minute)
			require.ErrorIs(t, err, locker.ErrHeld)
		}
	}
	_, err := semaphore.New(l, strings.Repeat("m", 1001), 1).TryAcquire(t.Context(), time.Minute)
	require.NoError(t, err)
	for info, err := range l.List(t.Context(), "m") { // a name that looks like the lock of a longer one
		require.NoError(t, err)
		_, err = semaphore.New(l, strings.TrimSuffix(info.Key, "/1"), 1).TryAcquire(t.Context(), time.Minute)
		require.NoError(t, err)
	}
	_, err = semaphore.New(l, strings.Repeat("n", 1025), 2).Acquire(t.Context(), time.Minute)
	require.ErrorIs(t, err, locker.ErrInvalidKey)
}

// Permits that are never reached cost nothing.
func TestHugeN(t *testing.T) {
	t.Parallel()
	s := semaphore.New(memory.New(), "imports", math.MaxInt)
	for range 3 {
		lease, err := s.Acquire(t.Context(), time.Minute)
		require.NoError(t, err)
		require.Positive(t, s.Permit(lease))
	}
}

// A waiter survives a backend that fails for a while, if it asks for that, and all permits are
// usable afterwards.
func TestRetry(t *testing.T) {
	t.Parallel()
	l := lockertest.New()
	s := semaphore.New(l, "imports", 2)
	for _, op := range []lockertest.Op{lockertest.Acquire, lockertest.Wait} {
		l.Fail(op, errors.New("down"))
		_, err := s.Acquire(t.Context(), time.Minute)
		require.EqualError(t, err, `locker: lock "imports": down`)
		done := make(chan error, 1)
		go func() {
			done <- s.Do(t.Context(), time.Minute, func(context.Context) error { return nil }, locker.WithRetry())
		}()
		before := len(l.Calls())
		require.Eventually(t, func() bool { return len(l.Calls()) > before }, 30*time.Second, time.Millisecond)
		l.Fail(op, nil)
		require.NoError(t, <-done)
	}
	for range 2 {
		_, err := s.TryAcquire(t.Context(), time.Minute)
		require.NoError(t, err)
	}
}
