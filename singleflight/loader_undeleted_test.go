package singleflight

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/golockers/locker/memory"
)

// When the deletion fails, the error reports it, and this process serves the old value neither as fresh nor as stale.
// The next load replaces it.
func TestUpdateDeleteFails(t *testing.T) {
	for _, stale := range []bool{false, true} {
		for _, changeFails := range []bool{false, true} {
			t.Run(fmt.Sprintf("stale %t, change fails %t", stale, changeFails), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := newBackend()
					p := b.process()
					if stale {
						b.stale["k"] = "0"
					} else {
						b.set("k", "0")
					}
					p.onDelete = func(context.Context) error { return errAnswered }
					src := &truth{query: time.Second}
					l := NewLoader(p.locker(), p.deleteCache(), src.load)
					cause := errors.New("perhaps committed")
					err := l.Update(t.Context(), "k", func(ctx context.Context) error {
						_ = src.next(ctx)
						if changeFails {
							return cause
						}
						return nil
					})
					require.ErrorIs(t, err, errAnswered)
					if changeFails {
						require.ErrorIs(t, err, cause)
						require.EqualError(t, err, `perhaps committed; singleflight: update "k": `+
							`the value could not be deleted from the cache: cannot decode`)
					} else {
						require.EqualError(t, err, `singleflight: update "k": the change was made, `+
							`but the old value could not be deleted from the cache: cannot decode`)
					}
					requireFree(t, b, "k")

					p.reset()
					require.Equal(t, loaded{"1", nil, time.Second}, <-goLoad(t.Context(), l, "k"))
					synctest.Wait()
					require.Equal(t, []string{"acquire", "set", "release"}, without(p.all(), "delete"))
					stored, _ := b.get("k")
					require.Equal(t, "1", stored)
					require.Equal(t, loaded{"1", nil, 0}, <-goLoad(t.Context(), l, "k"), "up to date again")
					time.Sleep(time.Minute)
					requireIdle(t, l, b, "k")
				})
			})
		}
	}
}

// The cache is down during an Update: when it is back, the old value is deleted in the background, also for the
// other processes. It is not served here meanwhile.
func TestUpdateDeletesLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		b.set("k", "0")
		p, q := b.process(), b.process()
		var down atomic.Bool
		down.Store(true)
		p.onDelete = func(context.Context) error {
			if down.Load() {
				return errDown
			}
			return nil
		}
		src := new(truth)
		p.onSet = p.onDelete
		l := NewLoader(p.locker(), p.deleteCache(), src.load)
		other := NewLoader(q.locker(), q.deleteCache(), src.load)
		require.ErrorIs(t, l.Update(t.Context(), "k", src.next), errDown)
		for range 100 {
			require.Equal(t, "1", (<-goLoad(t.Context(), l, "k")).v)
			time.Sleep(time.Second)
		}
		require.Equal(t, "0", (<-goLoad(t.Context(), other, "k")).v, "as documented")
		require.LessOrEqual(t, p.count("delete"), 10, "ever less often")
		down.Store(false)
		time.Sleep(maxDeleteDelay)
		synctest.Wait()
		_, there := b.get("k")
		require.False(t, there)
		require.Equal(t, "1", (<-goLoad(t.Context(), other, "k")).v)
		requireIdle(t, l, b, "k")
	})
}

// One key whose deletion always fails holds up neither the deletions of others nor Close.
func TestUpdateDeletesOthersLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		var fails atomic.Bool
		fails.Store(true)
		p.onDelete = func(context.Context) error {
			if fails.Load() {
				return errAnswered
			}
			return nil
		}
		l := NewLoader(p.locker(), refusingCache{p.deleteCache(), "refused"}, p.slowly(0, "v"))
		for _, key := range []string{"a", "refused", "b"} {
			b.set(key, "0")
			require.ErrorIs(t, l.Update(t.Context(), key, func(context.Context) error { return nil }), errAnswered)
		}
		fails.Store(false)
		time.Sleep(time.Minute)
		require.Equal(t, []string{"refused"}, l.outdated.snapshot())
		took, err := closeWithin(t, l, time.Minute)
		require.NoError(t, err)
		require.Zero(t, took)
	})
}

// refusingCache never deletes one key.
type refusingCache struct {
	deleteCache
	key string
}

func (c refusingCache) Delete(ctx context.Context, key string) error {
	if key == c.key {
		return errAnswered
	}
	return c.deleteCache.Delete(ctx, key)
}

// A Delete that does not return is left behind.
func TestUpdateDeleteHangs(t *testing.T) {
	for name, ignores := range map[string]bool{"honors its context": false, "ignores its context": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBackend()
				b.set("k", "0")
				p := b.process()
				p.onDelete = func(ctx context.Context) error {
					if p.count("delete") > 1 {
						return nil
					}
					if ignores {
						time.Sleep(time.Minute)
						return errAnswered
					}
					<-ctx.Done()
					return ctx.Err()
				}
				l := NewLoader(p.locker(), p.deleteCache(), p.slowly(0, "v"))
				start := time.Now()
				err := l.Update(t.Context(), "k", func(context.Context) error { return nil })
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.LessOrEqual(t, time.Since(start), defaultOptions.backendTimeout*5/4)
				require.Equal(t, "v", (<-goLoad(t.Context(), l, "k")).v)
				time.Sleep(time.Hour)
				requireIdle(t, l, b, "k")
			})
		})
	}
}

// A value that was loaded before a second Update, and is stored after its deletion failed, does not count as the
// new one.
func TestUpdateOldStoreDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		var fails atomic.Bool
		fails.Store(true)
		p.onDelete = func(context.Context) error {
			if fails.Load() {
				return errAnswered
			}
			return nil
		}
		first := true
		p.onSet = func(context.Context) error {
			if first {
				first = false
				time.Sleep(10 * time.Second) // ignores its context: the lock is released, and Update goes on
			}
			return nil
		}
		src := new(truth)
		l := NewLoader(p.locker(), Cache[string](ignorantCache{p.deleteCache()}), src.load)
		require.ErrorIs(t, l.Update(t.Context(), "k", src.next), errAnswered)
		require.Equal(t, "1", (<-goLoad(t.Context(), l, "k")).v)
		require.ErrorIs(t, l.Update(t.Context(), "k", src.next), errAnswered)
		time.Sleep(20 * time.Second)
		stored, _ := b.get("k")
		require.Equal(t, "1", stored, "the late store")
		require.Equal(t, "2", (<-goLoad(t.Context(), l, "k")).v)
		fails.Store(false)
		time.Sleep(time.Minute)
		requireIdle(t, l, b, "k")
	})
}

// ignorantCache stores whether or not the context has ended.
type ignorantCache struct{ deleteCache }

func (c ignorantCache) Set(ctx context.Context, key, v string) error {
	return c.deleteCache.Set(context.WithoutCancel(ctx), key, v)
}

// A read that begins while the deletion takes its time is not shared with a caller that comes after the Update.
func TestUpdateSlowDeletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		b.set("k", "0")
		p := b.process()
		p.onDelete = func(context.Context) error {
			if p.count("delete") == 1 {
				time.Sleep(time.Minute)
				return errAnswered
			}
			return nil
		}
		src := new(truth)
		l := NewLoader(p.locker(), Cache[string](slowDeleteCache{p.deleteCache()}), src.load)
		updated := make(chan error)
		go func() { updated <- l.Update(t.Context(), "k", src.next) }()
		time.Sleep(defaultOptions.backendTimeout + 450*time.Millisecond) // Forget's time is over
		before := goLoad(t.Context(), l, "k")
		require.ErrorIs(t, <-updated, context.DeadlineExceeded)
		require.Equal(t, "1", (<-goLoad(t.Context(), l, "k")).v)
		<-before
		time.Sleep(time.Hour)
		requireIdle(t, l, b, "k")
	})
}

// slowDeleteCache takes 100 ms from reading to answering.
type slowDeleteCache struct{ deleteCache }

func (c slowDeleteCache) Get(ctx context.Context, key string) (string, bool, error) {
	v, ok, err := c.deleteCache.Get(ctx, key)
	time.Sleep(100 * time.Millisecond)
	return v, ok, err
}

// The keys whose values could not be deleted are limited in number.
func TestUpdateOutdatedKeysAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		l := NewLoader(p.locker(), p.deleteCache(), p.slowly(0, "v"))
		for i := range maxOutdated {
			l.outdated.add(strconv.Itoa(i))
		}
		err := l.Update(t.Context(), "k", notCalled(t))
		require.EqualError(t, err,
			`singleflight: update "k": the values of 65536 other keys could not be deleted from the cache`)
		require.Empty(t, p.all())
		require.NoError(t, l.Update(t.Context(), "7", func(context.Context) error { return nil }), "one of them")
		require.NoError(t, l.Update(t.Context(), "k", func(context.Context) error { return nil }), "there is room")
	})
}

// undeletingCache is a Keeper whose first deletion fails.
type undeletingCache struct {
	*memory.Cache[string]
	deletions atomic.Int32
}

func (c *undeletingCache) Delete(ctx context.Context, key string) error {
	if c.deletions.Add(1) == 1 {
		return errAnswered
	}
	return c.Cache.Delete(ctx, key)
}

// A load of a key whose value could not be deleted has a version, as any other: it stores nothing over
// an Update elsewhere, whether it has lost its lock or had none.
func TestUpdateDeleteFailsThenUpdateElsewhere(t *testing.T) {
	for _, fault := range []string{"lock lost", "no lock"} {
		for _, ttl := range []time.Duration{time.Hour, 90 * 365 * 24 * time.Hour} {
			t.Run(fmt.Sprint(fault, ", values last for ", ttl), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := newBackend()
					p := b.process()
					cache := memory.NewCache(memory.CacheConfig[string]{TTL: ttl})
					src := &truth{query: 300 * time.Millisecond}
					l := NewLoader[string](p.locker(), &undeletingCache{Cache: cache}, src.load)
					other := NewLoader[string](b.process().locker(), cache, src.load)
					require.Equal(t, "0", (<-goLoad(t.Context(), l, "k")).v)
					synctest.Wait()
					require.ErrorIs(t, l.Update(t.Context(), "k", src.next), errAnswered)
					if fault == "no lock" {
						p.onAcquire = func(context.Context, string) error { return errAnswered }
					}
					load := goLoad(t.Context(), l, "k")
					time.Sleep(100 * time.Millisecond)
					if fault == "lock lost" {
						evict(t, b, "k")
					}
					require.NoError(t, other.Update(t.Context(), "k", src.next))
					require.Equal(t, "1", (<-load).v, "it began before")
					synctest.Wait()
					require.Equal(t, "2", (<-goLoad(t.Context(), other, "k")).v)
					require.NoError(t, l.Close(t.Context()))
					require.NoError(t, other.Close(t.Context()))
				})
			})
		}
	}
}
