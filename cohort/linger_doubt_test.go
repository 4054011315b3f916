package cohort_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/cohort"
	"github.com/golockers/locker/internal/demand"
	"github.com/golockers/locker/memory"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A Wait whose context ends leaves no lock behind. If it ends while a lock that lingers is extended
// for it, the Locker gives the lock up, since no caller releases it.
func TestLingerWaiterLeavesDuringExtension(t *testing.T) {
	for _, answer := range []string{"lost", "late"} {
		t.Run(answer, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := memory.New()
				s := &scripted{Locker: m, scripts: make(map[string]script)}
				l := lingering(s)
				use(t, l, time.Minute)
				s.on("extend", func(ctx context.Context, apply func() (bool, error)) (bool, error) {
					s.on("extend", nil)
					if answer == "late" {
						time.AfterFunc(time.Minute, func() { _, _ = apply() })
					} else {
						_, _ = apply()
					}
					<-ctx.Done()
					return false, ctx.Err()
				})
				s.on("release", func(ctx context.Context, apply func() (bool, error)) (bool, error) {
					assert.NoError(t, ctx.Err(), "the waiter's context, which has ended")
					return apply()
				})
				ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
				defer cancel()
				_, err := l.Wait(ctx, "k", "leaves", time.Hour)
				require.ErrorIs(t, err, context.DeadlineExceeded)

				start := time.Now()
				lease, err := locker.TryLock(t.Context(), l, "k", time.Minute)
				require.NoError(t, err, "no caller uses the lock")
				require.NoError(t, lease.Unlock(t.Context()))
				require.NoError(t, mustLock(t, m, time.Minute).Unlock(t.Context()), "another process")
				assert.Zero(t, time.Since(start))
				released, err := l.Release(t.Context(), "k", "leaves")
				require.NoError(t, err)
				assert.False(t, released)
				time.Sleep(time.Hour + time.Minute)
			})
		})
	}
}

// The release that a failed Wait leaves to the Locker is repeated until it is answered.
func TestLingerWaiterLeavesWhileTheBackendIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memory.New()
		s := &scripted{Locker: m, scripts: make(map[string]script)}
		l := lingering(s)
		use(t, l, time.Minute)
		down := func(context.Context, func() (bool, error)) (bool, error) { return false, errNoAnswer }
		s.on("extend", down)
		s.on("release", down)
		_, err := l.Wait(t.Context(), "k", "fails", time.Hour)
		require.ErrorIs(t, err, errNoAnswer)
		time.Sleep(time.Second)
		assert.NotEmpty(t, held(t, m))
		s.on("release", nil)
		time.Sleep(2 * time.Second)
		assert.Empty(t, held(t, m))
		s.on("extend", nil)
		use(t, l, time.Minute)
		time.Sleep(2 * time.Hour)
		assert.Zero(t, cohort.Entries(l))
	})
}

// Demands that come while a lock is being given up are answered. The number that wait is limited.
func TestLingerManyDemands(t *testing.T) {
	overDemander(t, func(t *testing.T, _ *memory.Locker, inner locker.Locker, _ *counting) {
		slow := slowRelease{inner.(demanding), make(chan struct{}), make(chan struct{})}
		e := &eavesdropper{demanding: slow.demanding}
		l := lingering(overheard{slow, e})
		use(t, l, time.Minute)
		<-slow.started
		answers := make(chan bool, 1000)
		for range cap(answers) {
			e.owner.Wanted("k", func(isFree bool) { answers <- isFree })
		}
		assert.Len(t, answers, cap(answers)-256, "without a bound, or not answered at once")
		for len(answers) > 0 {
			assert.False(t, <-answers, "it is not free yet")
		}
		slow.goOn <- struct{}{}
		for range 256 {
			assert.True(t, <-answers)
		}
	})
}

// overheard is slowRelease with the demands of an eavesdropper.
type overheard struct {
	slowRelease
	e *eavesdropper
}

func (o overheard) Listen(owner demand.Owner) demand.Listener { return o.e.Listen(owner) }
