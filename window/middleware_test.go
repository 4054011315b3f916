package window

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// get sends a request as a user.
func get(h http.Handler, user string) *http.Response {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("User", user)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func limited(l *Limiter) http.Handler {
	return Middleware(l, func(r *http.Request) string { return r.Header.Get("User") })(
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
}

func TestMiddleware(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // it is the beginning of a minute
		h := limited(New(new(fake), 2, time.Minute))
		r := get(h, "u")
		assert.Equal(t, http.StatusNoContent, r.StatusCode)
		assert.Equal(t, `"default";q=2;w=60`, r.Header.Get("RateLimit-Policy"))
		assert.Equal(t, `"default";r=1;t=61`, r.Header.Get("RateLimit"), "a nanosecond more than a minute")
		get(h, "u")
		time.Sleep(100 * time.Millisecond)
		r = get(h, "u")
		assert.Equal(t, http.StatusTooManyRequests, r.StatusCode)
		assert.Equal(t, `"default";r=0;t=90`, r.Header.Get("RateLimit"))
		assert.Equal(t, "60", r.Header.Get("Retry-After"))
		r = get(h, "")
		assert.Equal(t, http.StatusNoContent, r.StatusCode)
		assert.Empty(t, r.Header.Get("RateLimit"))
		h = limited(New(new(fake), 2, 1500*time.Millisecond))
		assert.Equal(t, `"default";q=2`, get(h, "u").Header.Get("RateLimit-Policy"))
	})
}

func TestMiddlewareErrors(t *testing.T) {
	down := &fake{err: errors.New("it is down")}
	for _, c := range []struct {
		l      *Limiter
		user   string
		status int
	}{
		{New(down, 1, time.Minute), "u", http.StatusNoContent},
		{New(down, 1, time.Minute, WithFailClosed()), "u", http.StatusServiceUnavailable},
		{New(down, 1, time.Minute), strings.Repeat("u", 1025), http.StatusBadRequest},
		{New(nil, 1, time.Minute), "u", http.StatusInternalServerError},
	} {
		r := get(limited(c.l), c.user)
		assert.Equal(t, c.status, r.StatusCode)
		assert.Empty(t, r.Header.Get("RateLimit"))
	}
}

// hangs is a backend that does not answer.
type hangs struct{}

func (hangs) Count(ctx context.Context, _ string, _ int64, _ time.Duration) (Counts, error) {
	<-ctx.Done()
	return Counts{}, ctx.Err()
}

// A request waits for a backend that hangs no longer than the timeout.
func TestMiddlewareTimeout(t *testing.T) {
	for want, opts := range map[time.Duration][]Option{
		time.Second:            {WithTimeout(-1)},
		100 * time.Millisecond: {WithTimeout(100 * time.Millisecond)},
	} {
		for status, how := range map[int]Option{http.StatusNoContent: WithSliding(), http.StatusServiceUnavailable: WithFailClosed()} {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				assert.Equal(t, status, get(limited(New(hangs{}, 1, time.Minute, append(opts, how)...)), "u").StatusCode)
				assert.Equal(t, want, time.Since(start))
			})
		}
	}
}

func TestMiddlewareErrorFunc(t *testing.T) {
	var reported []string
	report := WithErrorFunc(func(r *http.Request, err error) {
		reported = append(reported, r.Header.Get("User")+": "+err.Error())
	})
	get(limited(New(new(fake), 1, time.Minute, report)), "u")
	get(limited(New(&fake{err: errDown}, 1, time.Minute, report)), "u")
	get(limited(New(&fake{err: errDown}, 1, time.Minute, report, WithFailClosed())), "v")
	get(limited(New(nil, 1, time.Minute, report)), "w")
	assert.Equal(t, []string{
		`u: window: allow "u": it is down`, `v: window: allow "v": it is down`, `w: window: allow "w": the Counter is nil`,
	}, reported)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := httptest.NewRequest(http.MethodGet, "/", nil).WithContext(ctx)
	r.Header.Set("User", "u")
	limited(New(new(fake), 1, time.Minute, report)).ServeHTTP(httptest.NewRecorder(), r)
	assert.Len(t, reported, 3, "its client has gone")
}

// A client cannot get past the limit with requests that it cancels.
func TestMiddlewareCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := httptest.NewRequest(http.MethodGet, "/", nil).WithContext(ctx)
	r.Header.Set("User", "u")
	w := httptest.NewRecorder()
	limited(New(new(fake), 1, time.Minute)).ServeHTTP(w, r)
	assert.Equal(t, http.StatusServiceUnavailable, w.Code)
}
