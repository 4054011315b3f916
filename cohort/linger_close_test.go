package cohort_test

import (
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
