package singleflight

import (
	"context"
	"sync"
	"time"
)

// Group coalesces concurrent calls with the same key in this process: the first caller's function
// runs, and the others wait for its result. The zero value is ready. A Group must not be copied
// after first use. It keeps nothing for a key for which no function is running.
type Group[V any] struct {
	mu   sync.Mutex
	keys table[string, entry[V]]
}

// entry is what a Group keeps for a key: the flight in each of these places, if any. While an
// open flight has begun, none is unwinding.
type entry[V any] struct {
	open      *flight[V] // takes callers
	unwinding *flight[V] // abandoned while its fn ran, which has not returned: the next flight waits a moment for it
}

// unwindTime is how long after a flight was abandoned the next one waits for it to return.
const unwindTime = time.Second

// Do calls fn and returns what it returns. While that call is in progress, another Do with the
// same key does not call its own fn: it waits for the same result. shared reports whether more
// than one caller got it. A Do that begins after fn has returned never gets that result: nothing
// is cached.
//
// If ctx is done before the call, Do returns ctx's error and starts nothing. If ctx ends during the
// call, Do returns the result if it is ready, and otherwise ctx's error, promptly and without
// affecting the other callers.
//
// fn's context carries the values of the first caller's ctx but not its cancellation or deadline:
// it is canceled when the last waiting caller has left, and only then. So a caller whose ctx has
// not ended never gets another caller's context error. If the first caller's ctx cannot end (its
// Done is nil), fn runs on that caller's goroutine, and otherwise on a new one.
//
// A call that all its callers have left is abandoned and takes no new ones. A later Do waits for
// it to return, until a second after it was abandoned, and then calls its own fn beside it. So a
// stuck fn does not block its key, whatever the callers' deadlines, and calls that never return
// add up to no more than one a second for each key.
//
// If fn panics, the caller whose fn it is panics with the same value. The others get a
// [*PanicError], and so do all if that caller has left. If no caller is left, the panic is not
// recovered and ends the program. If fn calls [runtime.Goexit], that caller's goroutine ends, and
// the others get an error. An error that fn returns goes to all callers of that call unchanged.
//
// Calling Do for the same key from within fn, with fn's context or one derived from it, is an
// error. With another context, or in a cycle through other goroutines, such a call waits for
// itself until its context ends.
func (g *Group[V]) Do(ctx context.Context, key string, fn func(context.Context) (V, error)) (
	v V, shared bool, err error) {
	return g.call(ctx, key, false, fn)
}

// call is Do. If detached is true, the flight begins detached; see [flight.detach]. fn's context
// is the flight itself.
func (g *Group[V]) call(ctx context.Context, key string, detached bool, fn func(context.Context) (V, error)) (
	v V, shared bool, err error) {
	if err := ctx.Err(); err != nil {
		return v, false, err
	}
	canEnd := ctx.Done() != nil
	within := g.within(ctx, key)

	g.mu.Lock()
	if within != nil && !within.finished {
		g.mu.Unlock()
		return v, false, &reentryError{key}
	}
	e := g.keys.get(key)
	if f := e.open; f != nil {
		return f.joinAndUnlock(ctx)
	}

	f := &flight[V]{group: g, key: key, first: ctx, canEnd: canEnd, place: open,
		detached: detached, callers: 1, begun: true}
	if e.unwinding != nil {
		f.begun, f.before = false, e.unwinding
	}
	if canEnd {
		f.done = make(chan struct{})
	}
	e.open = f
	g.keys.set(key, e)
	g.mu.Unlock()
	noteFirst(ctx, nil)

	if !canEnd {
		f.run(fn, true)
		return f.v, f.shared, f.err
	}
	go f.run(fn, false)
	return f.wait(ctx, true)
}

// callOpen is call if there is an open flight for key. If not, joined is false.
func (g *Group[V]) callOpen(ctx context.Context, key string) (v V, shared, joined bool, err error) {
	if ctx.Err() != nil {
		return v, false, false, nil
	}
	within := g.within(ctx, key)
	g.mu.Lock()
	f := g.keys.get(key).open
	if f == nil || within != nil && !within.finished {
		g.mu.Unlock()
		return v, false, false, nil
	}
	v, shared, err = f.joinAndUnlock(ctx)
	return v, shared, true, err
}

// Forget makes the next Do for key call its fn even if a call is in progress. The callers that
// wait for that call still get its result.
func (g *Group[V]) Forget(key string) {
	g.mu.Lock()
	e := g.keys.get(key)
	if e.unwinding != nil {
		e.unwinding.remove()
	}
	g.mu.Unlock()
	if e.open != nil {
		e.open.close()
	}
}

// checkWithin returns an error if ctx is that of a function that is running for key.
func (g *Group[V]) checkWithin(ctx context.Context, key string) error {
	f := g.within(ctx, key)
	g.mu.Lock()
	defer g.mu.Unlock()
	if f != nil && !f.finished {
		return &reentryError{key}
	}
	return nil
}

// within returns the flight for key whose fn was given ctx or an ancestor of it, if there is one.
// It calls methods of ctx, so g.mu must not be held.
func (g *Group[V]) within(ctx context.Context, key string) *flight[V] {
	for {
		var f *flight[V]
		switch found := ctx.Value(g).(type) {
		case *flight[V]:
			f = found
		case flights[V]:
			f = found.of(key)
		}
		if f == nil || f.key == key {
			return f
		}
		ctx = f.first
	}
}

// grouping is a Group of whatever values, as the key of a flight in a context.
type grouping interface{ isGroup() }

func (g *Group[V]) isGroup() {}
