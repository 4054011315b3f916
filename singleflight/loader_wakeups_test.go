package singleflight

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Wake-ups that no release caused, such as those of a subscription that breaks, do not make the processes that
// wait call the source.
func TestLoadSpuriousWakeups(t *testing.T) {
	for name, tc := range map[string]struct {
		takes time.Duration
		wake  func(wake func())
	}{
		"a broken subscription": {30 * time.Second, func(wake func()) {
			time.Sleep(1500 * time.Millisecond)
			for range 5 {
				wake()
				time.Sleep(100 * time.Millisecond)
			}
		}},
		"every 10 ms":  {2 * time.Second, every(10 * time.Millisecond)},
		"every 500 ms": {2 * time.Second, every(500 * time.Millisecond)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBackend()
				var sources atomic.Int32
				var cs []<-chan loaded
				for range 50 {
					p := b.process()
					p.onWatch = func(ctx context.Context) (<-chan struct{}, error) {
						in, err := b.locks.Watch(ctx, "k")
						out := make(chan struct{}, 1)
						wake := func() {
							select {
							case out <- struct{}{}:
							default:
							}
						}
						go func() {
							for {
								select {
								case <-in:
									wake()
								case <-ctx.Done():
									return
								}
							}
						}()
						go tc.wake(wake)
						return out, err
					}
					l := NewLoader(p.locker(), p.cache(), func(context.Context, string) (string, error) {
						sources.Add(1)
						time.Sleep(tc.takes)
						return "fresh", nil
					})
					cs = append(cs, goLoad(t.Context(), l, "k"))
				}
				for _, c := range cs {
					require.Equal(t, loaded{"fresh", nil, tc.takes}, <-c)
				}
				require.EqualValues(t, 1, sources.Load())
				time.Sleep(5 * time.Second) // until nothing wakes any more
			})
		})
	}
}

func every(d time.Duration) func(wake func()) {
	return func(wake func()) {
		for range 3 * time.Second / d {
			time.Sleep(d)
			wake()
		}
	}
}
