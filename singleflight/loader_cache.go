package singleflight

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// read reads the cache. After an error ok is false.
func (l *Loader[V]) read(ctx context.Context, key string) (v V, ok bool, err error) {
	return l.ask(ctx, key, l.cache.Get)
}

// ask calls Get or Stale.
func (l *Loader[V]) ask(ctx context.Context, key string, get func(context.Context, string) (V, bool, error)) (
	v V, ok bool, err error) {
	if err := l.cacheOutage.during(key); err != nil {
		return v, false, err
	}
	getCtx := withDeadline(ctx, time.Now().Add(answerTime))
	defer getCtx.cancel()
	got, ok, err := get(getCtx, key)
	switch {
	case err == nil:
		l.cacheOutage.succeeded()
		return got, ok, nil
	case ctx.Err() != nil: // the end of ctx says nothing of the backend
		return v, false, err
	case getCtx.Err() != nil:
		err = &noAnswerError{fmt.Sprintf("no answer within %v", answerTime), err}
	}
	err = fmt.Errorf("read the cache: %w", err)
	l.cacheOutage.failed(key, err)
	return v, false, err
}

// storing is how a value goes into the cache.
type storing uint8

const (
	set           storing = iota // replacing what may be there
	add                          // only if there is none
	addIfPossible                // likewise, but with a cache that cannot, replacing is better than not to store
	dont
)

// afterReadError says how to store a value that was loaded because the cache could not be read. It may have
// been the one entry that is damaged, and then storing repairs it. A cache that does not answer is not
// asked again.
func afterReadError(err error) storing {
	if errors.As(err, new(*noAnswerError)) {
		return dont
	}
	return set
}

// store stores v. With a deadline, it begins before that and is cut off then. An error is the Cache's to
// report.
func (l *Loader[V]) store(ctx context.Context, key string, v V, how storing, deadline time.Time) {
	if end := time.Now().Add(answerTime); deadline.IsZero() || end.Before(deadline) {
		deadline = end
	}
	setCtx := withDeadline(context.WithoutCancel(ctx), deadline)
	defer setCtx.cancel()
	if setCtx.Err() != nil {
		return
	}
	adder, canAdd := l.cache.(Adder[V])
	var err error
	switch {
	case how == set || how == addIfPossible && !canAdd:
		err = l.cache.Set(setCtx, key, v)
	case how != dont && canAdd:
		_, err = adder.Add(setCtx, key, v)
	default:
		return
	}
	if err == nil {
		l.cacheOutage.succeeded()
		l.cacheOutage.repaired(key)
	}
}
