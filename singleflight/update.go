package singleflight

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/lazyctx"
)

// Deleter is a [Cache] that can delete a value. [Loader.Update] needs it.
type Deleter[V any] interface {
	// Delete removes the value of key, so that neither Get nor Stale returns it. It is not an
	// error if there is none.
	Delete(ctx context.Context, key string) error
}

// Update calls change, which changes what the source returns for key, and takes the old value out
// of the cache. It holds the key's lock throughout, as a load does. So no load that holds the
// lock can read before the change and store what it read after the deletion. The package
// documentation, under Invalidation, describes what that guarantees, and what happens if the value
// cannot be deleted: Update then returns an error, even if change succeeded.
//
// Update waits for the lock for as long as ctx allows, and keeps it alive for up to
// [WithMaxHold]. The context of change is canceled when the lock is lost. If the lock cannot be
// taken, change is not called: unlike Load, Update does not go on without the backend of the
// locks. If the Cache is not a [Deleter], change is not called either, and the error wraps
// [errors.ErrUnsupported].
//
// Once change has been called, Update deletes the value, however change ended and even if ctx has
// ended: an error does not prove that nothing was changed. If only change fails, its error is
// returned unchanged.
//
// An error that wraps [locker.ErrNotHeld] means that the lock was lost during the update: a load
// elsewhere may have stored the old value after the deletion. Update may then be called again,
// with a change that does nothing.
//
// The context of change carries the lease; see [locker.FromContext]. Calling Load or Update for the
// same key from within change with its context is an error.
func (l *Loader[V]) Update(ctx context.Context, key string, change func(context.Context) error) error {
	if err := l.checkUpdate(ctx, key, change); err != nil {
		return updateError(key, err)
	}
	caller := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	e := updating(cancel)
	if !l.lifetime.begin(&e) {
		return updateError(key, locker.ErrClosed)
	}
	defer l.lifetime.end(&e)

	lease, err := locker.Lock(ctx, l.locker, l.name(key), l.lockTTL,
		locker.WithKeepAlive(), locker.WithMaxHold(l.maxHold))
	if err == nil && !l.lifetime.hold(lease) {
		l.unlock(ctx, lease)
		err = locker.ErrClosed
	}
	if err != nil {
		if closed := l.lifetime.errCut(err); closed != nil && caller.Err() == nil {
			err = closed
		}
		return updateError(key, err)
	}
	ctx, unbind := lease.Context(ctx)
	defer unbind()
	err = l.update(ctx, key, lease, change)
	if closed := l.lifetime.errCut(err); closed != nil && caller.Err() == nil {
		return updateError(key, closed)
	}
	return err
}

// updating is an Update in progress: it ends the context of its change.
type updating context.CancelCauseFunc

func (u *updating) attach() {} // it has a caller
func (u *updating) cancel() { (*u)(locker.ErrClosed) }

func (l *Loader[V]) checkUpdate(ctx context.Context, key string, change func(context.Context) error) error {
	if err := l.check(key); err != nil {
		return err
	}
	if change == nil {
		return errors.New("nil change")
	}
	if _, ok := l.cache.(Deleter[V]); !ok {
		return fmt.Errorf("the Cache is not a Deleter: %w", errors.ErrUnsupported)
	}
	if err := l.group.checkWithin(ctx, key); err != nil {
		return err
	}
	if !l.outdated.hasRoom(key) {
		return fmt.Errorf("the values of %d other keys could not be deleted from the cache", maxOutdated)
	}
	return nil
}

// update calls change under lease, then deletes the value and releases the lock, however change
// ends.
func (l *Loader[V]) update(ctx context.Context, key string, lease *locker.Lease,
	change func(context.Context) error) (err error) {
	// As a flight of the key, which Load and Update look for.
	within := &flight[V]{group: &l.group, key: key, first: ctx}
	defer func() {
		within.setFinished()
		deleteErr := l.deleteOld(ctx, key)
		unlockErr := lease.Unlock(ctx)
		l.lifetime.drop(lease)
		if deleteErr != nil {
			what := "the value could not be deleted from the cache"
			if err == nil {
				what = "the change was made, but the old value could not be deleted from the cache"
			}
			err = joinError(err, updateError(key, fmt.Errorf("%s: %w", what, deleteErr)))
		}
		if unlockErr != nil {
			err = joinError(err, updateError(key, unlockErr))
		}
	}()
	return change(context.WithValue(ctx, &l.group, within))
}

// deleteOld forgets key and deletes its value.
func (l *Loader[V]) deleteOld(ctx context.Context, key string) error {
	added := l.outdated.add(key) // before the deletion, so no read that overlaps with it is shared
	l.Forget(key)
	err := l.delete(ctx, key)
	if err == nil {
		l.outdated.remove(key, added)
		return nil
	}
	l.deleteLater(ctx)
	return err
}

// delete deletes key's value from the cache. A deletion that does not return in time is left
// behind.
func (l *Loader[V]) delete(ctx context.Context, key string) error {
	began := time.Now()
	deadline := began.Add(l.backendTimeout)
	deleteCtx := lazyctx.WithoutCancel(ctx, deadline)
	defer deleteCtx.Cancel()
	returned := make(chan error, 1)
	go func() {
		returned <- recovered(key, func() error { return l.cache.(Deleter[V]).Delete(deleteCtx, l.name(key)) })
	}()
	timer := time.NewTimer(l.backendTimeout + l.cacheBreaker.patience())
	defer timer.Stop()
	var err error
	select {
	case err = <-returned:
	case <-timer.C:
		err = context.DeadlineExceeded
	}
	if err != nil {
		return l.cacheBreaker.failed(deleteCtx, key, began, err)
	}
	l.cacheBreaker.succeeded(key, began)
	return nil
}

// maxDeleteDelay is the longest pause between two deletions of outdated values.
const maxDeleteDelay = 30 * time.Second

// deleteLater tries in the background, with growing pauses, to delete the values of all outdated
// keys, until there are none or the Loader is closed.
func (l *Loader[V]) deleteLater(ctx context.Context) {
	if !l.outdated.claim() {
		return
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	e := &background{cancel}
	if !l.lifetime.begin(e) {
		cancel()
		return
	}
	go func() {
		defer l.lifetime.end(e)
		defer cancel()
		for delay := l.outagePause; ; delay = min(2*delay, max(maxDeleteDelay, l.outagePause)) {
			timer := time.NewTimer(delay)
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
				return
			}
			l.deleteAll(ctx)
			if l.outdated.release() {
				return
			}
		}
	}()
}

// deleteAll deletes the values of the outdated keys, until the cache does not answer.
func (l *Loader[V]) deleteAll(ctx context.Context) {
	for _, key := range l.outdated.snapshot() {
		added := l.outdated.when(key)
		if added == 0 {
			continue
		}
		err := ctx.Err()
		if err == nil {
			err = l.delete(ctx, key)
		}
		switch {
		case err == nil:
			l.outdated.remove(key, added)
		case ctx.Err() != nil || isNoAnswer(err):
			return
		}
	}
}

func updateError(key string, err error) error { return &keyError{"update", key, err} }

// joinError returns an error that wraps both, of which the first may be nil.
func joinError(first, second error) error {
	if first == nil {
		return second
	}
	return fmt.Errorf("%w; %w", first, second)
}
