package leader

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/examples/recipes/internal/replicas"
	"github.com/golockers/locker/lockertest"
	"github.com/golockers/locker/redisv9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// term is what one replica does while it leads.
type term struct {
	replica int
	ctx     context.Context
	end     chan error // makes lead return
}

// campaign starts replicas that report their terms. leading is how many lead at the moment.
func campaign(ctx context.Context, lockers ...locker.Locker) (terms chan term, leading *atomic.Int32, wait func()) {
	terms, leading = make(chan term), new(atomic.Int32)
	var running sync.WaitGroup
	for i, l := range lockers {
		lead := func(ctx context.Context) error {
			leading.Add(1)
			defer leading.Add(-1)
			self := term{i, ctx, make(chan error)}
			select {
			case terms <- self:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			select {
			case err := <-self.end:
				return err
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		running.Go(func() { Lead(ctx, l, fmt.Sprint("replica-", i), lead) })
	}
	return terms, leading, running.Wait
}

// Another replica leads when the leader resigns or fails. When the leader loses the lock, both lead
// until it notices, for a third of the ttl at most.
func TestLead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		l := lockertest.New()
		terms, leading, wait := campaign(ctx, l, l, l)
		led := make(map[int]bool)
		next := func() term {
			leader := <-terms
			led[leader.replica] = true
			return leader
		}

		leader := next()
		assert.EqualValues(t, 1, leading.Load())
		leader.end <- nil
		leader = next()
		assert.EqualValues(t, 1, leading.Load())
		leader.end <- errors.New("failed")
		leader = next()
		assert.EqualValues(t, 1, leading.Load())
		assert.Len(t, led, 3, "every replica has led once")

		info, err := l.Inspect(ctx, "leader")
		require.NoError(t, err)
		assert.True(t, strings.HasPrefix(info.Token, fmt.Sprintf("replica-%d/", leader.replica)), info.Token)
		time.Sleep(time.Hour)
		assert.NoError(t, leader.ctx.Err(), "not kept alive")

		l.Lose("leader")
		lost := time.Now()
		assert.NotEqual(t, leader.replica, next().replica)
		<-leader.ctx.Done()
		assert.LessOrEqual(t, time.Since(lost), 5*time.Second)
		assert.ErrorIs(t, context.Cause(leader.ctx), locker.ErrNotHeld)
		synctest.Wait()
		assert.EqualValues(t, 1, leading.Load())
		cancel()
		wait()
	})
}

// On Redis the next replica leads as soon as the leader has resigned.
func TestLeadOnRedis(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	var lockers []locker.Locker
	for _, client := range replicas.Clients(t, 3) {
		lockers = append(lockers, redisv9.New(client))
	}
	terms, leading, wait := campaign(ctx, lockers...)
	defer wait()
	defer cancel()
	for range 4 {
		select {
		case leader := <-terms:
			assert.EqualValues(t, 1, leading.Load())
			leader.end <- nil
		case <-ctx.Done():
			require.NoError(t, ctx.Err())
		}
	}
}
