package conformance

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance/internal/harness"
	"github.com/golockers/locker/conformance/internal/mutants"
	"github.com/golockers/locker/internal/testserver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The suite must pass on correct Lockers that are unusual in some way.

// passes runs the suite in a bubble.
func passes(t *testing.T, c harness.Config) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { noFalseAlarm(t, c) })
}

// noFalseAlarm runs the suite, in the bubble that the caller is in.
func noFalseAlarm(t *testing.T, c harness.Config) {
	t.Helper()
	s, err := harness.NewSuite(t, c, checks())
	if !assert.NoError(t, err) {
		return
	}
	defer s.Close()
	bubble(s, 5*time.Millisecond)
	for name, r := range s.RunAll(t) {
		assert.False(t, r.Failed(), "%s: %s", name, r.Printed())
		assert.False(t, r.Inconclusive(), "%s: %s", name, r.Why())
	}
}

func TestNoFalseAlarmSlow(t *testing.T) {
	t.Parallel()
	passes(t, mutants.Fakes(func(f *mutants.Fake) {
		mutants.Slowly(f, mutants.Fixed(15*time.Millisecond), mutants.Fixed(15*time.Millisecond))
	}))
}

func TestNoFalseAlarmJitter(t *testing.T) {
	t.Parallel()
	jitter := func() time.Duration {
		if rand.IntN(100) == 0 {
			return rand.N(400 * time.Millisecond)
		}
		return rand.N(5 * time.Millisecond)
	}
	passes(t, mutants.Fakes(func(f *mutants.Fake) { mutants.Slowly(f, jitter, jitter) }))
}

// A backend that counts whole seconds, as memcached does: ttls are rounded up, and one is added
// since the current second has begun already.
func TestNoFalseAlarmWholeSeconds(t *testing.T) {
	t.Parallel()
	c := mutants.Fakes(func(f *mutants.Fake) {
		f.Timed(func(ttl time.Duration) time.Duration {
			if ttl > 30*24*time.Hour {
				return ttl
			}
			now := time.Now()
			return (ttl + time.Second - 1).Truncate(time.Second) + time.Second - now.Sub(now.Truncate(time.Second))
		})
		f.OnWait = nil // its deadline would be wrong
	})
	lockers := c.New
	c.New = func(tb testing.TB, addr string) locker.Locker { return struct{ locker.Locker }{lockers(tb, addr)} }
	c.Granularity = 2 * time.Second
	passes(t, c)
}

// A backend that reports the time that is left in whole seconds, by a clock of its own.
func TestNoFalseAlarmSecondsLeft(t *testing.T) {
	t.Parallel()
	c := mutants.Fakes(func(f *mutants.Fake) {
		var calls atomic.Int64
		seconds := func(info locker.Info) locker.Info {
			if calls.Add(1)%2 == 0 {
				info.TTL += time.Second - 1
			}
			info.TTL = info.TTL.Truncate(time.Second)
			return info
		}
		inspect, list := f.OnInspect, f.OnList
		f.OnInspect = func(ctx context.Context, key string) (locker.Info, error) {
			info, err := inspect(ctx, key)
			return seconds(info), err
		}
		f.OnList = func(ctx context.Context, prefix string) iter.Seq2[locker.Info, error] {
			return func(yield func(locker.Info, error) bool) {
				for info, err := range list(ctx, prefix) {
					if !yield(seconds(info), err) {
						return
					}
				}
			}
		}
	})
	c.Granularity = time.Second
	passes(t, c)
}

// A backend that can only compare and swap: under contention the Locker tries again, as often as it
// takes or, as docs/adapters.md says, three times.
func TestNoFalseAlarmCompareAndSwap(t *testing.T) {
	t.Parallel()
	for _, attempts := range []int{-1, 3} {
		c := mutants.Fakes(func(f *mutants.Fake) { mutants.CompareAndSwap(f, attempts) })
		lockers := c.New
		c.New = func(tb testing.TB, addr string) locker.Locker { return struct{ locker.Locker }{lockers(tb, addr)} }
		passes(t, c)
	}
}

// A backend that cannot express long ttls.
func TestNoFalseAlarmShortTimesOnly(t *testing.T) {
	t.Parallel()
	passes(t, mutants.Fakes(func(f *mutants.Fake) {
		acquire, extend := f.OnAcquire, f.OnExtend
		f.OnAcquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
			if ttl > 7*24*time.Hour {
				return false, fmt.Errorf("acquire: %w", locker.ErrInvalidTTL)
			}
			return acquire(ctx, key, token, ttl)
		}
		f.OnExtend = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
			if ttl > 7*24*time.Hour {
				return false, fmt.Errorf("extend: %w", locker.ErrInvalidTTL)
			}
			return extend(ctx, key, token, ttl)
		}
	}))
}

// A backend so busy that concurrent requests fail now and then, all of them at once.
func TestNoFalseAlarmErrors(t *testing.T) {
	t.Parallel()
	var races atomic.Int64
	of := make(map[string]int64)
	var mu sync.Mutex
	alter := func(f *mutants.Fake) {
		acquire := f.OnAcquire
		f.OnAcquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
			mu.Lock()
			if of[token] == 0 {
				of[token] = races.Add(1)
			}
			race := of[token]
			mu.Unlock()
			if ttl == harness.Long && race%3 == 0 {
				return false, errors.New("busy")
			}
			return acquire(ctx, key, token, ttl)
		}
	}
	list := slices.DeleteFunc(checks(), func(ck harness.Check) bool { return ck.Name != "sametoken/concurrent" })
	assert.Empty(t, judgeInBubble(t, mutants.Mutant{Alter: alter}, list))
}

func TestNoFalseAlarmBusyCores(t *testing.T) {
	testserver.Variant(t, "a burnt processor makes every other test slow")
	t.Parallel()
	stop := make(chan struct{})
	defer close(stop)
	for range 2 * runtime.GOMAXPROCS(0) {
		go func() {
			for x := 1.0; ; x *= 1.0000001 {
				select {
				case <-stop:
					return
				default:
				}
			}
		}()
	}
	run(t, mutants.Fakes(func(*mutants.Fake) {}))
}

// Three runs at the same time on one backend.
func TestNoFalseAlarmBesideItself(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := mutants.Fakes(func(*mutants.Fake) {})
		c.LoseData = nil                         // it would be the others' data as well
		lockers := make(chan locker.Locker, 3*4) // of each suite, and the one that demand/close would close
		for range cap(lockers) {
			lockers <- c.New(t, "")
		}
		c.New = func(testing.TB, string) locker.Locker { return <-lockers }
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() { noFalseAlarm(t, c) })
		}
		all.Wait()
	})
}

// closes is a Locker that owns its connections: after Close it returns errors.
type closes struct {
	locker.Locker
	closed *atomic.Bool
}

func (c closes) Close() error { c.closed.Store(true); return nil }

func (c closes) Acquire(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	if c.closed.Load() {
		return false, errors.New("closed")
	}
	return c.Locker.Acquire(ctx, key, token, ttl)
}

func (c closes) Release(ctx context.Context, key, token string) (bool, error) {
	if c.closed.Load() {
		return false, errors.New("closed")
	}
	return c.Locker.Release(ctx, key, token)
}

func TestNoFalseAlarmClosed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := mutants.Fakes(func(*mutants.Fake) {})
		var last locker.Locker
		fakes := c.New
		c.New = func(tb testing.TB, addr string) locker.Locker {
			last = fakes(tb, addr)
			return closes{last, new(atomic.Bool)}
		}
		s, err := harness.NewSuite(t, c, slices.DeleteFunc(checks(), func(ck harness.Check) bool { return ck.Name != "demand/close" }))
		require.NoError(t, err)
		defer s.Close()
		bubble(s, 5*time.Millisecond)
		r := s.RunAll(t)["demand/close"]
		assert.False(t, r.Failed(), r.Printed())
		assert.False(t, r.Skipped(), r.Printed())
		for info, err := range last.(locker.Lister).List(t.Context(), "") {
			assert.NoError(t, err)
			assert.Empty(t, info.Key, "the check has left a lock behind")
		}
	})
}

// The checks of missing optional methods are skipped, with the reason, and no others.
func TestOptional(t *testing.T) {
	t.Parallel()
	unsupported := fmt.Errorf("on this backend: %w", errors.ErrUnsupported)
	refusing := mutants.Fakes(func(f *mutants.Fake) {
		f.OnWatch = func(context.Context, string) (<-chan struct{}, error) { return nil, unsupported }
		f.OnWait = func(context.Context, string, string, time.Duration) (time.Time, error) {
			return time.Time{}, unsupported
		}
		f.OnFence = func(context.Context, string, string) (uint64, bool, error) { return 0, false, unsupported }
		f.OnInspect = func(_ context.Context, key string) (locker.Info, error) { return locker.Info{Key: key}, unsupported }
		f.OnList = func(context.Context, string) iter.Seq2[locker.Info, error] {
			return func(yield func(locker.Info, error) bool) { yield(locker.Info{}, unsupported) }
		}
	})
	full := mutants.Fakes(func(*mutants.Fake) {})
	plain := full
	plain.New = func(tb testing.TB, addr string) locker.Locker { return struct{ locker.Locker }{full.New(tb, addr)} }
	for name, c := range map[string]harness.Config{"on this backend: unsupported operation": refusing, "is not a locker.": plain} {
		synctest.Test(t, func(t *testing.T) {
			s, err := harness.NewSuite(t, c, checks())
			require.NoError(t, err)
			defer s.Close()
			bubble(s, 5*time.Millisecond)
			results := s.RunAll(t)
			for _, ck := range s.Checks {
				r := results[ck.Name]
				assert.False(t, r.Failed(), r.Printed())
				has := ck.Needs == 0 || ck.Needs == harness.NeedsUnsupportedWait && !s.Lacks(harness.NeedsUnsupportedWait)
				if ck.Name == "context/no-late-success" { // it skips Lockers as quick as these
					assert.Contains(t, r.Printed(), "takes less than a millisecond")
					continue
				}
				if ck.Name == "demand/close" { // no interface of package locker has a Close
					assert.Contains(t, r.Printed(), "has no Close")
					continue
				}
				assert.Equal(t, !has, r.Skipped(), ck.Name)
				switch {
				case ck.Needs&harness.NeedsNetwork != 0:
					assert.Contains(t, r.Printed(), ck.Name+" is skipped: Config.Addr is empty")
				case !has:
					assert.Contains(t, r.Printed(), ck.Name+" is skipped: ")
					assert.Contains(t, r.Printed(), name)
				}
			}
		})
	}
}

func TestNoFalseAlarmRollBack(t *testing.T) {
	testserver.Variant(t, "the adapters run the suite on real servers")
	t.Parallel()
	run(t, mutants.OnRedis(mutants.NewRollsBack)(t))
}
