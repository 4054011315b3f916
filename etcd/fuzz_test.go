package etcd

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// Reading a key under the prefix returns the entry that was written, or an error, and never panics.
func FuzzRead(f *testing.F) {
	l := New(nil)
	for _, seed := range []struct{ key, value string }{
		{l.entry("k", "t").key, "held 10"}, {l.entry("k", "t/%").key, "wait 1"}, {l.lockKey("k"), "held 1"},
		{l.lockKey("k") + "a/b", "held 1"}, {l.entry("k", "t").key, "held 0"}, {l.entry("k", "t").key, "held -1"},
		{l.entry("k", "t").key, "held 9223372036854775808"}, {l.entry("k", "t").key, "held wait 1"}, {"", ""},
		{l.entry("k", "t").key, "held +1"}, {"other", "held 1"},
	} {
		f.Add("k", []byte(seed.key), []byte(seed.value), int64(7))
	}
	f.Fuzz(func(t *testing.T, name string, key, value []byte, lease int64) {
		lock := l.lockKey(name)
		s, err := read(lock, &mvccpb.KeyValue{Key: key, Value: value, Lease: lease, CreateRevision: 3, ModRevision: 4})
		if err != nil {
			require.ErrorIs(t, err, errForeign)
			require.Zero(t, s)
			require.Less(t, len(err.Error()), 1000)
			return
		}
		require.Positive(t, s.seconds)
		require.NotZero(t, s.lease)
		require.Equal(t, string(key), lock+escape(s.token), "one token, one key")
		require.NotEmpty(t, s.token)
		require.Equal(t, s.held, strings.HasPrefix(string(value), holds))
	})
}
