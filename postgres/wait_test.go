package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/testserver"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// waited is what a Wait returned.
type waited struct {
	deadline time.Time
	err      error
}

// waits starts a Wait and returns when it is in the queue, in the name of the connection that
// listens.
func waits(ctx context.Context, t *testing.T, l *Locker, key, token string, ttl time.Duration) <-chan waited {
	t.Helper()
	done := make(chan waited, 1)
	go func() {
		deadline, err := l.Wait(ctx, key, token, ttl)
		done <- waited{deadline, err}
	}()
	require.Eventually(t, func() bool {
		var listed bool
		err := l.pool.QueryRow(t.Context(), `SELECT count(*) > 0 FROM locker_locks, jsonb_array_elements(queue) AS e
			WHERE key = $1 AND e->>'token' = encode($2, 'hex') AND (e->>'pid')::int = $3`, []byte(key), []byte(token), l.listens()).
			Scan(&listed)
		return err == nil && listed
	}, long, time.Millisecond)
	return done
}

// listens returns the process id of the server's end of the connection that listens, or 0.
func (l *Locker) listens() int32 {
	if self := l.self.Load(); self != nil {
		return self.pid
	}
	return 0
}

// served waits until a Wait has the lock.
func served(t *testing.T, done <-chan waited) waited {
	t.Helper()
	select {
	case w := <-done:
		require.NoError(t, w.err)
		return w
	case <-time.After(long):
		t.Fatal("Wait has not returned")
		panic("not reached")
	}
}

// A release hands the lock over: no look is needed, and no other client can come between.
func TestReleaseHandsOver(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	a, b := New(newPool(t, s.Addr)), New(newPool(t, s.Addr))
	acquire(t, a, "k", "a", time.Hour)
	done := waits(t.Context(), t, b, "k", "b", time.Minute)
	info, err := a.Inspect(t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, 1, info.Waiters)
	release(t, a, "k", "a")
	info, err = a.Inspect(t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, "b", info.Token)
	require.Zero(t, info.Waiters)
	w := served(t, done)
	require.InDelta(t, time.Minute, time.Until(w.deadline), float64(long))
	release(t, b, "k", "b")
}

// deadQueue has a place of a process that is gone.
const deadQueue = `[{"nonce": "dead/1", "token": "dead", "ttl": 3600000000, "pid": 1, "start": 1}]`

// A waiter whose connection has ended is passed over, however many they are.
func TestDeadWaitersArePassedOver(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	a, b := New(newPool(t, s.Addr)), New(newPool(t, s.Addr))
	acquire(t, a, "k", "a", time.Hour)
	// A process that is gone, and one whose id has a new process.
	_, err := a.pool.Exec(t.Context(), `UPDATE locker_locks SET queue = (SELECT jsonb_agg(jsonb_build_object(
		'nonce', 'dead' || n || '/1', 'token', 'dead', 'ttl', 3600000000, 'pid', CASE WHEN n < 50 THEN 1 ELSE pg_backend_pid() END,
		'start', 1)) FROM generate_series(1, 100) AS n)`)
	require.NoError(t, err)
	done := waits(t.Context(), t, b, "k", "b", time.Hour)
	release(t, a, "k", "a")
	served(t, done)
	release(t, b, "k", "b")

	// Without a living waiter, Acquire takes the lock at once.
	_, err = a.pool.Exec(t.Context(), "UPDATE locker_locks SET queue = $1", deadQueue)
	require.NoError(t, err)
	acquire(t, a, "k", "a", time.Hour)
	release(t, a, "k", "a")
	var empty bool
	require.NoError(t, a.pool.QueryRow(t.Context(), "SELECT queue IS NULL FROM locker_locks").Scan(&empty))
	require.True(t, empty)
}

// Users do not see when the sessions of other users began.
func TestWaitersOfOtherUsers(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	admin := newPool(t, s.Addr)
	for _, user := range []string{"one", "two"} {
		_, err := admin.Exec(t.Context(), fmt.Sprintf(
			"CREATE USER %s; GRANT SELECT, INSERT, UPDATE, DELETE ON locker_locks TO %[1]s", user))
		require.NoError(t, err)
	}
	a, b := New(newPool(t, s.Addr, "user", "one")), New(newPool(t, s.Addr, "user", "two"))
	acquire(t, a, "k", "a", time.Hour)
	done := make(chan waited, 1)
	go func() {
		deadline, err := b.Wait(t.Context(), "k", "b", time.Hour)
		done <- waited{deadline, err}
	}()
	require.Eventually(t, func() bool {
		info, err := a.Inspect(t.Context(), "k")
		return err == nil && info.Waiters == 1 && b.listens() != 0
	}, long, time.Millisecond)
	release(t, a, "k", "a")
	info, err := a.Inspect(t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, "b", info.Token, "the waiter was passed over")
	served(t, done)
}

// The holder vanishes together with the first in the queue.
func TestHolderVanishesWithTheFirst(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	pool := newPool(t, s.Addr)
	gone, b := New(pool), New(newPool(t, s.Addr))
	const ttl = 3 * time.Second
	start := time.Now()
	acquire(t, gone, "k", "a", ttl)
	first := waits(t.Context(), t, gone, "k", "first", time.Hour)
	second := waits(t.Context(), t, b, "k", "b", time.Hour)
	// The process ends: its waiter looks no more, and it has no connections.
	pool.Close()
	_, err := b.pool.Exec(t.Context(), `UPDATE locker_locks SET queue = jsonb_set(queue, '{0}', queue->0 || '{"pid": 1, "start": 1}')`)
	require.NoError(t, err)
	served(t, second)
	require.GreaterOrEqual(t, time.Since(start), ttl)
	require.Less(t, time.Since(start), ttl+lookAgain+long)
	require.Error(t, (<-first).err)
}

// Only the holder of a grant believes it, and anyone may send notifications.
func TestForgedMessages(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	a, b := New(newPool(t, s.Addr)), New(newPool(t, s.Addr))
	acquire(t, a, "k", "a", time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	done := waits(ctx, t, b, "k", "b", time.Hour)
	var payloads []string
	for _, more := range []string{"", " ", " 1", " -1", " x", " 99999999999999999999", " " + b.name, " " + b.name + "/0", " " + a.name + "/1"} {
		payloads = append(payloads, "granted aw=="+more, "head aw=="+more)
	}
	payloads = append(payloads, "", " ", "free", "free x", "granted", "granted x", "head", "head x")
	for _, payload := range payloads {
		_, err := a.pool.Exec(t.Context(), "SELECT pg_notify('locker/' || $1, $2)", b.name, payload)
		require.NoError(t, err)
	}
	time.Sleep(50 * time.Millisecond) // they have arrived, most likely
	require.Empty(t, done)
	cancel()
	require.ErrorIs(t, (<-done).err, locker.ErrHeld)
	ok, err := a.Extend(t.Context(), "k", "a", time.Hour)
	require.NoError(t, err)
	require.True(t, ok)
}

// The server restarts while clients wait. With WithRetry they outlast it.
func TestWaitOverRestart(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	a, b := New(newPool(t, s.Addr)), New(newPool(t, s.Addr))
	acquire(t, a, "k", "a", time.Hour)
	var all sync.WaitGroup
	for range 5 {
		all.Go(func() {
			lease, err := locker.Lock(t.Context(), b, "k", time.Hour, locker.WithRetry())
			if assert.NoError(t, err) {
				assert.NoError(t, lease.Unlock(t.Context()))
			}
		})
	}
	require.Eventually(t, func() bool {
		info, err := a.Inspect(t.Context(), "k")
		return err == nil && info.Waiters == 1
	}, long, time.Millisecond)
	s.Restart()
	require.Eventually(t, func() bool {
		ok, err := a.Release(t.Context(), "k", "a")
		return err == nil && ok
	}, long, time.Millisecond)
	all.Wait()
}

// Behind a pooler there is neither push nor a queue, and locks work.
func TestPgBouncer(t *testing.T) {
	t.Parallel()
	bouncer := testserver.PgBouncer(t, newServer(t))
	l := New(newPool(t, bouncer.Addr), WithoutPreparing())
	acquire(t, l, "k", "a", time.Hour)
	for range 2 {
		_, err := l.Wait(t.Context(), "k", "b", time.Hour)
		require.ErrorIs(t, err, errors.ErrUnsupported)
		_, err = l.Watch(t.Context(), "k")
		require.ErrorIs(t, err, errors.ErrUnsupported)
	}
	info, err := l.Inspect(t.Context(), "k")
	require.NoError(t, err)
	require.Zero(t, info.Waiters, "it has joined the queue")
	require.False(t, l.hub.InUse())
	locked := make(chan error)
	go func() {
		lease, err := locker.Lock(t.Context(), l, "k", time.Hour)
		if err == nil {
			err = lease.Unlock(t.Context())
		}
		locked <- err
	}()
	release(t, l, "k", "a")
	require.NoError(t, <-locked)
}

// Waiting takes no connection of the pool, and one for all waiters and watchers.
func TestOneConnectionForAll(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	admin := newPool(t, s.Addr)
	l := New(newPool(t, s.Addr, "pool_max_conns", "1", "application_name", "waiting"))
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for i := range 20 {
		key := fmt.Sprint(i)
		acquire(t, New(admin), key, "a", time.Hour)
		all.Go(func() {
			_, err := l.Wait(ctx, key, "b", time.Hour)
			assert.ErrorIs(t, err, context.Canceled)
		})
		_, err := l.Watch(ctx, key)
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool {
		waiting := 0
		for info, err := range l.List(t.Context(), "") {
			require.NoError(t, err)
			waiting += info.Waiters
		}
		return waiting == 20
	}, long, time.Millisecond)
	var connections int
	err := admin.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'waiting'").
		Scan(&connections)
	require.NoError(t, err)
	require.Equal(t, 2, connections)
	cancel()
	all.Wait()
	_, err = l.Inspect(t.Context(), "k") // the pool's connection is free
	require.NoError(t, err)
}

// notifications counts those that fn causes.
func notifications(t *testing.T, pool *pgxpool.Pool, fn func()) (n int) {
	t.Helper()
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	channel := new(string)
	require.NoError(t, conn.QueryRow(t.Context(), newStatements(pgx.Identifier{"locker_locks"}, false).describe, "locker_locks").
		Scan(channel, nil, nil))
	_, err = conn.Exec(t.Context(), fmt.Sprintf("LISTEN %q", *channel))
	require.NoError(t, err)
	fn()
	// Notifications arrive in the order of the commits.
	_, err = pool.Exec(t.Context(), fmt.Sprintf("NOTIFY %q, 'the end'", *channel))
	require.NoError(t, err)
	for ; ; n++ {
		ctx, cancel := context.WithTimeout(t.Context(), long)
		got, err := conn.Conn().WaitForNotification(ctx)
		cancel()
		require.NoError(t, err)
		if got.Payload == "the end" {
			return n
		}
	}
}

// A release of a lock for which no client waits sends nothing: notifications take turns on the whole
// server. One that is watched wakes the watchers.
func TestNotifiesOnlyWatchers(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	pool := newPool(t, s.Addr)
	l := New(newPool(t, s.Addr))
	cycle := func() {
		acquire(t, l, "k", "a", time.Hour)
		release(t, l, "k", "a")
	}
	require.Zero(t, notifications(t, pool, cycle))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	woken, err := l.Watch(ctx, "k")
	require.NoError(t, err)
	require.Equal(t, 1, notifications(t, pool, cycle))
	select {
	case <-woken:
	case <-time.After(long):
		t.Fatal("the watcher was not woken")
	}
	swept, err := l.sweep(t.Context(), 0)
	require.NoError(t, err)
	require.Zero(t, swept, "the mark is gone")
	_, err = pool.Exec(t.Context(), "UPDATE locker_locks SET watched = now()")
	require.NoError(t, err)
	require.Zero(t, notifications(t, pool, cycle), "the mark has ended")
}

// Waiters go on for a while when the server cannot be reached.
func TestWaitOutlastsAnOutage(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	a, b := New(newPool(t, s.Addr)), New(newPool(t, s.Addr))
	acquire(t, a, "k", "a", time.Hour)
	done := waits(t.Context(), t, b, "k", "b", time.Hour)
	start := time.Now()
	s.Stop()
	require.Error(t, (<-done).err)
	require.GreaterOrEqual(t, time.Since(start), outage)
}

// A message with the nonce of a waiter's place is believed, but not after that place was lost.
func TestNonceIsForOnePlace(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	a, b := New(newPool(t, s.Addr)), New(newPool(t, s.Addr))
	acquire(t, a, "k", "a", time.Hour)
	done := waits(t.Context(), t, b, "k", "b", time.Hour)
	nonce := func() (n string) {
		require.NoError(t, a.pool.QueryRow(t.Context(), "SELECT coalesce(queue->0->>'nonce', '') FROM locker_locks").Scan(&n))
		return n
	}
	grant := func(nonce string) {
		_, err := a.pool.Exec(t.Context(), "SELECT pg_notify('locker/' || $1, $2)", b.name, "granted aw== "+nonce)
		require.NoError(t, err)
	}
	first := nonce()
	require.NotEmpty(t, first)
	_, err := a.pool.Exec(t.Context(), "UPDATE locker_locks SET queue = NULL")
	require.NoError(t, err)
	b.places.get("k").Missed() // it looks
	require.Eventually(t, func() bool { return nonce() != "" }, long, time.Millisecond)
	require.NotEqual(t, first, nonce())
	grant(first)
	time.Sleep(50 * time.Millisecond) // it has arrived, most likely
	require.Empty(t, done)
	grant(nonce())
	served(t, done)
}
