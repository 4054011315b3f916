package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/cmd/locker/internal/backend"
	"github.com/golockers/locker/internal/undo"
	"github.com/golockers/locker/semaphore"
	"golang.org/x/term"
)

// patience bounds a request that only adds to a message, or cleans up.
const patience = 2 * time.Second

// holding is a lock, from its acquisition to its release.
type holding struct {
	backend  *backend.Backend
	flags    runFlags
	observer *extensions
	lease    *locker.Lease
}

// outage is how long waiting goes on while the backend fails, since its last answer. A server that
// restarts is back by then.
const outage = 10 * time.Second

// extensions remembers how the last extension of the lease ended: a lease reports it only when the
// lock is lost. It also reports that the waiting begins.
type extensions struct {
	waiting func()
	waits   atomic.Bool // the backend has answered that the lock is held

	mu   sync.Mutex
	last error
}

// Observe implements [locker.Observer].
func (e *extensions) Observe(_ context.Context, event locker.Event) {
	switch event.Kind {
	case locker.Waiting:
		e.waits.Store(true)
		if e.waiting != nil {
			go e.waiting()
		}
	case locker.Extended, locker.ExtendFailed:
		e.mu.Lock()
		defer e.mu.Unlock()
		e.last = event.Err
	}
}

func (e *extensions) err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.last
}

// acquire takes the lock, or returns an error with a status. A signal that ends processes ends the
// waiting.
func (h *holding) acquire(signals <-chan os.Signal) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if h.flags.wait > 0 {
		ctx, cancel = context.WithTimeout(ctx, h.flags.wait)
		defer cancel()
	}
	if term.IsTerminal(int(os.Stderr.Fd())) {
		h.observer.waiting = func() {
			if h.flags.permits > 0 {
				say("waiting for a permit of %q", h.flags.key)
				return
			}
			say("waiting for the lock %q, held%s", h.flags.key, h.holder())
		}
	}
	acquired := make(chan error, 1)
	go func() { acquired <- h.lock(ctx) }()
	var end os.Signal
	for {
		select {
		case sig := <-signals:
			if isDeadly(sig) && end == nil {
				end = sig
				cancel()
			}
		case err := <-acquired:
			switch {
			case end != nil && err == nil:
				h.abandon()
			case err != nil:
				h.withdraw()
			}
			switch {
			case end != nil:
				return &statusError{status: statusSignal + int(end.(syscall.Signal))}
			case errors.Is(err, locker.ErrHeld):
				return h.held()
			case err != nil:
				return backendError(h.backend, err)
			}
			return nil
		}
	}
}

// lock takes the lock. If the backend fails while it waits, it begins again, until the outage has
// lasted for too long.
func (h *holding) lock(ctx context.Context) (err error) {
	lock := locker.Lock
	if h.flags.skip {
		lock = locker.TryLock
	}
	var since time.Time // the begin of the outage; zero if the backend has never answered
	for {
		l := locker.Observed(locker.Owned(h.backend.Locker, ""), h.observer)
		h.lease, err = lock(ctx, l, h.flags.key, h.flags.ttl, locker.WithKeepAlive(), locker.WithMinHold(h.flags.minHold))
		if h.observer.waits.Swap(false) {
			since = time.Now()
		}
		if err == nil || ctx.Err() != nil || time.Since(since) >= outage {
			return err
		}
		select {
		case <-time.After(outage / 50):
		case <-ctx.Done():
			return err
		}
	}
}

// withdraw waits for what the library does in the background after an acquisition has failed, which
// may hold the lock all the same. A backend that works needs a few milliseconds. If it does not, the
// lock ends with its ttl.
func (h *holding) withdraw() {
	ctx, cancel := context.WithTimeout(context.Background(), patience/4)
	defer cancel()
	_ = undo.Wait(ctx, h.backend.Locker)
}

// held returns the error of a lock that is held elsewhere.
func (h *holding) held() error {
	wait := "; --wait waits for it"
	if h.flags.permits > 0 {
		wait = "; --wait waits for one"
	}
	if !h.flags.skip {
		wait = fmt.Sprintf("; it did not become free within %v", h.flags.wait)
	}
	if n := h.flags.permits; n > 0 {
		wait = strings.Replace(wait, "it did not become", "none became", 1)
		return withStatus(statusHeld, "all %d permits of %q are held%s", n, h.flags.key, wait)
	}
	return withStatus(statusHeld, "the lock %q is held%s%s", h.flags.key, h.holder(), wait)
}

// holder describes who holds the lock, if that is known.
func (h *holding) holder() string {
	inspector, ok := h.backend.Locker.(locker.Inspector)
	if !ok {
		return ""
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	info, err := inspector.Inspect(ctx, h.flags.key)
	if err != nil || info.Token == "" {
		return ""
	}
	return " by " + ownerOf(info.Token) + remaining(info)
}

// environment returns that of the command. It asks for a fencing number, if there are any.
func (h *holding) environment() ([]string, error) {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return name == "LOCKER_KEY" || name == "LOCKER_FENCE" || name == "LOCKER_PERMIT" || name == heldVariable
	})
	held := strings.TrimSpace(os.Getenv(heldVariable) + " " + mark(h.lease.Token()))
	env = append(env, "LOCKER_KEY="+h.flags.key, heldVariable+"="+held)
	if l, ok := h.backend.Locker.(*semaphore.Locker); ok {
		env = append(env, "LOCKER_PERMIT="+strconv.Itoa(l.Permit(h.flags.key, h.lease.Token())))
	}
	ctx, cancel := context.WithTimeout(context.Background(), h.flags.ttl)
	defer cancel()
	fence, err := h.lease.Fence(ctx)
	switch {
	case err == nil:
		return append(env, "LOCKER_FENCE="+strconv.FormatUint(fence, 10)), nil
	case errors.Is(err, errors.ErrUnsupported):
		return env, nil
	case errors.Is(err, locker.ErrNotHeld):
		return nil, withStatus(statusLost, "the lock %q was lost before the command was started: %w", h.flags.key, cause(err))
	}
	h.abandon()
	return nil, backendError(h.backend, err)
}

// abandon releases the lock although --min-hold has not passed: the command was not started. If that
// fails, the lock ends with its ttl.
func (h *holding) abandon() {
	h.lease.Detach()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := h.backend.Locker.Release(ctx, h.flags.key, h.lease.Token()); err != nil {
		say("the lock %q could not be released: %s; it ends within %v", h.flags.key, oneLine(err), h.flags.ttl)
	}
}
