package singleflight

import (
	"context"
	"errors"
	"time"

	"github.com/golockers/locker"
)

// Fleet coalesces calls with the same key in all processes, without a cache of the caller's: one
// caller's function runs, and the others get its outcome. Use a [Loader] for values that are to be
// kept, and a [Group] for calls of one process.
//
// The outcome is in a slot of the [Cache] for a moment, [WithSlotTTL], so that the processes that wait
// find it. A Do that begins during that time gets a value from there. An error goes to the calls alone
// that began before it, as in [Loader.Load].
//
// The Cache should be a slots.Keeper, as those of the adapters are. With another one, values last for
// as long as it keeps them, errors reach no other process, and a process that was stopped may replace
// a newer value. Close a Fleet before the process ends.
type Fleet[V any] struct{ loader *Loader[V] }

// FleetOption configures a [Fleet]: [WithSlotTTL], or what configures a [Loader]. [WithRefreshAhead]
// and [WithMaxRefreshes] have no effect: fn is the caller's, so nothing calls it in the background.
type FleetOption = LoaderOption

const defaultSlotTTL = 2 * time.Second

// WithSlotTTL sets how long a value stays in its slot after its call. The default, used when d <= 0,
// is 2 seconds. It has no effect on a [Loader].
func WithSlotTTL(d time.Duration) FleetOption {
	return func(o *loaderOptions) { o.slotTTL = orDefault(d, defaultSlotTTL) }
}

// NewFleet returns a Fleet that coalesces calls under the locks of l, with the outcomes in slots. The
// slots need keys of their own: a Cache with another prefix than those of the values that a program
// caches. Stale values are not used. If l or slots can never work, such as a nil one, every Do
// returns an error.
func NewFleet[V any](l locker.Locker, slots Cache[V], opts ...FleetOption) *Fleet[V] {
	f := new(Fleet[V])
	f.loader = newLoader(l, slots, f.source, opts)
	f.loader.refreshAhead = 0
	if f.loader.slotTTL == 0 {
		f.loader.slotTTL = defaultSlotTTL
	}
	return f
}

// fleetCall is a Do on its way to the source. It is found in the context of its flight.
type fleetCall[V any] struct {
	fn  func(context.Context) (V, error)
	ran bool // fn was called; read after its flight has ended
}

func (f *Fleet[V]) source(ctx context.Context, _ string) (V, error) {
	c := ctx.Value(f).(*fleetCall[V])
	c.ran = true
	return c.fn(ctx)
}

// Do returns what fn returns, or what the fn of another call with the same key did, in this process or
// another. shared reports whether the outcome is that of another call, or was given to other callers
// in this process.
//
// fn runs under the key's lock, with a context as that of [NewLoader]'s source. A caller whose ctx ends
// leaves, and fn goes on for the others. If the process dies, another one calls its own fn when the
// lock has expired ([WithLockTTL]).
//
// An error of fn reaches other processes as a [*RemoteError], unless it is that of a context or due to a
// lease that the caller carries. If a backend does not answer, Do calls fn without it, unless
// [WithFailClosed] is used. Calling Do for the same key from within fn with its context is an error. A
// panic is passed on as in [Group.Do].
func (f *Fleet[V]) Do(ctx context.Context, key string, fn func(context.Context) (V, error)) (
	v V, shared bool, err error) {
	if f == nil || f.loader == nil {
		return v, false, doError(key, errors.New("nil Fleet"))
	}
	if fn == nil {
		return v, false, doError(key, errors.New("nil function"))
	}
	if v, shared, joined, err := f.loader.joinOpen(ctx, key); joined {
		return v, shared || err == nil || ctx.Err() == nil, err
	}
	c := &fleetCall[V]{fn: fn}
	v, shared, err = f.loader.call(context.WithValue(ctx, f, c), key)
	if err == nil || errors.As(err, new(*RemoteError)) { // otherwise fn may still be running
		shared = shared || !c.ran
	}
	return v, shared, err
}

// Close shuts the Fleet down, as [Loader.Close] does a Loader.
func (f *Fleet[V]) Close(ctx context.Context) error {
	if f == nil {
		return closeError(errors.New("nil Fleet"))
	}
	return f.loader.Close(ctx)
}

func doError(key string, err error) error { return &keyError{"do", key, err} }
