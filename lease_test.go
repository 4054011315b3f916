package locker_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func tryLock(t *testing.T, l locker.Locker, ttl time.Duration, opts ...locker.Option) *locker.Lease {
	lease, err := locker.TryLock(t.Context(), l, "k", ttl, opts...)
	require.NoError(t, err)
	return lease
}

func TestNoLease(t *testing.T) {
	for name, lease := range map[string]*locker.Lease{"nil": nil, "zero": {}} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			assert.ErrorIs(t, lease.Unlock(ctx), locker.ErrNotHeld)
			assert.ErrorIs(t, lease.Extend(ctx, time.Second), locker.ErrNotHeld)
			_, err := lease.Fence(ctx)
			assert.ErrorIs(t, err, locker.ErrNotHeld)
			assert.True(t, isClosed(lease.Lost()))
			assert.True(t, lease.Deadline().IsZero())
			assert.Empty(t, lease.Key())
			assert.Empty(t, lease.Token())
			lease.Detach()
		})
	}
}

func TestUnlock(t *testing.T) {
	bubble(t, "on a cancelled context", func(t *testing.T) {
		l := &fake{}
		type key struct{}
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "v"))
		lease, err := locker.Lock(ctx, l, "k", time.Minute)
		require.NoError(t, err)
		cancel()
		l.onRelease = func(ctx context.Context, token string) (bool, error) {
			assert.Equal(t, "v", ctx.Value(key{}))
			_, ok := ctx.Deadline()
			assert.True(t, ok)
			return l.doRelease(ctx, "k", token)
		}
		assert.NoError(t, lease.Unlock(ctx))
		assert.True(t, l.isFree("k"))
	})
	bubble(t, "twice", func(t *testing.T) {
		l := &fake{}
		lease := tryLock(t, l, time.Minute)
		lost := lease.Lost()
		require.NoError(t, lease.Unlock(t.Context()))
		other := tryLock(t, l, time.Minute)
		assert.ErrorIs(t, lease.Unlock(t.Context()), locker.ErrNotHeld)
		assert.True(t, l.isHeld("k", other.Token()))
		time.Sleep(time.Hour)
		assert.False(t, isClosed(lost), "a clean unlock is no loss")
	})
	bubble(t, "after the deadline, of a lock that the backend still keeps", func(t *testing.T) {
		l := &fake{}
		l.onAcquire = func(ctx context.Context, token string, ttl time.Duration) (bool, error) {
			return l.doAcquire(ctx, "k", token, ttl+10*time.Second)
		}
		lease := tryLock(t, l, time.Second)
		time.Sleep(2 * time.Second)
		assert.ErrorIs(t, lease.Unlock(t.Context()), locker.ErrNotHeld)
		assert.True(t, l.isFree("k"), "others wait for nothing")
		assert.ErrorIs(t, lease.Unlock(t.Context()), locker.ErrNotHeld)
		assert.True(t, isClosed(lease.Lost()))
	})
	bubble(t, "of a stolen lock", func(t *testing.T) {
		l := &fake{}
		lease := tryLock(t, l, time.Minute)
		l.steal("k", time.Hour)
		assert.ErrorIs(t, lease.Unlock(t.Context()), locker.ErrNotHeld)
		assert.True(t, l.isHeld("k", "thief"))
	})
	bubble(t, "repeated after a lost reply that had released", func(t *testing.T) {
		l := &fake{}
		lease := tryLock(t, l, time.Minute)
		l.onRelease = func(ctx context.Context, token string) (bool, error) {
			_, err := l.doRelease(ctx, "k", token)
			return false, errors.Join(err, errBackend)
		}
		err := lease.Unlock(t.Context())
		assert.ErrorIs(t, err, errBackend)
		assert.NotErrorIs(t, err, locker.ErrNotHeld)
		assert.EqualError(t, err, `locker: unlock "k": backend down`)
		l.onRelease = nil
		assert.NoError(t, lease.Unlock(t.Context()), "finding nothing is what the first one did")
		assert.ErrorIs(t, lease.Unlock(t.Context()), locker.ErrNotHeld)
	})
	bubble(t, "repeated after a lost request", func(t *testing.T) {
		l := &fake{onRelease: func(context.Context, string) (bool, error) { return false, errBackend }}
		lease := tryLock(t, l, time.Minute)
		assert.ErrorIs(t, lease.Unlock(t.Context()), errBackend)
		assert.ErrorIs(t, lease.Unlock(t.Context()), errBackend)
		l.onRelease = nil
		assert.NoError(t, lease.Unlock(t.Context()))
		assert.True(t, l.isFree("k"))
	})
	bubble(t, "of a hung backend ends after five seconds", func(t *testing.T) {
		l := &fake{onRelease: func(ctx context.Context, _ string) (bool, error) {
			<-ctx.Done()
			return false, ctx.Err()
		}}
		lease := tryLock(t, l, time.Minute)
		start := time.Now()
		assert.ErrorIs(t, lease.Unlock(t.Context()), context.DeadlineExceeded)
		assert.Equal(t, 5*time.Second, time.Since(start))
	})
	bubble(t, "while another Unlock is under way", func(t *testing.T) {
		l := &fake{}
		lease := tryLock(t, l, time.Minute)
		l.onRelease = func(ctx context.Context, token string) (bool, error) {
			time.Sleep(time.Second)
			return l.doRelease(ctx, "k", token)
		}
		first := make(chan error)
		go func() { first <- lease.Unlock(context.Background()) }()
		synctest.Wait()
		assert.ErrorIs(t, lease.Unlock(t.Context()), locker.ErrNotHeld)
		assert.NoError(t, <-first)
	})
}

// The context that Unlock releases on must behave as the standard library's do.
func TestUnlockContext(t *testing.T) {
	bubble(t, "derived contexts end with it", func(t *testing.T) {
		l := &fake{}
		lease := tryLock(t, l, time.Minute)
		var child context.Context
		var cancel context.CancelFunc
		l.onRelease = func(ctx context.Context, token string) (bool, error) {
			child, cancel = context.WithCancel(ctx)
			assert.NoError(t, child.Err())
			return l.doRelease(ctx, "k", token)
		}
		require.NoError(t, lease.Unlock(t.Context()))
		<-child.Done() // its parent's end
		assert.ErrorIs(t, child.Err(), context.Canceled)
		cancel()
	})
	bubble(t, "its cause is its own, not that of the caller's context", func(t *testing.T) {
		l := &fake{}
		ctx, cancel := context.WithCancel(t.Context())
		lease, err := locker.Lock(ctx, l, "k", time.Minute)
		require.NoError(t, err)
		cancel()
		l.onRelease = func(ctx context.Context, _ string) (bool, error) {
			assert.NoError(t, context.Cause(ctx))
			<-ctx.Done()
			return false, context.Cause(ctx)
		}
		assert.ErrorIs(t, lease.Unlock(ctx), context.DeadlineExceeded)
	})
	bubble(t, "Err and Done agree at the deadline", func(t *testing.T) {
		l := &fake{}
		lease := tryLock(t, l, time.Minute)
		l.onRelease = func(ctx context.Context, token string) (bool, error) {
			deadline, _ := ctx.Deadline()
			time.Sleep(time.Until(deadline))
			assert.ErrorIs(t, ctx.Err(), context.DeadlineExceeded)
			assert.True(t, isClosed(ctx.Done()))
			return false, ctx.Err()
		}
		assert.ErrorIs(t, lease.Unlock(t.Context()), context.DeadlineExceeded)
	})
}

func TestLost(t *testing.T) {
	bubble(t, "at the deadline, not before", func(t *testing.T) {
		lease := tryLock(t, &fake{}, time.Second)
		lost := lease.Lost()
		time.Sleep(time.Second - 1)
		assert.False(t, isClosed(lost))
		time.Sleep(1 * time.Nanosecond)
		synctest.Wait()
		assert.True(t, isClosed(lost))
	})
	bubble(t, "asked for after the deadline", func(t *testing.T) {
		lease := tryLock(t, &fake{}, time.Second)
		time.Sleep(time.Second)
		assert.True(t, isClosed(lease.Lost()), "who polls goes on for another round")
	})
	bubble(t, "moved by Extend", func(t *testing.T) {
		lease := tryLock(t, &fake{}, time.Second)
		lost := lease.Lost()
		require.NoError(t, lease.Extend(t.Context(), 3*time.Second))
		time.Sleep(3*time.Second - 1)
		assert.False(t, isClosed(lost))
		require.NoError(t, lease.Extend(t.Context(), 2*time.Second))
		require.NoError(t, lease.Extend(t.Context(), time.Millisecond))
		time.Sleep(time.Millisecond)
		synctest.Wait()
		assert.True(t, isClosed(lost))
	})
	bubble(t, "moved nearer by Extend", func(t *testing.T) {
		lease := tryLock(t, &fake{}, time.Hour)
		lost := lease.Lost()
		require.NoError(t, lease.Extend(t.Context(), time.Second))
		time.Sleep(time.Second)
		synctest.Wait()
		assert.True(t, isClosed(lost))
	})
	bubble(t, "not by what is refused after Unlock", func(t *testing.T) {
		l := fencing{fake: &fake{}}
		l.fence = func(context.Context, string) (uint64, bool, error) {
			time.Sleep(time.Second)
			return 0, false, nil
		}
		lease := tryLock(t, l, time.Minute)
		lost := lease.Lost()
		l.extendBy(func(ctx context.Context, token string, ttl time.Duration) (bool, error) {
			time.Sleep(time.Second)
			return l.doExtend(ctx, "k", token, ttl)
		})
		results := make(chan error, 2)
		go func() { results <- lease.Extend(context.Background(), time.Hour) }()
		go func() { _, err := lease.Fence(context.Background()); results <- err }()
		synctest.Wait()
		require.NoError(t, lease.Unlock(t.Context()))
		assert.ErrorIs(t, <-results, locker.ErrNotHeld)
		assert.ErrorIs(t, <-results, locker.ErrNotHeld)
		assert.False(t, isClosed(lost), "a clean unlock is no loss")
	})
	bubble(t, "by a refused Extend", func(t *testing.T) {
		l := &fake{}
		lease := tryLock(t, l, time.Minute)
		lost := lease.Lost()
		l.steal("k", time.Minute)
		assert.ErrorIs(t, lease.Extend(t.Context(), time.Minute), locker.ErrNotHeld)
		assert.True(t, isClosed(lost))
		assert.ErrorIs(t, lease.Unlock(t.Context()), locker.ErrNotHeld)
		assert.True(t, isClosed(lost))
		_, _, released := l.counts()
		assert.Zero(t, released, "nothing to release")
	})
	bubble(t, "never after Detach", func(t *testing.T) {
		lease := tryLock(t, &fake{}, time.Second)
		lost := lease.Lost()
		lease.Detach()
		time.Sleep(time.Hour)
		assert.False(t, isClosed(lost))
	})
}

func TestExtend(t *testing.T) {
	bubble(t, "replaces the remaining time", func(t *testing.T) {
		lease := tryLock(t, &fake{}, time.Minute)
		start := time.Now()
		for range 3 {
			require.NoError(t, lease.Extend(t.Context(), 2*time.Minute))
		}
		assert.Equal(t, start.Add(2*time.Minute), lease.Deadline())
		require.NoError(t, lease.Extend(t.Context(), time.Second))
		assert.Equal(t, start.Add(time.Second), lease.Deadline())
	})
	bubble(t, "an invalid ttl changes nothing", func(t *testing.T) {
		l := &fake{}
		lease := tryLock(t, l, time.Minute)
		before := lease.Deadline()
		assert.ErrorIs(t, lease.Extend(t.Context(), 0), locker.ErrInvalidTTL)
		assert.Equal(t, before, lease.Deadline())
		_, n, _ := l.counts()
		assert.Zero(t, n)
	})
	bubble(t, "a done context changes nothing", func(t *testing.T) {
		l := &fake{}
		lease := tryLock(t, l, time.Minute)
		before := lease.Deadline()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		assert.ErrorIs(t, lease.Extend(ctx, time.Millisecond), context.Canceled)
		assert.Equal(t, before, lease.Deadline())
		_, n, _ := l.counts()
		assert.Zero(t, n)
	})
	bubble(t, "the earlier deadline counts while the outcome is unknown", func(t *testing.T) {
		l := &fake{}
		lease := tryLock(t, l, time.Minute)
		start := time.Now()
		l.onExtend = func(_ context.Context, _ string, ttl time.Duration) (bool, error) {
			assert.Equal(t, start.Add(min(ttl, time.Minute)), lease.Deadline())
			return false, errBackend
		}
		assert.ErrorIs(t, lease.Extend(t.Context(), time.Hour), errBackend)
		assert.Equal(t, start.Add(time.Minute), lease.Deadline(), "longer: the old one stays")
		assert.ErrorIs(t, lease.Extend(t.Context(), time.Second), errBackend)
		assert.Equal(t, start.Add(time.Second), lease.Deadline(), "shorter: it may have happened")
		l.onExtend = nil
		require.NoError(t, lease.Extend(t.Context(), time.Hour))
		assert.Equal(t, start.Add(time.Second), lease.Deadline(), "the shorter one may arrive yet")
	})
	bubble(t, "one that was refused for its ttl has not happened", func(t *testing.T) {
		l := &fake{}
		lease := tryLock(t, l, time.Minute)
		l.onExtend = func(context.Context, string, time.Duration) (bool, error) { return false, locker.ErrInvalidTTL }
		assert.ErrorIs(t, lease.Extend(t.Context(), time.Second), locker.ErrInvalidTTL)
		l.onExtend = nil
		require.NoError(t, lease.Extend(t.Context(), time.Hour))
		assert.Equal(t, time.Hour, time.Until(lease.Deadline()))
	})
	bubble(t, "confirmed after the old deadline, the lease is lost", func(t *testing.T) {
		l := &fake{}
		lease := tryLock(t, l, time.Second)
		l.onExtend = func(context.Context, string, time.Duration) (bool, error) {
			time.Sleep(2 * time.Second)
			return true, nil
		}
		assert.ErrorIs(t, lease.Extend(t.Context(), time.Minute), locker.ErrNotHeld)
		assert.True(t, isClosed(lease.Lost()))
	})
	bubble(t, "one at a time, and a waiting one leaves with its context", func(t *testing.T) {
		l := &fake{}
		lease := tryLock(t, l, time.Minute)
		l.onExtend = func(context.Context, string, time.Duration) (bool, error) {
			time.Sleep(2 * time.Second)
			return true, nil
		}
		go func() { _ = lease.Extend(context.Background(), time.Minute) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		assert.ErrorIs(t, lease.Extend(ctx, time.Minute), context.DeadlineExceeded)
		assert.Equal(t, time.Second, time.Since(start))
		time.Sleep(time.Second)
		_, n, _ := l.counts()
		assert.Equal(t, 1, n)
	})
	bubble(t, "that overlaps Unlock does not bring the lease back", func(t *testing.T) {
		l := &fake{}
		lease := tryLock(t, l, time.Minute)
		l.onExtend = func(context.Context, string, time.Duration) (bool, error) {
			time.Sleep(time.Second)
			return true, nil
		}
		result := make(chan error)
		go func() { result <- lease.Extend(context.Background(), time.Hour) }()
		synctest.Wait()
		require.NoError(t, lease.Unlock(t.Context()))
		assert.ErrorIs(t, <-result, locker.ErrNotHeld)
		assert.Less(t, time.Until(lease.Deadline()), time.Hour-time.Minute)
	})
}

// A timer that goes on would keep the lease, and all that hangs on it, until it fires.
func TestEndedLeaseIsGarbage(t *testing.T) {
	for name, end := range map[string]func(*testing.T, *fake, *locker.Lease){
		"Unlock": func(t *testing.T, _ *fake, lease *locker.Lease) {
			assert.NoError(t, lease.Unlock(t.Context()))
		},
		"Unlock of unknown outcome": func(t *testing.T, l *fake, lease *locker.Lease) {
			l.onRelease = func(context.Context, string) (bool, error) { return false, errBackend }
			assert.ErrorIs(t, lease.Unlock(t.Context()), errBackend)
		},
		"Detach": func(_ *testing.T, _ *fake, lease *locker.Lease) { lease.Detach() },
		"loss": func(t *testing.T, l *fake, lease *locker.Lease) {
			l.onExtend = func(context.Context, string, time.Duration) (bool, error) { return false, nil }
			assert.ErrorIs(t, lease.Extend(t.Context(), 24*time.Hour), locker.ErrNotHeld)
		},
	} {
		t.Run(name, func(t *testing.T) {
			var gone atomic.Bool
			func() {
				l := new(fake)
				lease := tryLock(t, l, 24*time.Hour, locker.WithKeepAlive())
				lease.Lost()
				runtime.AddCleanup(lease, func(int) { gone.Store(true) }, 0)
				end(t, l, lease)
			}()
			for end := time.Now().Add(10 * time.Second); !gone.Load(); time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("the lease is kept in memory")
				}
				runtime.GC()
			}
		})
	}
}

type fencing struct {
	*fake
	fence func(ctx context.Context, token string) (uint64, bool, error)
}

func (f fencing) Fence(ctx context.Context, _, token string) (uint64, bool, error) {
	return f.fence(ctx, token)
}

func TestFence(t *testing.T) {
	bubble(t, "unsupported", func(t *testing.T) {
		_, err := tryLock(t, &fake{}, time.Minute).Fence(t.Context())
		assert.ErrorIs(t, err, errors.ErrUnsupported)
	})
	bubble(t, "passes on what the backend says", func(t *testing.T) {
		l := fencing{fake: &fake{}}
		l.fence = func(_ context.Context, token string) (uint64, bool, error) {
			assert.Equal(t, "mine", token)
			return 7, true, nil
		}
		lease := tryLock(t, l, time.Minute, locker.WithToken("mine"))
		n, err := lease.Fence(t.Context())
		require.NoError(t, err)
		assert.EqualValues(t, 7, n)
	})
	bubble(t, "an error is not a loss", func(t *testing.T) {
		l := fencing{&fake{}, func(context.Context, string) (uint64, bool, error) { return 0, false, errBackend }}
		lease := tryLock(t, l, time.Minute)
		_, err := lease.Fence(t.Context())
		assert.ErrorIs(t, err, errBackend)
		assert.NoError(t, lease.Unlock(t.Context()))
	})
	bubble(t, "a refusal is loss", func(t *testing.T) {
		l := fencing{&fake{}, func(context.Context, string) (uint64, bool, error) { return 3, false, nil }}
		lease := tryLock(t, l, time.Minute)
		n, err := lease.Fence(t.Context())
		assert.ErrorIs(t, err, locker.ErrNotHeld)
		assert.Zero(t, n)
		assert.True(t, isClosed(lease.Lost()))
	})
	bubble(t, "not after the deadline", func(t *testing.T) {
		l := fencing{&fake{}, func(context.Context, string) (uint64, bool, error) {
			t.Error("the backend was asked")
			return 1, true, nil
		}}
		lease := tryLock(t, l, time.Second)
		time.Sleep(time.Second)
		_, err := lease.Fence(t.Context())
		assert.ErrorIs(t, err, locker.ErrNotHeld)
	})
}

// A lease prints what it is and never its token.
func TestLeaseString(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		var none *locker.Lease
		assert.Equal(t, "no lease", none.String())
		assert.Equal(t, "no lease", new(locker.Lease).String())
		l := &fake{}
		lease := tryLock(t, l, time.Minute, locker.WithToken("secret"))
		time.Sleep(500 * time.Millisecond)
		assert.Equal(t, `lease of "k", held for 59.5s`, lease.String())
		for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
			assert.Equal(t, lease.String(), fmt.Sprintf(format, lease), format)
		}
		assert.NotContains(t, fmt.Sprint(locker.Leases{lease}), "secret")
		require.NoError(t, lease.Unlock(t.Context()))
		assert.Equal(t, `lease of "k", ended`, lease.String())
		lease = tryLock(t, l, time.Minute)
		time.Sleep(time.Hour)
		assert.Equal(t, `lease of "k", lost`, lease.String())
	})
}
