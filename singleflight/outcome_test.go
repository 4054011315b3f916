package singleflight

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golockers/locker"
	"github.com/golockers/locker/memory"
)

// shared is what the processes of a test share: the locks, and a cache that keeps loads.
type shared struct {
	locks *memory.Locker
	cache *memory.Cache[string]
	calls atomic.Int64 // of the source
}

func newShared() *shared {
	return &shared{locks: memory.New(), cache: memory.NewCache(memory.CacheConfig[string]{TTL: time.Minute})}
}

// plainLocker hides the optional interfaces of a Locker, so that waiters poll.
type plainLocker struct{ locker.Locker }

// process returns the Loader of one process, with a source that takes d.
func (s *shared) process(d time.Duration, source func(n int64) (string, error), opts ...LoaderOption) *Loader[string] {
	return NewLoader[string](s.locks, s.cache, s.slowly(d, source), opts...)
}

func (s *shared) slowly(d time.Duration, source func(n int64) (string, error)) func(context.Context, string) (string, error) {
	return func(ctx context.Context, _ string) (string, error) {
		n := s.calls.Add(1)
		select {
		case <-time.After(d):
			return source(n)
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

// A source that fails in 8 processes with 50 callers each is called once: all of them get the error, at
// once, and no cache has it. Those that come later start a new load.
func TestFailureIsShared(t *testing.T) {
	for _, watched := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			s := newShared()
			var processes []*Loader[string]
			for range 8 {
				l := s.process(time.Second, func(n int64) (string, error) { return "", fmt.Errorf("failure %d: %w", n, io.ErrNoProgress) },
					WithSentinels(io.EOF, io.ErrNoProgress))
				if !watched {
					l.locker = plainLocker{s.locks}
				}
				processes = append(processes, l)
			}
			for round := 1; round <= 3; round++ {
				var callers sync.WaitGroup
				began := time.Now()
				var remote, local atomic.Int64
				for _, l := range processes {
					for range 50 {
						callers.Go(func() {
							_, err := l.Load(t.Context(), "k")
							assert.ErrorIs(t, err, io.ErrNoProgress)
							assert.NotErrorIs(t, err, io.EOF)
							var r *RemoteError
							if !errors.As(err, &r) {
								local.Add(1)
								return
							}
							remote.Add(1)
							assert.Equal(t, fmt.Sprintf("failure %d: %v", round, io.ErrNoProgress), r.Text)
							assert.Equal(t, "k", r.Key)
							assert.WithinDuration(t, began.Add(time.Second), r.At, time.Millisecond)
						})
					}
				}
				callers.Wait()
				require.EqualValues(t, round, s.calls.Load(), "the source is called once a round")
				require.EqualValues(t, 50, local.Load())
				require.EqualValues(t, 7*50, remote.Load())
				if watched {
					require.Equal(t, time.Second, time.Since(began), "all have it at once")
				} else {
					require.Less(t, time.Since(began), time.Second+2*lastPoll)
				}
			}
			for _, l := range processes {
				require.NoError(t, l.Close(t.Context()))
			}
			_, ok, err := s.cache.Get(t.Context(), "k")
			require.NoError(t, err)
			require.False(t, ok)
		})
	}
}

// A failure concerns nobody that began after it, in this process or in another.
func TestFailureIsNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShared()
		fails := func(n int64) (string, error) {
			if n%2 == 1 {
				return "", errors.New("it failed")
			}
			return "value", nil
		}
		a, b := s.process(time.Second, fails), s.process(time.Second, fails)
		_, err := a.Load(t.Context(), "k")
		require.EqualError(t, err, "it failed")
		v, err := a.Load(t.Context(), "k") // at the same moment, before the failure is published
		require.NoError(t, err)
		require.Equal(t, "value", v)

		require.NoError(t, s.cache.Delete(t.Context(), "k"))
		synctest.Wait()
		_, err = a.Load(t.Context(), "k")
		require.EqualError(t, err, "it failed")
		synctest.Wait()
		time.Sleep(time.Millisecond)
		v, err = b.Load(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, "value", v)
		require.EqualValues(t, 4, s.calls.Load())
	})
}

// The end of a context in one process is no error for another.
func TestContextIsNotShared(t *testing.T) {
	for name, end := range map[string]error{"canceled": context.Canceled, "late": fmt.Errorf("x: %w", context.DeadlineExceeded)} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newShared()
				a := s.process(time.Second, func(int64) (string, error) { return "", end })
				b := s.process(time.Second, func(int64) (string, error) { return "value", nil })
				failed := goLoad(t.Context(), a, "k")
				synctest.Wait()
				loaded := goLoad(t.Context(), b, "k")
				require.Equal(t, end, (<-failed).err)
				got := <-loaded
				require.NoError(t, got.err)
				require.Equal(t, "value", got.v)
			})
		})
	}
}

// A value that was read before an Update is not stored after it, whatever has become of the lock.
func TestNoOldValueAfterUpdate(t *testing.T) {
	for name, lose := range map[string]bool{"without the lock": false, "lock lost": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newShared()
				locks := watchLocker{pollLocker{&fakeProcess{backend: &fakeBackend{locks: s.locks}}}}
				if lose {
					locks.onExtend = func(context.Context) (bool, error) { return false, errors.New("stopped") }
				} else {
					locks.onAcquire = func(context.Context, string) error { return errors.New("down") }
				}
				stopped := NewLoader[string](locks, s.cache, s.slowly(time.Minute, func(int64) (string, error) { return "old", nil }),
					WithLockTTL(time.Second), WithMaxHold(time.Hour))
				old := goLoad(t.Context(), stopped, "k")
				time.Sleep(10 * time.Second)

				b := s.process(time.Second, func(int64) (string, error) { return "new", nil })
				require.NoError(t, b.Update(t.Context(), "k", func(context.Context) error { return nil }))
				require.Equal(t, "old", (<-old).v)
				synctest.Wait()
				time.Sleep(time.Second)
				_, ok, err := s.cache.Get(t.Context(), "k")
				require.NoError(t, err)
				require.False(t, ok, "the old value was stored")
				v, err := b.Load(t.Context(), "k")
				require.NoError(t, err)
				require.Equal(t, "new", v)
				time.Sleep(10 * time.Second) // the cleanup of the failed attempt
			})
		})
	}
}

// pointerError is an error whose method panics if it is nil.
type pointerError struct{ text string }

func (e *pointerError) Error() string { return e.text }

// A source that returns a nil pointer as its error leaves no lock behind, and other processes call
// their own.
func TestFailureThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShared()
		var processes []*Loader[string]
		for range 2 {
			processes = append(processes, s.process(time.Second, func(int64) (string, error) { return "", (*pointerError)(nil) }))
		}
		var callers sync.WaitGroup
		began := time.Now()
		for _, l := range processes {
			callers.Go(func() {
				_, err := l.Load(t.Context(), "k")
				assert.Equal(t, (*pointerError)(nil), err)
			})
		}
		callers.Wait()
		require.Equal(t, 2*time.Second, time.Since(began))
		_, err := processes[0].LoadMany(t.Context(), []string{"k", "l"})
		require.ErrorContains(t, err, `load "l": <nil>`)
		synctest.Wait()
		for _, l := range processes {
			require.Empty(t, l.work.m)
			require.NoError(t, l.Close(t.Context()))
		}
	})
}

// wrapper is an error whose methods panic if it is nil.
type wrapper struct{ err error }

func (e *wrapper) Error() string { return e.err.Error() }
func (e *wrapper) Unwrap() error { return e.err }

// Nor does such an error end the program when nobody is left to get it.
func TestFailureThatPanicsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShared()
		l := s.process(time.Minute/2, func(int64) (string, error) { return "", (*wrapper)(nil) })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.NoError(t, locker.Do(ctx, memory.New(), "any", time.Minute, func(held context.Context) error {
			_, err := l.Load(held, "k")
			require.Equal(t, context.DeadlineExceeded, err)
			return nil
		}))
		time.Sleep(time.Minute)
		require.EqualValues(t, 1, s.calls.Load())
		require.NoError(t, l.Close(t.Context()))
	})
}

// A sentinel that is nil is none.
func TestNilSentinel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShared()
		fail := func(int64) (string, error) { return "", io.EOF }
		a, b := s.process(time.Second, fail, WithSentinels(nil, io.EOF)), s.process(time.Second, fail, WithSentinels(nil, io.EOF))
		go a.Load(t.Context(), "k")
		synctest.Wait()
		_, err := b.Load(t.Context(), "k")
		require.ErrorIs(t, err, io.EOF)
		require.ErrorAs(t, err, new(*RemoteError))
	})
}
