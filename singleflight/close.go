package singleflight

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/undo"
)

// Close shuts the Loader down. Call it before the process ends, and before the clients of the
// locks and of the cache are closed, so that no lock is left behind for the fleet to wait for.
//
// From then on Load and Update return [locker.ErrClosed]. Work that no caller waits for ends at
// once: the contexts of a refresh's source, and of the source of a load that all callers have
// left, are canceled. Close waits until those sources have returned, the calls in progress have
// been served, the values that were loaded are stored, and the locks are released. An old value
// that Update could not delete stays in the cache.
//
// If ctx ends first, Close cancels the contexts of all sources and of Update's changes. Their
// callers get ErrClosed, and nothing more is stored. The locks that are still held after a
// quarter of the backend timeout ([WithBackendTimeout], 2 seconds by default) are released all
// the same. Close returns an error that wraps ctx's, no later than one backend timeout after ctx
// has ended. A source goes on only if it ignores the end of its context, or if its context cannot
// end because that of its load's first caller cannot.
//
// Close may be called more than once and concurrently with other methods. The first Close whose
// ctx ends cuts the work short for all.
func (l *Loader[V]) Close(ctx context.Context) error {
	if l == nil {
		return closeError(errors.New("nil Loader"))
	}
	idle := l.lifetime.close()
	if l.settle(ctx, idle) == nil {
		return nil
	}
	l.lifetime.cutOff()
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.backendTimeout)
	defer cancel()
	soon, cancelSoon := context.WithTimeout(limit, l.lockBreaker.patience())
	defer cancelSoon()
	select {
	case <-idle:
	case <-soon.Done():
		for _, lease := range l.lifetime.held() {
			l.unlockBehind(ctx, lease)
		}
	}
	_ = l.settle(limit, idle)
	return closeError(ctx.Err())
}

// settle waits until nothing is in progress and no failed attempt may have left a lock behind. It
// cannot tell these attempts from those of other users of the Locker, but it does not wait for any
// that fail later.
func (l *Loader[V]) settle(ctx context.Context, idle <-chan struct{}) error {
	select {
	case <-idle:
		return undo.Wait(ctx, l.locker)
	case <-ctx.Done():
	}
	select {
	case <-idle:
		return undo.Wait(ctx, l.locker)
	default:
		return ctx.Err()
	}
}

func closeError(err error) error { return fmt.Errorf("singleflight: close: %w", err) }

// lifetime has what Close needs to know: what a Loader has in progress beyond reading the cache,
// and which locks it holds. The zero lifetime is that of a Loader in use.
type lifetime struct {
	closing atomic.Bool // Close was called
	cut     atomic.Bool // and its ctx has ended: no lock is taken, no source called and nothing stored from now on

	mu       sync.Mutex
	running  int                // activities
	enders   table[ender, bool] // those of them that can be ended
	leases   table[*locker.Lease, bool]
	idle     chan struct{} // made by the first Close, closed when nothing is running
	finished bool          // idle is closed, or cut is true: nothing more begins
}

// ender is an activity that Close can end. A flight is one.
type ender interface {
	attach() // makes it end with its last caller, at once if it has none
	cancel() // ends it
}

// background is an activity without a caller.
type background struct{ end context.CancelFunc }

func (b *background) attach() { b.end() }
func (b *background) cancel() { b.end() }

// begin begins an activity, which Close waits for until end is called with the same argument. It
// reports false if the Loader is closed: the activity must not begin. e is nil if it cannot be
// ended.
func (t *lifetime) begin(e ender) bool {
	t.mu.Lock()
	if t.finished {
		t.mu.Unlock()
		return false
	}
	t.running++
	if e != nil {
		t.enders.set(e, true)
	}
	closing := t.closing.Load()
	t.mu.Unlock()
	if closing && e != nil {
		e.attach()
	}
	return true
}

// follow begins what follows from an activity that has not ended, such as a release. end(nil)
// ends it.
func (t *lifetime) follow() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.running++
}

func (t *lifetime) end(e ender) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.running--
	if e != nil {
		t.enders.set(e, false)
	}
	t.finishLocked()
}

// finishLocked ends the lifetime if Close was called and nothing is running.
func (t *lifetime) finishLocked() {
	if t.idle == nil || t.running > 0 {
		return
	}
	t.finished = true
	select {
	case <-t.idle: // a request that was left behind has returned
	default:
		close(t.idle)
	}
}

// hold notes a lock that was taken. It reports false if the lock must be released instead.
func (t *lifetime) hold(lease *locker.Lease) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cut.Load() {
		return false
	}
	t.leases.set(lease, true)
	return true
}

// drop notes that a lock was released, or that it is left to its ttl.
func (t *lifetime) drop(lease *locker.Lease) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.leases.set(lease, false)
}

func (t *lifetime) held() (leases []*locker.Lease) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for lease := range t.leases.m {
		leases = append(leases, lease)
	}
	return leases
}

// close begins the end of the lifetime, and returns a channel that is closed when nothing is
// running.
func (t *lifetime) close() <-chan struct{} {
	t.mu.Lock()
	if t.idle != nil {
		defer t.mu.Unlock()
		return t.idle
	}
	t.closing.Store(true)
	t.idle = make(chan struct{})
	t.finishLocked()
	enders := t.endersLocked()
	t.mu.Unlock()
	for _, e := range enders {
		e.attach()
	}
	return t.idle
}

// errCut returns what err becomes for a caller whose own ctx has not ended, or nil if that is err
// itself.
func (t *lifetime) errCut(err error) error {
	switch {
	case err == nil || !t.cut.Load() || errors.Is(err, locker.ErrClosed):
		return nil
	case errors.Is(err, context.Canceled): // not the caller's context
		return fmt.Errorf("%w: %v", locker.ErrClosed, err)
	}
	return fmt.Errorf("%w: %w", locker.ErrClosed, err)
}

// cutOff ends all that can be ended.
func (t *lifetime) cutOff() {
	t.mu.Lock()
	t.cut.Store(true)
	t.finished = true
	enders := t.endersLocked()
	t.mu.Unlock()
	for _, e := range enders {
		e.cancel()
	}
}

func (t *lifetime) endersLocked() (enders []ender) {
	for e := range t.enders.m {
		enders = append(enders, e)
	}
	return enders
}
