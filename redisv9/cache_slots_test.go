package redisv9_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/redisv9"
	"github.com/golockers/locker/singleflight/slots"
)

// On a Cluster and a Ring the load of a key is where its value is, whatever braces the key has, so the
// scripts find both. A key that does not allow that is reported, and has a value all the same.
func TestLoadsOfManyServers(t *testing.T) {
	t.Parallel()
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: testserver.RedisCluster(t, 3)})
	ring := redis.NewRing(&redis.RingOptions{
		Addrs: map[string]string{"a": testserver.Redis(t).Addr, "b": testserver.Redis(t).Addr},
	})
	for name, client := range map[string]redis.UniversalClient{"cluster": cluster, "ring": ring} {
		t.Run(name, func(t *testing.T) {
			t.Cleanup(func() { assert.NoError(t, client.Close()) })
			c := redisv9.NewCache(client, redisv9.CacheConfig[string]{TTL: time.Hour})
			keys := []string{"{a}b", "a{b}c{d}", "{", "{{a}}", "a}b{c}"}
			for i := range 40 {
				keys = append(keys, fmt.Sprint("key", i))
			}
			var all []*slots.Slot[string]
			for _, key := range keys {
				all = append(all, &slots.Slot[string]{Key: key, Hold: time.Minute})
			}
			without := &slots.Slot[string]{Key: "{}a", Hold: time.Minute}
			require.NoError(t, c.Look(t.Context(), append(all, without)...))
			assert.ErrorContains(t, without.Err, "no load")
			for _, s := range all {
				require.NoError(t, s.Err, s.Key)
				require.NotZero(t, s.Version, s.Key)
				s.Value = "value of " + s.Key
			}
			require.NoError(t, c.Delete(t.Context(), keys[0]))
			require.NoError(t, c.Delete(t.Context(), without.Key))
			require.NoError(t, c.Put(t.Context(), all...))
			for i, s := range all {
				require.NoError(t, s.Err)
				assert.Equal(t, i != 0, s.Stored, s.Key)
			}
			require.NoError(t, c.Set(t.Context(), without.Key, "set"))
			added, err := c.Add(t.Context(), without.Key, "added")
			require.NoError(t, err)
			assert.False(t, added)
			looked := []*slots.Slot[string]{{Key: without.Key}}
			for _, key := range keys {
				looked = append(looked, &slots.Slot[string]{Key: key})
			}
			require.NoError(t, c.Look(t.Context(), looked...))
			assert.Equal(t, "set", looked[0].Value)
			assert.False(t, looked[1].Found)
			for _, s := range looked[2:] {
				require.NoError(t, s.Err)
				assert.Equal(t, "value of "+s.Key, s.Value)
			}
		})
	}
}
