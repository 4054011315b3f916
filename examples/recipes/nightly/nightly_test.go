package nightly

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/golockers/locker"
	"github.com/golockers/locker/examples/recipes/internal/replicas"
	"github.com/golockers/locker/lockertest"
	"github.com/golockers/locker/memory"
	"github.com/golockers/locker/redisv9"
	"github.com/google/uuid"
	"github.com/jonboulle/clockwork"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Three schedulers, on clocks that differ by minutes, write the report once a night.
func TestGocron(t *testing.T) {
	t.Parallel()
	evening := time.Date(2026, 3, 1, 23, 0, 0, 0, time.UTC)
	ran, refused := make(chan string, 10), make(chan error, 10)
	var clocks []*clockwork.FakeClock
	for i, client := range replicas.Clients(t, 3) {
		clock := clockwork.NewFakeClockAt(evening.Add(time.Duration(i) * time.Minute))
		clocks = append(clocks, clock)
		s, err := gocron.NewScheduler(gocron.WithClock(clock), gocron.WithLocation(time.UTC),
			gocron.WithGlobalJobOptions(gocron.WithEventListeners(
				gocron.AfterJobRuns(func(_ uuid.UUID, name string) { ran <- name }),
				gocron.AfterLockError(func(_ uuid.UUID, _ string, err error) { refused <- err }))))
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, s.Shutdown()) })
		require.NoError(t, Schedule(s, redisv9.New(client), func(context.Context) error { return nil }))
		s.Start()
	}
	for i, clock := range clocks { // each comes to the time when the ones before it have finished
		require.NoError(t, clock.BlockUntilContext(t.Context(), 1))
		clock.Advance(6 * time.Hour)
		if i == 0 {
			assert.Equal(t, "nightly-report", receive(t, ran))
		} else {
			assert.ErrorIs(t, receive(t, refused), locker.ErrHeld)
		}
	}
	assert.Empty(t, ran)
}

func receive[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(30 * time.Second):
		require.FailNow(t, "nothing was received")
		panic("unreachable")
	}
}

// Replicas that start at any time run the job once a period, and nine tenths of it apart at least.
func TestEvery(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, runs := memory.New(), make(chan time.Time, 100)
		ctx, cancel := context.WithCancel(t.Context())
		first, stopFirst := context.WithCancel(ctx)
		job := func(context.Context) error {
			runs <- time.Now()
			time.Sleep(time.Minute)
			return errors.New("failed") // which counts as a run
		}
		for _, replica := range []struct {
			start time.Duration
			ctx   context.Context
		}{{0, first}, {20 * time.Minute, ctx}, {57 * time.Minute, ctx}} {
			go func() {
				time.Sleep(replica.start)
				Every(replica.ctx, l, "report", time.Hour, job)
			}()
		}
		time.Sleep(12 * time.Hour)
		stopFirst()
		time.Sleep(12 * time.Hour)
		cancel()
		synctest.Wait()
		close(runs)

		assert.GreaterOrEqual(t, len(runs), 23)
		for last := <-runs; ; {
			next, ok := <-runs
			if !ok {
				break
			}
			assert.GreaterOrEqual(t, next.Sub(last), 54*time.Minute)
			assert.LessOrEqual(t, next.Sub(last), 2*time.Hour)
			last = next
		}
	})
}

// The lock of a replica that crashes ends within half a period, even if a period is seconds.
func TestEveryTakesItsTTLFromThePeriod(t *testing.T) {
	t.Parallel()
	for period, ttl := range map[time.Duration]time.Duration{10 * time.Second: 5 * time.Second, 24 * time.Hour: time.Minute} {
		l := lockertest.New()
		ctx, cancel := context.WithCancel(t.Context())
		Every(ctx, l, "report", period, func(context.Context) error { cancel(); return nil })
		assert.Equal(t, ttl, l.Calls()[0].TTL)
	}
}
