package locker_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// watched is a fake whose releases wake watchers.
type watched struct {
	*fake
	watchErr error
	mu       sync.Mutex
	watchers []chan struct{}
	live     int // subscriptions whose context has not ended
	subbed   func()
}

func (w *watched) Watch(ctx context.Context, key string) (<-chan struct{}, error) {
	if w.watchErr != nil {
		return nil, w.watchErr
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	c := make(chan struct{}, 1)
	w.watchers = append(w.watchers, c)
	w.live++
	context.AfterFunc(ctx, func() { w.mu.Lock(); w.live--; w.mu.Unlock() })
	if w.subbed != nil {
		w.subbed()
	}
	return c, nil
}

func (w *watched) Release(ctx context.Context, key, token string) (bool, error) {
	ok, err := w.fake.Release(ctx, key, token)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.watchers {
		select {
		case c <- struct{}{}:
		default:
		}
	}
	return ok, err
}

// lined is a fake with a scripted Wait.
type lined struct {
	*fake
	wait func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error)
}

func (l *lined) Wait(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
	return l.wait(ctx, key, token, ttl)
}

var unsupported = errors.Join(errors.ErrUnsupported)

func TestLockPolling(t *testing.T) {
	bubble(t, "release, then in within a rest", func(t *testing.T) {
		l := &fake{}
		first := tryLock(t, l, time.Hour)
		time.AfterFunc(10*time.Second, func() { assert.NoError(t, first.Unlock(context.Background())) })
		start := time.Now()
		second, err := locker.Lock(t.Context(), l, "k", time.Minute)
		require.NoError(t, err)
		assert.GreaterOrEqual(t, time.Since(start), 10*time.Second)
		assert.LessOrEqual(t, time.Since(start), 10*time.Second+50*time.Millisecond)
		assert.True(t, l.isHeld("k", second.Token()))
	})
	bubble(t, "the holder vanishes", func(t *testing.T) {
		l := &fake{}
		tryLock(t, l, time.Second)
		start := time.Now()
		_, err := locker.Lock(t.Context(), l, "k", time.Minute)
		require.NoError(t, err)
		assert.LessOrEqual(t, time.Since(start), time.Second+50*time.Millisecond)
	})
	bubble(t, "rests grow, and stay at the cap after a minute", func(t *testing.T) {
		l := &fake{}
		tryLock(t, l, time.Hour)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		var atMinute atomic.Int64
		time.AfterFunc(time.Minute, func() { n, _, _ := l.counts(); atMinute.Store(int64(n)) })
		_, err := locker.Lock(ctx, l, "k", time.Minute)
		require.Error(t, err)
		n, _, _ := l.counts()
		assert.InDelta(t, 60/0.0375, atMinute.Load(), 200) // rests of 25 to 50 ms
		assert.InDelta(t, 60/0.0375, int64(n)-atMinute.Load(), 200)
	})
	bubble(t, "WithBackoff counts attempts from 1, on every call", func(t *testing.T) {
		l := &fake{}
		tryLock(t, l, time.Hour)
		var attempts []int
		backoff := locker.WithBackoff(func(attempt int) time.Duration {
			attempts = append(attempts, attempt)
			return time.Second
		})
		for range 2 {
			attempts = nil
			ctx, cancel := context.WithTimeout(t.Context(), 3500*time.Millisecond)
			_, err := locker.Lock(ctx, l, "k", time.Minute, backoff)
			cancel()
			require.Error(t, err)
			assert.Equal(t, []int{1, 2, 3, 4}, attempts)
		}
	})
	bubble(t, "no attempt after ctx has ended, though the rest is over, too", func(t *testing.T) {
		for range 50 {
			n := 0
			l := &fake{onAcquire: func(context.Context, string, time.Duration) (bool, error) { n++; return false, nil }}
			ctx, cancel := context.WithCancel(t.Context())
			_, err := locker.Lock(ctx, l, "k", time.Minute, locker.WithBackoff(func(int) time.Duration {
				cancel()
				return 0
			}))
			require.ErrorIs(t, err, context.Canceled)
			require.Equal(t, 1, n)
		}
	})
	bubble(t, "a backend error ends the waiting at once", func(t *testing.T) {
		l := &fake{}
		tryLock(t, l, time.Hour)
		n := 0
		l.onAcquire = func(context.Context, string, time.Duration) (bool, error) {
			if n++; n < 3 {
				return false, nil
			}
			return false, errBackend
		}
		_, err := locker.Lock(t.Context(), l, "k", time.Minute)
		assert.ErrorIs(t, err, errBackend)
		assert.NotErrorIs(t, err, locker.ErrHeld)
		assert.Equal(t, 3, n)
	})
}

func TestLockGivesUp(t *testing.T) {
	noLine := func(context.Context, string, string, time.Duration) (time.Time, error) {
		return time.Time{}, unsupported
	}
	for name, makeLocker := range map[string]func() locker.Locker{
		"polling":  func() locker.Locker { return plain{&fake{}} },
		"watching": func() locker.Locker { return &watched{fake: &fake{}} },
		"no watch": func() locker.Locker { return &watched{fake: &fake{}, watchErr: unsupported} },
		"no line":  func() locker.Locker { return &lined{fake: &fake{}, wait: noLine} },
	} {
		for cause, want := range map[string]error{"cancelled": context.Canceled, "deadline": context.DeadlineExceeded} {
			bubble(t, name+", "+cause, func(t *testing.T) {
				l := makeLocker()
				holder := tryLock(t, l, time.Hour)
				ctx, cancel := context.WithCancel(t.Context())
				if want == context.DeadlineExceeded {
					ctx, cancel = context.WithTimeout(t.Context(), 3*time.Second)
				} else {
					time.AfterFunc(3*time.Second, cancel)
				}
				defer cancel()
				start := time.Now()
				lease, err := locker.Lock(ctx, l, "k", time.Minute)
				assert.Nil(t, lease)
				assert.ErrorIs(t, err, want)
				assert.ErrorIs(t, err, locker.ErrHeld)
				assert.Equal(t, 3*time.Second, time.Since(start), "prompt")
				require.NoError(t, holder.Unlock(t.Context()))
				time.Sleep(time.Minute)
				_, err = locker.TryLock(t.Context(), l, "k", time.Minute)
				assert.NoError(t, err, "a phantom acquisition")
			})
		}
	}
	bubble(t, "before any answer, ctx's error alone", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := locker.Lock(ctx, &fake{onAcquire: blackhole}, "k", time.Minute)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.NotErrorIs(t, err, locker.ErrHeld)
	})
	bubble(t, "on the wire after a refusal: both, and a clean-up", func(t *testing.T) {
		l := &fake{}
		n := 0
		l.onAcquire = func(ctx context.Context, token string, ttl time.Duration) (bool, error) {
			if n++; n == 1 {
				return false, nil
			}
			_, err := l.doAcquire(ctx, "k", token, ttl)
			require.NoError(t, err)
			<-ctx.Done()
			return false, ctx.Err()
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := locker.Lock(ctx, l, "k", time.Minute)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.ErrorIs(t, err, locker.ErrHeld)
		synctest.Wait()
		assert.True(t, l.isFree("k"))
		assert.Equal(t, 2, n)
	})
}

func TestLockWatching(t *testing.T) {
	bubble(t, "woken by a release", func(t *testing.T) {
		l := &watched{fake: &fake{}}
		first := tryLock(t, l, time.Hour)
		time.AfterFunc(10*time.Second, func() { assert.NoError(t, first.Unlock(context.Background())) })
		start := time.Now()
		_, err := locker.Lock(t.Context(), l, "k", time.Minute)
		require.NoError(t, err)
		assert.Equal(t, 10*time.Second, time.Since(start))
		n, _, _ := l.counts()
		assert.LessOrEqual(t, n, 25, "safety polls are slow")
		synctest.Wait()
		assert.Zero(t, l.live, "the subscription is left behind")
	})
	bubble(t, "no subscription for a free lock", func(t *testing.T) {
		l := &watched{fake: &fake{}}
		_, err := locker.Lock(t.Context(), l, "k", time.Minute)
		require.NoError(t, err)
		assert.Empty(t, l.watchers)
	})
	bubble(t, "a release between the refusal and the subscription is not missed", func(t *testing.T) {
		l := &watched{fake: &fake{}}
		first := tryLock(t, l, time.Hour)
		l.subbed = func() {
			_, err := l.fake.Release(context.Background(), "k", first.Token()) // wakes nobody
			require.NoError(t, err)
		}
		start := time.Now()
		_, err := locker.Lock(t.Context(), l, "k", time.Minute)
		require.NoError(t, err)
		assert.Zero(t, time.Since(start))
	})
	bubble(t, "the holder vanishes without a word", func(t *testing.T) {
		l := &watched{fake: &fake{}}
		tryLock(t, l, 10*time.Second)
		start := time.Now()
		_, err := locker.Lock(t.Context(), l, "k", time.Minute)
		require.NoError(t, err)
		assert.LessOrEqual(t, time.Since(start), 11*time.Second)
	})
	bubble(t, "a failing subscription ends the waiting", func(t *testing.T) {
		l := &watched{fake: &fake{}, watchErr: errBackend}
		tryLock(t, l, time.Hour)
		_, err := locker.Lock(t.Context(), l, "k", time.Minute)
		assert.ErrorIs(t, err, errBackend)
	})
}

func TestLockInLine(t *testing.T) {
	bubble(t, "one call, and the backend's deadline", func(t *testing.T) {
		l := &lined{fake: &fake{}}
		deadline := time.Now().Add(42 * time.Second)
		l.wait = func(context.Context, string, string, time.Duration) (time.Time, error) { return deadline, nil }
		lease, err := locker.Lock(t.Context(), l, "k", time.Minute)
		require.NoError(t, err)
		assert.Equal(t, deadline, lease.Deadline())
		n, _, _ := l.counts()
		assert.Zero(t, n)
	})
	bubble(t, "TryLock does not join the line", func(t *testing.T) {
		l := &lined{fake: &fake{}}
		lease := tryLock(t, l, time.Minute)
		_, err := locker.TryLock(t.Context(), l, "k", time.Minute)
		assert.ErrorIs(t, err, locker.ErrHeld)
		assert.NoError(t, lease.Unlock(t.Context()))
	})
	bubble(t, "a grant whose deadline has passed is released", func(t *testing.T) {
		l := &lined{fake: &fake{}}
		l.wait = func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
			deadline := time.Now().Add(ttl)
			_, err := l.doAcquire(ctx, key, token, time.Hour)
			time.Sleep(ttl)
			return deadline, err
		}
		_, err := locker.Lock(t.Context(), l, "k", time.Second)
		assert.ErrorContains(t, err, "had passed")
		assert.NotErrorIs(t, err, locker.ErrNotHeld)
		synctest.Wait()
		assert.True(t, l.isFree("k"))
	})
	bubble(t, "giving up in line reports both and leaves nothing to clean up", func(t *testing.T) {
		l := &lined{fake: &fake{}}
		l.wait = func(ctx context.Context, _, _ string, _ time.Duration) (time.Time, error) {
			<-ctx.Done()
			return time.Time{}, errors.Join(ctx.Err(), locker.ErrHeld)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := locker.Lock(ctx, l, "k", time.Minute)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.ErrorIs(t, err, locker.ErrHeld)
		time.Sleep(time.Minute)
		_, _, n := l.counts()
		assert.Zero(t, n)
	})
	bubble(t, "giving up before any answer is ctx's error alone, and cleaned up", func(t *testing.T) {
		l := &lined{fake: &fake{}}
		l.wait = func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
			_, err := l.doAcquire(ctx, key, token, ttl) // its reply is lost
			require.NoError(t, err)
			<-ctx.Done()
			return time.Time{}, ctx.Err()
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := locker.Lock(ctx, l, "k", time.Minute)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.NotErrorIs(t, err, locker.ErrHeld)
		synctest.Wait()
		assert.True(t, l.isFree("k"))
	})
	bubble(t, "a backend error", func(t *testing.T) {
		l := &lined{fake: &fake{}, wait: func(context.Context, string, string, time.Duration) (time.Time, error) {
			return time.Time{}, errBackend
		}}
		_, err := locker.Lock(t.Context(), l, "k", time.Minute)
		assert.ErrorIs(t, err, errBackend)
	})
}
