package redisv9_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golockers/locker/internal/redislock/redistest"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/redisv9"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// refusing is a client that cannot send scripts.
type refusing struct{ now atomic.Bool }

func (r *refusing) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r *refusing) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if r.now.Load() && strings.HasPrefix(cmd.Name(), "eval") {
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

// Waiters that could not leave the queue are granted the lock later if others of their process
// still wait. Each of them releases it at once.
func TestGrantToThoseWhoHaveGone(t *testing.T) {
	t.Parallel()
	addr := testserver.Redis(t).Addr
	ctx := t.Context()
	admin := newClient(t, &redis.Options{Addr: addr})
	for name, kind := range map[string]func(*redis.Client) redis.UniversalClient{
		"granted": func(c *redis.Client) redis.UniversalClient { return c },
		"claimed": func(c *redis.Client) redis.UniversalClient { return struct{ redis.UniversalClient }{c} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := newClient(t, &redis.Options{Addr: addr})
			r := new(refusing)
			client.AddHook(r)
			holder, l := newLocker(t, &redis.Options{Addr: addr}), redisv9.New(kind(client))
			acquires(t, holder, name, "holder", time.Hour)
			leaving, cancel := context.WithCancel(ctx)
			var gone []<-chan redistest.Turn
			for i := range 4 {
				gone = append(gone, joins(t, admin, l, leaving, name, fmt.Sprint("gone", i), time.Hour))
			}
			stays := joins(t, admin, l, ctx, name, "stays", time.Minute)
			time.Sleep(100 * time.Millisecond) // all of them are subscribed
			r.now.Store(true)
			cancel()
			for _, done := range gone {
				require.ErrorIs(t, (<-done).Err, context.Canceled)
			}
			eventually(t, "they have given up leaving", func() bool { return redisv9.GivingUp(l) == 0 })
			require.EqualValues(t, 5, queueLength(admin, name))
			releases(t, holder, name, "holder")
			r.now.Store(false)
			isServed(t, stays, "those before it have gone")
		})
	}
}

// A lock that was granted to a waiter that has gone is released when the server can be reached again.
func TestGrantToOneWhoHasGoneDuringAnOutage(t *testing.T) {
	t.Parallel()
	addr := testserver.Redis(t).Addr
	admin, client := newClient(t, &redis.Options{Addr: addr}), newClient(t, &redis.Options{Addr: addr})
	r := new(refusing)
	client.AddHook(r)
	holder, l := newLocker(t, &redis.Options{Addr: addr}), redisv9.New(client)
	acquires(t, holder, "k", "holder", time.Hour)
	leaving, cancel := context.WithCancel(t.Context())
	gone := joins(t, admin, l, leaving, "k", "gone", time.Hour)
	eventually(t, "it is subscribed", func() bool { return len(admin.PubSubChannels(t.Context(), "!wait:*").Val()) > 0 })
	r.now.Store(true)
	cancel()
	require.ErrorIs(t, (<-gone).Err, context.Canceled)
	eventually(t, "it has given up leaving", func() bool { return redisv9.GivingUp(l) == 0 })
	releases(t, holder, "k", "holder")
	stays := make(chan redistest.Turn, 1)
	go func() {
		deadline, err := holder.Wait(t.Context(), "k", "stays", time.Minute)
		stays <- redistest.Turn{Deadline: deadline, Err: err}
	}()
	eventually(t, "the lock was granted to it", func() bool { return admin.Get(t.Context(), "locker:k").Val() == "gone" })
	time.Sleep(7 * time.Second) // longer than leaving the queue is tried at first
	r.now.Store(false)
	isServed(t, stays, "the one that has gone releases the lock")
}

// A Locker keeps no more than 4,096 ghosts. Beyond that its later waiters use another channel, so
// that the server passes over the forgotten ones once the old channel has no waiters.
func TestThoseWhoHaveGoneAreBounded(t *testing.T) {
	t.Parallel()
	const waiters = 4200
	addr := testserver.Redis(t).Addr
	admin, client := newClient(t, &redis.Options{Addr: addr}), newClient(t, &redis.Options{Addr: addr})
	r := new(refusing)
	client.AddHook(r)
	holder, l := newLocker(t, &redis.Options{Addr: addr}), redisv9.New(client)
	acquires(t, holder, "k", "holder", time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	crowd(t, admin, l, ctx, waiters, 20, "k", time.Hour, func() {})
	channels := admin.PubSubChannels(t.Context(), "!wait:*").Val()
	require.Len(t, channels, 1)
	r.now.Store(true)
	cancel()
	eventually(t, "they have given up leaving, and their channel", func() bool {
		assert.LessOrEqual(t, redisv9.Ghosts(l), 4096)
		return admin.PubSubNumSub(t.Context(), channels[0]).Val()[channels[0]] == 0 && redisv9.GivingUp(l) == 0
	})
	require.EqualValues(t, waiters, queueLength(admin, "k"))
	r.now.Store(false)
	done := make(chan redistest.Turn, 1)
	go func() {
		deadline, err := l.Wait(t.Context(), "k", "waiter", time.Minute)
		done <- redistest.Turn{Deadline: deadline, Err: err}
	}()
	releases(t, holder, "k", "holder")
	isServed(t, done, "those before it have gone")
}

// A waiter that stays does not keep the channel of those that were forgotten alive.
func TestForgottenGhostsArePassedOver(t *testing.T) {
	t.Parallel()
	const waiters = 4200
	addr := testserver.Redis(t).Addr
	admin, client := newClient(t, &redis.Options{Addr: addr}), newClient(t, &redis.Options{Addr: addr})
	r := new(refusing)
	client.AddHook(r)
	holder, l := newLocker(t, &redis.Options{Addr: addr}), redisv9.New(client)
	acquires(t, holder, "k", "holder", time.Hour)
	acquires(t, holder, "other", "holder", time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	crowd(t, admin, l, ctx, waiters, 20, "k", time.Hour, func() {})
	stays := joins(t, admin, l, t.Context(), "other", "stays", time.Hour)
	channels := admin.PubSubChannels(t.Context(), "!wait:*").Val()
	require.Len(t, channels, 1)
	r.now.Store(true)
	cancel()
	eventually(t, "they have given up leaving", func() bool {
		return redisv9.Ghosts(l) >= 4096 && redisv9.GivingUp(l) == 0
	})
	r.now.Store(false)
	eventually(t, "the channel is given up", func() bool {
		return admin.PubSubNumSub(t.Context(), channels[0]).Val()[channels[0]] == 0
	})
	done := make(chan redistest.Turn, 1)
	go func() {
		deadline, err := holder.Wait(t.Context(), "k", "waiter", time.Minute)
		done <- redistest.Turn{Deadline: deadline, Err: err}
	}()
	releases(t, holder, "k", "holder")
	isServed(t, done, "those before it have gone")
	releases(t, holder, "other", "holder")
	isServed(t, stays, "it has moved to another channel")
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
			redistest.HangingServer(t, func(addr string) (redistest.Locker, func() int64) {
				own := o
				own.Addr = addr
				l := newLocker(t, &own)
				return l, func() int64 { return redisv9.GivingUp(l) }
			})
		})
	}
}
