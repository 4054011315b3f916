package cohort_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/cohort"
	"github.com/golockers/locker/memory"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// inspect returns the state of the lock "k", which List must report as well if the lock is held.
func inspect(t *testing.T, l *cohort.Locker) locker.Info {
	t.Helper()
	info, err := l.Inspect(t.Context(), "k")
	require.NoError(t, err)
	var listed []locker.Info
	for info, err := range l.List(t.Context(), "k") {
		require.NoError(t, err)
		listed = append(listed, info)
	}
	if info.Token == "" {
		assert.Empty(t, listed)
	} else {
		assert.Equal(t, []locker.Info{info}, listed)
	}
	return info
}

func TestInspect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memory.New()
		web, job := cohort.New(m, cohort.WithOwner("web-1"), cohort.WithMaxTenure(time.Hour)), cohort.New(m)
		assert.Equal(t, locker.Info{Key: "k"}, inspect(t, web))

		lease, err := locker.Lock(t.Context(), web, "k", time.Minute)
		require.NoError(t, err)
		time.Sleep(time.Second)
		assert.Equal(t, locker.Info{Key: "k", Token: lease.Token(), TTL: 59 * time.Second}, inspect(t, web))
		info := inspect(t, job)
		assert.True(t, strings.HasPrefix(info.Token, "web-1/"), info.Token)

		local, remote := join(t.Context(), web, 3, time.Minute), join(t.Context(), job, 2, time.Minute)
		synctest.Wait()
		assert.Equal(t, 3+1, inspect(t, web).Waiters, "its own, and the other process")
		assert.Equal(t, 2, inspect(t, job).Waiters)

		require.NoError(t, lease.Unlock(t.Context()))
		for range 3 {
			require.NoError(t, local.next(t).Unlock(t.Context()))
		}
		for range 2 {
			held := remote.next(t)
			synctest.Wait()
			assert.Equal(t, held.Token(), inspect(t, job).Token)
			require.NoError(t, held.Unlock(t.Context()))
		}
		labeled, err := locker.Lock(t.Context(), job, "k", time.Minute, locker.WithOwner("job-7"))
		require.NoError(t, err)
		assert.True(t, strings.HasPrefix(inspect(t, web).Token, "job-7/"))
		require.NoError(t, labeled.Unlock(t.Context()))
	})
}

func TestBreak(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memory.New()
		web, job := cohort.New(m), cohort.New(m)
		_, err := locker.Break(t.Context(), web, "k")
		require.ErrorIs(t, err, locker.ErrNotHeld)

		for name, by := range map[string]*cohort.Locker{"this process": web, "another": job} {
			lease, err := locker.Lock(t.Context(), web, "k", time.Minute)
			require.NoError(t, err, name)
			local := join(t.Context(), web, 1, time.Minute)
			synctest.Wait()
			_, err = locker.Break(t.Context(), by, "k")
			require.NoError(t, err, name)
			if by == job { // this process does not know until it asks
				require.ErrorIs(t, lease.Extend(t.Context(), time.Hour), locker.ErrNotHeld, name)
			}
			next := local.next(t)
			require.ErrorIs(t, lease.Unlock(t.Context()), locker.ErrNotHeld, name)
			require.NoError(t, next.Unlock(t.Context()), name)
		}
		free, err := m.Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.Empty(t, free.Token)
	})
}

func TestInspectUnsupported(t *testing.T) {
	l := cohort.New(struct{ locker.Locker }{memory.New()})
	_, err := l.Inspect(t.Context(), "k")
	require.ErrorIs(t, err, errors.ErrUnsupported)
}

func TestOwnerLabel(t *testing.T) {
	for _, label := range []string{"a\nb", strings.Repeat("x", 901), "\xff"} {
		_, err := locker.TryLock(t.Context(), cohort.New(memory.New(), cohort.WithOwner(label)), "k", time.Minute)
		require.ErrorIs(t, err, locker.ErrInvalidToken)
		require.ErrorContains(t, err, `"k"`)
		require.ErrorContains(t, err, "owner label")
	}
	lease, err := locker.TryLock(t.Context(), cohort.New(memory.New(), cohort.WithOwner(strings.Repeat("x", 900))), "k", time.Minute)
	require.NoError(t, err)
	require.NoError(t, lease.Unlock(t.Context()))
}
