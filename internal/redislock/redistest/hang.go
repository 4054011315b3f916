package redistest

import (
	"context"
	"testing"
	"time"

	"github.com/golockers/locker/internal/testserver"
	"github.com/stretchr/testify/assert"
)

// HangingServer lets a server hang for longer than clients wait for replies. When the server goes on,
// it executes the requests that it has not answered. HangingServer checks that their waiters hold no
// lock after that. newLocker returns a Locker with its own connections.
func HangingServer(t *testing.T, newLocker func(addr string) Locker) {
	t.Helper()
	ctx, server := t.Context(), testserver.Redis(t)
	admin := NewClient(t, server.Addr)
	other := newLocker(server.Addr)
	waiter := func() Locker {
		l := newLocker(server.Addr)
		Acquires(t, l, "warm", "t", time.Hour) // it has a connection
		return l
	}
	const ttl = 3 * time.Second
	leaving, leave := context.WithCancel(ctx)
	defer leave()
	// One begins to wait, on a Locker that has waiters and on one that has none.
	idle, busy := waiter(), waiter()
	Acquires(t, other, "busy", "holder", time.Hour)
	stays := Joins(t, admin, busy, leaving, "busy", "t", time.Hour)
	// Another looks at the lock when the holder's time ends, which the server must not see.
	early := waiter()
	Acquires(t, other, "queued", "holder", ttl)
	queued := Joins(t, admin, early, leaving, "queued", "t", time.Hour)

	server.Pause()
	defer server.Continue()
	for key, l := range map[string]Locker{"idle": idle, "joining": busy} {
		short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		_, err := l.Wait(short, key, "t", time.Hour)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		cancel()
	}
	time.Sleep(ttl + time.Second)
	leave()
	assert.Error(t, (<-queued).Err)
	assert.Error(t, (<-stays).Err)
	time.Sleep(4 * time.Second)
	server.Continue()
	for range 2 { // requests may arrive a little later
		for _, key := range []string{"queued", "idle", "joining"} {
			Eventually(t, "the lock is free: "+key, func() bool {
				ok, err := other.Acquire(ctx, key, "other", time.Minute)
				return ok && err == nil
			})
			Releases(t, other, key, "other")
		}
		time.Sleep(time.Second)
	}
}
