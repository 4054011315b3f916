package singleflight

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Of the processes that read a value that will soon expire, one refreshes it. Nobody waits for that.
func TestRefreshAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShared() // values last for a minute
		var processes []*Loader[string]
		for range 4 {
			processes = append(processes, s.process(time.Second, func(n int64) (string, error) {
				if n == 3 {
					return "", errors.New("it failed")
				}
				return string(rune('a' + n)), nil
			}, WithRefreshAhead(10*time.Second), WithOutagePause(5*time.Second)))
		}
		read := func(want string, calls int64) {
			t.Helper()
			for _, l := range processes {
				began := time.Now()
				v, err := l.Load(t.Context(), "k")
				require.NoError(t, err)
				require.Equal(t, want, v)
				if calls > 1 {
					require.Zero(t, time.Since(began))
				}
			}
			synctest.Wait()
			require.Equal(t, calls, s.calls.Load())
		}
		read("b", 1)
		time.Sleep(50*time.Second - time.Nanosecond)
		read("b", 1)
		time.Sleep(time.Nanosecond * 2)
		read("b", 2)
		read("b", 2)
		time.Sleep(2 * time.Second)
		read("c", 2)
		values, err := processes[0].LoadMany(t.Context(), []string{"k"})
		require.NoError(t, err)
		require.Equal(t, map[string]string{"k": "c"}, values)
		synctest.Wait()
		require.EqualValues(t, 2, s.calls.Load())

		time.Sleep(51 * time.Second) // the refresh fails: the value stays
		values, err = processes[0].LoadMany(t.Context(), []string{"k"})
		require.NoError(t, err)
		require.Equal(t, map[string]string{"k": "c"}, values)
		synctest.Wait()
		require.EqualValues(t, 3, s.calls.Load())
		time.Sleep(1001 * time.Millisecond)
		v, err := processes[0].Load(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, "c", v)
		synctest.Wait()
		require.EqualValues(t, 3, s.calls.Load(), "it is left alone for a while")
		time.Sleep(5 * time.Second)
		read("c", 4)
		time.Sleep(2 * time.Second)
		read("e", 4)
		for _, l := range processes {
			require.NoError(t, l.Close(t.Context()))
		}
	})
}

// What a refresh ahead read before an Update is not stored after it.
func TestRefreshAheadStoresNothingOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShared()
		locks := pollLocker{&fakeProcess{backend: &fakeBackend{locks: s.locks}}}
		locks.onExtend = func(context.Context) (bool, error) { return false, errors.New("stopped") }
		l := NewLoader[string](locks, s.cache, s.slowly(20*time.Second, func(int64) (string, error) { return "old", nil }),
			WithRefreshAhead(time.Hour), WithLockTTL(time.Second))
		require.NoError(t, s.cache.Set(t.Context(), "k", "old"))
		v, err := l.Load(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, "old", v)
		synctest.Wait()
		b := s.process(0, func(int64) (string, error) { return "new", nil })
		time.Sleep(2 * time.Second)
		require.NoError(t, b.Update(t.Context(), "k", func(context.Context) error { return nil }))
		time.Sleep(30 * time.Second)
		_, ok, err := s.cache.Get(t.Context(), "k")
		require.NoError(t, err)
		require.False(t, ok)
		require.NoError(t, l.Close(t.Context()))
	})
}
