package singleflight

import (
	"context"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"
)

// flight is one call of fn. It is also the context that fn gets; see flight_context.go.
//
// It is open from its creation until it finishes, is shut or closed, or is abandoned: during that time
// its key's entry refers to it, and callers join it. The entry refers to an abandoned flight as
// unwinding, until fn returns or the next flight begins.
type flight[V any] struct {
	group  *Group[V]
	key    string
	first  context.Context // the first caller's
	ending atomic.Pointer[ending]
	asking atomic.Pointer[request] // the latest request to a backend, of a Loader
	held   atomic.Pointer[holding] // the lock of a load whose source is called

	// Guarded by group.mu.
	done     chan struct{} // closed when the flight has finished; nil as long as nothing waits for that
	before   *flight[V]    // an abandoned flight, for which this one waits before it calls fn; see unwindTime
	callers  int32         // waiting for the result
	place    place         // the field of its key's entry that refers to it
	detached bool          // goes on, and stays open, without callers
	begun    bool          // fn was called, or is about to be
	finished bool          // the result is final

	canEnd bool // whether the first caller can leave; if not, fn's context cannot end either

	// Written by run alone, before the flight has finished, and read after.
	shared bool
	how    outcome
	v      V
	err    error
}

type place uint8

const (
	nowhere place = iota
	open
	unwinding
)

type outcome uint8

const (
	returned outcome = iota
	panicked
	exited
)

// run calls fn and finishes the flight. here reports whether it runs on the first caller's
// goroutine.
func (f *flight[V]) run(fn func(context.Context) (V, error), here bool) {
	normal := false
	defer func() {
		if normal {
			return
		}
		// If recover finds nothing, it is Goexit.
		f.how, f.err = exited, &exitError{f.key}
		r := recover()
		if r != nil {
			f.how, f.err = panicked, &PanicError{Value: r, Stack: debug.Stack(), key: f.key}
		}
		inRequest := f.endRequest()
		callers := f.finish()
		if r != nil && (here || callers == 0 && !inRequest) {
			panic(r)
		}
	}()
	if f.before == nil || f.begin() {
		f.v, f.err = fn(f)
	} else {
		f.err = f.Err()
	}
	normal = true
	f.finish()
}

// endRequest is for a flight whose fn did not return. It reports whether that was due to a Cache, which
// was asked for something: then the program does not end, since one damaged entry can be the cause.
func (f *flight[V]) endRequest() bool {
	r := f.asking.Load()
	if r == nil || r.IsOver() {
		return false
	}
	r.Cancel()
	return true
}

// begin waits a moment for the abandoned flight before this one. It reports false if this flight
// was abandoned in the meantime; fn is then not called.
func (f *flight[V]) begin() bool {
	if rest := unwindTime - time.Duration(instant(time.Now())-f.before.end().abandoned); rest > 0 {
		timer := time.NewTimer(rest)
		defer timer.Stop()
		select {
		case <-f.before.done:
		case <-timer.C:
		case <-f.Done():
		}
	}
	g := f.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if f.callers == 0 && !f.detached {
		return false
	}
	// From now on this is the flight to wait for if it is abandoned.
	if f.place == open {
		if e := g.keys.get(f.key); e.unwinding != nil {
			e.unwinding.place = nowhere
			g.keys.set(f.key, entry[V]{open: f})
		}
	}
	f.begun, f.before = true, nil
	return true
}

// finish makes the result visible, after the flight can no longer be found. It returns how many
// callers get it.
func (f *flight[V]) finish() int32 {
	g := f.group
	g.mu.Lock()
	f.remove()
	f.finished = true
	callers, done := f.callers, f.done
	f.shared = callers > 1
	g.mu.Unlock()
	if done != nil {
		close(done)
	}
	return callers
}

// setFinished is for a flight that stands for something else, and was never open.
func (f *flight[V]) setFinished() {
	f.group.mu.Lock()
	defer f.group.mu.Unlock()
	f.finished = true
}

// remove takes the flight out of its key's entry. It needs group.mu.
func (f *flight[V]) remove() {
	switch keys := &f.group.keys; {
	case f.place == nowhere:
		return
	case f.place == open && f.begun: // so none is unwinding
		keys.set(f.key, entry[V]{})
	case f.place == open:
		keys.set(f.key, entry[V]{unwinding: keys.get(f.key).unwinding})
	default:
		keys.set(f.key, entry[V]{open: keys.get(f.key).open})
	}
	f.place = nowhere
}

// joinAndUnlock is for a caller that has found the flight open: it joins it, and waits for the result.
// It unlocks group.mu, which its caller holds.
func (f *flight[V]) joinAndUnlock(ctx context.Context) (v V, shared bool, err error) {
	f.callers++
	if f.done == nil {
		f.done = make(chan struct{})
	}
	f.group.mu.Unlock()
	noteFirst(ctx, f.first)
	if ctx.Done() == nil { // a shorter path, since a thousand callers may take it
		<-f.done
		return f.v, f.shared, f.err
	}
	return f.wait(ctx, false)
}

// wait is for a caller whose ctx can end: it returns the result when there is one, or leaves with
// ctx's error. first reports whether it is the caller whose fn runs.
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

// leave takes one caller off the flight. It reports false if the flight has finished: then the
// result is there.
func (f *flight[V]) leave() bool {
	f.group.mu.Lock()
	if f.finished {
		f.group.mu.Unlock()
		return false
	}
	f.callers--
	f.abandonAndUnlock()
	return true
}

// attach makes the flight end with its last caller, as a flight of Do does, and at once if it has
// none.
func (f *flight[V]) attach() {
	f.group.mu.Lock()
	f.detached = false
	f.abandonAndUnlock()
}

// detach lets the flight go on, and take callers, when its last caller has left. It reports
// false, and changes nothing, if an attached flight has no callers left.
func (f *flight[V]) detach() bool {
	f.group.mu.Lock()
	defer f.group.mu.Unlock()
	if f.callers > 0 {
		f.detached = true
	}
	return f.detached
}

// cancel ends fn's context, whether or not callers wait.
func (f *flight[V]) cancel() { f.end().cancel() }

// shut makes the flight take no more callers.
func (f *flight[V]) shut() {
	f.group.mu.Lock()
	defer f.group.mu.Unlock()
	f.remove()
}

// close makes the flight take no more callers and end with the last that it has.
func (f *flight[V]) close() {
	f.group.mu.Lock()
	f.remove()
	f.detached = false
	f.abandonAndUnlock()
}

// abandonAndUnlock ends fn's context if no caller waits for the flight. It unlocks group.mu,
// which its caller holds.
func (f *flight[V]) abandonAndUnlock() {
	g := f.group
	abandoned := f.callers == 0 && !f.detached && !f.finished
	if abandoned && f.place == open {
		f.remove()
		if f.begun {
			f.end().abandoned, f.place = instant(time.Now()), unwinding
			g.keys.set(f.key, entry[V]{unwinding: f})
		}
	}
	g.mu.Unlock()
	if abandoned {
		f.end().cancel()
	}
}
