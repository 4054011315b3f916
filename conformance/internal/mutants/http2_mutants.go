package mutants

import (
	"context"
	"fmt"
	"io"
	"iter"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance/internal/harness"
)

// HTTP2 returns the mutants on a server that speaks HTTP/2. On a busy machine net/http may open
// another connection, or end one whose first frames are late, which these checks do not allow.
func HTTP2() []Mutant {
	all := http2Mutants()
	for i := range all {
		all[i].May = append(slices.Clone(all[i].May), "fault/push-refused", "fault/push-hangs", "fault/abandoned-waiter")
	}
	return all
}

func http2Mutants() []Mutant {
	faults := []string{"fault/*"} // the other checks need no proxy
	return []Mutant{{
		Name:   "HTTP/2: release by reading, comparing and deleting",
		Only:   faults,
		Config: onHTTP2Patched(func(l http2Lock, p *http2Patched) { p.release = l.releaseInTwo }),
		Must:   []string{"fault/release-paused", "fault/garbage-reply"},
		May:    []string{"fault/truncated-reply"},
	}, {
		Name:   "HTTP/2: extend by reading, deleting and acquiring",
		Only:   faults,
		Config: onHTTP2Patched(func(l http2Lock, p *http2Patched) { p.extend = l.extendInTwo }),
		Must:   []string{"fault/extend-paused"},
		May:    faults,
	}, {
		Name:   "HTTP/2: acquire by reading, then taking the lock from whoever has it",
		Only:   faults,
		Config: onHTTP2Patched(func(l http2Lock, p *http2Patched) { p.acquire = l.acquireInTwo }),
		Must:   []string{"fault/acquire-paused"},
		May:    faults,
	}, {
		Name:   "HTTP/2: error as false",
		Only:   faults,
		Config: onHTTP2Through(errorAsFalse),
		Must: []string{
			"fault/acquire-reply-lost", "fault/connection-refused", "fault/extend-reply-lost", "fault/garbage-reply",
			"fault/truncated-reply", "fault/release-reply-lost", "fault/reset-mid-request",
		},
		May: faults,
	}, {
		Name:   "HTTP/2: all that is not true is false",
		Only:   faults,
		Config: onHTTP2Patched(func(l http2Lock, p *http2Patched) { p.release = l.releaseCarelessly }),
		Must:   []string{"fault/garbage-reply", "fault/truncated-reply"},
	}, {
		Name:   "HTTP/2: a late acquire that no release undoes",
		Only:   faults,
		Config: onHTTP2Patched(func(_ http2Lock, p *http2Patched) { p.remember() }),
		Must:   []string{"fault/late-acquire-cleanup"},
		May:    faults,
	}, {
		Name:   "HTTP/2: acquire for long, then extend",
		Only:   faults,
		Config: onHTTP2Patched(func(l http2Lock, p *http2Patched) { p.acquire = l.acquireForLong }),
		Must:   []string{"fault/late-acquire"},
		May:    []string{"fault/late-acquire-released", "fault/acquire-retried-late", "fault/takeover-paused"},
	}, {
		Name:   "HTTP/2: acquire again in the background",
		Only:   faults,
		Config: onHTTP2Patched(func(l http2Lock, p *http2Patched) { p.acquire = l.acquireRepeatedly }),
		Must:   []string{"fault/late-acquire"},
		May:    faults,
	}, {
		Name:   "HTTP/2: context not passed on",
		Only:   faults,
		Config: onHTTP2Through(withoutContext),
		Must:   []string{"fault/hang-cancel", "fault/hang-deadline", "fault/reply-after-cancel"},
		May:    []string{"fault/late-acquire", "fault/late-acquire-released", "fault/late-acquire-cleanup"},
	}, {
		Name:   "HTTP/2: a list that ends at its first error",
		Only:   faults,
		Config: OnHTTP2(func(l http2Lock) locker.Locker { return listsUntilBroken{l} }),
		Must:   []string{"fault/list-unanswered"},
		May:    []string{"fault/hang-deadline", "fault/hang-cancel"},
	}, {
		Name:   "HTTP/2: watch that ends with its stream",
		Only:   faults,
		Config: OnHTTP2(func(l http2Lock) locker.Locker { return watchUntilBroken{l} }),
		Must:   []string{"fault/watch-disconnect"},
	}, {
		Name:   "HTTP/2: wait that relies on one response, and believes it",
		Only:   faults,
		Config: OnHTTP2(func(l http2Lock) locker.Locker { return waitsCredulously{l} }),
		Must:   []string{"fault/delayed-grant", "fault/push-silent"},
		May:    []string{"fault/wait-disconnect", "fault/wait-reply-lost"},
	}}
}

// http2Patched is an http2Lock of which some methods are others.
type http2Patched struct {
	http2Lock
	acquire, extend func(ctx context.Context, key, token string, ttl time.Duration) (bool, error)
	release         func(ctx context.Context, key, token string) (bool, error)
}

func (p http2Patched) Acquire(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return p.acquire(ctx, key, token, ttl)
}

func (p http2Patched) Extend(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return p.extend(ctx, key, token, ttl)
}

func (p http2Patched) Release(ctx context.Context, key, token string) (bool, error) {
	return p.release(ctx, key, token)
}

func onHTTP2Patched(patch func(l http2Lock, p *http2Patched)) func(tb testing.TB) harness.Config {
	return OnHTTP2(func(l http2Lock) locker.Locker {
		p := http2Patched{l, l.Acquire, l.Extend, l.Release}
		patch(l, &p)
		return p
	})
}

// onHTTP2Through is the configuration of an http2Lock whose operations go through a function.
func onHTTP2Through(through func(ctx context.Context, do func(context.Context) (bool, error)) (bool, error)) func(tb testing.TB) harness.Config {
	return onHTTP2Patched(func(l http2Lock, p *http2Patched) {
		p.acquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
			return through(ctx, func(ctx context.Context) (bool, error) { return l.Acquire(ctx, key, token, ttl) })
		}
		p.extend = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
			return through(ctx, func(ctx context.Context) (bool, error) { return l.Extend(ctx, key, token, ttl) })
		}
		p.release = func(ctx context.Context, key, token string) (bool, error) {
			return through(ctx, func(ctx context.Context) (bool, error) { return l.Release(ctx, key, token) })
		}
	})
}

func (l http2Lock) releaseInTwo(ctx context.Context, key, token string) (bool, error) {
	return leaving(ctx, l, token, func(ctx context.Context) (bool, error) {
		holder, err := l.ask(ctx, "holder", key, "", 0)
		if err != nil || holder != token {
			return false, err
		}
		return l.asks(ctx, "delete", key, "", 0)
	})
}

func (l http2Lock) extendInTwo(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return leaving(ctx, l, token, func(ctx context.Context) (bool, error) {
		holder, err := l.ask(ctx, "holder", key, "", 0)
		if err != nil || holder != token {
			return false, err
		}
		if _, err := l.asks(ctx, "delete", key, "", 0); err != nil {
			return false, err
		}
		return l.asks(ctx, "acquire", key, token, ttl)
	})
}

// acquireInTwo takes a lock that it has found free, whoever has it by then.
func (l http2Lock) acquireInTwo(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return leaving(ctx, l, token, func(ctx context.Context) (bool, error) {
		holder, err := l.ask(ctx, "holder", key, "", 0)
		if err != nil || holder != "" && holder != token {
			return false, err
		}
		ok, err := l.asks(ctx, "acquire", key, token, ttl)
		if err != nil || ok {
			return ok, err
		}
		if _, err := l.asks(ctx, "delete", key, "", 0); err != nil {
			return false, err
		}
		return l.asks(ctx, "acquire", key, token, ttl)
	})
}

// releaseCarelessly takes part of a response for all of it.
func (l http2Lock) releaseCarelessly(ctx context.Context, key, token string) (bool, error) {
	return leaving(ctx, l, token, func(ctx context.Context) (bool, error) {
		body, err := l.post(ctx, "release", key, token, 0)
		if err != nil {
			return false, err
		}
		defer body.Close()
		text, _ := io.ReadAll(body)
		return string(text) == "true", nil
	})
}

// remember releases only for tokens that have acquired a lock.
func (p *http2Patched) remember() {
	var known sync.Map
	acquire, release := p.acquire, p.release
	p.acquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
		ok, err := acquire(ctx, key, token, ttl)
		if ok {
			known.Store([2]string{key, token}, true)
		}
		return ok, err
	}
	p.release = func(ctx context.Context, key, token string) (bool, error) {
		if _, ok := known.Load([2]string{key, token}); !ok {
			return false, ctx.Err()
		}
		return release(ctx, key, token)
	}
}

// acquireForLong sets the remaining time in a second request.
func (l http2Lock) acquireForLong(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	ok, err := l.Acquire(ctx, key, token, max(ttl, time.Hour))
	if err != nil || !ok || ttl >= time.Hour {
		return ok, err
	}
	return l.Extend(ctx, key, token, ttl)
}

// acquireRepeatedly goes on in the background after the caller has given up.
func (l http2Lock) acquireRepeatedly(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	ok, err := l.Acquire(ctx, key, token, ttl)
	if err != nil && over(ctx) != nil {
		go func() {
			for err := error(nil); err == nil; time.Sleep(2 * time.Millisecond) {
				_, err = l.Acquire(context.WithoutCancel(ctx), key, token, ttl)
			}
		}()
	}
	return ok, err
}

// watchUntilBroken does not subscribe again.
type watchUntilBroken struct{ http2Lock }

func (l watchUntilBroken) Watch(ctx context.Context, key string) (<-chan struct{}, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	stream, err := l.subscribe(ctx, key)
	if err != nil {
		return nil, err
	}
	ch := make(chan struct{}, 1)
	go func() {
		for err := error(nil); err == nil; {
			if _, err = stream.ReadByte(); err == nil {
				poke(ch)
			}
		}
	}()
	return ch, nil
}

// waitsCredulously takes a response for the lock, from when it came.
type waitsCredulously struct{ http2Lock }

func (l waitsCredulously) Wait(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
	start := time.Now()
	if ok, err := l.Acquire(ctx, key, token, ttl); ok || err != nil {
		return start.Add(ttl), err
	}
	_, err := l.asks(ctx, "wait", key, token, ttl)
	if ctx.Err() != nil {
		l.releaseLater(ctx, key, token)
		return time.Time{}, fmt.Errorf("%w: %w", ctx.Err(), locker.ErrHeld)
	}
	if err != nil {
		return time.Time{}, err
	}
	return time.Now().Add(ttl), nil
}

// listsUntilBroken takes an error for the end.
type listsUntilBroken struct{ http2Lock }

func (l listsUntilBroken) List(ctx context.Context, prefix string) iter.Seq2[locker.Info, error] {
	return func(yield func(locker.Info, error) bool) {
		for info, err := range l.http2Lock.List(ctx, prefix) {
			if err != nil || !yield(info, err) {
				return
			}
		}
	}
}
