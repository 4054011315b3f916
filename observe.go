package locker

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/golockers/locker/internal/waithook"
)

// Observer is called for each [Event] of a Locker that [Observed] returned. It is safe for concurrent use.
//
// Observe is called by the goroutine that acquires, extends or unlocks, and for the keep-alive, a loss and a
// cleanup by one in the background. It holds none of this package's locks, so it may use the lease, but the
// caller waits for it: a slow Observer makes locks slow, and one that panics does so in that goroutine. ctx has
// the values of the caller's context, or of the acquisition's in the background, and may have ended.
type Observer interface {
	Observe(ctx context.Context, e Event)
}

// Event is what became of an acquisition or a lease.
type Event struct {
	Kind EventKind
	Key  string

	// Took is the time since the acquisition began, for Waiting, Acquired, Refused, Failed and CleanedUp. For
	// the others it is the time that the lock has been held.
	Took time.Duration

	// Err is the reason of Refused, Failed, ExtendFailed, Lost and UnlockFailed. It may be that of Waiting.
	Err error
}

// EventKind is the kind of an [Event].
type EventKind uint8

const (
	// Waiting: an acquisition was refused for the first time and now waits. With [WithRetry] the reason may be
	// a backend error. A [Waiter] that is not of this module does not report when it begins to wait.
	Waiting EventKind = iota + 1

	// Acquired: an acquisition has the lock. [Resume] is one, too. Each acquisition whose arguments were valid
	// ends with one of Acquired, Refused and Failed.
	Acquired

	// Refused: another holds the lock. TryLock or TryDo was refused, or ctx ended while Lock was waiting.
	Refused

	// Failed: any other error ended an acquisition.
	Failed

	// Extended: the keep-alive or the caller extended the lock.
	Extended

	// ExtendFailed: an extension got an error. The lease is held until its deadline.
	ExtendFailed

	// Lost: the lease is lost. It is reported at most once for each lease, and on time if the lease has a
	// keep-alive or a context of [Lease.Context], or its Lost was called, and otherwise by the next call of one
	// of its methods.
	Lost

	// Unlocked: the lock was released.
	Unlocked

	// UnlockFailed: Unlock returned an error, [ErrNotHeld] among others. It may be called again.
	UnlockFailed

	// Detached: the lease was given up and the lock is still held, by Detach or by an Unlock [WithMinHold].
	Detached

	// CleanedUp: after a Failed acquisition that had taken the lock all the same, it was released in the
	// background. A cleanup that finds nothing is not reported.
	CleanedUp
)

var kindNames = [...]string{
	Waiting: "waiting", Acquired: "acquired", Refused: "refused", Failed: "failed", Extended: "extended",
	ExtendFailed: "extend failed", Lost: "lost", Unlocked: "unlocked", UnlockFailed: "unlock failed",
	Detached: "detached", CleanedUp: "cleaned up",
}

// String returns the kind in lower case, for instance "extend failed".
func (k EventKind) String() string {
	if k == 0 || int(k) >= len(kindNames) {
		return "unknown"
	}
	return kindNames[k]
}

// LogObserver returns an Observer that logs each event with its key, the time it took and its error. Failed,
// ExtendFailed, Lost and UnlockFailed are warnings, and all others are logged for debugging. A nil logger is
// [slog.Default].
func LogObserver(logger *slog.Logger) Observer { return logObserver{logger} }

type logObserver struct{ logger *slog.Logger }

func (o logObserver) Observe(ctx context.Context, e Event) {
	logger, level := o.logger, slog.LevelDebug
	if logger == nil {
		logger = slog.Default()
	}
	switch e.Kind {
	case Failed, ExtendFailed, Lost, UnlockFailed:
		level = slog.LevelWarn
	}
	if !logger.Enabled(ctx, level) {
		return
	}
	attrs := make([]slog.Attr, 2, 3)
	attrs[0], attrs[1] = slog.String("key", e.Key), slog.Duration("took", e.Took)
	if e.Err != nil {
		attrs = append(attrs, slog.Any("err", e.Err))
	}
	logger.LogAttrs(ctx, level, "lock "+e.Kind.String(), attrs...)
}

// observation reports the events of one acquisition and its lease. It is also the context of the acquisition's
// Wait, which finds it there to note that it waits. A nil observation reports nothing.
type observation struct {
	context.Context // the acquisition's
	observer        Observer
	key             string
	began           time.Time   // the acquisition
	acquired        time.Time   // the lock
	waits           atomic.Bool // Waiting was reported, or must not be any more
}

// observe begins the observation of an acquisition, and returns the context for it. Without an observer
// it is nil.
func observe(ctx context.Context, o Observer, key string) (context.Context, *observation) {
	if o == nil {
		return ctx, nil
	}
	obs := &observation{Context: ctx, observer: o, key: key, began: time.Now()}
	return obs, obs
}

// Value implements [context.Context].
func (o *observation) Value(key any) any {
	if key == (waithook.Key{}) {
		return o
	}
	return o.Context.Value(key)
}

// NoteWaiting implements [waithook.Hook].
func (o *observation) NoteWaiting() {
	o.wait(nil)
	waithook.Call(o.Context) // the Locker may be wrapped in one that is observed as well
}

func (o *observation) wait(err error) {
	if o != nil && !o.waits.Swap(true) {
		o.observer.Observe(o.Context, Event{Waiting, o.key, time.Since(o.began), err})
	}
}

// end reports how the acquisition ended.
func (o *observation) end(err error) {
	if o == nil {
		return
	}
	o.waits.Store(true)
	now := time.Now()
	e := Event{acquisitionKind(err), o.key, now.Sub(o.began), err}
	if err == nil {
		o.acquired = now
	}
	o.observer.Observe(o.Context, e)
}

func (o *observation) cleanedUp() {
	if o != nil {
		o.observer.Observe(o.background(), Event{CleanedUp, o.key, time.Since(o.began), nil})
	}
}

// lease reports an event of the lease.
func (o *observation) lease(ctx context.Context, kind EventKind, err error) {
	if o != nil {
		o.observer.Observe(ctx, Event{kind, o.key, time.Since(o.acquired), err})
	}
}

// background returns the context for events that no caller waits for.
func (o *observation) background() context.Context {
	if o == nil {
		return nil
	}
	return context.WithoutCancel(o.Context)
}
