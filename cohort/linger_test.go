package cohort_test

import (
	"context"
	"errors"
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

// demanding is a counting backend that keeps a queue and reports demands.
type demanding struct{ queueing }

func (d demanding) Listen(o demand.Owner) demand.Listener {
	return d.Locker.(demand.Demander).Listen(o)
}

func (d demanding) Inspect(ctx context.Context, key string) (locker.Info, error) {
	return d.Locker.(locker.Inspector).Inspect(ctx, key)
}

const lingerFor = 100 * time.Millisecond

// overDemander runs f in a bubble over a backend that reports demands.
func overDemander(t *testing.T, f func(t *testing.T, m *memory.Locker, inner locker.Locker, c *counting)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := memory.New()
		c := &counting{Locker: m}
		f(t, m, demanding{queueing{c}}, c)
		time.Sleep(2 * time.Minute)
	})
}

func lingering(l locker.Locker, opts ...cohort.Option) *cohort.Locker {
	return cohort.New(l, append([]cohort.Option{cohort.WithLinger(lingerFor)}, opts...)...)
}

// use takes the lock of "k" and releases it.
func use(t testing.TB, l locker.Locker, ttl time.Duration) {
	t.Helper()
	require.NoError(t, mustLock(t, l, ttl).Unlock(context.Background()))
}

func TestLingerTakesNoRequests(t *testing.T) {
	overDemander(t, func(t *testing.T, m *memory.Locker, inner locker.Locker, c *counting) {
		l := lingering(inner)
		use(t, l, time.Minute)
		assert.EqualValues(t, 1, c.requests.Load(), "the release")
		time.Sleep(time.Millisecond)
		use(t, l, time.Minute)
		assert.EqualValues(t, 2, c.requests.Load(), "the first time the lock is extended")
		for range 1000 {
			use(t, l, time.Minute)
			lease, err := locker.TryLock(t.Context(), l, "k", time.Minute)
			require.NoError(t, err)
			require.NoError(t, lease.Unlock(t.Context()))
		}
		assert.EqualValues(t, 2, c.requests.Load())
		assert.Equal(t, 1, cohort.Entries(l))

		time.Sleep(lingerFor - time.Nanosecond)
		assert.NotEmpty(t, held(t, m), "it does not linger for long enough")
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		assert.Empty(t, held(t, m), "it lingers for too long")
		assert.EqualValues(t, 3, c.requests.Load())
		assert.Zero(t, cohort.Entries(l))
	})
}

// held returns the token that holds the lock of "k".
func held(t testing.TB, l locker.Inspector) string {
	t.Helper()
	info, err := l.Inspect(context.Background(), "k")
	require.NoError(t, err)
	return info.Token
}

// Every grant follows a request that the backend has confirmed, for long enough.
func TestLingerKeepsDeadlines(t *testing.T) {
	overDemander(t, func(t *testing.T, m *memory.Locker, inner locker.Locker, c *counting) {
		l := lingering(inner)
		const ttl = time.Second
		use(t, l, ttl)
		for range 200 {
			time.Sleep(7 * time.Millisecond)
			lease := mustLock(t, l, ttl)
			assert.Equal(t, ttl, time.Until(lease.Deadline()))
			info, err := m.Inspect(t.Context(), "k")
			require.NoError(t, err)
			assert.GreaterOrEqual(t, info.TTL, ttl, "the backend may give it to another earlier")
			assert.LessOrEqual(t, info.TTL, ttl+lingerFor, "others would wait for longer if the process died")
			require.NoError(t, lease.Unlock(t.Context()))
		}
		assert.Less(t, c.requests.Load(), int64(30))

		// A holder with another ttl.
		for _, ttl := range []time.Duration{time.Minute, 50 * time.Millisecond, time.Hour} {
			lease := mustLock(t, l, ttl)
			info, err := m.Inspect(t.Context(), "k")
			require.NoError(t, err)
			assert.GreaterOrEqual(t, info.TTL, ttl)
			assert.LessOrEqual(t, info.TTL, ttl+lingerFor)
			require.NoError(t, lease.Unlock(t.Context()))
		}
	})
}

// A holder that vanishes after the lock has lingered is passed over when its own ttl ends.
func TestLingerHolderVanishes(t *testing.T) {
	overDemander(t, func(t *testing.T, m *memory.Locker, inner locker.Locker, _ *counting) {
		l := lingering(inner)
		use(t, l, time.Second)
		mustLock(t, l, time.Second) // and vanishes
		start := time.Now()
		lease := mustLock(t, m, time.Second)
		assert.Equal(t, time.Second, time.Since(start))
		require.NoError(t, lease.Unlock(t.Context()))
		mustLock(t, l, time.Second)
		start = time.Now()
		lease = mustLock(t, l, time.Second)
		assert.Equal(t, time.Second, time.Since(start))
		require.NoError(t, lease.Unlock(t.Context()))
	})
}

// slow is a backend on which requests arrive late: the lock's time there ends later than it does
// here.
type slow struct{ demanding }

func (s slow) Wait(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
	start := time.Now()
	time.Sleep(300 * time.Millisecond)
	_, err := s.demanding.Wait(ctx, key, token, ttl)
	return start.Add(ttl), err
}

// A lock whose time is up here, but not on the backend, is still free.
func TestLingerEndsEarlierThanOnTheBackend(t *testing.T) {
	for _, who := range []string{"this process", "another process", "another process, later"} {
		t.Run(who, func(t *testing.T) {
			overDemander(t, func(t *testing.T, m *memory.Locker, inner locker.Locker, _ *counting) {
				var l locker.Locker = cohort.New(slow{inner.(demanding)}, cohort.WithLinger(time.Hour))
				const ttl = 5*time.Second + 100*time.Millisecond // the sweep comes in between
				use(t, l, ttl)
				time.Sleep(ttl - 200*time.Millisecond)
				require.NotEmpty(t, held(t, m))
				if who == "another process, later" {
					time.Sleep(100 * time.Millisecond)
				}
				if who != "this process" {
					l = m
				}
				lease, err := locker.TryLock(t.Context(), l, "k", time.Second)
				require.NoError(t, err)
				require.NoError(t, lease.Unlock(t.Context()))
			})
		})
	}
}

// A lock whose ttl ends while it lingers is taken again.
func TestLingerEndsWithTTL(t *testing.T) {
	overDemander(t, func(t *testing.T, m *memory.Locker, inner locker.Locker, c *counting) {
		l := cohort.New(inner, cohort.WithLinger(time.Hour))
		use(t, l, time.Second)
		time.Sleep(time.Second)
		assert.Empty(t, held(t, m), "it is extended")
		use(t, l, time.Second)
		use(t, l, time.Hour)
		time.Sleep(time.Second)
		assert.Equal(t, 1, cohort.Entries(l))
		time.Sleep(3 * time.Hour)
		assert.Zero(t, cohort.Entries(l))
		use(t, l, time.Second)
		time.Sleep(7 * time.Second)
		assert.Zero(t, cohort.Entries(l), "it is remembered for as long as it might have lingered")
	})
}

func TestLingerGivesWay(t *testing.T) {
	for name, other := range map[string]func(inner locker.Locker) locker.Locker{
		"to another cohort":     func(inner locker.Locker) locker.Locker { return cohort.New(inner) },
		"to one that lingers":   func(inner locker.Locker) locker.Locker { return lingering(inner) },
		"to the backend's user": func(inner locker.Locker) locker.Locker { return inner },
	} {
		t.Run(name, func(t *testing.T) {
			overDemander(t, func(t *testing.T, m *memory.Locker, inner locker.Locker, _ *counting) {
				l, other := lingering(inner), other(inner)
				for range 3 {
					use(t, l, time.Minute)
					use(t, l, time.Minute)
					start := time.Now()
					lease, err := locker.TryLock(t.Context(), other, "k", time.Minute)
					require.NoError(t, err, "it is not used")
					_, err = locker.TryLock(t.Context(), l, "k", time.Minute)
					require.ErrorIs(t, err, locker.ErrHeld, "two holders")
					require.NoError(t, lease.Unlock(t.Context()))
					use(t, l, time.Minute)
					use(t, other, time.Minute)
					assert.Zero(t, time.Since(start))
				}
			})
		})
	}
}

func TestLingerInUse(t *testing.T) {
	overDemander(t, func(t *testing.T, m *memory.Locker, inner locker.Locker, c *counting) {
		l := lingering(inner)
		use(t, l, time.Minute)
		lease := mustLock(t, l, time.Minute)
		start := time.Now()
		_, err := locker.TryLock(t.Context(), m, "k", time.Minute)
		assert.ErrorIs(t, err, locker.ErrHeld)
		assert.Zero(t, time.Since(start), "the owner does not answer")
		c.requests.Store(0)
		require.NoError(t, lease.Unlock(t.Context()))
		assert.EqualValues(t, 1, c.requests.Load(), "it is wanted, and lingers")
		assert.Empty(t, held(t, m))

		// It is wanted only once.
		use(t, l, time.Minute)
		assert.NotEmpty(t, held(t, m))
	})
}

// An owner that gets the lock is notified if others are already in the queue.
func TestLingerBehindAQueue(t *testing.T) {
	overDemander(t, func(t *testing.T, m *memory.Locker, inner locker.Locker, _ *counting) {
		l := lingering(inner)
		use(t, l, time.Minute) // it listens
		first := mustLock(t, m, time.Minute)
		queue := join(t.Context(), l, 1, time.Minute)
		others := join(t.Context(), m, 2, time.Minute)
		require.NoError(t, first.Unlock(t.Context()))
		start := time.Now()
		lease := queue.next(t)
		synctest.Wait()
		require.NoError(t, lease.Unlock(t.Context()))
		others.serveAll(t, 0)
		assert.Zero(t, time.Since(start))
	})
}

// A key that is always in use gives way when its tenure is over, and not before another process
// wants it.
func TestLingerBusyKey(t *testing.T) {
	overDemander(t, func(t *testing.T, m *memory.Locker, inner locker.Locker, c *counting) {
		l := lingering(inner)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var served atomic.Int64
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				for {
					lease, err := locker.Lock(ctx, l, "k", time.Minute)
					if err != nil {
						return
					}
					served.Add(1)
					time.Sleep(time.Millisecond)
					assert.NoError(t, lease.Unlock(context.Background()))
				}
			})
		}
		time.Sleep(500 * time.Millisecond)
		assert.LessOrEqual(t, c.requests.Load(), int64(12), "%d were served", served.Load())
		start := time.Now()
		lease := mustLock(t, m, time.Minute)
		assert.LessOrEqual(t, time.Since(start), time.Millisecond, "its tenure was over long ago")
		require.NoError(t, lease.Unlock(t.Context()))
		synctest.Wait()
		start = time.Now()
		lease = mustLock(t, m, time.Minute)
		assert.LessOrEqual(t, time.Since(start), 52*time.Millisecond)
		require.NoError(t, lease.Unlock(t.Context()))
		cancel()
		wg.Wait()
	})
}

// Another process that cannot report that it wants the lock still gets its turn.
func TestLingerUnwanted(t *testing.T) {
	overDemander(t, func(t *testing.T, m *memory.Locker, inner locker.Locker, c *counting) {
		l := lingering(inner)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		start, tenures := time.Now(), map[string]bool{}
		for ctx.Err() == nil {
			use(t, l, time.Minute)
			tenures[held(t, m)] = true
			time.Sleep(time.Millisecond)
		}
		assert.InDelta(t, float64(time.Since(start)/(20*lingerFor)), len(tenures), 2)
	})
}

// giveUp is a backend whose releases wait until the test lets them go.
type slowRelease struct {
	demanding
	started chan struct{}
	goOn    chan struct{}
}

func (s slowRelease) Release(ctx context.Context, key, token string) (bool, error) {
	s.started <- struct{}{}
	<-s.goOn
	return s.demanding.Release(ctx, key, token)
}

// While a lock is being given up, attempts of this process wait. They are not refused by a lock
// that no caller uses.
func TestLingerDuringGiveUp(t *testing.T) {
	overDemander(t, func(t *testing.T, m *memory.Locker, inner locker.Locker, _ *counting) {
		slow := slowRelease{inner.(demanding), make(chan struct{}), make(chan struct{})}
		l := lingering(slow)
		use(t, l, time.Minute)
		<-slow.started // it has lingered for long enough
		type result struct {
			lease *locker.Lease
			err   error
		}
		tried := make(chan result, 1)
		go func() {
			lease, err := locker.TryLock(t.Context(), l, "k", time.Minute)
			tried <- result{lease, err}
		}()
		synctest.Wait()
		require.Empty(t, tried, "it does not wait for the release")
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err := locker.TryLock(ctx, l, "k", time.Minute)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		demanded := make(chan result, 1)
		go func() {
			lease, err := locker.TryLock(t.Context(), m, "k", time.Minute)
			demanded <- result{lease, err}
		}()
		synctest.Wait()
		require.Empty(t, demanded, "a demand during the release is answered before its end")
		slow.goOn <- struct{}{}
		a, b := <-tried, <-demanded
		require.NotEqual(t, a.err == nil, b.err == nil, "two holders, or none: %v, %v", a.err, b.err)
		if a.err == nil {
			go func() { <-slow.started; slow.goOn <- struct{}{} }()
			require.NoError(t, a.lease.Unlock(t.Context()))
		} else {
			require.NoError(t, b.lease.Unlock(t.Context()))
		}
		synctest.Wait()
	})
}

// An owner that does not answer does not block attempts forever.
func TestLingerOwnerIsSilent(t *testing.T) {
	overDemander(t, func(t *testing.T, m *memory.Locker, _ locker.Locker, _ *counting) {
		listener := m.Listen(deaf{})
		token := "x~@" + listener.Mark("k") + "~y"
		_, err := m.Acquire(t.Context(), "k", token, time.Minute)
		require.NoError(t, err)
		start := time.Now()
		_, err = locker.TryLock(t.Context(), m, "k", time.Minute)
		assert.ErrorIs(t, err, locker.ErrHeld)
		assert.Equal(t, 10*time.Second, time.Since(start))
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err = locker.TryLock(ctx, m, "k", time.Minute)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, 10*time.Second+time.Millisecond, time.Since(start))
		listener.Close()
		start = time.Now()
		_, err = locker.TryLock(t.Context(), m, "k", time.Minute)
		assert.ErrorIs(t, err, locker.ErrHeld)
		assert.Zero(t, time.Since(start), "it is gone")
	})
}

type deaf struct{}

func (deaf) Wanted(string, func(bool)) {}
func (deaf) Missed()                   {}

// When demands may have been missed, no lock is kept.
func TestLingerMissed(t *testing.T) {
	overDemander(t, func(t *testing.T, m *memory.Locker, inner locker.Locker, _ *counting) {
		e := &eavesdropper{demanding: inner.(demanding)}
		l := lingering(e)
		use(t, l, time.Minute)
		e.owner.Missed()
		synctest.Wait()
		assert.Empty(t, held(t, m))
		lease := mustLock(t, l, time.Minute)
		e.owner.Missed()
		require.NoError(t, lease.Unlock(t.Context()))
		assert.Empty(t, held(t, m))
		use(t, l, time.Minute)
		assert.NotEmpty(t, held(t, m))
		e.dead.Store(true)
		use(t, l, time.Minute)
		assert.Empty(t, held(t, m), "it lingers while demands are not reported")
	})
}

// eavesdropper is a backend whose reports of demands a test controls.
type eavesdropper struct {
	demanding
	owner demand.Owner
	dead  atomic.Bool
}

type eavesdropped struct {
	demand.Listener
	e *eavesdropper
}

func (e *eavesdropper) Listen(o demand.Owner) demand.Listener {
	e.owner = o
	return eavesdropped{e.demanding.Listen(o), e}
}

func (e eavesdropped) Live() bool { return !e.e.dead.Load() }

// Without reports of demands nothing lingers.
func TestLingerNeedsADemander(t *testing.T) {
	eachBackend(t, func(t *testing.T, inner locker.Locker, c *counting) {
		l := lingering(inner)
		for range 3 {
			c.requests.Store(0)
			use(t, l, time.Minute)
			assert.EqualValues(t, 2, c.requests.Load())
		}
		assert.NoError(t, l.Close())
	})
}

// The lock is lost while it lingers.
func TestLingerLost(t *testing.T) {
	overDemander(t, func(t *testing.T, m *memory.Locker, inner locker.Locker, _ *counting) {
		l := lingering(inner)
		use(t, l, time.Minute)
		_, err := locker.Break(t.Context(), m, "k")
		require.NoError(t, err)
		time.Sleep(time.Millisecond)
		use(t, l, time.Minute) // the extension is refused, and the lock taken again
		assert.NotEmpty(t, held(t, m))

		_, err = locker.Break(t.Context(), m, "k")
		require.NoError(t, err)
		other := mustLock(t, m, time.Minute)
		time.Sleep(time.Millisecond)
		_, err = locker.TryLock(t.Context(), l, "k", time.Minute)
		assert.ErrorIs(t, err, locker.ErrHeld)
		require.NoError(t, other.Unlock(t.Context()))
	})
}

// An extension without an answer is an acquisition of unknown outcome.
func TestLingerDoubt(t *testing.T) {
	for _, how := range []string{"lock", "try lock"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := memory.New()
				s := &scripted{Locker: m, scripts: make(map[string]script)}
				l := lingering(s)
				use(t, l, time.Minute)
				lost := errors.New("no answer")
				s.on("extend", func(_ context.Context, apply func() (bool, error)) (bool, error) {
					_, _ = apply()
					return false, lost
				})
				s.on("release", func(ctx context.Context, apply func() (bool, error)) (bool, error) { return false, lost })
				var err error
				if how == "lock" {
					_, err = locker.Lock(t.Context(), l, "k", time.Hour)
				} else {
					_, err = locker.TryLock(t.Context(), l, "k", time.Hour)
				}
				require.ErrorIs(t, err, lost)
				_, err = locker.TryLock(t.Context(), l, "k", time.Minute)
				require.ErrorIs(t, err, locker.ErrHeld)
				s.on("release", nil)
				s.on("extend", nil)
				time.Sleep(2 * time.Second)
				assert.Empty(t, held(t, m), "the cleanup does not reach the backend")
				use(t, l, time.Minute)
				time.Sleep(2 * time.Minute)
				assert.Zero(t, cohort.Entries(l))
			})
		})
	}
}

// The memory of a lock that lingers is bounded, and all of it is freed.
func TestLingerMemory(t *testing.T) {
	const keys = 20_000
	m := memory.New()
	l := cohort.New(m, cohort.WithLinger(time.Hour))
	names := make([]string, keys)
	for i := range names {
		names[i] = fmt.Sprintf("k%07d", i)
	}
	before := heap()
	for range 2 { // the second time they are extended
		for _, key := range names {
			lease, err := locker.Lock(t.Context(), l, key, time.Hour)
			require.NoError(t, err)
			require.NoError(t, lease.Unlock(t.Context()))
		}
		bytes := int64(heap()-before) / keys
		t.Logf("%d bytes a key, those of the backend included", bytes)
		assert.Less(t, bytes, int64(1500))
	}
	assert.Equal(t, keys, cohort.Entries(l))
	require.NoError(t, l.Close())
	assert.Zero(t, cohort.Entries(l))
	assert.LessOrEqual(t, cohort.Room(l), 32*64)
	runtime.KeepAlive(m)
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}
