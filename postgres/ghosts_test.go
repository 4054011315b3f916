package postgres

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
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

// However often the connection that listens is made anew during an outage, a ghost tries again once
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
