// Package ratelimit limits the requests of each user.
package ratelimit

import (
	"net/http"
	"time"

	"github.com/golockers/locker/window"
)

// Limit lets each user make 100 requests a minute. c is the Locker of a
// backend that counts: any but etcd and sqllock.
func Limit(c window.Counter, user func(*http.Request) string, api http.Handler) http.Handler {
	limiter := window.New(c, 100, time.Minute)
	return window.Middleware(limiter, func(r *http.Request) string { return "user/" + user(r) })(api)
}
