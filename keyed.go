package locker

// Locks that are released by name.

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/golockers/locker/internal/line"
	"github.com/golockers/locker/internal/table"
)

// Keyed takes and releases locks by key alone, and keeps the leases itself. It is for libraries
// whose interfaces unlock by name, such as certmagic's Locker and TryLocker. Use [Lock] or [Do]
// where you can, since only the Unlock of a Keyed reports that a lock was lost. Make one with
// [NewKeyed]. It is safe for concurrent use, and keeps nothing for a key that is neither held nor
// waited for.
//
// Within one Keyed a lock stays taken until its Unlock, even if it is lost earlier. Otherwise that
// Unlock would release the lock of the next caller. Callers of one Keyed get a lock in the order in
// which they asked for it.
type Keyed struct {
	locker Locker
	ttl    time.Duration
	opts   []Option

	line line.Lines[string, struct{}] // of the callers that hold or wait for a key

	mu   sync.Mutex
	held table.Table[string, keyed]
}

// keyed is a lock that is held.
type keyed struct {
	place *line.Place[string, struct{}] // the first
	lease *Lease
}

// NewKeyed returns a Keyed for the locks of l. Each is held for ttl and kept alive until it is
// unlocked; opts apply to each, as they do to [Lock].
func NewKeyed(l Locker, ttl time.Duration, opts ...Option) *Keyed {
	opts = append([]Option{WithKeepAlive()}, opts...)
	return &Keyed{locker: l, ttl: ttl, opts: opts}
}

// Lock waits for the lock of key as the function [Lock] does, and returns the same errors.
func (k *Keyed) Lock(ctx context.Context, key string) error {
	_, err := k.acquire(ctx, key, true)
	return err
}

// TryLock takes the lock of key if it is free. If it is held, by this Keyed or another process,
// TryLock returns (false, nil). The other errors are those of the function [TryLock].
func (k *Keyed) TryLock(ctx context.Context, key string) (bool, error) {
	return k.acquire(ctx, key, false)
}

func (k *Keyed) acquire(ctx context.Context, key string, wait bool) (acquired bool, err error) {
	var place *line.Place[string, struct{}]
	if wait {
		place = k.line.Join(key)
	} else if place = k.line.Begin(key); place == nil {
		return false, nil
	}
	defer func() {
		if !acquired {
			place.Leave()
		}
	}()
	select {
	case <-place.Turn():
	default:
		if k.isCarried(ctx, key) {
			return false, wrap("lock", key, ErrDeadlock)
		}
		select {
		case <-place.Turn():
		case <-ctx.Done():
			return false, wrap("lock", key, fmt.Errorf("%w: %w", ctx.Err(), ErrHeld))
		}
	}
	var lease *Lease
	if wait {
		lease, err = Lock(ctx, k.locker, key, k.ttl, k.opts...)
	} else {
		lease, err = TryLock(ctx, k.locker, key, k.ttl, k.opts...)
	}
	switch {
	case err == nil:
	case !wait && errors.Is(err, ErrHeld):
		return false, nil
	default:
		return false, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.held.Set(key, keyed{place, lease})
	return true, nil
}

// Unlock releases the lock of key, which any goroutine may have taken through this Keyed. The
// errors are those of [Lease.Unlock]; [ErrNotHeld] means that the lock was lost, or that this Keyed
// does not hold it. Whatever the error, the next caller of this Keyed then has its turn. A lock
// that could not be released ends with its ttl.
func (k *Keyed) Unlock(ctx context.Context, key string) error {
	k.mu.Lock()
	held, ok := k.held.Get(key)
	k.held.Delete(key)
	k.mu.Unlock()
	if !ok {
		return wrap("unlock", key, ErrNotHeld)
	}
	defer held.place.Leave()
	return held.lease.Unlock(ctx)
}

// isCarried reports whether ctx carries a lease of the lock: then not even the caller that has the
// turn can get it.
func (k *Keyed) isCarried(ctx context.Context, key string) bool {
	l, _, _ := reveal(k.locker)
	o := apply(k.opts)
	return isCarried(ctx, l, key, o.token)
}
