package memcache

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	gomemcache "github.com/bradfitz/gomemcache/memcache"
	"github.com/golockers/locker/conformance"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/singleflight"
	"github.com/golockers/locker/singleflight/slots"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCacheConformance(t *testing.T) {
	t.Parallel()
	addr := testserver.Memcached(t).Addr
	conformance.RunCache(t, conformance.CacheConfig[string]{
		Addr: addr,
		New: func(tb testing.TB, addr string, ttl, stale time.Duration) singleflight.Cache[string] {
			return NewCache(newClient(tb, addr), CacheConfig[string]{TTL: ttl, Stale: stale})
		},
		Damage: func(tb testing.TB, key string) {
			require.NoError(tb, newClient(tb, addr).Set(&gomemcache.Item{
				Key: itemKey("cache:", key), Value: []byte("garbage"), Flags: cacheFlags, Expiration: 3600}))
		},
	})
}

// newCacheStore returns the store of a Cache whose clock is ahead of this machine's.
func newCacheStore(client *gomemcache.Client, ahead time.Duration) *cacheStore {
	return &cacheStore{New(client), func() time.Time { return time.Now().Add(ahead) }}
}

// A value is not fresh for less than its ttl, whatever the fraction of the millisecond at which it is stored.
func TestCacheRoundsUp(t *testing.T) {
	for _, fraction := range []time.Duration{0, 1, time.Microsecond, time.Millisecond - 1} {
		now := time.Unix(1_700_000_000, 0).Add(fraction)
		s := &cacheStore{now: func() time.Time { return now }}
		for _, ttl := range []time.Duration{time.Millisecond, 1500 * time.Microsecond, time.Second} {
			_, end, err := cachedValue(s.item("k", nil, ttl))
			require.NoError(t, err)
			assert.False(t, end.Before(now.Add(ttl)), "%v after a full millisecond, for %v", fraction, ttl)
			assert.False(t, end.After(now.Add(ttl+2*time.Millisecond)))
		}
	}
}

// Whose clock is ahead finds that a value ends earlier by as much.
func TestCacheClockSkew(t *testing.T) {
	t.Parallel()
	client := newClient(t, testserver.Memcached(t).Addr)
	ctx := t.Context()
	writer := newCacheStore(client, 0)
	require.NoError(t, writer.Set(ctx, "k", []byte("v"), 2*time.Minute))
	for _, skew := range []struct {
		ahead        time.Duration
		fresh, stale bool
	}{
		{-time.Hour, true, true},
		{0, true, true},
		{30 * time.Second, true, true},
		{time.Minute + time.Second, false, true},
		{90 * time.Second, false, true},
		{121 * time.Second, false, false},
	} {
		reader := newCacheStore(client, skew.ahead)
		_, ok, err := reader.Get(ctx, "k", time.Minute)
		require.NoError(t, err)
		assert.Equal(t, skew.fresh, ok, "%v ahead", skew.ahead)
		_, ok, err = reader.Get(ctx, "k", 0)
		require.NoError(t, err)
		assert.Equal(t, skew.stale, ok, "%v ahead", skew.ahead)
	}
	added, err := newCacheStore(client, time.Minute).Add(ctx, "k", []byte("w"), time.Minute, time.Minute)
	require.NoError(t, err)
	assert.True(t, added)
}

func TestCacheExpiration(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	const day = 24 * time.Hour
	for d, want := range map[time.Duration]int64{
		1:                          3,
		time.Second:                3,
		time.Second + 1:            4,
		30*day - 2*time.Second:     30 * 86400,
		30*day - 2*time.Second + 1: now.Unix() + 30*86400 + 1,
		365 * day:                  now.Unix() + 365*86400 + 2,
		math.MaxInt64:              math.MaxInt32,
	} {
		assert.EqualValues(t, want, expiration(now, d), "%v", d)
	}

	// The server takes a date for a date.
	client := newClient(t, testserver.Memcached(t).Addr)
	c := NewCache(client, CacheConfig[string]{TTL: 60 * day})
	require.NoError(t, c.Set(t.Context(), "k", "v"))
	v, ok, err := c.Get(t.Context(), "k")
	require.NoError(t, err)
	assert.True(t, ok)
	assert.Equal(t, "v", v)
}

// The item of a value, and what is none.
func TestCacheOnServer(t *testing.T) {
	t.Parallel()
	client := newClient(t, testserver.Memcached(t).Addr)
	ctx := t.Context()
	c := NewCache(client, CacheConfig[string]{TTL: time.Minute, Stale: time.Hour})
	require.NoError(t, c.Set(ctx, "user/42", "Ann"))
	item, err := client.Get("cache:user/42")
	require.NoError(t, err)
	assert.Equal(t, uint32(1130455912), item.Flags)
	assert.Regexp(t, `^[0-9]{13}:"Ann"$`, string(item.Value))
	require.NoError(t, c.Set(ctx, "a name with spaces", "v"))
	_, err = client.Get(itemKey("cache:", "a name with spaces"))
	require.NoError(t, err)

	for what, item := range map[string]gomemcache.Item{
		"a lock":      {Value: []byte("a token"), Flags: flags},
		"other flags": {Value: item.Value},
		"no time":     {Value: []byte(`"Ann"`), Flags: cacheFlags},
		"no number":   {Value: []byte(`now:"Ann"`), Flags: cacheFlags},
		"nothing":     {Flags: cacheFlags},
	} {
		item.Key = "cache:k"
		require.NoError(t, client.Set(&item))
		for name, operation := range map[string]func() (bool, error){
			"get":   func() (bool, error) { _, ok, err := c.Get(ctx, "k"); return ok, err },
			"stale": func() (bool, error) { _, ok, err := c.Stale(ctx, "k"); return ok, err },
			"add":   func() (bool, error) { return c.Add(ctx, "k", "v") },
		} {
			ok, err := operation()
			assert.False(t, ok, what)
			assert.ErrorContains(t, err, `memcache: cache `+name+` "k": the item "cache:k" is not a value of a Cache`, what)
		}
		require.NoError(t, c.Set(ctx, "k", "v"), what)
		v, _, err := c.Get(ctx, "k")
		require.NoError(t, err, what)
		assert.Equal(t, "v", v, what)
	}
}

// A value that the server refuses is an error, and the one before is gone.
func TestCacheTooLarge(t *testing.T) {
	t.Parallel()
	client := newClient(t, testserver.Memcached(t).Addr)
	ctx := t.Context()
	raw := func(b []byte) ([]byte, error) { return b, nil }
	c := NewCache(client, CacheConfig[[]byte]{TTL: time.Minute, Marshal: raw, Unmarshal: raw})
	large := bytes.Repeat([]byte("x"), 1_000_000)
	require.NoError(t, c.Set(ctx, "k", large))
	v, ok, err := c.Get(ctx, "k")
	require.NoError(t, err)
	assert.True(t, ok)
	assert.Equal(t, large, v)

	tooLarge := append(large, large...)
	err = c.Set(ctx, "k", tooLarge)
	require.ErrorContains(t, err, `memcache: cache set "k": `)
	assert.ErrorContains(t, err, "object too large for cache")
	_, ok, err = c.Get(ctx, "k")
	require.NoError(t, err)
	assert.False(t, ok, "the value before it")
	_, err = c.Add(ctx, "k", tooLarge)
	assert.ErrorContains(t, err, "object too large for cache")
	require.NoError(t, c.Set(ctx, "k", []byte("small")))
}

func TestCacheNoCAS(t *testing.T) {
	t.Parallel()
	client := newClient(t, testserver.Memcached(t, "-C").Addr)
	c := NewCache(client, CacheConfig[string]{TTL: time.Millisecond, Stale: time.Minute})
	require.NoError(t, c.Set(t.Context(), "k", "v"))
	require.Eventually(t, func() bool {
		_, ok, err := c.Get(t.Context(), "k")
		return err == nil && !ok
	}, 30*time.Second, time.Millisecond)
	_, err := c.Add(t.Context(), "k", "w")
	assert.ErrorIs(t, err, errNoCAS)
}

// Add starts again when another process changes the item under it.
func TestCacheAddRepeats(t *testing.T) {
	t.Parallel()
	client := newClient(t, testserver.Memcached(t).Addr)
	ctx := context.Background()
	stale := newCacheStore(client, -time.Minute) // stores what is stale already
	require.NoError(t, stale.Set(ctx, "k", []byte("stale"), time.Hour+time.Second))
	s := newCacheStore(client, 0)
	reads, changes := 0, passes-1
	now := s.now
	s.now = func() time.Time { // is called for add, to see whether the item is fresh, and for cas
		if reads++; reads%3 == 0 && changes > 0 {
			changes--
			require.NoError(t, stale.Set(ctx, "k", []byte(strings.Repeat("s", changes+1)), time.Hour+time.Second))
		}
		return now()
	}
	added, err := s.Add(ctx, "k", []byte("added"), 2*time.Hour, time.Hour)
	require.NoError(t, err)
	assert.True(t, added)
	assert.Zero(t, changes)

	require.NoError(t, stale.Set(ctx, "k", []byte("stale"), time.Hour+time.Second))
	reads, changes = 0, passes
	_, err = s.Add(ctx, "k", []byte("added"), 2*time.Hour, time.Hour)
	assert.ErrorIs(t, err, errChanging)
}

func FuzzCachedValue(f *testing.F) {
	f.Add([]byte("1800000000000:value"))
	f.Add([]byte(":"))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := newCacheStore(nil, 0)
		value, end, err := cachedValue(s.item("k", b, time.Minute))
		require.NoError(t, err)
		assert.True(t, bytes.Equal(b, value))
		assert.InDelta(t, time.Minute, time.Until(end), float64(30*time.Second))

		value, end, err = cachedValue(&gomemcache.Item{Value: b, Flags: cacheFlags})
		if err == nil { // what is taken for a value says until when, and what
			head, rest, found := bytes.Cut(b, []byte{':'})
			require.True(t, found)
			assert.Equal(t, rest, value)
			ms, err := strconv.ParseInt(string(head), 10, 64)
			require.NoError(t, err)
			assert.Equal(t, ms, end.UnixMilli())
		}
	})
}

// A load that begins beside a stale value leaves alone how long a value lasts that is set meanwhile.
func TestLoadBesideNewValue(t *testing.T) {
	t.Parallel()
	addr := testserver.Memcached(t).Addr
	w, client := newWire(t, addr)
	config := CacheConfig[string]{TTL: time.Millisecond, Stale: time.Hour}
	loading := NewCache(client, config)
	config.TTL = 20 * 24 * time.Hour
	other := NewCache(newClient(t, addr), config)
	require.NoError(t, loading.Set(t.Context(), "k", "old"))
	time.Sleep(10 * time.Millisecond)
	var once sync.Once
	w.onSending(func(verb string) {
		if verb == "touch" {
			once.Do(func() { assert.NoError(t, other.Set(t.Context(), "k", "new")) })
		}
	})
	slot := &slots.Slot[string]{Key: "k", Hold: time.Second}
	w.requests()
	require.NoError(t, loading.Look(t.Context(), slot))
	require.NoError(t, slot.Err)
	require.True(t, slot.Found)
	require.Equal(t, "new", slot.Value)
	require.Equal(t, "gets touch gets touch gets", w.requests())

	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer conn.Close()
	_, err = fmt.Fprintf(conn, "mg %s t\r\n", itemKey("cache:", "k"))
	require.NoError(t, err)
	var left int
	_, err = fmt.Fscanf(conn, "HD t%d\r\n", &left)
	require.NoError(t, err)
	require.Greater(t, left, 19*24*60*60, "seconds until memcached drops it")
}
