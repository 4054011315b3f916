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
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance/internal/harness"
	"github.com/redis/go-redis/v9"
)

// The locks that work as long as the network does.

// wrapped is a redisLock whose operations all go through one function, which may do with them what it wants.
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

// optimist takes it that a release has arrived.
type optimist struct{ redisLock }

func (o optimist) Release(ctx context.Context, key, token string) (bool, error) {
	ok, err := o.redisLock.Release(ctx, key, token)
	return ok || err != nil && ctx.Err() == nil, ctx.Err()
}

// guessing asks nobody any more about a lock after some of its operations had no answer: it knows by itself.
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

// withoutTimeouts is a client that waits for ever.
func withoutTimeouts(o *redis.Options) { o.ReadTimeout, o.WriteTimeout = -1, -1 }

// timeoutsOfASecond is a client that gives up before one would notice that it minds no context.
func timeoutsOfASecond(o *redis.Options) {
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout = time.Second, time.Second, time.Second
}

func plainly(ctx context.Context, do func(context.Context) (bool, error)) (bool, error) {
	return do(ctx)
}

// errorAsFalse says that the lock is held by another when nobody knows.
func errorAsFalse(ctx context.Context, do func(context.Context) (bool, error)) (bool, error) {
	ok, err := do(ctx)
	if err != nil && ctx.Err() == nil {
		return false, nil
	}
	return ok, err
}

// eofAsFalse takes a connection that has ended for an answer.
func eofAsFalse(ctx context.Context, do func(context.Context) (bool, error)) (bool, error) {
	ok, err := do(ctx)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return false, nil
	}
	return ok, err
}

// garbageAsFalse takes whatever it does not understand for a refusal.
func garbageAsFalse(ctx context.Context, do func(context.Context) (bool, error)) (bool, error) {
	ok, err := do(ctx)
	if err != nil && strings.Contains(err.Error(), "can't parse") {
		return false, nil
	}
	return ok, err
}

// localFallback goes on without the backend when an error is not the network's.
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

// resetAsFalse looks at the errors of reads and takes a write that failed for a refusal.
func resetAsFalse(ctx context.Context, do func(context.Context) (bool, error)) (bool, error) {
	ok, err := do(ctx)
	if err != nil && strings.Contains(err.Error(), "reset by peer") {
		return false, nil
	}
	return ok, err
}

// withoutCause says that something failed.
func withoutCause(ctx context.Context, do func(context.Context) (bool, error)) (bool, error) {
	ok, err := do(ctx)
	if err != nil && ctx.Err() == nil {
		err = errors.New("the lock could not be had")
	}
	return ok, err
}

// causeAsText says why something failed to who reads it, and not to errors.Is.
func causeAsText(ctx context.Context, do func(context.Context) (bool, error)) (bool, error) {
	ok, err := do(ctx)
	if err != nil && over(ctx) == nil {
		err = fmt.Errorf("the lock could not be had: %v", err)
	}
	return ok, err
}

// contextHidden says that something failed, also when it is ctx that has ended.
func contextHidden(ctx context.Context, do func(context.Context) (bool, error)) (bool, error) {
	ok, err := do(ctx)
	if err != nil && ctx.Err() != nil {
		err = errors.New("failed to acquire the lock: " + err.Error())
	}
	return ok, err
}

// panics expects an answer.
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

// lateSuccess gives ctx to the client, and believes what it says.
func lateSuccess(ctx context.Context, do func(context.Context) (bool, error)) (bool, error) {
	if err := over(ctx); err != nil {
		return false, err
	}
	if _, ok := ctx.Deadline(); ok { // the client minds that
		return do(ctx)
	}
	return do(context.WithoutCancel(ctx))
}

// hurry is as long as an operation takes at most, on a good day.
const hurry = 200 * time.Millisecond

// hurried has a time limit that nobody asked for.
func hurried(ctx context.Context, do func(context.Context) (bool, error)) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	soon, cancel := context.WithTimeout(ctx, hurry)
	defer cancel()
	return do(soon)
}

// leaking leaves a call behind when ctx ends first, and with it a goroutine that is not rid of its result.
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

// acquireAgain goes on in the background when the caller has given up.
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

// repeating lets go-redis repeat what failed, as it does by default, and knows nothing of it.
func repeating(o *redis.Options) { o.MaxRetries = 3 }

// setNXRepeated is the SET NX PX of every article, on a client that repeats it.
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

// remembering releases and extends nothing that it does not remember to hold.
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

// extendedIfOurs takes a lock that is still its own after an error for one that it has extended.
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

// oneConnection dials once and keeps what it has.
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
