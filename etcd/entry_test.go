package etcd

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestEscape(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"invoice/42":   "invoice%2F42",
		"user:{7}-._":  "user:{7}-._",
		"100%":         "100%25",
		"%2F":          "%252F",
		"a b\n":        "a%20b%0A",
		"\x00\x7f\xff": "%00%7F%FF",
		"ü":            "%C3%BC",
	} {
		assert.Equal(t, want, escape(name))
	}
	for _, no := range []string{"", "a/b", "a%2fb", "%41", "%", "%2", "%zz", " ", "\xff"} {
		_, ok := unescape(no)
		assert.False(t, ok, "%q", no)
	}
}

// Names are told apart, and none of the keys of a lock begins with those of another, or with the
// key of another's entry.
func FuzzEscape(f *testing.F) {
	for _, pair := range [][2]string{{"a", "a/"}, {"a", "a/b"}, {"a%", "a%2F"}, {"a\x00", "a"}, {"\xff", "\xfe"}, {"ü", "u\u0308"}} {
		f.Add(pair[0], pair[1])
	}
	l := New(nil)
	f.Fuzz(func(t *testing.T, a, b string) {
		for _, name := range []string{a, b} {
			back, ok := unescape(escape(name))
			require.Equal(t, name != "", ok)
			require.Equal(t, name, back)
			require.True(t, strings.HasPrefix(escape(name+"x"), escape(name)), "List finds names by their beginning")
		}
		if a == "" || b == "" || a == b {
			return
		}
		require.False(t, strings.HasPrefix(l.lockKey(a), l.lockKey(b)))
		require.False(t, strings.HasPrefix(l.entry(a, "t").key, l.lockKey(b)))
		require.NotEqual(t, l.entry("k", a).key, l.entry("k", b).key)
		require.NotEqual(t, l.entry(a, b).key, l.entry(b, a).key)
	})
}
