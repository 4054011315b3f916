package redislock

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker/internal/pubsub"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// When a waiter has read that the lock is offered, but its context has just ended, the next in its
// line takes the lock at once.
func TestOfferToAWaiterThatGivesUp(t *testing.T) {
	passed := 0
	for range 200 {
		synctest.Test(t, func(t *testing.T) {
			var isOffered atomic.Bool
			eval := func(s *Sending, e Eval) (any, error) {
				if _, err := s.MarshalBinary(); err != nil {
					return nil, err
				}
				if e.Hash != Look.Hash {
					return int64(0), nil
				}
				if isOffered.Load() {
					return []any{int64(1), int64(60_000), int64(0), "", int64(-1)}, nil
				}
				return []any{int64(0), int64(60_000), int64(0), "1", int64(1)}, nil
			}
			l := New(Config{
				Requests: Requests{
					Set:     func(*Sending, string, int64) (bool, error) { return false, nil },
					Eval:    eval,
					IsReply: func(error, string) bool { return false },
				},
				Source: Source{Hubs: func(context.Context) ([]*pubsub.Hub, error) { return nil, nil }},
				Names:  NewNamespace("", true),
				Owner:  t,
			})
			ctx, cancel := context.WithCancel(t.Context())
			first, second := make(chan error, 1), make(chan error, 1)
			go func() { _, err := l.Wait(ctx, "k", "first", time.Minute); first <- err }()
			synctest.Wait()
			go func() { _, err := l.Wait(t.Context(), "k", "second", time.Minute); second <- err }()
			time.Sleep(time.Second)
			synctest.Wait()
			var id string
			l.inbox.mu.Lock()
			for entry := range l.inbox.places {
				_, id, _ = strings.Cut(entry, " ")
			}
			l.inbox.mu.Unlock()
			isOffered.Store(true)
			start := time.Now()
			l.inbox.box.Message(id + " offer")
			cancel()
			if <-first == nil {
				require.NoError(t, <-second)
			} else {
				passed++
				require.NoError(t, <-second)
				assert.Zero(t, time.Since(start), "it looks at its next poll only")
			}
			time.Sleep(2 * boxLinger)
		})
	}
	assert.Positive(t, passed)
}
