package redisv9_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/redislock"
	"github.com/golockers/locker/internal/redislock/redistest"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/redisv9"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// refusing is a client that cannot send scripts, but for one.
type refusing struct {
	now    atomic.Bool
	allows string // the hash of a script
}

func (r *refusing) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r *refusing) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if r.now.Load() && strings.HasPrefix(cmd.Name(), "eval") && cmd.Args()[1] != r.allows {
			err := errors.New("the pool is exhausted")
			cmd.SetErr(err)
			return err
		}
		return next(ctx, cmd)
	}
}

func (r *refusing) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// Waiters leave a line without a request, and whoever is behind them has their place.
func TestLeavingALine(t *testing.T) {
	t.Parallel()
	addr := testserver.Redis(t).Addr
	admin, client := newClient(t, &redis.Options{Addr: addr}), newClient(t, &redis.Options{Addr: addr})
	r := &refusing{allows: redislock.Look.Hash} // the first looks whenever messages begin to arrive
	client.AddHook(r)
	holder, l := newLocker(t, &redis.Options{Addr: addr}), redisv9.New(client)
	acquires(t, holder, "k", "holder", time.Hour)
	leaving, cancel := context.WithCancel(t.Context())
	gone := []<-chan redistest.Turn{joins(t, admin, l, leaving, "k", "gone", time.Hour)}
	for i := range 4 {
		gone = append(gone, stands(t, l, leaving, "k", fmt.Sprint("gone", i), time.Hour))
	}
	stays := stands(t, l, t.Context(), "k", "stays", time.Minute)
	hears(t, admin, 1)
	r.now.Store(true)
	cancel()
	for _, done := range gone {
		require.ErrorIs(t, (<-done).Err, locker.ErrHeld)
	}
	require.EqualValues(t, 1, queueLength(admin, "k"))
	r.now.Store(false)
	releases(t, holder, "k", "holder")
	isServed(t, stays, "those before it have gone")
}

// A lock that is offered to a waiter that has gone, and could neither leave nor pass it on, is another's
// about a second later.
func TestOfferToOneWhoHasGoneDuringAnOutage(t *testing.T) {
	t.Parallel()
	addr := testserver.Redis(t).Addr
	admin, client := newClient(t, &redis.Options{Addr: addr}), newClient(t, &redis.Options{Addr: addr})
	r := new(refusing)
	client.AddHook(r)
	holder, l := newLocker(t, &redis.Options{Addr: addr}), redisv9.New(client)
	acquires(t, holder, "k", "holder", time.Hour)
	leaving, cancel := context.WithCancel(t.Context())
	gone := joins(t, admin, l, leaving, "k", "gone", time.Hour)
	hears(t, admin, 1)
	r.now.Store(true)
	cancel()
	require.ErrorIs(t, (<-gone).Err, context.Canceled)
	stays := joins(t, admin, holder, t.Context(), "k", "stays", time.Minute)
	start := time.Now()
	releases(t, holder, "k", "holder")
	isServed(t, stays, "the one that has gone does not take the lock")
	assert.Less(t, time.Since(start), redislock.LookAgain/2)
}

// A server that hangs for longer than waiters try to leave its queue executes their requests when it
// goes on.
func TestServerHangsForLong(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]redis.Options{
		"defaults":   {},
		"no retries": {ContextTimeoutEnabled: true, MaxRetries: -1, ReadTimeout: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.HangingServer(t, func(addr string) redistest.Locker {
				own := o
				own.Addr = addr
				return newLocker(t, &own)
			})
		})
	}
}
