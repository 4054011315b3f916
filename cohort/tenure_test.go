package cohort_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/cohort"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// mustLock takes the lock of "k".
func mustLock(t testing.TB, l locker.Locker, ttl time.Duration) *locker.Lease {
	t.Helper()
	lease, err := locker.Lock(context.Background(), l, "k", ttl)
	require.NoError(t, err)
	return lease
}

// queue is callers that wait for the lock of "k", in the order in which they joined. Each of them sends its
// lease, or nil when it gives up.
type queue []<-chan *locker.Lease

// join starts n callers, one after the other.
func join(ctx context.Context, l locker.Locker, n int, ttl time.Duration) *queue {
	var q queue
	for range n {
		caller := make(chan *locker.Lease, 1)
		q = append(q, caller)
		go func() {
			lease, _ := locker.Lock(ctx, l, "k", ttl)
			caller <- lease
		}()
		synctest.Wait()
	}
	return &q
}

// next waits until the first caller has the lock and takes it out of the queue.
func (q *queue) next(t *testing.T) *locker.Lease {
	t.Helper()
	lease := <-(*q)[0]
	require.NotNil(t, lease, "it gave up")
	*q = (*q)[1:]
	return lease
}

// requireWaiting fails when one of the callers has the lock.
func (q *queue) requireWaiting(t *testing.T, why string) {
	t.Helper()
	for _, caller := range *q {
		require.Empty(t, caller, why)
	}
}

// requireGone waits until all callers have given up.
func (q *queue) requireGone(t *testing.T) {
	t.Helper()
	for _, caller := range *q {
		require.Nil(t, <-caller)
	}
	*q = nil
}

// tenure is the lock of "k" while it is handed on in a process: who holds it, and who waits for it.
type tenure struct {
	holder *locker.Lease
	queue  *queue
}

// startTenure makes l take the lock for its queue, so for MaxTenure longer than ttl, with so many callers behind
// the holder.
func startTenure(t *testing.T, l *cohort.Locker, waiters int, ttl time.Duration) *tenure {
	t.Helper()
	other := mustLock(t, cohort.Inner(l), time.Minute)
	ctx, cancel := context.WithCancel(t.Context())
	driver := join(ctx, l, 1, ttl) // its drive is for itself alone, and ends with it
	q := join(t.Context(), l, waiters+1, ttl)
	cancel()
	driver.requireGone(t)
	synctest.Wait()
	require.NoError(t, other.Unlock(t.Context()))
	tn := &tenure{queue: q}
	tn.awaitNext(t)
	synctest.Wait()
	return tn
}

// passToNext unlocks, and the next caller becomes the holder.
func (tn *tenure) passToNext(t *testing.T) {
	t.Helper()
	tn.unlock(t)
	tn.awaitNext(t)
}

// awaitNext waits until the next caller is the holder, after the one before has vanished.
func (tn *tenure) awaitNext(t *testing.T) {
	t.Helper()
	tn.holder = tn.queue.next(t)
}

func (tn *tenure) unlock(t *testing.T) {
	t.Helper()
	require.NoError(t, tn.holder.Unlock(t.Context()))
}

// serveAll lets every caller of the queue hold the lock once, for so long.
func (q *queue) serveAll(t *testing.T, hold time.Duration) {
	t.Helper()
	for len(*q) > 0 {
		lease := q.next(t)
		time.Sleep(hold)
		assert.NoError(t, lease.Unlock(t.Context()))
	}
}
