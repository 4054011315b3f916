package mutants

import (
	"testing"

	"github.com/golockers/locker"
)

// redisMutants returns mutants that need a real backend, or a real network.
func redisMutants() []Mutant {
	return []Mutant{{
		Name:   "SETNX without expiry",
		Config: onRedisPatched(setNXWithoutExpiry),
		Must: []string{
			"exclusion/race-for-expired-key", "expiry/never-early", "expiry/not-late",
			"expiry/takeover-ownership", "extend/after-expiry", "extend/after-takeover",
			"fault/acquire-reply-lost", "fault/garbage-reply",
			"fault/truncated-reply", "fault/late-acquire", "fault/release-paused",
			"fault/reset-mid-request", "fault/takeover-paused", "names/any-token",
			"release/after-expiry", "release/after-takeover", "release/from-another-client",
			"sametoken/after-loss", "sametoken/reacquire", "sametoken/ttl-restarts",
			"sametoken/concurrent",
		},
		May: []string{"context/no-late-success", "expiry/rounds-up", "fault/extend-paused",
			"exclusion/contender-no-effect", "extend/atomic", "extend/owner-only",
			"fault/late-acquire-released", "release/atomic",
		},
	}, {
		Name:   "SETNX then EXPIRE",
		Config: onRedisPatched(setNXThenExpire),
		Must: []string{
			"fault/acquire-reply-lost", "fault/garbage-reply", "fault/truncated-reply",
			"fault/late-acquire", "fault/reset-mid-request", "fault/takeover-paused",
			"names/any-token", "release/from-another-client", "sametoken/after-loss",
			"sametoken/reacquire", "sametoken/ttl-restarts", "sametoken/concurrent",
		},
		May: []string{
			"context/cancel-during-call", "context/no-late-success", "fault/acquire-paused",
			"fault/late-acquire-released",
		},
	}, {
		Name:   "SETNX and EXPIRE in MULTI",
		Config: onRedisPatched(setNXAndExpireInMulti),
		Must: []string{
			"exclusion/race-for-expired-key", "exclusion/contender-no-effect",
			"expiry/any-ttl", "expiry/never-early", "expiry/not-late",
			"extend/after-takeover", "extend/keep-alive", "extend/longer", "extend/owner-only",
			"extend/replaces", "extend/shorter", "fault/acquire-reply-lost",
			"fault/garbage-reply", "fault/truncated-reply",
			"fault/reset-mid-request", "names/any-token", "release/from-another-client",
			"sametoken/after-loss", "sametoken/reacquire", "sametoken/ttl-restarts",
			"sametoken/concurrent",
		},
		May: []string{"context/no-late-success", "expiry/rounds-up", "expiry/takeover-ownership", "fault/release-paused", "fault/extend-paused",
			"extend/atomic", "fault/late-acquire", "fault/late-acquire-released", "fault/takeover-paused",
			"release/after-takeover", "release/atomic",
		},
	}, {
		Name:   "GET then SET",
		Config: onRedisPatched(getThenSet),
		Must:   []string{"exclusion/race-for-free-key", "fault/acquire-paused", "fault/takeover-paused"},
		May:    []string{"exclusion/*", "expiry/*", "extend/*", "release/*", "sametoken/*"},
	}, {
		Name:   "DEL then SETNX on an expired timestamp",
		Config: onRedisStamped(takeoverByDelThenSetNX, noSkew),
		Must:   []string{"fault/takeover-paused"},
		May: []string{
			"exclusion/*",
			"expiry/*",
			"extend/*",
			"release/*",
			"sametoken/*",
			"fault/acquire-paused",
			"fault/release-paused",
			"fault/extend-paused",
		},
	}, {
		Name:   "classic GETSET",
		Config: onRedisStamped(takeoverByGetSet, noSkew),
		Must:   []string{"fault/takeover-paused"},
		May: []string{
			"exclusion/*",
			"expiry/*",
			"extend/*",
			"release/*",
			"sametoken/*",
			"fault/acquire-paused",
		},
	}, {
		Name:   "empty GET as an expired timestamp",
		Config: onRedisStamped(takeoverOfNothing, noSkew),
		Must:   []string{"fault/acquire-paused"},
		May:    []string{"exclusion/*", "expiry/*", "extend/*", "release/*", "sametoken/*"},
	}, {
		Name:   "timestamps of clocks that differ",
		Config: onRedisStamped(takeoverBySwap, skewed),
		Must:   []string{"expiry/never-early"},
		May:    []string{"context/*", "exclusion/*", "expiry/*", "extend/*", "fault/*", "names/*", "release/*", "sametoken/*"},
	}, {
		Name:   "PXAT of clocks that differ",
		Config: pxat,
		Must:   []string{"expiry/never-early"},
		May:    []string{"context/*", "exclusion/*", "expiry/*", "extend/*", "fault/*", "names/*", "release/*", "sametoken/*"},
	}, {
		Name:   "release by DEL",
		Config: onRedisPatched(releaseByDel),
		Must: []string{
			"exclusion/owner-is-token", "expiry/takeover-ownership", "fault/garbage-reply",
			"fault/truncated-reply", "fault/release-paused", "fault/release-reply-lost",
			"fault/reset-mid-request", "names/exact-tokens", "names/independent",
			"release/after-takeover", "release/owner-only",
		},
		May: []string{"exclusion/contender-no-effect", "release/atomic"},
	}, {
		Name:   "release by GET then DEL",
		Config: onRedisPatched(releaseByGetThenDel),
		Must:   []string{"fault/release-paused"},
		May:    []string{"exclusion/no-lost-update", "release/atomic"},
	}, {
		Name:   "release by get then delete on memcached",
		Config: onMemcached,
		Must:   []string{"fault/release-paused"},
		May:    []string{"context/*", "fault/*", "release/atomic"},
	}, {
		Name:   "extend by GET then PEXPIRE",
		Config: onRedisPatched(extendByGetThenExpire),
		Must:   []string{"fault/extend-paused"},
		May:    []string{"extend/atomic"},
	}, {
		Name:   "extend by PEXPIRE",
		Config: onRedisPatched(extendByExpire),
		Must: []string{
			"exclusion/owner-is-token", "expiry/takeover-ownership", "extend/after-takeover",
			"extend/owner-only", "fault/extend-paused", "names/exact-tokens",
		},
		May: []string{"extend/atomic"},
	}, {
		Name:   "extend by SET XX",
		Config: onRedisPatched(extendBySetXX),
		Must: []string{
			"exclusion/owner-is-token", "expiry/takeover-ownership", "extend/after-takeover",
			"extend/owner-only", "fault/extend-paused", "names/exact-tokens",
		},
		May: []string{"extend/atomic"},
	}, {
		Name:   "extend or SET NX",
		Config: onRedisPatched(extendOrSetNX),
		Must:   []string{"extend/after-expiry", "extend/after-release", "release/from-another-client"},
		May:    []string{"extend/atomic", "fault/extend-paused"},
	}, {
		Name:   "SET NX repeated by the client",
		Config: OnRedis(setNXRepeated),
		Must: []string{
			"fault/acquire-reply-lost", "fault/garbage-reply", "fault/truncated-reply",
			"fault/reset-mid-request", "names/any-token", "release/from-another-client",
			"sametoken/after-loss", "sametoken/reacquire", "sametoken/ttl-restarts",
			"sametoken/concurrent",
		},
		May: []string{"context/no-late-success", "fault/acquire-retried-late", "fault/late-acquire"},
	}, {
		Name:   "release repeated by the client",
		Config: onRedisThrough(repeating, plainly),
		Must:   []string{"fault/acquire-retried-late", "fault/truncated-reply", "fault/release-reply-lost"},
		May:    []string{"fault/reset-mid-request"},
	}, {
		Name:   "transport error as held",
		Config: onRedisThrough(nil, errorAsFalse),
		Must: []string{
			"fault/acquire-reply-lost", "fault/connection-refused", "fault/extend-reply-lost",
			"fault/garbage-reply", "fault/truncated-reply", "fault/release-reply-lost",
			"fault/reset-mid-request",
		},
		May: []string{"fault/acquire-retried-late", "fault/slow-link"},
	}, {
		Name:   "an unanswered extend taken for the end of the lock",
		Config: onRedisGuessing(map[string]bool{"extend": false}, "extend"),
		Must: []string{
			"fault/connection-refused", "fault/extend-reply-lost", "fault/garbage-reply", "fault/truncated-reply",
			"fault/reset-mid-request",
		},
		May: []string{"fault/extend-after-lost-reply"},
	}, {
		Name:   "an unanswered release taken for the end of the lock",
		Config: onRedisGuessing(map[string]bool{"release": false}, "release"),
		Must:   []string{"context/already-done", "fault/connection-refused", "fault/reset-mid-request"},
		May:    []string{"fault/hang-cancel", "fault/hang-leak"},
	}, {
		Name:   "an unanswered acquire taken for the lock",
		Config: onRedisGuessing(map[string]bool{"acquire": true}, "acquire"),
		Must:   []string{"fault/connection-refused", "fault/reset-mid-request"},
	}, {
		Name:   "no release after an unanswered acquire",
		Config: onRedisGuessing(map[string]bool{"release": false}, "acquire"),
		Must: []string{
			"context/already-done", "fault/acquire-reply-lost", "fault/garbage-reply", "fault/truncated-reply",
			"fault/late-acquire-cleanup", "fault/reset-mid-request",
		},
	}, {
		Name: "error of a release as success",
		Config: OnRedis(func(tb testing.TB, addr string) locker.Locker {
			return optimist{redisLock{redisClient(tb, redisOptions(addr))}}
		}),
		Must: []string{"fault/connection-refused", "fault/reset-mid-request"},
	}, {
		Name:   "end of the connection as held",
		Config: onRedisThrough(nil, eofAsFalse),
		Must: []string{
			"fault/acquire-reply-lost", "fault/extend-reply-lost", "fault/truncated-reply",
			"fault/release-reply-lost", "fault/reset-mid-request",
		},
		May: []string{"fault/acquire-retried-late", "fault/connection-refused", "fault/garbage-reply"},
	}, {
		Name:   "garbage as held",
		Config: onRedisThrough(nil, garbageAsFalse),
		Must:   []string{"fault/garbage-reply", "fault/reset-mid-request"},
	}, {
		Name:   "an error that is not a net.Error taken for the lock",
		Config: onRedisPatched(localFallback),
		Must:   []string{"fault/reset-mid-request"},
	}, {
		Name:   "reset as held",
		Config: onRedisThrough(nil, resetAsFalse),
		Must:   []string{"fault/reset-mid-request"},
		May:    []string{"fault/connection-refused", "fault/garbage-reply", "fault/truncated-reply"},
	}, {
		Name:   "error without its cause",
		Config: onRedisThrough(nil, withoutCause),
		Must:   []string{"fault/connection-refused"},
	}, {
		Name:   "the cause as text",
		Config: onRedisThrough(nil, causeAsText),
		Must:   []string{"fault/connection-refused"},
	}, {
		Name:   "the context's error hidden",
		Config: onRedisThrough(nil, contextHidden),
		Must: []string{
			"context/already-done", "fault/hang-cancel", "fault/hang-deadline",
			"fault/reply-after-cancel",
		},
		May: []string{
			"context/cancel-during-call", "context/future-deadline", "context/no-late-success",
		},
	}, {
		Name:   "panic without a reply",
		Config: onRedisThrough(nil, panics),
		Must: []string{
			"fault/acquire-reply-lost", "fault/connection-refused", "fault/extend-reply-lost",
			"fault/garbage-reply", "fault/truncated-reply", "fault/release-reply-lost",
			"fault/reset-mid-request",
		},
		May: []string{"fault/acquire-retried-late", "fault/extend-after-lost-reply"},
	}, {
		Name:   "context not passed on",
		Config: onRedisThrough(nil, withoutContext),
		Must: []string{
			"context/already-done", "fault/hang-cancel", "fault/hang-deadline",
			"fault/reply-after-cancel",
		},
		May: []string{"context/cancel-during-call", "context/no-late-success"},
	}, {
		Name:   "context looked at afterwards",
		Config: onRedisThrough(nil, contextAfterwards),
		Must:   []string{"fault/hang-deadline"},
	}, {
		Name:   "context looked at afterwards, and timeouts of a second",
		Config: onRedisThrough(timeoutsOfASecond, contextAfterwards),
		Must:   []string{"fault/hang-deadline"},
	}, {
		Name:   "context looked at afterwards, and a breaker that refuses the call after a slow one",
		Only:   []string{"fault/hang-deadline", "names/*", "release/*"},
		Config: onRedisThrough(timeoutsOfASecond, breaker()),
		Must:   []string{"fault/hang-deadline"},
	}, {
		Name:   "success after the end of its context",
		Config: onRedisThrough(nil, lateSuccess),
		Must:   []string{"fault/hang-cancel", "fault/reply-after-cancel"},
		May:    []string{"context/cancel-during-call", "context/no-late-success"},
	}, {
		Name:   "client without timeouts",
		Config: onRedisThrough(withoutTimeouts, plainly),
		Must:   []string{"fault/hang-cancel"},
	}, {
		Name:   "a time limit that no caller asked for",
		Config: onRedisThrough(nil, hurried),
		Must:   []string{"fault/slow-link"},
		May:    []string{"*"}, // on a busy machine
	}, {
		Name:   "a goroutine that is abandoned forever",
		Config: onRedisThrough(nil, leaking),
		Must:   []string{"fault/hang-leak"},
		May:    []string{"context/no-leak"},
	}, {
		Name:   "acquire again in the background",
		Config: onRedisPatched(acquireAgain),
		Must:   []string{"fault/late-acquire", "fault/late-acquire-released"},
		May:    []string{"context/*", "fault/hang-leak", "fault/late-acquire-cleanup"},
	}, {
		Name:   "release only what is remembered",
		Config: onRedisPatched(remembering),
		Must:   []string{"fault/late-acquire-cleanup", "release/from-another-client"},
		May:    []string{"context/cancel-during-call", "context/no-late-success"},
	}, {
		Name:   "a single connection, never replaced",
		Config: OnRedis(oneConnection),
		Must: []string{
			"fault/acquire-reply-lost", "fault/connection-refused", "fault/extend-reply-lost",
			"fault/garbage-reply", "fault/truncated-reply", "fault/hang-cancel", "fault/hang-deadline",
			"fault/late-acquire", "fault/late-acquire-cleanup", "fault/late-acquire-released",
			"fault/release-reply-lost", "fault/reset-mid-request",
		},
		May: []string{"*"}, // on a busy machine it may have lost it at any time
	}, {
		Name:   "watch that ends with its connection",
		Config: OnRedisFull(func(l redisFull) watchOnce { return watchOnce{l} }),
		Must:   []string{"fault/watch-disconnect"},
	}, {
		Name:   "watch that resubscribes without a wake-up",
		Config: OnRedisFull(func(l redisFull) watchInSilence { return watchInSilence{l} }),
		Must:   []string{"fault/watch-disconnect"},
	}, {
		Name:   "watch that resubscribes without pauses",
		Config: OnRedisFull(func(l redisFull) watchRestless { return watchRestless{l} }),
		Must:   []string{"fault/watch-backoff"},
		May:    []string{"fault/watch-disconnect"},
	}, {
		Name:   "watch that gives up 800 ms after its deadline",
		Only:   []string{"fault/hang-deadline", "watch/*"},
		Config: OnRedisFull(func(l redisFull) watchLate { return watchLate{l} }),
		Must:   []string{"fault/hang-deadline"},
	}, {
		Name:   "wait for a message on a connection that has ended",
		Config: OnRedisFull(func(l redisFull) waitForWord { return waitForWord{l} }),
		Must:   []string{"fault/wait-disconnect", "fault/push-refused", "fault/push-hangs", "fault/push-silent"},
		May:    []string{"fault/wait-reply-lost", "fault/abandoned-waiter", "fault/reconnect-keeps-place", "fault/delayed-grant", "fault/extend-after-lost-reply-queued"},
	}, {
		Name:   "wait by a message that is believed when it arrives",
		Only:   []string{"fault/*"},
		Config: OnRedisFull(func(l redisFull) granted { return NewGranted(believed)(l) }),
		Must:   []string{"fault/delayed-grant"},
		May:    []string{"wait/deadline", "fault/waiter-crash"},
	}, {
		Name:   "the waiters of a live process are taken for alive",
		Only:   []string{"fault/*"},
		Config: OnRedisFull(func(l redisFull) granted { return NewGranted(ghosts)(l) }),
		Must:   []string{"fault/abandoned-waiter"},
	}, {
		Name:   "the cleanup of a waiter that has gone gives up while the server hangs",
		Only:   []string{"fault/*"},
		Config: OnRedisFull(func(l redisFull) redisFull { l.isHasty = true; return l }),
		Must:   []string{"fault/hang-waiter"},
	}, {
		Name:   "a request without an answer is taken for one that did not arrive",
		Only:   []string{"fault/*"},
		Config: OnRedisFull(func(l redisFull) granted { return NewGranted(sure)(l) }),
		Must:   []string{"fault/late-wait"},
	}, {
		Name:   "waiters that join again in any order",
		Only:   []string{"fault/*"},
		Config: OnRedisFull(func(l redisFull) granted { return NewGranted(rejoins)(l) }),
		Must:   []string{"fault/reconnect-keeps-place"},
	}, {
		Name:   "an extend that brings an expired lock back",
		Config: OnRedisFull(func(l redisFull) revives { return revives{l} }),
		Must:   []string{"fault/extend-expired"},
	}, {
		Name:   "an unanswered extend ends the lock within the process",
		Only:   []string{"fault/*"},
		Config: OnRedisFull(func(l redisFull) *unsure { return &unsure{redisFull: l} }),
		Must:   []string{"fault/extend-after-lost-reply"},
		May:    []string{"fault/extend-reply-lost", "fault/truncated-reply", "fault/garbage-reply", "fault/reset-mid-request"},
	}, {
		Name:   "an unanswered extend ends the next holder's lock",
		Only:   []string{"fault/*"},
		Config: OnRedisFull(func(l redisFull) *unsure { return &unsure{redisFull: l, byKey: true} }),
		Must:   []string{"fault/extend-after-lost-reply-queued"},
		May:    []string{"fault/*"},
	}, {
		Name:   "a lock that is still held taken for an extended one",
		Config: onRedisPatched(extendedIfOurs),
		Must:   []string{"fault/extend-after-lost-reply"},
	}, {
		Name:   "wait that ignores an error",
		Config: OnRedisFull(func(l redisFull) waitPatiently { return waitPatiently{l} }),
		Must:   []string{"fault/wait-reply-lost"},
		May:    []string{"fault/extend-after-lost-reply-queued", "fault/abandoned-waiter", "fault/delayed-grant", "fault/reconnect-keeps-place", "fault/wait-disconnect"},
	}, {
		Name:   "a queue in which crashed waiters stay",
		Config: OnRedisFull(func(l redisFull) waitBehindTheDead { return waitBehindTheDead{l} }),
		Must:   []string{"fault/waiter-crash"},
		May:    []string{"fault/extend-after-lost-reply-queued", "fault/abandoned-waiter", "fault/wait-disconnect", "fault/wait-reply-lost"},
	}, {
		Name:   "fence: transport error as not held",
		Config: OnRedisFull(func(l redisFull) fenceErrorAsFalse { return fenceErrorAsFalse{l} }),
		Must:   []string{"fault/fence-reply-lost"},
	}}
}
