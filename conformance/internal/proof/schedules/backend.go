// Package schedules runs the whole API of package locker in random schedules, over a backend in
// memory that fails, hangs and answers late, in a bubble of testing/synctest.
package schedules

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/memory"
)

// dice is a source of random numbers that goroutines share.
type dice struct {
	mu sync.Mutex
	r  *rand.Rand
}

func newDice(seed uint64) *dice { return &dice{r: rand.New(rand.NewPCG(seed, 0))} }

func (d *dice) n(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.r.IntN(n)
}

func (d *dice) chance(n, of int) bool { return d.n(of) < n }

func (d *dice) upTo(most time.Duration) time.Duration { return time.Duration(d.n(int(most))) }

var errInjected = errors.New("injected")

// backend is a Locker over memory. On average, faults of ten requests are lost, late or answered
// with an error.
type backend struct {
	locks *memory.Locker
	*dice
	wrong mutant

	mu     sync.Mutex
	faults int
}

// heal ends the faults. Requests that are late may still arrive for a second.
func (b *backend) heal() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.faults = 0
}

// call executes a request, unless the request is lost. If mayBeLate is true, the request may arrive
// after the call has returned an error.
func call[T any](ctx context.Context, b *backend, mayBeLate bool, request func(context.Context) (T, error)) (T, error) {
	var none T
	b.mu.Lock()
	faults := b.faults
	b.mu.Unlock()
	if !b.chance(faults, 10) {
		return request(ctx)
	}
	switch kind := b.n(5); {
	case kind == 0: // the request does not arrive
		return none, errInjected
	case kind == 1 && mayBeLate:
		delay := b.upTo(time.Second)
		go func() {
			time.Sleep(delay)
			_, _ = request(context.Background())
		}()
		return none, errInjected
	case kind <= 2: // the request arrives, and its answer is lost
		if _, err := request(ctx); err != nil {
			return none, err
		}
		return none, errInjected
	case kind == 3: // the request is slow
		if err := rest(ctx, b.upTo(300*time.Millisecond)); err != nil {
			return none, err
		}
		return request(ctx)
	default: // the answer is slow
		v, err := request(ctx)
		if late := rest(ctx, b.upTo(300*time.Millisecond)); late != nil {
			return none, late
		}
		return v, err
	}
}

func rest(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (b *backend) Acquire(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return call(ctx, b, true, func(ctx context.Context) (bool, error) {
		ok, err := b.locks.Acquire(ctx, key, token, ttl)
		return ok || err == nil && b.wrong == grantsTwice && b.chance(1, 10), err
	})
}

// Extend never arrives late for a key whose leases are detached. A late Extend would shorten the
// lock of the process that resumed it, which the documentation of Resume excludes.
func (b *backend) Extend(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return call(ctx, b, key != detachedKey, func(ctx context.Context) (bool, error) {
		if b.wrong == extendsNothing && ctx.Err() == nil {
			return true, nil
		}
		return b.locks.Extend(ctx, key, token, ttl)
	})
}

func (b *backend) Release(ctx context.Context, key, token string) (bool, error) {
	return call(ctx, b, true, func(ctx context.Context) (bool, error) {
		switch {
		case b.wrong == releasesNothing:
			return true, nil
		case b.wrong == releasesOthers:
			if info, err := b.locks.Inspect(ctx, key); err == nil && info.Token != "" {
				token = info.Token
			}
		}
		return b.locks.Release(ctx, key, token)
	})
}

func (b *backend) Inspect(ctx context.Context, key string) (locker.Info, error) {
	return b.locks.Inspect(ctx, key)
}

// fenced is a backend with fencing numbers, as are the types below.
type fenced struct{ *backend }

type number struct {
	fence uint64
	ok    bool
}

func (f fenced) Fence(ctx context.Context, key, token string) (uint64, bool, error) {
	n, err := call(ctx, f.backend, false, func(ctx context.Context) (number, error) {
		fence, ok, err := f.locks.Fence(ctx, key, token)
		if f.wrong == repeatsFences {
			fence /= 1_000_000
		}
		return number{fence, ok}, err
	})
	return n.fence, n.ok, err
}

// watched is a backend whose watchers are woken.
type watched struct{ fenced }

func (w watched) Watch(ctx context.Context, key string) (<-chan struct{}, error) {
	return call(ctx, w.backend, false, func(ctx context.Context) (<-chan struct{}, error) {
		return w.locks.Watch(ctx, key)
	})
}

// queued is a backend with a queue.
type queued struct{ fenced }

func (q queued) Wait(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
	return call(ctx, q.backend, false, func(ctx context.Context) (time.Time, error) {
		deadline, err := q.locks.Wait(ctx, key, token, ttl)
		switch {
		case q.wrong == losesGrants && err == nil && q.chance(1, 10):
			_ = rest(ctx, time.Hour)
			return time.Time{}, context.DeadlineExceeded
		case q.wrong == promisesTooLong && err == nil:
			deadline = deadline.Add(time.Second)
		}
		return deadline, err
	})
}

// mutant is a kind of broken backend.
type mutant int

const (
	correct mutant = iota
	grantsTwice
	extendsNothing
	releasesNothing
	releasesOthers
	repeatsFences
	losesGrants
	promisesTooLong
)

var mutants = map[string]mutant{
	"grants twice": grantsTwice, "extends nothing": extendsNothing, "releases nothing": releasesNothing,
	"releases others' locks": releasesOthers, "repeats fencing numbers": repeatsFences, "loses grants": losesGrants,
	"promises too long": promisesTooLong,
}
