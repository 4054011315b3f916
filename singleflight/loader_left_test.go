package singleflight

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/golockers/locker"
)

// deafCache is a cache that ignores contexts. After the second read of a key, which is the one
// under the lock, it lets something happen before it returns.
type deafCache struct {
	fakeCache
	meanwhile func()
}

func (c deafCache) Get(_ context.Context, key string) (string, bool, error) {
	v, ok, err := c.fakeCache.Get(context.Background(), key)
	if c.count("get") == 2 {
		c.meanwhile()
		time.Sleep(time.Second / 10)
	}
	return v, ok, err
}

// Between the lock and the source a load may lose its callers, or its Loader may be closed. The
// source is not called then, and the lock is free.
func TestLoadEndsBeforeTheSource(t *testing.T) {
	for _, why := range []string{"left", "closed"} {
		t.Run(why, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBackend()
				p := b.process()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				c := deafCache{fakeCache: fakeCache{p}}
				var l *Loader[string]
				c.meanwhile = func() {
					cancel()
					if why == "closed" {
						_ = l.Close(ctx)
					}
				}
				l = NewLoader(p.locker(), Cache[string](&c), p.slowly(0, "must not load"))
				loadCtx := ctx
				if why == "closed" {
					loadCtx = t.Context()
				}
				var lease *locker.Lease
				if why == "left" { // while it waits, a load goes on only for its callers
					var err error
					lease, err = locker.TryLock(t.Context(), b.locks, "k", time.Minute)
					require.NoError(t, err)
				}
				loading := goLoad(loadCtx, l, "k")
				if lease != nil {
					synctest.Wait()
					p.reset()
					require.NoError(t, lease.Unlock(t.Context()))
				}
				require.Error(t, (<-loading).err)
				time.Sleep(time.Second)
				require.Zero(t, p.count("source"))
				require.Positive(t, p.count("acquire"))
				requireFree(t, b, "k")
			})
		})
	}
}

// A process that gets the lock finds a value that its callers may not share if the key was
// forgotten a moment ago. Each of them reads it for itself, and none calls the source.
func TestLoadFindsAValueAfterForget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		l := NewLoader(p.locker(), p.cache(), p.slowly(0, "must not load"))
		p.onGet = func(_ context.Context, key string) error {
			if p.count("get") == 2 { // under the lock
				b.set(key, "fresh")
			}
			return nil
		}
		p.onAcquire = func(_ context.Context, key string) error { l.Forget(key); return nil }
		require.Equal(t, loaded{"fresh", nil, 0}, <-goLoad(t.Context(), l, "k"))
		require.Equal(t, 3, p.count("get"))
		require.Zero(t, p.count("source"))
		requireIdle(t, l, b, "k")
	})
}

// A Locker that has been closed is not a backend that fails: the source is not called without it.
func TestLoadWithAClosedLocker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newBackend().process()
		p.onAcquire = func(context.Context, string) error { return locker.ErrClosed }
		l := NewLoader(p.locker(), p.cache(), p.slowly(0, "fresh"))
		require.ErrorIs(t, (<-goLoad(t.Context(), l, "k")).err, locker.ErrClosed)
		require.Zero(t, p.count("source"))
		time.Sleep(time.Minute)
	})
}
