package postgres

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/waithook"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// placesOf returns how many places the queue of key has.
func placesOf(t *testing.T, l *Locker, key string) (n int) {
	t.Helper()
	err := l.pool.QueryRow(t.Context(), "SELECT coalesce(jsonb_array_length(queue), 0) FROM locker_locks WHERE key = $1", []byte(key)).
		Scan(&n)
	require.NoError(t, err)
	return n
}

// stand lets waiters of l wait for key until ctx ends, and returns when they do.
func stand(ctx context.Context, t *testing.T, l *Locker, key string, waiters int) (all *sync.WaitGroup) {
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
	require.Eventually(t, func() bool { return placesOf(t, l, key) == 1 && l.listens() != 0 }, long, time.Millisecond)
	return all
}

// However many waiters of a process stand in line, they have one place, wait without requests, and
// leave with a handful of them, and the holder does not wait behind them for a connection.
func TestTwoThousandWaitersLeave(t *testing.T) {
	t.Parallel()
	addr := newServer(t).Addr
	var writes atomic.Int64
	l := New(newCounted(t, addr, &writes)) // a pool of one connection
	admin := New(newPool(t, addr))
	acquire(t, l, "k", "holder", time.Minute)
	ctx, cancel := context.WithCancel(t.Context())
	all := stand(ctx, t, l, "k", 2000)
	info, err := admin.Inspect(t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, 1, info.Waiters)
	var size int64
	require.NoError(t, admin.pool.QueryRow(t.Context(), "SELECT pg_total_relation_size('locker_locks')").Scan(&size))
	require.Less(t, size, int64(256<<10), "the table grows with the waiters")
	before := writes.Load()
	for range 20 { // the holder keeps its lock alive
		ok, err := admin.Extend(t.Context(), "k", "holder", time.Minute)
		require.NoError(t, err)
		require.True(t, ok)
		time.Sleep(100 * time.Millisecond)
	}
	require.LessOrEqual(t, writes.Load()-before, int64(100), "requests in two seconds")
	before = writes.Load()
	cancel()
	release(t, l, "k", "holder")
	all.Wait()
	// The release may have offered the lock to the place just before it was given up.
	require.Eventually(t, func() bool {
		ok, err := admin.Acquire(t.Context(), "k", "next", time.Minute)
		return assert.NoError(t, err) && ok
	}, long, 10*time.Millisecond)
	require.LessOrEqual(t, writes.Load()-before, int64(50))
	require.Zero(t, placesOf(t, admin, "k"))
}

// An orderly shutdown leaves nothing behind: cancel, wait until the waiters have returned, and close
// the pool. The connection that listens lives on for a while, and vouches for no place.
func TestShutdownLeavesNoPlace(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	admin := New(newPool(t, s.Addr))
	for _, keys := range []int{1, 20} {
		pool := newPool(t, s.Addr, "pool_max_conns", "4")
		l := New(pool)
		ctx, cancel := context.WithCancel(t.Context())
		var all []*sync.WaitGroup
		for i := range keys {
			key := fmt.Sprint(keys, "/", i)
			acquire(t, admin, key, "holder", time.Minute)
			all = append(all, stand(ctx, t, l, key, 20/keys))
		}
		cancel()
		for _, waiters := range all {
			waiters.Wait()
		}
		pool.Close()
		for i := range keys {
			key := fmt.Sprint(keys, "/", i)
			release(t, admin, key, "holder")
			require.Eventually(t, func() bool {
				ok, err := admin.Acquire(t.Context(), key, "next", time.Minute)
				return err == nil && ok
			}, long, time.Millisecond, "the lock was handed to a waiter that has gone")
		}
	}
}

// noted tells when a waiter stands in line.
type noted chan struct{}

func (n noted) NoteWaiting() {
	select {
	case n <- struct{}{}:
	default:
	}
}

// The place is the line's: when the first leaves, the next one has it, without a request, and if the
// lock was handed to the one that has gone, it takes it over, with its own ttl.
func TestNextInLineInheritsThePlace(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	a, b, c := New(newPool(t, s.Addr)), New(newPool(t, s.Addr)), New(newPool(t, s.Addr))
	acquire(t, a, "k", "a", time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	first := waits(ctx, t, b, "k", "first", time.Hour)
	second, inLine := make(chan waited, 1), make(noted, 1)
	go func() {
		deadline, err := b.Wait(context.WithValue(t.Context(), waithook.Key{}, inLine), "k", "second", time.Minute)
		second <- waited{deadline, err}
	}()
	<-inLine
	other := waits(t.Context(), t, c, "k", "other", time.Hour)
	cancel()
	require.ErrorIs(t, (<-first).err, locker.ErrHeld)
	release(t, a, "k", "a")
	w := served(t, second)
	require.InDelta(t, time.Minute, time.Until(w.deadline), float64(long))
	info, err := a.Inspect(t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, "second", info.Token)
	require.LessOrEqual(t, info.TTL, time.Minute+time.Second, "the ttl of the one that has gone")
	require.Empty(t, other)
	release(t, b, "k", "second")
	served(t, other)
}

// A lock that is handed to a process in which nobody waits any more is passed on.
func TestGrantToOneWhoHasGone(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	a, b := New(newPool(t, s.Addr)), New(newPool(t, s.Addr))
	acquire(t, a, "other", "a", time.Hour)
	stays := waits(t.Context(), t, b, "other", "b", time.Hour) // so b listens
	for _, queued := range []bool{false, true} {
		key := fmt.Sprint("k", queued)
		acquire(t, a, key, "a", time.Hour)
		pid, start := b.self.Load().args()
		us, err := microsecondsOf(time.Hour)
		require.NoError(t, err)
		_, err = a.pool.Exec(t.Context(), a.sql.join, []byte(key), []byte("gone"), us, b.nonce(), []string(nil), pid, start)
		require.NoError(t, err)
		var next <-chan waited
		if queued {
			next = waits(t.Context(), t, a, key, "next", time.Hour)
		}
		release(t, a, key, "a")
		if queued {
			served(t, next)
			continue
		}
		require.Eventually(t, func() bool {
			info, err := a.Inspect(t.Context(), key)
			return err == nil && info.Token == ""
		}, long, time.Millisecond)
	}
	release(t, a, "other", "a")
	served(t, stays)
}

// A request for a place may arrive when its waiter was served. What it does is undone, and nothing
// else: not what the token holds by another request, or has extended or acquired since.
func TestLateRequestIsUndone(t *testing.T) {
	t.Parallel()
	l := New(newPool(t, newServer(t).Addr))
	us, err := microsecondsOf(time.Hour)
	require.NoError(t, err)
	join := func(key, token, nonce string, earlier ...string) {
		_, err := l.pool.Exec(t.Context(), l.sql.join, []byte(key), []byte(token), us, nonce, earlier, (*int32)(nil), (*int64)(nil))
		require.NoError(t, err)
	}
	holder := func(key string) string {
		info, err := l.Inspect(t.Context(), key)
		require.NoError(t, err)
		return info.Token
	}
	join("free", "t", "late/1")
	require.Equal(t, "t", holder("free"))
	require.NoError(t, l.leave(t.Context(), "free", "", []string{"late/1"}))
	require.Empty(t, holder("free"), "it took the lock")

	join("served", "t", "p/2")
	join("served", "t", "p/1") // the copy
	require.NoError(t, l.leave(t.Context(), "served", "", []string{"p/1"}))
	require.Equal(t, "t", holder("served"), "the token holds it by another request")

	for name, change := range map[string]func(ctx context.Context, key, token string, ttl time.Duration) (bool, error){
		"extend": l.Extend, "acquire": l.Acquire,
	} {
		join(name, "t", "p/1")
		ok, err := change(t.Context(), name, "t", time.Hour)
		require.NoError(t, err)
		require.True(t, ok)
		require.NoError(t, l.leave(t.Context(), name, "", []string{"p/1"}))
		require.Equal(t, "t", holder(name), name)
	}

	acquire(t, l, "queued", "holder", time.Hour)
	join("queued", "new", "p/2")
	join("queued", "old", "p/1") // later than the request of the next one in line
	require.Equal(t, 1, placesOf(t, l, "queued"))
	require.NoError(t, l.leave(t.Context(), "queued", "", []string{"p/1"}))
	release(t, l, "queued", "holder")
	require.Equal(t, "new", holder("queued"))
}

// An outage is the error of the whole line, at once, and not of one waiter after the other.
func TestOutageFailsTheLine(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	a, b := New(newPool(t, s.Addr)), New(newPool(t, s.Addr))
	acquire(t, a, "k", "a", time.Hour)
	first := waits(t.Context(), t, b, "k", "b", time.Hour)
	var all sync.WaitGroup
	for range 200 {
		all.Go(func() {
			_, err := b.Wait(t.Context(), "k", "c", time.Hour)
			assert.Error(t, err)
			assert.NotErrorIs(t, err, locker.ErrHeld)
		})
	}
	s.Stop()
	require.Error(t, (<-first).err)
	failed := time.Now()
	all.Wait()
	require.Less(t, time.Since(failed), outage, "they met the outage one after the other")
}

// Waiters of many locks leave at once. The holder of one of them does not wait behind them for a
// connection, and no lock stays with one who has gone.
func TestWaitersOfManyLocksLeave(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	l, other := New(newPool(t, s.Addr, "pool_max_conns", "4")), New(newPool(t, s.Addr))
	const keys = 400 // more than may be undone at a time
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for i := range keys {
		acquire(t, other, fmt.Sprint(i), "holder", 10*time.Minute)
		all.Go(func() {
			_, err := l.Wait(ctx, fmt.Sprint(i), "waiter", 10*time.Minute)
			assert.ErrorIs(t, err, context.Canceled)
		})
	}
	acquire(t, l, "k", "holder", time.Minute)
	require.Eventually(t, func() bool {
		var n int
		err := other.pool.QueryRow(t.Context(), "SELECT count(queue) FROM locker_locks").Scan(&n)
		return err == nil && n == keys
	}, long, 10*time.Millisecond)
	cancel()
	short, end := context.WithTimeout(t.Context(), 5*time.Second) // as Unlock has
	defer end()
	ok, err := l.Release(short, "k", "holder")
	require.NoError(t, err)
	require.True(t, ok)
	all.Wait()
	for i := range keys {
		release(t, other, fmt.Sprint(i), "holder")
	}
	for i := range keys {
		require.Eventually(t, func() bool {
			ok, err := other.Acquire(t.Context(), fmt.Sprint(i), "next", time.Minute)
			return err == nil && ok
		}, long, time.Millisecond, "%d", i)
	}
}

// The message that the lock was handed over may be faster than the answer to the request for the
// place. It must not be taken for one that nobody waits for.
func TestMessageBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	a, b := New(newPool(t, s.Addr)), New(newPool(t, s.Addr))
	acquire(t, a, "other", "a", time.Hour)
	stays := waits(t.Context(), t, b, "other", "b", time.Hour) // so b listens
	p := &place{key: "k", told: make(chan struct{}, 1)}
	b.places.add(p)
	acquire(t, a, "k", "a", time.Hour)
	w := &waiter{l: b, key: "k", token: "b"}
	var err error
	w.ttl, err = microsecondsOf(time.Hour)
	require.NoError(t, err)
	sight, err := w.ask(t.Context(), p, func(r *request, nonce string) (s sight, err error) {
		pid, start := b.self.Load().args()
		_, err = r.exec(b.sql.join, []byte("k"), []byte("b"), w.ttl, nonce, []string(nil), pid, start)
		release(t, a, "k", "a")
		<-p.told
		s.place = 1
		return s, err
	})
	require.NoError(t, err)
	require.False(t, sight.mine)
	_, ok := p.served("b", time.Hour)
	require.True(t, ok, "it was not believed")
	info, err := a.Inspect(t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, "b", info.Token, "it was passed on")
	release(t, a, "other", "a")
	served(t, stays)
}
