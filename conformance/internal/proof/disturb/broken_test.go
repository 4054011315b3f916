package disturb

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	gomemcache "github.com/bradfitz/gomemcache/memcache"
	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance/internal/proof/load"
	"github.com/golockers/locker/memcache"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

func redisClient(tb testing.TB, addrs string) redis.UniversalClient {
	client := redis.NewUniversalClient(&redis.UniversalOptions{Addrs: strings.Split(addrs, ","), MaxRetries: -1,
		ContextTimeoutEnabled: true, DialTimeout: time.Second, ReadTimeout: time.Second, WriteTimeout: time.Second})
	tb.Cleanup(func() { _ = client.Close() })
	return client
}

// prepare repeats what a mutant needs before its server is disturbed: its requests have a second each,
// which is not enough on a machine that is very busy.
func prepare(tb testing.TB, do func() error) {
	tb.Helper()
	err := do()
	for end := time.Now().Add(time.Minute); err != nil && time.Now().Before(end); err = do() {
		time.Sleep(20 * time.Millisecond)
	}
	require.NoError(tb, err)
}

// scripted is a lock of which each operation is a script.
type scripted struct {
	acquireBy, extendBy, releaseBy func(ctx context.Context, key, token string, ms int64) (int, error)
}

func (s scripted) Acquire(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	n, err := s.acquireBy(ctx, key, token, ttl.Milliseconds())
	return n == 1, err
}

func (s scripted) Extend(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	n, err := s.extendBy(ctx, key, token, ttl.Milliseconds())
	return n == 1, err
}

func (s scripted) Release(ctx context.Context, key, token string) (bool, error) {
	n, err := s.releaseBy(ctx, key, token, 0)
	return n == 1, err
}

const (
	acquireScript = `return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) and 1 or 0`
	extendScript  = `return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('PEXPIRE', KEYS[1], ARGV[2]) or 0`
	releaseScript = `return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('DEL', KEYS[1]) or 0`
)

// runByHash loads its scripts once.
func runByHash(tb testing.TB, addr string) locker.Locker {
	client := redisClient(tb, addr)
	loaded := func(script string) func(ctx context.Context, key, token string, ms int64) (int, error) {
		var hash string
		prepare(tb, func() (err error) {
			hash, err = client.ScriptLoad(tb.Context(), script).Result()
			return err
		})
		return func(ctx context.Context, key, token string, ms int64) (int, error) {
			return client.EvalSha(ctx, hash, []string{key}, token, ms).Int()
		}
	}
	return scripted{loaded(acquireScript), loaded(extendScript), loaded(releaseScript)}
}

// countReceivers leaves the lock to another if a message about it has a receiver, which need not be
// one that waits for it.
func countReceivers(tb testing.TB, addr string) locker.Locker {
	client := redisClient(tb, addr)
	run := func(script string) func(ctx context.Context, key, token string, ms int64) (int, error) {
		return func(ctx context.Context, key, token string, ms int64) (int, error) {
			return client.Eval(ctx, script, []string{key}, token, ms).Int()
		}
	}
	return scripted{run(acquireScript), run(extendScript), run(`
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
	return 0
end
if redis.call('PUBLISH', 'free: ' .. KEYS[1], '') > 0 then
	redis.call('SET', KEYS[1], 'left to the receiver', 'PX', 60000)
else
	redis.call('DEL', KEYS[1])
end
return 1`)}
}

// fenced is a mutant that mints fencing numbers.
type fenced struct {
	*mutated
	client redis.UniversalClient
}

func (f fenced) Fence(ctx context.Context, key, _ string) (uint64, bool, error) {
	n, err := f.client.Incr(ctx, "fences of "+key).Uint64()
	return n, err == nil, err
}

func countFences(open load.Open) load.Open {
	return func(tb testing.TB, addr string) locker.Locker {
		return fenced{mutate(open(tb, addr)), redisClient(tb, addr)}
	}
}

// hearing is a mutant whose waiters wait for a message that a lock is free.
type hearing struct {
	*mutated
	mu      sync.Mutex
	message chan struct{} // closed by the next message
}

func (h *hearing) Wait(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
	for {
		h.mu.Lock()
		message := h.message
		h.mu.Unlock()
		began := time.Now()
		ok, err := h.acquire(ctx, key, token, ttl)
		if ok || err != nil {
			return began.Add(ttl), err
		}
		select {
		case <-message:
		case <-ctx.Done():
			return time.Time{}, ctx.Err()
		}
	}
}

func hearOnce(open load.Open) load.Open {
	return func(tb testing.TB, addr string) locker.Locker {
		client := redisClient(tb, addr)
		h := &hearing{mutated: mutate(open(tb, addr)), message: make(chan struct{})}
		sub := client.Subscribe(tb.Context(), "free")
		prepare(tb, func() error {
			_, err := sub.Receive(tb.Context())
			return err
		})
		heard := make(chan struct{})
		tb.Cleanup(func() {
			_ = sub.Close()
			<-heard
		})
		go func() {
			defer close(heard)
			for {
				if _, err := sub.ReceiveMessage(context.Background()); err != nil {
					return
				}
				h.mu.Lock()
				close(h.message)
				h.message = make(chan struct{})
				h.mu.Unlock()
			}
		}()
		release := h.release
		h.release = func(ctx context.Context, key, token string) (bool, error) {
			ok, err := release(ctx, key, token)
			if err == nil {
				err = client.Publish(ctx, "free", "").Err()
			}
			return ok, err
		}
		return h
	}
}

// keepNode is a client of the first node of a Cluster.
func keepNode(load.Open) load.Open {
	return func(tb testing.TB, addrs string) locker.Locker {
		first, _, _ := strings.Cut(addrs, ",")
		return mutate(load.Redisv9()(tb, first))
	}
}

// connectEachTime has a client for each Acquire, which does not wait long for its connection.
func connectEachTime(open load.Open) load.Open {
	return func(tb testing.TB, addr string) locker.Locker {
		m := mutate(open(tb, addr))
		m.acquire = believing(func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
			client := gomemcache.New(addr)
			client.Timeout = late
			defer client.Close()
			return memcache.New(client).Acquire(ctx, key, token, ttl)
		})
		return m
	}
}

func newPool(tb testing.TB, addr string) *pgxpool.Pool {
	pool, err := pgxpool.New(tb.Context(), "postgres://postgres@"+addr+
		"/postgres?sslmode=disable&pool_max_conns=20&default_query_exec_mode=exec")
	require.NoError(tb, err)
	tb.Cleanup(pool.Close)
	return pool
}

// rememberRow releases a lock only if its row is still where it was.
func rememberRow(open load.Open) load.Open {
	return func(tb testing.TB, addr string) locker.Locker {
		l, pool := open(tb, addr), newPool(tb, addr)
		m := mutate(l)
		var places sync.Map // by token
		m.acquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
			ok, err := l.Acquire(ctx, key, token, ttl)
			if !ok || err != nil {
				return ok, err
			}
			var place string
			err = pool.QueryRow(ctx, "SELECT ctid::text FROM locker_locks WHERE token = $1", []byte(token)).Scan(&place)
			if err == nil {
				places.Store(token, place)
			}
			return err == nil, err
		}
		m.release = func(ctx context.Context, key, token string) (bool, error) {
			place, ok := places.Load(token)
			if !ok {
				return l.Release(ctx, key, token)
			}
			var one int
			err := pool.QueryRow(ctx, "SELECT 1 FROM locker_locks WHERE ctid = $1::text::tid AND token = $2",
				place, []byte(token)).Scan(&one)
			if errors.Is(err, pgx.ErrNoRows) {
				return false, nil
			}
			if err != nil {
				return false, err
			}
			return l.Release(ctx, key, token)
		}
		return m
	}
}

// session is an advisory lock of whatever session a pooler chooses.
type session struct{ pool *pgxpool.Pool }

func (s session) ask(ctx context.Context, sql, key string) (ok bool, err error) {
	err = s.pool.QueryRow(ctx, sql, key).Scan(&ok)
	return ok, err
}

func (s session) Acquire(ctx context.Context, key, _ string, _ time.Duration) (bool, error) {
	return s.ask(ctx, "SELECT pg_try_advisory_lock(hashtext($1))", key)
}

func (s session) Extend(context.Context, string, string, time.Duration) (bool, error) {
	return true, nil
}

func (s session) Release(ctx context.Context, key, _ string) (bool, error) {
	return s.ask(ctx, "SELECT pg_advisory_unlock(hashtext($1))", key)
}

func lockSession(tb testing.TB, addr string) locker.Locker { return session{newPool(tb, addr)} }

// readOldRevision reads a key of etcd as it was before it takes the lock.
func readOldRevision(open load.Open) load.Open {
	return func(tb testing.TB, addr string) locker.Locker {
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + addr}, Logger: zap.NewNop()})
		require.NoError(tb, err)
		tb.Cleanup(func() { _ = client.Close() })
		began, err := client.Get(tb.Context(), "x")
		require.NoError(tb, err)
		l := open(tb, addr)
		m := mutate(l)
		m.acquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
			if _, err := client.Get(ctx, key, clientv3.WithRev(began.Header.Revision)); err != nil {
				return false, err
			}
			return l.Acquire(ctx, key, token, ttl)
		}
		return m
	}
}
