package mutants

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance/internal/harness"
	"github.com/golockers/locker/internal/testserver"
	"github.com/redis/go-redis/v9"
)

// The locks that articles teach, each with one mistake; the rest is as careful as redisLock.

// patched is a redisLock of which some methods are others.
type patched struct {
	redisLock
	acquire func(ctx context.Context, key, token string, ttl time.Duration) (bool, error)
	extend  func(ctx context.Context, key, token string, ttl time.Duration) (bool, error)
	release func(ctx context.Context, key, token string) (bool, error)
}

func (p patched) Acquire(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	if p.acquire == nil {
		return p.redisLock.Acquire(ctx, key, token, ttl)
	}
	return p.acquire(ctx, key, token, ttl)
}

func (p patched) Extend(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	if p.extend == nil {
		return p.redisLock.Extend(ctx, key, token, ttl)
	}
	return p.extend(ctx, key, token, ttl)
}

func (p patched) Release(ctx context.Context, key, token string) (bool, error) {
	if p.release == nil {
		return p.redisLock.Release(ctx, key, token)
	}
	return p.release(ctx, key, token)
}

// onRedisPatched is the configuration of a redisLock, of which each Locker is patched.
func onRedisPatched(patch func(p *patched)) func(tb testing.TB) harness.Config {
	return OnRedis(func(tb testing.TB, addr string) locker.Locker {
		p := patched{redisLock: NewRedisLock(tb, addr)}
		patch(&p)
		return p
	})
}

// stepwise makes an operation of several requests that handles ctx and errors as redisLock does.
func stepwise(op string, do func(ctx context.Context, key, token string, ttl time.Duration) (bool, error)) func(
	context.Context, string, string, time.Duration) (bool, error) {
	return func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
		if err := over(ctx); err != nil {
			return false, err
		}
		ok, err := do(ctx, key, token, ttl)
		return outcome(ctx, op, key, ok, err)
	}
}

func releasing(do func(ctx context.Context, key, token string) (bool, error)) func(context.Context, string, string) (bool, error) {
	f := stepwise("release", func(ctx context.Context, key, token string, _ time.Duration) (bool, error) {
		return do(ctx, key, token)
	})
	return func(ctx context.Context, key, token string) (bool, error) { return f(ctx, key, token, 0) }
}

func setNXWithoutExpiry(p *patched) {
	p.acquire = stepwise("acquire", func(ctx context.Context, key, token string, _ time.Duration) (bool, error) {
		return p.c.SetNX(ctx, lockPrefix+key, token, 0).Result()
	})
}

func setNXThenExpire(p *patched) {
	p.acquire = stepwise("acquire", func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
		ok, err := p.c.SetNX(ctx, lockPrefix+key, token, 0).Result()
		if err != nil || !ok {
			return false, err
		}
		return p.c.Do(ctx, "PEXPIRE", lockPrefix+key, ms(ttl)).Bool()
	})
}

// setNXAndExpireInMulti does both or neither, but the losers' PEXPIRE is executed as well.
func setNXAndExpireInMulti(p *patched) {
	p.acquire = stepwise("acquire", func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
		var set *redis.BoolCmd
		_, err := p.c.TxPipelined(ctx, func(tx redis.Pipeliner) error {
			set = tx.SetNX(ctx, lockPrefix+key, token, 0)
			tx.Do(ctx, "PEXPIRE", lockPrefix+key, ms(ttl))
			return nil
		})
		return err == nil && set.Val(), err
	})
}

// getThenSet looks first and sets then.
func getThenSet(p *patched) {
	p.acquire = stepwise("acquire", func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
		v, err := p.c.Get(ctx, lockPrefix+key).Result()
		if err != nil && !errors.Is(err, redis.Nil) || err == nil && v != token {
			return false, err
		}
		return true, p.c.Do(ctx, "SET", lockPrefix+key, token, "PX", ms(ttl)).Err()
	})
}

func releaseByDel(p *patched) {
	p.release = releasing(func(ctx context.Context, key, _ string) (bool, error) {
		n, err := p.c.Del(ctx, lockPrefix+key).Result()
		return n == 1, err
	})
}

func releaseByGetThenDel(p *patched) {
	p.release = releasing(func(ctx context.Context, key, token string) (bool, error) {
		v, err := p.c.Get(ctx, lockPrefix+key).Result()
		if errors.Is(err, redis.Nil) || err == nil && v != token {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		n, err := p.c.Del(ctx, lockPrefix+key).Result()
		return n == 1, err
	})
}

func extendByGetThenExpire(p *patched) {
	p.extend = stepwise("extend", func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
		v, err := p.c.Get(ctx, lockPrefix+key).Result()
		if errors.Is(err, redis.Nil) || err == nil && v != token {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		return p.c.Do(ctx, "PEXPIRE", lockPrefix+key, ms(ttl)).Bool()
	})
}

func extendByExpire(p *patched) {
	p.extend = stepwise("extend", func(ctx context.Context, key, _ string, ttl time.Duration) (bool, error) {
		return p.c.Do(ctx, "PEXPIRE", lockPrefix+key, ms(ttl)).Bool()
	})
}

// extendBySetXX writes the token again if the key exists, whichever token holds it.
func extendBySetXX(p *patched) {
	p.extend = stepwise("extend", func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
		err := p.c.Do(ctx, "SET", lockPrefix+key, token, "XX", "PX", ms(ttl)).Err()
		if errors.Is(err, redis.Nil) {
			return false, nil
		}
		return err == nil, err
	})
}

// extendOrSetNX re-creates a lock that is gone.
func extendOrSetNX(p *patched) {
	p.extend = stepwise("extend", func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
		n, err := extendScript.Run(ctx, p.c, []string{lockPrefix + key}, token, ms(ttl)).Int64()
		if err != nil || n == 1 {
			return n == 1, err
		}
		return p.redisLock.Acquire(ctx, key, token, ttl)
	})
}

// stamped is the lock from before SET had options: the key does not expire, but its value has the
// time at which the lock does. Extend and Release are scripts.
type stamped struct {
	redisLock
	now      func() time.Time
	takeover func(ctx context.Context, s stamped, k, old, value string) (bool, error) // of an expired or vanished lock
}

func (s stamped) value(token string, ttl time.Duration) string {
	return fmt.Sprintf("%d:%s", s.now().UnixMilli()+ms(ttl), token)
}

// expired reports whether the lock of value has expired.
func (s stamped) expired(value string) bool {
	stamp, _, _ := strings.Cut(value, ":")
	at, _ := strconv.ParseInt(stamp, 10, 64)
	return at <= s.now().UnixMilli()
}

func (s stamped) Acquire(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return stepwise("acquire", func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
		k, mine := lockPrefix+key, s.value(token, ttl)
		ok, err := s.c.SetNX(ctx, k, mine, 0).Result()
		if err != nil || ok {
			return ok, err
		}
		old, err := s.c.Get(ctx, k).Result()
		if err != nil && !errors.Is(err, redis.Nil) {
			return false, err
		}
		if old != "" && !s.expired(old) {
			if _, owner, _ := strings.Cut(old, ":"); owner == token {
				return s.change(ctx, key, token, mine)
			}
			return false, nil
		}
		return s.takeover(ctx, s, k, old, mine)
	})(ctx, key, token, ttl)
}

// swapScript replaces the value of a key, nothing for none.
var swapScript = redis.NewScript(`
	if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
	if ARGV[2] == '' then return redis.call('DEL', KEYS[1]) end
	redis.call('SET', KEYS[1], ARGV[2])
	return 1`)

func (s stamped) swap(ctx context.Context, k, old, value string) (bool, error) {
	n, err := swapScript.Run(ctx, s.c, []string{k}, old, value).Int64()
	return n == 1, err
}

// change replaces the value of a live lock that token holds.
func (s stamped) change(ctx context.Context, key, token, value string) (bool, error) {
	k := lockPrefix + key
	old, err := s.c.Get(ctx, k).Result()
	if errors.Is(err, redis.Nil) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if _, owner, _ := strings.Cut(old, ":"); owner != token || s.expired(old) {
		return false, nil
	}
	for range 3 {
		if ok, err := s.swap(ctx, k, old, value); ok || err != nil {
			return ok, err
		}
		now, err := s.c.Get(ctx, k).Result()
		if errors.Is(err, redis.Nil) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if _, owner, _ := strings.Cut(now, ":"); owner != token {
			return false, nil
		}
		old = now
	}
	return false, errors.New("the value changed again and again")
}

func (s stamped) Extend(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return stepwise("extend", func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
		return s.change(ctx, key, token, s.value(token, ttl))
	})(ctx, key, token, ttl)
}

func (s stamped) Release(ctx context.Context, key, token string) (bool, error) {
	return releasing(func(ctx context.Context, key, token string) (bool, error) {
		return s.change(ctx, key, token, "")
	})(ctx, key, token)
}

// onRedisStamped is the configuration of a stamped lock. The nth Locker's clock is off by skew(n).
func onRedisStamped(takeover func(ctx context.Context, s stamped, k, old, value string) (bool, error),
	skew func(n int64) time.Duration) func(tb testing.TB) harness.Config {
	return func(tb testing.TB) harness.Config {
		var made atomic.Int64
		return harness.Config{
			Addr: testserver.Redis(tb).Addr,
			New: func(tb testing.TB, addr string) locker.Locker {
				off := skew(made.Add(1) - 1)
				now := func() time.Time { return time.Now().Add(off) }
				return stamped{NewRedisLock(tb, addr), now, takeover}
			},
		}
	}
}

func noSkew(int64) time.Duration { return 0 }

// takeoverBySwap is correct.
func takeoverBySwap(ctx context.Context, s stamped, k, old, value string) (bool, error) {
	return s.swap(ctx, k, old, value)
}

func takeoverByDelThenSetNX(ctx context.Context, s stamped, k, old, value string) (bool, error) {
	if err := s.c.Del(ctx, k).Err(); err != nil {
		return false, err
	}
	return s.c.SetNX(ctx, k, value, 0).Result()
}

// takeoverByGetSet is the classic: the contender that gets an expired value back has won, but
// losers have written as well.
func takeoverByGetSet(ctx context.Context, s stamped, k, _, value string) (bool, error) {
	old, err := s.c.GetSet(ctx, k, value).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return false, err
	}
	return old == "" || s.expired(old), nil
}

// takeoverOfNothing takes a lock that has vanished for one that has expired.
func takeoverOfNothing(ctx context.Context, s stamped, k, old, value string) (bool, error) {
	if old != "" {
		return s.swap(ctx, k, old, value)
	}
	return true, s.c.Set(ctx, k, value, 0).Err()
}

// pxat makes the key expire at a time of the client's clock, by SET PXAT.
func pxat(tb testing.TB) harness.Config {
	var made atomic.Int64
	script := redis.NewScript(`
		local v = redis.call('GET', KEYS[1])
		if v and v ~= ARGV[1] then return 0 end
		redis.call('SET', KEYS[1], ARGV[1], 'PXAT', ARGV[2])
		return 1`)
	return harness.Config{
		Addr: testserver.Redis(tb).Addr,
		New: func(tb testing.TB, addr string) locker.Locker {
			p := patched{redisLock: NewRedisLock(tb, addr)}
			clock := time.Duration(made.Add(1)%2) * -3 * time.Second // of every other process
			p.acquire = stepwise("acquire", func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
				at := time.Now().Add(clock).UnixMilli() + ms(ttl)
				n, err := script.Run(ctx, p.c, []string{lockPrefix + key}, token, at).Int64()
				return n == 1, err
			})
			return p
		},
	}
}

// skewed is the clock of every other process.
func skewed(n int64) time.Duration { return time.Duration(n%2) * 3 * time.Second }
