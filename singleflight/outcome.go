package singleflight

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/golockers/locker/singleflight/slots"
)

// This file has what the other processes learn of a load that failed: it is published in the key's
// slot, and the processes that waited for that load return it.

// RemoteError is the error of a flight that another process flew, for callers that waited for it.
type RemoteError struct {
	Key  string
	Text string    // of the error there
	At   time.Time // when that flight failed, by this process's clock

	is []error // the sentinels that the error wrapped
}

func (e *RemoteError) Error() string {
	return fmt.Sprintf("singleflight: the load of %.64q in another process failed: %s", e.Key, e.Text)
}

// Unwrap returns those of [WithSentinels] that the error there wrapped.
func (e *RemoteError) Unwrap() []error { return e.is }

// WithSentinels makes [errors.Is] find these errors in a [RemoteError], if the error in the other
// process wrapped them. They are told apart by their texts. All processes of the fleet should use the
// same ones.
func WithSentinels(errs ...error) LoaderOption {
	return func(o *loaderOptions) {
		for _, err := range errs {
			if err != nil {
				o.sentinels = append(o.sentinels[:len(o.sentinels):len(o.sentinels)], err)
			}
		}
	}
}

const (
	// failureTTL is how long a failure is there for those who waited for it. It bounds by how much an
	// error can outlive its flight.
	failureTTL = 2 * time.Second

	maxFailure = 4 << 10 // bytes of an error's text that are published
)

// failure is what is published of an error.
type failure struct {
	Text string   `json:"text"`
	Is   []string `json:"is,omitempty"`
}

// failureOf returns what the other processes learn of err, the error of a source with context ctx.
// It is empty if that is nothing: the end of a context concerns one process alone. So do an error that
// may be due to the leases of the first caller, and one whose methods panic, such as a nil pointer.
func (l *Loader[V]) failureOf(ctx context.Context, err error) (published string) {
	defer func() { _ = recover() }()
	if _, ok := err.(*leaseError); ok {
		return ""
	}
	if err == nil || ctx.Err() != nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return ""
	}
	text := err.Error()
	f := failure{Text: strings.ToValidUTF8(text[:min(len(text), maxFailure)], "\uFFFD")}
	for _, s := range l.sentinels {
		if errors.Is(err, s) {
			f.Is = append(f.Is, s.Error())
		}
	}
	b, err := json.Marshal(f)
	if err != nil {
		return ""
	}
	return string(b)
}

// remoteError returns the error of a load of key that failed elsewhere.
func (l *Loader[V]) remoteError(key string, s *slots.Slot[V]) error {
	e := &RemoteError{Key: key, At: time.Now().Add(-s.Age)}
	var f failure
	if err := json.Unmarshal([]byte(s.Failure), &f); err != nil {
		f = failure{Text: s.Failure}
	}
	e.Text = f.Text
	for _, sentinel := range l.sentinels {
		for _, text := range f.Is {
			if sentinel.Error() == text {
				e.is = append(e.is, sentinel)
			}
		}
	}
	return e
}

// since returns how old a failure of key may be to concern a load that began at that time; zero: it
// concerns none. A failure of this process concerns no other load of it: who waited for it has it
// already.
func (l *Loader[V]) since(key string, began time.Time) time.Duration {
	if began.IsZero() {
		return 0
	}
	now := time.Now()
	d := min(now.Sub(began), failureTTL)
	if m := l.published.of(key); m != nil {
		if at := m.Load(); at != 0 {
			d = min(d, time.Duration(instant(now)-at))
		}
	}
	return max(d, 0)
}

// willPublish notes that the failure of key is about to be published. It is called before anyone
// learns of the failure.
func (l *Loader[V]) willPublish(key string) {
	l.published.set(key, time.Now().Add(2*l.backendTimeout))
}

// publish publishes the failure of s, while its lock is held.
func (l *Loader[V]) publish(ctx context.Context, s *store[V]) {
	began := time.Now()
	putCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.backendTimeout)
	defer cancel()
	slot := &slots.Slot[V]{Key: l.name(s.key), Version: s.version, Failed: true, Failure: s.failure, TTL: failureTTL}
	err := l.put(putCtx, s, slot)
	l.published.set(s.key, time.Now())
	if err != nil {
		_ = l.cacheBreaker.failed(putCtx, s.key, began, err)
		return
	}
	l.cacheBreaker.succeeded(s.key, began)
}
