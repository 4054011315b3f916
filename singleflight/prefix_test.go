package singleflight

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golockers/locker/memory"
)

// Loaders with different prefixes share a cache, and do not mix their values though their keys are the
// same.
func TestPrefixesDoNotMix(t *testing.T) {
	type user struct{ Name string }
	type order struct{ Total int }
	locks := memory.New()
	for _, name := range []string{"keeper", "adder", "plain"} {
		t.Run(name, func(t *testing.T) {
			m := memory.NewCache(memory.CacheConfig[[]byte]{TTL: time.Hour, Stale: time.Hour})
			var cache Cache[[]byte] = m
			switch name {
			case "adder":
				cache = struct {
					Cache[[]byte]
					Deleter[[]byte]
					Adder[[]byte]
				}{m, m, m}
			case "plain":
				cache = struct {
					Cache[[]byte]
					Deleter[[]byte]
				}{m, m}
			}
			newLoader := func(prefix string, v any) *Loader[[]byte] {
				l := NewLoader(locks, cache, func(context.Context, string) ([]byte, error) { return json.Marshal(v) },
					WithKeyPrefix(prefix))
				t.Cleanup(func() { assert.NoError(t, l.Close(context.Background())) })
				return l
			}
			users, orders := newLoader("user/", user{"Ann"}), newLoader("order/", order{7})
			want := func(l *Loader[[]byte], text string) {
				t.Helper()
				for range 2 {
					v, err := l.Load(t.Context(), "42")
					require.NoError(t, err)
					require.JSONEq(t, text, string(v))
					many, err := l.LoadMany(t.Context(), []string{"42", "43"})
					require.NoError(t, err)
					require.JSONEq(t, text, string(many["42"]))
					require.JSONEq(t, text, string(many["43"]))
				}
			}
			want(users, `{"Name":"Ann"}`)
			want(orders, `{"Total":7}`)
			fleet := NewFleet(locks, cache, WithKeyPrefix("fleet/"))
			v, _, err := fleet.Do(t.Context(), "42", func(context.Context) ([]byte, error) { return []byte("0"), nil })
			require.NoError(t, err)
			require.Equal(t, "0", string(v))
			require.NoError(t, fleet.Close(t.Context()))
			require.NoError(t, orders.Update(t.Context(), "42", func(context.Context) error { return nil }))
			require.Eventually(t, func() bool { // it is stored behind the caller
				_, ok, err := m.Get(t.Context(), "user/42")
				return err == nil && ok
			}, 30*time.Second, time.Millisecond, "an Update of another Loader has deleted it")
			_, ok, err := m.Stale(t.Context(), "order/42")
			require.NoError(t, err)
			require.False(t, ok, "Update has not deleted it")
			_, ok, err = m.Stale(t.Context(), "42")
			require.NoError(t, err)
			require.False(t, ok, "stored without the prefix")
			want(users, `{"Name":"Ann"}`)
		})
	}
}

// Errors and events name the key without the prefix.
func TestPrefixIsNotSeen(t *testing.T) {
	locks, cache := memory.New(), memory.NewCache(memory.CacheConfig[string]{TTL: time.Hour})
	loading := make(chan struct{})
	source := func(context.Context, string) (string, error) {
		close(loading)
		time.Sleep(100 * time.Millisecond)
		return "", errors.New("it failed")
	}
	first := NewLoader(locks, cache, source, WithKeyPrefix("user/"))
	second := NewLoader(locks, cache, source, WithKeyPrefix("user/"))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, err := first.Load(t.Context(), "42")
		assert.ErrorContains(t, err, "it failed")
	}()
	<-loading
	_, err := second.Load(t.Context(), "42")
	var remote *RemoteError
	require.ErrorAs(t, err, &remote)
	require.Equal(t, "42", remote.Key)
	<-done
	require.NoError(t, errors.Join(first.Close(t.Context()), second.Close(t.Context())))
}
