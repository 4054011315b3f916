package locker_test

import (
	"context"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/lockertest"
	"github.com/golockers/locker/memory"
	"github.com/golockers/locker/semaphore"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// count is an Observer that counts events.
type count struct{ n *int }

func (c count) Observe(context.Context, locker.Event) { *c.n++ }

func TestOwned(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	holder := func(l locker.Locker, opts ...locker.Option) string {
		lease, err := locker.Lock(ctx, l, "k", time.Minute, opts...)
		require.NoError(t, err)
		require.NoError(t, lease.Unlock(ctx))
		return lease.Token()[:strings.LastIndexByte(lease.Token(), '/')+1]
	}
	bare := memory.New()
	l := locker.Owned(bare, "me")
	assert.Equal(t, "me/", holder(l))
	assert.Equal(t, "you/", holder(l, locker.WithOwner("you")))
	assert.Equal(t, "", holder(l, locker.WithToken("t")))
	assert.Equal(t, "you/", holder(locker.Owned(l, "you")))

	n := 0
	counts := func(l locker.Locker) locker.Locker {
		return locker.Observed(l, count{&n})
	}
	assert.Equal(t, "me/", holder(counts(l)))
	assert.Equal(t, 2, n)
	assert.Equal(t, "me/", holder(locker.Owned(counts(bare), "me")))
	assert.Equal(t, 4, n)
	assert.Equal(t, "me/", holder(counts(locker.Owned(counts(bare), "me"))))
	assert.Equal(t, 8, n)

	process := holder(locker.Owned(bare, ""))
	assert.Contains(t, process, "/"+strconv.Itoa(os.Getpid())+"/")
	host, err := os.Hostname()
	require.NoError(t, err)
	assert.True(t, strings.HasPrefix(process, host+"/"), process)

	leases, err := locker.LockAll(ctx, l, []string{"a", "b"}, time.Minute)
	require.NoError(t, err)
	for _, lease := range leases {
		assert.True(t, strings.HasPrefix(lease.Token(), "me/"))
	}
	require.NoError(t, leases.Unlock(ctx))
	permit, err := semaphore.New(l, "s", 2).TryAcquire(ctx, time.Minute)
	require.NoError(t, err)
	assert.True(t, strings.HasPrefix(permit.Token(), "me/"), permit.Token())
	require.NoError(t, permit.Unlock(ctx))
	assert.Equal(t, "me/", holder(locker.Owned(semaphore.NewLocker(bare, 2), "me")))

	_, err = locker.TryLock(ctx, locker.Owned(bare, "\n"), "k", time.Minute)
	assert.ErrorIs(t, err, locker.ErrInvalidToken)
	_, err = locker.TryLock(ctx, locker.Owned(nil, "me"), "k", time.Minute)
	assert.ErrorIs(t, err, locker.ErrInvalidLocker)
	assert.True(t, locker.CanWait(l))
	assert.False(t, locker.CanWait(locker.Owned(struct{ locker.Locker }{bare}, "")))
	fake := lockertest.New()
	release := fake.Hold("k")
	defer release()
	_, err = locker.TryLock(ctx, locker.Owned(fake, ""), "k", time.Minute)
	assert.ErrorIs(t, err, locker.ErrHeld)
}
