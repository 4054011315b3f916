package redisv9_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/golockers/locker/redisv9"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
)

func TestTuned(t *testing.T) {
	given := &redis.Options{Addr: "localhost:1", ReadTimeout: 3 * time.Second, WriteTimeout: -1, MaxRetries: 2}
	before := *given
	tuned := redisv9.Tuned(given)
	assert.Equal(t, before.Addr, given.Addr)
	assert.Zero(t, given.DialTimeout, "the caller's options were changed")
	assert.Equal(t, "localhost:1", tuned.Addr)
	assert.True(t, tuned.ContextTimeoutEnabled)
	assert.Equal(t, 2, tuned.MaxRetries)
	assert.Equal(t, 3*time.Second, tuned.ReadTimeout)
	assert.EqualValues(t, -1, tuned.WriteTimeout)

	for _, tuned := range []*redis.Options{redisv9.Tuned(nil), redisv9.Tuned(new(redis.Options))} {
		assert.Equal(t, -1, tuned.MaxRetries)
		for _, d := range []time.Duration{tuned.DialTimeout, tuned.ReadTimeout, tuned.WriteTimeout, tuned.PoolTimeout} {
			assert.Equal(t, time.Second, d)
		}
		if dials := reflect.ValueOf(tuned).Elem().FieldByName("DialerRetries"); dials.IsValid() {
			assert.EqualValues(t, 1, dials.Int())
		}
	}
}

// What Tuned sets is what the client does: go-redis completes options when it makes a client.
func TestTunedClient(t *testing.T) {
	client := redis.NewClient(redisv9.Tuned(&redis.Options{Addr: "localhost:1"}))
	defer client.Close()
	o := client.Options()
	assert.Zero(t, o.MaxRetries)
	assert.Equal(t, time.Second, o.ReadTimeout)
	assert.Equal(t, time.Second, o.DialTimeout)
	assert.Equal(t, time.Second, o.PoolTimeout)
}
