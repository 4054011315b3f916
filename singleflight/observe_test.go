package singleflight

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/golockers/locker"
)

type contextKey struct{}

// observer records the events of a Loader.
type observer struct {
	mu     sync.Mutex
	events []LoadEvent
	values []any // of contextKey, in the ctx of each event
	firsts []any // and in First, of those that have one; it is not in events
	ended  int   // how many of their contexts had ended
}

func (o *observer) observe(ctx context.Context, e LoadEvent) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if e.First != nil {
		o.firsts = append(o.firsts, e.First.Value(contextKey{}))
		e.First = nil
	}
	o.events = append(o.events, e)
	o.values = append(o.values, ctx.Value(contextKey{}))
	if ctx.Err() != nil {
		o.ended++
	}
}

// take returns the events since the last take, once all other goroutines of the bubble are blocked.
func (o *observer) take() []LoadEvent {
	synctest.Wait()
	o.mu.Lock()
	defer o.mu.Unlock()
	events := o.events
	o.events = nil
	return events
}

// takeFirsts is take for what First had.
func (o *observer) takeFirsts() []any {
	synctest.Wait()
	o.mu.Lock()
	defer o.mu.Unlock()
	firsts := o.firsts
	o.firsts = nil
	return firsts
}

// requireOne fails unless there was one event, as given.
func (o *observer) requireOne(t *testing.T, kind LoadEventKind, took time.Duration, err error) {
	t.Helper()
	events := o.take()
	require.Len(t, events, 1)
	e := events[0]
	if err == nil {
		require.NoError(t, e.Err)
	} else {
		require.ErrorIs(t, e.Err, err)
	}
	e.Err = nil
	require.Equal(t, LoadEvent{Kind: kind, Key: "k", Took: took}, e)
}

func TestObserveLoads(t *testing.T) {
	contexts(t, func(t *testing.T, ctx context.Context) {
		b := newBackend()
		p, q := b.process(), b.process()
		var o observer
		l := NewLoader(p.locker(), p.staleCache(), p.slowly(time.Second, "fresh"), WithLoadObserver(o.observe))
		ctx = context.WithValue(ctx, contextKey{}, "the caller's")
		load := func() { <-goLoad(ctx, l, "k") }

		load()
		o.requireOne(t, Loaded, time.Second, nil)
		load()
		o.requireOne(t, LoadHit, 0, nil)

		b.remove("k")
		first := goLoad(ctx, l, "k")
		time.Sleep(300 * time.Millisecond)
		second := goLoad(ctx, l, "k")
		<-first
		<-second
		require.ElementsMatch(t, []LoadEvent{
			{Kind: Loaded, Key: "k", Took: time.Second},
			{Kind: LoadJoined, Key: "k", Took: 700 * time.Millisecond},
		}, o.take())

		b.remove("k")
		other := NewLoader(q.locker(), q.cache(), q.slowly(time.Second, "fresh"))
		elsewhere := goLoad(ctx, other, "k")
		synctest.Wait()
		load()
		<-elsewhere
		o.requireOne(t, LoadWaited, time.Second, nil)

		b.remove("k")
		p.onAcquire = func(context.Context, string) error { b.set("k", "stored meanwhile"); return nil }
		load()
		o.requireOne(t, LoadWaited, 0, nil)

		b.remove("k")
		p.onAcquire = func(context.Context, string) error { return errAnswered }
		load()
		o.requireOne(t, LoadedUnlocked, time.Second, errAnswered)
		p.onAcquire = nil
		time.Sleep(time.Minute)

		b.remove("k")
		l.Forget("k")
		load()
		o.requireOne(t, Loaded, time.Second, nil)
		load()
		o.requireOne(t, LoadHit, 0, nil) // read for the caller alone

		for _, v := range o.values {
			require.Equal(t, "the caller's", v)
		}
	})
}

func TestObserveErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		cause := errors.New("not found")
		fail := func() error { return cause }
		var o observer
		l := NewLoader(p.locker(), p.cache(), func(context.Context, string) (string, error) {
			time.Sleep(time.Second)
			return "", fail()
		}, WithLoadObserver(o.observe))
		<-goLoad(t.Context(), l, "k")
		o.requireOne(t, LoadFailed, time.Second, cause)

		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		<-goLoad(ctx, l, "k")
		o.requireOne(t, LoadFailed, 300*time.Millisecond, context.DeadlineExceeded)
		time.Sleep(time.Minute)
		require.Empty(t, o.take(), "the load that was left")

		for _, end := range []func() error{func() error { panic("boom") }, func() error { runtime.Goexit(); return nil }} {
			fail = end
			done := make(chan struct{})
			go func() {
				defer close(done)
				defer func() { _ = recover() }()
				_, _ = l.Load(t.Context(), "k")
			}()
			<-done
			o.requireOne(t, LoadFailed, time.Second, errNoReturn)
		}

		require.NoError(t, l.Close(t.Context()))
		<-goLoad(t.Context(), l, "k")
		o.requireOne(t, LoadFailed, 0, locker.ErrClosed)
	})
}

func TestObserveUnlocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		var o observer
		l := NewLoader(p.locker(), p.cache(), p.slowly(0, "fresh"), WithLoadObserver(o.observe),
			WithMaxWait(5*time.Second))
		lease, err := locker.TryLock(t.Context(), b.locks, "k", time.Hour)
		require.NoError(t, err)
		<-goLoad(t.Context(), l, "k")
		o.requireOne(t, LoadedUnlocked, 5*time.Second, errWaitedLong)
		require.NoError(t, lease.Unlock(t.Context()))

		p.onSet = func(context.Context) error { return errAnswered }
		<-goLoad(t.Context(), l, "k")
		events := o.take()
		require.ElementsMatch(t, []LoadEvent{
			{Kind: Loaded, Key: "k"},
			{Kind: StoreFailed, Key: "k", Err: errAnswered},
		}, events)
		<-goLoad(t.Context(), l, "k")
		events = o.take()
		require.ElementsMatch(t, []LoadEvent{
			{Kind: LoadedUnlocked, Key: "k", Err: errUnstored},
			{Kind: StoreFailed, Key: "k", Err: errAnswered},
		}, events)
	})
}

func TestObserveRefresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		b.stale["k"] = "stale"
		p := b.process()
		var o observer
		var fail error
		l := NewLoader(p.locker(), p.staleCache(), func(context.Context, string) (string, error) {
			time.Sleep(time.Second)
			return "fresh", fail
		}, WithLoadObserver(o.observe))
		fail = errors.New("the database is down")
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), contextKey{}, "the caller's"))
		<-goLoad(ctx, l, "k")
		cancel()
		o.requireOne(t, LoadStale, 0, nil)
		time.Sleep(2 * time.Second)
		o.requireOne(t, RefreshFailed, time.Second, fail)
		require.Equal(t, []any{"the caller's", "the caller's"}, o.values)
		require.Zero(t, o.ended, "the refresh's context has not ended")
		fail = nil
		<-goLoad(t.Context(), l, "k")
		o.requireOne(t, LoadStale, 0, nil)
		time.Sleep(2 * time.Second)
		o.requireOne(t, Refreshed, time.Second, nil)

		// A refresh by another process is no event here.
		b.remove("k")
		b.stale["k"] = "stale"
		lease, err := locker.TryLock(t.Context(), b.locks, "k", time.Hour)
		require.NoError(t, err)
		<-goLoad(t.Context(), l, "k")
		o.requireOne(t, LoadStale, 0, nil)
		require.NoError(t, lease.Unlock(t.Context()))
	})
}

func TestObserveStoreFailed(t *testing.T) {
	for _, tc := range []struct {
		name   string
		set    func(context.Context) error
		extend func(context.Context) (bool, error)
		took   time.Duration
		err    error
	}{
		{"fails", func(context.Context) error { return errAnswered }, nil, 0, errAnswered},
		{"hangs", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, nil,
			defaultOptions.backendTimeout, context.DeadlineExceeded},
		{"ignores its context", func(context.Context) error { time.Sleep(time.Minute); return errAnswered }, nil,
			defaultOptions.backendTimeout, context.DeadlineExceeded},
		{"lock lost", nil, func(context.Context) (bool, error) { return false, nil }, 0, locker.ErrNotHeld},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBackend()
				p := b.process()
				p.onSet, p.onExtend = tc.set, tc.extend
				var o observer
				l := NewLoader(p.locker(), p.cache(), p.slowly(5*time.Second, "fresh"), WithLoadObserver(o.observe))
				<-goLoad(t.Context(), l, "k")
				time.Sleep(time.Hour)
				events := o.take()
				require.Len(t, events, 2)
				for _, e := range events {
					if e.Kind == StoreFailed {
						require.ErrorIs(t, e.Err, tc.err)
						require.Equal(t, tc.took, e.Took)
					} else {
						require.Equal(t, LoadEvent{Kind: Loaded, Key: "k", Took: 5 * time.Second}, e)
					}
				}
			})
		})
	}
}

func TestNilObserver(t *testing.T) {
	p := newBackend().process()
	l := NewLoader(p.locker(), p.deleteCache(), p.slowly(0, "must not load"), WithLoadObserver(nil))
	_, err := l.Load(t.Context(), "k")
	require.EqualError(t, err, `singleflight: load "k": nil load observer`)
	err = l.Update(t.Context(), "k", notCalled(t))
	require.EqualError(t, err, `singleflight: update "k": nil load observer`)
	require.Empty(t, p.all())
}

func TestLoadEventKindString(t *testing.T) {
	names := map[string]bool{}
	for k := LoadHit; k <= StoreFailed; k++ {
		require.NotContains(t, k.String(), "LoadEventKind")
		names[k.String()] = true
	}
	require.Len(t, names, int(StoreFailed)+1, "all different")
	require.Equal(t, "LoadEventKind(10)", (StoreFailed + 1).String())
}

// Without an observer, events cost a hit no allocation.
func TestHitAllocations(t *testing.T) {
	b := newBackend()
	b.set("k", "v")
	l := NewLoader(b.locks, Cache[string](benchCache{b}), b.process().slowly(0, "must not load"))
	canEnd, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, tc := range []struct {
		ctx  context.Context
		most float64
	}{{context.Background(), 3}, {canEnd, 5}} {
		require.LessOrEqual(t, testing.AllocsPerRun(1000, func() {
			if _, err := l.Load(tc.ctx, "k"); err != nil {
				t.Error(err)
			}
		}), tc.most)
	}
}
