package redislock

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker/internal/pubsub"
	"github.com/golockers/locker/internal/undo"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A request that had no answer takes the lock when the server has answered others for some time. It
// may have been sent more than once, and then each of these requests takes the lock.
func TestRequestsArriveAfterAnAnswer(t *testing.T) {
	const hang = time.Second
	for name, arrivals := range map[string][]time.Duration{ // after the hang
		"once":        {0},
		"late":        {4500 * time.Millisecond},
		"twice":       {0, time.Second},
		"twice, late": {0, 4500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				var holder string
				begun := time.Now()
				set := func(s *Sending, _ string, _ int64) (bool, error) {
					for range arrivals {
						if _, err := s.MarshalBinary(); err != nil {
							return false, err
						}
					}
					return false, errors.New("no answer")
				}
				eval := func(s *Sending, e Eval) (any, error) {
					mu.Lock()
					defer mu.Unlock()
					switch {
					case time.Since(begun) < hang:
						return nil, errors.New("no answer")
					case e.Hash != Release.Hash || holder != s.Token:
						return int64(0), nil
					}
					holder = ""
					return int64(1), nil
				}
				l := New(Config{
					Requests: Requests{Set: set, Eval: eval, IsReply: func(error, string) bool { return false }},
					Source:   Source{Hubs: func(context.Context) ([]*pubsub.Hub, error) { return nil, nil }},
					Names:    NewNamespace("", true),
					Owner:    t,
				})
				_, err := l.Wait(t.Context(), "k", "t", time.Hour)
				require.Error(t, err)
				for _, after := range arrivals {
					time.Sleep(time.Until(begun.Add(hang + after)))
					mu.Lock()
					holder = "t"
					mu.Unlock()
				}
				require.NoError(t, undo.Wait(t.Context(), t))
				mu.Lock()
				defer mu.Unlock()
				assert.Empty(t, holder)
			})
		})
	}
}

// A token that had to be forgotten is not released any more, since it may be in use again.
func TestForgottenTokensAreNotReleased(t *testing.T) {
	var d doubts
	keys, all := Keys{Lock: "k"}, make([]*doubt, maxDoubts+100)
	for i := range all {
		token := strconv.Itoa(i)
		all[i] = d.note(keys, token)
		d.release(keys, token, all[i])
	}
	released := 0
	for i, in := range all {
		known := d.find(keys, strconv.Itoa(i)) == in
		require.Equal(t, known, !d.isInUse(in))
		if known {
			released++
		}
		d.drop(keys, strconv.Itoa(i), in)
	}
	require.Equal(t, maxDoubts, released)
	require.Zero(t, d.count.Load())
}
