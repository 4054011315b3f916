package postgres

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/stretchr/testify/require"
)

// The holder vanishes, and the first in the queue is stopped, or its machine has gone without a
// word: to the server its connection is alive. The lock must not wait for it.
func TestHolderVanishesAndTheFirstHangs(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	pool := newPool(t, s.Addr)
	hung, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	t.Cleanup(hung.Release)
	for name, take := range map[string]func(l *Locker) (bool, error){
		"Wait": func(l *Locker) (bool, error) {
			_, err := l.Wait(t.Context(), "Wait", "b", time.Hour)
			return err == nil, err
		},
		"Acquire": func(l *Locker) (bool, error) { return l.Acquire(t.Context(), "Acquire", "b", time.Hour) },
	} {
		l := New(newPool(t, s.Addr))
		acquire(t, l, name, "a", time.Second)
		_, err = hung.Exec(t.Context(), `UPDATE locker_locks SET queue = jsonb_build_array(jsonb_build_object(
			'nonce', 'hung/1', 'token', 'hung', 'ttl', 3600000000, 'pid', pid, 'start', (extract(epoch FROM backend_start) * 1000000)::bigint))
			FROM pg_stat_activity WHERE pid = pg_backend_pid() AND key = $1`, []byte(name))
		require.NoError(t, err)
		took := make(chan error, 1)
		go func() {
			for {
				ok, err := take(l)
				if ok || err != nil {
					took <- err
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
		}()
		select {
		case err := <-took:
			require.NoError(t, err, name)
		case <-time.After(long):
			t.Fatalf("%s: the lock is free and left to a waiter that does not take it", name)
		}
	}
}

// A request for a place that fails because the pool's connections have ended is made again.
func TestJoinOverKilledBackends(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	a, b := New(newPool(t, s.Addr)), New(newPool(t, s.Addr))
	acquire(t, a, "other", "a", time.Hour)
	acquire(t, a, "k", "a", time.Hour)
	waits(t.Context(), t, b, "other", "b", time.Hour) // so b listens
	_, err := a.pool.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE backend_type = 'client backend' AND pid NOT IN (pg_backend_pid(), $1)`, b.listens())
	require.NoError(t, err)
	done := waits(t.Context(), t, b, "k", "b", time.Hour)
	release(t, a, "k", "a")
	served(t, done)
}

// An administrator, or idle_session_timeout, ends the connections while a client waits.
func TestWaitOverKilledBackends(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	a, b := New(newPool(t, s.Addr)), New(newPool(t, s.Addr, "pool_max_conns", "1"))
	acquire(t, a, "k", "a", time.Hour)
	done := waits(t.Context(), t, b, "k", "b", time.Hour)
	listens := b.listens()
	_, err := a.pool.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'`)
	require.NoError(t, err)
	require.Eventually(t, func() bool { // it has asked for a place in the name of the new one
		var listed bool
		err := a.pool.QueryRow(t.Context(), "SELECT (queue->0->>'pid')::int = $1 FROM locker_locks", b.listens()).Scan(&listed)
		return err == nil && listed && b.listens() != listens || len(done) > 0
	}, long, time.Millisecond)
	require.Eventually(t, func() bool { // its own pool's may be killed as well
		ok, err := a.Release(t.Context(), "k", "a")
		return err == nil && ok
	}, long, time.Millisecond)
	served(t, done)
}

// A watcher may come back before the connection has marked its key.
func TestKeyIsMarkedTwice(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	l := New(newPool(t, s.Addr))
	changed, err := call(t.Context(), l, "", func(r *request) (int64, error) {
		return r.exec(l.sql.mark, [][]byte{[]byte("k"), []byte("other"), []byte("k")},
			pgtype.Interval{Microseconds: markFor.Microseconds(), Valid: true})
	})
	require.NoError(t, err)
	require.EqualValues(t, 2, changed)
}
