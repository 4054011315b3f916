package mutants

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance/internal/harness"
)

// Timed changes the ttls of f.
func (f *Fake) Timed(change func(ttl time.Duration) time.Duration) {
	acquire, extend, wait := f.OnAcquire, f.OnExtend, f.OnWait
	f.OnAcquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
		return acquire(ctx, key, token, change(ttl))
	}
	f.OnExtend = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
		return extend(ctx, key, token, change(ttl))
	}
	f.OnWait = func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
		deadline, err := wait(ctx, key, token, change(ttl))
		if err == nil {
			deadline = deadline.Add(ttl - change(ttl)) // as if it had the ttl that was asked for
		}
		return deadline, err
	}
}

// coarse is the configuration of plain Lockers that keep locks longer than asked, with that
// Granularity.
func coarse(granularity time.Duration, change func(ttl time.Duration) time.Duration) func(tb testing.TB) harness.Config {
	return func(testing.TB) harness.Config {
		c := Fakes(func(f *Fake) { f.Timed(change) })
		lockers := c.New
		c.New = func(tb testing.TB, addr string) locker.Locker { return struct{ locker.Locker }{lockers(tb, addr)} }
		c.Granularity = granularity
		return c
	}
}

const noExpiry = math.MaxInt64

func expiryMutants() []Mutant {
	return []Mutant{{
		Name: "no expiry",
		Must: []string{
			"expiry/not-late", "expiry/never-early", "extend/after-expiry", "extend/after-takeover",
			"release/after-expiry", "release/after-takeover", "exclusion/race-for-expired-key",
			"wait/holder-vanishes",
		},
		May: []string{
			"exclusion/*", "expiry/*", "extend/*", "release/*", "sametoken/*", "wait/*", "fence/*",
			"watch/*", "context/*",
		},
		Alter: func(f *Fake) {
			f.acquires(func(key, token string, _ time.Duration) bool { return f.store.acquire(key, token, noExpiry) })
		},
	}, {
		Name: "whole seconds, and zero is no expiry",
		Must: []string{"expiry/not-late", "expiry/never-early", "release/after-expiry", "extend/after-expiry"},
		May: []string{
			"exclusion/*", "expiry/*", "extend/*", "release/*", "sametoken/*", "wait/*", "fence/*",
			"watch/*", "context/*",
		},
		Alter: func(f *Fake) {
			f.Timed(func(ttl time.Duration) time.Duration {
				if ttl < time.Second {
					return noExpiry
				}
				return ttl.Truncate(time.Second)
			})
		},
	}, {
		Name: "rounded down to zero, which expires immediately",
		Must: []string{"expiry/never-early", "expiry/not-late", "expiry/rounds-up", "expiry/any-ttl"},
		May: []string{
			"exclusion/*", "expiry/*", "extend/*", "release/*", "sametoken/*", "wait/*", "fence/*",
			"watch/*", "context/*",
		},
		Alter: func(f *Fake) { f.Timed(func(ttl time.Duration) time.Duration { return ttl.Truncate(time.Second) }) },
	}, {
		Name: "milliseconds sent as seconds",
		Must: []string{"expiry/not-late", "expiry/never-early", "extend/shorter", "release/after-expiry"},
		May: []string{
			"exclusion/*", "expiry/*", "extend/*", "release/*", "sametoken/*", "wait/*", "fence/*",
			"watch/*", "context/*",
		},
		Alter: func(f *Fake) {
			f.Timed(func(ttl time.Duration) time.Duration {
				if ttl > 24*time.Hour {
					return ttl
				}
				return ttl.Round(time.Millisecond) * 1000
			})
		},
	}, {
		Name: "a second at least, and whole seconds rounded down above",
		Only: []string{"expiry/*", "extend/*"},
		Must: []string{"expiry/rounds-up", "expiry/never-early"},
		May: []string{
			"exclusion/*", "expiry/*", "extend/*", "release/*", "sametoken/*", "wait/*", "fence/*",
			"watch/*", "context/*",
		},
		Alter: func(f *Fake) {
			f.Timed(func(ttl time.Duration) time.Duration { return max(time.Second, ttl.Truncate(time.Second)) })
		},
	}, {
		Name: "five seconds at least, and whole seconds rounded down above",
		Only: []string{"expiry/*", "extend/*"},
		Must: []string{"expiry/rounds-up"},
		Config: coarse(5*time.Second, func(ttl time.Duration) time.Duration {
			return max(5*time.Second, ttl.Truncate(time.Second))
		}),
	}, {
		Name: "tenths of a second rounded down",
		Only: []string{"expiry/*", "extend/*"},
		Must: []string{"expiry/rounds-up"},
		May: []string{
			"exclusion/*", "expiry/*", "extend/*", "release/*", "sametoken/*", "wait/*", "fence/*",
			"watch/*", "context/*",
		},
		Alter: func(f *Fake) {
			f.Timed(func(ttl time.Duration) time.Duration {
				return max(100*time.Millisecond, ttl.Truncate(100*time.Millisecond))
			})
		},
	}, {
		Name: "milliseconds rounded down",
		Must: []string{"expiry/rounds-up"},
		May:  []string{"expiry/any-ttl"},
		Alter: func(f *Fake) {
			f.Timed(func(ttl time.Duration) time.Duration { return ttl.Truncate(time.Millisecond) })
		},
	}, {
		Name: "seconds counted from the beginning of the current one",
		Must: []string{"expiry/never-early"},
		May: []string{
			"exclusion/*", "expiry/*", "extend/*", "release/*", "sametoken/*", "wait/*", "fence/*",
			"watch/*", "context/*",
		},
		Alter: func(f *Fake) {
			f.Timed(func(ttl time.Duration) time.Duration {
				now := time.Now()
				seconds := (ttl + time.Second - 1).Truncate(time.Second)
				if seconds < 0 {
					return ttl
				}
				return seconds - now.Sub(now.Truncate(time.Second))
			})
		},
	}, {
		Name: "a tenth of the ttl is missing",
		Must: []string{"expiry/never-early", "expiry/rounds-up"},
		May: []string{
			"exclusion/*", "expiry/*", "extend/*", "release/*", "sametoken/*", "wait/*", "fence/*",
			"watch/*", "context/*",
		},
		Alter: func(f *Fake) { f.Timed(func(ttl time.Duration) time.Duration { return ttl - ttl/10 }) },
	}, {
		Name: "rounding up overflows",
		Must: []string{"expiry/any-ttl"},
		Alter: func(f *Fake) {
			f.Timed(func(ttl time.Duration) time.Duration {
				return (ttl + time.Millisecond - 1) / time.Millisecond * time.Millisecond
			})
		},
	}, {
		Name: "milliseconds in 32 bits",
		Only: []string{"expiry/*", "extend/*"},
		Must: []string{"expiry/any-ttl"},
		Alter: func(f *Fake) {
			f.Timed(func(ttl time.Duration) time.Duration {
				return time.Duration(uint32((ttl-1)/time.Millisecond+1)) * time.Millisecond
			})
		},
	}, {
		Name: "seconds in 32 bits",
		Only: []string{"expiry/*", "extend/*"},
		Must: []string{"expiry/any-ttl"},
		Alter: func(f *Fake) {
			f.Timed(func(ttl time.Duration) time.Duration { return ttl % (1 << 32 * time.Second) })
		},
	}, {
		Name: "milliseconds in 32 bits, the largest in place of what is negative",
		Only: []string{"expiry/*", "extend/*"},
		Must: []string{"expiry/any-ttl"},
		Alter: func(f *Fake) {
			f.Timed(func(ttl time.Duration) time.Duration {
				ms := int32((ttl-1)/time.Millisecond + 1)
				if ms <= 0 {
					ms = 1<<31 - 1
				}
				return time.Duration(ms) * time.Millisecond
			})
		},
	}, {
		Name: "over 30 days is an absolute time, long ago",
		Must: []string{"expiry/any-ttl"},
		Alter: func(f *Fake) {
			f.Timed(func(ttl time.Duration) time.Duration {
				if ttl > 30*24*time.Hour {
					return -time.Hour
				}
				return ttl
			})
		},
	}, {
		Name: "a ttl that the backend refuses is its own error, not ErrInvalidTTL",
		Must: []string{"expiry/any-ttl"},
		Alter: func(f *Fake) {
			acquire, extend := f.OnAcquire, f.OnExtend
			err := errors.New("ERR invalid expire time in 'set' command")
			f.OnAcquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
				if ttl > 31*24*time.Hour {
					return false, err
				}
				return acquire(ctx, key, token, ttl)
			}
			f.OnExtend = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
				if ttl > 31*24*time.Hour {
					return false, err
				}
				return extend(ctx, key, token, ttl)
			}
		},
	}, {
		Name: "acquire returns ErrInvalidTTL and has acquired",
		Must: []string{"expiry/any-ttl"},
		Alter: func(f *Fake) {
			acquire := f.OnAcquire
			f.OnAcquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
				ok, err := acquire(ctx, key, token, ttl)
				if ok && ttl > 31*24*time.Hour {
					return false, locker.ErrInvalidTTL
				}
				return ok, err
			}
		},
	}, {
		Name: "extend returns ErrInvalidTTL, and the lock is gone",
		Must: []string{"expiry/any-ttl"},
		Alter: func(f *Fake) {
			extend := f.OnExtend
			f.OnExtend = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
				if ttl <= 31*24*time.Hour {
					return extend(ctx, key, token, ttl)
				}
				ok, err := extend(ctx, key, token, -time.Second)
				if ok {
					return false, locker.ErrInvalidTTL
				}
				return ok, err
			}
		},
	}, {
		Name: "ten minutes longer than asked",
		Must: []string{
			"expiry/not-late", "expiry/never-early", "extend/shorter", "extend/replaces",
			"extend/after-expiry", "release/after-expiry",
		},
		May: []string{
			"exclusion/*", "expiry/*", "extend/*", "release/*", "sametoken/*", "wait/*", "fence/*",
			"watch/*", "context/*",
		},
		Alter: func(f *Fake) {
			f.Timed(func(ttl time.Duration) time.Duration { return min(ttl, noExpiry-10*time.Minute) + 10*time.Minute })
		},
	}}
}
