package window

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/golockers/locker"
)

// Middleware limits the requests that reach a handler. The function key returns the key for which a
// request is counted, for instance the name of the signed-in user. If it returns "", the request is
// not limited.
//
// Responses have the header fields RateLimit-Policy and RateLimit, as in
// draft-ietf-httpapi-ratelimit-headers-11, with the policy "default". RateLimit-Policy contains the
// limit (q) and the length of the window in seconds (w, only if it is a whole number). RateLimit
// contains the remaining calls (r) and the seconds until the full limit is available again (t),
// rounded up. A request that is denied does not reach the handler. Its response has the status 429
// (Too Many Requests), and Retry-After in seconds, rounded up.
//
// If there is no decision, these fields are missing:
//
//   - If the backend fails, the request passes. With [WithFailClosed], its response has the status
//     503 (Service Unavailable). A backend that hangs delays each request by a second, or by the
//     time of [WithTimeout].
//   - If the request's context ends before there is an answer, for instance because its client has
//     gone, the status is 503, with or without WithFailClosed.
//   - If the key is longer than 1,024 bytes, the status is 400 (Bad Request).
//   - If the arguments of New were invalid, the status is 500 (Internal Server Error).
//
// Use [WithErrorFunc] to log or count the errors. Without it nothing shows that a backend always
// fails, for instance because its table is missing, and that requests are therefore not limited.
//
// An IP address is a poor key: many users may share one, and one client may use many. Behind a
// proxy, [http.Request.RemoteAddr] is the proxy's.
func Middleware(l *Limiter, key func(*http.Request) string) func(http.Handler) http.Handler {
	policy := fmt.Sprintf(`"default";q=%d`, l.rule.Limit)
	if l.rule.Per%time.Second == 0 {
		policy += fmt.Sprintf(";w=%d", l.rule.Per/time.Second)
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			k := key(r)
			if k == "" {
				next.ServeHTTP(w, r)
				return
			}
			d, err := l.Allow(r.Context(), k)
			if err == nil {
				w.Header().Set("RateLimit-Policy", policy)
				w.Header().Set("RateLimit", fmt.Sprintf(`"default";r=%d;t=%d`, d.Remaining, seconds(d.ResetAfter)))
			}
			// A client must not get past the limit by canceling its requests at once: they may not
			// have been counted.
			isCanceled := err != nil && r.Context().Err() != nil
			if err != nil && !isCanceled && l.onError != nil {
				l.onError(r, err)
			}
			switch {
			case d.Allowed && !isCanceled:
				next.ServeHTTP(w, r)
			case err == nil:
				w.Header().Set("Retry-After", fmt.Sprint(seconds(d.RetryAfter)))
				http.Error(w, "too many requests", http.StatusTooManyRequests)
			case errors.Is(err, locker.ErrInvalidKey):
				http.Error(w, "the name that requests are limited by is too long", http.StatusBadRequest)
			case l.err != nil:
				http.Error(w, "the limit of requests is misconfigured", http.StatusInternalServerError)
			default:
				http.Error(w, "the limit of requests is unknown", http.StatusServiceUnavailable)
			}
		})
	}
}

// seconds returns d in seconds, rounded up.
func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }
