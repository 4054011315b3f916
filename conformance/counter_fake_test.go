package conformance

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/golockers/locker/redisv9"
	"github.com/golockers/locker/window"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// counterFake is a Counter on Redis. What is not replaced is right.
type counterFake struct {
	client *redis.Client
	right  *redisv9.Locker
	bugs   counterBugs
}

// counterBugs replace the methods of a Counter.
type counterBugs struct {
	count func(ctx context.Context, f *counterFake, key string, n int64, per time.Duration) (window.Counts, error)
	under func(ctx context.Context, f *counterFake, key string, n int64, r window.Rule) (window.Counts, bool, error)
}

func (f *counterFake) Count(ctx context.Context, key string, n int64, per time.Duration) (window.Counts, error) {
	if f.bugs.count != nil {
		return f.bugs.count(ctx, f, key, n, per)
	}
	return f.right.Count(ctx, key, n, per)
}

func (f *counterFake) CountUnder(ctx context.Context, key string, n int64, r window.Rule) (window.Counts, bool, error) {
	if f.bugs.under != nil {
		return f.bugs.under(ctx, f, key, n, r)
	}
	return f.right.CountUnder(ctx, key, n, r)
}

// counterFakes is the configuration of fakes on the server at addr.
func counterFakes(t *testing.T, addr string, bugs counterBugs) CounterConfig {
	t.Helper()
	connect := func(tb testing.TB, addr string) *redis.Client {
		client := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
		tb.Cleanup(func() { _ = client.Close() })
		return client
	}
	admin := connect(t, addr)
	require.NoError(t, admin.FlushAll(t.Context()).Err())
	return CounterConfig{
		Addr: addr,
		New: func(tb testing.TB, addr string) window.Counter {
			client := connect(tb, addr)
			return &counterFake{client, redisv9.New(client), bugs}
		},
		Eternal: func(ctx context.Context) (n int, err error) {
			keys, err := admin.Keys(ctx, "*").Result()
			for _, key := range keys {
				if admin.PTTL(ctx, key).Val() == -1 {
					n++
				}
			}
			return n, err
		},
	}
}

// serverTime asks the server for its time, in microseconds since 1970.
func (f *counterFake) serverTime(ctx context.Context) (int64, error) {
	now, err := f.client.Time(ctx).Result()
	return now.UnixMicro(), err
}

// inWindow counts in the window of a time, in one transaction.
func (f *counterFake) inWindow(ctx context.Context, now int64, key string, n int64, per, ttl time.Duration) (c window.Counts, err error) {
	us := per.Microseconds()
	name := func(number int64) string { return "fake:" + key + per.String() + time.UnixMicro(number*us).String() }
	var sum *redis.IntCmd
	var before *redis.StringCmd
	_, err = f.client.TxPipelined(ctx, func(p redis.Pipeliner) error {
		sum = p.IncrBy(ctx, name(now/us), n)
		if ttl > 0 {
			p.PExpire(ctx, name(now/us), ttl)
		}
		before = p.Get(ctx, name(now/us-1))
		return nil
	})
	if err != nil && err != redis.Nil {
		return c, err
	}
	c.Current, c.Left = sum.Val(), time.Duration(us-now%us)*time.Microsecond
	c.Previous, _ = before.Int64()
	return c, nil
}

// expiring is what many articles have: a counter whose expiry is its window. Of several steps.
func expiring(ctx context.Context, f *counterFake, key string, per time.Duration,
	step func(key string) (int64, error)) (c window.Counts, err error) {
	key = "fake:" + key + per.String()
	if c.Current, err = step(key); err != nil {
		return c, err
	}
	c.Left = f.client.PTTL(ctx, key).Val()
	if c.Left <= 0 {
		c.Left = per
	}
	return c, nil
}

func existsThenIncr(ctx context.Context, f *counterFake, key string, n int64, per time.Duration) (window.Counts, error) {
	return expiring(ctx, f, key, per, func(key string) (int64, error) {
		exists, err := f.client.Exists(ctx, key).Result()
		if err != nil || exists > 0 {
			return f.client.IncrBy(ctx, key, n).Val(), err
		}
		return n, f.client.Set(ctx, key, n, per).Err()
	})
}

func incrThenExpire(ctx context.Context, f *counterFake, key string, n int64, per time.Duration) (window.Counts, error) {
	return expiring(ctx, f, key, per, func(key string) (int64, error) {
		sum, err := f.client.IncrBy(ctx, key, n).Result()
		if err == nil && sum == n {
			err = f.client.PExpire(ctx, key, per).Err()
		}
		return sum, err
	})
}

func getThenSetEx(ctx context.Context, f *counterFake, key string, n int64, per time.Duration) (window.Counts, error) {
	return expiring(ctx, f, key, per, func(key string) (int64, error) {
		sum, err := f.client.Get(ctx, key).Int64()
		if err != nil && err != redis.Nil {
			return 0, err
		}
		return sum + n, f.client.Set(ctx, key, sum+n, per).Err()
	})
}

func incrAndRenew(ctx context.Context, f *counterFake, key string, n int64, per time.Duration) (window.Counts, error) {
	return expiring(ctx, f, key, per, func(key string) (sum int64, err error) {
		_, err = f.client.TxPipelined(ctx, func(p redis.Pipeliner) error {
			p.PExpire(ctx, key, per)
			return nil
		})
		if err == nil {
			sum, err = f.client.IncrBy(ctx, key, n).Result()
		}
		return sum, err
	})
}

// ttlWindow is right in one step, but its windows begin with the first count.
func ttlWindow(ctx context.Context, f *counterFake, key string, n int64, per time.Duration) (window.Counts, error) {
	const script = `
local sum = redis.call('INCRBY', KEYS[1], ARGV[1])
if redis.call('PTTL', KEYS[1]) < 0 then
	redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return sum`
	return expiring(ctx, f, key, per, func(key string) (int64, error) {
		return f.client.Eval(ctx, script, []string{key}, n, per.Milliseconds()).Int64()
	})
}

func byClientClock(ctx context.Context, f *counterFake, key string, n int64, per time.Duration) (window.Counts, error) {
	return f.inWindow(ctx, time.Now().UnixMicro(), key, n, per, 2*per)
}

func timeThenIncr(ctx context.Context, f *counterFake, key string, n int64, per time.Duration) (window.Counts, error) {
	now, err := f.serverTime(ctx)
	if err != nil {
		return window.Counts{}, err
	}
	return f.inWindow(ctx, now, key, n, per, 2*per)
}

func withoutExpiry(ctx context.Context, f *counterFake, key string, n int64, per time.Duration) (window.Counts, error) {
	now, err := f.serverTime(ctx)
	if err != nil {
		return window.Counts{}, err
	}
	return f.inWindow(ctx, now, key, n, per, 0)
}

// changed is the right answer with a mistake.
func changed(change func(c *window.Counts, n int64)) counterBugs {
	return counterBugs{count: func(ctx context.Context, f *counterFake, key string, n int64, per time.Duration) (window.Counts, error) {
		c, err := f.right.Count(ctx, key, n, per)
		change(&c, n)
		return c, err
	}}
}

// askedFor is the right answer to another question.
func askedFor(change func(key *string, n *int64, per *time.Duration)) counterBugs {
	return counterBugs{count: func(ctx context.Context, f *counterFake, key string, n int64, per time.Duration) (window.Counts, error) {
		change(&key, &n, &per)
		return f.right.Count(ctx, key, n, per)
	}}
}

// insists repeats what failed.
func insists(ctx context.Context, f *counterFake, key string, n int64, per time.Duration) (c window.Counts, err error) {
	for range 5 {
		if c, err = f.right.Count(ctx, key, n, per); err == nil {
			break
		}
	}
	return c, err
}

// loses drops errors.
func loses(ctx context.Context, f *counterFake, key string, n int64, per time.Duration) (window.Counts, error) {
	c, err := f.right.Count(ctx, key, n, per)
	if err != nil {
		return window.Counts{Current: n, Left: per}, nil
	}
	return c, nil
}

func ignoresContext(_ context.Context, f *counterFake, key string, n int64, per time.Duration) (window.Counts, error) {
	return f.right.Count(context.Background(), key, n, per)
}

func halfway(c *window.Counts, _ int64) {
	if c.Left > 10*time.Minute {
		return
	}
	c.Left = max(c.Left/2, 1)
}

func int32s(c *window.Counts, _ int64) { c.Current = int64(int32(min(c.Current, math.MaxInt32))) }

// under makes a mistake in CountUnder.
func under(allows func(r window.Rule, c window.Counts, n int64) bool) counterBugs {
	return counterBugs{under: func(ctx context.Context, f *counterFake, key string, n int64, r window.Rule) (window.Counts, bool, error) {
		c, err := f.right.Count(ctx, key, 0, r.Per)
		if err != nil || !allows(r, c, n) {
			return c, false, err
		}
		c, err = f.right.Count(ctx, key, n, r.Per)
		return c, err == nil, err
	}}
}

func countsDenied(ctx context.Context, f *counterFake, key string, n int64, r window.Rule) (window.Counts, bool, error) {
	c, err := f.right.Count(ctx, key, n, r.Per)
	return c, err == nil && r.Used(c) <= r.Limit, err
}

// lookIs gives each look at a limit the same answer.
func lookIs(counted bool) counterBugs {
	return counterBugs{under: func(ctx context.Context, f *counterFake, key string, n int64, r window.Rule) (window.Counts, bool, error) {
		if n > 0 {
			return f.right.CountUnder(ctx, key, n, r)
		}
		c, err := f.right.Count(ctx, key, 0, r.Per)
		return c, counted && err == nil, err
	}}
}

// resetsAtTheTurn keeps the counts of two windows in one hash, in several steps.
func resetsAtTheTurn(ctx context.Context, f *counterFake, key string, n int64, per time.Duration) (c window.Counts, err error) {
	key = "fake:" + key + per.String()
	now, err := f.serverTime(ctx)
	if err != nil {
		return c, err
	}
	us := per.Microseconds()
	c.Left = time.Duration(us-now%us) * time.Microsecond
	at, _ := f.client.HGet(ctx, key, "at").Int64()
	if number := now / us; at != number {
		current, _ := f.client.HGet(ctx, key, "current").Int64()
		if at != number-1 {
			current = 0
		}
		f.client.HSet(ctx, key, "at", number, "previous", current, "current", 0)
		f.client.PExpire(ctx, key, 2*per)
	}
	c.Previous, _ = f.client.HGet(ctx, key, "previous").Int64()
	c.Current, err = f.client.HIncrBy(ctx, key, "current", n).Result()
	return c, err
}

// weighsFixed weights the window before whatever the rule says.
func weighsFixed(ctx context.Context, f *counterFake, key string, n int64, r window.Rule) (window.Counts, bool, error) {
	r.Fixed = false
	return f.right.CountUnder(ctx, key, n, r)
}

// forgetsDenied writes a new window without the one before when the first call in it is denied.
func forgetsDenied(ctx context.Context, f *counterFake, key string, n int64, r window.Rule) (window.Counts, bool, error) {
	c, counted, err := f.right.CountUnder(ctx, key, n, r)
	if err == nil && !counted && c.Current == 0 {
		err = f.client.Del(ctx, fmt.Sprintf("!window:locker:%d:%s", r.Per.Milliseconds(), key)).Err()
	}
	return c, counted, err
}
