// Package crowd shows what ten thousand waiters for one lock cost those who use others.
package crowd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance/internal/proof"
	"github.com/golockers/locker/conformance/internal/proof/load"
	"github.com/golockers/locker/internal/leaktest"
	"github.com/golockers/locker/internal/testserver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const (
	waiters = 10_000
	workers = 4 // each uses locks of its own
	rounds  = 5 // with and without the waiters, in turn
)

// Ten thousand goroutines wait for one lock, whose holder keeps it alive, without an error, and the
// 99th percentile of the time that others take to lock and unlock locks of their own stays under
// twice that without the waiters.
func TestCrowd(t *testing.T) {
	testserver.Variant(t, proof.ShortForm)
	for name, open := range map[string]func(tb testing.TB) (waiting, other locker.Locker){
		"postgres": func(tb testing.TB) (waiting, other locker.Locker) {
			addr := testserver.Postgres(tb).Addr
			return load.Postgres()(tb, addr), load.Postgres()(tb, addr)
		},
		"etcd": func(tb testing.TB) (waiting, other locker.Locker) {
			addr := testserver.Etcd(tb).Addr
			return load.Etcd(tb, addr), load.Etcd(tb, addr)
		},
	} {
		t.Run(name, func(t *testing.T) {
			waiting, other := open(t)
			lease, err := locker.Lock(t.Context(), other, "crowded", time.Minute, locker.WithKeepAlive())
			require.NoError(t, err)
			window := proof.Duration(t, 20*time.Second) / (2 * rounds)
			measure(t, other, time.Second) // connections are open, statements prepared
			var idle, busy []time.Duration
			for range rounds {
				idle = append(idle, measure(t, other, window)...)
				leave := crowd(t, waiting, other)
				busy = append(busy, measure(t, other, window)...)
				leave()
			}
			require.NoError(t, lease.Unlock(t.Context()))
			t.Logf("p99 of %d locks without %d waiters: %v; of %d beside them: %v",
				len(idle), waiters, p99(idle), len(busy), p99(busy))
			assert.Less(t, p99(busy), 2*p99(idle))
		})
	}
}

// crowd lets many wait until leave is called. None may have another error than that of its context.
func crowd(t *testing.T, waiting, other locker.Locker) (leave func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	var failed atomic.Pointer[error]
	for range waiters {
		all.Go(func() {
			_, err := locker.Lock(ctx, waiting, "crowded", time.Minute)
			if !errors.Is(err, locker.ErrHeld) || !errors.Is(err, context.Canceled) {
				failed.CompareAndSwap(nil, &err)
			}
		})
	}
	require.Eventually(t, func() bool {
		info, err := other.(locker.Inspector).Inspect(t.Context(), "crowded")
		return err == nil && info.Waiters == 1
	}, time.Minute, 10*time.Millisecond)
	return func() {
		t.Helper()
		cancel()
		all.Wait()
		if err := failed.Load(); err != nil {
			assert.NoError(t, *err)
		}
	}
}

// measure returns how long each Lock with its Unlock took.
func measure(t *testing.T, l locker.Locker, window time.Duration) []time.Duration {
	t.Helper()
	var took [workers][]time.Duration
	var all sync.WaitGroup
	for i := range workers {
		all.Go(func() {
			for end := time.Now().Add(window); time.Now().Before(end); {
				begun := time.Now()
				lease, err := locker.Lock(t.Context(), l, fmt.Sprint("own ", i), time.Minute)
				if assert.NoError(t, err) {
					assert.NoError(t, lease.Unlock(t.Context()))
				}
				took[i] = append(took[i], time.Since(begun))
			}
		})
	}
	all.Wait()
	return slices.Concat(took[:]...)
}

func p99(took []time.Duration) time.Duration {
	slices.Sort(took)
	return took[len(took)*99/100].Round(10 * time.Microsecond)
}
