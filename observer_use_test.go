package locker_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// An Observer may call any method of the lease, whatever the event, and does not wait for itself.
func TestObserverUsesLease(t *testing.T) {
	uses := map[string]func(ctx context.Context, lease *locker.Lease) error{
		"Unlock": func(ctx context.Context, lease *locker.Lease) error { return lease.Unlock(ctx) },
		"Detach": func(_ context.Context, lease *locker.Lease) error { lease.Detach(); return nil },
		"Extend": func(ctx context.Context, lease *locker.Lease) error {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Hour)
			defer cancel()
			return lease.Extend(ctx, 2*time.Minute)
		},
	}
	outcomes := map[locker.EventKind]func(f *fake){
		locker.Extended: func(*fake) {},
		locker.ExtendFailed: func(f *fake) {
			f.extendBy(func(context.Context, string, time.Duration) (bool, error) {
				f.extendBy(nil)
				return false, errBackend
			})
		},
		locker.Lost: func(f *fake) { f.steal("k", time.Hour) },
	}
	for name, use := range uses {
		for kind, arrange := range outcomes {
			for by, extend := range map[string]func(lease *locker.Lease){
				"the keep-alive": func(*locker.Lease) { time.Sleep(20 * time.Second) },
				"Extend":         func(lease *locker.Lease) { _ = lease.Extend(context.Background(), time.Minute) },
			} {
				bubble(t, name+" when "+kind.String()+" by "+by, func(t *testing.T) {
					f := &fake{}
					var held atomic.Pointer[locker.Lease]
					var once atomic.Bool
					var took time.Duration
					var err error
					used := make(chan struct{})
					j := &journal{use: func(ctx context.Context, e locker.Event) {
						if e.Kind != kind || once.Swap(true) {
							return
						}
						start := time.Now()
						err = use(ctx, held.Load())
						took = time.Since(start)
						close(used)
					}}
					lease := tryLock(t, locker.Observed(f, j), time.Minute, locker.WithKeepAlive())
					held.Store(lease)
					arrange(f)
					go extend(lease)
					select {
					case <-used:
					case <-time.After(time.Hour):
						require.Fail(t, "the Observer hangs")
					}
					assert.Zero(t, took)
					if kind == locker.Lost && name != "Detach" {
						assert.ErrorIs(t, err, locker.ErrNotHeld)
					} else {
						assert.NoError(t, err)
					}
					if name == "Unlock" && kind != locker.Lost {
						assert.True(t, f.isFree("k"))
					}
					lease.Detach()
					time.Sleep(time.Minute)
				})
			}
		}
	}
}
