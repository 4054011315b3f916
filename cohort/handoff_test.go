package cohort_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/cohort"
	"github.com/golockers/locker/memory"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A release that has to extend the lock for the next holder learns that the backend has lost it.
func TestLockIsLostBeforeItsHandoff(t *testing.T) {
	inBubble(t, "", func(t *testing.T, b *faulty) {
		l := cohort.New(b)
		tenure := startTenure(t, l, 0, time.Second)
		tenure.queue = join(t.Context(), l, 1, time.Hour)
		b.steal(t)
		require.ErrorIs(t, tenure.holder.Unlock(t.Context()), locker.ErrNotHeld)
		synctest.Wait()
		tenure.queue.requireWaiting(t, "two holders")
		requireReleases(t, b.Locker, "thief")
		tenure.awaitNext(t)
		tenure.unlock(t)
	})
}

// A ttl that the backend cannot express is the waiter's own error, also at a handoff.
func TestHandoffForAnInvalidTTL(t *testing.T) {
	inBubble(t, "", func(t *testing.T, b *faulty) {
		l := cohort.New(b)
		b.limit = time.Minute
		lease := startTenure(t, l, 0, time.Second).holder
		failed := make(chan error, 1)
		go func() {
			_, err := locker.Lock(context.Background(), l, "k", time.Hour)
			failed <- err
		}()
		synctest.Wait()
		require.NoError(t, lease.Unlock(t.Context()))
		assert.ErrorIs(t, <-failed, locker.ErrInvalidTTL)
		assert.Empty(t, held(t, b.Locker))
	})
}

// An Extend whose ttl is refused changes nothing: the lock is handed on as before.
func TestHandoffAfterARefusedExtend(t *testing.T) {
	overScript(t, "", func(t *testing.T, s *scripted) {
		l := cohort.New(s)
		tenure := startTenure(t, l, 1, time.Minute)
		s.on("extend", func(context.Context, func() (bool, error)) (bool, error) { return false, locker.ErrInvalidTTL })
		require.ErrorIs(t, tenure.holder.Extend(t.Context(), time.Hour), locker.ErrInvalidTTL)
		token := held(t, s.Locker)
		tenure.passToNext(t)
		assert.Equal(t, token, held(t, s.Locker), "another tenure")
		tenure.unlock(t)
	})
}

// A holder that vanishes after its context has ended does not fail the request for the next one.
func TestPassesOverACanceledHolder(t *testing.T) {
	overScript(t, "", func(t *testing.T, s *scripted) {
		s.on("extend", func(ctx context.Context, apply func() (bool, error)) (bool, error) {
			if err := ctx.Err(); err != nil {
				return false, err
			}
			return apply()
		})
		l := cohort.New(s, cohort.WithMaxTenure(time.Minute))
		tenure := startTenure(t, l, 0, time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		tenure.queue = join(ctx, l, 1, time.Second)
		tenure.passToNext(t)
		cancel()
		tenure.queue = join(t.Context(), l, 1, time.Hour)
		token := held(t, s.Locker)
		tenure.awaitNext(t)
		assert.Equal(t, token, held(t, s.Locker), "the extension failed")
		tenure.unlock(t)
	})
}

// If the backend hangs, passing over a holder that has vanished takes a bounded time.
func TestPassesOverWhileTheBackendHangs(t *testing.T) {
	overScript(t, "", func(t *testing.T, s *scripted) {
		l := cohort.New(s, cohort.WithMaxHandoffs(0))
		tenure := startTenure(t, l, 1, time.Minute)
		s.on("release", func(ctx context.Context, _ func() (bool, error)) (bool, error) {
			s.on("release", nil)
			<-ctx.Done()
			return false, ctx.Err()
		})
		start := time.Now()
		tenure.awaitNext(t)
		assert.Equal(t, time.Minute+5*time.Second, time.Since(start))
		tenure.unlock(t)
	})
}

// While the lock is extended for the next holder, it is not free.
func TestInspectDuringAHandoff(t *testing.T) {
	overScript(t, "", func(t *testing.T, s *scripted) {
		l := cohort.New(s)
		tenure := startTenure(t, l, 0, time.Minute)
		tenure.queue = join(t.Context(), l, 1, time.Hour)
		s.once("extend", answerLate(time.Second))
		unlocked := make(chan error, 1)
		go func() { unlocked <- tenure.holder.Unlock(context.Background()) }()
		synctest.Wait()
		assert.NotEmpty(t, inspect(t, l).Token)
		require.NoError(t, <-unlocked)
		tenure.awaitNext(t)
		tenure.unlock(t)
	})
}

// An extension after the tenure's time is not shorter than its ttl.
func TestExtendAfterTheTenure(t *testing.T) {
	overQueue(t, func(t *testing.T, m *memory.Locker, inner locker.Locker, _ *counting) {
		tenure := startTenure(t, cohort.New(inner), 1, time.Minute)
		time.Sleep(30 * time.Second)
		require.NoError(t, tenure.holder.Extend(t.Context(), time.Minute))
		info, err := m.Inspect(t.Context(), "k")
		require.NoError(t, err)
		assert.Equal(t, time.Minute, info.TTL)
		tenure.passToNext(t)
		tenure.unlock(t)
	})
}

// Of several extensions without an answer the shortest counts, and no longer lock is relied on.
func TestSeveralExtensionsWithoutAnAnswer(t *testing.T) {
	extend := func(t *testing.T, l locker.Locker, token string, ttl time.Duration) error {
		t.Helper()
		_, err := l.Extend(t.Context(), "k", token, ttl)
		return err
	}
	overScript(t, "the shortest counts", func(t *testing.T, s *scripted) {
		l := cohort.New(s)
		token := startTenure(t, l, 0, time.Minute).holder.Token()
		for _, ttl := range []time.Duration{10 * time.Second, 5 * time.Second, 7 * time.Second} {
			s.once("extend", late(4*time.Second))
			require.Error(t, extend(t, l, token, ttl))
		}
		assert.Error(t, extend(t, l, token, 6*time.Second))
		assert.NoError(t, extend(t, l, token, 5*time.Second))
	})
	overScript(t, "a panic is no answer", func(t *testing.T, s *scripted) {
		l := cohort.New(s)
		token := startTenure(t, l, 0, time.Minute).holder.Token()
		s.once("extend", func(func() (bool, error)) (bool, error) { panic("backend") })
		require.Panics(t, func() { _ = extend(t, l, token, 5*time.Second) })
		assert.Error(t, extend(t, l, token, 6*time.Second))
	})
	overScript(t, "its room for others does not", func(t *testing.T, s *scripted) {
		l := cohort.New(s, cohort.WithMaxTenure(time.Minute))
		token := startTenure(t, l, 1, time.Minute).holder.Token()
		s.once("extend", late(time.Second)) // for 70 seconds
		require.ErrorIs(t, extend(t, l, token, 10*time.Second), errNoAnswer)
		time.Sleep(time.Second / 2)
		require.NoError(t, extend(t, l, token, 70*time.Second)) // for two minutes and more
		assert.Error(t, extend(t, l, token, 100*time.Second))
	})
}
