package cohort_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/cohort"
	"github.com/golockers/locker/memory"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestClose(t *testing.T) {
	overDemander(t, func(t *testing.T, m *memory.Locker, inner locker.Locker, c *counting) {
		l := lingering(inner)
		for i := range 100 {
			lease, err := locker.Lock(t.Context(), l, fmt.Sprint("k", i), time.Minute)
			require.NoError(t, err)
			require.NoError(t, lease.Unlock(t.Context()))
		}
		lease := mustLock(t, l, time.Minute)
		require.NoError(t, l.Close())
		for info, err := range m.List(t.Context(), "") {
			require.NoError(t, err)
			assert.Equal(t, "k", info.Key)
		}
		assert.Equal(t, 1, cohort.Entries(l))
		require.NoError(t, lease.Unlock(t.Context()))
		assert.Empty(t, held(t, m), "it lingers after Close")
		c.requests.Store(0)
		use(t, l, time.Minute)
		assert.EqualValues(t, 2, c.requests.Load())
		require.NoError(t, l.Close())
	})
	assert.NoError(t, cohort.New(memory.New()).Close())
	assert.NoError(t, (*cohort.Locker)(nil).Close())
}

func TestCloseFails(t *testing.T) {
	overDemander(t, func(t *testing.T, m *memory.Locker, inner locker.Locker, c *counting) {
		l := lingering(inner)
		use(t, l, time.Minute)
		down := errors.New("down")
		c.fail.Store(&down)
		err := l.Close()
		assert.ErrorIs(t, err, down)
		assert.EqualError(t, err, `cohort: close: release "k": down`)
		c.fail.Store(nil)
		time.Sleep(time.Second)
		assert.Empty(t, held(t, m), "the release is not repeated")
	})
}

// Close waits for locks that are being given up already.
func TestCloseWaits(t *testing.T) {
	overDemander(t, func(t *testing.T, m *memory.Locker, inner locker.Locker, _ *counting) {
		slow := slowRelease{inner.(demanding), make(chan struct{}), make(chan struct{})}
		l := lingering(slow)
		use(t, l, time.Minute)
		<-slow.started
		closed := make(chan error, 1)
		go func() { closed <- l.Close() }()
		synctest.Wait()
		require.Empty(t, closed)
		slow.goOn <- struct{}{}
		require.NoError(t, <-closed)
		assert.Empty(t, held(t, m))
	})
}

// Close also releases locks whose release failed when they had lingered for long enough, even if
// the cleanup has ended.
func TestCloseReleasesAgain(t *testing.T) {
	for _, wait := range []time.Duration{lingerFor, 20 * time.Second} {
		t.Run(wait.String(), func(t *testing.T) {
			overDemander(t, func(t *testing.T, m *memory.Locker, inner locker.Locker, c *counting) {
				l := lingering(inner)
				use(t, l, time.Minute)
				down := errors.New("down")
				c.fail.Store(&down)
				time.Sleep(wait)
				synctest.Wait()
				assert.EqualError(t, l.Close(), `cohort: close: release "k": down`)
				assert.NotEmpty(t, held(t, m))
				c.fail.Store(nil)
				require.NoError(t, l.Close())
				assert.Empty(t, held(t, m))
				requests := c.requests.Load()
				require.NoError(t, l.Close())
				assert.Equal(t, requests, c.requests.Load(), "they were released")
			})
		})
	}
	// A lock that must have expired is no error.
	overDemander(t, func(t *testing.T, m *memory.Locker, inner locker.Locker, c *counting) {
		l := lingering(inner)
		use(t, l, time.Minute)
		down := errors.New("down")
		c.fail.Store(&down)
		time.Sleep(2 * time.Minute)
		require.NoError(t, l.Close())
	})
}

// What a cleanup has released is not released again.
func TestCloseAfterACleanup(t *testing.T) {
	overDemander(t, func(t *testing.T, m *memory.Locker, inner locker.Locker, c *counting) {
		l := lingering(inner)
		use(t, l, time.Minute)
		down := errors.New("down")
		c.fail.Store(&down)
		time.Sleep(lingerFor)
		synctest.Wait()
		c.fail.Store(nil)
		time.Sleep(time.Second)
		require.Empty(t, held(t, m))
		c.requests.Store(0)
		require.NoError(t, l.Close())
		assert.Zero(t, c.requests.Load())
	})
}

// From the beginning of Close no lock begins to linger.
func TestReleaseDuringClose(t *testing.T) {
	overDemander(t, func(t *testing.T, m *memory.Locker, inner locker.Locker, _ *counting) {
		slow := slowRelease{inner.(demanding), make(chan struct{}), make(chan struct{})}
		l := lingering(slow)
		lease, err := locker.Lock(t.Context(), l, "another", time.Minute)
		require.NoError(t, err)
		use(t, l, time.Minute)
		ended := make(chan error, 2)
		go func() { ended <- l.Close() }()
		<-slow.started
		synctest.Wait() // the other shards are done
		start := time.Now()
		go func() { ended <- lease.Unlock(context.Background()) }()
		<-slow.started
		assert.Zero(t, time.Since(start), "it lingers")
		for range 2 {
			slow.goOn <- struct{}{}
			require.NoError(t, <-ended)
		}
	})
}

// Close reports a release that had begun before and fails, and ends in time if the backend hangs.
func TestCloseWhileTheBackendHangs(t *testing.T) {
	for name, c := range map[string]struct {
		hang func(ctx context.Context)
		took time.Duration
	}{
		"until the release times out":      {func(ctx context.Context) { <-ctx.Done() }, 4 * time.Second},
		"whatever the context of requests": {func(context.Context) { time.Sleep(20 * time.Second) }, 5 * time.Second},
	} {
		overScript(t, name, func(t *testing.T, s *scripted) {
			l := lingering(s)
			use(t, l, time.Minute)
			s.on("release", func(ctx context.Context, _ func() (bool, error)) (bool, error) {
				c.hang(ctx)
				return false, errNoAnswer
			})
			time.Sleep(lingerFor + time.Second)
			start := time.Now()
			assert.ErrorContains(t, l.Close(), `cohort: close: release "k": `)
			assert.Equal(t, c.took, time.Since(start))
			time.Sleep(2 * time.Minute)
		})
	}
}
