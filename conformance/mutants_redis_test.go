package conformance

import (
	"testing"

	"github.com/golockers/locker"
)

// redisMutants are broken in ways that need a real backend, or a real network.
var redisMutants = []mutant{{
	name:   "SETNX without expiry",
	config: onRedisPatched(setNXWithoutExpiry),
	must: []string{
		"exclusion/one-winner-on-an-expired-key", "expiry/never-early", "expiry/not-late",
		"expiry/winner-owns", "extend/after-expiry", "extend/after-takeover",
		"fault/acquire-reply-lost", "fault/garbage-reply",
		"fault/half-a-reply", "fault/late-acquire", "fault/release-paused",
		"fault/reset-within-a-request", "fault/takeover-paused", "names/any-token",
		"release/after-expiry", "release/after-takeover", "release/from-another-client",
		"sametoken/after-loss", "sametoken/again", "sametoken/counts-from-the-last",
		"sametoken/never-refused",
	},
	may: []string{"expiry/rounds-up", "fault/extend-paused",
		"exclusion/refused-attempts-cost-nothing", "extend/atomic", "extend/only-the-owner",
		"fault/late-acquire-released", "release/atomic",
	},
}, {
	name:   "SETNX then EXPIRE",
	config: onRedisPatched(setNXThenExpire),
	must: []string{
		"fault/acquire-reply-lost", "fault/garbage-reply", "fault/half-a-reply",
		"fault/late-acquire", "fault/reset-within-a-request", "fault/takeover-paused",
		"names/any-token", "release/from-another-client", "sametoken/after-loss",
		"sametoken/again", "sametoken/counts-from-the-last", "sametoken/never-refused",
	},
	may: []string{
		"context/cancelled-midway", "fault/acquire-paused", "fault/late-acquire-released",
	},
}, {
	name:   "SETNX and EXPIRE in MULTI",
	config: onRedisPatched(setNXAndExpireInMulti),
	must: []string{
		"exclusion/one-winner-on-an-expired-key", "exclusion/refused-attempts-cost-nothing",
		"expiry/any-ttl", "expiry/never-early", "expiry/not-late",
		"extend/after-takeover", "extend/keeps-alive", "extend/longer", "extend/only-the-owner",
		"extend/replaces", "extend/shorter", "fault/acquire-reply-lost",
		"fault/garbage-reply", "fault/half-a-reply",
		"fault/reset-within-a-request", "names/any-token", "release/from-another-client",
		"sametoken/after-loss", "sametoken/again", "sametoken/counts-from-the-last",
		"sametoken/never-refused",
	},
	may: []string{"expiry/rounds-up", "expiry/winner-owns", "fault/release-paused", "fault/extend-paused",
		"extend/atomic", "fault/late-acquire", "fault/late-acquire-released", "fault/takeover-paused",
		"release/after-takeover", "release/atomic",
	},
}, {
	name:   "GET then SET",
	config: onRedisPatched(getThenSet),
	must:   []string{"exclusion/one-winner-on-a-free-key", "fault/acquire-paused", "fault/takeover-paused"},
	may:    []string{"exclusion/*", "expiry/*", "extend/*", "release/*", "sametoken/*"},
}, {
	name:   "DEL then SETNX on an expired timestamp",
	config: onRedisStamped(takeoverByDelThenSetNX, noSkew),
	must:   []string{"fault/takeover-paused"},
	may: []string{
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
	name:   "classic GETSET",
	config: onRedisStamped(takeoverByGetSet, noSkew),
	must:   []string{"fault/takeover-paused"},
	may: []string{
		"exclusion/*",
		"expiry/*",
		"extend/*",
		"release/*",
		"sametoken/*",
		"fault/acquire-paused",
	},
}, {
	name:   "empty GET as an expired timestamp",
	config: onRedisStamped(takeoverOfNothing, noSkew),
	must:   []string{"fault/acquire-paused"},
	may:    []string{"exclusion/*", "expiry/*", "extend/*", "release/*", "sametoken/*"},
}, {
	name:   "timestamps of clocks that differ",
	config: onRedisStamped(takeoverBySwap, skewed),
	must:   []string{"expiry/never-early"},
	may:    []string{"context/*", "exclusion/*", "expiry/*", "extend/*", "fault/*", "names/*", "release/*", "sametoken/*"},
}, {
	name:   "PXAT of clocks that differ",
	config: pxat,
	must:   []string{"expiry/never-early"},
	may:    []string{"context/*", "exclusion/*", "expiry/*", "extend/*", "fault/*", "names/*", "release/*", "sametoken/*"},
}, {
	name:   "release by DEL",
	config: onRedisPatched(releaseByDel),
	must: []string{
		"exclusion/owner-is-the-token", "expiry/winner-owns", "fault/garbage-reply",
		"fault/half-a-reply", "fault/release-paused", "fault/release-reply-lost",
		"fault/reset-within-a-request", "names/exact-tokens", "names/independent",
		"release/after-takeover", "release/only-the-owner",
	},
	may: []string{"exclusion/refused-attempts-cost-nothing", "release/atomic"},
}, {
	name:   "release by GET then DEL",
	config: onRedisPatched(releaseByGetThenDel),
	must:   []string{"fault/release-paused"},
	may:    []string{"exclusion/no-lost-update", "release/atomic"},
}, {
	name:   "release by get then delete on memcached",
	config: onMemcached,
	must:   []string{"fault/release-paused"},
	may:    []string{"context/*", "fault/*", "release/atomic"},
}, {
	name:   "extend by GET then PEXPIRE",
	config: onRedisPatched(extendByGetThenExpire),
	must:   []string{"fault/extend-paused"},
	may:    []string{"extend/atomic"},
}, {
	name:   "extend by PEXPIRE",
	config: onRedisPatched(extendByExpire),
	must: []string{
		"exclusion/owner-is-the-token", "expiry/winner-owns", "extend/after-takeover",
		"extend/only-the-owner", "fault/extend-paused", "names/exact-tokens",
	},
	may: []string{"extend/atomic"},
}, {
	name:   "extend by SET XX",
	config: onRedisPatched(extendBySetXX),
	must: []string{
		"exclusion/owner-is-the-token", "expiry/winner-owns", "extend/after-takeover",
		"extend/only-the-owner", "fault/extend-paused", "names/exact-tokens",
	},
	may: []string{"extend/atomic"},
}, {
	name:   "extend or SET NX",
	config: onRedisPatched(extendOrSetNX),
	must:   []string{"extend/after-expiry", "extend/after-release", "release/from-another-client"},
	may:    []string{"extend/atomic", "fault/extend-paused"},
}, {
	name:   "SET NX repeated by the client",
	config: onRedis(setNXRepeated),
	must: []string{
		"fault/acquire-reply-lost", "fault/garbage-reply", "fault/half-a-reply",
		"fault/reset-within-a-request", "names/any-token", "release/from-another-client",
		"sametoken/after-loss", "sametoken/again", "sametoken/counts-from-the-last",
		"sametoken/never-refused",
	},
	may: []string{"fault/acquire-repeated-late", "fault/late-acquire"},
}, {
	name:   "release repeated by the client",
	config: onRedisThrough(repeating, plainly),
	must:   []string{"fault/acquire-repeated-late", "fault/half-a-reply", "fault/release-reply-lost"},
	may:    []string{"fault/reset-within-a-request"},
}, {
	name:   "transport error as held",
	config: onRedisThrough(nil, errorAsFalse),
	must: []string{
		"fault/acquire-reply-lost", "fault/connection-refused", "fault/extend-reply-lost",
		"fault/garbage-reply", "fault/half-a-reply", "fault/release-reply-lost",
		"fault/reset-within-a-request",
	},
	may: []string{"fault/acquire-repeated-late", "fault/slow-link"},
}, {
	name:   "no answer to an extension taken for the end of the lock",
	config: onRedisGuessing(map[string]bool{"extend": false}, "extend"),
	must: []string{
		"fault/connection-refused", "fault/extend-reply-lost", "fault/garbage-reply", "fault/half-a-reply",
		"fault/reset-within-a-request",
	},
	may: []string{"fault/extend-holds"},
}, {
	name:   "no answer to a release taken for the end of the lock",
	config: onRedisGuessing(map[string]bool{"release": false}, "release"),
	must:   []string{"context/done-before", "fault/connection-refused", "fault/reset-within-a-request"},
	may:    []string{"fault/hang-cancel", "fault/hang-leak"},
}, {
	name:   "no answer to an attempt taken for the lock",
	config: onRedisGuessing(map[string]bool{"acquire": true}, "acquire"),
	must:   []string{"fault/connection-refused", "fault/reset-within-a-request"},
}, {
	name:   "no release after an attempt without an answer",
	config: onRedisGuessing(map[string]bool{"release": false}, "acquire"),
	must: []string{
		"context/done-before", "fault/acquire-reply-lost", "fault/garbage-reply", "fault/half-a-reply",
		"fault/late-acquire-cleaned-up", "fault/reset-within-a-request",
	},
}, {
	name: "error of a release as success",
	config: onRedis(func(tb testing.TB, addr string) locker.Locker {
		return optimist{redisLock{redisClient(tb, redisOptions(addr))}}
	}),
	must: []string{"fault/connection-refused", "fault/reset-within-a-request"},
}, {
	name:   "end of the connection as held",
	config: onRedisThrough(nil, eofAsFalse),
	must: []string{
		"fault/acquire-reply-lost", "fault/extend-reply-lost", "fault/half-a-reply",
		"fault/release-reply-lost", "fault/reset-within-a-request",
	},
	may: []string{"fault/acquire-repeated-late", "fault/connection-refused", "fault/garbage-reply"},
}, {
	name:   "garbage as held",
	config: onRedisThrough(nil, garbageAsFalse),
	must:   []string{"fault/garbage-reply", "fault/reset-within-a-request"},
}, {
	name:   "an error that is not the network's taken for the lock",
	config: onRedisPatched(localFallback),
	must:   []string{"fault/reset-within-a-request"},
}, {
	name:   "reset as held",
	config: onRedisThrough(nil, resetAsFalse),
	must:   []string{"fault/reset-within-a-request"},
	may:    []string{"fault/connection-refused", "fault/garbage-reply", "fault/half-a-reply"},
}, {
	name:   "error without its cause",
	config: onRedisThrough(nil, withoutCause),
	must:   []string{"fault/connection-refused"},
}, {
	name:   "the cause as text",
	config: onRedisThrough(nil, causeAsText),
	must:   []string{"fault/connection-refused"},
}, {
	name:   "the context's error hidden",
	config: onRedisThrough(nil, contextHidden),
	must: []string{
		"context/done-before", "fault/hang-cancel", "fault/hang-deadline",
		"fault/success-after-the-end",
	},
	may: []string{
		"context/cancelled-midway", "context/deadline-ahead", "context/no-late-success",
	},
}, {
	name:   "panic without a reply",
	config: onRedisThrough(nil, panics),
	must: []string{
		"fault/acquire-reply-lost", "fault/connection-refused", "fault/extend-reply-lost",
		"fault/garbage-reply", "fault/half-a-reply", "fault/release-reply-lost",
		"fault/reset-within-a-request",
	},
	may: []string{"fault/acquire-repeated-late", "fault/extend-holds"},
}, {
	name:   "context not passed on",
	config: onRedisThrough(nil, withoutContext),
	must: []string{
		"context/done-before", "fault/hang-cancel", "fault/hang-deadline",
		"fault/success-after-the-end",
	},
	may: []string{"context/cancelled-midway", "context/no-late-success"},
}, {
	name:   "context looked at afterwards",
	config: onRedisThrough(nil, contextAfterwards),
	must:   []string{"fault/hang-deadline"},
}, {
	name:   "context looked at afterwards, and timeouts of a second",
	config: onRedisThrough(timeoutsOfASecond, contextAfterwards),
	must:   []string{"fault/hang-deadline"},
}, {
	name:   "success after the end of its context",
	config: onRedisThrough(nil, lateSuccess),
	must:   []string{"fault/hang-cancel", "fault/success-after-the-end"},
	may:    []string{"context/cancelled-midway", "context/no-late-success"},
}, {
	name:   "client without timeouts",
	config: onRedisThrough(withoutTimeouts, plainly),
	must:   []string{"fault/hang-cancel"},
}, {
	name:   "time limit of its own",
	config: onRedisThrough(nil, hurried),
	must:   []string{"fault/slow-link"},
	may:    []string{"*"}, // on a busy machine
}, {
	name:   "goroutine left behind for ever",
	config: onRedisThrough(nil, leaking),
	must:   []string{"fault/hang-leak"},
	may:    []string{"context/nothing-left"},
}, {
	name:   "acquire again in the background",
	config: onRedisPatched(acquireAgain),
	must:   []string{"fault/late-acquire", "fault/late-acquire-released"},
	may:    []string{"context/*", "fault/hang-leak", "fault/late-acquire-cleaned-up"},
}, {
	name:   "release only what is remembered",
	config: onRedisPatched(remembering),
	must:   []string{"fault/late-acquire-cleaned-up", "release/from-another-client"},
	may:    []string{"context/cancelled-midway", "context/no-late-success"},
}, {
	name:   "one connection for ever",
	config: onRedis(oneConnection),
	must: []string{
		"fault/acquire-reply-lost", "fault/connection-refused", "fault/extend-reply-lost",
		"fault/garbage-reply", "fault/half-a-reply", "fault/hang-cancel", "fault/hang-deadline",
		"fault/late-acquire", "fault/late-acquire-cleaned-up", "fault/late-acquire-released",
		"fault/release-reply-lost", "fault/reset-within-a-request",
	},
	may: []string{"*"}, // on a busy machine it may have lost it at any time
}, {
	name:   "watch that ends with its connection",
	config: on(func(l redisFull) watchOnce { return watchOnce{l} }),
	must:   []string{"fault/watch-cut"},
}, {
	name:   "watch that subscribes anew in silence",
	config: on(func(l redisFull) watchInSilence { return watchInSilence{l} }),
	must:   []string{"fault/watch-cut"},
}, {
	name:   "watch that subscribes anew without rest",
	config: on(func(l redisFull) watchRestless { return watchRestless{l} }),
	must:   []string{"fault/watch-reconnects-calmly"},
	may:    []string{"fault/watch-cut"},
}, {
	name:   "watch that gives up 800 ms after its deadline",
	only:   []string{"fault/hang-deadline", "watch/*"},
	config: on(func(l redisFull) watchLate { return watchLate{l} }),
	must:   []string{"fault/hang-deadline"},
}, {
	name:   "wait for word on a connection that has ended",
	config: on(func(l redisFull) waitForWord { return waitForWord{l} }),
	must:   []string{"fault/wait-cut", "fault/push-refused", "fault/push-hangs", "fault/push-silent"},
	may:    []string{"fault/wait-reply-lost", "fault/gone-beside-others", "fault/place-kept", "fault/grant-held-back", "fault/extend-holds-in-line"},
}, {
	name:   "wait by a message that is believed when it comes",
	only:   []string{"fault/*"},
	config: on(func(l redisFull) granted { return newGranted(believed)(l) }),
	must:   []string{"fault/grant-held-back"},
	may:    []string{"wait/deadline", "fault/waiter-dies"},
}, {
	name:   "a waiter of a process that lives is taken for alive",
	only:   []string{"fault/*"},
	config: on(func(l redisFull) granted { return newGranted(ghosts)(l) }),
	must:   []string{"fault/gone-beside-others"},
}, {
	name:   "waiters that join again in any order",
	only:   []string{"fault/*"},
	config: on(func(l redisFull) granted { return newGranted(rejoins)(l) }),
	must:   []string{"fault/place-kept"},
}, {
	name:   "an unanswered extension ends the lock in the process",
	only:   []string{"fault/*"},
	config: on(func(l redisFull) *unsure { return &unsure{redisFull: l} }),
	must:   []string{"fault/extend-holds"},
	may:    []string{"fault/extend-reply-lost", "fault/half-a-reply", "fault/garbage-reply", "fault/reset-within-a-request"},
}, {
	name:   "an unanswered extension ends the next holder's time",
	only:   []string{"fault/*"},
	config: on(func(l redisFull) *unsure { return &unsure{redisFull: l, byKey: true} }),
	must:   []string{"fault/extend-holds-in-line"},
	may:    []string{"fault/*"},
}, {
	name:   "a lock that is still its own taken for an extended one",
	config: onRedisPatched(extendedIfOurs),
	must:   []string{"fault/extend-holds"},
}, {
	name:   "wait through an error",
	config: on(func(l redisFull) waitPatiently { return waitPatiently{l} }),
	must:   []string{"fault/wait-reply-lost"},
	may:    []string{"fault/extend-holds-in-line", "fault/gone-beside-others", "fault/grant-held-back", "fault/place-kept", "fault/wait-cut"},
}, {
	name:   "a line in which the dead stay",
	config: on(func(l redisFull) waitBehindTheDead { return waitBehindTheDead{l} }),
	must:   []string{"fault/waiter-dies"},
	may:    []string{"fault/extend-holds-in-line", "fault/gone-beside-others", "fault/wait-cut", "fault/wait-reply-lost"},
}, {
	name:   "fence: transport error as not held",
	config: on(func(l redisFull) fenceErrorAsFalse { return fenceErrorAsFalse{l} }),
	must:   []string{"fault/fence-reply-lost"},
}}
