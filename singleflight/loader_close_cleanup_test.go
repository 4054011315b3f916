package singleflight

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golockers/locker"
)

// lostReplyLocker takes the lock, and its reply is lost.
type lostReplyLocker struct{ locker.Locker }

func (l lostReplyLocker) Acquire(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	_, _ = l.Locker.Acquire(ctx, key, token, ttl)
	return false, errAnswered
}

func (l lostReplyLocker) Release(ctx context.Context, key, token string) (bool, error) {
	time.Sleep(200 * time.Millisecond)
	return l.Locker.Release(ctx, key, token)
}

// Close waits for the release of a lock that an attempt without an answer may have taken.
func TestCloseAwaitsCleanups(t *testing.T) {
	ignore := func(context.Context, locker.Event) {}
	for name, wrap := range map[string]func(locker.Locker) locker.Locker{
		"plain":    func(l locker.Locker) locker.Locker { return l },
		"observed": func(l locker.Locker) locker.Locker { return locker.Observed(l, observerFunc(ignore)) },
		"observed twice": func(l locker.Locker) locker.Locker {
			return locker.Observed(locker.Observed(l, observerFunc(ignore)), observerFunc(ignore))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBackend()
				p := b.process()
				l := NewLoader(wrap(lostReplyLocker{p.locker()}), p.cache(), p.slowly(0, "fresh"))
				require.Equal(t, "fresh", (<-goLoad(t.Context(), l, "k")).v)
				took, err := closeWithin(t, l, time.Minute)
				require.NoError(t, err)
				require.Equal(t, 100*time.Millisecond, took, "the load has waited for as long")
				requireFree(t, b, "k")
			})
		})
	}
}

// Other users of the Locker, who try again and again while its backend is down, do not hold up Close.
func TestCloseIgnoresLaterCleanups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newBackend().process()
		p.onAcquire = func(context.Context, string) error { return errAnswered }
		p.onRelease = func(context.Context) (bool, error) { return false, errAnswered }
		locks := p.locker()
		l := NewLoader(locks, p.cache(), p.slowly(0, "fresh"))
		stop := make(chan struct{})
		go func() {
			for {
				select {
				case <-time.After(time.Second):
					_, err := locker.TryLock(t.Context(), locks, "other", time.Minute)
					assert.ErrorIs(t, err, errAnswered)
				case <-stop:
					return
				}
			}
		}()
		time.Sleep(10500 * time.Millisecond)
		took, err := closeWithin(t, l, 5*time.Minute)
		close(stop)
		require.NoError(t, err)
		require.LessOrEqual(t, took, time.Minute, "how long a cleanup goes on")
		time.Sleep(2 * time.Minute)
	})
}
