package postgres

import (
	"strings"
	"testing"
	"time"

	"github.com/golockers/locker/internal/pubsub"
	"github.com/stretchr/testify/require"
)

// Any session may send notifications. They are hints to the waiter whose name they have, and to no
// other.
func FuzzHear(f *testing.F) {
	for _, payload := range []string{
		"", "free", "free a2V5", "free  ", "granted", "granted a2V5 dA==", "granted a2V5 dA== ", "granted a2V5 dA== n", "head a2V5 dA== 500",
		"head a2V5 dA==", "head 500", "head a2V5 dA== -1", "head a2V5 dA== 9223372036854775807", "x a2V5 dA==",
	} {
		f.Add(payload)
	}
	const name = "a2V5 dA=="
	f.Fuzz(func(t *testing.T, payload string) {
		l := new(Locker)
		w := &waiter{told: make(chan struct{}, 1)}
		l.waiting.add(name, w)
		c := &listener{l: l}
		c.hear(payload)
		for _, e := range c.events {
			require.Equal(t, pubsub.Message, e.Kind)
			require.True(t, strings.HasPrefix(e.Channel, watchPrefix))
		}
		select {
		case <-w.told:
			require.Contains(t, payload, name)
			require.GreaterOrEqual(t, w.news.left, time.Duration(0))
			require.Equal(t, w.news.look, strings.HasPrefix(payload, "granted "))
			require.Contains(t, payload, w.news.nonce)
		default:
			require.NotEqual(t, "granted "+name+" n", payload)
		}
	})
}

// Different waiters have different names, which are two words of a payload, and different keys have
// different channels.
func FuzzNames(f *testing.F) {
	f.Add("key", "t", "key ", "t")
	f.Add("a b", "c", "a", "b c")
	f.Add("\x00", "\xff", "\x00\xff", "")
	f.Fuzz(func(t *testing.T, key1, token1, key2, token2 string) {
		a, b := nameOf(key1, token1), nameOf(key2, token2)
		require.Equal(t, key1 == key2 && token1 == token2, a == b)
		require.Equal(t, 1, strings.Count(a, " "))
		require.Equal(t, key1 == key2, watchChannel(key1) == watchChannel(key2))
		require.NotEqual(t, waitChannel, watchChannel(key1))
		before, after := cutLast(a + " 5")
		require.Equal(t, a, before)
		require.Equal(t, "5", after)
	})
}

// A name is one table, or an error that quotes it.
func FuzzIdentifier(f *testing.F) {
	for _, name := range []string{"locker_locks", "s.t", "", ".", "a.b.c", `"`, "a\x00", strings.Repeat("x", 64), `a"; DROP TABLE x; --`} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		id, err := identifier(name)
		if err != nil {
			require.ErrorContains(t, err, "invalid table name")
			return
		}
		require.Equal(t, name, strings.Join(id, "."))
		quoted := id.Sanitize()
		require.Equal(t, 0, strings.Count(quoted, `"`)%2, "a quote in the name is doubled")
		require.True(t, strings.HasPrefix(quoted, `"`) && strings.HasSuffix(quoted, `"`))
	})
}
