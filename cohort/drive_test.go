package cohort_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/cohort"
	"github.com/golockers/locker/memory"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// After a Wait without an answer its token may hold the lock, however the backend failed.
func TestWaitWithoutAnAnswer(t *testing.T) {
	overScript(t, "panic", func(t *testing.T, s *scripted) {
		l := cohort.New(s)
		s.once("wait", func(apply func() (bool, error)) (bool, error) {
			_, _ = apply()
			panic("backend")
		})
		assert.PanicsWithValue(t, "backend", func() { _, _ = l.Wait(t.Context(), "k", "t", time.Minute) })
		require.NotEmpty(t, held(t, s.Locker))
		requireReleases(t, l, "t")
		assert.Empty(t, held(t, s.Locker))
	})
	overScript(t, "a longer ttl", func(t *testing.T, s *scripted) {
		l := cohort.New(s)
		s.once("wait", func(apply func() (bool, error)) (bool, error) { return false, errNoAnswer })
		_, err := l.Wait(t.Context(), "k", "t", time.Minute)
		require.ErrorIs(t, err, errNoAnswer)
		_, err = l.Acquire(t.Context(), "k", "t", 2*time.Minute)
		assert.Error(t, err, "the first may yet arrive and shorten it")
	})
}

// A request that was impossible leaves no doubt.
func TestImpossibleRequests(t *testing.T) {
	for _, mistake := range []error{locker.ErrInvalidTTL, locker.ErrInvalidKey, locker.ErrInvalidToken} {
		overScript(t, mistake.Error(), func(t *testing.T, s *scripted) {
			l := cohort.New(s)
			refuse := func(context.Context, func() (bool, error)) (bool, error) { return false, mistake }
			s.on("acquire", refuse)
			s.on("wait", refuse)
			_, err := l.Acquire(t.Context(), "k", "a", time.Minute)
			assert.ErrorIs(t, err, mistake)
			_, err = l.Wait(t.Context(), "k", "b", time.Minute)
			assert.ErrorIs(t, err, mistake)
			assert.Zero(t, cohort.Doubts(l))
			assert.Zero(t, cohort.Entries(l))
		})
	}
}

// A ttl that the backend cannot express fails the waiter that asked for it, and no other.
func TestInvalidTTLInTheQueue(t *testing.T) {
	inBubble(t, "it waits", func(t *testing.T, b *faulty) {
		l := cohort.New(b)
		b.limit = time.Minute
		other := mustLock(t, l, time.Minute)
		tooLong := join(t.Context(), l, 1, time.Hour)
		queue := join(t.Context(), l, 2, time.Minute)
		time.Sleep(time.Second) // what is left of the tenure is too short for the others
		require.NoError(t, other.Unlock(t.Context()))
		tooLong.requireGone(t)
		for range 2 {
			lease := queue.next(t)
			assert.Equal(t, time.Minute, time.Until(lease.Deadline()))
			require.NoError(t, lease.Unlock(t.Context()))
		}
	})
	inBubble(t, "it has left", func(t *testing.T, b *faulty) {
		l := cohort.New(b)
		b.limit = time.Minute
		other := mustLock(t, l, time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		tooLong := join(ctx, l, 1, time.Hour)
		queue := join(t.Context(), l, 2, time.Minute)
		b.onWait = func() { time.Sleep(time.Second) }
		require.NoError(t, other.Unlock(t.Context()))
		synctest.Wait()
		cancel()
		tooLong.requireGone(t)
		queue.serveAll(t, 0)
		assert.Zero(t, cohort.Entries(l))
	})
}

// A waiter that leaves the queue of the process does not cost the others their place in the
// backend's.
func TestLeavesOthersTheirPlace(t *testing.T) {
	overQueue(t, func(t *testing.T, m *memory.Locker, inner locker.Locker, _ *counting) {
		l := cohort.New(inner)
		holder := mustLock(t, m, time.Minute)
		first, leave := context.WithCancel(t.Context())
		driver := join(first, l, 1, time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		leaves := join(ctx, l, 1, time.Minute)
		stays := join(t.Context(), l, 1, time.Minute)
		leave()
		driver.requireGone(t)
		synctest.Wait() // and the two are a cohort's drive now
		other := join(t.Context(), m, 1, time.Minute)
		cancel()
		leaves.requireGone(t)
		synctest.Wait()
		require.NoError(t, holder.Unlock(t.Context()))
		lease := stays.next(t)
		other.requireWaiting(t, "two holders")
		require.NoError(t, lease.Unlock(t.Context()))
		require.NoError(t, other.next(t).Unlock(t.Context()))
	})
}

// Callers that come when a drive has been abandoned get a drive of their own, and its error.
func TestComesAfterAnAbandonedDrive(t *testing.T) {
	overScript(t, "", func(t *testing.T, s *scripted) {
		l := cohort.New(s)
		other := mustLock(t, s.Locker, time.Hour)
		first, leave := context.WithCancel(t.Context())
		driver := join(first, l, 1, time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		second := join(ctx, l, 1, time.Minute)
		s.once("wait", answerLate(time.Second))
		leave()
		driver.requireGone(t)
		synctest.Wait()
		cancel() // which abandons the drive
		second.requireGone(t)
		queue := join(t.Context(), l, 2, time.Minute)
		s.once("wait", func(func() (bool, error)) (bool, error) { time.Sleep(time.Second); return false, errNoAnswer })
		time.Sleep(time.Second)
		synctest.Wait()
		queue.requireWaiting(t, "they get the error of the drive before")
		queue.requireGone(t)
		require.NoError(t, other.Unlock(t.Context()))
	})
	overScript(t, "none was under way", func(t *testing.T, s *scripted) {
		l := cohort.New(s, cohort.WithMaxHandoffs(0))
		tenure := startTenure(t, l, 0, time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		gone := join(ctx, l, 1, time.Minute)
		cancel() // which abandons nothing
		gone.requireGone(t)
		queue := join(t.Context(), l, 2, time.Minute)
		s.once("wait", requestLost)
		tenure.unlock(t)
		queue.requireGone(t)
	})
}

// A waiter that comes while the first one asks the backend is served when that one vanishes.
func TestFirstHolderVanishes(t *testing.T) {
	overScript(t, "it waits meanwhile", func(t *testing.T, s *scripted) {
		l := cohort.New(s)
		s.once("wait", answerLate(time.Second))
		go func() { _, _ = l.Wait(context.Background(), "k", "vanishes", time.Minute) }()
		synctest.Wait()
		start := time.Now()
		lease := join(t.Context(), l, 1, time.Minute).next(t)
		assert.Equal(t, time.Minute, time.Since(start))
		require.NoError(t, lease.Unlock(t.Context()))
	})
	overScript(t, "its first Acquire had no answer", func(t *testing.T, s *scripted) {
		l := cohort.New(s)
		s.once("acquire", requestLost)
		_, err := l.Acquire(t.Context(), "k", "vanishes", time.Minute)
		require.ErrorIs(t, err, errNoAnswer)
		mustAcquire(t, l, "vanishes", time.Second)
		start := time.Now()
		lease := join(t.Context(), l, 1, time.Minute).next(t)
		assert.Equal(t, time.Second, time.Since(start))
		require.NoError(t, lease.Unlock(t.Context()))
	})
	overScript(t, "no others wait", func(t *testing.T, s *scripted) {
		l := cohort.New(s)
		mustAcquire(t, l, "vanishes", 12*time.Second)
		time.Sleep(17 * time.Second)
		synctest.Wait()
		assert.Zero(t, cohort.Entries(l))
	})
}

// A doubt lasts for as long as a request that may end it, and no longer.
func TestDoubtDuringARequest(t *testing.T) {
	overScript(t, "", func(t *testing.T, s *scripted) {
		l := cohort.New(s)
		s.once("acquire", requestLost)
		_, err := l.Acquire(t.Context(), "k", "t", time.Second)
		require.ErrorIs(t, err, errNoAnswer)
		other := mustLock(t, s.Locker, time.Minute)
		s.once("acquire", answerLate(3*time.Second))
		ok, err := l.Acquire(t.Context(), "k", "t", time.Second)
		require.NoError(t, err)
		assert.False(t, ok)
		time.Sleep(5 * time.Second)
		assert.Zero(t, cohort.Doubts(l))
		assert.Zero(t, cohort.Entries(l))
		require.NoError(t, other.Unlock(t.Context()))
	})
}

// Private tokens are no longer than tokens may be, and none is used for two tenures.
func TestPrivateTokens(t *testing.T) {
	overQueue(t, func(t *testing.T, m *memory.Locker, inner locker.Locker, _ *counting) {
		token := strings.Repeat("x", 1024)
		seen := map[string]bool{}
		for _, opts := range [][]cohort.Option{nil, {cohort.WithOwner("web")}} {
			l := cohort.New(inner, opts...)
			for _, lock := range []func(context.Context, locker.Locker, string, time.Duration,
				...locker.Option) (*locker.Lease, error){locker.Lock, locker.TryLock} {
				lease, err := lock(t.Context(), l, "k", time.Minute, locker.WithToken(token))
				require.NoError(t, err)
				private := held(t, m)
				assert.LessOrEqual(t, len(private), 1024)
				assert.False(t, seen[private], "it has been used")
				seen[private] = true
				require.NoError(t, lease.Unlock(t.Context()))
			}
		}
	})
}
