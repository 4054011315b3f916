package locker

// How WithRetry goes on after an error of the backend.

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"reflect"
	"sync"
	"time"

	"github.com/golockers/locker/internal/line"
	"github.com/golockers/locker/internal/waithook"
)

// retries has the lines of callers whose waiting has failed, in shards. An error of the backend is
// that of a whole line of waiters, and each of them would try again by itself. Here they try one after
// the other: one whose try has failed goes to the end, since the reason may be its own. As soon as
// the backend has answered one of them, all wait for the lock as before.
var retries [64]line.Lines[polled, retry]

// retry is what the first of a line has, and hands on.
type retry struct {
	failures int       // tries in a row that failed promptly
	due      time.Time // when to try; zero: the line begins
}

// prompt is how long the others wait for the outcome of a try. One that takes longer may be waiting for
// the lock, in the queue of a Waiter that does not say so, or for an answer that was lost.
const prompt = time.Second

// fail notes that a try has failed.
func (r *retry) fail() {
	r.failures++
	r.due = time.Now().Add(retryBackoff(r.failures))
}

// errWorks ends a line: the backend works.
var errWorks = errors.New("the backend works again")

// retryLines returns where the callers who retry for the lock of key stand, as join does.
func retryLines(l Locker, key string) (*line.Lines[polled, retry], polled) {
	if !isSame(l, l) {
		return new(line.Lines[polled, retry]), polled{key: key}
	}
	return &retries[maphash.String(lineSeed, key)%uint64(len(retries))], polled{l, key}
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
	if err != nil && a.opts.retry && !isInvalid(err) { // ctx has ended, perhaps after the error
		err = a.giveUp(ctx, err)
		if last != nil && (!reflect.ValueOf(last).Comparable() || !errors.Is(err, last)) { // which panics otherwise
			err = fmt.Errorf("%w; an earlier try failed: %w", err, last)
		}
	}
	return err
}

// retry waits for its turn to try, or until another has found that the backend works. It returns the
// outcome of the last try, and leaves the error of the one before that in last.
func (a *acquisition) retry(ctx context.Context, last *error) error {
	lines, key := retryLines(a.locker, a.key)
	p := lines.Join(key)
	defer func() { p.Leave() }()
	for {
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
			s.fail()
		}
		if !sleep(ctx, time.Until(s.due)) {
			return a.giveUp(ctx, *last)
		}
		t := &trial{Context: ctx, place: p}
		isOver, err := t.run(a)
		switch {
		case isOver:
			return err
		case err == nil:
			p.Fail(errWorks)
			return nil
		case isInvalid(err):
			return err
		}
		s.fail()
		if ctx.Err() != nil {
			return err
		}
		a.obs.wait(err)
		*last = err
		again := lines.Join(key) // before it leaves, so that the line goes on if nobody else is in it
		p.Leave()
		p = again
	}
}

// trial is the context of a try by the first of a line.
type trial struct {
	context.Context
	place *line.Place[polled, retry]
	turn  sync.Once // done when the turn is over
}

// run makes the try. It reports whether the turn ended before the try did, so that the line has failed
// or the next one has its turn.
func (t *trial) run(a *acquisition) (isOver bool, err error) {
	timer := time.AfterFunc(prompt, func() {
		t.turn.Do(func() {
			t.place.State().failures = 0
			t.place.Leave()
		})
	})
	defer func() {
		timer.Stop()
		isOver = true
		t.turn.Do(func() { isOver = false })
	}()
	a.token = a.opts.newToken()
	return false, a.wait(t)
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
	t.turn.Do(func() { t.place.Fail(errWorks) })
	waithook.Call(t.Context)
}
