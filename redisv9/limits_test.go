package redisv9

import (
	"context"
	"crypto/tls"
	"reflect"
	"runtime"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The defaults are those of the go-redis in use: 3 s, and 5 from 9.22 on. Versions with maintenance
// notifications relax them to 10 s.
func TestLimitsFollowTheClient(t *testing.T) {
	t.Parallel()
	client := redis.NewClient(&redis.Options{})
	defer client.Close()
	o := client.Options()
	timeout := o.ReadTimeout
	require.Contains(t, []time.Duration{3 * time.Second, 5 * time.Second}, timeout)
	inline := timeout
	if reflect.ValueOf(o).Elem().FieldByName("MaintNotificationsConfig").IsValid() {
		inline = 10 * time.Second
	}
	defaults := limits{io: timeout, inline: inline}

	_, got := limitsOfClient(client)
	assert.Equal(t, defaults, got)
	assert.Equal(t, defaults, limitsOfUnknown())
	ring := redis.NewRing(&redis.RingOptions{})
	defer ring.Close()
	assert.Equal(t, defaults, limitsOfRing(ring.Options()))
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	defer cluster.Close()
	got = limitsOfCluster(cluster.Options())
	assert.Equal(t, timeout, got.io)
	assert.GreaterOrEqual(t, got.inline, timeout)
	assert.LessOrEqual(t, got.inline, inline)
}

func TestLimits(t *testing.T) {
	t.Parallel()
	const s = time.Second
	relaxed := limitsOfUnknown().inline
	endless := limits{io: defaultTimeout, inline: 1<<63 - 1, unbounded: true}
	for name, c := range map[string]struct {
		read, write  time.Duration
		honors, tls  bool
		client, ring limits
	}{
		"set":           {20 * s, 30 * s, false, false, limits{io: 30 * s, inline: 30 * s}, limits{io: 30 * s, inline: 30 * s}},
		"short":         {s, s, false, false, limits{io: s, inline: max(s, relaxedOr0())}, limits{io: s, inline: max(s, relaxedOr0())}},
		"write follows": {20 * s, 0, false, false, limits{io: 20 * s, inline: 20 * s}, limits{io: 20 * s, inline: 20 * s}},
		"contexts":      {20 * s, 0, true, false, limits{io: 20 * s}, limits{io: 20 * s}},
		"TLS":           {20 * s, 0, true, true, limits{io: 20 * s, inline: 20 * s}, limits{io: 20 * s, inline: 20 * s}},
		"none":          {-1, 0, true, false, limits{io: 3 * s}, endless},
		"not even set":  {-2, -2, true, false, limits{io: 3 * s}, endless},
	} {
		var config *tls.Config
		if c.tls {
			config = new(tls.Config)
		}
		client := redis.NewClient(&redis.Options{
			ReadTimeout: c.read, WriteTimeout: c.write, ContextTimeoutEnabled: c.honors, TLSConfig: config})
		defer client.Close()
		timed, got := limitsOfClient(client)
		assert.Equal(t, c.client, got, name)
		assert.Positive(t, timed.Options().ReadTimeout, name)
		ring := redis.NewRing(&redis.RingOptions{
			ReadTimeout: c.read, WriteTimeout: c.write, ContextTimeoutEnabled: c.honors, TLSConfig: config})
		defer ring.Close()
		assert.Equal(t, c.ring, limitsOfRing(ring.Options()), name)
	}
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}, ReadTimeout: -1})
	defer cluster.Close()
	assert.Equal(t, endless, limitsOfCluster(cluster.Options()), "no timeout, with go-redis 9.23")
	assert.GreaterOrEqual(t, relaxed, 3*s)
}

func relaxedOr0() time.Duration { return relaxedTimeout(complete(new(redis.Options))) }

func TestRelaxedTimeout(t *testing.T) {
	type config struct {
		RelaxedTimeout time.Duration
	}
	type options struct{ MaintNotificationsConfig *config }
	assert.Equal(t, time.Minute, relaxedTimeout(&options{&config{time.Minute}}))
	assert.Zero(t, relaxedTimeout(&options{}))
	assert.Zero(t, relaxedTimeout(&struct{ MaintNotificationsConfig *struct{} }{new(struct{})}))
	assert.Zero(t, relaxedTimeout(&struct{}{}))
}

// The throwaway clients that show the defaults leave nothing behind.
func TestLimitsLeaveNothing(t *testing.T) {
	before := runtime.NumGoroutine()
	for range 100 {
		limitsOfUnknown()
	}
	assert.Eventually(t, func() bool { return runtime.NumGoroutine() < before+50 }, 30*time.Second, 10*time.Millisecond)
}

// pipeliner has the methods by which an AutoPipeliner is recognized.
type pipeliner struct{ redis.UniversalClient }

func (pipeliner) IsBlocking() bool { return true }
func (pipeliner) IsClosed() bool   { return false }
func (pipeliner) Len() int         { return 0 }

// AutoPipeliner has its name.
type AutoPipeliner struct{ redis.UniversalClient }

// Every operation on an AutoPipeliner is an error, and nothing is sent.
func TestAutoPipeliner(t *testing.T) {
	t.Parallel()
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer client.Close()
	all := map[string]redis.UniversalClient{"methods": pipeliner{client}, "name": &AutoPipeliner{client}}
	// The real one, where the go-redis in use has it.
	for _, method := range []string{"AutoPipeline", "AsyncAutoPipeline"} {
		if m := reflect.ValueOf(client).MethodByName(method); m.IsValid() {
			results := m.Call(nil)
			require.True(t, results[1].IsNil(), method)
			all[method] = results[0].Interface().(redis.UniversalClient)
		}
	}
	for name, c := range all {
		l := New(c)
		ctx := context.Background()
		_, acquire := l.Acquire(ctx, "k", "t", time.Second)
		_, extend := l.Extend(ctx, "k", "t", time.Second)
		_, release := l.Release(ctx, "k", "t")
		_, wait := l.Wait(ctx, "k", "t", time.Second)
		_, watch := l.Watch(ctx, "k")
		_, _, fence := l.Fence(ctx, "k", "t")
		for op, err := range map[string]error{"acquire": acquire, "extend": extend, "release": release,
			"wait": wait, "watch": watch, "fence": fence} {
			assert.ErrorIs(t, err, errAutoPipeliner, "%s: %s", name, op)
		}
	}
	assert.NoError(t, New(client).locks.Err)
	assert.NoError(t, New(struct{ redis.UniversalClient }{client}).locks.Err, "another wrapper")
}
