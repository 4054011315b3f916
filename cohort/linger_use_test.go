package cohort_test

import (
	"context"
	"iter"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/cohort"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/memory"
	"github.com/golockers/locker/redisv9"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A lock that lingers is free in the process that keeps it, and held in all others.
func TestLingerInspect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memory.New()
		l, other := lingering(m, cohort.WithOwner("web-1")), cohort.New(m)
		use(t, l, time.Minute)
		assert.Equal(t, locker.Info{Key: "k"}, inspect(t, l))
		_, err := locker.Break(t.Context(), l, "k")
		assert.ErrorIs(t, err, locker.ErrNotHeld)
		info := inspect(t, other)
		assert.True(t, strings.HasPrefix(info.Token, "web-1/"), info.Token)
		assert.Equal(t, time.Minute, info.TTL)

		lease := mustLock(t, l, time.Minute)
		assert.Equal(t, lease.Token(), inspect(t, l).Token)
		require.NoError(t, lease.Unlock(t.Context()))
		_, err = locker.Break(t.Context(), other, "k")
		require.NoError(t, err)
		assert.Empty(t, held(t, m))
		require.NoError(t, l.Close())
	})
}

// A lock that is broken goes to the process that waits for it. The release by its last holder reports
// the loss: it asks the backend if another process is known to want the lock.
func TestLingerBroken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memory.New()
		l, other := lingering(m), lingering(m)
		lease := mustLock(t, l, time.Minute)
		served := make(chan *locker.Lease)
		go func() { served <- mustLock(t, other, time.Minute) }()
		synctest.Wait()
		_, err := locker.Break(t.Context(), m, "k")
		require.NoError(t, err)
		next := <-served
		assert.ErrorIs(t, lease.Unlock(t.Context()), locker.ErrNotHeld)
		require.NoError(t, next.Unlock(t.Context()))
		require.NoError(t, l.Close())
		require.NoError(t, other.Close())
		assert.Empty(t, held(t, m))
	})
}

// tardy inspects, and then lets time pass before it answers.
type tardy struct {
	*memory.Locker
	pause time.Duration
}

func (l tardy) Inspect(ctx context.Context, key string) (locker.Info, error) {
	info, err := l.Locker.Inspect(ctx, key)
	time.Sleep(l.pause)
	return info, err
}

func (l tardy) List(ctx context.Context, prefix string) iter.Seq2[locker.Info, error] {
	return func(yield func(locker.Info, error) bool) {
		for info, err := range l.Locker.List(ctx, prefix) {
			time.Sleep(l.pause)
			if !yield(info, err) {
				return
			}
		}
	}
}

// If a process gives up a lock while it inspects it, the lock was free in that process all the
// time.
func TestLingerInspectDuringGiveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := lingering(tardy{memory.New(), time.Second})
		use(t, l, time.Minute)
		assert.Equal(t, locker.Info{Key: "k"}, inspect(t, l))
		use(t, l, time.Minute)
		for info, err := range l.List(t.Context(), "") {
			assert.Fail(t, "not free", "%v, %v", info, err)
		}
		require.NoError(t, l.Close())
	})
}

// Fencing numbers grow from one holder to the next, and an old holder gets none.
func TestLingerFence(t *testing.T) {
	overDemander(t, func(t *testing.T, _ *memory.Locker, inner locker.Locker, _ *counting) {
		l := lingering(inner)
		var last uint64
		var stale *locker.Lease
		for range 5 {
			lease := mustLock(t, l, time.Minute)
			n, err := lease.Fence(t.Context())
			require.NoError(t, err)
			assert.Greater(t, n, last)
			last = n
			if stale != nil {
				_, ok, err := l.Fence(t.Context(), "k", stale.Token())
				require.NoError(t, err)
				assert.False(t, ok)
			}
			require.NoError(t, lease.Unlock(t.Context()))
			stale = lease
		}
	})
}

func TestLingerLimits(t *testing.T) {
	for name, opt := range map[string]cohort.Option{
		"no handoffs": cohort.WithMaxHandoffs(0), "no tenure": cohort.WithMaxTenure(0), "no linger": cohort.WithLinger(-1),
	} {
		t.Run(name, func(t *testing.T) {
			overDemander(t, func(t *testing.T, m *memory.Locker, inner locker.Locker, c *counting) {
				l := lingering(inner, opt)
				for range 3 {
					c.requests.Store(0)
					use(t, l, time.Minute)
					assert.EqualValues(t, 2, c.requests.Load())
				}
			})
		})
	}
	overDemander(t, func(t *testing.T, m *memory.Locker, inner locker.Locker, _ *counting) {
		l := lingering(inner, cohort.WithMaxHandoffs(3))
		for range 3 {
			use(t, l, time.Minute)
			assert.NotEmpty(t, held(t, m))
		}
		use(t, l, time.Minute)
		assert.Empty(t, held(t, m))
	})
}

// A caller whose context carries the lock does not get it again.
func TestLingerDeadlock(t *testing.T) {
	overDemander(t, func(t *testing.T, _ *memory.Locker, inner locker.Locker, _ *counting) {
		l := lingering(inner)
		for range 2 {
			require.NoError(t, locker.Do(t.Context(), l, "k", time.Minute, func(ctx context.Context) error {
				_, err := locker.Lock(ctx, l, "k", time.Minute)
				assert.ErrorIs(t, err, locker.ErrDeadlock)
				return nil
			}))
		}
	})
}

// A lock that was taken again is kept alive like any other.
func TestLingerKeepAlive(t *testing.T) {
	overDemander(t, func(t *testing.T, m *memory.Locker, inner locker.Locker, _ *counting) {
		l := lingering(inner)
		use(t, l, time.Second)
		time.Sleep(time.Millisecond)
		lease, err := locker.Lock(t.Context(), l, "k", time.Second, locker.WithKeepAlive())
		require.NoError(t, err)
		for range 100 {
			time.Sleep(100 * time.Millisecond)
			info, err := m.Inspect(t.Context(), "k")
			require.NoError(t, err)
			require.GreaterOrEqual(t, info.TTL, time.Until(lease.Deadline()))
			require.LessOrEqual(t, info.TTL, time.Second+lingerFor)
		}
		require.NoError(t, lease.Unlock(t.Context()))
	})
}

// An Observer above the cohort gets the events of each caller, and one below those of the backend.
func TestLingerObserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memory.New()
		var above, below events
		inner := cohort.New(locker.Observed(m, &below), cohort.WithLinger(lingerFor))
		l := locker.Observed(inner, &above)
		for range 3 {
			time.Sleep(time.Millisecond)
			use(t, l, time.Minute)
		}
		assert.Equal(t, "acquired unlocked acquired unlocked acquired unlocked", above.String())
		assert.Equal(t, "acquired extended", below.String())
		time.Sleep(time.Second)
		assert.Equal(t, "acquired extended unlocked", below.String())
	})
}

type events struct {
	mu    sync.Mutex
	kinds []string
}

func (e *events) Observe(_ context.Context, event locker.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.kinds = append(e.kinds, event.Kind.String())
}

func (e *events) String() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return strings.Join(e.kinds, " ")
}

// On a Cluster a message reaches all nodes, wherever the owner listens. On a Ring nothing lingers.
func TestLingerOnCluster(t *testing.T) {
	t.Parallel()
	nodes := testserver.RedisCluster(t, 2)
	cluster := func() *redisv9.Locker {
		client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: nodes})
		t.Cleanup(func() { _ = client.Close() })
		return redisv9.New(client)
	}
	l, other := cohort.New(cluster(), cohort.WithLinger(time.Minute)), cluster()
	t.Cleanup(func() { _ = l.Close() })
	for _, key := range []string{"k", "a", "b", "c", "}"} { // on both nodes; the last one can have no queue
		require.Eventually(t, func() bool {
			lease := mustLock2(t, l, key)
			require.NoError(t, lease.Unlock(t.Context()))
			info, err := other.Inspect(t.Context(), key)
			require.NoError(t, err)
			return (info.Token != "") == (key != "}")
		}, 30*time.Second, time.Millisecond, key)
		lease, err := locker.TryLock(t.Context(), other, key, time.Minute)
		require.NoError(t, err, key)
		require.NoError(t, lease.Unlock(t.Context()))
		require.NoError(t, mustLock2(t, l, key).Unlock(t.Context()))
		require.NoError(t, mustLock2(t, other, key).Unlock(t.Context()))
		lease = mustLock2(t, l, key)
		_, err = locker.TryLock(t.Context(), other, key, time.Minute)
		require.ErrorIs(t, err, locker.ErrHeld)
		require.NoError(t, lease.Unlock(t.Context()))
	}

	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": testserver.Redis(t).Addr}})
	t.Cleanup(func() { _ = ring.Close() })
	onRing := redisv9.New(ring)
	l = cohort.New(onRing, cohort.WithLinger(time.Minute))
	for range 20 {
		use(t, l, time.Minute)
		assert.Empty(t, held(t, onRing))
		time.Sleep(time.Millisecond)
	}
}

// A backend that panics leaves the Locker usable.
func TestLingerBackendPanics(t *testing.T) {
	for _, how := range []string{"lock", "try lock"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &scripted{Locker: memory.New(), scripts: make(map[string]script)}
				l := lingering(s)
				use(t, l, time.Second)
				time.Sleep(time.Millisecond)
				s.on("extend", func(context.Context, func() (bool, error)) (bool, error) { panic("the backend") })
				assert.PanicsWithValue(t, "the backend", func() {
					if how == "lock" {
						_, _ = locker.Lock(t.Context(), l, "k", time.Second)
					} else {
						_, _ = locker.TryLock(t.Context(), l, "k", time.Second)
					}
				})
				s.on("extend", nil)
				use(t, l, time.Second)
				time.Sleep(2 * time.Minute)
				assert.Zero(t, cohort.Entries(l))
			})
		})
	}
}
