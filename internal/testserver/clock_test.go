package testserver

import (
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestClock(t *testing.T) {
	t.Parallel()
	clock := NewClock(t)
	redis, memcached, postgres := clock.Redis(), clock.Memcached(), clock.Postgres()
	for _, ahead := range []time.Duration{0, time.Hour, -time.Hour, 0} {
		clock.Set(ahead)
		want := float64(time.Now().Add(ahead).Unix())
		near := func(got string, err error) {
			t.Helper()
			require.NoError(t, err)
			seconds, err := strconv.ParseFloat(got, 64)
			require.NoError(t, err)
			require.Less(t, math.Abs(seconds-want), 60.0)
		}
		near(redisCommand(redis.Addr, "EVAL", "return redis.call('TIME')[1]", "0"))
		got, err := postgresQuery(postgres.Addr, "postgres", "SELECT extract(epoch FROM clock_timestamp())")
		require.NoError(t, err)
		near(got[0], nil)
		_, err = memcachedStats(memcached.Addr)
		require.NoError(t, err) // its clock is the monotonic one
	}
}

// The clock of a Go program can be set as well.
func TestClockOfEtcd(t *testing.T) {
	t.Parallel()
	clock := NewClock(t)
	etcd := clock.Etcd()
	for _, ahead := range []time.Duration{0, time.Hour, -time.Hour, 0} {
		clock.Set(ahead)
		now, err := httpTime(etcd.Addr)
		require.NoError(t, err)
		require.WithinDuration(t, time.Now().Add(ahead), now, time.Minute)
	}
}
