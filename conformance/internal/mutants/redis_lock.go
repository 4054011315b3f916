package mutants

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance/internal/harness"
	"github.com/golockers/locker/internal/testserver"
	"github.com/redis/go-redis/v9"
)

// redisLock is a correct Locker on Redis, which the mutants on Redis break in one way each.
type redisLock struct {
	c *redis.Client
}

// redisOptions are what a correct Locker needs of go-redis: no repetition that it does not know of,
// and I/O that honors deadlines.
func redisOptions(addr string) *redis.Options {
	return &redis.Options{Addr: addr, MaxRetries: -1, ContextTimeoutEnabled: true, PoolSize: 40}
}

func redisClient(tb testing.TB, o *redis.Options) *redis.Client {
	c := redis.NewClient(o)
	tb.Cleanup(func() { c.Close() })
	return c
}

func NewRedisLock(tb testing.TB, addr string) redisLock {
	return redisLock{redisClient(tb, redisOptions(addr))}
}

const lockPrefix = "m:"

// redisFence is the counter of all fencing numbers. No name reaches it: it does not begin with the
// prefix.
const redisFence = "fence"

var (
	acquireScript = redis.NewScript(`
		local v = redis.call('GET', KEYS[1])
		if v and v ~= ARGV[1] then return 0 end
		redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
		return 1`)
	extendScript = redis.NewScript(`
		if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
		return redis.call('PEXPIRE', KEYS[1], ARGV[2])`)
	releaseScript = redis.NewScript(`
		if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
		redis.call('PUBLISH', KEYS[1], '')
		return redis.call('DEL', KEYS[1])`)
	fenceScript = redis.NewScript(`
		local n = redis.call('INCR', KEYS[2])
		if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
		return n`)
)

// ms rounds up.
func ms(d time.Duration) int64 {
	n := d.Milliseconds()
	if time.Duration(n)*time.Millisecond < d {
		n++
	}
	return n
}

// outcome returns the results of a call with ctx.
func outcome(ctx context.Context, op, key string, ok bool, err error) (bool, error) {
	if ended := over(ctx); ended != nil {
		ok, err = false, ended
	}
	if err != nil {
		return false, fmt.Errorf("%s %q: %w", op, key, err)
	}
	return ok, nil
}

// over is ctx's error. The timer of a connection may be a little faster than that of ctx.
func over(ctx context.Context) error {
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		<-ctx.Done()
	}
	return ctx.Err()
}

func (l redisLock) run(ctx context.Context, op string, s *redis.Script, key string, args ...any) (bool, error) {
	if ctx.Err() != nil {
		return outcome(ctx, op, key, false, nil)
	}
	n, err := s.Run(ctx, l.c, []string{lockPrefix + key, redisFence}, args...).Int64()
	return outcome(ctx, op, key, n != 0, err)
}

func (l redisLock) Acquire(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return l.run(ctx, "acquire", acquireScript, key, token, ms(ttl))
}

func (l redisLock) Extend(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return l.run(ctx, "extend", extendScript, key, token, ms(ttl))
}

func (l redisLock) Release(ctx context.Context, key, token string) (bool, error) {
	return l.run(ctx, "release", releaseScript, key, token)
}

// redisFull is a redisLock with all that is optional, in a simple way.
type redisFull struct {
	redisLock
	queue   *localQueue
	isHasty bool // a cleanup gives up while the server hangs
}

// localQueue is a queue of the waiters of one Locker, for each key.
type localQueue struct {
	mu sync.Mutex
	m  map[string][]chan struct{} // each is closed when it is its owner's turn; the first one's is
}

func NewRedisFull(tb testing.TB, addr string) redisFull {
	return redisFull{redisLock: NewRedisLock(tb, addr), queue: &localQueue{m: make(map[string][]chan struct{})}}
}

func (q *localQueue) join(key string) (turn chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	turn = make(chan struct{})
	q.m[key] = append(q.m[key], turn)
	if len(q.m[key]) == 1 {
		close(turn)
	}
	return turn
}

func (q *localQueue) leave(key string, turn chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, other := range q.m[key] {
		if other != turn {
			continue
		}
		rest := append(q.m[key][:i:i], q.m[key][i+1:]...)
		if i == 0 && len(rest) > 0 {
			close(rest[0])
		}
		if q.m[key] = rest; len(rest) == 0 {
			delete(q.m, key)
		}
		return
	}
}

func (q *localQueue) waits(key string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.m[key]) > 0
}

func (l redisFull) Acquire(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	if ctx.Err() == nil && l.queue.waits(key) { // waiters come first
		if ok, err := l.Extend(ctx, key, token, ttl); ok || err != nil {
			return ok, err
		}
		return false, nil
	}
	return l.redisLock.Acquire(ctx, key, token, ttl)
}

func (l redisFull) Wait(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
	return l.wait(ctx, key, token, ttl, l.redisLock.Acquire, func() error {
		select {
		case <-time.After(3 * time.Millisecond):
		case <-ctx.Done():
		}
		return nil
	})
}

// wait queues locally, and the head of the queue polls, with a rest after each refusal.
func (l redisFull) wait(ctx context.Context, key, token string, ttl time.Duration,
	acquire func(context.Context, string, string, time.Duration) (bool, error), rest func() error) (time.Time, error) {
	if err := over(ctx); err != nil {
		return time.Time{}, err
	}
	turn := l.queue.join(key)
	defer l.queue.leave(key, turn)
	select {
	case <-turn:
	case <-ctx.Done():
		return time.Time{}, fmt.Errorf("wait %q: %w: %w", key, ctx.Err(), locker.ErrHeld)
	}
	for refused := false; ; refused = true {
		start := time.Now()
		ok, err := acquire(ctx, key, token, ttl)
		if ok {
			return start.Add(ttl), nil
		}
		if err != nil { // it may have been done, or may be yet
			release := func(limit time.Duration) bool {
				bg, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
				defer cancel()
				_, err := l.Release(bg, key, token)
				return err == nil
			}
			go func() {
				if !release(5*time.Second) && !l.isHasty {
					later(time.Now().Add(time.Minute), release)
				}
			}()
		} else {
			err = rest()
		}
		if ended := over(ctx); ended != nil && (err == nil || refused) {
			return time.Time{}, fmt.Errorf("wait %q: %w: %w", key, ended, locker.ErrHeld)
		}
		if err != nil {
			return time.Time{}, err
		}
	}
}

func (l redisFull) Fence(ctx context.Context, key, token string) (uint64, bool, error) {
	if err := over(ctx); err != nil {
		return 0, false, err
	}
	n, err := fenceScript.Run(ctx, l.c, []string{lockPrefix + key, redisFence}, token).Uint64()
	ok, err := outcome(ctx, "fence", key, n != 0, err)
	return n, ok, err
}

func (l redisFull) Watch(ctx context.Context, key string) (<-chan struct{}, error) {
	return l.watch(ctx, key, func(error) bool {
		time.Sleep(20 * time.Millisecond)
		return true
	}, true)
}

// watch subscribes to key. Broken decides what to do when the subscription has broken: true means
// to go on.
func (l redisFull) watch(ctx context.Context, key string, broken func(error) bool, wakes bool) (<-chan struct{}, error) {
	if err := over(ctx); err != nil {
		return nil, err
	}
	// A dial that is canceled counts for go-redis as one that failed, and after some of them it
	// refuses all callers for a while.
	dial := context.WithoutCancel(ctx)
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		dial, cancel = context.WithDeadline(dial, deadline)
		defer cancel()
	}
	s := l.c.Subscribe(dial, lockPrefix+key)
	if _, err := s.Receive(ctx); err != nil {
		s.Close()
		_, err = outcome(ctx, "watch", key, false, err)
		return nil, err
	}
	context.AfterFunc(ctx, func() { s.Close() })
	ch := make(chan struct{}, 1)
	wake := func() {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
	go func() {
		for lost := false; ; {
			m, err := s.Receive(context.WithoutCancel(ctx))
			if ctx.Err() != nil || errors.Is(err, redis.ErrClosed) {
				return
			}
			switch m.(type) {
			case *redis.Message:
				wake()
			case *redis.Subscription:
				if lost && wakes {
					wake()
				}
				lost = false
			}
			if err != nil {
				lost = true
				if !broken(err) {
					return
				}
			}
		}
	}()
	return ch, nil
}

// OnRedis is the configuration of Lockers on a new redis-server.
func OnRedis[L locker.Locker](make func(tb testing.TB, addr string) L) func(tb testing.TB) harness.Config {
	return func(tb testing.TB) harness.Config {
		return harness.Config{
			Addr: testserver.Redis(tb).Addr,
			New:  func(tb testing.TB, addr string) locker.Locker { return make(tb, addr) },
		}
	}
}
