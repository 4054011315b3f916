package window

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/lazyctx"
)

// A Limiter limits how many calls are allowed in a period. Make one with [New], and share it: it is
// safe for concurrent use. A key uses memory only while callers of [Limiter.Wait] wait for it.
type Limiter struct {
	counter      Counter
	rule         Rule
	failClosed   bool
	countsDenied bool
	timeout      time.Duration
	onError      func(*http.Request, error) // of Middleware
	err          error                      // reports invalid arguments of New
	turns        turns
}

// Option adjusts a [Limiter].
type Option func(*Limiter)

// WithSliding limits the calls in the latest period of length per. Their number is estimated from
// the counts of two windows. This is the default.
func WithSliding() Option { return func(l *Limiter) { l.rule.Fixed = false } }

// WithFixed limits the calls in each window separately. The full limit is available again when a
// window ends, so a period around that moment may contain twice as many calls.
func WithFixed() Option { return func(l *Limiter) { l.rule.Fixed = true } }

// WithFailClosed makes Allow and AllowN deny calls while the backend fails. By default they allow
// these calls, so that a limiter that is down does not take the service down with it. In both cases
// they return the error.
func WithFailClosed() Option { return func(l *Limiter) { l.failClosed = true } }

// WithDeniedCounted makes Allow and AllowN also count the calls that they deny, so a client that
// does not slow down is denied until it does. Each call is then one [Counter.Count], even on an
// [Enforcer].
func WithDeniedCounted() Option { return func(l *Limiter) { l.countsDenied = true } }

// WithTimeout sets how long a call may wait for the backend. When that time has passed, the backend
// is taken to have failed. The default, used if d <= 0, is 1 second. If ctx ends sooner, so does
// the call. The time for which Wait waits for its turn does not count.
//
// Some clients do not honor deadlines. A call that the Limiter has given up then goes on until the
// client's timeout, in a goroutine of its own. With go-redis, set ContextTimeoutEnabled.
func WithTimeout(d time.Duration) Option { return func(l *Limiter) { l.timeout = d } }

// WithErrorFunc makes [Middleware] call f with each error, whether of the backend or due to invalid
// arguments, before it serves or refuses the request. It does not call f for a request whose
// context has ended. Several requests may call f at the same time, and each waits until f returns.
// The methods of the Limiter return their errors and do not call f.
func WithErrorFunc(f func(r *http.Request, err error)) Option {
	return func(l *Limiter) { l.onError = f }
}

const defaultTimeout = time.Second

var (
	// ErrInvalidN means that the number of calls is less than 1, or more than the limit.
	ErrInvalidN = errors.New("invalid number of calls")

	// ErrInvalidRule means that New was called with a limit or a period that is out of range.
	ErrInvalidRule = errors.New("invalid limit")

	errNilCounter = errors.New("the Counter is nil")
)

// New returns a Limiter that allows limit calls for each key in a period of length per, which is
// rounded up to whole milliseconds. The limit must be from 1 to [MaxN], and per from 1 ms to
// [MaxPer]. If they are not, or c is nil, every method of the Limiter returns an error.
//
// Limiters with the same per share the counts of their keys if they count on the same backend. So
// give the keys of different limits different prefixes.
func New(c Counter, limit int64, per time.Duration, opts ...Option) *Limiter {
	l := &Limiter{counter: c, rule: Rule{Limit: limit, Per: per}}
	if rest := per % time.Millisecond; rest > 0 {
		l.rule.Per += time.Millisecond - rest
	}
	for _, opt := range opts {
		opt(l)
	}
	if l.timeout <= 0 {
		l.timeout = defaultTimeout
	}
	switch v := reflect.ValueOf(c); {
	case c == nil, v.Kind() == reflect.Pointer && v.IsNil():
		l.err = errNilCounter
	case limit < 1 || limit > MaxN:
		l.err = fmt.Errorf("%w: %d is not between 1 and %d", ErrInvalidRule, limit, int64(MaxN))
	case per < time.Millisecond || per > MaxPer:
		l.err = fmt.Errorf("%w: a window of %v is not between 1ms and %v", ErrInvalidRule, per, MaxPer)
	}
	return l
}

// Decision is the outcome of a call.
type Decision struct {
	Allowed bool

	// Limit is the Limiter's limit. Remaining is how many more calls the Limiter would allow now.
	Limit, Remaining int64

	// RetryAfter is 0 if the call is allowed. Otherwise the same call would be denied for at least
	// that long. After that it is allowed, unless others are counted first.
	RetryAfter time.Duration

	// ResetAfter is how long it takes, without further calls, until the full limit is available
	// again.
	ResetAfter time.Duration
}

// Allow reports whether one more call is allowed for key now, and counts it if it is. It is
// [Limiter.AllowN] with n = 1.
func (l *Limiter) Allow(ctx context.Context, key string) (Decision, error) {
	return l.AllowN(ctx, key, 1)
}

// AllowN reports whether n more calls are all allowed for key now, and counts them if they are. A
// key is 1 to 1,024 arbitrary bytes.
//
// If there is an error, only Allowed and Limit are set:
//
//   - If the arguments are invalid, Allowed is false, and nothing was counted. Then the error wraps
//     [locker.ErrInvalidKey], [ErrInvalidN] or [ErrInvalidRule], unless the Counter is nil.
//   - If the backend failed or ctx ended, Allowed is true, or false with [WithFailClosed]. It is
//     unknown whether the calls were counted. If ctx had ended before AllowN was called, they were
//     not.
//
// So if clients can end ctx, check that it has not ended before you serve the call. Otherwise a
// client can get past the limit by canceling its calls.
func (l *Limiter) AllowN(ctx context.Context, key string, n int64) (Decision, error) {
	if err := l.check(key, n); err != nil {
		return Decision{Limit: l.rule.Limit}, wrap("allow", key, err)
	}
	d, err := l.decide(ctx, key, n, l.countsDenied)
	if err != nil {
		return Decision{Allowed: !l.failClosed, Limit: l.rule.Limit}, wrap("allow", key, err)
	}
	return d, nil
}

func (l *Limiter) decide(ctx context.Context, key string, n int64, countsDenied bool) (Decision, error) {
	if err := ctx.Err(); err != nil {
		return Decision{}, err
	}
	end := time.Now().Add(l.timeout)
	short := lazyctx.WithDeadline(ctx, end)
	defer short.Cancel()
	c, allowed, err := l.count(short, key, n, countsDenied)
	switch {
	case err == nil:
	case ctx.Err() == nil && !time.Now().Before(end):
		return Decision{}, fmt.Errorf("no answer within %v: %w", l.timeout, err)
	default:
		return Decision{}, err
	}
	d := Decision{
		Allowed:    allowed,
		Limit:      l.rule.Limit,
		Remaining:  max(l.rule.Limit-l.rule.Used(c), 0),
		ResetAfter: l.rule.after(c, l.rule.Limit),
	}
	if !allowed {
		// There may already be room by these counts, if time has passed or others have counted.
		d.RetryAfter = max(l.rule.after(c, n), time.Millisecond)
	}
	return d, nil
}

// count counts n calls: if countsDenied is true, in any case, and otherwise only if they are
// allowed.
func (l *Limiter) count(ctx context.Context, key string, n int64, countsDenied bool) (
	c Counts, allowed bool, err error) {
	if !countsDenied {
		if e, ok := l.counter.(Enforcer); ok {
			return e.CountUnder(ctx, key, n, l.rule)
		}
		if c, err = l.counter.Count(ctx, key, 0, l.rule.Per); err != nil || !l.rule.Allows(c, n) {
			return c, false, err
		}
	}
	c, err = l.counter.Count(ctx, key, n, l.rule.Per)
	return c, err == nil && l.rule.Used(c) <= l.rule.Limit, err
}

const maxName = 1024 // bytes, of a key

func (l *Limiter) check(key string, n int64) error {
	switch {
	case l.err != nil:
		return l.err
	case key == "":
		return fmt.Errorf("%w: empty", locker.ErrInvalidKey)
	case len(key) > maxName:
		return fmt.Errorf("%w: %d bytes, more than %d", locker.ErrInvalidKey, len(key), maxName)
	case n < 1:
		return fmt.Errorf("%w: %d is less than 1", ErrInvalidN, n)
	case n > l.rule.Limit:
		return fmt.Errorf("%w: %d is more than the limit of %d", ErrInvalidN, n, l.rule.Limit)
	}
	return nil
}

// wrap adds the operation and the key to an error. A key that is too long is truncated.
func wrap(op, key string, err error) error {
	if len(key) > maxName {
		return fmt.Errorf("window: %s %q…: %w", op, key[:32], err)
	}
	return fmt.Errorf("window: %s %q: %w", op, key, err)
}
