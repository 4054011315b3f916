package singleflight

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/golockers/locker"
)

const (
	// The delay between two reads of the cache when nothing wakes a waiter doubles from firstPoll
	// to lastPoll.
	firstPoll = 5 * time.Millisecond
	lastPoll  = 50 * time.Millisecond

	// safetyPoll is that delay when releases wake it: the holder may have vanished, which wakes
	// no waiter.
	safetyPoll = time.Second

	// maxFruitless is how many releases without a value a waiter watches before it loads by itself.
	maxFruitless = 2

	// releaseGap is how far apart two wake-ups must be to count as two releases. A wake-up is
	// only a hint, and a subscription that breaks causes several at once.
	releaseGap = time.Second
)

// waitForValue is for a process that was refused the lock. It waits for the value and not for the
// lock, so all processes that wait have the value as soon as it is there. It tries the lock again
// whenever that may be free.
//
// If the cache keeps loads, it also waits for the failure of a load that it has waited for since
// began.
//
// It ends when its last caller leaves, since there is nothing to complete.
func (l *Loader[V]) waitForValue(ctx context.Context, key string, began time.Time) (t terms, found looked[V], err error) {
	ctx.(*flight[V]).attach()
	end := began.Add(l.waitLimit())
	watchCtx, unwatch := context.WithCancel(ctx)
	defer unwatch()
	woken := l.watch(watchCtx, unwatch, key)
	fruitless, released := 0, began // the releases that left no value, and when the last one was

	for attempt := 0; ; attempt++ {
		// A release before the subscription was live wakes nothing, so there is an attempt before
		// the first rest.
		if attempt > 0 || woken != nil {
			lease, err := l.tryLock(ctx, key)
			if !errors.Is(err, locker.ErrHeld) {
				t, err = l.withLock(ctx, key, began, lease, err)
				return t, found, err
			}
		}

		rest := safetyPoll + rand.N(safetyPoll/2)
		if woken == nil {
			rest = min(firstPoll<<min(attempt, 10), lastPoll)
			rest += rand.N(rest/2) - rest/4
		}
		left := time.Until(end)
		timer := time.NewTimer(min(rest, left))
		waited, release := false, false
		select {
		case <-woken:
			release = true
		case <-timer.C:
			waited = left <= rest
		case <-ctx.Done():
		}
		timer.Stop()
		if err := ctx.Err(); err != nil {
			return t, found, err
		}

		found, err = l.look(ctx, key, nil, began, false)
		switch {
		case found.ok || isFinal(err):
			l.note(ctx, LoadWaited, nil)
			return t, found, err
		case err != nil:
			t, err = l.withoutLock(ctx, key, err, afterReadError(err))
			return t, found, err
		case waited:
			how := add // another process holds the lock and may store a newer value
			if fruitless >= maxFruitless {
				how = addIfPossible // but will probably store none, as those before it
			}
			return terms{why: errWaitedLong, how: how}, found, nil
		case release:
			// The source has failed elsewhere, or the cache refuses the value. To go on one at a
			// time would take longer the more processes there are, so the others call the source
			// within the time that the last load took, but not all at the same moment. Wake-ups
			// that are close together, and those within the first two gaps, are no evidence: the
			// holder may still be at work.
			now := time.Now()
			took := now.Sub(released)
			if fruitless > 0 && took < releaseGap {
				continue
			}
			fruitless++
			if fruitless == maxFruitless {
				soon := began.Add(maxFruitless * releaseGap)
				if soon.Before(now) {
					soon = now
				}
				if soon = soon.Add(rand.N(took + 1)); soon.Before(end) {
					end = soon
				}
			}
			released = now
		}
	}
}

// waitLimit returns how long to wait for a value. By default that is longer than a holder may
// take, so its end is seen. A random part of up to half of that is added, so that processes that
// began together do not all call the source together.
func (l *Loader[V]) waitLimit() time.Duration {
	if l.maxWait > 0 {
		return l.maxWait
	}
	d := l.maxHold + l.lockTTL + 2*safetyPoll
	return d + rand.N(d/2+1)
}

// watch returns a channel that gets a value when key's lock is released, or nil if there is none:
// then the waiter polls, and learns in that way of anything else that is wrong with the backend.
// unwatch ends ctx.
func (l *Loader[V]) watch(ctx context.Context, unwatch func(), key string) <-chan struct{} {
	w, ok := l.locker.(locker.Watcher)
	if !ok {
		return nil
	}
	timer := time.AfterFunc(l.lockBreaker.patience(), unwatch)
	woken, err := w.Watch(ctx, l.name(key))
	if !timer.Stop() || err != nil {
		return nil
	}
	return woken
}
