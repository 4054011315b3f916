package ratelimit

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker/memory"
	"github.com/stretchr/testify/assert"
)

func TestLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		user := func(r *http.Request) string { return r.Header.Get("User") }
		shared := memory.New() // in place of the server that the replicas share
		var replicas []http.Handler
		for range 2 {
			replicas = append(replicas, Limit(shared, user, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
		}
		request := func(replica int, user string) *httptest.ResponseRecorder {
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.Header.Set("User", user)
			w := httptest.NewRecorder()
			replicas[replica].ServeHTTP(w, r)
			return w
		}
		for i := range 100 {
			assert.Equal(t, http.StatusOK, request(i%2, "ann").Code)
		}
		denied := request(0, "ann")
		assert.Equal(t, http.StatusTooManyRequests, denied.Code)
		assert.NotEmpty(t, denied.Header().Get("Retry-After"))
		assert.Contains(t, denied.Header().Get("RateLimit"), "r=0;")
		assert.Equal(t, http.StatusOK, request(1, "bob").Code)
		time.Sleep(2 * time.Minute)
		assert.Equal(t, http.StatusOK, request(0, "ann").Code)
	})
}
