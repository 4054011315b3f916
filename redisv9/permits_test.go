package redisv9_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/redislock/redistest"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/redisv9"
	"github.com/golockers/locker/semaphore"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// These tests are about the permits of package semaphore, which share a queue.

const permitsQueue = "!line:locker:@permits{locker:s}"

func awaited(admin redis.UniversalClient) int64 {
	return admin.ZCard(context.Background(), permitsQueue).Val()
}

// waits starts a Wait for a permit of s, and returns once it is in the queue.
func waits(tb testing.TB, admin redis.UniversalClient, l *semaphore.Locker, ctx context.Context, token string) <-chan redistest.Turn {
	tb.Helper()
	before := awaited(admin)
	done := make(chan redistest.Turn, 1)
	go func() {
		deadline, err := l.Wait(ctx, "s", token, time.Minute)
		done <- redistest.Turn{Deadline: deadline, Err: err}
	}()
	eventually(tb, "it is in the queue", func() bool { return awaited(admin) > before })
	return done
}

// fill takes n permits.
func fill(tb testing.TB, l *semaphore.Locker, n int) {
	tb.Helper()
	for i := range n {
		acquires(tb, l, "s", fmt.Sprint("holder ", i+1), time.Minute)
		require.Equal(tb, i+1, l.Permit("s", fmt.Sprint("holder ", i+1)))
	}
}

// Permits can be inspected, listed and broken as locks. The first in the queue notices.
func TestPermitsAreLocks(t *testing.T) {
	t.Parallel()
	admin := newClient(t, &redis.Options{Addr: testserver.Redis(t).Addr})
	l := redisv9.New(admin)
	s := semaphore.NewLocker(l, 3)
	fill(t, s, 3)
	for i := range 3 {
		assert.Equal(t, fmt.Sprint("holder ", i+1), inspect(t, l, fmt.Sprint("s/", i+1)).Token)
	}
	held, errs := list(t, l, "s")
	assert.Len(t, held, 3)
	assert.Empty(t, errs)
	waiter := waits(t, admin, s, t.Context(), "waiter")
	_, err := locker.Break(t.Context(), l, "s/2")
	require.NoError(t, err)
	isServed(t, waiter, "a permit was broken")
	assert.Equal(t, 2, s.Permit("s", "waiter"))
	mint(t, s, "s", "waiter")
	for _, token := range []string{"holder 1", "waiter", "holder 3"} {
		releases(t, s, "s", token)
	}
	assert.Equal(t, []string{"!fence:locker:"}, admin.Keys(t.Context(), "*").Val(), "nothing else is left")
}

// Waiters survive a flush of scripts or data, keys that are deleted, and connections that end.
func TestPermitsAfterAccidents(t *testing.T) {
	t.Parallel()
	for name, accident := range map[string]func(ctx context.Context, admin *redis.Client) error{
		"SCRIPT FLUSH": func(ctx context.Context, admin *redis.Client) error { return admin.ScriptFlush(ctx).Err() },
		"FLUSHALL":     func(ctx context.Context, admin *redis.Client) error { return admin.FlushAll(ctx).Err() },
		"no queue":     func(ctx context.Context, admin *redis.Client) error { return admin.Del(ctx, permitsQueue).Err() },
		"connections end": func(ctx context.Context, admin *redis.Client) error {
			return admin.ClientKillByFilter(ctx, "type", "pubsub").Err()
		},
		"a permit is gone": func(ctx context.Context, admin *redis.Client) error { return admin.Del(ctx, "locker:s/2").Err() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			admin := newClient(t, &redis.Options{Addr: testserver.Redis(t).Addr})
			holder := semaphore.NewLocker(redisv9.New(admin), 3)
			waiter := semaphore.NewLocker(newLocker(t, admin.Options()), 3)
			fill(t, holder, 3)
			var done []<-chan redistest.Turn
			for i := range 3 {
				done = append(done, waits(t, admin, waiter, t.Context(), fmt.Sprint("waiter ", i)))
			}
			hears(t, admin, 1)
			require.NoError(t, accident(t.Context(), admin))
			for i := range 3 {
				_, err := holder.Release(t.Context(), "s", fmt.Sprint("holder ", i+1))
				require.NoError(t, err)
			}
			for i := range done {
				isServed(t, done[i], "all permits were released")
			}
			for i := range done {
				releases(t, waiter, "s", fmt.Sprint("waiter ", i))
			}
			eventually(t, "nothing is left", func() bool { return len(admin.Keys(t.Context(), "*").Val()) == 0 })
		})
	}
}

// A process has as many places in the queue as there are permits, or waiters if these are fewer.
func TestPlacesForPermits(t *testing.T) {
	t.Parallel()
	addr := testserver.Redis(t).Addr
	admin := newClient(t, &redis.Options{Addr: addr})
	l := newLocker(t, &redis.Options{Addr: addr})
	holder, s := semaphore.NewLocker(redisv9.New(admin), 3), semaphore.NewLocker(l, 3)
	fill(t, holder, 3)
	leaving, cancel := context.WithCancel(t.Context())
	var gone, stay []<-chan redistest.Turn
	for i := range 2 {
		gone = append(gone, waits(t, admin, s, leaving, fmt.Sprint("gone ", i)))
	}
	stay = append(stay, waits(t, admin, s, t.Context(), "stays 0"))
	for i := range 4 {
		stay = append(stay, stands(t, s, t.Context(), "s", fmt.Sprint("stays ", i+1), time.Minute))
	}
	require.EqualValues(t, 3, awaited(admin))
	cancel()
	for _, done := range gone {
		require.ErrorIs(t, (<-done).Err, locker.ErrHeld)
	}
	require.EqualValues(t, 3, awaited(admin))
	for i := range 3 {
		releases(t, holder, "s", fmt.Sprint("holder ", i+1))
	}
	served := 0
	for served < 3 { // any three: their permits were offered at the same time
		for i, done := range stay {
			select {
			case r := <-done:
				require.NoError(t, r.Err)
				require.Less(t, i, 3, "served before those who came earlier")
				served++
			default:
			}
		}
	}
	for i := range 3 {
		releases(t, s, "s", fmt.Sprint("stays ", i))
	}
	isServed(t, stay[3], "permits were released")
	isServed(t, stay[4], "permits were released")
}

// embedding is a Locker that changes what the one that it embeds does.
type embedding struct {
	*redisv9.Locker
	tenant string
}

func (l embedding) Acquire(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return l.Locker.Acquire(ctx, l.tenant+key, token, ttl)
}

// A semaphore does not bypass the methods of a Locker that embeds this one.
func TestPermitsOfAnEmbeddingLocker(t *testing.T) {
	t.Parallel()
	admin := newClient(t, &redis.Options{Addr: testserver.Redis(t).Addr})
	s := semaphore.NewLocker(embedding{redisv9.New(admin), "tenant/"}, 1)
	acquires(t, s, "s", "token", time.Minute)
	assert.Equal(t, []string{"locker:tenant/s/1"}, admin.Keys(t.Context(), "*").Val())
	assert.Nil(t, redisv9.New(nil).Permits(redisv9.New(nil), "s", 1), "another Locker")
}

// Where a process cannot use the queue for all permits, it uses that of an additional lock, even if
// others do use the queue for all permits. There are never too many holders, and each waiter has
// its turn.
func TestPermitsWithoutTheirQueue(t *testing.T) {
	t.Parallel()
	node := testserver.RedisCluster(t, 1)[0]
	single := testserver.Redis(t).Addr
	for name, test := range map[string]struct {
		a, b locker.Locker
		n    int
	}{
		"a node of a Cluster": {newLocker(t, &redis.Options{Addr: node}), redisv9.New(newCluster(t, []string{node})), 2},
		"mixed":               {embedding{newLocker(t, &redis.Options{Addr: single}), ""}, newLocker(t, &redis.Options{Addr: single}), 2},
		"too many":            {newLocker(t, &redis.Options{Addr: single}), newLocker(t, &redis.Options{Addr: single}), 65},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := semaphore.NewLocker(test.a, test.n), semaphore.NewLocker(test.b, test.n)
			for i := range test.n {
				acquires(t, []locker.Locker{a, b}[i%2], name, fmt.Sprint(i), time.Minute)
			}
			var done []<-chan redistest.Turn
			for i := range 4 {
				turn := make(chan redistest.Turn, 1)
				go func() {
					deadline, err := []*semaphore.Locker{a, b}[i%2].Wait(t.Context(), name, fmt.Sprint("waiter ", i), time.Minute)
					turn <- redistest.Turn{Deadline: deadline, Err: err}
				}()
				done = append(done, turn)
			}
			for i := range 2 {
				refused, err := []locker.Locker{a, b}[i].Acquire(t.Context(), name, "refused", time.Minute)
				require.NoError(t, err)
				require.False(t, refused, "all permits are held")
			}
			for i := range test.n {
				releases(t, []locker.Locker{b, a}[i%2], name, fmt.Sprint(i))
			}
			var next []chan struct{}
			for i := range done {
				served := make(chan struct{})
				next = append(next, served)
				go func() {
					defer close(served)
					if r := <-done[i]; assert.NoError(t, r.Err) {
						_, err := a.Release(t.Context(), name, fmt.Sprint("waiter ", i))
						assert.NoError(t, err)
					}
				}()
			}
			for i := range next {
				isClosed(t, next[i], "permits were released")
			}
		})
	}
}

func isClosed(tb testing.TB, c <-chan struct{}, why string) {
	tb.Helper()
	select {
	case <-c:
	case <-time.After(30 * time.Second):
		tb.Fatalf("not within 30 seconds: %s", why)
	}
}

// No names give a lock and a semaphore the same queue.
func TestPermitsHaveTheirOwnQueue(t *testing.T) {
	t.Parallel()
	admin := newClient(t, &redis.Options{Addr: testserver.Redis(t).Addr})
	l := redisv9.New(admin)
	s := semaphore.NewLocker(l, 1)
	for key, test := range map[string]locker.Waiter{"{locker:x}}/permits": l, "x}locker:{locker:x}": s} {
		acquires(t, test, key, "holder", time.Minute)
		go func() { _, _ = test.Wait(t.Context(), key, "waiter", time.Minute) }()
	}
	eventually(t, "both wait", func() bool { return len(admin.Keys(t.Context(), "!line:*").Val()) == 2 })
}

// The Waiters of a permit are those of its semaphore, also for a user who may not read their queue.
func TestWaitersOfPermits(t *testing.T) {
	t.Parallel()
	admin := newClient(t, &redis.Options{Addr: testserver.Redis(t).Addr})
	l := redisv9.New(admin)
	s := semaphore.NewLocker(l, 2)
	fill(t, s, 2)
	for i := range 2 {
		waits(t, admin, s, t.Context(), fmt.Sprint("waiter ", i))
	}
	waits(t, admin, semaphore.NewLocker(newLocker(t, admin.Options()), 2), t.Context(), "waiter 2")
	go func() { _, _ = l.Wait(t.Context(), "s/2", "of the lock", time.Minute) }()
	eventually(t, "one waits for a permit by its own name", func() bool { return inspect(t, l, "s/2").Waiters == 4 })
	assert.Equal(t, 3, inspect(t, l, "s/1").Waiters)
	listed := map[string]int{}
	for info, err := range l.List(t.Context(), "s") {
		require.NoError(t, err)
		listed[info.Key] = info.Waiters
	}
	assert.Equal(t, map[string]int{"s/1": 3, "s/2": 4}, listed)
	for _, name := range []string{"s", "s/0", "s/01", "s/+1", "s/65", "s/1/1", "t/1", "1"} {
		assert.Zero(t, inspect(t, l, name).Waiters, name)
	}

	require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", "app", "on", ">secret", "+@all", "~locker:*",
		"~!line:locker:{*", "allchannels").Err())
	app := newLocker(t, &redis.Options{Addr: admin.Options().Addr, Username: "app", Password: "secret"})
	seen := inspect(t, app, "s/1")
	assert.Equal(t, locker.Info{Key: "s/1", Token: "holder 1", TTL: seen.TTL}, seen)
}

// A client for a single server that is connected to a node of a Cluster inspects what looks like a
// permit.
func TestInspectOnNodeOfCluster(t *testing.T) {
	t.Parallel()
	l := newLocker(t, &redis.Options{Addr: testserver.RedisCluster(t, 1)[0]})
	for range 2 { // what it has learned from the first answer makes no difference
		acquires(t, l, "s/1", "token", time.Minute)
		assert.Equal(t, "token", inspect(t, l, "s/1").Token)
		releases(t, l, "s/1", "token")
	}
}

// The user that the documentation describes may use permits.
func TestPermitsOfALimitedUser(t *testing.T) {
	t.Parallel()
	admin := newClient(t, &redis.Options{Addr: testserver.Redis(t).Addr})
	rule := "ACL SETUSER app on >secret +@all ~locker:* ~!line:locker:* ~!fence:locker:* ~!window:locker:* " +
		"resetchannels &locker:* &!wait:locker:*"
	args := strings.Fields(rule)
	command := make([]any, len(args))
	for i := range args {
		command[i] = args[i]
	}
	require.NoError(t, admin.Do(t.Context(), command...).Err())
	l := newLocker(t, &redis.Options{Addr: admin.Options().Addr, Username: "app", Password: "secret"})
	s := semaphore.NewLocker(l, 2)
	fill(t, s, 2)
	done := waits(t, admin, s, t.Context(), "waiter")
	releases(t, s, "s", "holder 1")
	isServed(t, done, "a permit was released")
}
