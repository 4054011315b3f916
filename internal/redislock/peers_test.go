package redislock

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// On a server that loses its queues again and again, the waiters of a Locker look at a bounded rate.
func TestPlacesLostAgainAndAgain(t *testing.T) {
	for waiters, rate := range map[int]int64{20: 200, 200: 200, 2000: 200, 10_000: 1000} {
		synctest.Test(t, func(t *testing.T) {
			const during, often = time.Minute, 250 * time.Millisecond
			looks := looksDuringLosses(t, waiters, during, often)
			t.Logf("%d looks of %d waiters", looks, waiters)
			most := rate*int64(during/time.Second) + int64(during/often)
			assert.LessOrEqual(t, looks, most+2*int64(waiters), "the first alarm comes at once")
			assert.Greater(t, looks, 4*int64(waiters), "there are further alarms")
		})
	}
}

// looksDuringLosses returns how many looks some waiters for a lock make, after their first ones, if
// each look finds the place lost. The first waiter looks often without being asked.
func looksDuringLosses(t *testing.T, waiters int, during, often time.Duration) int64 {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	i := &inbox{Source: Source{MaxLooks: 10}}
	var looks atomic.Int64
	var all sync.WaitGroup
	for n := range waiters {
		w := &waiting{keys: Keys{Queue: "k"}, turn: make(chan struct{}, 1), box: &box{inbox: i}}
		i.mu.Lock()
		i.joinLocked(w)
		i.mu.Unlock()
		all.Go(func() {
			for {
				i.looks(ctx, w)
				sent := time.Now()
				time.Sleep(time.Millisecond)
				i.looked(w)
				if w.joined {
					looks.Add(1)
					i.mistrust(w, sent)
				}
				w.joined = true
				i.placed(w, sent, LookAgain, 1)
				var again <-chan time.Time
				if n == 0 {
					again = time.After(often)
				}
				select {
				case <-again:
				case <-w.turn:
				case <-ctx.Done():
					i.leave(w)
					return
				}
			}
		})
	}
	time.Sleep(during)
	cancel()
	all.Wait()
	return looks.Load()
}
