package imports

import (
	"context"
	"errors"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/examples/recipes/internal/replicas"
	"github.com/golockers/locker/lockertest"
	"github.com/golockers/locker/redisv9"
	"github.com/stretchr/testify/assert"
)

// All imports of four replicas run, three at a time.
func TestHandler(t *testing.T) {
	t.Parallel()
	var running, most, done atomic.Int64
	var all sync.WaitGroup
	for _, client := range replicas.Clients(t, 4) {
		h := Handler(redisv9.New(client), func(context.Context) error {
			for n, seen := running.Add(1), most.Load(); n > seen && !most.CompareAndSwap(seen, n); seen = most.Load() {
			}
			time.Sleep(5 * time.Millisecond)
			running.Add(-1)
			done.Add(1)
			return nil
		})
		for range 5 {
			all.Go(func() {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequest("POST", "/import", nil).WithContext(t.Context()))
				assert.Equal(t, 200, w.Code, w.Body)
			})
		}
	}
	all.Wait()
	assert.LessOrEqual(t, most.Load(), int64(3))
	assert.EqualValues(t, 20, done.Load())
}

// A client that does not wait any longer is told why.
func TestBusy(t *testing.T) {
	t.Parallel()
	started, end := make(chan struct{}, 3), make(chan struct{})
	h := Handler(redisv9.New(replicas.Clients(t, 1)[0]), func(context.Context) error {
		started <- struct{}{}
		<-end
		return nil
	})
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("POST", "/import", nil).WithContext(t.Context()))
		})
		<-started
	}
	code := 0
	for patience := 50 * time.Millisecond; code != 503 && patience < time.Minute; patience *= 2 {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("POST", "/import", nil).WithContext(ctx))
		cancel()
		code = w.Code // 500 if there was no time to ask for a permit
	}
	assert.Equal(t, 503, code)
	close(end)
	all.Wait()
}

// The response to an import that has succeeded is a success even if its permit cannot be released. The
// response to one that has failed is a failure even if its error looks like one of the semaphore.
func TestReleaseFails(t *testing.T) {
	t.Parallel()
	for _, failed := range []error{nil, errors.New("no such file"), locker.ErrNotHeld} {
		synctest.Test(t, func(t *testing.T) {
			l := lockertest.New()
			l.Fail(lockertest.Release, errors.New("connection refused"))
			w := httptest.NewRecorder()
			h := Handler(l, func(context.Context) error { return failed })
			h.ServeHTTP(w, httptest.NewRequest("POST", "/import", nil).WithContext(t.Context()))
			if failed == nil {
				assert.Equal(t, 200, w.Code, w.Body)
			} else {
				assert.Equal(t, 500, w.Code, w.Body)
			}
			l.Fail(lockertest.Release, nil)
			time.Sleep(time.Minute) // the cleanups
		})
	}
}
