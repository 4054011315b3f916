package conformance

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golockers/locker/conformance/internal/harness"
	"github.com/golockers/locker/singleflight"
)

// CacheConfig describes a cache under test.
type CacheConfig[V any] struct {
	// New returns a cache with connections of its own to the backend at addr, as another process
	// would have; it closes them in tb.Cleanup. Get returns a value for ttl and, if the cache is a
	// [singleflight.StaleCache], Stale returns it for stale longer. New is called several times for
	// each check, always on a healthy link. Caches with the same times share their values, so an
	// in-process cache is made once for each pair of times.
	New func(tb testing.TB, addr string, ttl, stale time.Duration) singleflight.Cache[V]

	// Values holds three or more different values. Include those that may be special: the zero
	// value, the largest, and one that means that there is none. The default, if V is string or
	// []byte, has an empty value, one with control characters and one of 100 kB.
	Values []V

	// Equal reports whether two values are the same. The default is [reflect.DeepEqual].
	Equal func(a, b V) bool

	// Addr is the backend's TCP address. If it is empty, New ignores addr, and the checks in which
	// the network fails are skipped.
	Addr string

	// Granularity is how much longer or shorter than asked for a value may last.
	Granularity time.Duration

	// Damage replaces the value of key with something that no cache can have stored there. If it
	// is nil, the checks that need it are skipped.
	Damage func(tb testing.TB, key string)

	// Skip names checks that cannot pass on this backend, each with the reason, which is printed.
	Skip map[string]string
}

// RunCache checks a [singleflight.Cache] and the optional interfaces that it implements:
// [singleflight.Adder], [singleflight.StaleCache], [singleflight.Deleter] and
// slots.Keeper.
//
//	func TestCache(t *testing.T) {
//		conformance.RunCache(t, conformance.CacheConfig[string]{
//			New: func(tb testing.TB, addr string, ttl, stale time.Duration) singleflight.Cache[string] {
//				…
//			},
//			Addr: "127.0.0.1:6379",
//		})
//	}
//
// Each check is a subtest. All of them run at the same time, and RunCache returns when they are
// done. What is early and what is late is judged by when calls began and returned, so a slow
// machine cannot make a check fail. It can keep one from deciding: such a check is tried again with
// longer times, and in the end is inconclusive, which counts as skipped, or as failed with
// LOCKER_CONFORMANCE=strict in the environment.
func RunCache[V any](t *testing.T, c CacheConfig[V]) {
	t.Helper()
	if err := c.complete(); err != nil {
		t.Fatalf("conformance: %v", err)
	}
	var tasks []harness.Task
	for _, check := range cacheChecks[V]() {
		tasks = append(tasks, check.task(c))
	}
	harness.Do(t, tasks)
}

// complete sets what is missing in c, and returns what is wrong with it.
func (c *CacheConfig[V]) complete() error {
	if c.New == nil {
		return errors.New("CacheConfig.New is nil: it must return a cache on the backend under test")
	}
	if c.Granularity < 0 {
		return fmt.Errorf("CacheConfig.Granularity is negative: %v", c.Granularity)
	}
	if c.Equal == nil {
		c.Equal = func(a, b V) bool { return reflect.DeepEqual(a, b) }
	}
	if c.Values == nil {
		switch values := any(&c.Values).(type) {
		case *[]string:
			*values = defaultValues()
		case *[][]byte:
			for _, v := range defaultValues() {
				*values = append(*values, []byte(v))
			}
		}
	}
	const fewest = 3
	if len(c.Values) < fewest {
		return fmt.Errorf("CacheConfig.Values has %d values: it must have %d or more",
			len(c.Values), fewest)
	}
	for i, v := range c.Values {
		if j := slices.IndexFunc(c.Values[:i], func(w V) bool { return c.Equal(v, w) }); j >= 0 {
			return fmt.Errorf("CacheConfig.Values[%d] and [%d] are equal", j, i)
		}
	}
	for name, reason := range c.Skip {
		if !slices.ContainsFunc(cacheChecks[V](), func(ck cacheCheck[V]) bool { return ck.name == name }) {
			return fmt.Errorf("CacheConfig.Skip names %q, which is not a check", name)
		}
		if reason == "" {
			return fmt.Errorf("CacheConfig.Skip gives no reason for %q", name)
		}
	}
	return nil
}

// defaultValues are valid UTF-8, since encoding/json changes other strings.
func defaultValues() []string {
	var every strings.Builder
	for r := range rune(0x180) {
		every.WriteRune(r)
	}
	return []string{"a value", "", every.String(), strings.Repeat("large", 20_000)}
}

// cacheCheck is one thing that every cache must get right.
type cacheCheck[V any] struct {
	name  string
	rule  string // the sentence that it enforces
	cause string // what commonly breaks it
	needs []cacheNeed
	run   func(e *cacheEnv[V])
}

// cacheNeed is what a check needs to be run.
type cacheNeed string

const (
	needsAdder   cacheNeed = "the cache is not a singleflight.Adder"
	needsStale   cacheNeed = "the cache is not a singleflight.StaleCache"
	needsDeleter cacheNeed = "the cache is not a singleflight.Deleter"
	needsKeeper  cacheNeed = "the cache is not a slots.Keeper"
	needsDamage  cacheNeed = "CacheConfig.Damage is nil"
	needsAddr    cacheNeed = "CacheConfig.Addr is empty"
)
