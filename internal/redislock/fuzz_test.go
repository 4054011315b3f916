package redislock_test

import (
	"strings"
	"testing"

	"github.com/golockers/locker/internal/redislock"
	"github.com/stretchr/testify/require"
)

// Different tokens have different values, and no token's value is a foreign one.
func FuzzEncodeToken(f *testing.F) {
	for _, token := range []string{"t", "token:", "token:1:t", "1:t", "1700000000", "1700000000.5", "1:", "\x00", "1"} {
		f.Add(token, "token:"+token)
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		require.Equal(t, a == b, redislock.EncodeToken(a) == redislock.EncodeToken(b))
		require.NoError(t, redislock.CheckHolder(redislock.EncodeToken(a)))
		if err := redislock.CheckHolder(a); err != nil {
			require.ErrorIs(t, err, redislock.ErrForeign)
			require.Less(t, len(err.Error()), 600)
		}
		err := redislock.ForeignReply(a)
		require.Equal(t, strings.HasPrefix(a, "FOREIGN "), err != nil)
	})
}

// Two locks share no key, and all keys of a lock are in one slot of a cluster.
func FuzzKeys(f *testing.F) {
	for _, key := range []string{"a", "{a}b", "a}b", "{}a", "{a", "}{a}", "a{b}{c}", "{a}}", "\x00", "!line:"} {
		f.Add("locker:", key, key+"}")
		f.Add("!{p}", key, "{"+key)
	}
	f.Fuzz(func(t *testing.T, prefix, a, b string) {
		for _, single := range []bool{true, false} {
			n := redislock.NewNamespace(prefix, single)
			of := n.Keys(a)
			if prefix == "" {
				require.Equal(t, redislock.DefaultPrefix+a, of.Lock)
			} else {
				require.Equal(t, prefix+a, of.Lock)
			}
			require.True(t, of.Queue != "" || !single)
			if of.Queue != "" && !single {
				require.Equal(t, slotName(of.Lock), slotName(of.Queue))
			}
			other := n.Keys(b)
			require.Equal(t, a == b, of.Lock == other.Lock)
			require.True(t, a == b || of.Queue == "" || of.Queue != other.Queue)
			for _, lock := range []string{of.Lock, other.Lock} {
				require.NotEqual(t, lock, of.Queue)
				require.NotEqual(t, lock, n.FenceCounter())
			}
			require.NotContains(t, n.NewChannel(), " ", "a channel is a field of an entry")
		}
	})
}

// slotName returns what decides where a cluster keeps a key, as its specification says.
func slotName(key string) string {
	if i := strings.IndexByte(key, '{'); i >= 0 {
		if j := strings.IndexByte(key[i+1:], '}'); j > 0 {
			return key[i+1 : i+1+j]
		}
	}
	return key
}

// The ID of an entry names the keys that it is for, and no message can make others of it.
func FuzzEntryID(f *testing.F) {
	f.Add("locker:", "k", "1.0.k", uint8(0))
	f.Add("a b {", " 1.2 %41", "x.64.%41", uint8(3))
	f.Fuzz(func(t *testing.T, prefix, key, id string, n uint8) {
		for _, single := range []bool{true, false} {
			names := redislock.NewNamespace(prefix, single)
			keys := names.Keys(key)
			if n > 0 {
				keys = redislock.PermitKeys(names, key, 1+int(n)%64)
			}
			if own := redislock.EntryID(names, 7, keys); keys.Queue != "" {
				require.NotContains(t, own, " ")
				got, ok := redislock.KeysOf(names, own)
				require.True(t, ok)
				require.Equal(t, keys, got)
			}
			if got, ok := redislock.KeysOf(names, id); ok {
				require.NotEmpty(t, got.Queue)
			}
		}
	})
}
