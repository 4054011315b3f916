package singleflight

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/golockers/locker"
)

// truth is a number that a source returns, by a query that takes a while and sees the number as the query began.
type truth struct {
	atomic.Int64
	query time.Duration
}

func (s *truth) load(context.Context, string) (string, error) {
	v := s.Load()
	time.Sleep(s.query)
	return strconv.FormatInt(v, 10), nil
}

// next changes the number.
func (s *truth) next(context.Context) error {
	s.Add(1)
	return nil
}

func notCalled(t *testing.T) func(context.Context) error {
	t.Helper()
	return func(context.Context) error {
		t.Error("change was called")
		return nil
	}
}

func TestUpdateInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		b.set("k", "0")
		b.stale["k"] = "0"
		p := b.process()
		src := &truth{query: time.Second}
		l := NewLoader(pollLocker{p}, Cache[string](p.deleteCache()), src.load)
		require.NoError(t, l.Update(t.Context(), "k", func(ctx context.Context) error {
			p.add("change")
			return src.next(ctx)
		}))
		require.Equal(t, []string{"acquire", "change", "delete", "release"}, p.all())
		requireIdle(t, l, b, "k")
		require.Equal(t, loaded{"1", nil, time.Second}, <-goLoad(t.Context(), l, "k"))
	})
}

// Two writers change the source within eight milliseconds, during which another process begins a load that takes
// twenty. With Forget and Delete that load's value, the first writer's, is stored after the second one's deletion.
func TestUpdateTwoWriters(t *testing.T) {
	const rounds = 100
	for _, tc := range []struct {
		name   string
		change func(ctx context.Context, l *Loader[string], b *fakeBackend, src *truth) error
		old    int // of the rounds: how many times the value that was loaded later is old
	}{
		{"Update", func(ctx context.Context, l *Loader[string], _ *fakeBackend, src *truth) error {
			return l.Update(ctx, "k", src.next)
		}, 0},
		{"Forget and Delete", func(ctx context.Context, l *Loader[string], b *fakeBackend, src *truth) error {
			err := src.next(ctx)
			l.Forget("k")
			b.remove("k")
			return err
		}, rounds},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBackend()
				src := &truth{query: 20 * time.Millisecond}
				var ls []*Loader[string]
				for range 3 {
					p := b.process()
					ls = append(ls, NewLoader(p.locker(), p.deleteCache(), src.load))
				}
				old := 0
				for range rounds {
					require.NoError(t, tc.change(t.Context(), ls[0], b, src))
					reader := goLoad(t.Context(), ls[2], "k")
					time.Sleep(8 * time.Millisecond)
					require.NoError(t, tc.change(t.Context(), ls[1], b, src))
					require.NoError(t, (<-reader).err)
					time.Sleep(time.Minute)
					want := src.Load()
					for _, l := range ls {
						v, err := l.Load(t.Context(), "k")
						require.NoError(t, err)
						if v != strconv.FormatInt(want, 10) {
							old++
							break
						}
					}
				}
				t.Logf("%d of %d later reads are old", old, rounds)
				require.Equal(t, tc.old, old)
			})
		})
	}
}

// Another process is refreshing the stale value: Update waits for it, and deletes the value that it stores.
func TestUpdateDuringARefreshElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		b.stale["k"] = "0"
		p, q := b.process(), b.process()
		src := &truth{query: 5 * time.Second}
		refreshing := NewLoader(p.locker(), p.deleteCache(), src.load)
		l := NewLoader(q.locker(), q.deleteCache(), src.load)
		require.Equal(t, loaded{"0", nil, 0}, <-goLoad(t.Context(), refreshing, "k"))
		time.Sleep(time.Second)
		start := time.Now()
		require.NoError(t, l.Update(t.Context(), "k", src.next))
		require.Equal(t, 4*time.Second, time.Since(start))
		for _, l := range []*Loader[string]{l, refreshing} {
			require.Equal(t, "1", (<-goLoad(t.Context(), l, "k")).v)
		}
		requireIdle(t, l, b, "k")
	})
}

// Several processes load at random times around many Updates. What a caller gets was true at the last Update that had
// returned before its call, or later.
func TestUpdateStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		pause := func(i, n int) { time.Sleep(time.Duration(i*7919%n) * time.Millisecond) }
		var calls, updated atomic.Int64
		src := new(truth)
		var ls []*Loader[string]
		for range 3 {
			p := b.process()
			wait := func(context.Context) error { pause(int(calls.Add(1)), 13); return nil }
			p.onGet = func(ctx context.Context, _ string) error { return wait(ctx) } // before it reads
			p.onSet, p.onDelete = wait, wait
			ls = append(ls, NewLoader(p.locker(), p.deleteCache(), func(context.Context, string) (string, error) {
				v := src.Load()
				pause(int(calls.Add(1)), 29)
				return strconv.FormatInt(v, 10), nil
			}))
		}
		end := time.Now().Add(20 * time.Second)
		done := make(chan error)
		for i := range 20 {
			go func() {
				for n := i; time.Now().Before(end); n++ {
					pause(n, 31)
					at := updated.Load()
					v, err := ls[n%len(ls)].Load(context.Background(), "k")
					got, _ := strconv.ParseInt(v, 10, 64)
					if err != nil || got < at {
						done <- fmt.Errorf("got %q, %v after Update %d", v, err, at)
						return
					}
				}
				done <- nil
			}()
		}
		for i := range 2 {
			go func() {
				for n := i; time.Now().Before(end); n++ {
					var v int64
					err := ls[n%len(ls)].Update(context.Background(), "k", func(context.Context) error {
						pause(n, 11)
						v = src.Add(1)
						return nil
					})
					if err != nil {
						done <- err
						return
					}
					for old := updated.Load(); old < v && !updated.CompareAndSwap(old, v); old = updated.Load() {
					}
					pause(n, 67)
				}
				done <- nil
			}()
		}
		for range 22 {
			require.NoError(t, <-done)
		}
		t.Logf("%d Updates", updated.Load())
		require.Greater(t, updated.Load(), int64(100))
		time.Sleep(time.Second)
		for _, l := range ls {
			requireIdle(t, l, b, "k")
		}
	})
}

func TestUpdateMistakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		source := p.slowly(0, "v")
		l := NewLoader(p.locker(), p.deleteCache(), source)
		for _, tc := range []struct {
			l      *Loader[string]
			key    string
			change func(context.Context) error
			want   string
			is     error
		}{
			{nil, "k", notCalled(t), `singleflight: update "k": nil Loader`, nil},
			{NewLoader(nil, p.cache(), source), "k", notCalled(t), `singleflight: update "k": nil Locker`, nil},
			{l, "k", nil, `singleflight: update "k": nil change`, nil},
			{l, "", notCalled(t), `singleflight: update "": invalid key: empty`, locker.ErrInvalidKey},
			{NewLoader(p.locker(), p.cache(), source), "k", notCalled(t),
				`singleflight: update "k": the Cache is not a Deleter: unsupported operation`, errors.ErrUnsupported},
			{NewLoader(p.locker(), p.deleteCache(), source, WithLockTTL(time.Microsecond)), "k", notCalled(t),
				`singleflight: update "k": locker: lock "k": invalid ttl: 1µs is less than a millisecond`, locker.ErrInvalidTTL},
		} {
			err := tc.l.Update(t.Context(), tc.key, tc.change)
			require.EqualError(t, err, tc.want)
			if tc.is != nil {
				require.ErrorIs(t, err, tc.is)
			}
		}
		require.ErrorIs(t, l.Update(cancelled(), "k", notCalled(t)), context.Canceled)
		require.Empty(t, p.all(), "nothing was asked")
	})
}

// If the lock cannot be taken, nothing is changed.
func TestUpdateNeedsTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		b.set("k", "0")
		p := b.process()
		l := NewLoader(p.locker(), p.deleteCache(), p.slowly(0, "v"))
		lease, err := locker.TryLock(t.Context(), b.locks, "k", time.Hour)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err = l.Update(ctx, "k", notCalled(t))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, locker.ErrHeld)
		require.NoError(t, lease.Unlock(t.Context()))

		p.onAcquire = func(context.Context, string) error { return errDown }
		err = l.Update(t.Context(), "k", notCalled(t))
		require.ErrorIs(t, err, errDown)
		require.True(t, strings.HasPrefix(err.Error(), `singleflight: update "k": locker: lock "k": `), err)
		require.Zero(t, p.count("delete"))
		time.Sleep(time.Minute)
		requireIdle(t, l, b, "k")
	})
}

// However change ends, the value is deleted and the lock released.
func TestUpdateChangeFails(t *testing.T) {
	cause := errors.New("constraint violated")
	for name, fail := range map[string]func() error{
		"error":  func() error { return cause },
		"panic":  func() error { panic(cause) },
		"Goexit": func() error { runtime.Goexit(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBackend()
				b.set("k", "0")
				p := b.process()
				l := NewLoader(p.locker(), p.deleteCache(), p.slowly(0, "v"))
				ended := make(chan any)
				go func() {
					var err error
					defer func() {
						if r := recover(); r != nil {
							ended <- r
						} else {
							ended <- err
						}
					}()
					err = l.Update(t.Context(), "k", func(context.Context) error { return fail() })
				}()
				if got := <-ended; name == "Goexit" {
					require.Nil(t, got)
				} else {
					require.Equal(t, cause, got, "unchanged")
				}
				_, there := b.get("k")
				require.False(t, there)
				requireIdle(t, l, b, "k")
			})
		})
	}
}

// The caller has left when change returns: the value is deleted all the same.
func TestUpdateCallerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		b.set("k", "0")
		p := b.process()
		l := NewLoader(p.locker(), p.deleteCache(), p.slowly(0, "v"))
		ctx, cancel := context.WithCancel(t.Context())
		require.NoError(t, l.Update(ctx, "k", func(context.Context) error { cancel(); return nil }))
		_, there := b.get("k")
		require.False(t, there)
		requireIdle(t, l, b, "k")
	})
}

// The lock is lost during the change, whose context ends then.
func TestUpdateLosesTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		b.set("k", "0")
		p := b.process()
		p.onExtend = func(context.Context) (bool, error) { return false, nil }
		l := NewLoader(p.locker(), p.deleteCache(), p.slowly(0, "v"), WithLockTTL(3*time.Second))
		var cause error
		err := l.Update(t.Context(), "k", func(ctx context.Context) error {
			<-ctx.Done()
			cause = context.Cause(ctx)
			return nil
		})
		require.Equal(t, locker.ErrNotHeld, cause)
		require.ErrorIs(t, err, locker.ErrNotHeld)
		require.EqualError(t, err, `singleflight: update "k": locker: unlock "k": the lock is not held: the backend refused its token`)
		_, there := b.get("k")
		require.False(t, there)
		time.Sleep(time.Minute)
		requireIdle(t, l, b, "k")
	})
}

// A change that hangs holds the lock for MaxHold and the ttl.
func TestUpdateMaxHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		l := NewLoader(p.locker(), p.deleteCache(), p.slowly(0, "v"),
			WithLockTTL(3*time.Second), WithMaxHold(10*time.Second))
		start := time.Now()
		err := l.Update(t.Context(), "k", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		require.ErrorIs(t, err, locker.ErrNotHeld)
		require.LessOrEqual(t, time.Since(start), 13*time.Second)
		requireIdle(t, l, b, "k")
	})
}

// Within change, Load and Update of the same key would wait for themselves, and so would Update within the source.
func TestUpdateWithinItself(t *testing.T) {
	contexts(t, func(t *testing.T, ctx context.Context) {
		b := newBackend()
		p := b.process()
		var l *Loader[string]
		l = NewLoader(p.locker(), p.deleteCache(), func(ctx context.Context, key string) (string, error) {
			if key == "inner" {
				return "inner value", nil
			}
			return "", l.Update(ctx, key, notCalled(t))
		})
		const itself = `the call for "k" calls itself`
		_, err := l.Load(ctx, "k")
		require.EqualError(t, err, `singleflight: update "k": singleflight: `+itself)

		var after context.Context
		require.NoError(t, l.Update(ctx, "k", func(ctx context.Context) error {
			_, err := l.Load(ctx, "k")
			require.ErrorContains(t, err, itself)
			require.ErrorContains(t, l.Update(ctx, "k", notCalled(t)), itself)
			v, err := l.Load(ctx, "inner")
			require.NoError(t, err)
			require.Equal(t, "inner value", v)
			after = ctx
			return l.Update(ctx, "other", func(ctx context.Context) error {
				require.ErrorContains(t, l.Update(ctx, "k", notCalled(t)), itself, "through another key")
				return nil
			})
		}))
		require.NoError(t, l.Update(context.WithoutCancel(after), "k", func(context.Context) error { return nil }))
		requireIdle(t, l, b, "k")
	})
}

// A load in this process that does not hold the lock, since the cache has just refused a value, is not joined after
// an Update, and its value is not stored.
func TestUpdateForgetsLoads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		p.onSet = func(context.Context) error {
			if p.count("set") == 1 {
				return errAnswered
			}
			return nil
		}
		src := &truth{query: 500 * time.Millisecond}
		l := NewLoader(p.locker(), p.deleteCache(), src.load)
		require.Equal(t, "0", (<-goLoad(t.Context(), l, "k")).v)
		synctest.Wait()
		before := goLoad(t.Context(), l, "k")
		time.Sleep(100 * time.Millisecond)
		start := time.Now()
		require.NoError(t, l.Update(t.Context(), "k", src.next))
		require.Zero(t, time.Since(start), "it does not hold the lock")
		require.Equal(t, "1", (<-goLoad(t.Context(), l, "k")).v)
		require.Equal(t, "0", (<-before).v)
		synctest.Wait()
		stored, _ := b.get("k")
		require.Equal(t, "1", stored)
		requireIdle(t, l, b, "k")
	})
}
