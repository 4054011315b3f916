package singleflight

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// breaker decides whether a backend, that of the locks or that of the cache, is asked, so that
// callers do not each find out by a timeout that it is down.
//
// Its evidence is the outcome of requests. A request without an answer trips it: one that ended
// with its context, took a quarter of the timeout and failed, or failed with a network error. It
// trips for all keys if the backend has answered no request for a quarter of the timeout, and
// otherwise for the request's key alone, which may be on a server of its own. An error that is an
// answer, such as that of an entry that cannot be decoded, does not trip it.
//
// Once the breaker has tripped, the backend is left alone for a pause. After that a probe in the
// background asks it again, and the callers go on without it until it has answered: no caller
// waits for a backend that is known to be down. A caller starts the probe. If none did for a long
// time, the callers ask the backend themselves.
type breaker struct {
	timeout, pause time.Duration

	answered atomic.Int64 // when the last request that was answered began, as an instant; 0: none was
	all      mark         // the instant until which all keys are left alone; after that a probe is due
	keys     marks        // the same for each key
	cause    atomic.Pointer[error]
	probes   atomic.Int32 // in progress
}

const (
	// maxProbes is how many probes run at a time: more than one only if one does not return in
	// time. A probe that has not returned after probeTimeouts no longer counts: the backend may
	// be back without it.
	maxProbes     = 4
	probeTimeouts = 30

	// forgetPauses bounds how long a backend is left alone if no caller starts a probe, as a
	// multiple of its pause and timeout together. What is known of the backend is then too old to
	// rely on.
	forgetPauses = 10
)

// allows reports whether the backend may be asked for key. If not, the caller calls skip instead.
func (b *breaker) allows(key string) bool {
	if b.isShut(&b.all) {
		return false
	}
	m := b.keys.of(key)
	return m == nil || !b.isShut(m)
}

// isShut reports whether what m marks is left alone.
func (b *breaker) isShut(m *mark) bool {
	until := m.Load()
	return until != 0 && instant(time.Now())-until < int64(forgetPauses*(b.pause+b.timeout))
}

// skip returns the error of a request that is not made. If a probe is due, it starts one.
func (b *breaker) skip(key string, probe func()) error {
	m := &b.all
	if !b.isShut(m) {
		m = b.keys.of(key)
	}
	if m != nil && b.claimProbe(m) {
		go func() {
			uncount := sync.OnceFunc(func() { b.probes.Add(-1) })
			defer uncount()
			defer time.AfterFunc(probeTimeouts*b.timeout, uncount).Stop()
			probe()
		}()
	}
	err := errors.New("it failed")
	if cause := b.cause.Load(); cause != nil {
		err = *cause
	}
	return &noAnswerError{"not asked so soon after it failed", err}
}

// claimProbe reports whether a probe of what m marks is due and the caller must make it.
func (b *breaker) claimProbe(m *mark) bool {
	now, until := time.Now(), m.Load()
	if until == 0 || instant(now) < until || !m.CompareAndSwap(until, instant(now.Add(b.timeout+b.pause))) {
		return false
	}
	if b.probes.Add(1) > maxProbes {
		b.probes.Add(-1)
		return false
	}
	return true
}

// succeeded notes that a request for key that began at that time was answered.
func (b *breaker) succeeded(key string, began time.Time) {
	b.heard(began)
	if b.all.Load() != 0 {
		b.all.Store(0)
	}
	b.keys.clear(key)
}

// failed notes the error of a request for key that began at that time, with context ctx, and
// returns it, as a noAnswerError if there was no answer. It is not for a request that ended
// because its caller left.
func (b *breaker) failed(ctx context.Context, key string, began time.Time, err error) error {
	now := time.Now()
	took := now.Sub(began)
	var network net.Error
	switch {
	case ctx.Err() != nil || took >= b.patience():
		err = &noAnswerError{fmt.Sprintf("no answer within %v", took.Round(time.Millisecond)), err}
	case errors.As(err, &network):
		err = &noAnswerError{"", err}
	default:
		b.heard(began)
		return err
	}
	b.trip(key, now, err)
	return err
}

// trip notes that a request for key got no answer.
func (b *breaker) trip(key string, now time.Time, err error) {
	b.cause.Store(&err)
	last := b.answered.Load()
	if last == 0 || instant(now)-last >= int64(b.patience()) {
		b.all.Store(instant(now.Add(b.pause)))
	} else {
		b.keys.set(key, now.Add(b.pause))
	}
}

// heard notes an answer. Every hit calls it, so it writes at most once a millisecond.
func (b *breaker) heard(began time.Time) {
	last, t := b.answered.Load(), instant(began)
	if last == 0 || t-last > int64(time.Millisecond) {
		b.answered.Store(t)
	}
}

// patience is how long a backend may take to answer a caller that has little time.
func (b *breaker) patience() time.Duration { return b.timeout / 4 }

// noAnswerError is the error of a backend that did not answer, or was not asked at all.
type noAnswerError struct {
	why string // empty if err is clear enough
	err error
}

func (e *noAnswerError) Error() string {
	if e.why == "" {
		return e.err.Error()
	}
	return fmt.Sprintf("%s: %v", e.why, e.err)
}

func (e *noAnswerError) Unwrap() error { return e.err }
