package conformance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Correct Lockers, each awkward in one way, none of which is against the contract. The suite passes on all
// of them.

func TestNoFalseAlarmSlow(t *testing.T) {
	t.Parallel()
	Run(t, fakes(func(f *fake) { slowly(f, fixed(15*time.Millisecond), fixed(15*time.Millisecond)) }))
}

func TestNoFalseAlarmJitter(t *testing.T) {
	t.Parallel()
	jitter := func() time.Duration {
		if rand.IntN(100) == 0 {
			return rand.N(400 * time.Millisecond)
		}
		return rand.N(5 * time.Millisecond)
	}
	Run(t, fakes(func(f *fake) { slowly(f, jitter, jitter) }))
}

// One that counts in whole seconds of its own, as memcached does: rounded up, and one more because the
// current second has begun already.
func TestNoFalseAlarmWholeSeconds(t *testing.T) {
	t.Parallel()
	c := fakes(func(f *fake) {
		f.timed(func(ttl time.Duration) time.Duration {
			if ttl > 30*24*time.Hour {
				return ttl
			}
			now := time.Now()
			return (ttl + time.Second - 1).Truncate(time.Second) + time.Second - now.Sub(now.Truncate(time.Second))
		})
		f.wait = nil // whose deadline would be wrong
	})
	lockers := c.New
	c.New = func(tb testing.TB, addr string) locker.Locker { return struct{ locker.Locker }{lockers(tb, addr)} }
	c.Granularity = 2 * time.Second
	Run(t, c)
}

// One on a backend that can only compare and swap: under contention it tries three times, and then does not
// know.
func TestNoFalseAlarmCompareAndSwap(t *testing.T) {
	t.Parallel()
	c := fakes(func(f *fake) {
		change := func(ctx context.Context, key string, decide func(it item, ok bool) (item, bool)) (bool, error) {
			if err := ctx.Err(); err != nil {
				return false, err
			}
			for range 3 {
				old, ok := f.get(key)
				next, do := decide(old, ok)
				if !do {
					return false, nil
				}
				runtime.Gosched()
				f.mu.Lock()
				now, still := f.live(key)
				done := now == old && still == ok
				if done {
					f.items[key] = next
				}
				f.mu.Unlock()
				if done {
					return true, nil
				}
			}
			return false, errors.New("changed again and again")
		}
		f.acquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
			return change(ctx, key, func(it item, ok bool) (item, bool) {
				return item{token, time.Now().Add(ttl)}, !ok || it.token == token
			})
		}
		f.extend = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
			return change(ctx, key, func(it item, ok bool) (item, bool) {
				return item{token, time.Now().Add(ttl)}, ok && it.token == token
			})
		}
		f.release = func(ctx context.Context, key, token string) (bool, error) {
			return change(ctx, key, func(it item, ok bool) (item, bool) { return item{}, ok && it.token == token })
		}
	})
	lockers := c.New
	c.New = func(tb testing.TB, addr string) locker.Locker { return struct{ locker.Locker }{lockers(tb, addr)} }
	Run(t, c)
}

// One that cannot express long times and says so.
func TestNoFalseAlarmShortTimesOnly(t *testing.T) {
	t.Parallel()
	Run(t, fakes(func(f *fake) {
		acquire, extend := f.acquire, f.extend
		f.acquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
			if ttl > 7*24*time.Hour {
				return false, fmt.Errorf("acquire: %w", locker.ErrInvalidTTL)
			}
			return acquire(ctx, key, token, ttl)
		}
		f.extend = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
			if ttl > 7*24*time.Hour {
				return false, fmt.Errorf("extend: %w", locker.ErrInvalidTTL)
			}
			return extend(ctx, key, token, ttl)
		}
	}))
}

func TestNoFalseAlarmBusyCores(t *testing.T) {
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
	Run(t, fakes(func(*fake) {}))
}

// Three times at the same time on one backend, with the second as a user that goes first wherever it can.
func TestNoFalseAlarmBesideItself(t *testing.T) {
	t.Parallel()
	c := fakes(func(*fake) {})
	lockers := make(chan locker.Locker, 9)
	for range cap(lockers) {
		lockers <- c.New(t, "")
	}
	c.New = func(testing.TB, string) locker.Locker { return <-lockers }
	for i := range 3 {
		t.Run(fmt.Sprint(i+1), func(t *testing.T) {
			t.Parallel()
			Run(t, c)
		})
	}
}

// Optional behaviour that is not there is skipped by name, with the reason, and nothing else is.
func TestOptional(t *testing.T) {
	t.Parallel()
	unsupported := fmt.Errorf("on this backend: %w", errors.ErrUnsupported)
	refusing := fakes(func(f *fake) {
		f.watch = func(context.Context, string) (<-chan struct{}, error) { return nil, unsupported }
		f.wait = func(context.Context, string, string, time.Duration) (time.Time, error) {
			return time.Time{}, unsupported
		}
		f.fence = func(context.Context, string, string) (uint64, bool, error) { return 0, false, unsupported }
	})
	full := fakes(func(*fake) {})
	plain := full
	plain.New = func(tb testing.TB, addr string) locker.Locker { return struct{ locker.Locker }{full.New(tb, addr)} }
	for name, c := range map[string]Config{"on this backend: unsupported operation": refusing, "is no locker.": plain} {
		s, err := newSuite(t, c, checks())
		require.NoError(t, err)
		results := s.runAll(t)
		for _, ck := range s.checks {
			r := results[ck.name]
			assert.False(t, r.Failed(), r.output())
			has := ck.needs == 0 || ck.needs == needsNoWait && s.lacks[needsNoWait] == ""
			if ck.name == "context/no-late-success" { // these Lockers are too quick for it
				assert.Contains(t, r.output(), "takes less than a millisecond")
				continue
			}
			assert.Equal(t, !has, r.Skipped(), ck.name)
			switch {
			case ck.needs&needsNetwork != 0:
				assert.Contains(t, r.output(), ck.name+" is skipped: Config.Addr is empty")
			case !has:
				assert.Contains(t, r.output(), ck.name+" is skipped: ")
				assert.Contains(t, r.output(), name)
			}
		}
	}
}

func TestNoFalseAlarmRollBack(t *testing.T) {
	Run(t, onRedis(func(tb testing.TB, addr string) locker.Locker { return rollsBack{newRedisLock(tb, addr)} })(t))
}
