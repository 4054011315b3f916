package locker

import (
	"context"
	"errors"
	"hash/maphash"
	"time"

	"github.com/golockers/locker/internal/inflight"
	"github.com/golockers/locker/internal/line"
	"github.com/golockers/locker/internal/waithook"
)

// This file is how a caller waits where the backend has no queue. The callers of a process that wait
// for the same lock of the same Locker stand in a line, and only the first of them polls.

// lines has the lines of all Lockers, in shards.
var (
	lines    [64]line.Lines[polled, turn]
	lineSeed = maphash.MakeSeed()
)

type polled struct {
	locker Locker // nil in a line of one
	key    string
}

type place = line.Place[polled, turn]

// turn is what the first of a line has, and hands on.
type turn struct {
	taken bool // the one before has just acquired the lock
	push  push
}

// join takes a place in the line for the lock of key. A Locker that cannot be the key of a map has
// no lines: each of its callers is the first of its own.
func join(l Locker, key string) *place {
	if !isSame(l, l) {
		return new(line.Lines[polled, turn]).Join(polled{key: key})
	}
	return lines[maphash.String(lineSeed, key)%uint64(len(lines))].Join(polled{l, key})
}

func isFirst(p *place) bool {
	select {
	case <-p.Turn():
		return p.Err() == nil
	default:
		return false
	}
}

func (a *acquisition) poll(ctx context.Context) error {
	p := join(a.locker, a.key)
	defer a.leave(ctx, p)
	if acquired, err := a.stand(ctx, p); acquired || err != nil {
		return err
	}
	return a.contend(ctx, p, p.State())
}

// stand waits until the caller is the first of its line, or the line has failed.
func (a *acquisition) stand(ctx context.Context, p *place) (acquired bool, err error) {
	if isFirst(p) {
		return false, nil
	}
	if a.opts.hasToken { // which may be the holder's: that one must not wait for itself
		if acquired, err := a.attempt(ctx); acquired || err != nil {
			return acquired, err
		}
	}
	waithook.Call(ctx)
	select {
	case <-p.Turn():
	case <-ctx.Done():
	}
	a.refused = a.refused || p.Refused()
	if err := ctx.Err(); err != nil {
		return false, a.giveUp(ctx, err)
	}
	return false, p.Err()
}

// contend is for the first of a line. It tries again after each delay. On a Watcher it also
// subscribes. Once the watch is live, it tries at once, since it has missed any release before
// that. From then on it tries when woken and, less often, after a delay, since an expiry wakes no
// watcher. Whatever goes wrong with the watch, polling goes on.
func (a *acquisition) contend(ctx context.Context, p *place, t *turn) error {
	backoff := a.opts.backoff
	switch {
	case backoff != nil:
	case t.push.woken != nil:
		backoff = safetyBackoff
	default:
		backoff = pollBackoff
	}
	for attempt := 1; ; attempt++ {
		if t.taken { // a first attempt would be refused, too
			t.taken, a.refused = false, true
		} else {
			acquired, err := a.attempt(ctx)
			if acquired {
				t.taken = true
				p.Refuse() // the others
			}
			if acquired || err != nil {
				return err
			}
		}
		if attempt == 1 {
			p.Refuse()
			waithook.Call(ctx)
			t.push.subscribe(ctx, a.locker, a.key)
		}
		live := t.push.sleep(ctx, backoff(attempt))
		if err := ctx.Err(); err != nil {
			return a.giveUp(ctx, err)
		}
		if live && a.opts.backoff == nil {
			backoff, attempt = safetyBackoff, 0
		}
	}
}

// leave gives up the place. An error of the backend is that of the whole line; one of the caller's
// own context or arguments is not. The last one ends the watch.
func (a *acquisition) leave(ctx context.Context, p *place) {
	if a.failure != nil && !hasEnded(ctx) && !isInvalid(a.failure) && isFirst(p) {
		t := p.State()
		p.Fail(a.failure)
		a.end(ctx, &t.push)
	} else if p.Leave() {
		a.end(ctx, &p.State().push)
	}
}

// hasEnded reports whether ctx has ended, even if its timer has not fired yet: a client that has ctx's
// deadline as its own may fail a moment before.
func hasEnded(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && !time.Now().Before(deadline)
}

// end ends a watch, even one that has not returned. If it has panicked, that is the caller's panic.
// The caller then has no lease, so the lock is released if it was taken.
func (a *acquisition) end(ctx context.Context, p *push) {
	if p.cancel == nil {
		return
	}
	p.cancel()
	if p.ready == nil || p.watch.Leave(nil) {
		return
	}
	defer func() {
		if v := recover(); v != nil {
			a.cleanUp(ctx, nil)
			panic(v)
		}
	}()
	_, _ = p.watch.Result()
}

// push is a watch that is being set up while its waiter polls. The zero push is none.
type push struct {
	cancel context.CancelFunc // nil if there is no watch
	watch  *inflight.Apart[<-chan struct{}]
	ready  <-chan struct{} // closed when watch has its outcome; nil when that is known
	woken  <-chan struct{} // nil until the watch is live
}

const (
	firstWatchDelay = time.Second // before a Watch that failed is tried again, and twice that then
	maxWatchDelay   = 30 * time.Second
)

// subscribe begins the watch if l is a Watcher and p has none. It does not end with ctx, since the
// next caller takes it over.
func (p *push) subscribe(ctx context.Context, l Locker, key string) {
	w, ok := l.(Watcher)
	if !ok || p.cancel != nil {
		return
	}
	ctx, p.cancel = context.WithCancel(context.WithoutCancel(ctx))
	p.watch = inflight.Go(func() (<-chan struct{}, error) {
		for delay := firstWatchDelay; ; delay = min(2*delay, maxWatchDelay) {
			woken, err := w.Watch(ctx, key)
			if err == nil || errors.Is(err, errors.ErrUnsupported) || !sleep(ctx, delay) {
				return woken, err
			}
		}
	})
	p.ready = p.watch.Done()
}

// sleep returns after d, when ctx ends, when woken, or when the watch has become live, which it
// reports.
func (p *push) sleep(ctx context.Context, d time.Duration) (live bool) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
		case <-p.woken:
		case <-p.ready:
			p.ready = nil
			woken, err := p.watch.Result()
			if err != nil {
				continue
			}
			p.woken, live = woken, true
		}
		return live
	}
}
