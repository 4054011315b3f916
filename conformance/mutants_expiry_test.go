package conformance

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/golockers/locker"
)

// timed changes the ttl of what a fake acquires and extends.
func (f *fake) timed(change func(ttl time.Duration) time.Duration) {
	acquire, extend, wait := f.acquire, f.extend, f.wait
	f.acquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
		return acquire(ctx, key, token, change(ttl))
	}
	f.extend = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
		return extend(ctx, key, token, change(ttl))
	}
	f.wait = func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
		deadline, err := wait(ctx, key, token, change(ttl))
		if err == nil {
			deadline = deadline.Add(ttl - change(ttl)) // it believes what it asked for
		}
		return deadline, err
	}
}

// coarse is the configuration of plain Lockers that keep a lock longer than they are asked for, and say so.
func coarse(granularity time.Duration, change func(ttl time.Duration) time.Duration) func(tb testing.TB) Config {
	return func(testing.TB) Config {
		c := fakes(func(f *fake) { f.timed(change) })
		lockers := c.New
		c.New = func(tb testing.TB, addr string) locker.Locker { return struct{ locker.Locker }{lockers(tb, addr)} }
		c.Granularity = granularity
		return c
	}
}

const forEver = math.MaxInt64

var expiryMutants = []mutant{{
	name: "no expiry",
	must: []string{
		"expiry/not-late", "expiry/never-early", "extend/after-expiry", "extend/after-takeover",
		"release/after-expiry", "release/after-takeover", "exclusion/one-winner-on-an-expired-key",
		"wait/holder-vanishes",
	},
	may: []string{
		"exclusion/*", "expiry/*", "extend/*", "release/*", "sametoken/*", "wait/*", "fence/*",
		"watch/*", "context/*",
	},
	alter: func(f *fake) {
		f.acquires(func(key, token string, _ time.Duration) bool { return f.store.acquire(key, token, forEver) })
	},
}, {
	name: "whole seconds, and zero is for ever",
	must: []string{"expiry/not-late", "expiry/never-early", "release/after-expiry", "extend/after-expiry"},
	may: []string{
		"exclusion/*", "expiry/*", "extend/*", "release/*", "sametoken/*", "wait/*", "fence/*",
		"watch/*", "context/*",
	},
	alter: func(f *fake) {
		f.timed(func(ttl time.Duration) time.Duration {
			if ttl < time.Second {
				return forEver
			}
			return ttl.Truncate(time.Second)
		})
	},
}, {
	name: "rounded down to zero, which is gone at once",
	must: []string{"expiry/never-early", "expiry/not-late", "expiry/rounds-up", "expiry/any-ttl"},
	may: []string{
		"exclusion/*", "expiry/*", "extend/*", "release/*", "sametoken/*", "wait/*", "fence/*",
		"watch/*", "context/*",
	},
	alter: func(f *fake) { f.timed(func(ttl time.Duration) time.Duration { return ttl.Truncate(time.Second) }) },
}, {
	name: "milliseconds sent as seconds",
	must: []string{"expiry/not-late", "expiry/never-early", "extend/shorter", "release/after-expiry"},
	may: []string{
		"exclusion/*", "expiry/*", "extend/*", "release/*", "sametoken/*", "wait/*", "fence/*",
		"watch/*", "context/*",
	},
	alter: func(f *fake) {
		f.timed(func(ttl time.Duration) time.Duration {
			if ttl > 24*time.Hour {
				return ttl
			}
			return ttl.Round(time.Millisecond) * 1000
		})
	},
}, {
	name: "a second at least, and whole seconds rounded down above",
	only: []string{"expiry/*", "extend/*"},
	must: []string{"expiry/rounds-up", "expiry/never-early"},
	may: []string{
		"exclusion/*", "expiry/*", "extend/*", "release/*", "sametoken/*", "wait/*", "fence/*",
		"watch/*", "context/*",
	},
	alter: func(f *fake) {
		f.timed(func(ttl time.Duration) time.Duration { return max(time.Second, ttl.Truncate(time.Second)) })
	},
}, {
	name: "five seconds at least, and whole seconds rounded down above",
	only: []string{"expiry/*", "extend/*"},
	must: []string{"expiry/rounds-up"},
	config: coarse(5*time.Second, func(ttl time.Duration) time.Duration {
		return max(5*time.Second, ttl.Truncate(time.Second))
	}),
}, {
	name: "tenths of a second rounded down",
	only: []string{"expiry/*", "extend/*"},
	must: []string{"expiry/rounds-up"},
	may: []string{
		"exclusion/*", "expiry/*", "extend/*", "release/*", "sametoken/*", "wait/*", "fence/*",
		"watch/*", "context/*",
	},
	alter: func(f *fake) {
		f.timed(func(ttl time.Duration) time.Duration {
			return max(100*time.Millisecond, ttl.Truncate(100*time.Millisecond))
		})
	},
}, {
	name: "milliseconds rounded down",
	must: []string{"expiry/rounds-up"},
	may:  []string{"expiry/any-ttl"},
	alter: func(f *fake) {
		f.timed(func(ttl time.Duration) time.Duration { return ttl.Truncate(time.Millisecond) })
	},
}, {
	name: "seconds counted from the beginning of the current one",
	must: []string{"expiry/never-early"},
	may: []string{
		"exclusion/*", "expiry/*", "extend/*", "release/*", "sametoken/*", "wait/*", "fence/*",
		"watch/*", "context/*",
	},
	alter: func(f *fake) {
		f.timed(func(ttl time.Duration) time.Duration {
			now := time.Now()
			seconds := (ttl + time.Second - 1).Truncate(time.Second)
			if seconds < 0 {
				return ttl
			}
			return seconds - now.Sub(now.Truncate(time.Second))
		})
	},
}, {
	name: "a tenth of the ttl is kept back",
	must: []string{"expiry/never-early", "expiry/rounds-up"},
	may: []string{
		"exclusion/*", "expiry/*", "extend/*", "release/*", "sametoken/*", "wait/*", "fence/*",
		"watch/*", "context/*",
	},
	alter: func(f *fake) { f.timed(func(ttl time.Duration) time.Duration { return ttl - ttl/10 }) },
}, {
	name: "rounding up overflows",
	must: []string{"expiry/any-ttl"},
	alter: func(f *fake) {
		f.timed(func(ttl time.Duration) time.Duration {
			return (ttl + time.Millisecond - 1) / time.Millisecond * time.Millisecond
		})
	},
}, {
	name: "milliseconds in 32 bits",
	only: []string{"expiry/*", "extend/*"},
	must: []string{"expiry/any-ttl"},
	alter: func(f *fake) {
		f.timed(func(ttl time.Duration) time.Duration {
			return time.Duration(uint32((ttl-1)/time.Millisecond+1)) * time.Millisecond
		})
	},
}, {
	name: "seconds in 32 bits",
	only: []string{"expiry/*", "extend/*"},
	must: []string{"expiry/any-ttl"},
	alter: func(f *fake) {
		f.timed(func(ttl time.Duration) time.Duration { return ttl % (1 << 32 * time.Second) })
	},
}, {
	name: "milliseconds in 32 bits, the largest in place of what is negative",
	only: []string{"expiry/*", "extend/*"},
	must: []string{"expiry/any-ttl"},
	alter: func(f *fake) {
		f.timed(func(ttl time.Duration) time.Duration {
			ms := int32((ttl-1)/time.Millisecond + 1)
			if ms <= 0 {
				ms = 1<<31 - 1
			}
			return time.Duration(ms) * time.Millisecond
		})
	},
}, {
	name: "over 30 days is an absolute time, long ago",
	must: []string{"expiry/any-ttl"},
	alter: func(f *fake) {
		f.timed(func(ttl time.Duration) time.Duration {
			if ttl > 30*24*time.Hour {
				return -time.Hour
			}
			return ttl
		})
	},
}, {
	name: "a ttl that the backend refuses is an error of its own",
	must: []string{"expiry/any-ttl"},
	alter: func(f *fake) {
		acquire, extend := f.acquire, f.extend
		err := errors.New("ERR invalid expire time in 'set' command")
		f.acquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
			if ttl > 31*24*time.Hour {
				return false, err
			}
			return acquire(ctx, key, token, ttl)
		}
		f.extend = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
			if ttl > 31*24*time.Hour {
				return false, err
			}
			return extend(ctx, key, token, ttl)
		}
	},
}, {
	name: "acquire says ErrInvalidTTL when it has acquired",
	must: []string{"expiry/any-ttl"},
	alter: func(f *fake) {
		acquire := f.acquire
		f.acquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
			ok, err := acquire(ctx, key, token, ttl)
			if ok && ttl > 31*24*time.Hour {
				return false, locker.ErrInvalidTTL
			}
			return ok, err
		}
	},
}, {
	name: "extend says ErrInvalidTTL, and the lock is gone",
	must: []string{"expiry/any-ttl"},
	alter: func(f *fake) {
		extend := f.extend
		f.extend = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
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
	name: "ten minutes longer than it says",
	must: []string{
		"expiry/not-late", "expiry/never-early", "extend/shorter", "extend/replaces",
		"extend/after-expiry", "release/after-expiry",
	},
	may: []string{
		"exclusion/*", "expiry/*", "extend/*", "release/*", "sametoken/*", "wait/*", "fence/*",
		"watch/*", "context/*",
	},
	alter: func(f *fake) {
		f.timed(func(ttl time.Duration) time.Duration { return min(ttl, forEver-10*time.Minute) + 10*time.Minute })
	},
}}
