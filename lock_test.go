package locker_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
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

var errBackend = errors.New("backend down")

func TestArguments(t *testing.T) {
	l := &fake{}
	ctx := t.Context()
	dead, cancel := context.WithCancel(ctx)
	cancel()
	long := strings.Repeat("x", 1025)
	for _, c := range []struct {
		name  string
		ctx   context.Context
		l     locker.Locker
		key   string
		token string
		ttl   time.Duration
		want  error
		text  string
	}{
		{"nil locker", ctx, nil, "k", "t", time.Second, nil, `"k": nil Locker`},
		{"empty key", ctx, l, "", "t", time.Second, locker.ErrInvalidKey, `""`},
		{"long key", ctx, l, long, "t", time.Second, locker.ErrInvalidKey, "1025 bytes"},
		{"zero ttl", ctx, l, "k", "t", 0, locker.ErrInvalidTTL, `"k"`},
		{"negative ttl", ctx, l, "k", "t", -time.Second, locker.ErrInvalidTTL, `"k"`},
		{"ttl under a millisecond", ctx, l, "k", "t", time.Millisecond - 1, locker.ErrInvalidTTL, `"k"`},
		{"empty token", ctx, l, "k", "", time.Second, locker.ErrInvalidToken, `"k"`},
		{"long token", ctx, l, "k", long, time.Second, locker.ErrInvalidToken, "1025 bytes"},
		{"done context", dead, l, "k", "t", time.Second, context.Canceled, `"k"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			token := locker.WithToken(c.token)
			for op, call := range map[string]func() error{
				"try lock": func() error { _, err := locker.TryLock(c.ctx, c.l, c.key, c.ttl, token); return err },
				"lock":     func() error { _, err := locker.Lock(c.ctx, c.l, c.key, c.ttl, token); return err },
				"resume":   func() error { _, err := locker.Resume(c.ctx, c.l, c.key, c.token, c.ttl); return err },
				"do": func() error {
					return locker.Do(c.ctx, c.l, c.key, c.ttl, func(context.Context) error {
						t.Error("fn ran")
						return nil
					}, token)
				},
			} {
				err := call()
				require.Error(t, err, op)
				if c.want != nil {
					require.ErrorIs(t, err, c.want, op)
				}
				require.NotErrorIs(t, err, locker.ErrHeld, op)
				assert.True(t, strings.HasPrefix(err.Error(), "locker: "+op+" \""), err)
				assert.Contains(t, err.Error(), c.text, op)
				assert.Less(t, len(err.Error()), 200, op)
			}
		})
	}
	a, e, r := l.counts()
	assert.Zero(t, a+e+r, "the backend was asked")

	err := locker.Do(ctx, l, "k", time.Second, nil)
	assert.ErrorContains(t, err, `locker: do "k": nil function`)
}

func TestNamesAtTheLimitAreFine(t *testing.T) {
	name := strings.Repeat("x", 1024)
	lease, err := locker.TryLock(t.Context(), &fake{}, name, time.Millisecond, locker.WithToken(name))
	require.NoError(t, err)
	assert.Equal(t, name, lease.Key())
	assert.Equal(t, name, lease.Token())
}

func TestTokensAreRandom(t *testing.T) {
	l, seen := &fake{}, map[string]bool{}
	for range 100 {
		lease, err := locker.TryLock(t.Context(), l, "k", time.Second)
		require.NoError(t, err)
		assert.GreaterOrEqual(t, len(lease.Token()), 26) // 128 bits in base32
		assert.False(t, seen[lease.Token()])
		seen[lease.Token()] = true
		require.NoError(t, lease.Unlock(t.Context()))
	}
}

func TestTryLock(t *testing.T) {
	bubble(t, "held", func(t *testing.T) {
		l := &fake{}
		_, err := locker.TryLock(t.Context(), l, "k", time.Minute)
		require.NoError(t, err)
		start := time.Now()
		lease, err := locker.TryLock(t.Context(), l, "k", time.Minute)
		assert.Nil(t, lease)
		assert.ErrorIs(t, err, locker.ErrHeld)
		assert.Zero(t, time.Since(start), "it waited")
		a, _, r := l.counts()
		assert.Equal(t, 2, a)
		assert.Zero(t, r, "a refusal needs no cleanup")
	})

	bubble(t, "deadline counts from before the request", func(t *testing.T) {
		l := &fake{}
		l.onAcquire = func(ctx context.Context, token string, ttl time.Duration) (bool, error) {
			time.Sleep(300 * time.Millisecond)
			return l.doAcquire(ctx, "k", token, ttl)
		}
		start := time.Now()
		lease, err := locker.TryLock(t.Context(), l, "k", time.Second)
		require.NoError(t, err)
		assert.Equal(t, start.Add(time.Second), lease.Deadline())
	})

	bubble(t, "a reply after the deadline is a failure and is released", func(t *testing.T) {
		l := &fake{}
		l.onAcquire = func(ctx context.Context, token string, ttl time.Duration) (bool, error) {
			ok, err := l.doAcquire(ctx, "k", token, ttl+time.Second) // still held there
			time.Sleep(ttl)
			return ok, err
		}
		lease, err := locker.TryLock(t.Context(), l, "k", 100*time.Millisecond)
		assert.Nil(t, lease)
		assert.ErrorContains(t, err, "had passed")
		assert.NotErrorIs(t, err, locker.ErrNotHeld)
		synctest.Wait()
		assert.True(t, l.isFree("k"))
	})

	bubble(t, "success after the context ended is not returned", func(t *testing.T) {
		l := &fake{}
		ctx, cancel := context.WithCancel(t.Context())
		l.onAcquire = func(ctx context.Context, token string, ttl time.Duration) (bool, error) {
			ok, err := l.doAcquire(ctx, "k", token, ttl)
			cancel()
			return ok, err
		}
		lease, err := locker.TryLock(ctx, l, "k", time.Minute)
		assert.Nil(t, lease)
		assert.ErrorIs(t, err, context.Canceled)
		synctest.Wait()
		assert.True(t, l.isFree("k"))
	})

	t.Run("largest ttl", func(t *testing.T) {
		lease, err := locker.TryLock(t.Context(), &fake{}, "k", math.MaxInt64)
		require.NoError(t, err)
		assert.Greater(t, time.Until(lease.Deadline()), 200*365*24*time.Hour)
		assert.NoError(t, lease.Unlock(t.Context()))
	})
}

func TestCleanUp(t *testing.T) {
	type key struct{}
	bubble(t, "an error is released at once, on a live context with the caller's values", func(t *testing.T) {
		l := &fake{}
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "v"))
		l.onAcquire = func(ctx context.Context, token string, ttl time.Duration) (bool, error) {
			_, err := l.doAcquire(ctx, "k", token, ttl) // done, but the reply is lost
			cancel()
			return false, errors.Join(err, errBackend)
		}
		l.onRelease = func(ctx context.Context, token string) (bool, error) {
			assert.NoError(t, ctx.Err())
			assert.Equal(t, "v", ctx.Value(key{}))
			return l.doRelease(ctx, "k", token)
		}
		start := time.Now()
		_, err := locker.TryLock(ctx, l, "k", time.Minute)
		assert.ErrorIs(t, err, errBackend)
		synctest.Wait()
		assert.True(t, l.isFree("k"))
		assert.Zero(t, time.Since(start))
		assert.Equal(t, l.acquire, l.release, "another token")
	})

	bubble(t, "a mistake in an argument is nothing to clean up after", func(t *testing.T) {
		l := &fake{}
		for _, mistake := range []error{locker.ErrInvalidKey, locker.ErrInvalidToken, locker.ErrInvalidTTL} {
			l.onAcquire = func(context.Context, string, time.Duration) (bool, error) {
				return false, fmt.Errorf("not on this backend: %w", mistake)
			}
			_, err := locker.TryLock(t.Context(), l, "k", time.Minute)
			require.ErrorIs(t, err, mistake)
		}
		time.Sleep(time.Minute)
		assert.Empty(t, l.release)
	})

	bubble(t, "so is a request that certainly did nothing", func(t *testing.T) {
		l := &fake{onAcquire: func(context.Context, string, time.Duration) (bool, error) {
			return false, fmt.Errorf("wrapped: %w", undo.Needless(errBackend))
		}}
		_, err := locker.TryLock(t.Context(), l, "k", time.Minute)
		require.ErrorIs(t, err, errBackend)
		assert.ErrorContains(t, err, "wrapped: "+errBackend.Error())
		time.Sleep(time.Minute)
		assert.Empty(t, l.release)
	})

	bubble(t, "a request that arrives later is released, too", func(t *testing.T) {
		l := &fake{}
		l.onAcquire = func(ctx context.Context, token string, ttl time.Duration) (bool, error) {
			time.AfterFunc(time.Second, func() { l.doAcquire(context.Background(), "k", token, ttl) })
			return false, errBackend
		}
		start := time.Now()
		_, err := locker.TryLock(t.Context(), l, "k", time.Minute)
		require.ErrorIs(t, err, errBackend)
		assert.Zero(t, time.Since(start), "the caller waited for the cleanup")
		time.Sleep(2 * time.Second)
		assert.True(t, l.isFree("k"))
		_, _, n := l.counts()
		time.Sleep(time.Minute)
		_, _, later := l.counts()
		assert.Equal(t, n, later, "it goes on after a success")
	})

	bubble(t, "ends with the ttl, or five seconds after the backend answers", func(t *testing.T) {
		l := &fake{onAcquire: func(context.Context, string, time.Duration) (bool, error) { return false, errBackend }}
		for _, ttl := range []time.Duration{time.Second, time.Minute} {
			_, err := locker.TryLock(t.Context(), l, "k", ttl)
			require.ErrorIs(t, err, errBackend)
			time.Sleep(min(ttl, 7*time.Second))
			synctest.Wait()
			_, _, n := l.counts()
			assert.Less(t, n, 40, "not growing rests")
			time.Sleep(time.Minute)
			_, _, later := l.counts()
			assert.Equal(t, n, later)
		}
	})

	bubble(t, "bounded in number", func(t *testing.T) {
		l := &fake{onAcquire: func(context.Context, string, time.Duration) (bool, error) { return false, errBackend }}
		var running, most atomic.Int64
		l.onRelease = func(ctx context.Context, token string) (bool, error) {
			most.Store(max(most.Load(), running.Add(1)))
			<-ctx.Done()
			running.Add(-1)
			return false, ctx.Err()
		}
		for range 1000 {
			_, err := locker.TryLock(t.Context(), l, "k", time.Minute)
			require.ErrorIs(t, err, errBackend)
		}
		synctest.Wait()
		assert.LessOrEqual(t, running.Load(), int64(256))
		assert.Positive(t, running.Load())
		time.Sleep(2 * time.Minute)
		assert.Zero(t, running.Load())
	})
}

// Cleanups that hang on one backend leave those of another their slots, also when a Locker cannot be the key
// of a map.
func TestCleanUpIsPerLocker(t *testing.T) {
	noFence := func(context.Context, string) (uint64, bool, error) { return 0, false, errBackend }
	for name, wrap := range map[string]func(*fake) locker.Locker{
		"pointer":      func(l *fake) locker.Locker { return l },
		"uncomparable": func(l *fake) locker.Locker { return fencing{l, noFence} },
	} {
		bubble(t, name, func(t *testing.T) {
			var hanging atomic.Int64
			dead := &fake{
				onAcquire: func(context.Context, string, time.Duration) (bool, error) { return false, errBackend },
				onRelease: func(ctx context.Context, _ string) (bool, error) {
					hanging.Add(1)
					<-ctx.Done()
					return false, ctx.Err()
				},
			}
			for range 1000 {
				_, err := locker.TryLock(t.Context(), wrap(dead), "k", time.Minute)
				require.ErrorIs(t, err, errBackend)
			}
			synctest.Wait()
			assert.EqualValues(t, 256, hanging.Load())

			healthy := &fake{}
			healthy.onAcquire = func(ctx context.Context, token string, ttl time.Duration) (bool, error) {
				_, err := healthy.doAcquire(ctx, "k", token, ttl)
				return false, errors.Join(err, errBackend) // the reply is lost
			}
			_, err := locker.TryLock(t.Context(), healthy, "k", time.Minute)
			require.ErrorIs(t, err, errBackend)
			synctest.Wait()
			assert.True(t, healthy.isFree("k"), "the dead backend has all slots")
		})
	}
}

func TestResume(t *testing.T) {
	bubble(t, "takes over", func(t *testing.T) {
		l := &fake{}
		first, err := locker.TryLock(t.Context(), l, "k", time.Second, locker.WithKeepAlive())
		require.NoError(t, err)
		first.Detach()
		assert.ErrorIs(t, first.Unlock(t.Context()), locker.ErrNotHeld)
		assert.ErrorIs(t, first.Extend(t.Context(), time.Second), locker.ErrNotHeld)
		assert.False(t, l.isFree("k"))

		start := time.Now()
		second, err := locker.Resume(t.Context(), l, "k", first.Token(), time.Minute)
		require.NoError(t, err)
		assert.Equal(t, start.Add(time.Minute), second.Deadline())
		time.Sleep(30 * time.Second)
		_, n, _ := l.counts()
		assert.Equal(t, 1, n, "the detached lease still extends")
		require.NoError(t, second.Unlock(t.Context()))
		assert.True(t, l.isFree("k"))
	})
	bubble(t, "not held", func(t *testing.T) {
		_, err := locker.Resume(t.Context(), &fake{}, "k", "t", time.Second)
		assert.ErrorIs(t, err, locker.ErrNotHeld)
	})
	bubble(t, "a reply after the deadline", func(t *testing.T) {
		l := &fake{onExtend: func(_ context.Context, _ string, ttl time.Duration) (bool, error) {
			time.Sleep(ttl)
			return true, nil
		}}
		_, err := locker.Resume(t.Context(), l, "k", "t", time.Second)
		assert.ErrorIs(t, err, locker.ErrNotHeld)
	})
	bubble(t, "an error is not a loss, and may be repeated", func(t *testing.T) {
		l := &fake{}
		lease, err := locker.TryLock(t.Context(), l, "k", time.Minute)
		require.NoError(t, err)
		l.onExtend = func(context.Context, string, time.Duration) (bool, error) { return false, errBackend }
		_, err = locker.Resume(t.Context(), l, "k", lease.Token(), time.Minute)
		assert.ErrorIs(t, err, errBackend)
		assert.NotErrorIs(t, err, locker.ErrNotHeld)
		synctest.Wait()
		assert.True(t, l.isHeld("k", lease.Token()), "somebody else's lock was released")
		l.onExtend = nil
		_, err = locker.Resume(t.Context(), l, "k", lease.Token(), time.Minute)
		assert.NoError(t, err)
	})
	bubble(t, "a process that detached waits for its extension", func(t *testing.T) {
		l := &fake{}
		lease, err := locker.TryLock(t.Context(), l, "k", 3*time.Second, locker.WithKeepAlive())
		require.NoError(t, err)
		var ended time.Time
		l.extendBy(func(ctx context.Context, token string, ttl time.Duration) (bool, error) {
			time.Sleep(200 * time.Millisecond)
			defer func() { ended = time.Now() }()
			assert.NoError(t, ctx.Err(), "cut off, it may have arrived or not")
			return l.doExtend(ctx, "k", token, ttl)
		})
		time.Sleep(time.Second) // the first extension has begun
		lease.Detach()
		assert.False(t, ended.IsZero(), "an extension may still arrive")
	})
	bubble(t, "a process that detached waits for an Extend in another goroutine, too", func(t *testing.T) {
		l := &fake{}
		lease := tryLock(t, l, time.Minute)
		var ended atomic.Bool
		l.extendBy(func(ctx context.Context, token string, ttl time.Duration) (bool, error) {
			time.Sleep(200 * time.Millisecond)
			defer ended.Store(true)
			return l.doExtend(ctx, "k", token, ttl)
		})
		go func() { _ = lease.Extend(context.Background(), time.Millisecond) }()
		synctest.Wait()
		lease.Detach()
		assert.True(t, ended.Load(), "an extension may still arrive")
		assert.ErrorIs(t, lease.Extend(t.Context(), time.Second), locker.ErrNotHeld)
	})
}

// lateDone is a context that does something when it is first asked for Done.
type lateDone struct {
	context.Context
	before func()
	once   sync.Once
}

func (d *lateDone) Done() <-chan struct{} {
	d.once.Do(d.before)
	return d.Context.Done()
}

func TestDo(t *testing.T) {
	bubble(t, "holds, keeps alive and unlocks", func(t *testing.T) {
		l := &fake{}
		err := locker.Do(t.Context(), l, "k", time.Second, func(ctx context.Context) error {
			time.Sleep(5 * time.Second)
			assert.False(t, l.isFree("k"))
			return ctx.Err()
		})
		assert.NoError(t, err)
		assert.True(t, l.isFree("k"))
	})
	bubble(t, "error", func(t *testing.T) {
		l := &fake{}
		mine := errors.New("mine")
		err := locker.Do(t.Context(), l, "k", time.Second, func(context.Context) error { return mine })
		assert.True(t, err == mine, "identity of a plain error")
		assert.True(t, l.isFree("k"))
	})
	bubble(t, "panic", func(t *testing.T) {
		l := &fake{}
		assert.PanicsWithValue(t, "boom", func() {
			_ = locker.Do(t.Context(), l, "k", time.Second, func(context.Context) error { panic("boom") })
		})
		assert.True(t, l.isFree("k"))
	})
	bubble(t, "goexit", func(t *testing.T) {
		l := &fake{}
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = locker.Do(context.Background(), l, "k", time.Second, func(context.Context) error {
				runtime.Goexit()
				return nil
			})
		}()
		<-done
		assert.True(t, l.isFree("k"))
	})
	bubble(t, "loss cancels and is reported with fn's error", func(t *testing.T) {
		l := &fake{}
		mine := errors.New("mine")
		err := locker.Do(t.Context(), l, "k", time.Second, func(ctx context.Context) error {
			l.steal("k", time.Minute)
			<-ctx.Done()
			assert.Equal(t, locker.ErrNotHeld, context.Cause(ctx))
			return mine
		})
		assert.ErrorIs(t, err, mine)
		assert.ErrorIs(t, err, locker.ErrNotHeld)
		assert.True(t, l.isHeld("k", "thief"))
	})
	bubble(t, "fn's context ends with Do", func(t *testing.T) {
		var kept context.Context
		require.NoError(t, locker.Do(t.Context(), &fake{}, "k", time.Second, func(ctx context.Context) error {
			kept = ctx
			return ctx.Err()
		}))
		assert.ErrorIs(t, kept.Err(), context.Canceled)
	})
	bubble(t, "loss before fn has begun cancels, too", func(t *testing.T) {
		l := &fake{}
		ctx := &lateDone{Context: t.Context(), before: func() {
			l.steal("k", time.Minute)
			time.Sleep(time.Second / 2) // keep-alive notices
		}}
		err := locker.Do(ctx, l, "k", time.Second, func(ctx context.Context) error {
			<-ctx.Done()
			assert.Equal(t, locker.ErrNotHeld, context.Cause(ctx))
			return nil
		})
		assert.ErrorIs(t, err, locker.ErrNotHeld)
	})
	bubble(t, "loss is reported even when fn says nothing", func(t *testing.T) {
		l := &fake{onExtend: blackhole}
		start := time.Now()
		err := locker.Do(t.Context(), l, "k", time.Second, func(ctx context.Context) error {
			<-ctx.Done()
			assert.Equal(t, time.Second, time.Since(start), "cancelled at the deadline")
			return nil
		})
		assert.ErrorIs(t, err, locker.ErrNotHeld)
	})
	bubble(t, "the caller's cancellation reaches fn and unlocks", func(t *testing.T) {
		l := &fake{}
		ctx, cancel := context.WithCancel(t.Context())
		err := locker.Do(ctx, l, "k", time.Second, func(ctx context.Context) error {
			cancel()
			<-ctx.Done()
			return ctx.Err()
		})
		assert.ErrorIs(t, err, context.Canceled)
		assert.NotErrorIs(t, err, locker.ErrNotHeld)
		assert.True(t, l.isFree("k"))
	})
	bubble(t, "unlock's error is joined", func(t *testing.T) {
		l := &fake{onRelease: func(context.Context, string) (bool, error) { return false, errBackend }}
		mine := errors.New("mine")
		err := locker.Do(t.Context(), l, "k", time.Second, func(context.Context) error { return mine })
		assert.ErrorIs(t, err, mine)
		assert.ErrorIs(t, err, errBackend)
	})
	bubble(t, "options of the caller are left alone", func(t *testing.T) {
		opts := make([]locker.Option, 1, 4)
		opts[0] = locker.WithMaxHold(time.Minute)
		opts = opts[:1]
		require.NoError(t, locker.Do(t.Context(), &fake{}, "k", time.Second,
			func(context.Context) error { return nil }, opts...))
		assert.Nil(t, opts[:2][1])
	})
}

// plain hides what a Locker has beyond the three operations.
type plain struct{ locker.Locker }

func TestManyWaitersAllGetIt(t *testing.T) {
	bubble(t, "polling", func(t *testing.T) {
		l := plain{&fake{}}
		var inside atomic.Int64
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				lease, err := locker.Lock(t.Context(), l, "k", time.Minute)
				if !assert.NoError(t, err) {
					return
				}
				assert.EqualValues(t, 1, inside.Add(1))
				time.Sleep(time.Millisecond)
				inside.Add(-1)
				assert.NoError(t, lease.Unlock(t.Context()))
			})
		}
		wg.Wait()
	})
}
