package conformance

import (
	"context"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker/conformance/internal/harness"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/singleflight"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// judgeAll runs all checks on c.
func judgeAll(t *testing.T, c CacheConfig[string]) map[string]*harness.Recorder {
	t.Helper()
	return judgeThose(t, c, func(string) bool { return true })
}

// judgeThose runs the checks that are chosen.
func judgeThose(t *testing.T, c CacheConfig[string], chosen func(check string) bool) map[string]*harness.Recorder {
	t.Helper()
	require.NoError(t, c.complete())
	var mu sync.Mutex
	var all sync.WaitGroup
	results := make(map[string]*harness.Recorder)
	for _, ck := range cacheChecks[string]() {
		if !chosen(ck.name) {
			continue
		}
		all.Go(func() {
			r := harness.Judge(t, ck.task(c))
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
	together(t, cacheMutants, func(t *testing.T, m cacheMutant) {
		c := cacheFakes(m.bugs)
		c.Addr = addr
		chosen := func(check string) bool {
			return isNamed(m.must, check) || testserver.All() && !isNamed(m.may, check)
		}
		for check, r := range judgeThose(t, c, chosen) {
			// On a busy machine a check may look too seldom to see the mistake.
			for again := 0; isNamed(m.must, check) && !r.Failed() && again < 4; again++ {
				r = judgeThose(t, c, func(name string) bool { return name == check })[check]
			}
			assert.Equal(t, isNamed(m.must, check), r.Failed(), "%s: %s%s", check, r.Why(), r.Printed())
			if r.Failed() {
				for _, part := range []string{check, "rule", "history", "want", "got", "common cause"} {
					assert.Contains(t, r.Printed(), part)
				}
			}
		}
	})
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

// The rules are sentences of the documentation.
func TestCacheRules(t *testing.T) {
	t.Parallel()
	var text []byte
	for _, file := range []string{"../singleflight/cache.go", "../singleflight/update.go", "../singleflight/slots/slots.go"} {
		b, err := os.ReadFile(file)
		require.NoError(t, err)
		text = append(text, b...)
	}
	words := strings.Join(strings.Fields(strings.ReplaceAll(string(text), "//", " ")), " ")
	for _, rule := range []string{
		cacheGet, cacheSet, cacheAdd, cacheStale, cacheDelete, cacheDeleteNone, cacheContext,
		cacheVersion, cacheShared, cacheAhead, cacheFailure,
	} {
		assert.True(t, strings.Contains(words, strings.TrimSuffix(rule, ".")), rule)
	}
}

// A correct cache passes, with values of any type, and a plain one is not held to what it cannot do.
func TestCacheCorrect(t *testing.T) {
	t.Parallel()
	t.Run("all", func(t *testing.T) {
		c := cacheFakes(cacheBugs{})
		c.Addr = echoServer(t)
		for _, r := range judgeAll(t, c) {
			assert.False(t, r.Failed() || r.Skipped() || r.Inconclusive(), "%s%s", r.Why(), r.Printed())
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
			skipped := isNamed([]string{"add/*", "stale/*", "delete/*", "damaged/*", "fault/*", "context/*", "slots/*"}, name)
			assert.Equal(t, skipped, r.Skipped(), "%s: %s", name, r.Why())
			assert.False(t, r.Failed() || r.Inconclusive(), "%s: %s%s", name, r.Why(), r.Printed())
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
				assert.False(t, r.Failed() || r.Skipped() || r.Inconclusive(), "%s%s", r.Why(), r.Printed())
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

// A check that cannot decide says so, and decides with longer times.
func TestCacheTooSlow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := cacheFakes(cacheBugs{})
		full := c.New
		c.New = func(tb testing.TB, addr string, ttl, stale time.Duration) singleflight.Cache[string] {
			return &slowCache{full(tb, addr, ttl, stale), time.Second}
		}
		require.NoError(t, c.complete())
		for _, ck := range cacheChecks[string]() {
			if ck.name == "expiry/on-time" {
				// Within a ttl of 400 ms nothing can be told; one of 3.2 s is enough.
				r := ck.task(c).Try(t, 8)
				assert.False(t, r.Failed() || r.Inconclusive(), "%s%s", r.Why(), r.Printed())
				assert.True(t, ck.task(c).Try(t, 1).Inconclusive())
			}
		}
	})
}

type slowCache struct {
	singleflight.Cache[string]
	by time.Duration
}

func (c *slowCache) Get(ctx context.Context, key string) (string, bool, error) {
	time.Sleep(c.by)
	return c.Cache.Get(ctx, key)
}

func noCache[V any](testing.TB, string, time.Duration, time.Duration) singleflight.Cache[V] {
	return nil
}

func TestCacheBadConfig(t *testing.T) {
	t.Parallel()
	newCache := cacheFakes(cacheBugs{}).New
	for want, c := range map[string]CacheConfig[string]{
		"CacheConfig.New is nil":                                  {},
		"CacheConfig.Granularity is negative: -1s":                {New: newCache, Granularity: -time.Second},
		"CacheConfig.Values has 2 values: it must have 3 or more": {New: newCache, Values: []string{"a", "b"}},
		"CacheConfig.Values[0] and [2] are equal":                 {New: newCache, Values: []string{"a", "b", "a"}},
		`CacheConfig.Skip names "add/nothing"`:                    {New: newCache, Skip: map[string]string{"add/nothing": "x"}},
		`CacheConfig.Skip gives no reason for "add/fresh"`:        {New: newCache, Skip: map[string]string{"add/fresh": ""}},
	} {
		assert.ErrorContains(t, c.complete(), want)
	}
	ints := CacheConfig[int]{New: noCache[int]}
	assert.ErrorContains(t, ints.complete(), "CacheConfig.Values has 0 values")
	ints.Values = []int{0, 1, 2}
	require.NoError(t, ints.complete())
	assert.Contains(t, harness.Judge(t, cacheChecks[int]()[0].task(ints)).Printed(), "CacheConfig.New returned nil")
	byteValues := CacheConfig[[]byte]{New: noCache[[]byte]}
	require.NoError(t, byteValues.complete())

	c := cacheFakes(cacheBugs{})
	c.Addr = echoServer(t)
	withAddr := c.New
	c.New = func(tb testing.TB, _ string, ttl, stale time.Duration) singleflight.Cache[string] {
		return withAddr(tb, c.Addr, ttl, stale)
	}
	for check, r := range judgeAll(t, c) {
		if strings.HasPrefix(check, "fault/") {
			assert.Contains(t, r.Printed(), "CacheConfig.New does not use its addr")
		}
	}
	c.Addr = "127.0.0.1:1"
	for check, r := range judgeAll(t, c) {
		if strings.HasPrefix(check, "fault/") {
			assert.Contains(t, r.Printed(), "CacheConfig.Addr: no server answers")
		}
	}
}
