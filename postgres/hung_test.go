package postgres

import (
	"testing"
	"time"

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
		_, err = hung.Exec(t.Context(), `UPDATE locker_locks SET queue_token = '{hung}', queue_ttl = '{1 hour}',
			queue_pid = ARRAY[pid], queue_start = ARRAY[backend_start]
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
