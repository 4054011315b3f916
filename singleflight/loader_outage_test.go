package singleflight

import (
	"context"
	"errors"
	"net"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/golockers/locker"
)

// errDown is a client's error when the server's port is closed.
var errDown error = &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}

// errAnswered is an error that is an answer.
var errAnswered = errors.New("cannot decode")

// The backend of the locks is down: loads go on without, one at a time for a key, and it is left alone for a while.
func TestLoadLockDown(t *testing.T) {
	for _, adder := range []bool{false, true} {
		t.Run("adder "+strconv.FormatBool(adder), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBackend()
				p := b.process()
				var down atomic.Bool
				down.Store(true)
				p.onAcquire = func(context.Context, string) error {
					if down.Load() {
						return errDown
					}
					return nil
				}
				cache, storing := p.cache(), "set"
				if adder {
					cache, storing = p.addCache(), "add"
				}
				l := NewLoader(p.locker(), cache, p.slowly(100*time.Millisecond, "fresh"))
				var cs []<-chan loaded
				for range 50 {
					cs = append(cs, goLoad(t.Context(), l, "k"))
				}
				for _, c := range cs {
					require.Equal(t, loaded{"fresh", nil, 100 * time.Millisecond}, <-c)
				}
				synctest.Wait()
				require.Equal(t, 1, p.count("source"))
				require.Equal(t, 1, p.count("acquire"))
				require.Equal(t, 1, p.count(storing), "the value is cached all the same")

				for i := range 50 { // five seconds, many keys
					_, err := l.Load(t.Context(), strconv.Itoa(i))
					require.NoError(t, err)
				}
				require.LessOrEqual(t, p.count("acquire"), 7, "one attempt a second or so")
				require.GreaterOrEqual(t, p.count("acquire"), 5, "the backend is tried again")

				down.Store(false)
				time.Sleep(defaultOptions.outagePause)
				_, err := l.Load(t.Context(), "whose load starts the probe")
				require.NoError(t, err)
				synctest.Wait()
				p.reset()
				for i := range 3 {
					_, err := l.Load(t.Context(), "up again "+strconv.Itoa(i))
					require.NoError(t, err)
				}
				synctest.Wait()
				require.Equal(t, 3, p.count("acquire"))
				require.Equal(t, 3, p.count("set"))
				time.Sleep(time.Minute) // until the clean-ups of failed attempts have given up
				requireIdle(t, l, b, "k")
			})
		})
	}
}

// The backend hangs once the value is loaded: no caller waits for the release.
func TestLoadReleaseHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		p.onExtend, p.onRelease = hang, hang
		l := NewLoader(p.locker(), p.cache(), p.slowly(10*time.Millisecond, "fresh"))
		require.Equal(t, loaded{"fresh", nil, 10 * time.Millisecond}, <-goLoad(t.Context(), l, "k"))
		synctest.Wait()
		stored, _ := b.get("k")
		require.Equal(t, "fresh", stored)
		require.Equal(t, 1, p.count("release"))
		time.Sleep(time.Minute)
		require.Equal(t, 2, p.count("release"), "it is tried once more")
		requireIdle(t, l, b, "k")
	})
}

// The backend of the locks hangs: one backend timeout after that no caller waits for it any more.
func TestLoadLockHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		p.onAcquire = func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() }
		l := NewLoader(p.locker(), p.cache(), p.slowly(0, "fresh"))
		require.Equal(t, loaded{"fresh", nil, defaultOptions.backendTimeout}, <-goLoad(t.Context(), l, "k"))
		b.remove("k")
		require.Equal(t, loaded{"fresh", nil, 0}, <-goLoad(t.Context(), l, "k"))
		require.Equal(t, loaded{"fresh", nil, 0}, <-goLoad(t.Context(), l, "k2"))
		require.Equal(t, 1, p.count("acquire"))
		time.Sleep(defaultOptions.outagePause)
		require.Equal(t, loaded{"fresh", nil, 0}, <-goLoad(t.Context(), l, "k4"))
		require.Equal(t, loaded{"fresh", nil, 0}, <-goLoad(t.Context(), l, "k5"))
		synctest.Wait()
		require.Equal(t, 2, p.count("acquire"), "one probe, for which no caller waits")
		time.Sleep(time.Minute)
	})
}

// A load without the lock stores nothing after Forget either.
func TestLoadLockDownForget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		p.onAcquire = func(context.Context, string) error { return errDown }
		l := NewLoader(p.locker(), p.cache(), p.slowly(time.Second, "read before"))
		c := goLoad(t.Context(), l, "k")
		synctest.Wait()
		l.Forget("k")
		require.Equal(t, loaded{"read before", nil, time.Second}, <-c)
		require.Zero(t, p.count("set"))
		time.Sleep(time.Minute)
		requireIdle(t, l, b, "k")
	})
}

// The backend is killed during a load: all callers get a value, and each process loads at most once.
func TestLoadLockKilledInTheMiddle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const processes = 8
		b := newBackend()
		var down atomic.Bool
		var sources atomic.Int32
		var cs []<-chan loaded
		broken := make(chan struct{})
		for range processes {
			p := b.process()
			p.onAcquire = func(context.Context, string) error {
				if down.Load() {
					return errDown
				}
				return nil
			}
			p.onExtend = func(context.Context) (bool, error) { return false, errDown }
			p.onRelease = p.onExtend
			p.onWatch = func(ctx context.Context) (<-chan struct{}, error) {
				c := make(chan struct{}, 1)
				context.AfterFunc(ctx, func() {})
				go func() { <-broken; c <- struct{}{} }()
				return c, nil
			}
			p.onGet = func(context.Context, string) error {
				if down.Load() {
					return errDown
				}
				return nil
			}
			p.onSet = func(context.Context) error { return errDown }
			l := NewLoader(p.locker(), p.cache(), func(context.Context, string) (string, error) {
				sources.Add(1)
				time.Sleep(time.Second)
				return "fresh", nil
			})
			for range 50 {
				cs = append(cs, goLoad(t.Context(), l, "k"))
			}
		}
		time.Sleep(500 * time.Millisecond)
		require.EqualValues(t, 1, sources.Load())
		down.Store(true)
		close(broken)
		for _, c := range cs {
			got := <-c
			require.NoError(t, got.err)
			require.Equal(t, "fresh", got.v)
			require.LessOrEqual(t, got.took, 1500*time.Millisecond)
		}
		require.LessOrEqual(t, sources.Load(), int32(processes))
		time.Sleep(time.Minute)
	})
}

func TestLoadFailClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		p.onAcquire = func(context.Context, string) error { return errDown }
		l := NewLoader(p.locker(), p.cache(), p.slowly(0, "must not load"), WithFailClosed())
		for range 2 { // the second within the cool-down
			_, err := l.Load(t.Context(), "k")
			require.ErrorIs(t, err, errDown)
			require.ErrorContains(t, err, `singleflight: load "k": `)
			require.ErrorContains(t, err, `locker: try lock "k": `)
		}
		require.Equal(t, 1, p.count("acquire"))

		q := b.process()
		q.onGet = func(context.Context, string) error { return errDown }
		l = NewLoader(q.locker(), q.cache(), q.slowly(0, "must not load"), WithFailClosed())
		v, err := l.Load(t.Context(), "k")
		require.ErrorIs(t, err, errDown)
		require.EqualError(t, err, `singleflight: load "k": read the cache: dial tcp: connection refused`)
		_, err = l.Load(t.Context(), "k")
		require.EqualError(t, err, `singleflight: load "k": read the cache: not asked so soon after it failed: dial tcp: connection refused`)
		require.Empty(t, v, "what comes with an error is not a value")
		require.Zero(t, p.count("source")+q.count("source"))

		// The cache fails when it is read under the lock: that is released.
		r := b.process()
		r.onGet = func(context.Context, string) error {
			if r.count("get") == 2 {
				return errDown
			}
			return nil
		}
		l = NewLoader(r.locker(), r.cache(), r.slowly(0, "must not load"), WithFailClosed())
		_, err = l.Load(t.Context(), "k2")
		require.ErrorIs(t, err, errDown)
		synctest.Wait()
		require.Equal(t, []string{"get", "acquire", "get", "release"}, r.all())
		time.Sleep(time.Minute)
		requireIdle(t, l, b, "k2")

		// The errors of the source and of others holding the lock are no faults of a backend.
		s := b.process()
		cause := errors.New("not found")
		l = NewLoader(s.locker(), s.cache(), func(context.Context, string) (string, error) { return "", cause },
			WithFailClosed())
		lease, err := locker.TryLock(t.Context(), b.locks, "k3", time.Minute)
		require.NoError(t, err)
		time.AfterFunc(time.Second, func() { lease.Unlock(context.Background()) })
		got := <-goLoad(t.Context(), l, "k3")
		require.Equal(t, loaded{"", cause, time.Second}, got)
	})
}

// A backend that takes longer than its callers wait, but not long, is not down: the load goes on, with the lock.
func TestLoadSlowBackendIsNoOutage(t *testing.T) {
	for _, where := range []string{"get", "acquire"} {
		t.Run(where, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBackend()
				p := b.process()
				slow := func(ctx context.Context, _ string) error {
					select {
					case <-time.After(300 * time.Millisecond):
						return nil
					case <-ctx.Done():
						return ctx.Err()
					}
				}
				if where == "get" {
					p.onGet = slow
				} else {
					p.onAcquire = slow
				}
				l := NewLoader(p.locker(), p.cache(), p.slowly(0, "fresh"))
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				defer cancel()
				got := <-goLoad(ctx, l, "k")
				require.Equal(t, loaded{"", context.DeadlineExceeded, 100 * time.Millisecond}, got)
				time.Sleep(time.Second)
				want := []string{"get", "acquire", "get", "source", "set", "release"}
				require.Equal(t, want, p.all())
				p.reset()
				require.NoError(t, (<-goLoad(t.Context(), l, "k2")).err)
				synctest.Wait()
				require.Equal(t, want, p.all())
				requireIdle(t, l, b, "k")
			})
		})
	}
}

// without returns calls without those of what.
func without(calls []string, what string) (rest []string) {
	for _, c := range calls {
		if c != what {
			rest = append(rest, c)
		}
	}
	return rest
}

func TestLoadCacheDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		p.onGet = func(context.Context, string) error { return errDown }
		p.onSet = func(context.Context) error { return errDown }
		l := NewLoader(p.locker(), p.cache(), p.slowly(100*time.Millisecond, "fresh"))
		var cs []<-chan loaded
		for range 50 {
			cs = append(cs, goLoad(t.Context(), l, "k"))
		}
		for _, c := range cs {
			require.Equal(t, loaded{"fresh", nil, 100 * time.Millisecond}, <-c)
		}
		require.Equal(t, []string{"get", "source"}, p.all(), "what does not answer is not asked to store")
		for i := range 50 { // five seconds
			_, err := l.Load(t.Context(), strconv.Itoa(i))
			require.NoError(t, err)
		}
		require.LessOrEqual(t, p.count("get"), 7, "one attempt a second or so")
		requireIdle(t, l, b, "k")
	})
}

func TestLoadCacheHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		p.onGet = func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() }
		l := NewLoader(p.locker(), p.cache(), p.slowly(0, "fresh"))
		require.Equal(t, loaded{"fresh", nil, defaultOptions.backendTimeout}, <-goLoad(t.Context(), l, "k"))
		require.Equal(t, loaded{"fresh", nil, 0}, <-goLoad(t.Context(), l, "k"))
		require.Zero(t, p.count("set"), "what does not answer is not asked again")
	})
}

// One entry cannot be decoded: it is loaded and replaced, other keys do not notice, and it is read again.
func TestLoadRepairsDamagedEntry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		b.set("k", "damaged")
		p.onGet = func(_ context.Context, key string) error {
			if v, _ := b.get(key); v == "damaged" {
				return errAnswered
			}
			return nil
		}
		l := NewLoader(p.locker(), p.addCache(), p.slowly(0, "fresh"))
		v, err := l.Load(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, "fresh", v)
		synctest.Wait()
		stored, _ := b.get("k")
		require.Equal(t, "fresh", stored)

		p.reset()
		v, err = l.Load(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, "fresh", v)
		require.Equal(t, []string{"get"}, p.all(), "no cool-down for an entry that was repaired")
	})
}

// The read under the lock fails: the value is loaded.
func TestLoadCacheFailsUnderTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		p.onGet = func(context.Context, string) error {
			if p.count("get") == 2 {
				return errAnswered
			}
			return nil
		}
		l := NewLoader(p.locker(), p.addCache(), p.slowly(0, "fresh"))
		v, err := l.Load(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, "fresh", v)
		synctest.Wait()
		require.Equal(t, []string{"get", "acquire", "get", "source", "set", "release"}, p.all())
		requireIdle(t, l, b, "k")
	})
}
