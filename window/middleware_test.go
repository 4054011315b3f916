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
