package postgres

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A ghost whose waiter left a request without an answer is forgotten when that can no longer arrive.
func TestGhostIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g ghosts
		who := &ghost{key: "k", token: "t", since: time.Now(), ttl: time.Hour, answered: time.Now()}
		g.add(who)
		time.Sleep(leaveFor + leaveAgain)
		g.goOn(who, true)
		time.Sleep(lateFor / 2)
		assert.EqualValues(t, 1, g.number.Load())
		time.Sleep(lateFor)
		assert.Zero(t, g.number.Load())
	})
}

// However often the listening connection is opened again during an outage, a ghost tries again once
// after each pause.
func TestGhostTriesOnceAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := ghosts{workers: maxLeave} // so that none starts
		who := &ghost{key: "k", token: "t", since: time.Now(), ttl: time.Hour}
		g.add(who)
		for range 3 {
			g.leaveAll()
			g.goOn(who, false)
		}
		time.Sleep(2 * leaveAgain)
		g.mu.Lock()
		defer g.mu.Unlock()
		assert.Len(t, g.leaving, 1)
	})
}

// The ghost of a late request does not release what its owner has extended since, or acquired again:
// from then on the token holds the lock by its owner's request.
func TestGhostOfAServedWaiterLeavesExtendedLocksAlone(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	l, other := New(newPool(t, s.Addr)), New(newPool(t, s.Addr))
	for name, change := range map[string]func(ctx context.Context, key, token string, ttl time.Duration) (bool, error){
		"extend": l.Extend, "acquire": l.Acquire,
	} {
		for _, queued := range []bool{false, true} {
			acquire(t, l, name, "t", time.Hour)
			ctx, cancel := context.WithCancel(t.Context())
			if queued {
				waits(ctx, t, other, name, "other", time.Hour)
			}
			_, err := l.pool.Exec(ctx, "UPDATE locker_locks SET granted = 'late' WHERE key = $1", []byte(name))
			require.NoError(t, err)
			ok, err := change(ctx, name, "t", time.Hour)
			require.NoError(t, err)
			require.True(t, ok)
			require.NoError(t, l.leaveServed(ctx, name, "t", "late"))
			info, err := l.Inspect(ctx, name)
			require.NoError(t, err)
			assert.Equal(t, "t", info.Token, "%s, queued %t", name, queued)
			cancel()
		}
	}
}
