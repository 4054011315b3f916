package cohort_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
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

// scripted is a backend on which a test decides what becomes of each request.
type scripted struct {
	*memory.Locker
	mu      sync.Mutex
	scripts map[string]script // by method
}

// script is what becomes of a request: apply carries it out.
type script func(ctx context.Context, apply func() (bool, error)) (bool, error)

func (s *scripted) on(op string, f script) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.scripts[op] = f
}

func (s *scripted) request(ctx context.Context, op string, apply func() (bool, error)) (bool, error) {
	s.mu.Lock()
	f := s.scripts[op]
	s.mu.Unlock()
	if f == nil {
		return apply()
	}
	return f(ctx, apply)
}

func (s *scripted) Acquire(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return s.request(ctx, "acquire", func() (bool, error) {
		return s.Locker.Acquire(context.Background(), key, token, ttl)
	})
}

func (s *scripted) Extend(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return s.request(ctx, "extend", func() (bool, error) {
		return s.Locker.Extend(context.Background(), key, token, ttl)
	})
}

func (s *scripted) Release(ctx context.Context, key, token string) (bool, error) {
	return s.request(ctx, "release", func() (bool, error) {
		return s.Locker.Release(context.Background(), key, token)
	})
}

func (s *scripted) Wait(ctx context.Context, key, token string, ttl time.Duration) (deadline time.Time, err error) {
	_, err = s.request(ctx, "wait", func() (bool, error) {
		deadline, err = s.Locker.Wait(ctx, key, token, ttl)
		return err == nil, err
	})
	return deadline, err
}

// once sets the script of the next request alone.
func (s *scripted) once(op string, f func(apply func() (bool, error)) (bool, error)) {
	s.on(op, func(_ context.Context, apply func() (bool, error)) (bool, error) {
		s.on(op, nil)
		return f(apply)
	})
}

var errNoAnswer = errors.New("no answer")

// answerLost carries a request out and loses the answer.
func answerLost(apply func() (bool, error)) (bool, error) {
	_, _ = apply()
	return false, errNoAnswer
}

// requestLost does nothing.
func requestLost(func() (bool, error)) (bool, error) { return false, errNoAnswer }

// late carries a request out after d, long after it was given up.
func late(d time.Duration) func(apply func() (bool, error)) (bool, error) {
	return func(apply func() (bool, error)) (bool, error) {
		time.AfterFunc(d, func() { _, _ = apply() })
		return false, errNoAnswer
	}
}

// overScript runs f in a bubble over a scripted backend.
func overScript(t *testing.T, name string, f func(t *testing.T, s *scripted)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f(t, &scripted{Locker: memory.New(), scripts: make(map[string]script)})
			time.Sleep(2 * time.Minute)
		})
	})
}

// stays fails if another process gets the lock of "k" from the backend within d.
func (s *scripted) stays(t *testing.T, d time.Duration) {
	t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(time.Second) {
		ok, err := s.Locker.Acquire(t.Context(), "k", "another process", time.Second)
		require.NoError(t, err)
		require.False(t, ok, "two holders")
	}
}

// An extension without an answer may arrive at any time, and shorten the lock of its holder at that time.
func TestExtensionWithoutAnAnswer(t *testing.T) {
	overScript(t, "the next holder is safe from it", func(t *testing.T, s *scripted) {
		l := cohort.New(s, cohort.WithMaxTenure(time.Second))
		tenure := startTenure(t, l, 2, 5*time.Second)
		s.once("extend", late(5*time.Second))
		require.ErrorIs(t, tenure.holder.Extend(t.Context(), 10*time.Second), errNoAnswer)
		tenure.passToNext(t)
		require.NoError(t, tenure.holder.Extend(t.Context(), time.Minute))
		s.stays(t, time.Minute-2*time.Second)
		tenure.queue.requireWaiting(t, "two holders")
		tenure.passToNext(t)
		tenure.unlock(t)
	})
	overScript(t, "a longer one is not promised", func(t *testing.T, s *scripted) {
		l := cohort.New(s)
		tenure := startTenure(t, l, 1, 5*time.Second)
		lease := tenure.holder
		s.once("extend", late(4*time.Second))
		require.ErrorIs(t, lease.Extend(t.Context(), 10*time.Second), errNoAnswer)
		for _, ttl := range []time.Duration{time.Minute, 11 * time.Second} {
			ok, err := l.Extend(t.Context(), "k", lease.Token(), ttl)
			require.Error(t, err, "%v cannot be promised", ttl)
			require.False(t, ok)
			ok, err = l.Acquire(t.Context(), "k", lease.Token(), ttl)
			require.Error(t, err)
			require.False(t, ok)
		}
		require.NoError(t, lease.Extend(t.Context(), 9*time.Second))
		s.stays(t, 8*time.Second)
		tenure.queue.requireWaiting(t, "two holders")
		tenure.passToNext(t)
		tenure.unlock(t)
	})
	overScript(t, "no promise without a request", func(t *testing.T, s *scripted) {
		l := cohort.New(s, cohort.WithMaxTenure(time.Minute))
		lease := startTenure(t, l, 0, time.Minute).holder
		s.once("extend", late(time.Second))
		_, err := l.Extend(t.Context(), "k", lease.Token(), 5*time.Second)
		require.ErrorIs(t, err, errNoAnswer)
		ok, err := l.Extend(t.Context(), "k", lease.Token(), 70*time.Second)
		require.Error(t, err)
		require.False(t, ok)
	})
	overScript(t, "while it is under way", func(t *testing.T, s *scripted) {
		l := cohort.New(s, cohort.WithMaxTenure(time.Hour))
		tenure := startTenure(t, l, 1, time.Minute)
		token := tenure.holder.Token()
		s.once("extend", func(apply func() (bool, error)) (bool, error) {
			time.Sleep(5 * time.Second)
			return apply()
		})
		go func() { _, _ = l.Extend(context.Background(), "k", token, 2*time.Hour) }()
		synctest.Wait()
		tenure.passToNext(t)
		s.stays(t, time.Minute-2*time.Second)
		tenure.unlock(t)
	})
}

// The same, where the shorter one comes from an Acquire.
func TestAcquireWithoutAnAnswer(t *testing.T) {
	const token = "the caller's"
	for name, lose := range map[string]func(func() (bool, error)) (bool, error){
		"answer lost": answerLost, "request lost": requestLost, "late": late(2 * time.Second),
	} {
		overScript(t, name+", released", func(t *testing.T, s *scripted) {
			l := cohort.New(s)
			s.once("acquire", lose)
			_, err := l.Acquire(t.Context(), "k", token, time.Minute)
			require.ErrorIs(t, err, errNoAnswer)
			require.Eventually(t, func() bool { // as package locker cleans up
				released, err := l.Release(t.Context(), "k", token)
				return err == nil && (released || name == "request lost")
			}, 5*time.Second, time.Second)
			free, err := s.Locker.Acquire(t.Context(), "k", "another process", time.Second)
			require.NoError(t, err)
			assert.True(t, free)
			time.Sleep(time.Minute)
			assert.Zero(t, cohort.Entries(l))
			assert.Zero(t, cohort.Doubts(l))
		})
		overScript(t, name+", repeated", func(t *testing.T, s *scripted) {
			l := cohort.New(s)
			s.once("acquire", lose)
			_, err := l.Acquire(t.Context(), "k", token, time.Minute)
			require.ErrorIs(t, err, errNoAnswer)
			ok, err := l.Acquire(t.Context(), "k", token, 2*time.Minute)
			assert.False(t, ok)
			assert.Error(t, err, "the first may yet arrive and shorten it")
			ok, err = l.Acquire(t.Context(), "k", token, time.Minute)
			require.NoError(t, err)
			assert.True(t, ok, "C5")
			s.stays(t, 58*time.Second)
			released, err := l.Release(t.Context(), "k", token)
			require.NoError(t, err)
			assert.True(t, released)
			assert.Zero(t, cohort.Entries(l))
		})
		overScript(t, name+", extended", func(t *testing.T, s *scripted) {
			l := cohort.New(s)
			s.once("acquire", lose)
			_, err := l.Acquire(t.Context(), "k", token, time.Minute)
			require.ErrorIs(t, err, errNoAnswer)
			ok, err := l.Extend(t.Context(), "k", token, time.Minute)
			require.NoError(t, err)
			assert.Equal(t, name == "answer lost", ok)
			time.Sleep(3 * time.Second)
			released, err := l.Release(t.Context(), "k", token)
			require.NoError(t, err)
			assert.Equal(t, name != "request lost", released)
		})
	}
	overScript(t, "of a Wait", func(t *testing.T, s *scripted) {
		l := cohort.New(s)
		s.once("wait", answerLost)
		s.on("release", func(context.Context, func() (bool, error)) (bool, error) { return false, errNoAnswer })
		_, err := l.Wait(t.Context(), "k", token, 5*time.Minute)
		require.ErrorIs(t, err, errNoAnswer)
		time.Sleep(2 * time.Minute) // package locker has given up cleaning up
		s.on("release", nil)
		released, err := l.Release(t.Context(), "k", token)
		require.NoError(t, err)
		assert.True(t, released)
		assert.Zero(t, cohort.Entries(l))
	})
	overScript(t, "others wait meanwhile", func(t *testing.T, s *scripted) {
		l := cohort.New(s)
		s.once("acquire", answerLost)
		_, err := l.Acquire(t.Context(), "k", token, time.Minute)
		require.ErrorIs(t, err, errNoAnswer)
		served := make(chan *locker.Lease, 3)
		for range 3 {
			go func() { served <- mustLock(t, l, time.Minute) }()
		}
		synctest.Wait()
		ok, err := l.Acquire(t.Context(), "k", token, time.Minute)
		require.NoError(t, err)
		require.True(t, ok)
		released, err := l.Release(t.Context(), "k", token)
		require.NoError(t, err)
		require.True(t, released)
		for range 3 { // in any order: the first of them waits at the backend
			require.NoError(t, (<-served).Unlock(t.Context()))
		}
		assert.Zero(t, cohort.Entries(l))
	})
}

// Whatever an error looks like, it is an error.
func TestErrorsOfAnyForm(t *testing.T) {
	down := errors.New("down")
	for name, form := range map[string]error{
		"plain": down, "wrapped": fmt.Errorf("a: %w", down), "joined": errors.Join(down, errors.New("more")),
		"two": fmt.Errorf("%w, %w", errors.New("more"), down),
	} {
		overScript(t, name, func(t *testing.T, s *scripted) {
			l := cohort.New(s)
			lease := startTenure(t, l, 0, time.Minute).holder
			fail := func(context.Context, func() (bool, error)) (bool, error) { return false, form }
			for _, op := range []string{"acquire", "extend", "release", "wait"} {
				s.on(op, fail)
			}
			_, err := l.Acquire(t.Context(), "other", "t", time.Minute)
			assert.ErrorIs(t, err, down)
			_, err = l.Acquire(t.Context(), "k", lease.Token(), time.Hour)
			assert.ErrorIs(t, err, down)
			_, err = l.Extend(t.Context(), "k", lease.Token(), 2*time.Minute)
			assert.ErrorIs(t, err, down)
			_, err = l.Release(t.Context(), "k", lease.Token())
			assert.ErrorIs(t, err, down)
			_, err = l.Wait(t.Context(), "another", "t", time.Minute)
			assert.ErrorIs(t, err, down)
		})
	}
}

// An outage leaves a bounded number of tokens in doubt; what is forgotten is an error, never false.
func TestDoubtsAreBounded(t *testing.T) {
	overScript(t, "", func(t *testing.T, s *scripted) {
		l := cohort.New(s)
		s.on("acquire", func(_ context.Context, apply func() (bool, error)) (bool, error) { return answerLost(apply) })
		const n = 10_000
		for i := range n {
			ttl := time.Hour
			if i >= 500 && i < 5000 { // these are forgotten last
				ttl = time.Minute
			}
			_, err := l.Acquire(t.Context(), strconv.Itoa(i), "t", ttl)
			require.ErrorIs(t, err, errNoAnswer)
		}
		time.Sleep(2 * time.Minute)
		assert.LessOrEqual(t, cohort.Doubts(l), 8192)
		assert.LessOrEqual(t, cohort.Entries(l), 8192)
		_, err := l.Release(t.Context(), "0", "t")
		assert.Error(t, err, "it holds the lock")
		_, _, err = l.Fence(t.Context(), "0", "t")
		assert.Error(t, err)
		released, err := l.Release(t.Context(), strconv.Itoa(n-1), "t")
		require.NoError(t, err)
		assert.True(t, released)
		time.Sleep(time.Hour + time.Second)
		assert.Zero(t, cohort.Doubts(l))
		assert.Zero(t, cohort.Entries(l))
		released, err = l.Release(t.Context(), "0", "t")
		require.NoError(t, err)
		assert.False(t, released)
	})
}

// Releases that no caller repeats are repeated in the background, up to 256 at a time.
func TestCleanupsAreBounded(t *testing.T) {
	overScript(t, "", func(t *testing.T, s *scripted) {
		l := cohort.New(s, cohort.WithMaxTenure(time.Hour))
		const n = 1000
		for i := range n {
			key := strconv.Itoa(i)
			ok, err := l.Acquire(t.Context(), key, "t", time.Hour)
			require.NoError(t, err)
			require.True(t, ok)
			ok, err = l.Extend(t.Context(), key, "t", time.Second) // and vanishes
			require.NoError(t, err)
			require.True(t, ok)
		}
		s.on("release", func(context.Context, func() (bool, error)) (bool, error) { return false, errNoAnswer })
		before := runtime.NumGoroutine()
		time.Sleep(1100 * time.Millisecond)
		synctest.Wait()
		assert.InDelta(t, before+256, runtime.NumGoroutine(), 20)
		assert.Zero(t, cohort.Entries(l))
		time.Sleep(time.Minute)
	})
}

// An answer that comes after the ttl, from a backend that works, is not an error: Acquire reports that it got the
// lock, and the next one acquires it again.
func TestAnswersAfterTheTTL(t *testing.T) {
	overScript(t, "", func(t *testing.T, s *scripted) {
		l := cohort.New(s)
		s.on("acquire", func(_ context.Context, apply func() (bool, error)) (bool, error) {
			ok, err := apply()
			time.Sleep(10 * time.Millisecond)
			return ok, err
		})
		for range 3 {
			ok, err := l.Acquire(t.Context(), "k", "t", time.Millisecond)
			require.NoError(t, err)
			require.True(t, ok)
		}
		ok, err := l.Acquire(t.Context(), "k", "t", time.Minute)
		require.NoError(t, err)
		require.True(t, ok)
		ok, err = l.Release(t.Context(), "k", "t")
		require.NoError(t, err)
		require.True(t, ok)
		time.Sleep(time.Minute)
		assert.Zero(t, cohort.Entries(l))
	})
}

// The cleanups of drives that failed count for the Locker, however many keys they are for.
func TestCleanupsOfDrivesAreBounded(t *testing.T) {
	overScript(t, "", func(t *testing.T, s *scripted) {
		noAnswer := func(context.Context, func() (bool, error)) (bool, error) { return false, errNoAnswer }
		s.on("wait", noAnswer)
		s.on("acquire", noAnswer)
		var mu sync.Mutex
		releasing, most := 0, 0
		s.on("release", func(ctx context.Context, _ func() (bool, error)) (bool, error) {
			mu.Lock()
			releasing++
			most = max(most, releasing)
			mu.Unlock()
			<-ctx.Done()
			mu.Lock()
			releasing--
			mu.Unlock()
			return false, ctx.Err()
		})
		l := cohort.New(s)
		for i := range 400 {
			_, err := l.Wait(t.Context(), strconv.Itoa(i), "t", time.Hour)
			require.ErrorIs(t, err, errNoAnswer)
		}
		synctest.Wait()
		assert.Equal(t, 256, most)
		time.Sleep(time.Minute)
	})
}

// A peak of keys leaves no large map behind.
func TestPeakOfKeys(t *testing.T) {
	ctx, l := t.Context(), cohort.New(memory.New())
	const n = 20_000
	for _, last := range []bool{false, true} {
		for i := range n {
			var ok bool
			var err error
			if last {
				ok, err = l.Release(ctx, strconv.Itoa(i), "t")
			} else {
				ok, err = l.Acquire(ctx, strconv.Itoa(i), "t", time.Hour)
			}
			require.NoError(t, err)
			require.True(t, ok)
		}
	}
	assert.Zero(t, cohort.Entries(l))
	assert.LessOrEqual(t, cohort.Room(l), 32*64)
}

// What the backend is asked for callers that wait carries the context values of one of them.
func TestKeepsContextValues(t *testing.T) {
	overScript(t, "", func(t *testing.T, s *scripted) {
		type key struct{}
		var mu sync.Mutex
		seen := make(map[any]int)
		for _, op := range []string{"wait", "release", "extend"} {
			s.on(op, func(ctx context.Context, apply func() (bool, error)) (bool, error) {
				mu.Lock()
				seen[ctx.Value(key{})]++
				mu.Unlock()
				return apply()
			})
		}
		l := cohort.New(s)
		other := mustLock(t, s.Locker, time.Minute)
		first, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "first"))
		gone := join(first, l, 1, time.Minute)
		second := join(context.WithValue(t.Context(), key{}, "second"), l, 1, time.Second)
		cancel()
		gone.requireGone(t)
		synctest.Wait()
		require.NoError(t, other.Unlock(t.Context()))
		third := join(context.WithValue(t.Context(), key{}, "third"), l, 1, time.Second)
		require.NoError(t, second.next(t).Unlock(t.Context())) // without a request
		third.next(t)                                          // and vanishes
		time.Sleep(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		assert.Equal(t, map[any]int{"first": 1, "second": 1, "third": 1}, seen)
	})
}

// Over a backend that has to be polled the lock is held nearly all the time if others of the process want it.
func TestDoesNotLeaveThePlainLockIdle(t *testing.T) {
	for _, goroutines := range []int{2, 8} {
		synctest.Test(t, func(t *testing.T) {
			const during, hold = 20 * time.Second, 5 * time.Millisecond
			l := cohort.New(&counting{Locker: memory.New()})
			ctx, cancel := context.WithTimeout(t.Context(), during)
			defer cancel()
			var held atomic.Int64
			var wg sync.WaitGroup
			for range goroutines {
				wg.Go(func() {
					for ctx.Err() == nil {
						lease, err := locker.Lock(ctx, l, "k", time.Minute)
						if err != nil {
							return
						}
						time.Sleep(hold)
						held.Add(int64(hold))
						assert.NoError(t, lease.Unlock(ctx))
						time.Sleep(time.Microsecond)
					}
				})
			}
			wg.Wait()
			assert.Greater(t, float64(held.Load())/float64(during), 0.85, "%d goroutines", goroutines)
			time.Sleep(time.Minute)
		})
	}
}

// A backend that ends the goroutine of a drive fails the queue, which is served again afterwards.
func TestDriveThatDoesNotReturn(t *testing.T) {
	overScript(t, "", func(t *testing.T, s *scripted) {
		l := cohort.New(s, cohort.WithMaxHandoffs(0))
		first := mustLock(t, l, time.Minute)
		queue := join(t.Context(), l, 2, time.Minute)
		s.once("wait", func(func() (bool, error)) (bool, error) { runtime.Goexit(); return false, nil })
		require.NoError(t, first.Unlock(t.Context()))
		queue.requireGone(t)
		synctest.Wait()
		require.NoError(t, mustLock(t, l, time.Minute).Unlock(t.Context()))
	})
}

// A backend that does not return from the Extend of a handoff does not block the key.
func TestHandoffThatDoesNotReturn(t *testing.T) {
	for name, end := range map[string]func(){"goexit": runtime.Goexit, "panic": func() { panic("in the client") }} {
		overScript(t, name, func(t *testing.T, s *scripted) {
			l := cohort.New(s)
			first := mustLock(t, l, time.Minute)
			queue := join(t.Context(), l, 2, time.Hour)
			start := time.Now()
			s.once("extend", func(func() (bool, error)) (bool, error) { end(); return false, nil })
			released := make(chan any)
			go func() {
				defer func() { released <- recover() }()
				_ = first.Unlock(t.Context())
			}()
			<-released
			tenure := tenure{queue.next(t), queue}
			assert.Less(t, time.Since(start), time.Second, "the lock is not released")
			tenure.passToNext(t)
			tenure.unlock(t)
			require.NoError(t, mustLock(t, l, time.Minute).Unlock(t.Context()))
			assert.Zero(t, cohort.Entries(l))
		})
	}
}
