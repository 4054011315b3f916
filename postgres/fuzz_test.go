package postgres

import (
	"strings"
	"testing"
	"time"

	"github.com/golockers/locker/internal/pubsub"
	"github.com/stretchr/testify/require"
)

// Any session may send notifications. They are hints to the place whose key they have, and to no
// other.
func FuzzHear(f *testing.F) {
	for _, payload := range []string{
		"", "free", "free a2V5", "free  ", "granted", "granted a2V5", "granted a2V5 ", "granted a2V5 name/1", "granted a2V5  name/1",
		"head a2V5 500", "head a2V5", "head 500", "head a2V5 -1", "head a2V5 9223372036854775807", "x a2V5 name/1",
	} {
		f.Add(payload)
	}
	const name, nonce = "a2V5", "name/1"
	f.Fuzz(func(t *testing.T, payload string) {
		l := &Locker{name: "name"}
		if strings.Contains(payload, "name/") && !strings.HasSuffix(payload, nonce) {
			return // it would ask the server
		}
		p := &place{key: "key", told: make(chan struct{}, 1), last: nonce}
		l.places.add(p)
		c := &listener{l: l}
		c.hear(payload)
		for _, e := range c.events {
			require.Equal(t, pubsub.Message, e.Kind)
			require.True(t, strings.HasPrefix(e.Channel, watchPrefix))
		}
		select {
		case <-p.told:
			require.Contains(t, payload, name)
			left, look := p.news()
			require.GreaterOrEqual(t, left, time.Duration(0))
			require.Equal(t, look, payload == "granted "+name+" "+nonce)
			require.Equal(t, look, p.isHeard(nonce))
		default:
			require.NotEqual(t, "granted "+name+" "+nonce, payload)
		}
	})
}

// Different keys have different channels, which are words of a payload.
func FuzzNames(f *testing.F) {
	f.Add("key", "key ")
	f.Add("\x00", "\xff")
	f.Fuzz(func(t *testing.T, key1, key2 string) {
		require.Equal(t, key1 == key2, watchChannel(key1) == watchChannel(key2))
		require.NotEqual(t, waitChannel, watchChannel(key1))
		require.Equal(t, 1, strings.Count(watchChannel(key1), " "))
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
