package semaphore

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/golockers/locker"
)

// room is what this process knows about the permits of a key while it has waiters for them.
type room struct {
	locker  *Locker
	key     string
	waiters int           // guarded by the Locker's lock
	turn    chan struct{} // has an element while a waiter has its turn

	woken chan struct{} // for the waiter whose turn it is

	mu      sync.Mutex
	full    bool               // at the last attempt, all permits were taken
	waits   bool               // it was that of a waiter that still has its turn
	permits []permit           // nil until they are watched
	isLeft  bool               // there is no waiter, and will be none
	stop    context.CancelFunc // of the subscriptions; nil before there are any
	pending int                // how many subscriptions are not live yet
	live    chan struct{}      // closed when none is pending
	err     error              // of a permit that cannot be watched
}

// permit is what is known about a permit. Each wake-up changes its version.
type permit struct {
	live    bool // it is being watched
	version int
	taken   time.Time // when an attempt found it taken; zero if none has since the last wake-up
}

// recent is how long a watched permit is not tried again after an attempt found it taken. It is
// less than the pause between the attempts of a waiter that is not woken, so that an expiry is
// noticed.
const recent = 400 * time.Millisecond

const (
	firstWatchDelay = time.Second // before a failed Watch is tried again; doubles each time
	maxWatchDelay   = 30 * time.Second
)

var errLeft = errors.New("the waiter has left")

func (l *Locker) enter(key string) *room {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.rooms[key]
	if r == nil {
		r = &room{
			locker: l, key: key,
			turn: make(chan struct{}, 1), woken: make(chan struct{}, 1), live: make(chan struct{}),
		}
		l.rooms[key] = r
	}
	r.waiters++
	return r
}

func (l *Locker) leave(r *room) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.waiters--
	if r.waiters > 0 {
		return
	}
	delete(l.rooms, r.key)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.isLeft = true
	if r.stop != nil {
		r.stop()
	}
}

// look returns the version of permit i and reports whether it is certainly still taken.
func (r *room) look(i int) (version int, isTaken bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.permits == nil {
		return 0, false
	}
	p := &r.permits[i]
	return p.version, !p.taken.IsZero() && time.Since(p.taken) < recent
}

// refused notes that permit i was taken, unless it may have become free since its version was read.
func (r *room) refused(i, version int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.permits == nil {
		return
	}
	if p := &r.permits[i]; p.live && p.version == version {
		p.taken = time.Now()
	}
}

// tried notes whether a waiter that has its turn has found all permits taken.
func (r *room) tried(full bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.full, r.waits = full, full
}

// wasFull reports whether all permits were taken at the last attempt.
func (r *room) wasFull() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.full
}

// isAwaited reports whether a waiter of this process has its turn and has found all permits taken.
// The next one that becomes free is for that waiter.
func (l *Locker) isAwaited(key string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.rooms[key]
	if r == nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.waits
}

// watch returns the channel of wake-ups once all permits are watched. It may be called after its
// waiter has left.
func (r *room) watch(ctx context.Context, l locker.Watcher) (<-chan struct{}, error) {
	r.mu.Lock()
	if r.isLeft {
		r.mu.Unlock()
		return nil, errLeft
	}
	if r.stop == nil {
		var watchCtx context.Context
		watchCtx, r.stop = context.WithCancel(context.Background())
		r.permits = make([]permit, r.locker.n) // each has refused an attempt, so n is not absurd
		r.pending = len(r.permits)
		for i := range r.permits {
			go r.follow(watchCtx, l, i)
		}
	}
	r.mu.Unlock()
	select {
	case <-r.live:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.woken, r.err
}

// follow watches permit i until ctx ends.
func (r *room) follow(ctx context.Context, l locker.Watcher, i int) {
	for delay := firstWatchDelay; ; delay = min(2*delay, maxWatchDelay) {
		woken, err := l.Watch(ctx, permitKey(r.key, i))
		switch {
		case err == nil:
			r.isLive(i, nil)
			for {
				select {
				case <-woken:
					r.freed(i)
				case <-ctx.Done():
					return
				}
			}
		case errors.Is(err, errors.ErrUnsupported):
			r.isLive(i, err)
			return
		}
		timer := time.NewTimer(delay)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// isLive notes that permit i is watched, or that it cannot be watched because of err.
func (r *room) isLive(i int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		r.permits[i].live = true
		r.permits[i].version++
	} else {
		r.err = err
	}
	if r.pending--; r.pending == 0 {
		close(r.live)
	}
}

// freed notes that permit i may be free, and wakes the waiter whose turn it is.
func (r *room) freed(i int) {
	r.mu.Lock()
	r.permits[i].version++
	r.permits[i].taken = time.Time{}
	r.mu.Unlock()
	select {
	case r.woken <- struct{}{}:
	default:
	}
}
