package memcache

import (
	"context"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/golockers/locker/internal/testserver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// slack is the delay that a busy machine may add until a lock is found free. A lock that ends too
// early needs no slack: the order of two calls is exact on any machine.
const slack = 5 * time.Second

// expires takes the lock of key for ttl, and fails the test if another client gets it before ttl has
// passed or does not get it within two seconds after the ttl's whole seconds.
func expires(t *testing.T, a, b *Locker, key string, ttl time.Duration, extended bool) {
	ctx := context.Background()
	first := ttl
	if extended {
		first = time.Minute
	}
	start := time.Now()
	ok, err := a.Acquire(ctx, key, "a", first)
	if !assert.NoError(t, err) || !assert.True(t, ok) {
		return
	}
	if extended {
		start = time.Now()
		ok, err := a.Extend(ctx, key, "a", ttl)
		if !assert.NoError(t, err) || !assert.True(t, ok) {
			return
		}
	}
	held := time.Now()
	for {
		asked := time.Now()
		ok, err := b.Acquire(ctx, key, "b", time.Minute)
		if !assert.NoError(t, err) {
			return
		}
		if ok {
			took := time.Since(start)
			assert.GreaterOrEqual(t, took, ttl, "%s: taken %v early", key, ttl-took)
			return
		}
		latest := time.Duration(math.Ceil(ttl.Seconds()))*time.Second + 2*time.Second + slack
		if !assert.Less(t, asked.Sub(held), latest, "%s: not free", key) {
			return
		}
		time.Sleep(25 * time.Millisecond)
	}
}

func TestEveryPhaseOfTheSecond(t *testing.T) {
	t.Parallel()
	srv := testserver.Memcached(t)
	clientA, clientB := newClient(t, srv.Addr), newClient(t, srv.Addr)
	clientA.MaxIdleConns, clientB.MaxIdleConns = 100, 100
	a, b := New(clientA), New(clientB)
	const phases = 4 // TestClockStepsByTwo has many, on a fake server
	begin := time.Now()
	var all sync.WaitGroup
	for phase := range phases {
		time.Sleep(time.Until(begin.Add(time.Duration(phase) * time.Second / phases)))
		for _, ttl := range []time.Duration{300 * time.Millisecond, time.Second, 1001 * time.Millisecond} {
			for _, extended := range []bool{false, true} {
				all.Go(func() {
					expires(t, a, b, fmt.Sprintf("%v at phase %d, extended: %v", ttl, phase, extended), ttl, extended)
				})
			}
		}
	}
	all.Wait()
}

func TestSeconds(t *testing.T) {
	t.Parallel()
	for ttl, want := range map[time.Duration]int32{
		time.Millisecond:                3,
		999 * time.Millisecond:          3,
		time.Second:                     3,
		time.Second + 1:                 4,
		time.Hour:                       3602,
		30*24*time.Hour - 2*time.Second: 30 * 24 * 60 * 60,
	} {
		got, err := seconds(ttl)
		require.NoError(t, err)
		assert.Equal(t, want, got, "%v", ttl)
	}
}
