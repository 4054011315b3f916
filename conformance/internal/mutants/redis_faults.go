package mutants

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance/internal/harness"
	"github.com/redis/go-redis/v9"
)

// Locks that work as long as the network does.

// wrapped is a redisLock whose operations all go through one function.
type wrapped struct {
	redisLock
	through func(ctx context.Context, do func(context.Context) (bool, error)) (bool, error)
}

func (w wrapped) Acquire(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return w.through(ctx, func(ctx context.Context) (bool, error) { return w.redisLock.Acquire(ctx, key, token, ttl) })
}

func (w wrapped) Extend(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return w.through(ctx, func(ctx context.Context) (bool, error) { return w.redisLock.Extend(ctx, key, token, ttl) })
}

func (w wrapped) Release(ctx context.Context, key, token string) (bool, error) {
	return w.through(ctx, func(ctx context.Context) (bool, error) { return w.redisLock.Release(ctx, key, token) })
}

// onRedisThrough is the configuration of a redisLock whose operations go through a function.
func onRedisThrough(options func(*redis.Options), through func(ctx context.Context,
	do func(context.Context) (bool, error)) (bool, error)) func(tb testing.TB) harness.Config {
	return OnRedis(func(tb testing.TB, addr string) locker.Locker {
		o := redisOptions(addr)
		if options != nil {
			options(o)
		}
		return wrapped{redisLock{redisClient(tb, o)}, through}
	})
}

// optimist assumes that a release has arrived.
type optimist struct{ redisLock }

func (o optimist) Release(ctx context.Context, key, token string) (bool, error) {
	ok, err := o.redisLock.Release(ctx, key, token)
	return ok || err != nil && ctx.Err() == nil, ctx.Err()
}

// guessing no longer asks the backend about a lock after some operations on it had no answer.
type guessing struct {
	redisLock
	unanswered *sync.Map       // key and token
	after      []string        // the operations that count
	answers    map[string]bool // what these say from then on
}

func onRedisGuessing(answers map[string]bool, after ...string) func(tb testing.TB) harness.Config {
	return OnRedis(func(tb testing.TB, addr string) locker.Locker {
		return guessing{redisLock{redisClient(tb, redisOptions(addr))}, new(sync.Map), after, answers}
	})
}

func (g guessing) Acquire(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return g.do("acquire", key, token, func() (bool, error) { return g.redisLock.Acquire(ctx, key, token, ttl) })
}

func (g guessing) Extend(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return g.do("extend", key, token, func() (bool, error) { return g.redisLock.Extend(ctx, key, token, ttl) })
}

func (g guessing) Release(ctx context.Context, key, token string) (bool, error) {
	return g.do("release", key, token, func() (bool, error) { return g.redisLock.Release(ctx, key, token) })
}

func (g guessing) do(op, key, token string, ask func() (bool, error)) (bool, error) {
	lock := [2]string{key, token}
	if _, guess := g.unanswered.Load(lock); guess {
		if answer, known := g.answers[op]; known {
			return answer, nil
		}
	}
	ok, err := ask()
	if err != nil && slices.Contains(g.after, op) {
		g.unanswered.Store(lock, true)
	}
	return ok, err
}

// withoutTimeouts makes a client that waits forever.
func withoutTimeouts(o *redis.Options) { o.ReadTimeout, o.WriteTimeout = -1, -1 }

// timeoutsOfASecond makes a client that gives up before it is obvious that it ignores contexts.
func timeoutsOfASecond(o *redis.Options) {
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout = time.Second, time.Second, time.Second
}

func plainly(ctx context.Context, do func(context.Context) (bool, error)) (bool, error) {
	return do(ctx)
}

// errorAsFalse returns false for every error.
func errorAsFalse(ctx context.Context, do func(context.Context) (bool, error)) (bool, error) {
	ok, err := do(ctx)
	if err != nil && ctx.Err() == nil {
		return false, nil
	}
	return ok, err
}

// eofAsFalse takes the end of the connection for a refusal.
func eofAsFalse(ctx context.Context, do func(context.Context) (bool, error)) (bool, error) {
	ok, err := do(ctx)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return false, nil
	}
	return ok, err
}

// garbageAsFalse takes a malformed reply for a refusal.
func garbageAsFalse(ctx context.Context, do func(context.Context) (bool, error)) (bool, error) {
	ok, err := do(ctx)
	if err != nil && strings.Contains(err.Error(), "can't parse") {
		return false, nil
	}
	return ok, err
}

// localFallback goes on without the backend if an error is not a net.Error.
func localFallback(p *patched) {
	p.acquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
		ok, err := p.redisLock.Acquire(ctx, key, token, ttl)
		var netErr net.Error
		if err != nil && over(ctx) == nil && !errors.As(err, &netErr) {
			return true, nil
		}
		return ok, err
	}
}

// resetAsFalse takes a failed write for a refusal.
func resetAsFalse(ctx context.Context, do func(context.Context) (bool, error)) (bool, error) {
	ok, err := do(ctx)
	if err != nil && strings.Contains(err.Error(), "reset by peer") {
		return false, nil
	}
	return ok, err
}

// withoutCause returns an error that does not wrap its cause.
func withoutCause(ctx context.Context, do func(context.Context) (bool, error)) (bool, error) {
	ok, err := do(ctx)
	if err != nil && ctx.Err() == nil {
		err = errors.New("the lock could not be had")
	}
	return ok, err
}

// causeAsText returns an error that has its cause as text only.
func causeAsText(ctx context.Context, do func(context.Context) (bool, error)) (bool, error) {
	ok, err := do(ctx)
	if err != nil && over(ctx) == nil {
		err = fmt.Errorf("the lock could not be had: %v", err)
	}
	return ok, err
}

// contextHidden returns an error that does not wrap ctx's error.
func contextHidden(ctx context.Context, do func(context.Context) (bool, error)) (bool, error) {
	ok, err := do(ctx)
	if err != nil && ctx.Err() != nil {
		err = errors.New("failed to acquire the lock: " + err.Error())
	}
	return ok, err
}

// panics assumes that there is a reply.
func panics(ctx context.Context, do func(context.Context) (bool, error)) (bool, error) {
	ok, err := do(ctx)
	if err != nil && ctx.Err() == nil {
		var reply any
		return reply.(int64) == 1, nil
	}
	return ok, err
}

// withoutContext does not pass ctx on.
func withoutContext(ctx context.Context, do func(context.Context) (bool, error)) (bool, error) {
	return do(context.Background())
}

// contextAfterwards does not pass ctx on, and looks at it before and afterwards.
func contextAfterwards(ctx context.Context, do func(context.Context) (bool, error)) (bool, error) {
	if err := over(ctx); err != nil {
		return false, err
	}
	ok, err := do(context.WithoutCancel(ctx))
	if ctxErr := over(ctx); ctxErr != nil {
		return false, ctxErr
	}
	return ok, err
}

// breaker returns contextAfterwards with a circuit breaker: after a call that failed slowly, the
// next one fails at once.
func breaker() func(ctx context.Context, do func(context.Context) (bool, error)) (bool, error) {
	var open atomic.Bool
	return func(ctx context.Context, do func(context.Context) (bool, error)) (bool, error) {
		if open.CompareAndSwap(true, false) && over(ctx) == nil {
			return false, errors.New("the circuit breaker is open")
		}
		begun := time.Now()
		ok, err := contextAfterwards(ctx, do)
		if err != nil && time.Since(begun) > 500*time.Millisecond {
			open.Store(true)
		}
		return ok, err
	}
}

// lateSuccess returns what the client returned, without looking at ctx.
func lateSuccess(ctx context.Context, do func(context.Context) (bool, error)) (bool, error) {
	if err := over(ctx); err != nil {
		return false, err
	}
	if _, ok := ctx.Deadline(); ok { // the client honors deadlines
		return do(ctx)
	}
	return do(context.WithoutCancel(ctx))
}

// hurry is longer than an operation usually takes.
const hurry = 200 * time.Millisecond

// hurried has a time limit that the caller did not ask for.
func hurried(ctx context.Context, do func(context.Context) (bool, error)) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	soon, cancel := context.WithTimeout(ctx, hurry)
	defer cancel()
	return do(soon)
}

// leaking abandons a call when ctx ends first, and with it a goroutine that cannot send its result.
func leaking(ctx context.Context, do func(context.Context) (bool, error)) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	type result struct {
		ok  bool
		err error
	}
	done := make(chan result)
	go func() {
		ok, err := do(context.WithoutCancel(ctx))
		done <- result{ok, err}
	}()
	select {
	case r := <-done:
		if err := over(ctx); err != nil {
			return false, err
		}
		return r.ok, r.err
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// acquireAgain goes on in the background after the caller has given up.
func acquireAgain(p *patched) {
	p.acquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
		ok, err := p.redisLock.Acquire(ctx, key, token, ttl)
		if err != nil && errors.Is(err, context.DeadlineExceeded) {
			go func() {
				for err := error(nil); err == nil; time.Sleep(2 * time.Millisecond) {
					_, err = p.redisLock.Acquire(context.WithoutCancel(ctx), key, token, ttl)
				}
			}()
		}
		return ok, err
	}
}

// repeating lets go-redis repeat failed requests, as it does by default.
func repeating(o *redis.Options) { o.MaxRetries = 3 }

// setNXRepeated is the SET NX PX of every article, on a client that repeats requests.
func setNXRepeated(tb testing.TB, addr string) locker.Locker {
	o := redisOptions(addr)
	repeating(o)
	p := patched{redisLock: redisLock{redisClient(tb, o)}}
	p.acquire = stepwise("acquire", func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
		err := p.c.Do(ctx, "SET", lockPrefix+key, token, "NX", "PX", ms(ttl)).Err()
		if errors.Is(err, redis.Nil) {
			return false, nil
		}
		return err == nil, err
	})
	p.release = func(ctx context.Context, key, token string) (bool, error) {
		return redisLock{redisClient(tb, redisOptions(addr))}.Release(ctx, key, token)
	}
	return p
}

// remembering releases nothing that it does not remember to hold.
func remembering(p *patched) {
	var mu sync.Mutex
	holds := make(map[[2]string]bool)
	p.acquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
		ok, err := p.redisLock.Acquire(ctx, key, token, ttl)
		if ok {
			mu.Lock()
			holds[[2]string{key, token}] = true
			mu.Unlock()
		}
		return ok, err
	}
	p.release = func(ctx context.Context, key, token string) (bool, error) {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		mu.Lock()
		held := holds[[2]string{key, token}]
		mu.Unlock()
		if !held {
			return false, nil
		}
		return p.redisLock.Release(ctx, key, token)
	}
}

// extendedIfOurs takes a lock that is still held after an error for an extended one.
func extendedIfOurs(p *patched) {
	p.extend = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
		ok, err := p.redisLock.Extend(ctx, key, token, ttl)
		if err != nil && over(ctx) == nil {
			if owner, getErr := p.c.Get(ctx, lockPrefix+key).Result(); getErr == nil && owner == token {
				return true, nil
			}
		}
		return ok, err
	}
}

// oneConnection dials only once.
func oneConnection(tb testing.TB, addr string) locker.Locker {
	c := redisClient(tb, redisOptions(addr))
	conn := c.Conn()
	tb.Cleanup(func() { conn.Close() })
	mine := make(chan struct{}, 1)
	run := func(ctx context.Context, op string, s *redis.Script, key string, args ...any) (bool, error) {
		if err := over(ctx); err != nil {
			return false, err
		}
		select {
		case mine <- struct{}{}:
			defer func() { <-mine }()
		case <-ctx.Done():
			return false, ctx.Err()
		}
		n, err := s.Run(ctx, conn, []string{lockPrefix + key}, args...).Int64()
		return outcome(ctx, op, key, n != 0, err)
	}
	return patched{
		acquire: func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
			return run(ctx, "acquire", acquireScript, key, token, ms(ttl))
		},
		extend: func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
			return run(ctx, "extend", extendScript, key, token, ms(ttl))
		},
		release: func(ctx context.Context, key, token string) (bool, error) {
			return run(ctx, "release", releaseScript, key, token)
		},
	}
}

// revives is a redisFull that extends in two steps. The second one changes no other token's lock, but
// creates one that has expired meanwhile.
type revives struct{ redisFull }

var reviveScript = redis.NewScript(`
	local v = redis.call('GET', KEYS[1])
	if v and v ~= ARGV[1] then return 0 end
	redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
	return 1`)

func (l revives) Extend(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	if ctx.Err() != nil {
		return outcome(ctx, "extend", key, false, nil)
	}
	v, err := l.c.Get(ctx, lockPrefix+key).Result()
	if err == redis.Nil || err == nil && v != token {
		return false, nil
	}
	if err != nil {
		return outcome(ctx, "extend", key, false, err)
	}
	n, err := reviveScript.Run(ctx, l.c, []string{lockPrefix + key}, token, ms(ttl)).Int64()
	return outcome(ctx, "extend", key, n == 1, err)
}
