package redigo

import (
	"testing"
	"time"

	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/redisv9"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// redisv9 has the same default prefix and another format: on one server neither takes away the
// other's lock, and redigo's error explains it.
func TestBesideRedisv9(t *testing.T) {
	t.Parallel()
	srv := testserver.Redis(t)
	client := goredis.NewClient(&goredis.Options{Addr: srv.Addr})
	t.Cleanup(func() { _ = client.Close() })
	theirs, ours, raw := redisv9.New(client), New(newPool(t, srv.Addr)), newRaw(t, srv.Addr)

	isOK(t)(theirs.Acquire(background, "theirs", "token", time.Minute))
	before := raw.string("DUMP", "locker:theirs")
	for _, token := range []string{"token", "another"} {
		for name, run := range operations(ours, "theirs", token) {
			ok, err := run(background)
			assert.ErrorIs(t, err, errForeign, name)
			assert.ErrorContains(t, err, `"token"`, name)
			assert.False(t, ok, name)
		}
	}
	assert.Equal(t, before, raw.string("DUMP", "locker:theirs"))
	isOK(t)(theirs.Release(background, "theirs", "token"))
	isOK(t)(ours.Acquire(background, "theirs", "token", time.Minute))

	isOK(t)(ours.Acquire(background, "ours", "token", time.Minute))
	before = raw.string("DUMP", "locker:ours")
	for _, token := range []string{"token", "another"} {
		ok, _ := theirs.Acquire(background, "ours", token, time.Minute)
		assert.False(t, ok, "acquire")
		ok, _ = theirs.Extend(background, "ours", token, time.Minute)
		assert.False(t, ok, "extend")
		ok, _ = theirs.Release(background, "ours", token)
		assert.False(t, ok, "release")
		_, ok, _ = theirs.Fence(background, "ours", token)
		assert.False(t, ok, "fence")
	}
	require.Equal(t, before, raw.string("DUMP", "locker:ours"))
	isOK(t)(ours.Release(background, "ours", "token"))
	isOK(t)(theirs.Acquire(background, "ours", "token", time.Minute))
}
