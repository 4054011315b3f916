package workers

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker/lockertest"
	"github.com/golockers/locker/memory"
	"github.com/golockers/locker/semaphore"
	"github.com/golockers/locker/window"
	"github.com/stretchr/testify/assert"
)

// Twelve workers in three replicas run 250 jobs: five at a time, and a hundred in a minute.
func TestWork(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		shared := memory.New() // in place of the server that the replicas share
		jobs := make(chan Job, 250)
		var mu sync.Mutex
		running, most := 0, 0
		var began []time.Time
		begin := func(n int) {
			mu.Lock()
			defer mu.Unlock()
			running += n
			most = max(most, running)
			if n > 0 {
				began = append(began, time.Now())
			}
		}
		for range cap(jobs) {
			jobs <- func(context.Context) error {
				begin(1)
				time.Sleep(100 * time.Millisecond)
				begin(-1)
				return errors.New("failed") // which is not tried again
			}
		}
		close(jobs)
		var workers sync.WaitGroup
		for range 3 {
			p := NewPool(shared)
			for range 4 {
				workers.Go(func() { p.Work(t.Context(), jobs, func(Job) { t.Error("a job did not begin") }) })
			}
		}
		workers.Wait()
		assert.Equal(t, 5, most)
		assert.Len(t, began, 250)
		for i := range began[200:] { // what package window promises of any minute
			assert.GreaterOrEqual(t, began[i+200].Sub(began[i]), time.Minute)
		}
		assert.Less(t, began[249].Sub(began[0]), 4*time.Minute)
	})
}

// A worker that cannot begin a job hands it back, and does not spin: not when the rate has no room
// before ctx's deadline, which Wait reports at once, and not when the locks do not answer.
func TestCannotBegin(t *testing.T) {
	t.Parallel()
	for _, down := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l := lockertest.New()
			p := Pool{semaphore.New(l, "partner-jobs", 5), window.New(memory.New(), 1, 1000*time.Hour)}
			if down {
				l.Fail(lockertest.Acquire, assert.AnError)
			}
			assert.NoError(t, p.calls.Wait(t.Context(), "partner"))
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			jobs, back := make(chan Job, 100), atomic.Int64{}
			jobs <- func(context.Context) error { t.Error("begun"); return nil }
			p.Work(ctx, jobs, func(j Job) { back.Add(1); jobs <- j })
			assert.LessOrEqual(t, back.Load(), int64(11))
			assert.GreaterOrEqual(t, back.Load(), int64(1))
			l.Fail(lockertest.Acquire, nil)
			time.Sleep(time.Minute) // the cleanups
		})
	}
}
