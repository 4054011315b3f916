package locker

// How WithRetry goes on after an error of the backend.

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"time"

	"github.com/golockers/locker/internal/line"
	"github.com/golockers/locker/internal/waithook"
)

// retries has the lines of callers whose waiting has failed, in shards. An error of the backend is
// that of a whole line of waiters, and each of them would try again by itself. Here the first tries
// for all. As soon as the backend has refused it, all wait for the lock as before.
var retries [64]line.Lines[polled, retry]

// retry is what the first of a line has, and hands on.
type retry struct {
	failures int       // tries in a row that failed promptly
	due      time.Time // when to try; zero: the line begins
}

// fail notes that a try has failed that began then.
func (r *retry) fail(began time.Time) {
	if r.failures++; time.Since(began) > time.Second {
		r.failures = 1
	}
	r.due = time.Now().Add(retryBackoff(r.failures))
}

// errWorks ends a line: the backend works.
var errWorks = errors.New("the backend works again")

func joinRetries(l Locker, key string) *line.Place[polled, retry] {
	if !isSame(l, l) { // as in join
		return new(line.Lines[polled, retry]).Join(polled{key: key})
	}
	return retries[maphash.String(lineSeed, key)%uint64(len(retries))].Join(polled{l, key})
}

// persist waits, and with WithRetry does so again after a backend error.
func (a *acquisition) persist(ctx context.Context) error {
	var last error // of the backend, from an earlier try
	err := a.wait(ctx)
	for err != nil && a.opts.retry && !isInvalid(err) && ctx.Err() == nil {
		a.obs.wait(err)
		last = err
		err = a.retry(ctx, &last)
	}
	if err != nil && last != nil && ctx.Err() != nil {
		if err = a.giveUp(ctx, err); !errors.Is(err, last) {
			err = fmt.Errorf("%w; an earlier try failed: %w", err, last)
		}
	}
	return err
}

// retry waits for its turn to try, or until another has found that the backend works. It returns the
// outcome of the last try, and leaves the error of the one before that in last.
func (a *acquisition) retry(ctx context.Context, last *error) error {
	p := joinRetries(a.locker, a.key)
	defer p.Leave()
	select {
	case <-p.Turn():
	case <-ctx.Done():
		return a.giveUp(ctx, *last)
	}
	if p.Err() != nil {
		a.token = a.opts.newToken()
		return a.wait(ctx)
	}
	s := p.State()
	if s.due.IsZero() {
		s.fail(time.Now())
	}
	for {
		if !sleep(ctx, time.Until(s.due)) {
			return a.giveUp(ctx, *last)
		}
		began := time.Now()
		a.token = a.opts.newToken()
		t := &trial{Context: ctx, place: p}
		err := a.wait(t)
		refused := t.end()
		switch {
		case err == nil || isInvalid(err):
			s.due = began // the next one tries at once
			return err
		case ctx.Err() != nil || refused:
			return err
		}
		a.obs.wait(err)
		*last = err
		s.fail(began)
	}
}

// trial is the context of a try by the first of a line.
type trial struct {
	context.Context
	place *line.Place[polled, retry]

	mu      sync.Mutex
	isOver  bool
	refused bool
}

// Value implements [context.Context].
func (t *trial) Value(key any) any {
	if key == (waithook.Key{}) {
		return t
	}
	return t.Context.Value(key)
}

// NoteWaiting implements [waithook.Hook].
func (t *trial) NoteWaiting() {
	t.mu.Lock()
	if !t.isOver && !t.refused {
		t.refused = true
		t.place.Fail(errWorks)
	}
	t.mu.Unlock()
	waithook.Call(t.Context)
}

// end ends the trial, and reports whether it was refused.
func (t *trial) end() (refused bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.isOver = true
	return t.refused
}
