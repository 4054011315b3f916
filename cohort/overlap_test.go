package cohort_test

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/cohort"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// answerLate carries a request out at once and answers after d.
func answerLate(d time.Duration) func(apply func() (bool, error)) (bool, error) {
	return func(apply func() (bool, error)) (bool, error) {
		defer time.Sleep(d)
		return apply()
	}
}

// arriveLate carries a request out after d, and answers then.
func arriveLate(d time.Duration) func(apply func() (bool, error)) (bool, error) {
	return func(apply func() (bool, error)) (bool, error) {
		time.Sleep(d)
		return apply()
	}
}

// mustAcquire takes the lock of "k" with one attempt.
func mustAcquire(t *testing.T, l locker.Locker, token string, ttl time.Duration) {
	t.Helper()
	ok, err := l.Acquire(t.Context(), "k", token, ttl)
	require.NoError(t, err)
	require.True(t, ok)
}

// requireReleases releases the lock of "k", which token holds.
func requireReleases(t *testing.T, l locker.Locker, token string) {
	t.Helper()
	released, err := l.Release(t.Context(), "k", token)
	require.NoError(t, err)
	require.True(t, released)
}

// Requests with one token go one at a time. One that waits for its turn ends with its context.
func TestRequestsTakeTurns(t *testing.T) {
	overScript(t, "", func(t *testing.T, s *scripted) {
		l := cohort.New(s)
		mustAcquire(t, l, "t", time.Minute)
		s.once("extend", answerLate(2*time.Second))
		start, first := time.Now(), make(chan bool, 1)
		go func() {
			ok, _ := l.Extend(context.Background(), "k", "t", 2*time.Minute)
			first <- ok
		}()
		synctest.Wait()
		for _, op := range []func(context.Context, string, string, time.Duration) (bool, error){l.Extend, l.Acquire} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
			defer cancel()
			_, err := op(ctx, "k", "t", 3*time.Minute)
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}
		require.Empty(t, first)
		ok, err := l.Extend(t.Context(), "k", "t", 3*time.Minute)
		require.NoError(t, err)
		assert.True(t, ok)
		assert.Equal(t, 2*time.Second, time.Since(start))
		assert.True(t, <-first)
		requireReleases(t, l, "t")
	})
}

// While a release is under way, an operation with its token waits for the answer.
func TestOperationDuringARelease(t *testing.T) {
	for name, script := range map[string]func(func() (bool, error)) (bool, error){
		"released":  answerLate(time.Second),
		"no answer": func(func() (bool, error)) (bool, error) { time.Sleep(time.Second); return false, errNoAnswer },
	} {
		overScript(t, name, func(t *testing.T, s *scripted) {
			l := cohort.New(s)
			mustAcquire(t, l, "t", time.Minute)
			s.once("release", script)
			start := time.Now()
			go func() { _, _ = l.Release(context.Background(), "k", "t") }()
			synctest.Wait()
			ok, err := l.Extend(t.Context(), "k", "t", time.Minute)
			require.NoError(t, err)
			assert.Equal(t, time.Second, time.Since(start))
			assert.Equal(t, name == "no answer", ok)
		})
	}
}

// A release that panics is one without an answer, and can be repeated.
func TestReleaseThatPanics(t *testing.T) {
	overScript(t, "", func(t *testing.T, s *scripted) {
		l := cohort.New(s)
		mustAcquire(t, l, "t", time.Minute)
		s.once("release", func(func() (bool, error)) (bool, error) { panic("backend") })
		assert.Panics(t, func() { _, _ = l.Release(t.Context(), "k", "t") })
		requireReleases(t, l, "t")
		assert.Empty(t, held(t, s.Locker))
	})
}

// Attempts wait for one release after the other.
func TestAcquireDuringReleases(t *testing.T) {
	overScript(t, "", func(t *testing.T, s *scripted) {
		l := cohort.New(s)
		s.once("acquire", requestLost)
		_, err := l.Acquire(t.Context(), "k", "in doubt", time.Hour)
		require.ErrorIs(t, err, errNoAnswer)
		start := time.Now()
		mustAcquire(t, l, "0", time.Minute)
		for i := range 3 {
			s.once("release", answerLate(time.Second))
			go func() { _, _ = l.Release(context.Background(), "k", strconv.Itoa(i)) }()
			synctest.Wait()
			mustAcquire(t, l, strconv.Itoa(i+1), time.Minute)
		}
		assert.Equal(t, 3*time.Second, time.Since(start))
		requireReleases(t, l, "3")
	})
}

// After a release without an answer the backend knows whether the token still holds the lock.
func TestExtendAfterAReleaseWithoutAnAnswer(t *testing.T) {
	overScript(t, "released", func(t *testing.T, s *scripted) {
		l := cohort.New(s, cohort.WithMaxTenure(time.Minute))
		mustAcquire(t, l, "t", time.Minute)
		s.once("release", answerLost)
		_, err := l.Release(t.Context(), "k", "t")
		require.ErrorIs(t, err, errNoAnswer)
		ok, err := l.Extend(t.Context(), "k", "t", 30*time.Second)
		require.NoError(t, err)
		assert.False(t, ok)
	})
	overScript(t, "not released", func(t *testing.T, s *scripted) {
		l := cohort.New(s)
		mustAcquire(t, l, "t", time.Minute)
		s.once("release", requestLost)
		_, err := l.Release(t.Context(), "k", "t")
		require.ErrorIs(t, err, errNoAnswer)
		_, ok, err := l.Fence(t.Context(), "k", "t")
		require.NoError(t, err)
		assert.True(t, ok)
	})
	overScript(t, "it arrives late", func(t *testing.T, s *scripted) {
		l := cohort.New(s)
		mustAcquire(t, l, "t", time.Minute)
		s.once("release", late(5*time.Second))
		_, err := l.Release(t.Context(), "k", "t")
		require.ErrorIs(t, err, errNoAnswer)
		ok, err := l.Extend(t.Context(), "k", "t", time.Minute)
		require.NoError(t, err)
		require.True(t, ok)
		queue := join(t.Context(), l, 1, time.Minute)
		requireReleases(t, l, "t")
		next := queue.next(t)
		s.stays(t, 10*time.Second)
		require.NoError(t, next.Unlock(t.Context()))
	})
	overScript(t, "it arrives late, lingering", func(t *testing.T, s *scripted) {
		l := lingering(s)
		mustAcquire(t, l, "t", time.Minute)
		_, err := locker.TryLock(t.Context(), s.Locker, "k", time.Minute) // now it is wanted
		require.ErrorIs(t, err, locker.ErrHeld)
		s.once("release", late(5*time.Second))
		_, err = l.Release(t.Context(), "k", "t")
		require.ErrorIs(t, err, errNoAnswer)
		ok, err := l.Extend(t.Context(), "k", "t", time.Minute)
		require.NoError(t, err)
		require.True(t, ok)
		requireReleases(t, l, "t")
		assert.Empty(t, held(t, s.Locker), "it lingers, and the first release may yet arrive")
	})
}

// An Acquire by the holder that a release overtakes may take the lock again. Its caller can then
// release it.
func TestAcquireOvertakenByRelease(t *testing.T) {
	for name, answer := range map[string]error{"answered": nil, "no answer": errNoAnswer} {
		for _, took := range []time.Duration{0, 3 * time.Second} { // the release, from its arrival to its answer
			overScript(t, name+", "+took.String(), func(t *testing.T, s *scripted) {
				l := cohort.New(s)
				mustAcquire(t, l, "t", time.Minute)
				s.once("acquire", func(apply func() (bool, error)) (bool, error) {
					time.Sleep(2 * time.Second)
					ok, _ := apply()
					return ok && answer == nil, answer
				})
				acquired := make(chan error, 1)
				go func() {
					ok, err := l.Acquire(context.Background(), "k", "t", time.Minute)
					assert.False(t, ok)
					acquired <- err
				}()
				synctest.Wait()
				s.once("release", answerLate(took))
				requireReleases(t, l, "t")
				assert.Error(t, <-acquired, "it has the lock")
				synctest.Wait()
				require.NotEmpty(t, held(t, s.Locker))
				requireReleases(t, l, "t")
				assert.Empty(t, held(t, s.Locker))
				assert.Zero(t, cohort.Entries(l))
			})
		}
	}
}

// The same, if the lock was passed over the holder before.
func TestAcquireOvertakenByExpiry(t *testing.T) {
	overScript(t, "", func(t *testing.T, s *scripted) {
		l := cohort.New(s)
		mustAcquire(t, l, "t", time.Second)
		queue := join(t.Context(), l, 1, time.Minute)
		s.once("acquire", arriveLate(2*time.Second))
		acquired := make(chan error, 1)
		go func() {
			_, err := l.Acquire(context.Background(), "k", "t", time.Minute)
			acquired <- err
		}()
		require.NoError(t, queue.next(t).Unlock(t.Context()))
		assert.Error(t, <-acquired, "it has the lock")
		require.NotEmpty(t, held(t, s.Locker))
		requireReleases(t, l, "t")
		assert.Empty(t, held(t, s.Locker))
	})
}

// A Wait that comes while an Acquire is under way goes behind it, whatever becomes of that.
func TestWaitDuringAnAcquire(t *testing.T) {
	for name, c := range map[string]struct {
		ok  bool
		err error
	}{"acquired": {true, nil}, "refused": {false, nil}, "no answer": {false, errNoAnswer}} {
		overScript(t, name, func(t *testing.T, s *scripted) {
			l := cohort.New(s)
			s.once("acquire", func(apply func() (bool, error)) (bool, error) {
				time.Sleep(time.Second)
				if c.ok {
					return apply()
				}
				return false, c.err
			})
			start := time.Now()
			go func() {
				if ok, _ := l.Acquire(context.Background(), "k", "t", time.Minute); ok {
					_, _ = l.Release(context.Background(), "k", "t")
				}
			}()
			synctest.Wait()
			queue := join(t.Context(), l, 1, time.Minute)
			queue.requireWaiting(t, "it asks the backend as well")
			lease := queue.next(t)
			assert.Equal(t, time.Second, time.Since(start))
			require.NoError(t, lease.Unlock(t.Context()))
		})
	}
}

// A holder keeps its lock if its ttl ends during an extension that succeeds, and loses it if the
// extension fails. In both cases a waiter has come and gone, which has set a timer.
func TestExtensionAnsweredAfterTheTTL(t *testing.T) {
	comeAndGo := func(t *testing.T, l locker.Locker) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		gone := join(ctx, l, 1, time.Minute)
		cancel()
		gone.requireGone(t)
	}
	overScript(t, "extended", func(t *testing.T, s *scripted) {
		l := cohort.New(s)
		mustAcquire(t, l, "t", time.Second)
		comeAndGo(t, l)
		s.once("extend", answerLate(2*time.Second))
		ok, err := l.Extend(t.Context(), "k", "t", time.Minute)
		require.NoError(t, err)
		require.True(t, ok)
		s.stays(t, 10*time.Second)
		requireReleases(t, l, "t")
	})
	overScript(t, "no answer", func(t *testing.T, s *scripted) {
		l := cohort.New(s)
		mustAcquire(t, l, "t", 10*time.Second)
		comeAndGo(t, l)
		time.Sleep(9 * time.Second)
		s.once("extend", func(func() (bool, error)) (bool, error) {
			time.Sleep(3 * time.Second)
			return false, errNoAnswer
		})
		_, err := l.Extend(t.Context(), "k", "t", 10*time.Second)
		require.ErrorIs(t, err, errNoAnswer)
		time.Sleep(time.Minute)
		assert.Zero(t, cohort.Entries(l))
	})
	overScript(t, "no extension", func(t *testing.T, s *scripted) {
		l := cohort.New(s)
		mustAcquire(t, l, "t", time.Second)
		comeAndGo(t, l)
		s.on("release", func(_ context.Context, apply func() (bool, error)) (bool, error) {
			assert.Fail(t, "the backend's lock has ended by itself")
			return apply()
		})
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Zero(t, cohort.Entries(l))
		s.on("release", nil)
	})
}

// A holder that shortens its lock and vanishes is passed over when that ends, even if the request
// has no answer by then.
func TestPassesOverWithoutAnAnswer(t *testing.T) {
	for name, script := range map[string]func(func() (bool, error)) (bool, error){
		"lost": answerLost, "late": answerLate(5 * time.Second),
	} {
		overScript(t, name, func(t *testing.T, s *scripted) {
			l := cohort.New(s)
			tenure := startTenure(t, l, 1, time.Hour)
			s.once("extend", script)
			start := time.Now()
			go func() { _, _ = l.Extend(context.Background(), "k", tenure.holder.Token(), time.Second) }()
			synctest.Wait()
			tenure.awaitNext(t)
			assert.LessOrEqual(t, time.Since(start), time.Second+50*time.Millisecond) // it is asked for MaxTenure longer
			tenure.unlock(t)
		})
	}
}

// An Acquire that arrives late may hold the lock on the backend for longer than its caller thinks.
// A Release after the ttl still frees it.
func TestReleaseOfALateAcquire(t *testing.T) {
	const ttl = 200 * time.Millisecond
	overScript(t, "acquire", func(t *testing.T, s *scripted) {
		l := cohort.New(s)
		s.once("acquire", arriveLate(ttl+ttl/2))
		mustAcquire(t, l, "t", ttl)
		require.NotEmpty(t, held(t, s.Locker))
		requireReleases(t, l, "t")
		assert.Empty(t, held(t, s.Locker))
	})
	overScript(t, "wait", func(t *testing.T, s *scripted) {
		l := cohort.New(s)
		s.once("acquire", requestLost)
		_, err := l.Acquire(t.Context(), "k", "t", ttl)
		require.ErrorIs(t, err, errNoAnswer)
		s.once("acquire", arriveLate(ttl+ttl/2))
		start := time.Now()
		deadline, err := l.Wait(t.Context(), "k", "t", ttl)
		require.NoError(t, err)
		assert.Equal(t, start.Add(ttl), deadline)
		requireReleases(t, l, "t")
	})
}
