package cohort_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/cohort"
	"github.com/golockers/locker/memory"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// In random schedules of two processes over a backend that loses and delays requests there are never two
// holders, no Deadline is after what the backend holds, no grant is lost, and nothing is left behind. A failure
// prints its seed, and LOCKER_SEED runs that one alone.
func TestRandomSchedules(t *testing.T) {
	seeds := make([]uint64, 100)
	for i := range seeds {
		seeds[i] = rand.Uint64()
	}
	if s := os.Getenv("LOCKER_SEED"); s != "" {
		seed, err := strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
		seeds = []uint64{seed}
	}
	for _, seed := range seeds {
		if !t.Failed() {
			trySeed(t, seed)
		}
	}
}

func trySeed(t *testing.T, seed uint64) {
	t.Helper()
	done := false // a deadlock is a panic
	defer func() {
		if !done || t.Failed() {
			t.Logf("LOCKER_SEED=%d", seed)
		}
	}()
	synctest.Test(t, func(t *testing.T) { schedule(t, seed) })
	done = true
}

func schedule(t *testing.T, seed uint64) {
	t.Helper()
	random := &dice{r: rand.New(rand.NewPCG(seed, 0))}
	m := &model{Locker: memory.New(), dice: random, faults: random.n(6)}
	var inner locker.Locker = plainModel{m}
	switch random.n(3) {
	case 0:
		inner = m
	case 1:
		inner = watchedModel{m}
	}
	opts := []cohort.Option{
		cohort.WithMaxTenure(random.pick(0, 50*time.Millisecond, 5*time.Second, 5*time.Second)),
		cohort.WithMaxHandoffs(random.n(100)),
	}
	lockers := []*cohort.Locker{cohort.New(inner, opts...), cohort.New(inner, opts...)}
	end := time.Now().Add(2 * time.Second)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for time.Now().Before(end) {
				m.turn(t, lockers[i%2], i < 2)
			}
		})
	}
	wg.Wait()
	m.heal()
	time.Sleep(2 * time.Minute) // longer than any ttl and any cleanup
	for _, l := range lockers {
		assert.Zero(t, cohort.Entries(l), "a key is left")
		assert.Zero(t, cohort.Doubts(l), "a doubt is left")
		lease, err := locker.TryLock(t.Context(), l, "k", time.Second)
		require.NoError(t, err, "a grant was lost")
		assert.NoError(t, lease.Unlock(t.Context()))
	}
}

// turn is what one caller does: it takes the lock, and holds, extends, releases or forgets it. A patient caller
// is never canceled, so it must be served.
func (m *model) turn(t *testing.T, l *cohort.Locker, patient bool) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ttl := m.pick(100*time.Millisecond, time.Second, time.Second, 5*time.Second)
	if !patient {
		ctx, cancel = context.WithTimeout(ctx, m.upTo(500*time.Millisecond))
		defer cancel()
	}
	lock := locker.Lock
	if m.chance(1, 4) {
		lock = locker.TryLock
	}
	start := time.Now()
	lease, err := lock(ctx, l, "k", ttl)
	if patient {
		assert.Less(t, time.Since(start), time.Minute, "hardly ever served")
	}
	if err != nil {
		time.Sleep(m.upTo(20 * time.Millisecond))
		return
	}
	m.granted(t, lease)
	extend := func() {
		ctx, cancel := context.WithTimeout(t.Context(), m.upTo(100*time.Millisecond))
		defer cancel()
		_ = lease.Extend(ctx, m.pick(50*time.Millisecond, time.Second, 3*time.Second))
	}
	for range m.n(4) {
		time.Sleep(m.upTo(50 * time.Millisecond))
		if m.chance(1, 2) {
			extend()
		}
	}
	if m.chance(1, 4) { // a release overtakes it
		go extend()
		time.Sleep(m.upTo(time.Millisecond))
	}
	if m.chance(1, 10) {
		return // it vanishes
	}
	m.leave(lease)
	held := time.Now().Before(lease.Deadline())
	err = lease.Unlock(t.Context())
	assert.False(t, held && time.Now().Before(lease.Deadline()) && errors.Is(err, locker.ErrNotHeld),
		"the lock was lost before its Deadline: %v", err)
	for range m.n(3) {
		if err == nil || errors.Is(err, locker.ErrNotHeld) {
			return
		}
		time.Sleep(m.upTo(100 * time.Millisecond))
		err = lease.Unlock(t.Context())
	}
}

// dice is a source of chance that goroutines share.
type dice struct {
	mu sync.Mutex
	r  *rand.Rand
}

func (d *dice) n(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.r.IntN(n)
}

func (d *dice) chance(n, of int) bool                      { return d.n(of) < n }
func (d *dice) pick(from ...time.Duration) time.Duration   { return from[d.n(len(from))] }
func (d *dice) upTo(most time.Duration) (in time.Duration) { return time.Duration(d.n(int(most))) }

// model is a backend with a queue on which requests, answers and both are lost or come late. It knows until
// when its lock is held, and what the callers believe.
type model struct {
	*memory.Locker
	*dice

	mu     sync.Mutex
	faults int       // of ten requests, so many
	token  string    // that holds the lock
	until  time.Time // and until when
	leases []*locker.Lease
	t      *testing.T
}

func (m *model) heal() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults = 0
}

// granted notes a caller that believes that it holds the lock.
func (m *model) granted(t *testing.T, lease *locker.Lease) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.t = t
	now := time.Now()
	for _, other := range m.leases {
		assert.False(t, now.Before(other.Deadline()) && now.Before(lease.Deadline()), "two holders")
	}
	m.leases = append(m.leases, lease)
	m.compare()
}

// leave is for a caller that is about to release.
func (m *model) leave(lease *locker.Lease) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, other := range m.leases {
		if other == lease {
			m.leases = append(m.leases[:i], m.leases[i+1:]...)
			return
		}
	}
}

// compare compares what the callers believe with what is.
func (m *model) compare() {
	now := time.Now()
	left := m.leases[:0]
	for _, lease := range m.leases {
		if d := lease.Deadline(); now.Before(d) {
			left = append(left, lease)
			assert.False(m.t, d.After(m.until), "a Deadline %v after what the backend holds", d.Sub(m.until))
		}
	}
	m.leases = left
}

var errLost = errors.New("lost")

// request carries out apply, or not, or later.
func (m *model) request(ctx context.Context, apply func() (bool, error)) (bool, error) {
	m.mu.Lock()
	faults := m.faults
	m.mu.Unlock()
	run := func() (bool, error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		ok, err := apply()
		m.compare()
		return ok, err
	}
	if err := m.delay(ctx); err != nil {
		return false, err
	}
	if m.chance(faults, 10) {
		switch m.n(3) {
		case 0:
		case 1:
			_, _ = run()
		case 2:
			late := m.upTo(300 * time.Millisecond)
			time.AfterFunc(late, func() { _, _ = run() })
		}
		return false, fmt.Errorf("request: %w", errLost)
	}
	ok, err := run()
	if late := m.delay(ctx); late != nil {
		return false, late
	}
	return ok, err
}

func (m *model) delay(ctx context.Context) error {
	time.Sleep(m.pick(0, 0, m.upTo(5*time.Millisecond), m.upTo(5*time.Millisecond)))
	return ctx.Err()
}

// holds notes, with m.mu, that the backend has given token the lock.
func (m *model) holds(token string, ttl time.Duration) {
	m.token, m.until = token, time.Now().Add(ttl)
}

func (m *model) Acquire(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return m.request(ctx, func() (bool, error) {
		ok, err := m.Locker.Acquire(context.Background(), key, token, ttl)
		if ok {
			m.holds(token, ttl)
		}
		return ok, err
	})
}

func (m *model) Extend(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return m.request(ctx, func() (bool, error) {
		ok, err := m.Locker.Extend(context.Background(), key, token, ttl)
		if ok {
			m.holds(token, ttl)
		}
		return ok, err
	})
}

func (m *model) Release(ctx context.Context, key, token string) (bool, error) {
	return m.request(ctx, func() (bool, error) {
		ok, err := m.Locker.Release(context.Background(), key, token)
		if ok && m.token == token {
			m.until = time.Now()
		}
		return ok, err
	})
}

func (m *model) Wait(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
	if err := m.delay(ctx); err != nil {
		return time.Time{}, err
	}
	deadline, err := m.Locker.Wait(ctx, key, token, ttl)
	if err != nil {
		return deadline, err
	}
	m.mu.Lock()
	m.token, m.until = token, deadline
	m.compare()
	lost := m.chance(m.faults, 20)
	m.mu.Unlock()
	if lost {
		return time.Time{}, errLost
	}
	return deadline, nil
}

// watchedModel keeps no queue, and plainModel cannot be watched either.
type (
	watchedModel struct{ m *model }
	plainModel   struct{ m *model }
)

func (w watchedModel) Acquire(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return w.m.Acquire(ctx, key, token, ttl)
}
func (w watchedModel) Extend(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return w.m.Extend(ctx, key, token, ttl)
}
func (w watchedModel) Release(ctx context.Context, key, token string) (bool, error) {
	return w.m.Release(ctx, key, token)
}
func (w watchedModel) Watch(ctx context.Context, key string) (<-chan struct{}, error) {
	return w.m.Watch(ctx, key)
}
func (p plainModel) Acquire(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return p.m.Acquire(ctx, key, token, ttl)
}
func (p plainModel) Extend(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return p.m.Extend(ctx, key, token, ttl)
}
func (p plainModel) Release(ctx context.Context, key, token string) (bool, error) {
	return p.m.Release(ctx, key, token)
}
