package conformance

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golockers/locker/singleflight"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// cacheMutants are caches with one mistake each, and the checks that must find it. Those in may
// are also right to.
var cacheMutants = map[string]struct {
	bugs      cacheBugs
	must, may []string
}{
	"a miss is an error": {bugs: cacheBugs{missIsError: true}, must: []string{"get/miss"},
		may: []string{"names/any", "expiry/*", "add/*", "stale/served", "delete/*", "damaged/set", "fault/*"}},
	"a stale miss is an error": {bugs: cacheBugs{staleMissIsError: true}, must: []string{"stale/miss"},
		may: []string{"stale/ends", "delete/*", "damaged/set"}},
	"empty is missing": {bugs: cacheBugs{emptyIsMiss: true}, must: []string{"set/round-trip"}, may: []string{"*"}},

	"set adds":               {bugs: cacheBugs{setOnlyAdds: true}, must: []string{"set/replaces"}, may: []string{"*"}},
	"set in two steps":       {bugs: cacheBugs{setInTwoSteps: true}, must: []string{"set/concurrent"}},
	"set keeps the expiry":   {bugs: cacheBugs{setKeepsExpiry: true}, must: []string{"expiry/set-renews"}, may: []string{"add/*", "stale/*"}},
	"names trimmed":          {bugs: cacheBugs{name: strings.TrimSpace}, must: []string{"names/any"}},
	"names folded":           {bugs: cacheBugs{name: strings.ToLower}, must: []string{"names/any"}, may: []string{"damaged/*"}},
	"names cut":              {bugs: cacheBugs{name: func(s string) string { return s[:min(len(s), 250)] }}, must: []string{"names/any"}},
	"ends early":             {bugs: cacheBugs{lasts: func(d time.Duration) time.Duration { return d / 2 }}, must: []string{"expiry/on-time"}, may: []string{"expiry/*", "add/*", "stale/*"}},
	"ends late":              {bugs: cacheBugs{lasts: func(d time.Duration) time.Duration { return 2 * d }}, must: []string{"expiry/on-time"}, may: []string{"expiry/*", "add/*", "stale/*"}},
	"ends never":             {bugs: cacheBugs{lasts: func(time.Duration) time.Duration { return time.Hour }}, must: []string{"expiry/on-time", "expiry/set-renews"}, may: []string{"add/*", "stale/*"}},
	"ends at once":           {bugs: cacheBugs{lasts: func(time.Duration) time.Duration { return 0 }}, must: []string{"set/round-trip", "expiry/on-time"}, may: []string{"*"}},
	"a cache without values": {bugs: cacheBugs{setOnlyAdds: true, addNever: true, lasts: func(time.Duration) time.Duration { return -time.Hour }, noStale: true}, must: []string{"set/round-trip"}, may: []string{"*"}},

	"add never":                       {bugs: cacheBugs{addNever: true}, must: []string{"add/absent", "add/one-winner", "delete/add"}, may: []string{"add/*"}},
	"add is set":                      {bugs: cacheBugs{addIsSet: true}, must: []string{"add/fresh", "add/absent", "add/one-winner"}, may: []string{"add/*", "context/ended"}},
	"add renews":                      {bugs: cacheBugs{addRenews: true}, must: []string{"add/no-renewal"}},
	"add in two steps":                {bugs: cacheBugs{addInTwoSteps: true}, must: []string{"add/one-winner"}},
	"add sees what has expired":       {bugs: cacheBugs{addSeesExpired: true}, must: []string{"add/expired", "add/beside-stale"}, may: []string{"add/one-winner-beside-stale"}},
	"add sees what is stale":          {bugs: cacheBugs{addSeesStale: true}, must: []string{"add/beside-stale", "add/one-winner-beside-stale"}},
	"add in two steps beside a stale": {bugs: cacheBugs{addInTwoStepsBesideStale: true}, must: []string{"add/one-winner-beside-stale"}},

	"nothing is stale":      {bugs: cacheBugs{noStale: true}, must: []string{"stale/served", "stale/latest", "stale/ends"}, may: []string{"add/*"}},
	"stale forever":         {bugs: cacheBugs{staleForever: true}, must: []string{"stale/ends"}},
	"stale keeps the first": {bugs: cacheBugs{staleKeepsFirst: true}, must: []string{"stale/latest"}, may: []string{"add/beside-stale"}},

	"delete does nothing":     {bugs: cacheBugs{deleteNothing: true}, must: []string{"delete/fresh", "delete/stale", "delete/add"}, may: []string{"damaged/set"}},
	"delete deletes all":      {bugs: cacheBugs{deleteAll: true}, must: []string{"delete/fresh"}, may: []string{"*"}},
	"delete keeps the stale":  {bugs: cacheBugs{deleteKeepsStale: true}, must: []string{"delete/stale", "delete/fresh"}, may: []string{"damaged/set"}},
	"delete of nothing fails": {bugs: cacheBugs{deleteAbsentIsError: true}, must: []string{"delete/absent"}},
	"delete leaves a mark":    {bugs: cacheBugs{deleteLeavesMark: true}, must: []string{"delete/add"}},

	"an ended context is a miss":        {bugs: cacheBugs{contextIsMiss: true}, must: []string{"context/ended"}, may: []string{"fault/*"}},
	"an ended context is another error": {bugs: cacheBugs{contextIsOtherError: true}, must: []string{"context/ended"}, may: []string{"fault/*"}},
	"damage is a miss":                  {bugs: cacheBugs{damagedIsMiss: true}, must: []string{"damaged/get"}},
	"damage is a value":                 {bugs: cacheBugs{damagedIsValue: true}, must: []string{"damaged/get"}},
	"damage is a timeout":               {bugs: cacheBugs{damagedIsTimeout: true}, must: []string{"damaged/get"}},
	"damage stays":                      {bugs: cacheBugs{damagedStays: true}, must: []string{"damaged/set"}},
	"contexts are ignored":              {bugs: cacheBugs{ignoresContext: true}, must: []string{"fault/hangs"}},
	"a timeout of its own":              {bugs: cacheBugs{hidesContextError: true}, must: []string{"fault/hangs"}},
	"errors are misses":                 {bugs: cacheBugs{hidesErrors: true}, must: []string{"fault/refused"}, may: []string{"fault/hangs"}},
	"it panics":                         {bugs: cacheBugs{doPanic: true}, must: []string{"get/miss", "set/round-trip"}, may: []string{"*"}},
}

// judgeAll runs all checks on c.
func judgeAll(t *testing.T, c CacheConfig[string]) map[string]cacheResult {
	t.Helper()
	require.NoError(t, c.complete())
	var mu sync.Mutex
	var all sync.WaitGroup
	results := make(map[string]cacheResult)
	for _, ck := range cacheChecks[string]() {
		all.Go(func() {
			r := ck.judge(t, c)
			mu.Lock()
			defer mu.Unlock()
			results[ck.name] = r
		})
	}
	all.Wait()
	return results
}

func isNamed(names []string, name string) bool {
	group, _, _ := strings.Cut(name, "/")
	return slices.Contains(names, name) || slices.Contains(names, group+"/*") || slices.Contains(names, "*")
}

func TestCacheMutants(t *testing.T) {
	t.Parallel()
	addr := echoServer(t)
	for name, m := range cacheMutants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := cacheFakes(m.bugs)
			c.Addr = addr
			for check, r := range judgeAll(t, c) {
				switch {
				case isNamed(m.must, check):
					assert.Equal(t, cacheFailed, r.kind, "%s has to fail: %s", check, r.report)
				case !isNamed(m.may, check):
					assert.Equal(t, cachePassed, r.kind, "%s", r.report)
				}
				if r.kind == cacheFailed {
					for _, part := range []string{check, "rule", "history", "want", "got", "common cause"} {
						assert.Contains(t, r.report, part)
					}
				}
			}
		})
	}
}

// A check that no mutant fails is a check that cannot fail.
func TestCacheChecksHaveMutants(t *testing.T) {
	t.Parallel()
	names := make(map[string]bool)
	for _, ck := range cacheChecks[string]() {
		assert.False(t, names[ck.name], "%s twice", ck.name)
		names[ck.name] = true
		found := false
		for _, m := range cacheMutants {
			found = found || slices.Contains(m.must, ck.name)
		}
		assert.True(t, found, "%s is in no mutant's must", ck.name)
	}
	for mutant, m := range cacheMutants {
		for _, name := range m.must {
			assert.True(t, names[name], "%s: there is no check %s", mutant, name)
		}
	}
}

// A correct cache passes, with values of any type, and a plain one is not held to what it cannot do.
func TestCacheCorrect(t *testing.T) {
	t.Parallel()
	t.Run("all", func(t *testing.T) {
		c := cacheFakes(cacheBugs{})
		c.Addr = echoServer(t)
		for _, r := range judgeAll(t, c) {
			assert.Equal(t, cachePassed, r.kind, r.report)
		}
		RunCache(t, c)
	})
	t.Run("plain", func(t *testing.T) {
		c := cacheFakes(cacheBugs{})
		full := c.New
		c.Damage = nil
		c.New = func(tb testing.TB, addr string, ttl, stale time.Duration) singleflight.Cache[string] {
			return struct{ singleflight.Cache[string] }{full(tb, addr, ttl, stale)}
		}
		c.Skip = map[string]string{"context/ended": "for this test"}
		for name, r := range judgeAll(t, c) {
			want := cachePassed
			if isNamed([]string{"add/*", "stale/*", "delete/*", "damaged/*", "fault/*", "context/*"}, name) {
				want = cacheSkipped
			}
			assert.Equal(t, want, r.kind, "%s: %s", name, r.report)
		}
	})
	t.Run("ignores contexts that have ended", func(t *testing.T) {
		c := cacheFakes(cacheBugs{})
		full := c.New
		c.New = func(tb testing.TB, addr string, ttl, stale time.Duration) singleflight.Cache[string] {
			return careless{full(tb, addr, ttl, stale)}
		}
		for name, r := range judgeAll(t, c) {
			if strings.HasPrefix(name, "context/") {
				assert.Equal(t, cachePassed, r.kind, r.report)
			}
		}
	})
}

// careless is a cache in memory that takes no notice of contexts.
type careless struct{ singleflight.Cache[string] }

func (c careless) Get(_ context.Context, key string) (string, bool, error) {
	return c.Cache.Get(context.Background(), key)
}

func (c careless) Set(_ context.Context, key, v string) error {
	return c.Cache.Set(context.Background(), key, v)
}

// A check that cannot decide says so, after some attempts.
func TestCacheTooSlow(t *testing.T) {
	t.Parallel()
	c := cacheFakes(cacheBugs{})
	full := c.New
	c.New = func(tb testing.TB, addr string, ttl, stale time.Duration) singleflight.Cache[string] {
		return &slowCache{full(tb, addr, ttl, stale), time.Second}
	}
	require.NoError(t, c.complete())
	for _, ck := range cacheChecks[string]() {
		if ck.name == "expiry/on-time" {
			// Within a ttl of 400 ms nothing can be told; one of 1.6 s is enough.
			r := ck.judge(t, c)
			assert.Equal(t, cachePassed, r.kind, r.report)
			e := &cacheEnv[string]{tb: t, config: c, slower: 1, began: time.Now()}
			assert.Equal(t, cacheInconclusive, ck.attempt(e).kind)
		}
	}
}

type slowCache struct {
	singleflight.Cache[string]
	by time.Duration
}

func (c *slowCache) Get(ctx context.Context, key string) (string, bool, error) {
	time.Sleep(c.by)
	return c.Cache.Get(ctx, key)
}

func TestCacheBadConfig(t *testing.T) {
	t.Parallel()
	newCache := cacheFakes(cacheBugs{}).New
	for want, c := range map[string]CacheConfig[string]{
		"CacheConfig.New is nil":                                    {},
		"CacheConfig.Granularity is negative: -1s":                  {New: newCache, Granularity: -time.Second},
		"CacheConfig.Values has 2 values: it has to have 3 or more": {New: newCache, Values: []string{"a", "b"}},
		"CacheConfig.Values[0] and [2] are equal":                   {New: newCache, Values: []string{"a", "b", "a"}},
		`CacheConfig.Skip names "add/nothing"`:                      {New: newCache, Skip: map[string]string{"add/nothing": "x"}},
		`CacheConfig.Skip gives no reason for "add/fresh"`:          {New: newCache, Skip: map[string]string{"add/fresh": ""}},
	} {
		assert.ErrorContains(t, c.complete(), want)
	}
	ints := CacheConfig[int]{New: func(testing.TB, string, time.Duration, time.Duration) singleflight.Cache[int] { return nil }}
	assert.ErrorContains(t, ints.complete(), "CacheConfig.Values has 0 values")
	ints.Values = []int{0, 1, 2}
	require.NoError(t, ints.complete())
	assert.Contains(t, cacheChecks[int]()[0].judge(t, ints).report, "CacheConfig.New returned nil")
	byteValues := CacheConfig[[]byte]{New: func(testing.TB, string, time.Duration, time.Duration) singleflight.Cache[[]byte] { return nil }}
	require.NoError(t, byteValues.complete())

	c := cacheFakes(cacheBugs{})
	c.Addr = echoServer(t)
	withAddr := c.New
	c.New = func(tb testing.TB, _ string, ttl, stale time.Duration) singleflight.Cache[string] {
		return withAddr(tb, c.Addr, ttl, stale)
	}
	for check, r := range judgeAll(t, c) {
		if strings.HasPrefix(check, "fault/") {
			assert.Contains(t, r.report, "CacheConfig.New does not use its addr")
		}
	}
	c.Addr = "127.0.0.1:1"
	for check, r := range judgeAll(t, c) {
		if strings.HasPrefix(check, "fault/") {
			assert.Contains(t, r.report, "CacheConfig.Addr: no server answers")
		}
	}
}
