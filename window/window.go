// Package window is a rate limiter that counts on the server that keeps the locks. For instance, it
// allows each user 100 requests a minute, whichever processes they reach.
//
//	limiter := window.New(redisv9.New(client), 100, time.Minute)
//	...
//	d, err := limiter.Allow(ctx, "user/42")
//	if err != nil {
//		log.Print(err) // the backend failed: d allows the call, see WithFailClosed
//	}
//	if !d.Allowed {
//		return fmt.Errorf("too many requests, try again in %v", d.RetryAfter)
//	}
//
// [Limiter.Allow] is for a service that answers, and [Middleware] for one with net/http.
// [Limiter.Wait] is for a worker that may call someone else only so often: it returns when its call is
// allowed.
//
//	for job := range jobs {
//		if err := limiter.Wait(ctx, "partner"); err != nil {
//			return err // no time is left before ctx's deadline, or the backend failed
//		}
//		call(job)
//	}
//
// If ctx's deadline comes before the call may be allowed, Wait does not wait for it: it returns
// [context.DeadlineExceeded] at once, while ctx.Err is still nil. So a loop ends, or pauses, on any
// error; one that asks ctx.Err would spin.
//
// The Lockers of memory, redisv9, redigo, memcache, rueidis and postgres are Counters. The Locker
// of etcd is not, since a majority of its servers would have to write each count to disk. Lockers
// that wrap another one, such as those of [locker.Observed] and package cohort, are not Counters
// either: pass the wrapped Locker to New. On PostgreSQL, first create the table of counts with
// postgres.EnsureWindowSchema.
//
// # How it counts
//
// Time is divided into windows of equal length, and each key has a count in each window. By default
// the limit applies to a sliding window, which ends now and is as long as the others. It contains
// the calls of the current window, and a part of those of the previous one. Their number is
// estimated as if the calls of the previous window were spread evenly. If they were not, some
// period of that length may contain more calls than the limit, but fewer than twice as many. The
// estimate is rounded down, so a client that calls all the time gets the full limit in each window.
// With a limit of 1, a sliding window is therefore the same as [WithFixed].
//
// A call that is denied does not count, unless [WithDeniedCounted] is used.
//
// # Cleanup
//
// A backend forgets a key two windows after its last count. Every count has an expiry, which is set
// in the same step that stores the count.
package window

import (
	"context"
	"math"
	"math/bits"
	"time"
)

// Counter is what a backend implements. It is safe for concurrent use.
//
// Applications do not call these methods. They use a [Limiter], which checks the arguments. A
// Counter can rely on a key of 1 to 1,024 bytes, an n from 0 to [MaxN], and a per from 1 ms to
// [MaxPer] in whole milliseconds.
//
// These are the rules, which conformance.RunCounter checks:
//
//   - One attempt. Count adds n once, in one atomic step, and returns the sum. After an error it is
//     unknown whether n was added. A client that repeats a request may add n twice, but not more
//     often. What Count has added without an error is not lost until the next window has ended,
//     unless the backend loses its data.
//   - Common windows. Windows begin at the multiples of per on the backend's clock, so all
//     processes agree on them. A request that reaches the backend in the next window counts there.
//   - Nothing is left. Two windows after its last count, nothing is stored for a key. Nothing is
//     ever stored without an expiry, even if the caller dies between two steps.
//   - Exact names. Keys are compared byte for byte. Counts with different keys or different window
//     lengths are independent. They share no names with locks.
//   - Cancellation. When ctx ends, a method returns ctx's error, as the methods of a
//     [locker.Locker] do.
type Counter interface {
	// Count adds n to the count of key in the current window of length per, by the backend's
	// clock. It returns the counts of this window and the previous one, and how long this window
	// still lasts. If n is 0, it changes nothing.
	Count(ctx context.Context, key string, n int64, per time.Duration) (Counts, error)
}

// An Enforcer is a [Counter] that counts calls only if they are within a limit. With any other
// Counter, a Limiter first reads the counts and then counts, which takes two requests. A call that
// is denied after the second has counted nevertheless. All Counters of this module are Enforcers.
type Enforcer interface {
	Counter

	// CountUnder is Count if the rule allows n more calls. Otherwise it leaves the count alone and
	// counted is false. The counts that it returns include n if counted is true. If n is 0, it
	// changes nothing, and counted reports whether the counts are within the limit.
	CountUnder(ctx context.Context, key string, n int64, r Rule) (c Counts, counted bool, err error)
}

// The limits of arguments.
const (
	MaxN   = 1_000_000_000_000    // the largest n, and the highest limit
	MaxPer = 366 * 24 * time.Hour // the longest window
)

// Counts are the counts of one key.
type Counts struct {
	Current, Previous int64         // in this window and in the previous one
	Left              time.Duration // until this window ends
}

// Rule is what a Limiter allows.
type Rule struct {
	Limit int64
	Per   time.Duration
	Fixed bool // ignore the previous window
}

// Used returns how much of the limit is used. That is the current count and, unless the rule is
// Fixed, a part of the previous count: the same part as is left of the current window, rounded
// down.
func (r Rule) Used(c Counts) int64 {
	used := max(c.Current, 0) + r.weighted(c.Previous, c.Left)
	if used < 0 {
		return math.MaxInt64
	}
	return used
}

// Allows reports whether n more calls are within the limit.
func (r Rule) Allows(c Counts, n int64) bool { return r.Used(c) <= r.Limit-n }

func (r Rule) weighted(count int64, left time.Duration) int64 {
	if r.Fixed || count <= 0 || left <= 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(count), uint64(min(left, r.Per)))
	q, _ := bits.Div64(hi, lo, uint64(r.Per))
	return int64(q)
}

// after returns how long it takes until the rule allows n more calls, if nothing is counted in the
// meantime. n is no more than the limit.
func (r Rule) after(c Counts, n int64) time.Duration {
	if r.Allows(c, n) {
		return 0
	}
	if room := r.Limit - n - max(c.Current, 0); room >= 0 {
		return c.Left - r.fades(c.Previous, room)
	}
	// In the next window, the current count is the previous one.
	if room := r.Limit - n; r.weighted(c.Current, r.Per) > room {
		return c.Left + r.Per - r.fades(c.Current, room)
	}
	return c.Left
}

// fades returns how much of a window may at most be left for the weighted count to be no more than
// room, which must be less than count.
func (r Rule) fades(count, room int64) time.Duration {
	// count * left / per < room + 1
	hi, lo := bits.Mul64(uint64(room+1), uint64(r.Per))
	lo, borrow := bits.Sub64(lo, 1, 0)
	hi -= borrow
	left, _ := bits.Div64(hi, lo, uint64(count))
	return time.Duration(left)
}
