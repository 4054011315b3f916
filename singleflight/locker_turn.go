package singleflight

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/golockers/locker"
)

// probe is the wrapped Locker as the drivers use it: it notes for which keys that keeps no line, or cannot
// be watched, though it has the methods.
type probe struct {
	locker.Locker
	l *Locker
}

var (
	_ locker.Waiter  = probe{}
	_ locker.Watcher = probe{}
)

func (p probe) Wait(ctx context.Context, key, token string, ttl time.Duration) (deadline time.Time, err error) {
	err = errors.ErrUnsupported
	if w, ok := p.Locker.(locker.Waiter); ok {
		deadline, err = w.Wait(ctx, key, token, ttl)
	}
	if errors.Is(err, errors.ErrUnsupported) {
		p.note(key, func(ln *line) { ln.unlined = true })
	}
	return deadline, err
}

func (p probe) Watch(ctx context.Context, key string) (woken <-chan struct{}, err error) {
	err = errors.ErrUnsupported
	if w, ok := p.Locker.(locker.Watcher); ok {
		woken, err = w.Watch(ctx, key)
	}
	if errors.Is(err, errors.ErrUnsupported) {
		p.note(key, func(ln *line) { ln.unwatched = true })
	}
	return woken, err
}

// note tells the line of key, which there is: somebody drives.
func (p probe) note(key string, tell func(*line)) {
	p.l.mu.Lock()
	defer p.l.mu.Unlock()
	if ln := p.l.lines[key]; ln != nil {
		tell(ln)
	}
}

// rest is how long the next driver rests before it asks for the lock, after a tenure was given up for
// others: for as long as other processes need to notice that the lock is free, where no line on the backend
// sees to it that they have their turn. It needs l.mu.
func (l *Locker) rest(ln *line) time.Duration {
	_, watches := l.inner.(locker.Watcher)
	switch {
	case !ln.yield || !ln.unlined:
		return 0
	case watches && !ln.unwatched:
		return 4 * time.Millisecond
	}
	return 50 * time.Millisecond // locker.Lock's longest rest between polls
}

// giveWay rests for between d/2 and d, or until ctx ends.
func giveWay(ctx context.Context, d time.Duration) error {
	if d == 0 {
		return nil
	}
	timer := time.NewTimer(d/2 + rand.N(d/2))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
