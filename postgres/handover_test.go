package postgres

import (
	"bytes"
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Waiters are told whenever a lock becomes free sooner than they could know.

// A holder that acquires its lock again for less, or extends it for less, tells the first in the queue.
func TestHolderShortensItsLock(t *testing.T) {
	t.Parallel()
	addr := newServer(t).Addr
	holder := New(newPool(t, addr))
	for name, shorten := range map[string]func(context.Context, string, string, time.Duration) (bool, error){
		"extend": holder.Extend, "acquire": holder.Acquire,
	} {
		t.Run(name, func(t *testing.T) {
			acquire(t, holder, name, "holder", time.Hour)
			done := waits(t.Context(), t, New(newPool(t, addr)), name, "waiter", time.Minute)
			start := time.Now()
			ok, err := shorten(t.Context(), name, "holder", 300*time.Millisecond)
			require.NoError(t, err)
			require.True(t, ok)
			served(t, done)
			assert.Less(t, time.Since(start), lookAgain/2, "told by the holder")
		})
	}
}

// slow is a connection that reads nothing after it has sent a text, until a channel is closed.
type slow struct {
	net.Conn
	text  string
	until chan struct{}
	sent  atomic.Bool
}

func (s *slow) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte(s.text)) {
		s.sent.Store(true)
	}
	return s.Conn.Write(b)
}

func (s *slow) Read(b []byte) (int, error) {
	if s.sent.Load() {
		<-s.until
	}
	return s.Conn.Read(b)
}

// The message that the lock was handed over may come before the answer to the request for the place.
func TestGrantBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	addr := newServer(t).Addr
	holder := New(newPool(t, addr))
	config := newPool(t, addr).Config()
	answered := make(chan struct{})
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return &slow{Conn: conn, text: "slow-waiter", until: answered}, err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	l := New(pool)
	acquire(t, holder, "busy", "holder", time.Hour)
	acquire(t, holder, "k", "holder", time.Hour)
	busy := waits(t.Context(), t, l, "busy", "waiter", time.Hour) // so it listens
	done := make(chan waited, 1)
	go func() {
		deadline, err := l.Wait(t.Context(), "k", "slow-waiter", time.Hour)
		done <- waited{deadline, err}
	}()
	require.Eventually(t, func() bool { return placesOf(t, holder, "k") == 1 }, long, time.Millisecond)
	start := time.Now()
	release(t, holder, "k", "holder")
	release(t, holder, "busy", "holder")
	served(t, busy) // so the message about the other lock has come before
	close(answered)
	served(t, done)
	assert.Less(t, time.Since(start), lookAgain/2)
}
