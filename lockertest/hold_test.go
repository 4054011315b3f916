package lockertest_test

import (
	"sync"
	"testing"
	"time"

	"github.com/golockers/locker/lockertest"
	"github.com/stretchr/testify/assert"
)

// Hold holds, whatever callers do at the same time.
func TestHoldBesideCallers(t *testing.T) {
	ctx := t.Context()
	for range 5000 {
		l := lockertest.New()
		var callers sync.WaitGroup
		callers.Go(func() {
			for range 20 {
				if ok, _ := l.Acquire(ctx, "k", "caller", time.Minute); ok {
					_, _ = l.Release(ctx, "k", "caller")
				}
			}
		})
		release := l.Hold("k")
		callers.Wait()
		ok, err := l.Acquire(ctx, "k", "other", time.Minute)
		assert.NoError(t, err)
		assert.False(t, ok)
		release()
		if t.Failed() {
			return
		}
	}
}
