package singleflight

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golockers/locker"
)

// With the defaults, processes that have waited in vain do not all call the source at once, and none calls it before
// a holder that hangs must have lost the lock.
func TestLoadDefaultWaitIsSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const processes = 50
		b := newBackend()
		_, err := locker.TryLock(t.Context(), b.locks, "k", time.Hour)
		require.NoError(t, err)
		start := time.Now()
		var mu sync.Mutex
		var at []time.Duration
		var cs []<-chan loaded
		for range processes {
			p := b.process()
			l := NewLoader(p.locker(), p.cache(), func(context.Context, string) (string, error) {
				mu.Lock()
				defer mu.Unlock()
				at = append(at, time.Since(start))
				return "fresh", nil
			})
			cs = append(cs, goLoad(t.Context(), l, "k"))
		}
		for _, c := range cs {
			require.NoError(t, (<-c).err)
		}
		require.Len(t, at, processes)
		slices.Sort(at)
		t.Logf("the first after %v, the last after %v", at[0], at[processes-1])
		require.Greater(t, at[0], 70*time.Second)
		require.Less(t, at[processes-1], 110*time.Second)
		for i := range at[:processes-10] {
			require.Greater(t, at[i+10]-at[i], 100*time.Millisecond, "eleven at once: %v", at)
		}
	})
}

// When the cache refuses writes or the source fails, the processes do not go on one after the other: each caller has
// its answer after four loads, however many processes there are.
func TestLoadFruitlessEverywhere(t *testing.T) {
	const processes, takes = 200, time.Second
	cause := errors.New("the source is down")
	for name, tc := range map[string]struct {
		set    func(context.Context) error
		result error
	}{
		"the cache refuses writes": {func(context.Context) error { return errors.New("OOM") }, nil},
		"the source fails":         {nil, cause},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBackend()
				var sources atomic.Int32
				var ls []*Loader[string]
				for range processes {
					p := b.process()
					p.onSet = tc.set
					ls = append(ls, NewLoader(p.locker(), p.cache(), func(context.Context, string) (string, error) {
						sources.Add(1)
						time.Sleep(takes)
						return "fresh", tc.result
					}))
				}
				load := func(l *Loader[string]) (took time.Duration) {
					start := time.Now()
					ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
					defer cancel()
					_, err := l.Load(ctx, "k")
					assert.True(t, err == tc.result, "%v", err)
					return time.Since(start)
				}
				var longest, again atomic.Int64
				var wg sync.WaitGroup
				for _, l := range ls {
					for range 3 {
						wg.Go(func() {
							longest.Store(max(longest.Load(), int64(load(l))))
							time.Sleep(time.Millisecond)
							again.Store(max(again.Load(), int64(load(l))))
						})
					}
				}
				wg.Wait()
				t.Logf("the longest wait %v, then %v", time.Duration(longest.Load()), time.Duration(again.Load()))
				require.LessOrEqual(t, time.Duration(longest.Load()), 4*takes)
				require.LessOrEqual(t, sources.Load(), int32(2*processes), "each process once for each of its loads")
				if tc.result == nil {
					require.LessOrEqual(t, time.Duration(again.Load()), takes, "one that was refused does not queue again")
				} else {
					require.LessOrEqual(t, time.Duration(again.Load()), 4*takes)
				}
				synctest.Wait()
				requireIdle(t, ls[0], b, "k")
			})
		})
	}
}

// After a first failure the processes still try one at a time, and the first value serves them all.
func TestLoadSourceFailsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		var sources atomic.Int32
		var cs []<-chan loaded
		for range 50 {
			p := b.process()
			l := NewLoader(p.locker(), p.cache(), func(context.Context, string) (string, error) {
				time.Sleep(time.Second)
				if sources.Add(1) == 1 {
					return "", errors.New("once")
				}
				return "fresh", nil
			})
			cs = append(cs, goLoad(t.Context(), l, "k"))
		}
		failed := 0
		for _, c := range cs {
			got := <-c
			if got.err != nil {
				failed++
			} else {
				require.Equal(t, 2*time.Second, got.took)
			}
		}
		require.Equal(t, 1, failed)
		require.EqualValues(t, 2, sources.Load())
	})
}

// When the cache takes writes again, the next load but one is under the lock again.
func TestLoadCacheTakesWritesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		var full atomic.Bool
		full.Store(true)
		p.onSet = func(context.Context) error {
			if full.Load() {
				return errors.New("OOM")
			}
			return nil
		}
		l := NewLoader(p.locker(), p.cache(), p.slowly(10*time.Millisecond, "fresh"))
		load := func() []string {
			p.reset()
			require.NoError(t, (<-goLoad(t.Context(), l, "k")).err)
			synctest.Wait()
			return p.all()
		}
		require.Equal(t, []string{"get", "acquire", "get", "source", "set", "release"}, load())
		require.Equal(t, []string{"get", "source", "set"}, load())
		p.reset()
		require.NoError(t, (<-goLoad(t.Context(), l, "another")).err)
		require.Equal(t, 1, p.count("acquire"), "another key is not concerned")
		synctest.Wait()
		full.Store(false)
		require.Equal(t, []string{"get", "source", "set"}, load())
		require.Equal(t, []string{"get"}, load())
		b.remove("k")
		require.Equal(t, []string{"get", "acquire", "get", "source", "set", "release"}, load())
	})
}
