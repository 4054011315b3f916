package bytecache_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golockers/locker"
	"github.com/golockers/locker/singleflight"
	"github.com/golockers/locker/singleflight/slots"
)

// A source that fails is called once or twice a round by 8 processes with 50 callers each.
func TestFleetSharesFailure(t *testing.T) {
	t.Parallel()
	for _, b := range backends {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			addr := b.start(t).Addr
			var calls atomic.Int64
			var loaders []*singleflight.Loader[string]
			for range 8 {
				locks, cache, _ := b.connect(t, addr, config{TTL: time.Minute})
				l := singleflight.NewLoader(locks, cache, func(context.Context, string) (string, error) {
					calls.Add(1)
					time.Sleep(300 * time.Millisecond)
					return "", errors.New("it failed")
				})
				t.Cleanup(func() { assert.NoError(t, l.Close(context.Background())) })
				loaders = append(loaders, l)
			}
			for range 3 {
				calls.Store(0)
				var callers sync.WaitGroup
				var remote atomic.Int64
				for _, l := range loaders {
					for range 50 {
						callers.Go(func() {
							_, err := l.Load(t.Context(), "hot")
							assert.ErrorContains(t, err, "it failed")
							if errors.As(err, new(*singleflight.RemoteError)) {
								remote.Add(1)
							}
						})
					}
				}
				callers.Wait()
				assert.LessOrEqual(t, calls.Load(), int64(2))
				assert.GreaterOrEqual(t, remote.Load(), int64(6*50))
			}
		})
	}
}

// A value whose load began before an Update is not stored after it, by a process that was stopped in
// between for longer than its lock lasts.
func TestStoppedLoaderStoresNothingOld(t *testing.T) {
	t.Parallel()
	for _, b := range backends {
		for _, stale := range []time.Duration{0, time.Hour} {
			t.Run(b.name+"/stale "+stale.String(), func(t *testing.T) {
				t.Parallel()
				addr := b.start(t).Addr
				locks, cache, _ := b.connect(t, addr, config{TTL: time.Second, Stale: stale})
				require.NoError(t, cache.Set(t.Context(), "k", "older"))
				require.Eventually(t, func() bool {
					_, ok, err := cache.Get(t.Context(), "k")
					return err == nil && !ok
				}, time.Minute, 10*time.Millisecond)
				keeper := cache.(slots.Keeper[string])
				old := &slots.Slot[string]{Key: "k", Hold: time.Minute}
				require.NoError(t, keeper.Look(t.Context(), old)) // its miss
				require.NotZero(t, old.Version)

				_, other, _ := b.connect(t, addr, config{TTL: time.Hour, Stale: stale})
				l := singleflight.NewLoader(locks, other, func(context.Context, string) (string, error) { return "new", nil })
				t.Cleanup(func() { assert.NoError(t, l.Close(context.Background())) })
				for _, then := range []func() error{
					func() error { return nil },
					func() error { _, err := l.Load(t.Context(), "k"); return err },
					func() error {
						return locker.Do(t.Context(), locks, "k", time.Minute, func(context.Context) error { return nil })
					},
				} {
					require.NoError(t, l.Update(t.Context(), "k", func(context.Context) error { return nil }))
					require.NoError(t, then())
					old.Value = "old"
					require.NoError(t, keeper.Put(t.Context(), old))
					require.NoError(t, old.Err)
					require.False(t, old.Stored)
					v, err := l.Load(t.Context(), "k")
					require.NoError(t, err)
					require.Equal(t, "new", v)
				}
			})
		}
	}
}
