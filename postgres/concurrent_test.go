package postgres

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A statement that has waited for the row of a lock must go by what the row is then. In these tests
// a transaction changes the row, another statement waits for it, and then the first one commits.

// overtake runs a statement in a transaction, starts call, which waits for it, and commits. It
// returns what call reported, and the server's time before the commit.
func overtake(t *testing.T, l *Locker, sql string, args []any, call func() (bool, error)) (ok bool, at time.Time) {
	t.Helper()
	tx, err := l.pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(context.Background()) // or the pool cannot be closed
	var changed int
	rows, err := tx.Query(t.Context(), sql, args...)
	require.NoError(t, err)
	for rows.Next() {
		changed++
	}
	require.NoError(t, rows.Err())
	require.Equal(t, 1, changed)
	type result struct {
		ok  bool
		err error
	}
	done := make(chan result)
	go func() {
		ok, err := call()
		done <- result{ok, err}
	}()
	require.Eventually(t, func() (waits bool) {
		const query = "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
		err := l.pool.QueryRow(t.Context(), query).Scan(&waits)
		return err == nil && waits
	}, long, time.Millisecond)
	require.NoError(t, l.pool.QueryRow(t.Context(), "SELECT clock_timestamp()").Scan(&at))
	require.NoError(t, tx.Commit(t.Context()))
	r := <-done
	require.NoError(t, r.err)
	return r.ok, at
}

// joins returns a call that takes the lock or joins the queue, and reports whether it has the lock.
func joins(t *testing.T, l *Locker, key, token string) func() (bool, error) {
	us, err := microsecondsOf(time.Hour)
	require.NoError(t, err)
	w := &waiter{l: l, key: key, token: token, ttl: us}
	return func() (bool, error) {
		s, err := w.join(t.Context(), &place{})
		return s.mine, err
	}
}

// joinArgs are the arguments of a request for a place by a process of its own.
func joinArgs(t *testing.T, key, token string, ttl time.Duration) []any {
	us, err := microsecondsOf(ttl)
	require.NoError(t, err)
	return []any{[]byte(key), []byte(token), us, "process of " + token + "/1", []string(nil), (*int32)(nil), (*int64)(nil)}
}

func TestReleaseAfterAJoin(t *testing.T) {
	t.Parallel()
	l := New(newPool(t, newServer(t).Addr))
	acquire(t, l, "k", "a", time.Hour)
	join := joinArgs(t, "k", "b", time.Hour)
	released, _ := overtake(t, l, l.sql.join, join, func() (bool, error) {
		return l.Release(t.Context(), "k", "a")
	})
	require.True(t, released)
	info, err := l.Inspect(t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, "b", info.Token, "the release has not seen the waiter")
}

func TestJoinAfterAnotherAndARelease(t *testing.T) {
	t.Parallel()
	l := New(newPool(t, newServer(t).Addr))
	acquire(t, l, "k", "a", time.Hour)
	join := joinArgs(t, "k", "b", time.Hour)
	ok, _ := overtake(t, l, l.sql.join, join, joins(t, l, "k", "c"))
	require.False(t, ok)
	info, err := l.Inspect(t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, 2, info.Waiters, "a place is lost")
	ok, _ = overtake(t, l, l.sql.release, []any{[]byte("k"), []byte("a")}, joins(t, New(l.pool), "k", "d"))
	require.False(t, ok)
	info, err = l.Inspect(t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, "b", info.Token)
	require.Equal(t, 2, info.Waiters)
	release(t, l, "k", "b")
	release(t, l, "k", "c")
	ok, _ = overtake(t, l, l.sql.release, []any{[]byte("k"), []byte("d")}, joins(t, l, "k", "e"))
	require.True(t, ok, "the lock is free")
}

// A copy of a request for a place may arrive when its waiter has been served and has extended the lock.
func TestJoinShortensNothing(t *testing.T) {
	t.Parallel()
	l := New(newPool(t, newServer(t).Addr))
	acquire(t, l, "k", "a", time.Hour)
	left := func() time.Duration {
		_, err := l.pool.Exec(t.Context(), l.sql.join, joinArgs(t, "k", "a", time.Minute)...)
		require.NoError(t, err)
		info, err := l.Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, "a", info.Token)
		return info.TTL
	}
	require.Greater(t, left(), 30*time.Minute)
	ok, err := l.Extend(t.Context(), "k", "a", time.Second)
	require.NoError(t, err)
	require.True(t, ok)
	require.Greater(t, left(), 30*time.Second, "a request for a place makes a lock longer")
}

func TestAcquireAfterAnExtension(t *testing.T) {
	t.Parallel()
	l := New(newPool(t, newServer(t).Addr))
	us, err := microsecondsOf(time.Hour)
	require.NoError(t, err)
	acquire(t, l, "k", "a", 500*time.Millisecond)
	tx, err := l.pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), l.sql.extend, []byte("k"), []byte("a"), us)
	require.NoError(t, err)
	time.Sleep(600 * time.Millisecond) // the old expiry is over
	done := make(chan bool)
	go func() {
		ok, _ := l.Acquire(t.Context(), "k", "b", time.Hour)
		done <- ok
	}()
	require.Eventually(t, func() (waits bool) {
		const query = "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
		err := l.pool.QueryRow(t.Context(), query).Scan(&waits)
		return err == nil && waits
	}, long, time.Millisecond)
	require.NoError(t, tx.Commit(t.Context()))
	require.False(t, <-done, "the lock of another was taken")
}

// The time of a lock counts from when it was taken, however long that took.
func TestAcquireCountsFromTheEndOfItsWait(t *testing.T) {
	t.Parallel()
	l := New(newPool(t, newServer(t).Addr))
	acquire(t, l, "k", "a", time.Hour)
	ok, _ := overtake(t, l, l.sql.releaseAlone, []any{[]byte("k"), []byte("a")}, func() (bool, error) {
		return l.Extend(t.Context(), "k", "a", time.Hour)
	})
	require.False(t, ok, "a lock that was released was extended")
	touch := "UPDATE locker_locks SET fence = fence WHERE key = $1 RETURNING 1"
	for _, call := range []func() (bool, error){
		func() (bool, error) { return l.Acquire(t.Context(), "k", "b", time.Hour) },
		func() (bool, error) { return l.Extend(t.Context(), "k", "b", time.Hour) },
		joins(t, l, "k", "b"),
	} {
		ok, at := overtake(t, l, touch, []any{[]byte("k")}, call)
		require.True(t, ok)
		var expires time.Time
		require.NoError(t, l.pool.QueryRow(t.Context(), "SELECT expires FROM locker_locks").Scan(&expires))
		require.False(t, expires.Before(at.Add(time.Hour)), "it counts from before the wait")
	}
}
