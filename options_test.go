package locker_test

import (
	"context"
	"errors"
	"fmt"
	"math"
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

func TestWithMinHold(t *testing.T) {
	const period = time.Hour
	once := func(t *testing.T, l locker.Locker, fn func(context.Context) error) (bool, error) {
		t.Helper()
		return locker.TryDo(t.Context(), l, "k", time.Minute, fn, locker.WithMinHold(period))
	}
	nop := func(context.Context) error { return nil }
	for name, end := range map[string]error{"success": nil, "failure": errors.New("mine")} {
		bubble(t, "once a period after "+name, func(t *testing.T) {
			l := memory.New()
			for range 3 {
				start := time.Now()
				ran, err := once(t, l, func(context.Context) error {
					time.Sleep(10 * time.Minute)
					return end
				})
				assert.True(t, ran)
				assert.Equal(t, end, err)
				for time.Since(start) < period {
					ran, err := once(t, l, unreachable(t))
					assert.NoError(t, err)
					assert.False(t, ran)
					time.Sleep(5 * time.Minute)
				}
			}
		})
	}
	bubble(t, "after a panic", func(t *testing.T) {
		l := memory.New()
		assert.PanicsWithValue(t, "boom", func() {
			_, _ = once(t, l, func(context.Context) error { panic("boom") })
		})
		ran, err := once(t, l, unreachable(t))
		assert.NoError(t, err)
		assert.False(t, ran)
	})
	bubble(t, "exactly as long, longer or shorter than the ttl", func(t *testing.T) {
		for _, ttl := range []time.Duration{time.Second, time.Minute, time.Hour} {
			l := memory.New()
			lease := tryLock(t, l, ttl, locker.WithMinHold(time.Minute))
			require.NoError(t, lease.Unlock(t.Context()))
			assert.ErrorIs(t, lease.Unlock(t.Context()), locker.ErrNotHeld)
			time.Sleep(time.Minute - time.Nanosecond)
			_, err := locker.TryLock(t.Context(), l, "k", time.Second)
			assert.ErrorIs(t, err, locker.ErrHeld, ttl)
			time.Sleep(time.Nanosecond)
			_, err = locker.TryLock(t.Context(), l, "k", time.Second)
			assert.NoError(t, err, ttl)
		}
	})
	bubble(t, "held for longer anyway", func(t *testing.T) {
		l := &fake{}
		lease := tryLock(t, l, time.Minute, locker.WithMinHold(time.Second))
		time.Sleep(time.Second)
		assert.NoError(t, lease.Unlock(t.Context()))
		assert.True(t, l.isFree("k"))
		_, extended, released := l.counts()
		assert.Zero(t, extended)
		assert.Equal(t, 1, released)
	})
	bubble(t, "a waiter comes after it", func(t *testing.T) {
		l := memory.New()
		start := time.Now()
		require.NoError(t, tryLock(t, l, time.Second, locker.WithMinHold(period)).Unlock(t.Context()))
		lease, err := locker.Lock(t.Context(), l, "k", time.Second)
		require.NoError(t, err)
		assert.Equal(t, period, time.Since(start))
		assert.NoError(t, lease.Unlock(t.Context()))
	})
	bubble(t, "a holder that dies keeps it for its ttl only", func(t *testing.T) {
		l := memory.New()
		tryLock(t, l, time.Minute, locker.WithMinHold(period))
		time.Sleep(time.Minute)
		_, err := locker.TryLock(t.Context(), l, "k", time.Second)
		assert.NoError(t, err)
	})
	bubble(t, "Detach leaves the ttl as it is", func(t *testing.T) {
		l := &fake{}
		tryLock(t, l, time.Minute, locker.WithMinHold(time.Second)).Detach()
		_, extended, released := l.counts()
		assert.Zero(t, extended+released)
	})
	bubble(t, "the extension fails and is repeated", func(t *testing.T) {
		l := &fake{}
		lease := tryLock(t, l, time.Minute, locker.WithMinHold(period))
		start := time.Now()
		l.extendBy(func(ctx context.Context, token string, ttl time.Duration) (bool, error) {
			if time.Since(start) < 3*time.Second {
				return false, errBackend
			}
			return l.doExtend(ctx, "k", token, ttl)
		})
		assert.NoError(t, lease.Unlock(t.Context()))
		time.Sleep(time.Until(start.Add(period - time.Nanosecond)))
		assert.False(t, l.isFree("k"))
		time.Sleep(time.Nanosecond)
		assert.True(t, l.isFree("k"))
	})
	bubble(t, "the extension fails for good", func(t *testing.T) {
		l := &fake{}
		lease := tryLock(t, l, time.Minute, locker.WithMinHold(period))
		l.extendBy(func(context.Context, string, time.Duration) (bool, error) { return false, errBackend })
		start := time.Now()
		err := lease.Unlock(t.Context())
		assert.EqualError(t, err, `locker: unlock "k": extending to the minimum hold: backend down`)
		assert.ErrorIs(t, err, errBackend)
		assert.NotErrorIs(t, err, locker.ErrNotHeld)
		assert.Equal(t, 5*time.Second, time.Since(start))
		_, extended, released := l.counts()
		assert.Less(t, extended, 20)
		time.Sleep(50 * time.Second)
		assert.False(t, l.isFree("k"), "released early")
		assert.Zero(t, released)

		l.extendBy(nil)
		assert.NoError(t, lease.Unlock(t.Context()), "it may be repeated")
		time.Sleep(30 * time.Minute)
		assert.False(t, l.isFree("k"))
	})
	bubble(t, "the extension hangs", func(t *testing.T) {
		l := &fake{}
		lease := tryLock(t, l, time.Minute, locker.WithMinHold(period))
		l.extendBy(blackhole)
		start := time.Now()
		assert.ErrorIs(t, lease.Unlock(t.Context()), context.DeadlineExceeded)
		assert.Equal(t, 5*time.Second, time.Since(start))
		time.Sleep(time.Minute)
		l.extendBy(nil)
		assert.ErrorIs(t, lease.Unlock(t.Context()), locker.ErrNotHeld, "the lock has expired since")
	})
	bubble(t, "the extension arrived but its reply was lost", func(t *testing.T) {
		l := &fake{}
		lease := tryLock(t, l, time.Minute, locker.WithMinHold(period))
		first := true
		l.extendBy(func(ctx context.Context, token string, ttl time.Duration) (bool, error) {
			ok, err := l.doExtend(ctx, "k", token, ttl)
			if first {
				first = false
				return false, errBackend
			}
			return ok, err
		})
		assert.NoError(t, lease.Unlock(t.Context()))
		time.Sleep(30 * time.Minute)
		assert.False(t, l.isFree("k"))
	})
	bubble(t, "another has the lock", func(t *testing.T) {
		l := &fake{}
		lease := tryLock(t, l, time.Minute, locker.WithMinHold(period))
		l.steal("k", time.Minute)
		assert.ErrorIs(t, lease.Unlock(t.Context()), locker.ErrNotHeld)
		assert.True(t, l.isHeld("k", "thief"))
	})
	bubble(t, "the deadline has passed", func(t *testing.T) {
		l := &fake{}
		lease := tryLock(t, l, time.Second, locker.WithMinHold(period))
		l.mu.Lock()
		l.holder["k"] = hold{lease.Token(), time.Now().Add(time.Minute)} // the backend keeps it for longer
		l.mu.Unlock()
		time.Sleep(2 * time.Second)
		assert.ErrorIs(t, lease.Unlock(t.Context()), locker.ErrNotHeld)
		time.Sleep(30 * time.Minute)
		assert.False(t, l.isFree("k"), "it was not lost, as it turned out")
	})
	bubble(t, "longer than the backend can express", func(t *testing.T) {
		l := &fake{}
		l.extendBy(func(ctx context.Context, token string, ttl time.Duration) (bool, error) {
			if ttl > 30*time.Minute {
				return false, locker.ErrInvalidTTL
			}
			return l.doExtend(ctx, "k", token, ttl)
		})
		ran, err := once(t, l, unreachable(t))
		assert.False(t, ran)
		assert.EqualError(t, err, `locker: try do "k": WithMinHold(1h0m0s): invalid ttl`)
		assert.ErrorIs(t, err, locker.ErrInvalidTTL)
		time.Sleep(time.Second)
		assert.True(t, l.isFree("k"), "left behind")
	})
	bubble(t, "in a cohort", func(t *testing.T) {
		backend := memory.New()
		l := cohort.New(backend)
		start := time.Now()
		ran, err := once(t, l, nop)
		assert.NoError(t, err)
		assert.True(t, ran)
		for time.Since(start) < period {
			for _, other := range []locker.Locker{l, backend, cohort.New(backend)} {
				ran, err := once(t, other, unreachable(t))
				assert.NoError(t, err)
				assert.False(t, ran)
			}
			time.Sleep(5 * time.Minute)
		}
		ran, err = once(t, l, nop)
		assert.NoError(t, err)
		assert.True(t, ran)
		time.Sleep(2 * period)
	})
	bubble(t, "no effect", func(t *testing.T) {
		l := memory.New()
		for _, d := range []time.Duration{0, -time.Hour} {
			ran, err := locker.TryDo(t.Context(), l, "k", time.Second, nop, locker.WithMinHold(d))
			assert.NoError(t, err)
			assert.True(t, ran)
		}
		lease := tryLock(t, l, time.Second)
		lease.Detach()
		lease, err := locker.Resume(t.Context(), l, "k", lease.Token(), time.Second, locker.WithMinHold(period))
		require.NoError(t, err)
		require.NoError(t, lease.Unlock(t.Context()))
		require.NoError(t, tryLock(t, l, time.Second).Unlock(t.Context()))
	})
}

func TestWithRetry(t *testing.T) {
	// down is a backend that is down for d.
	down := func(d time.Duration) *fake {
		l := &fake{}
		start := time.Now()
		l.onAcquire = func(ctx context.Context, token string, ttl time.Duration) (bool, error) {
			if time.Since(start) < d {
				return false, errBackend
			}
			return l.doAcquire(ctx, "k", token, ttl)
		}
		return l
	}
	bubble(t, "the last backend error is kept", func(t *testing.T) {
		for name, then := range map[string]func(ctx context.Context, token string, ttl time.Duration) (bool, error){
			"refused": func(context.Context, string, time.Duration) (bool, error) { return false, nil },
			"hangs":   blackhole,
			"late": func(_ context.Context, _ string, ttl time.Duration) (bool, error) {
				time.Sleep(max(ttl, time.Minute))
				return true, nil
			},
		} {
			l := down(100 * time.Millisecond)
			first := l.onAcquire
			start := time.Now()
			l.onAcquire = func(ctx context.Context, token string, ttl time.Duration) (bool, error) {
				if time.Since(start) < 100*time.Millisecond {
					return first(ctx, token, ttl)
				}
				return then(ctx, token, ttl)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := locker.Lock(ctx, l, "k", time.Second, locker.WithRetry())
			assert.ErrorIs(t, err, context.DeadlineExceeded, name)
			assert.ErrorIs(t, err, errBackend, name)
			assert.Equal(t, name == "refused", errors.Is(err, locker.ErrHeld), name)
		}
	})
	bubble(t, "outlasts an outage", func(t *testing.T) {
		for name, lock := range map[string]func(l locker.Locker) error{
			"Lock": func(l locker.Locker) error {
				_, err := locker.Lock(t.Context(), l, "k", time.Second, locker.WithRetry())
				return err
			},
			"Do": func(l locker.Locker) error {
				return locker.Do(t.Context(), l, "k", time.Second, func(context.Context) error { return nil }, locker.WithRetry())
			},
			"DoAll": func(l locker.Locker) error {
				return locker.DoAll(t.Context(), l, []string{"k"}, time.Second, func(context.Context) error { return nil },
					locker.WithRetry(), locker.WithOwner("me"))
			},
		} {
			l := down(time.Minute)
			start := time.Now()
			assert.NoError(t, lock(l), name)
			assert.GreaterOrEqual(t, time.Since(start), time.Minute, name)
			assert.Less(t, time.Since(start), 61*time.Second, name)
			assert.Less(t, len(l.acquire), 150, name)
			tokens := map[string]bool{}
			for _, token := range l.acquire {
				assert.False(t, tokens[token], "a token that was used up: %s", name)
				tokens[token] = true
			}
		}
	})
	bubble(t, "no longer than ctx allows", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		start := time.Now()
		_, err := locker.Lock(ctx, down(time.Hour), "k", time.Second, locker.WithRetry())
		assert.Equal(t, 10*time.Second, time.Since(start))
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.ErrorIs(t, err, errBackend)
		assert.NotErrorIs(t, err, locker.ErrHeld)
	})
	bubble(t, "an error that cannot be compared", func(t *testing.T) {
		var tried bool
		l := &fake{onAcquire: func(ctx context.Context, _ string, _ time.Duration) (bool, error) {
			if tried {
				return blackhole(ctx, "", 0)
			}
			tried = true
			return false, incomparable{[]int{1}}
		}}
		for range 2 { // ctx ends during the second try, and before it
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := locker.Lock(ctx, l, "k", time.Second, locker.WithRetry())
			assert.ErrorIs(t, err, context.DeadlineExceeded)
			assert.ErrorAs(t, err, new(incomparable))
			l.onAcquire = func(context.Context, string, time.Duration) (bool, error) { return false, incomparable{[]int{1}} }
		}
	})
	bubble(t, "a refusal before the outage counts", func(t *testing.T) {
		l := &fake{}
		tryLock(t, l, time.Minute)
		l.onAcquire = func(ctx context.Context, token string, ttl time.Duration) (bool, error) {
			if len(l.acquire) > 3 {
				return false, errBackend
			}
			return false, nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := locker.Lock(ctx, l, "k", time.Second, locker.WithRetry())
		assert.ErrorIs(t, err, locker.ErrHeld)
		assert.ErrorIs(t, err, errBackend)
	})
	bubble(t, "what is not retried", func(t *testing.T) {
		_, err := locker.Lock(t.Context(), down(time.Second), "k", time.Second)
		assert.ErrorIs(t, err, errBackend, "without the option")
		l := &fake{onAcquire: func(context.Context, string, time.Duration) (bool, error) { return false, locker.ErrInvalidTTL }}
		_, err = locker.Lock(t.Context(), l, "k", time.Second, locker.WithRetry())
		assert.ErrorIs(t, err, locker.ErrInvalidTTL)
		_, err = locker.TryLock(t.Context(), down(time.Second), "k", time.Second, locker.WithRetry())
		assert.ErrorIs(t, err, errBackend)
	})
	t.Run("with a token", func(t *testing.T) {
		_, err := locker.Lock(t.Context(), &fake{}, "k", time.Second, locker.WithRetry(), locker.WithToken("t"))
		assert.EqualError(t, err, `locker: lock "k": WithRetry needs a new token for each try, `+
			`so it cannot be combined with WithToken`)
	})
}

// incomparable is an error that == panics about.
type incomparable struct{ v any }

func (incomparable) Error() string { return "incomparable" }

func TestWithOwner(t *testing.T) {
	l := memory.New()
	for _, label := range []string{"billing@host-1", "käse/1", "1700000000:x", strings.Repeat("x", 900)} {
		a := tryLock(t, l, time.Minute, locker.WithOwner(label))
		require.NoError(t, a.Unlock(t.Context()))
		b := tryLock(t, l, time.Minute, locker.WithOwner(label))
		require.NoError(t, b.Unlock(t.Context()))
		random, found := strings.CutPrefix(a.Token(), label+"/")
		assert.True(t, found, a.Token())
		assert.GreaterOrEqual(t, len(random), 26)
		assert.NotEqual(t, a.Token(), b.Token())
		assert.LessOrEqual(t, len(a.Token()), 1024)
	}
	for label, want := range map[string]string{
		"a\nb":                   `control character in owner label "a\nb"`,
		"\x7f":                   `control character in owner label "\x7f"`,
		"\xff":                   `owner label "\xff" is not UTF-8`,
		strings.Repeat("x", 901): "owner label of 901 bytes, more than 900",
	} {
		_, err := locker.TryLock(t.Context(), l, "k", time.Minute, locker.WithOwner(label))
		assert.EqualError(t, err, fmt.Sprintf(`locker: try lock "k": invalid token: %s`, want))
		assert.ErrorIs(t, err, locker.ErrInvalidToken)
	}
	lease := tryLock(t, l, time.Minute, locker.WithOwner(""))
	assert.Len(t, lease.Token(), 26)
	require.NoError(t, lease.Unlock(t.Context()))
	lease = tryLock(t, l, time.Minute, locker.WithOwner("me"), locker.WithToken("mine"))
	assert.Equal(t, "mine", lease.Token())
}

// The longest durations are options like any other.
func TestLongestDurations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, opt := range []locker.Option{
			locker.WithKeepAlive(), locker.WithMaxHold(math.MaxInt64), locker.WithMinHold(math.MaxInt64),
		} {
			l := memory.New()
			lease, err := locker.Lock(t.Context(), l, "k", math.MaxInt64, locker.WithKeepAlive(), opt)
			require.NoError(t, err)
			time.Sleep(time.Hour)
			_, err = locker.TryLock(t.Context(), l, "k", time.Second)
			require.ErrorIs(t, err, locker.ErrHeld)
			require.NoError(t, lease.Extend(t.Context(), math.MaxInt64))
			require.NoError(t, lease.Unlock(t.Context()))
		}
	})
}
