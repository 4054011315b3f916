package semaphore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/maphash"
	"strconv"
	"sync"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/misuse"
)

var (
	_ locker.Waiter = (*Locker)(nil)
	_ locker.Fencer = (*Locker)(nil)
)

// Locker is a [locker.Locker] whose locks may have up to N holders each. It works with all
// functions of package locker, for instance with [locker.Resume] for a permit that another process
// has left behind. A [Semaphore] is one lock of such a Locker.
//
// It obeys the rules of Locker, Waiter and Fencer, except that fencing numbers belong to a permit.
// Where the backend does not keep one queue for all permits, an Acquire tries one permit after the
// other, and may take one before waiters do. Use a token for only one permit.
//
// A Locker remembers the token of each held permit. If a permit is never released, its token is
// forgotten some time after its ttl. For a token that another Locker has used to take a permit,
// Fence asks for each permit in turn. Without one queue for all permits, so do Extend and Release.
// Then a Locker also has up to N subscriptions for each key with waiters.
type Locker struct {
	inner locker.Locker
	n     int

	mu    sync.Mutex
	rooms map[string]*room // of the keys for which this process has waiters
	known holders
}

// NewLocker returns a Locker whose locks may have up to n holders each. Their permits are locks of
// l, whose names the package's documentation describes. To observe or label the permits, put
// [locker.Observed] or [locker.Owned] around the Locker that NewLocker returns: around l they have no
// effect. If l is nil or n is less than 1, every operation fails.
func NewLocker(l locker.Locker, n int) *Locker {
	if o, ok := l.(observed); ok && o.Behind() != nil {
		l = o.Behind()
	}
	return &Locker{inner: l, n: n, rooms: make(map[string]*room)}
}

// permitKey returns the key of the lock that is permit i, counted from 0.
func permitKey(key string, i int) string { return base(key) + "/" + strconv.Itoa(i+1) }

// queueKey returns the key of the additional lock, which the first waiter holds.
func queueKey(key string) string { return base(key) + "/queue" }

// base returns what the keys of a semaphore's locks begin with. That is the semaphore's name,
// unless a key that begins with it could be longer than 1,024 bytes. In that case base returns more
// than 1,000 bytes. Names that are used unchanged are shorter, so no other name has the same locks.
func base(key string) string {
	const longest, kept = 1000, 940
	if len(key) <= longest {
		return key
	}
	sum := sha256.Sum256([]byte(key))
	return key[:kept] + hex.EncodeToString(sum[:])
}

// check returns an error if the arguments of NewLocker were invalid.
func (l *Locker) check() error {
	switch {
	case l == nil || l.inner == nil:
		return misuse.New("nil Locker")
	case l.n < 1:
		return misuse.New(fmt.Sprintf("%d permits: a semaphore has 1 or more", l.n))
	}
	return nil
}

// Acquire implements [locker.Locker]. Where the backend does not keep one queue for all permits, it
// tries them one after the other. The token decides which permit is first, so that different
// callers begin with different permits.
func (l *Locker) Acquire(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	if err := l.check(); err != nil {
		return false, err
	}
	if p := l.queued(key); p != nil {
		permit, err := p.Acquire(ctx, token, ttl)
		if !errors.Is(err, errors.ErrUnsupported) {
			return l.note(key, token, permit, ttl), err
		}
	}
	if acquired, err := l.reacquire(ctx, key, token, ttl); acquired || err != nil {
		return acquired, err
	}
	if l.isAwaited(key) {
		return false, nil
	}
	for k := range l.n {
		acquired, err := l.try(ctx, key, l.nth(token, k), token, ttl)
		if acquired || err != nil {
			return acquired, err
		}
	}
	l.known.forget(key, token)
	return false, nil
}

var seed = maphash.MakeSeed()

// nth returns the kth permit that token tries.
func (l *Locker) nth(token string, k int) int {
	return int((maphash.String(seed, token)%uint64(l.n) + uint64(k)) % uint64(l.n))
}

// try makes one attempt to take permit i. After an error the token may hold permit i, but no other.
func (l *Locker) try(ctx context.Context, key string, i int, token string, ttl time.Duration) (bool, error) {
	l.known.set(key, token, i, ttl)
	return l.inner.Acquire(ctx, permitKey(key, i), token, ttl)
}

// reacquire acquires the permit that token already holds, if any.
func (l *Locker) reacquire(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	i, ok := l.known.get(key, token)
	if !ok || i == none {
		return false, nil
	}
	return l.try(ctx, key, i, token, ttl)
}

// Extend implements [locker.Locker].
func (l *Locker) Extend(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	if p := l.queued(key); p != nil {
		permit, err := p.Extend(ctx, token, ttl)
		if !errors.Is(err, errors.ErrUnsupported) {
			return permit > 0 && l.note(key, token, permit, ttl), err
		}
	}
	return l.with(ctx, key, token, func(i int) (bool, error) {
		extended, err := l.inner.Extend(ctx, permitKey(key, i), token, ttl)
		if extended {
			l.known.set(key, token, i, ttl)
		}
		return extended, err
	})
}

// Release implements [locker.Locker].
func (l *Locker) Release(ctx context.Context, key, token string) (bool, error) {
	if p := l.queued(key); p != nil {
		released, err := p.Release(ctx, token)
		if released {
			l.known.forget(key, token)
		}
		if !errors.Is(err, errors.ErrUnsupported) {
			return released, err
		}
	}
	return l.with(ctx, key, token, func(i int) (bool, error) {
		released, err := l.inner.Release(ctx, permitKey(key, i), token)
		if released {
			l.known.forget(key, token)
		}
		return released, err
	})
}

// Fence implements [locker.Fencer]. The number is greater than all earlier numbers of the same
// permit.
func (l *Locker) Fence(ctx context.Context, key, token string) (fence uint64, ok bool, err error) {
	fencer, ok := l.inner.(locker.Fencer)
	if !ok {
		return 0, false, errors.ErrUnsupported
	}
	ok, err = l.with(ctx, key, token, func(i int) (ok bool, err error) {
		fence, ok, err = fencer.Fence(ctx, permitKey(key, i), token)
		return ok, err
	})
	return fence, ok, err
}

// Forwards implements what [locker.CanFence] asks for.
func (l *Locker) Forwards(method string) locker.Locker {
	if method == "Fence" {
		return l.inner
	}
	return nil
}

// with calls use for the permit that token holds. If that permit is not known, it calls use for
// each permit until a call reports true. If none does, any error leaves the outcome unknown, so
// with returns the first one. After an error it stops when ctx has ended.
func (l *Locker) with(ctx context.Context, key, token string, use func(i int) (bool, error)) (ok bool, err error) {
	if err := l.check(); err != nil {
		return false, err
	}
	switch i, known := l.known.get(key, token); {
	case known && i == none:
		return false, nil
	case known:
		return use(i)
	}
	for k := range l.n {
		ok, useErr := use(l.nth(token, k))
		if ok {
			return true, nil
		}
		if err == nil {
			err = useErr
		}
		if err != nil && ctx.Err() != nil { // each of the others would fail as well
			break
		}
	}
	return false, err
}

// Permit returns the number of the permit of key that token holds, from 1 to N. It returns 0 if
// this Locker has not acquired or extended a permit for token.
func (l *Locker) Permit(key, token string) int {
	if l == nil {
		return 0
	}
	i, ok := l.known.get(key, token)
	if !ok || i == none {
		return 0
	}
	return i + 1
}
