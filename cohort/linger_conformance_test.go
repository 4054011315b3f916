package cohort_test

import (
	"crypto/rand"
	"fmt"
	"maps"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/cohort"
	"github.com/golockers/locker/conformance"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/memory"
	"github.com/golockers/locker/redisv9"
	"github.com/redis/go-redis/v9"
)

// with returns skip and more checks, for one reason.
func with(skip map[string]string, reason string, more ...string) map[string]string {
	skip = maps.Clone(skip)
	for _, name := range more {
		skip[name] = reason
	}
	return skip
}

// skipKept names the checks in which one process inspects a lock that another keeps.
var skipKept = with(skip, "a lock that lingers is held to other processes",
	"inspect/expiry", "inspect/no-side-effects", "inspect/queue", "list/prefix", "list/concurrent", "list/queue")

// skipBroken names the check that releases a lock that has been broken, perhaps before the process
// has heard that another one wants the lock: see TestLingerBroken.
var skipBroken = with(skipKept, "a release that lets the lock linger does not notice that the lock was broken",
	"inspect/break-wakes")

// skipLingering names the checks that hold on no Locker whose locks linger for long.
var skipLingering = with(skipBroken, "a release that lets the lock linger wakes no watcher: the lock does not become free",
	"watch/every-release", "watch/wakes-all", "watch/any-key", "watch/channel", "watch/only-its-key", "watch/first-release")

// With faults, the same is true of a watcher, and a release makes no request.
var skipLingeringFaults = with(with(skipLingering, skipLingering["watch/every-release"], "fault/watch-disconnect"),
	"a release that lets the lock linger makes no request",
	"fault/release-paused", "fault/release-reply-lost", "fault/reply-after-cancel", "fault/reset-mid-request",
	"fault/garbage-reply", "fault/truncated-reply", "fault/hang-deadline", "fault/hang-cancel")

// oneLingering is why one run of the suite is enough for most changes.
const oneLingering = "the suite runs with and without batches, and bubbles cover locks that linger for long"

// The whole suite holds for a Locker whose locks linger for longer than its checks take: whatever
// another process gets, it gets because it wants it. Locks that linger for as long as recommended
// wake watchers in time.
func TestLingeringConformance(t *testing.T) {
	const long = time.Minute
	t.Run("memory", func(t *testing.T) {
		testserver.Variant(t, oneLingering)
		t.Parallel()
		m := memory.New()
		conformance.Run(t, conformance.Config{
			Skip: skipLingering,
			New:  func(tb testing.TB, _ string) locker.Locker { return lingeringFor(tb, m, long) },
		})
	})
	t.Run("memory, as recommended", func(t *testing.T) {
		testserver.Variant(t, oneLingering)
		t.Parallel()
		m := memory.New()
		conformance.Run(t, conformance.Config{
			Skip: skipBroken,
			New:  func(tb testing.TB, _ string) locker.Locker { return lingeringFor(tb, m, 100*time.Millisecond) },
		})
	})
	addr := testserver.Redis(t).Addr
	onRedis := func(d time.Duration, opts ...redisv9.Option) func(tb testing.TB, addr string) locker.Locker {
		return func(tb testing.TB, to string) locker.Locker {
			if to == "" {
				to = addr
			}
			client := redis.NewClient(&redis.Options{Addr: to})
			tb.Cleanup(func() { _ = client.Close() })
			inner := redisv9.New(client, opts...)
			l := lingeringFor(tb, inner, d)
			if to != addr {
				awaitLinger(tb, l, inner)
			}
			return l
		}
	}
	t.Run("redisv9", func(t *testing.T) {
		testserver.Variant(t, oneLingering)
		t.Parallel()
		conformance.Run(t, conformance.Config{Skip: skipLingeringFaults, Addr: addr, New: onRedis(long)})
	})
	// Without faults, which would affect the requests by which locks are given up in the background.
	asRecommended := func(opts ...redisv9.Option) conformance.Config {
		return conformance.Config{Skip: skipBroken, New: onRedis(100*time.Millisecond, opts...)}
	}
	t.Run("redisv9, as recommended", func(t *testing.T) {
		testserver.Variant(t, oneLingering)
		t.Parallel()
		conformance.Run(t, asRecommended())
	})
	for _, slots := range []int{1, 4} {
		name, batching := fmt.Sprintf("redisv9 with slots: %d", slots), redisv9.WithBatching(slots)
		t.Run(name, func(t *testing.T) {
			testserver.Variant(t, oneLingering)
			t.Parallel()
			conformance.Run(t, conformance.Config{Skip: skipLingeringFaults, Addr: addr, New: onRedis(long, batching)})
		})
		t.Run(name+", as recommended", func(t *testing.T) {
			testserver.Variant(t, oneLingering)
			t.Parallel()
			conformance.Run(t, asRecommended(batching))
		})
	}
	// The short form of all of them: every Locker has another number of slots than the one before.
	t.Run("redisv9 with and without batches, as recommended", func(t *testing.T) {
		t.Parallel()
		config, slots, n := asRecommended(), []int{0, 1, 4}, atomic.Int64{}
		config.New = func(tb testing.TB, addr string) locker.Locker {
			batching := redisv9.WithBatching(slots[int(n.Add(1))%len(slots)])
			return onRedis(100*time.Millisecond, batching)(tb, addr)
		}
		conformance.Run(t, config)
	})
}

// awaitLinger waits until locks linger: then the subscription, which is made in the background, is
// not among the requests that a check of faults counts. It needs no success, since the link may be
// broken already.
func awaitLinger(tb testing.TB, l locker.Locker, inner locker.Inspector) {
	tb.Helper()
	key := "await-linger/" + rand.Text()
	for range 100 {
		lease, err := locker.TryLock(tb.Context(), l, key, time.Second)
		if err != nil {
			return
		}
		_ = lease.Unlock(tb.Context())
		if info, err := inner.Inspect(tb.Context(), key); err != nil || info.Token != "" {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func lingeringFor(tb testing.TB, inner locker.Locker, d time.Duration) locker.Locker {
	l := cohort.New(inner, cohort.WithLinger(d))
	tb.Cleanup(func() { _ = l.Close() })
	return l
}
