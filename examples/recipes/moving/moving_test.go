package moving

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	gomemcache "github.com/bradfitz/gomemcache/memcache"
	"github.com/golockers/locker"
	"github.com/golockers/locker/lockertest"
	"github.com/golockers/locker/memcache"
	"github.com/golockers/locker/memory"
	"github.com/stretchr/testify/assert"
)

// Processes with the old backend run beside those with both, and these beside those with the new one.
// No two of them work at the same time, and their numbers grow.
func TestBoth(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		before, after := memory.New(), memory.New()
		var working, runs atomic.Int64
		var last atomic.Uint64
		work := func(ctx context.Context) error {
			assert.EqualValues(t, 1, working.Add(1))
			n, err := locker.FromContext(ctx).Fence(ctx)
			assert.NoError(t, err)
			assert.Greater(t, n, last.Swap(n))
			time.Sleep(10 * time.Millisecond)
			working.Add(-1)
			runs.Add(1)
			return nil
		}
		on := func(l locker.Locker) func() {
			return func() { assert.NoError(t, locker.Do(t.Context(), l, "k", time.Minute, work)) }
		}
		both := func() { assert.NoError(t, Both(t.Context(), before, after, "k", time.Minute, work)) }
		for _, versions := range [][2]func(){{on(before), both}, {both, on(after)}} {
			var processes sync.WaitGroup
			for i := range 10 {
				processes.Go(func() {
					for range 10 {
						versions[i%2]()
					}
				})
			}
			processes.Wait()
		}
		assert.EqualValues(t, 200, runs.Load())
	})
}

// The loss of either lock is told to the work.
func TestBothLost(t *testing.T) {
	t.Parallel()
	for _, lost := range []int{0, 1} {
		synctest.Test(t, func(t *testing.T) {
			l := []*lockertest.Locker{lockertest.New(), lockertest.New()}
			err := Both(t.Context(), l[0], l[1], "k", time.Minute, func(ctx context.Context) error {
				l[lost].Lose("k")
				<-ctx.Done()
				return context.Cause(ctx)
			})
			assert.ErrorIs(t, err, locker.ErrNotHeld)
		})
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	assert.NoError(t, Check(locker.Owned(memory.New(), "")))
	client := gomemcache.New("localhost:1")
	assert.ErrorContains(t, Check(locker.Owned(memcache.New(client), "")), "no fencing numbers")
}
