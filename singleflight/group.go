package singleflight

import (
	"context"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// Group coalesces concurrent calls with the same key in this process: the first caller's function runs, and
// the others wait for what it returns. The zero value is ready. A Group must not be copied after first use.
// It keeps nothing for a key that nobody is calling.
type Group[V any] struct {
	mu      sync.Mutex
	flights map[string]*flight[V]
}

// unwindTime is how long a new caller waits for a flight that everybody has left, before it starts another
// beside it.
const unwindTime = time.Second

// Do calls fn and returns what it returns. While that call is under way, a further Do with the same key does
// not call its own fn: it waits for the same result. shared is true when more than one caller got it. A Do
// that begins after fn has returned never gets that result: nothing is cached.
//
// A caller whose ctx is done before the call gets ctx's error, and nothing is started. A caller whose ctx
// ends meanwhile returns with ctx's error, promptly, and nobody else notices, unless the result is ready,
// which wins.
//
// fn's context carries the values of the first caller's ctx but not its cancellation or deadline: it is
// cancelled when the last caller that waits has left, and only then. So a caller whose ctx has not ended
// gets no context error but one that fn itself came by. Where the first caller's ctx cannot end (its Done is
// nil), fn runs on that caller's goroutine, and otherwise on one of its own.
//
// A call that everybody has left takes no new callers. The next one waits for it to return, for a second at
// most, and then starts another beside it: a fn that is stuck does not block its key.
//
// When fn panics, the caller whose fn it is panics with the same value; for the others, and for all when
// that caller has left, it is a [*PanicError]. When nobody is left, the panic is not recovered and ends the
// program. When fn calls [runtime.Goexit], that caller's goroutine ends likewise, and the others get an
// error. An error that fn returns goes to all callers of that call, as it is.
//
// Calling Do for the same key from within fn, with fn's context or one derived from it, is an error. With
// another context, or in a cycle through other goroutines, such a call waits for itself until its context
// ends.
func (g *Group[V]) Do(ctx context.Context, key string, fn func(context.Context) (V, error)) (
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
	old := g.flights[key]
	if old != nil && old.callers > 0 {
		f := old
		f.callers++
		if f.done == nil {
			f.done = make(chan struct{})
		}
		g.mu.Unlock()
		if !canEnd { // the short way back: there may be a thousand callers
			<-f.done
			return f.v, f.shared, f.err
		}
		return f.wait(ctx, false)
	}

	f := &flight[V]{group: g, key: key, first: ctx, canEnd: canEnd, callers: 1, listed: true}
	if old != nil { // everybody has left it
		old.listed = false
		f.after = old
		if old.after != nil { // it has not even begun
			f.after = old.after
		}
	}
	if canEnd {
		f.done = make(chan struct{})
	}
	if g.flights == nil {
		g.flights = make(map[string]*flight[V])
	}
	g.flights[key] = f
	g.mu.Unlock()

	if !canEnd {
		f.run(fn, true)
		return f.v, f.shared, f.err
	}
	go f.run(fn, false)
	return f.wait(ctx, true)
}

// Forget makes the next Do for key call its fn even when a call is under way. Those who wait for that call
// still get its result.
func (g *Group[V]) Forget(key string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if f := g.flights[key]; f != nil {
		g.unlist(f)
	}
}

// close makes the flight whose fn was given ctx, or an ancestor of it, take no more callers.
func (g *Group[V]) close(ctx context.Context) {
	if f, _ := ctx.Value(g).(*flight[V]); f != nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.unlist(f)
	}
}

// unlist makes f take no more callers. Its caller holds g.mu.
func (g *Group[V]) unlist(f *flight[V]) {
	if f.listed {
		f.listed = false
		delete(g.flights, f.key)
	}
}

// within returns the flight for key whose fn was given ctx or an ancestor of it, if there is one. It calls
// methods of ctx, so g.mu must not be held.
func (g *Group[V]) within(ctx context.Context, key string) *flight[V] {
	for {
		f, _ := ctx.Value(g).(*flight[V])
		if f == nil || f.key == key {
			return f
		}
		ctx = f.first
	}
}

// flight is one call of fn. It is also the context that fn gets, see group_context.go.
type flight[V any] struct {
	group  *Group[V]
	key    string
	first  context.Context // the first caller's
	ending atomic.Pointer[ending]

	// Guarded by group.mu.
	callers  int           // who wait; at 0 the flight is abandoned, and nobody joins it any more
	done     chan struct{} // closed when it has finished; nil as long as nobody needs it
	after    *flight[V]    // abandoned, and given a moment to return before this one calls fn
	listed   bool          // whether it is in group.flights
	finished bool          // from here on nothing changes, and who still waits gets the result

	canEnd bool // whether the first caller can leave; otherwise fn's context cannot end either

	// Written by run alone, before the flight has finished, and read after.
	shared bool
	how    outcome
	v      V
	err    error
}

type outcome uint8

const (
	returned outcome = iota
	panicked
	exited
)

// run calls fn and finishes the flight. here says that it runs on the goroutine of the caller of Do.
func (f *flight[V]) run(fn func(context.Context) (V, error), here bool) {
	normal := false
	defer func() {
		if normal {
			return
		}
		// Goexit is what recover does not see.
		f.how, f.err = exited, &exitError{f.key}
		r := recover()
		if r != nil {
			f.how, f.err = panicked, &PanicError{Value: r, Stack: debug.Stack(), key: f.key}
		}
		told := f.finish()
		if r != nil && (here || told == 0) {
			panic(r)
		}
	}()
	if f.after == nil || f.begin() {
		f.v, f.err = fn(f)
	} else {
		f.err = f.Err()
	}
	normal = true
	f.finish()
}

// begin waits a moment for the abandoned flight before this one. It is false when this one was abandoned
// meanwhile, too: then fn is not called.
func (f *flight[V]) begin() bool {
	timer := time.NewTimer(unwindTime)
	defer timer.Stop()
	select {
	case <-f.after.done:
	case <-timer.C:
	case <-f.Done():
	}
	f.group.mu.Lock()
	defer f.group.mu.Unlock()
	if f.callers == 0 {
		return false
	}
	f.after = nil
	return true
}

// finish makes the result visible, and the flight cannot be found any more before that. It returns how many
// get the result.
func (f *flight[V]) finish() int {
	g := f.group
	g.mu.Lock()
	if f.listed && f.after != nil && !f.after.finished {
		// fn was not called: the next caller has the same flight to wait for.
		f.listed, f.after.listed = false, true
		g.flights[f.key] = f.after
	}
	g.unlist(f)
	f.finished = true
	callers, done := f.callers, f.done
	f.shared = callers > 1
	g.mu.Unlock()
	if done != nil {
		close(done)
	}
	return callers
}

// wait is for a caller whose ctx can end: it returns the result when there is one, or leaves with ctx's error.
// first says that it is the caller whose fn runs.
func (f *flight[V]) wait(ctx context.Context, first bool) (v V, shared bool, err error) {
	select {
	case <-f.done:
	case <-ctx.Done():
		if f.leave() {
			return v, false, ctx.Err()
		}
	}
	if first {
		switch f.how {
		case panicked:
			panic(f.err.(*PanicError).Value)
		case exited:
			runtime.Goexit()
		}
	}
	return f.v, f.shared, f.err
}

// leave takes one caller off the flight. It is false when the flight has finished: the result is there.
func (f *flight[V]) leave() bool {
	f.group.mu.Lock()
	if f.finished {
		f.group.mu.Unlock()
		return false
	}
	f.callers--
	abandoned := f.callers == 0
	f.group.mu.Unlock()
	if abandoned {
		f.end().cancel()
	}
	return true
}
