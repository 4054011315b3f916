package impatient

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker/lockertest"
	"github.com/golockers/locker/memory"
	"github.com/golockers/locker/singleflight"
	"github.com/stretchr/testify/assert"
)

// replica is one of the web servers.
func replica(l *lockertest.Locker, cache *memory.Cache[string], write func(context.Context, string) (string, error)) (
	reports *singleflight.Loader[string], get func() (code int, body string)) {
	reports = NewReports(l, cache, write)
	mux := http.NewServeMux()
	mux.Handle("GET /reports/{name}", Handler(reports))
	return reports, func() (int, string) {
		response := httptest.NewRecorder()
		mux.ServeHTTP(response, httptest.NewRequest("GET", "/reports/sales", nil))
		return response.Code, response.Body.String()
	}
}

// No client waits for longer than it is told, the report is written once, and the next client gets it.
func TestHandler(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, cache := lockertest.New(), memory.NewCache(memory.CacheConfig[string]{TTL: time.Hour})
		written := 0
		write := func(ctx context.Context, _ string) (string, error) {
			written++
			select {
			case <-time.After(10 * time.Second):
				return "all sold", nil
			case <-ctx.Done():
				return "", ctx.Err()
			}
		}
		one, getOne := replica(l, cache, write)
		two, getTwo := replica(l, cache, write)
		began := time.Now()
		for range 3 {
			var clients sync.WaitGroup
			for _, get := range []func() (int, string){getOne, getTwo, getOne, getTwo} {
				clients.Go(func() {
					arrived := time.Now()
					code, _ := get()
					assert.Equal(t, http.StatusServiceUnavailable, code)
					assert.LessOrEqual(t, time.Since(arrived), 200*time.Millisecond)
				})
			}
			clients.Wait()
			time.Sleep(time.Second)
		}
		time.Sleep(time.Until(began.Add(11 * time.Second)))
		for _, get := range []func() (int, string){getOne, getTwo} {
			code, body := get()
			assert.Equal(t, http.StatusOK, code)
			assert.Equal(t, "all sold", body)
		}
		assert.Equal(t, 1, written)
		assert.NoError(t, one.Close(t.Context()))
		assert.NoError(t, two.Close(t.Context()))
	})
}

// While the locks hang, a source that is quick enough still serves its clients in time.
func TestLocksHang(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, cache := lockertest.New(), memory.NewCache(memory.CacheConfig[string]{TTL: time.Millisecond})
		l.Hang(lockertest.Acquire)
		reports, get := replica(l, cache, func(context.Context, string) (string, error) {
			time.Sleep(50 * time.Millisecond)
			return "all sold", nil
		})
		for range 10 {
			code, body := get()
			assert.Equal(t, http.StatusOK, code)
			assert.Equal(t, "all sold", body)
			time.Sleep(300 * time.Millisecond)
		}
		l.Fail(lockertest.Acquire, nil)
		assert.NoError(t, reports.Close(t.Context()))
		time.Sleep(time.Minute) // the cleanups
	})
}

// An error of the source is not an impatient client.
func TestSourceFails(t *testing.T) {
	t.Parallel()
	cache := memory.NewCache(memory.CacheConfig[string]{TTL: time.Hour})
	_, get := replica(lockertest.New(), cache, func(context.Context, string) (string, error) {
		return "", context.DeadlineExceeded
	})
	code, _ := get()
	assert.Equal(t, http.StatusInternalServerError, code)
}
