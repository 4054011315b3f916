package singleflight

import (
	"context"
	"errors"
	"strconv"
	"time"
)

// LoadEvent describes how one [Loader.Load] ended, or work that a Loader did in the background.
type LoadEvent struct {
	Kind LoadEventKind
	Key  string
	Took time.Duration // by the Load, or by the work

	// Err is the error of LoadFailed, RefreshFailed and StoreFailed. With LoadedUnlocked it is
	// the reason for loading without the lock.
	Err error

	// First is the context of the caller that began the load, if this caller joined it. Otherwise
	// it is nil. Use it only for its values, such as those of a trace, since it may have ended.
	First context.Context
}

// LoadEventKind is the kind of a [LoadEvent].
type LoadEventKind uint8

// Each Load is reported as one event of one of these kinds.
const (
	LoadHit        LoadEventKind = iota // the cache had the value
	LoadJoined                          // another caller in this process got the value, in whichever way
	LoadWaited                          // another process loaded the value
	LoadStale                           // the cache had a stale value
	Loaded                              // the source returned the value, under the lock
	LoadedUnlocked                      // the source returned the value, without the lock
	LoadFailed                          // Load returned an error
)

// These events happen in the background.
const (
	Refreshed     LoadEventKind = LoadFailed + 1 + iota // the source returned a fresh value for a stale one
	RefreshFailed                                       // a stale value could not be refreshed
	StoreFailed                                         // a value that the source returned could not be stored, or not in time
)

var loadEventKinds = [...]string{"hit", "joined", "waited", "stale", "loaded", "loaded-unlocked", "load-failed",
	"refreshed", "refresh-failed", "store-failed"}

// String returns a name for logs and metrics, such as "hit" or "loaded-unlocked".
func (k LoadEventKind) String() string {
	if int(k) < len(loadEventKinds) {
		return loadEventKinds[k]
	}
	return "LoadEventKind(" + strconv.Itoa(int(k)) + ")"
}

// WithLoadObserver makes the Loader call observe at the end of each [Loader.Load], with the
// Load's ctx, and after background work, with a ctx that has the values of the Load that started
// the work but does not end. observe must be safe for concurrent use. The caller of Load waits
// for it, so it should return quickly. Without an observer events cost nothing. If observe is
// nil, every Load returns an error.
//
// If all callers have left a load, each of them is reported with its ctx's error. The load itself
// goes on and is not reported.
func WithLoadObserver(observe func(ctx context.Context, e LoadEvent)) LoaderOption {
	return func(o *loaderOptions) { o.observe, o.hasObserver = observe, true }
}

// observation is the ctx of an observed Load, in which its flight notes how it came by the value.
// The caller reads that once the flight has returned a value. A caller that joined another one's
// flight finds nothing noted.
type observation struct {
	context.Context
	noted bool
	kind  LoadEventKind
	err   error
	first context.Context // of the flight that the caller joined last, unless it has begun one since

	joined func() // called when the caller joins a flight; nil: nobody needs to know
}

var (
	errNoReturn   = errors.New("the source panicked or called runtime.Goexit")
	errUnstored   = errors.New("the cache refused the previous value")
	errWaitedLong = errors.New("another process has held the lock for too long")
)

// loadObserved is Load with an observer.
func (l *Loader[V]) loadObserved(ctx context.Context, key string) (v V, shared bool, err error) {
	o := &observation{Context: ctx}
	return l.observed(o, key, func() (V, bool, error) { return l.call(o, key) })
}

// observed makes a call with the context o, and reports it to the observer.
func (l *Loader[V]) observed(o *observation, key string, call func() (V, bool, error)) (v V, shared bool, err error) {
	began := time.Now()
	err = errNoReturn
	defer func() {
		e := LoadEvent{Kind: LoadJoined, Key: key, Took: time.Since(began), Err: err}
		switch {
		case err != nil:
			e.Kind = LoadFailed
		case o.noted:
			e.Kind, e.Err = o.kind, o.err
		}
		if first, ok := o.first.(*observation); ok {
			e.First = first.Context
		}
		l.observe(o.Context, e)
	}()
	return call()
}

// noteFirst notes that a caller has joined the flight of first, or has begun one of its own. All
// callers of an observed Loader are observed.
func noteFirst(ctx, first context.Context) {
	if o, ok := ctx.(*observation); ok {
		o.first = first
		if first != nil && o.joined != nil {
			o.joined()
		}
	}
}

// note is called in a flight that has found the value or is about to call the source. The last
// note counts. ctx is the flight, or the context of a refresh, which has no caller.
func (l *Loader[V]) note(ctx context.Context, kind LoadEventKind, err error) {
	if l.observe == nil {
		return
	}
	if f, _ := ctx.(*flight[V]); f != nil {
		if o, _ := f.first.(*observation); o != nil {
			o.noted, o.kind, o.err = true, kind, err
		}
	}
}

// observeWork reports background work that began at that time to the observer.
func (l *Loader[V]) observeWork(ctx context.Context, kind LoadEventKind, key string, began time.Time, err error) {
	if l.observe != nil {
		l.observe(context.WithoutCancel(ctx), LoadEvent{Kind: kind, Key: key, Took: time.Since(began), Err: err})
	}
}
