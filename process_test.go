//go:build unix

package locker_test

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/fleet"
	"github.com/golockers/locker/internal/leaktest"
	_ "github.com/golockers/locker/internal/quiet"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/redisv9"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// holderTTL is long enough for a keep-alive on a machine that is busy with other tests.
const holderTTL = 4 * time.Second

func TestMain(m *testing.M) {
	fleet.Main(map[string]fleet.Role{"holder": holdLock})
	leaktest.Main(m)
}

// holdLock is a process that takes a lock on the Redis that it is told of, keeps it alive and reports what
// becomes of it.
func holdLock(c *fleet.Child) {
	var addr string
	c.Receive(&addr)
	client := redis.NewClient(&redis.Options{Addr: addr})
	lease, err := locker.Lock(context.Background(), redisv9.New(client), "k", holderTTL, locker.WithKeepAlive())
	c.Report(fmt.Sprint("held: ", err))
	<-lease.Lost()
	c.Report("lost")
	c.Report(fmt.Sprint(lease.Unlock(context.Background())))
}

// startHolder starts such a process and returns when it holds the lock.
func startHolder(t *testing.T, addr string) *fleet.Process {
	t.Helper()
	f, err := fleet.Start("holder", 1)
	require.NoError(t, err)
	t.Cleanup(f.Kill)
	require.NoError(t, f.Send(addr))
	require.Equal(t, "held: <nil>", nextReport(t, f[0]))
	return f[0]
}

func nextReport(t *testing.T, p *fleet.Process) (report string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	require.NoError(t, p.Receive(ctx, &report))
	return report
}

func TestKilledHolder(t *testing.T) {
	t.Parallel()
	addr := testserver.Redis(t).Addr
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	holder := startHolder(t, addr)
	time.Sleep(holderTTL + holderTTL/2) // kept alive
	require.NoError(t, holder.Signal(os.Kill))

	_, err := locker.TryLock(t.Context(), redisv9.New(client), "k", time.Minute)
	require.ErrorIs(t, err, locker.ErrHeld, "it was not kept alive")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	lease, err := locker.Lock(ctx, redisv9.New(client), "k", time.Minute)
	require.NoError(t, err, "not free after its ttl")
	assert.NoError(t, lease.Unlock(ctx))
}

func TestStoppedHolder(t *testing.T) {
	t.Parallel()
	addr := testserver.Redis(t).Addr
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	holder := startHolder(t, addr)
	require.NoError(t, holder.Signal(syscall.SIGSTOP))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	lease, err := locker.Lock(ctx, redisv9.New(client), "k", time.Minute)
	require.NoError(t, err)

	require.NoError(t, holder.Signal(syscall.SIGCONT))
	assert.Equal(t, "lost", nextReport(t, holder))
	assert.Equal(t, `locker: unlock "k": the lock is not held: its deadline passed`, nextReport(t, holder))
	assert.NoError(t, lease.Unlock(ctx), "the one that was stopped released it")
}
