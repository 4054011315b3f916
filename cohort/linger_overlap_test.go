package cohort_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/cohort"
	"github.com/golockers/locker/internal/demand"
	"github.com/golockers/locker/memory"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// useKey takes the lock of key and releases it.
func useKey(t *testing.T, l locker.Locker, key string) {
	t.Helper()
	lease, err := locker.Lock(t.Context(), l, key, time.Minute)
	require.NoError(t, err)
	require.NoError(t, lease.Unlock(t.Context()))
}

// keysHeld counts the locks of a backend.
func keysHeld(t *testing.T, m *memory.Locker) (n int) {
	t.Helper()
	for _, err := range m.List(t.Context(), "") {
		require.NoError(t, err)
		n++
	}
	return n
}

// Whatever locks are taken again or given up, those that linger end in time.
func TestLingerManyKeys(t *testing.T) {
	overDemander(t, func(t *testing.T, m *memory.Locker, inner locker.Locker, _ *counting) {
		const n = 300 // so that many share a shard
		l := lingering(inner, cohort.WithMaxHandoffs(1))
		for i := range n {
			useKey(t, l, fmt.Sprint("lingers", i))
		}
		var leases []*locker.Lease
		for i := range n { // from the middle of the lists
			if i%3 == 0 {
				lease, err := locker.Lock(t.Context(), l, fmt.Sprint("lingers", i), time.Minute)
				require.NoError(t, err)
				leases = append(leases, lease)
			}
			for range 2 { // the second time it is given up
				useKey(t, l, fmt.Sprint("ends", i))
			}
		}
		require.Equal(t, n, keysHeld(t, m))
		time.Sleep(lingerFor)
		synctest.Wait()
		assert.Equal(t, len(leases), keysHeld(t, m))
		for _, lease := range leases {
			require.NoError(t, lease.Unlock(t.Context()))
		}
		assert.Zero(t, keysHeld(t, m))
		assert.Zero(t, cohort.Entries(l))
	})
}

// A lock does not linger while an extension that may shorten it is under way or has no answer.
func TestLingerNotAfterAnExtension(t *testing.T) {
	for name, script := range map[string]func(func() (bool, error)) (bool, error){
		"under way": answerLate(time.Second), "no answer": requestLost,
	} {
		overScript(t, name, func(t *testing.T, s *scripted) {
			l := lingering(s)
			mustAcquire(t, l, "t", time.Minute)
			s.once("extend", script)
			go func() { _, _ = l.Extend(context.Background(), "k", "t", 2*time.Minute) }()
			synctest.Wait()
			requireReleases(t, l, "t")
			assert.Empty(t, held(t, s.Locker))
		})
	}
}

// An extension is for the caller's ttl, and for no more than the linger time longer.
func TestLingerExtends(t *testing.T) {
	overDemander(t, func(t *testing.T, m *memory.Locker, inner locker.Locker, _ *counting) {
		l := lingering(inner)
		lease := mustLock(t, l, time.Minute)
		require.NoError(t, lease.Extend(t.Context(), 2*time.Minute))
		ttl := func() time.Duration {
			info, err := m.Inspect(t.Context(), "k")
			require.NoError(t, err)
			return info.TTL
		}
		assert.Equal(t, 2*time.Minute, ttl(), "it has not been taken again, and no caller waits")
		queue := join(t.Context(), l, 1, time.Minute)
		require.NoError(t, lease.Extend(t.Context(), 3*time.Minute))
		assert.Equal(t, 3*time.Minute+lingerFor, ttl())
		require.NoError(t, lease.Unlock(t.Context()))
		require.NoError(t, queue.next(t).Unlock(t.Context()))

		use(t, l, time.Hour)
		time.Sleep(time.Millisecond)
		use(t, l, time.Hour)
		lease = mustLock(t, l, time.Hour-lingerFor/2)
		assert.LessOrEqual(t, ttl(), time.Hour+lingerFor/2, "others would wait for longer if the process died")
		require.NoError(t, lease.Unlock(t.Context()))
	})
}

// A lock that was taken again ends with its holder's ttl, though the backend's lasts longer.
func TestLingerNotAfterAHolderThatVanishes(t *testing.T) {
	for _, requests := range []int{0, 1} { // to take the lock again
		t.Run(fmt.Sprint(requests), func(t *testing.T) {
			overDemander(t, func(t *testing.T, m *memory.Locker, inner locker.Locker, c *counting) {
				l := lingering(inner)
				use(t, l, time.Second)
				time.Sleep(time.Millisecond)
				if requests == 0 {
					use(t, l, time.Second)
				}
				c.requests.Store(0)
				mustLock(t, l, time.Second) // and vanishes
				require.EqualValues(t, requests, c.requests.Load())
				time.Sleep(time.Second)
				synctest.Wait()
				assert.Empty(t, held(t, m))
				assert.Zero(t, cohort.Entries(l))
			})
		})
	}
}

// The same, where the timer of the holder before has rung already.
func TestLingerLongBeforeAHolderThatVanishes(t *testing.T) {
	overDemander(t, func(t *testing.T, m *memory.Locker, inner locker.Locker, c *counting) {
		l := cohort.New(inner, cohort.WithLinger(10*time.Second))
		use(t, l, time.Second)
		time.Sleep(time.Millisecond)
		use(t, l, time.Second)
		time.Sleep(2 * time.Second)
		c.requests.Store(0)
		mustLock(t, l, time.Second) // and vanishes
		require.Zero(t, c.requests.Load())
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Empty(t, held(t, m))
	})
}

// A lock that ends on the backend while it lingers is forgotten soon after.
func TestLingerIsForgotten(t *testing.T) {
	overDemander(t, func(t *testing.T, _ *memory.Locker, inner locker.Locker, _ *counting) {
		l := cohort.New(inner, cohort.WithLinger(time.Hour))
		lease := mustLock(t, l, 20*time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		gone := join(ctx, l, 1, time.Minute) // which sets a timer
		cancel()
		gone.requireGone(t)
		time.Sleep(6 * time.Second)
		require.NoError(t, lease.Unlock(t.Context()))
		time.Sleep(20 * time.Second)
		assert.Zero(t, cohort.Entries(l))
	})
}

// A lock that lingers keeps nothing of its last caller's context.
func TestLingerDropsContext(t *testing.T) {
	overScript(t, "", func(t *testing.T, s *scripted) {
		type key struct{}
		l := lingering(s)
		ctx := context.WithValue(t.Context(), key{}, "caller")
		require.NoError(t, locker.Do(ctx, l, "k", time.Minute, nop))
		released := make(chan any, 1)
		s.on("release", func(ctx context.Context, apply func() (bool, error)) (bool, error) {
			released <- ctx.Value(key{})
			return apply()
		})
		use(t, s.Locker, time.Minute) // a demand
		assert.Nil(t, <-released)
		s.on("release", nil)
	})
}

// While a lock that lingers is being extended for a caller, its time on the backend may end, and
// others of the process get another lock.
func TestLingerEndsDuringExtension(t *testing.T) {
	for _, how := range []string{"lock", "try lock"} {
		overScript(t, how, func(t *testing.T, s *scripted) {
			l := lingering(s)
			use(t, l, time.Second)
			s.once("extend", func(func() (bool, error)) (bool, error) {
				time.Sleep(3 * time.Second)
				return false, errNoAnswer
			})
			failed := make(chan error, 1)
			go func() {
				var err error
				if how == "lock" {
					_, err = l.Wait(context.Background(), "k", "t", time.Hour)
				} else {
					_, err = l.Acquire(context.Background(), "k", "t", time.Hour)
				}
				failed <- err
			}()
			synctest.Wait()
			start := time.Now()
			lease := join(t.Context(), l, 1, time.Minute).next(t)
			assert.Equal(t, time.Second, time.Since(start))
			require.ErrorIs(t, <-failed, errNoAnswer)
			s.stays(t, 10*time.Second)
			assert.Equal(t, lease.Token(), inspect(t, l).Token)
			require.NoError(t, lease.Unlock(t.Context()))
		})
	}
}

// An extension without an answer may hold the lock for long. A Release long after the first lock's
// end still frees it, and those who wait get the lock when it is free.
func TestLingerDoubtLasts(t *testing.T) {
	overScript(t, "released", func(t *testing.T, s *scripted) {
		l := lingering(s)
		use(t, l, time.Minute)
		s.once("extend", answerLost)
		_, err := l.Acquire(t.Context(), "k", "t", time.Hour)
		require.ErrorIs(t, err, errNoAnswer)
		time.Sleep(2 * time.Minute)
		require.NotEmpty(t, held(t, s.Locker))
		requireReleases(t, l, "t")
		assert.Empty(t, held(t, s.Locker))
	})
	overScript(t, "others wait", func(t *testing.T, s *scripted) {
		l := lingering(s)
		use(t, l, time.Second)
		s.once("extend", func(func() (bool, error)) (bool, error) {
			time.Sleep(time.Second / 2)
			return false, errNoAnswer
		})
		go func() { _, _ = l.Acquire(context.Background(), "k", "t", time.Hour) }()
		synctest.Wait()
		start := time.Now()
		lease := join(t.Context(), l, 1, time.Minute).next(t)
		assert.Equal(t, time.Second, time.Since(start))
		require.NoError(t, lease.Unlock(t.Context()))
	})
}

// A caller whose ttl is refused leaves nothing behind.
func TestLingerInvalidTTL(t *testing.T) {
	for _, how := range []string{"lock", "try lock"} {
		overScript(t, how, func(t *testing.T, s *scripted) {
			l := lingering(s)
			use(t, l, time.Minute)
			s.on("extend", func(context.Context, func() (bool, error)) (bool, error) { return false, locker.ErrInvalidTTL })
			var err error
			if how == "lock" {
				_, err = l.Wait(t.Context(), "k", "t", time.Hour)
			} else {
				_, err = l.Acquire(t.Context(), "k", "t", time.Hour)
			}
			require.ErrorIs(t, err, locker.ErrInvalidTTL)
			s.on("extend", nil)
			synctest.Wait()
			assert.Empty(t, held(t, s.Locker))
			assert.Zero(t, cohort.Entries(l))
		})
	}
}

// Another process wants the lock until it is given up. The next lock lingers.
func TestLingerAfterATenureThatWasWanted(t *testing.T) {
	overDemander(t, func(t *testing.T, m *memory.Locker, inner locker.Locker, _ *counting) {
		l := lingering(inner)
		lease := mustLock(t, l, time.Minute)
		_, err := locker.TryLock(t.Context(), m, "k", time.Minute)
		require.ErrorIs(t, err, locker.ErrHeld)
		queue := join(t.Context(), l, 1, time.Minute)
		token := held(t, m)
		time.Sleep(60 * time.Millisecond) // longer than a tenure
		require.NoError(t, lease.Unlock(t.Context()))
		next := queue.next(t)
		require.NotEqual(t, token, held(t, m))
		require.NoError(t, next.Unlock(t.Context()))
		assert.NotEmpty(t, held(t, m))
	})
}

// A demand is answered with what has become of the release.
func TestLingerAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		release func(func() (bool, error)) (bool, error)
		isFree  bool
	}{
		"released":        {func(apply func() (bool, error)) (bool, error) { return apply() }, true},
		"no answer":       {requestLost, false},
		"does not return": {func(func() (bool, error)) (bool, error) { runtime.Goexit(); return false, nil }, false},
	} {
		overScript(t, name, func(t *testing.T, s *scripted) {
			d := &demander{scripted: s}
			l := lingering(d)
			use(t, l, time.Minute)
			s.once("release", c.release)
			answers := make(chan bool, 1)
			d.owner.Wanted("k", func(isFree bool) { answers <- isFree })
			assert.Equal(t, c.isFree, <-answers)
			d.owner.Wanted("another", func(isFree bool) { answers <- isFree })
			assert.True(t, <-answers, "this process has nothing of it")
			time.Sleep(time.Minute)
		})
	}
}

// demander is a scripted backend that counts its registrations.
type demander struct {
	*scripted
	owner demand.Owner
	none  bool // it cannot report demands
	open  atomic.Int64
	made  atomic.Int64
}

func (d *demander) Listen(o demand.Owner) demand.Listener {
	if d.none {
		return nil
	}
	d.owner = o
	d.open.Add(1)
	d.made.Add(1)
	return registration{d.Locker.Listen(o), d}
}

type registration struct {
	demand.Listener
	d *demander
}

func (r registration) Close() {
	r.Listener.Close()
	r.d.open.Add(-1)
}

// A Locker listens for as long as it has locks, and ten seconds longer.
func TestLingerListens(t *testing.T) {
	overScript(t, "", func(t *testing.T, s *scripted) {
		d := &demander{scripted: s}
		l := lingering(d)
		use(t, l, time.Minute)
		time.Sleep(8 * time.Second)
		assert.EqualValues(t, 1, d.open.Load())
		use(t, l, time.Minute)
		time.Sleep(8 * time.Second)
		assert.EqualValues(t, 1, d.open.Load(), "it was used eight seconds ago")
		time.Sleep(2 * time.Second)
		synctest.Wait()
		assert.Zero(t, d.open.Load())

		lease := mustLock(t, l, time.Hour)
		time.Sleep(time.Minute)
		assert.EqualValues(t, 1, d.open.Load(), "it has a lock")
		require.NoError(t, lease.Unlock(t.Context()))
		time.Sleep(11 * time.Second)
		assert.Zero(t, d.open.Load())

		use(t, l, time.Minute)
		require.NoError(t, l.Close())
		assert.Zero(t, d.open.Load())
		use(t, l, time.Minute)
		assert.EqualValues(t, 3, d.made.Load(), "it listens after Close")
	})
	overScript(t, "not possible", func(t *testing.T, s *scripted) {
		l := lingering(&demander{scripted: s, none: true})
		use(t, l, time.Minute)
		assert.Empty(t, held(t, s.Locker))
	})
}

// When demands may have been missed, a lock that is taken again before it has been given up does
// not linger once more.
func TestLingerTakenAgainAfterMissed(t *testing.T) {
	overScript(t, "", func(t *testing.T, s *scripted) {
		d := &keyed{demander: demander{scripted: s}, goOn: make(chan struct{})}
		l := lingering(d)
		const n = 64 // more than there are shards, so some have to wait for others
		for i := range n {
			useKey(t, l, fmt.Sprint(i))
		}
		d.owner.Missed()
		synctest.Wait()
		taken := ""
		for i := range n {
			if key := fmt.Sprint(i); !d.begun(key) {
				taken = key
			}
		}
		require.NotEmpty(t, taken)
		lease, err := locker.Lock(t.Context(), l, taken, time.Minute)
		require.NoError(t, err)
		close(d.goOn)
		require.NoError(t, lease.Unlock(t.Context()))
		assert.True(t, d.begun(taken), "it lingers")
	})
}

// keyed is a demander whose releases wait, and which knows their keys.
type keyed struct {
	demander
	goOn chan struct{}
	mu   sync.Mutex
	keys map[string]bool
}

func (k *keyed) begun(key string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.keys[key]
}

func (k *keyed) Release(ctx context.Context, key, token string) (bool, error) {
	k.mu.Lock()
	if k.keys == nil {
		k.keys = make(map[string]bool)
	}
	k.keys[key] = true
	k.mu.Unlock()
	<-k.goOn
	return k.demander.Release(ctx, key, token)
}
