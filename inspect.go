package locker

// Who holds a lock: Info, and the optional interfaces for it.

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"
)

// Inspector is a Locker that reports who holds a lock. It is for operators and tools: another
// process may change the lock before the answer arrives, so do not use it to decide whether to
// acquire the lock.
type Inspector interface {
	Locker

	// Inspect reports the state of the lock of key and changes nothing. A value that the Locker
	// recognizes as not its own is an error, as in C11. With an error the Info has only the key.
	Inspect(ctx context.Context, key string) (Info, error)
}

// Lister is a Locker that enumerates the locks that are held.
type Lister interface {
	Locker

	// List yields the locks that are held and whose keys begin with prefix, each once and in no
	// particular order. A lock that is acquired or released meanwhile may be left out. An error
	// that comes with the Info of a key concerns that key alone, and the iteration goes on; an
	// error without a key ends it. The error wraps [errors.ErrUnsupported] if this server cannot
	// enumerate. The body of the loop may call the Locker, for instance to release what is listed.
	List(ctx context.Context, prefix string) iter.Seq2[Info, error]
}

// Info is the state of a lock at some moment.
type Info struct {
	Key     string
	Token   string        // of the holder; empty if the lock is free
	TTL     time.Duration // left to the holder; negative if there is no expiry or it is not known
	Waiters int           // places in the backend's queue, one for each process; -1 if not known
}

// Break takes the lock of key away from its holder: it releases the lock with the holder's token.
// Waiters are woken and served as by any release. The holder, if it is alive, notices when its next
// extension is refused, so what it does under the lock may overlap with the next holder's work.
//
// Break returns the lock as it was. The error is [ErrNotHeld] if the lock is free, or if the
// holder has changed before the release, and [errors.ErrUnsupported] if l is not an [Inspector].
func Break(ctx context.Context, l Locker, key string) (Info, error) {
	info, err := breakLock(ctx, l, key)
	if err != nil {
		return info, wrap("break", key, err)
	}
	return info, nil
}

func breakLock(ctx context.Context, l Locker, key string) (Info, error) {
	if err := checkKey(l, key); err != nil {
		return Info{}, err
	}
	inspector, ok := l.(Inspector)
	if !ok {
		return Info{}, fmt.Errorf("%T does not report holders: %w", l, errors.ErrUnsupported)
	}
	info, err := inspector.Inspect(ctx, key)
	if err != nil {
		return info, err
	}
	if info.Token == "" {
		return info, ErrNotHeld
	}
	released, err := l.Release(ctx, key, info.Token)
	if err == nil && !released {
		err = ErrNotHeld
	}
	return info, err
}
