package etcd

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/internal/waithook"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// stand lets waiters of l wait for key until ctx ends, and returns when they have a place.
func stand(ctx context.Context, t *testing.T, l, other *Locker, key string, waiters int) (all *sync.WaitGroup) {
	t.Helper()
	all = new(sync.WaitGroup)
	inLine := make([]noted, waiters)
	for i := range inLine {
		inLine[i] = make(noted, 1)
		all.Go(func() {
			_, err := l.Wait(context.WithValue(ctx, waithook.Key{}, inLine[i]), key, fmt.Sprint("waiter ", i), 10*time.Minute)
			assert.ErrorIs(t, err, locker.ErrHeld)
			assert.ErrorIs(t, err, context.Canceled)
		})
	}
	for _, waits := range inLine { // one that has not been refused yet returns without ErrHeld
		<-waits
	}
	hasWaiters(t, other, key, 1)
	return all
}

// An orderly shutdown leaves nothing behind: cancel, wait until the waiters have returned, and close
// the client.
func TestShutdownLeavesNoPlace(t *testing.T) {
	t.Parallel()
	srv := testserver.Etcd(t)
	admin := newClient(t, srv.Addr)
	other := New(admin)
	for _, waiters := range []int{1, 20} {
		for _, rest := range []time.Duration{0, 2 * shortenAfter} {
			client, err := clientv3.New(clientv3.Config{Endpoints: []string{srv.Addr}})
			require.NoError(t, err)
			isOK(t)(other.Acquire(t.Context(), "k", "holder", time.Minute))
			ctx, cancel := context.WithCancel(t.Context())
			all := stand(ctx, t, New(client), other, "k", waiters)
			time.Sleep(rest)
			cancel()
			all.Wait()
			require.NoError(t, client.Close())
			isOK(t)(other.Release(t.Context(), "k", "holder"))
			start := time.Now()
			require.Eventually(t, func() bool {
				ok, err := other.Acquire(t.Context(), "k", "next", time.Minute)
				return err == nil && ok
			}, patience, 10*time.Millisecond, "the place of a waiter that has gone blocks the lock")
			t.Logf("%d waiters: free after %v", waiters, time.Since(start))
			isOK(t)(other.Release(t.Context(), "k", "next"))
		}
	}
}

// However many waiters of a client stand in line, they have one place, wait with hardly a request,
// and leave with a handful of them.
func TestTwoThousandWaitersLeave(t *testing.T) {
	t.Parallel()
	srv := testserver.Etcd(t)
	client, n := counted(t, srv.Addr)
	admin := newClient(t, srv.Addr)
	other, l := New(admin), New(client)
	isOK(t)(other.Acquire(t.Context(), "k", "holder", time.Minute))
	ctx, cancel := context.WithCancel(t.Context())
	all := stand(ctx, t, l, other, "k", 2000)
	n.Store(0)
	for range 20 { // the holder keeps its lock alive
		isOK(t)(other.Extend(t.Context(), "k", "holder", time.Minute))
		time.Sleep(100 * time.Millisecond)
	}
	assert.LessOrEqual(t, n.Load(), int64(100), "requests in two seconds")
	n.Store(0)
	cancel()
	all.Wait()
	assert.LessOrEqual(t, n.Load(), int64(50))
	isOK(t)(other.Release(t.Context(), "k", "holder"))
	isOK(t)(other.Acquire(t.Context(), "k", "next", time.Minute))
	isOK(t)(other.Release(t.Context(), "k", "next"))
	hasLeases(t, admin)
}

// The place of a process that vanishes blocks the queue for some seconds, not for the ttl of its
// waiter.
func TestVanishedProcess(t *testing.T) {
	t.Parallel()
	srv := testserver.Etcd(t)
	var link cutter
	client := link.client(t, srv.Addr)
	other, ctx := New(newClient(t, srv.Addr)), t.Context()
	isOK(t)(other.Acquire(ctx, "k", "holder", time.Minute))
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	go New(client).Wait(waiting, "k", "gone", 10*time.Minute)
	hasWaiters(t, other, "k", 1)
	time.Sleep(2 * shortenAfter)
	link.cut()
	isOK(t)(other.Release(ctx, "k", "holder"))
	require.Eventually(t, func() bool {
		ok, err := other.Acquire(ctx, "k", "next", time.Minute)
		return err == nil && ok
	}, patience+placeSeconds*time.Second, 100*time.Millisecond)
	link.heal()
}

// noted tells when a waiter stands in line.
type noted chan struct{}

func (n noted) NoteWaiting() {
	select {
	case n <- struct{}{}:
	default:
	}
}

// The place is the line's: when the first leaves, the next one has it, and takes the lock in its
// turn, under its own token and with its own ttl.
func TestNextInLineInheritsThePlace(t *testing.T) {
	t.Parallel()
	srv := testserver.Etcd(t)
	admin := newClient(t, srv.Addr)
	a, b, c, ctx := New(admin), New(newClient(t, srv.Addr)), New(newClient(t, srv.Addr)), t.Context()
	for _, rest := range []time.Duration{0, 2 * shortenAfter} {
		isOK(t)(a.Acquire(ctx, "k", "a", time.Minute))
		waiting, cancel := context.WithCancel(ctx)
		defer cancel()
		wait := func(ctx context.Context, l *Locker, token string, ttl time.Duration) <-chan error {
			done := make(chan error, 1)
			go func() {
				_, err := l.Wait(ctx, "k", token, ttl)
				done <- err
			}()
			return done
		}
		first := wait(waiting, b, "first", 10*time.Minute)
		hasWaiters(t, a, "k", 1)
		inLine := make(noted, 1)
		second := wait(context.WithValue(ctx, waithook.Key{}, inLine), b, "second", 20*time.Second)
		<-inLine
		time.Sleep(rest)
		other := wait(ctx, c, "other", 30*time.Second)
		hasWaiters(t, a, "k", 2)
		cancel()
		require.ErrorIs(t, <-first, locker.ErrHeld)
		isOK(t)(a.Release(ctx, "k", "a"))
		require.NoError(t, <-second)
		info := inspect(t, a, "k")
		assert.Equal(t, "second", info.Token)
		assert.Equal(t, 1, info.Waiters)
		assert.LessOrEqual(t, info.TTL, 20*time.Second)
		isOK(t)(a.Acquire(ctx, "k", "second", 20*time.Second)) // C5, though its entry is not the oldest
		isRefused(t)(a.Acquire(ctx, "k", "third", time.Minute))
		assert.Equal(t, []string{"k second 1"}, list(t, a, ""))
		time.Sleep(100 * time.Millisecond)
		require.Empty(t, other, "two holders")
		isOK(t)(b.Release(ctx, "k", "second"))
		require.NoError(t, <-other)
		isOK(t)(c.Release(ctx, "k", "other"))
		hasLeases(t, admin)
	}
}

// An outage is the error of the whole line, at once.
func TestOutageFailsTheLine(t *testing.T) {
	t.Parallel()
	srv := testserver.Etcd(t)
	a, l, ctx := New(newClient(t, srv.Addr)), New(newClient(t, srv.Addr)), t.Context()
	isOK(t)(a.Acquire(ctx, "k", "a", time.Minute))
	failed := make(chan time.Time, 200)
	for i := range cap(failed) {
		go func() {
			_, err := l.Wait(ctx, "k", fmt.Sprint(i), time.Minute)
			assert.Error(t, err)
			assert.NotErrorIs(t, err, locker.ErrHeld)
			failed <- time.Now()
		}()
	}
	hasWaiters(t, a, "k", 1)
	srv.Stop()
	first := <-failed
	for range cap(failed) - 1 {
		require.Less(t, (<-failed).Sub(first), outage, "they met the outage one after the other")
	}
}
