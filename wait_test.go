package locker_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/undo"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// watched is a fake whose releases wake watchers.
type watched struct {
	*fake
	onWatch  func(ctx context.Context) (<-chan struct{}, error)
	mu       sync.Mutex
	watchers []chan struct{}
	live     int // subscriptions whose context has not ended
	subbed   func()
}

func (w *watched) Watch(ctx context.Context, key string) (<-chan struct{}, error) {
	if w.onWatch != nil {
		return w.onWatch(ctx)
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

func notSupported(context.Context) (<-chan struct{}, error) { return nil, unsupported }

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
		"no watch": func() locker.Locker { return &watched{fake: &fake{}, onWatch: notSupported} },
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
	bubble(t, "on the wire after a refusal: both, and a cleanup", func(t *testing.T) {
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
}

// Trouble with push never fails or delays a Lock: it polls meanwhile.
func TestLockWatchTrouble(t *testing.T) {
	const poll = 50 * time.Millisecond // the longest delay between two attempts
	stuck := func(ctx context.Context) (<-chan struct{}, error) {
		time.Sleep(5 * time.Second)
		return nil, ctx.Err()
	}
	hung := func(ctx context.Context) (<-chan struct{}, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	fails := func(context.Context) (<-chan struct{}, error) { return nil, errBackend }
	for name, watch := range map[string]func(context.Context) (<-chan struct{}, error){
		"fails":                            fails,
		"fails slowly":                     func(context.Context) (<-chan struct{}, error) { time.Sleep(time.Second); return nil, errBackend },
		"hangs":                            hung,
		"is stuck and ignores its context": stuck,
		"is not supported":                 notSupported,
		"exits":                            func(context.Context) (<-chan struct{}, error) { runtime.Goexit(); return nil, nil },
	} {
		bubble(t, name+": acquired by polling", func(t *testing.T) {
			l := &watched{fake: &fake{}, onWatch: watch}
			first := tryLock(t, l, time.Hour)
			time.AfterFunc(4*time.Second, func() { assert.NoError(t, first.Unlock(context.Background())) })
			start := time.Now()
			_, err := locker.Lock(t.Context(), l, "k", time.Minute)
			require.NoError(t, err)
			assert.LessOrEqual(t, time.Since(start), 4*time.Second+poll)
			n, _, _ := l.counts()
			assert.Greater(t, n, 80, "polls slowly although nothing wakes it")
		})
		bubble(t, name+": gives up on time", func(t *testing.T) {
			l := &watched{fake: &fake{}, onWatch: watch}
			tryLock(t, l, time.Hour)
			ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
			defer cancel()
			start := time.Now()
			_, err := locker.Lock(ctx, l, "k", time.Minute)
			assert.ErrorIs(t, err, context.DeadlineExceeded)
			assert.ErrorIs(t, err, locker.ErrHeld)
			assert.NotErrorIs(t, err, errBackend)
			assert.Equal(t, 4*time.Second, time.Since(start))
		})
	}
	bubble(t, "nothing is left once Lock has returned", func(t *testing.T) {
		l := &watched{fake: &fake{}}
		ended := make(chan struct{})
		l.onWatch = func(ctx context.Context) (<-chan struct{}, error) {
			defer close(ended)
			return hung(ctx)
		}
		first := tryLock(t, l, time.Hour)
		time.AfterFunc(time.Second, func() { assert.NoError(t, first.Unlock(context.Background())) })
		_, err := locker.Lock(t.Context(), l, "k", time.Minute)
		require.NoError(t, err)
		synctest.Wait()
		assert.True(t, isClosed(ended), "Watch goes on")
	})
	bubble(t, "live late, an attempt at once, then slow polls", func(t *testing.T) {
		l := &watched{fake: &fake{}}
		l.onWatch = func(ctx context.Context) (<-chan struct{}, error) {
			time.Sleep(10 * time.Second)
			return make(chan struct{}, 1), nil
		}
		first := tryLock(t, l, time.Hour)
		start := time.Now()
		var before, after atomic.Int64
		time.AfterFunc(9*time.Second, func() { n, _, _ := l.counts(); before.Store(int64(n)) })
		time.AfterFunc(12*time.Second, func() { n, _, _ := l.counts(); after.Store(int64(n)) })
		time.AfterFunc(22*time.Second, func() {
			n, _, _ := l.counts()
			assert.LessOrEqual(t, int64(n)-after.Load(), int64(20), "delays of 0.5 to 1 s")
			_, err := l.fake.Release(context.Background(), "k", first.Token()) // wakes nobody
			assert.NoError(t, err)
		})
		_, err := locker.Lock(t.Context(), l, "k", time.Minute)
		require.NoError(t, err)
		assert.LessOrEqual(t, time.Since(start), 23*time.Second)
		assert.InDelta(t, 9/0.0375, before.Load(), 40)
	})
	bubble(t, "the attempt follows at once", func(t *testing.T) {
		for name, opts := range map[string][]locker.Option{
			"default": nil,
			"backoff": {locker.WithBackoff(func(int) time.Duration { return time.Hour })},
		} {
			l := &watched{fake: &fake{}}
			l.onWatch = func(ctx context.Context) (<-chan struct{}, error) {
				time.Sleep(10 * time.Second)
				_, err := l.fake.Release(ctx, "k", "first") // wakes nobody
				return make(chan struct{}, 1), err
			}
			tryLock(t, l, time.Hour, locker.WithToken("first"))
			start := time.Now()
			_, err := locker.Lock(t.Context(), l, "k", time.Minute, opts...)
			require.NoError(t, err)
			assert.Equal(t, 10*time.Second, time.Since(start), name)
		}
	})
	bubble(t, "a Watch that failed is tried again, ever more rarely", func(t *testing.T) {
		l := &watched{fake: &fake{}}
		var tries atomic.Int64
		l.onWatch = func(context.Context) (<-chan struct{}, error) {
			if tries.Add(1) <= 3 {
				return nil, errBackend
			}
			return make(chan struct{}, 1), nil
		}
		tryLock(t, l, time.Hour)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var live atomic.Int64
		time.AfterFunc(10*time.Second, func() { n, _, _ := l.counts(); live.Store(int64(n)) })
		_, err := locker.Lock(ctx, l, "k", time.Minute)
		require.ErrorIs(t, err, locker.ErrHeld)
		assert.EqualValues(t, 4, tries.Load())
		n, _, _ := l.counts()
		assert.Less(t, int64(n)-live.Load(), int64(110), "polls fast though the watch is live")

		l.onWatch = func(context.Context) (<-chan struct{}, error) { tries.Add(1); return nil, errBackend }
		tries.Store(0)
		ctx, cancel = context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		_, err = locker.Lock(ctx, l, "k", time.Minute)
		require.ErrorIs(t, err, locker.ErrHeld)
		assert.LessOrEqual(t, tries.Load(), int64(30))
	})
	bubble(t, "one that is not supported is not tried again", func(t *testing.T) {
		l := &watched{fake: &fake{}}
		var n atomic.Int64
		l.onWatch = func(context.Context) (<-chan struct{}, error) { n.Add(1); return nil, unsupported }
		tryLock(t, l, time.Minute)
		_, err := locker.Lock(t.Context(), l, "k", time.Minute)
		require.NoError(t, err)
		assert.EqualValues(t, 1, n.Load())
	})
	bubble(t, "a panic is the caller's", func(t *testing.T) {
		l := &watched{fake: &fake{}}
		l.onWatch = func(context.Context) (<-chan struct{}, error) { time.Sleep(time.Second); panic(errBackend) }
		tryLock(t, l, time.Hour)
		defer func() {
			err, ok := recover().(error)
			require.True(t, ok)
			assert.ErrorIs(t, err, errBackend)
			assert.ErrorContains(t, err, "wait_test.go", "no stack of Watch")
		}()
		_, _ = locker.Lock(t.Context(), l, "k", time.Minute)
		t.Error("Lock has returned")
	})
	bubble(t, "a panic as the lock is acquired releases it", func(t *testing.T) {
		l := &watched{fake: &fake{}}
		acquiring := make(chan struct{})
		l.onWatch = func(context.Context) (<-chan struct{}, error) { <-acquiring; panic("boom") }
		first := true
		l.onAcquire = func(ctx context.Context, token string, ttl time.Duration) (bool, error) {
			if first {
				first = false
				return false, nil
			}
			close(acquiring)
			time.Sleep(time.Millisecond)
			return l.doAcquire(ctx, "k", token, ttl)
		}
		assert.Panics(t, func() { _, _ = locker.Lock(t.Context(), l, "k", time.Hour) })
		synctest.Wait()
		assert.True(t, l.isFree("k"), "held without a lease")
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

// When an acquisition fails although it has taken the lock, the lock is free when Lock has returned, so
// the caller can close its client. A backend that hangs delays that by a tenth of a second.
func TestFailedLockIsFreeAtOnce(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			f := new(fake)
			f.onAcquire = func(_ context.Context, token string, ttl time.Duration) (bool, error) {
				defer cancel()
				return f.doAcquire(context.Background(), "k", token, ttl)
			}
			var isClosed, released atomic.Bool
			f.onRelease = func(ctx context.Context, token string) (bool, error) {
				if hangs {
					<-ctx.Done()
				}
				assert.False(t, isClosed.Load() && !hangs)
				released.Store(!hangs)
				return !hangs, ctx.Err()
			}
			start := time.Now()
			_, err := locker.Lock(ctx, f, "k", time.Hour)
			isClosed.Store(true)
			assert.ErrorIs(t, err, context.Canceled)
			assert.Equal(t, !hangs, released.Load())
			if hangs {
				assert.Equal(t, 100*time.Millisecond, time.Since(start))
				time.Sleep(time.Hour) // until the background gives up
			}
		})
	}
}

// A token is not released again and again once its acquisition has been refused behind the caller's back.
func TestRefusedBehindTheCaller(t *testing.T) {
	for answered, releases := range map[bool]int{true: 1, false: 13} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			f := new(fake)
			f.onAcquire = func(context.Context, string, time.Duration) (bool, error) {
				cancel()
				return false, undo.Pending(ctx.Err(), func() bool { return answered })
			}
			_, err := locker.Lock(ctx, f, "k", time.Hour)
			assert.ErrorIs(t, err, context.Canceled)
			time.Sleep(time.Hour)
			synctest.Wait()
			f.mu.Lock()
			defer f.mu.Unlock()
			assert.Len(t, f.release, releases)
		})
	}
}
