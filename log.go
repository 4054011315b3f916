package locker

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// This file is the Observer that writes a log.

// LogObserver returns an Observer that logs each event with its key, time and error: Failed, Lost,
// UnlockFailed, NotCleanedUp and Overdue at level Warn, and the others at level Debug. A nil logger
// means [slog.Default].
//
// While extensions fail, as in an outage, it logs the first failure at level Warn, one line a minute
// with the number of failures since, and one when the locks that failed have been extended or have
// ended. Failures in between are logged at level Debug.
func LogObserver(logger *slog.Logger) Observer { return &logObserver{logger: logger} }

const (
	outagePeriod = time.Minute // between two lines of an outage; without a failure for as long, it is over
	maxFailing   = 4096        // keys that are remembered during an outage
)

type logObserver struct {
	logger *slog.Logger
	outage atomic.Bool // failing has a key: while it has none, no event takes the lock

	mu      sync.Mutex
	failing map[string]bool // the keys of locks whose last extension failed
	began   time.Time       // the outage
	said    time.Time       // the last line about it
	last    time.Time       // the last failure
	failed  int             // extensions since said
}

func (o *logObserver) Observe(ctx context.Context, e Event) {
	logger, level := o.logger, slog.LevelDebug
	if logger == nil {
		logger = slog.Default()
	}
	var text string
	var about []slog.Attr
	switch e.Kind {
	case Failed, Lost, UnlockFailed, NotCleanedUp, Overdue:
		level = slog.LevelWarn
	case ExtendFailed:
		begins := false
		if begins, about = o.fail(e.Key); begins || about != nil {
			level = slog.LevelWarn
		}
		if about != nil {
			text = "lock extensions still fail"
		}
	}
	if logger.Enabled(ctx, level) {
		if text == "" {
			text = "lock " + e.Kind.String()
		}
		attrs := make([]slog.Attr, 2, 5)
		attrs[0], attrs[1] = slog.String("key", e.Key), slog.Duration("took", e.Took)
		if e.Err != nil {
			attrs = append(attrs, slog.Any("err", e.Err))
		}
		logger.LogAttrs(ctx, level, text, append(attrs, about...)...)
	}
	switch e.Kind {
	case Extended, Lost, Unlocked, UnlockFailed, Detached:
		if about := o.end(e.Key); about != nil {
			logger.LogAttrs(ctx, slog.LevelWarn, "lock extensions no longer fail", about...)
		}
	}
}

// fail notes a failed extension. It reports whether an outage begins with it, or returns what to say
// about the one that goes on, or nil if that was said less than a minute ago.
func (o *logObserver) fail(key string) (begins bool, about []slog.Attr) {
	now := time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	if now.Sub(o.last) >= outagePeriod { // those that failed have been forgotten by their callers
		o.failing = nil
	}
	begins = len(o.failing) == 0
	switch {
	case begins:
		o.failing = make(map[string]bool)
		o.began, o.said, o.failed = now, now, 0
		o.outage.Store(true)
	case now.Sub(o.said) >= outagePeriod:
		o.failed++
		about = o.aboutLocked(now)
	default:
		o.failed++
	}
	if len(o.failing) < maxFailing {
		o.failing[key] = true
	}
	o.last = now
	return begins, about
}

// end notes that a lock was extended or has ended. If the outage ends with it, end returns what to
// say about that.
func (o *logObserver) end(key string) (about []slog.Attr) {
	if !o.outage.Load() {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.failing) == 0 {
		return nil
	}
	delete(o.failing, key)
	now := time.Now()
	if len(o.failing) > 0 && now.Sub(o.last) < outagePeriod {
		return nil
	}
	o.failing = nil
	o.outage.Store(false)
	return o.aboutLocked(now)
}

func (o *logObserver) aboutLocked(now time.Time) []slog.Attr {
	about := []slog.Attr{slog.Int("failures", o.failed), slog.Duration("since", now.Sub(o.began))}
	o.said, o.failed = now, 0
	return about
}
