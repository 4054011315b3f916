package redigo_test

import (
	"context"
	"testing"
	"time"

	"github.com/golockers/locker/redigo"
	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTuned(t *testing.T) {
	dials := 0
	given := &redis.Pool{MaxIdle: 3, MaxActive: 5, Wait: true, MaxConnLifetime: time.Hour,
		DialContext: func(context.Context) (redis.Conn, error) { dials++; return nil, assert.AnError }}
	tuned := redigo.Tuned(given)
	assert.Equal(t, 3, tuned.MaxIdle)
	assert.Equal(t, 5, tuned.MaxActive)
	assert.True(t, tuned.Wait)
	assert.Equal(t, time.Hour, tuned.MaxConnLifetime)
	assert.Equal(t, 5*time.Minute, tuned.IdleTimeout)
	assert.Zero(t, given.IdleTimeout, "the caller's pool was changed")
	_, err := tuned.GetContext(t.Context())
	require.ErrorIs(t, err, assert.AnError)
	assert.Equal(t, 1, dials)

	for _, tuned := range []*redis.Pool{redigo.Tuned(nil), redigo.Tuned(new(redis.Pool))} {
		assert.Equal(t, 64, tuned.MaxIdle)
		assert.Equal(t, 5*time.Minute, tuned.IdleTimeout)
	}
}
