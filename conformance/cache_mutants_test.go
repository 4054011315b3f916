package conformance

import (
	"strings"
	"time"
)

type cacheMutant struct {
	bugs      cacheBugs
	must, may []string
}

// cacheMutants are caches with one mistake each, and the checks that must find it. Those in may
// are also right to.
var cacheMutants = map[string]cacheMutant{
	"a miss is an error": {
		bugs: cacheBugs{missIsError: true},
		must: []string{"get/miss"},
		may:  []string{"slots/*", "names/any", "expiry/*", "add/*", "stale/served", "delete/*", "damaged/set", "fault/*"},
	},
	"a stale miss is an error": {
		bugs: cacheBugs{staleMissIsError: true},
		must: []string{"stale/miss"},
		may:  []string{"slots/*", "stale/ends", "delete/*", "damaged/set"},
	},
	"empty is missing": {
		bugs: cacheBugs{emptyIsMiss: true},
		must: []string{"set/round-trip"},
		may:  []string{"*"},
	},

	"set adds": {
		bugs: cacheBugs{setOnlyAdds: true},
		must: []string{"set/replaces"},
		may:  []string{"*"},
	},
	"set in two steps": {
		bugs: cacheBugs{setInTwoSteps: true},
		must: []string{"set/concurrent"},
	},
	"set keeps the expiry": {
		bugs: cacheBugs{setKeepsExpiry: true},
		must: []string{"expiry/set-renews"},
		may:  []string{"add/*", "stale/*"},
	},
	"names trimmed": {
		bugs: cacheBugs{name: strings.TrimSpace},
		must: []string{"names/any"},
	},
	"names folded": {
		bugs: cacheBugs{name: strings.ToLower},
		must: []string{"names/any"},
		may:  []string{"damaged/*"},
	},
	"names cut": {
		bugs: cacheBugs{name: func(s string) string { return s[:min(len(s), 250)] }},
		must: []string{"names/any"},
	},
	"ends early": {
		bugs: cacheBugs{lasts: func(d time.Duration) time.Duration { return d / 2 }},
		must: []string{"expiry/on-time"},
		may:  []string{"slots/*", "expiry/*", "add/*", "stale/*"},
	},
	"ends late": {
		bugs: cacheBugs{lasts: func(d time.Duration) time.Duration { return 2 * d }},
		must: []string{"expiry/on-time"},
		may:  []string{"slots/*", "expiry/*", "add/*", "stale/*"},
	},
	"ends never": {
		bugs: cacheBugs{lasts: func(time.Duration) time.Duration { return time.Hour }},
		must: []string{"expiry/on-time", "expiry/set-renews"},
		may:  []string{"slots/*", "add/*", "stale/*"},
	},
	"ends at once": {
		bugs: cacheBugs{lasts: func(time.Duration) time.Duration { return 0 }},
		must: []string{"set/round-trip", "expiry/on-time"},
		may:  []string{"*"},
	},
	"a cache without values": {
		bugs: cacheBugs{addNever: true, noStale: true, lasts: func(time.Duration) time.Duration { return -time.Hour }},
		must: []string{"set/round-trip"},
		may:  []string{"*"},
	},

	"add never": {
		bugs: cacheBugs{addNever: true},
		must: []string{"add/absent", "add/one-winner", "delete/add"},
		may:  []string{"slots/*", "add/*"},
	},
	"add is set": {
		bugs: cacheBugs{addIsSet: true},
		must: []string{"add/fresh", "add/absent", "add/one-winner"},
		may:  []string{"add/*", "context/ended"},
	},
	"add renews": {
		bugs: cacheBugs{addRenews: true},
		must: []string{"add/no-renewal"},
	},
	"add in two steps": {
		bugs: cacheBugs{addInTwoSteps: true},
		must: []string{"add/one-winner"},
	},
	"add sees what has expired": {
		bugs: cacheBugs{addSeesExpired: true},
		must: []string{"add/expired", "add/beside-stale"},
		may:  []string{"add/one-winner-beside-stale"},
	},
	"add sees what is stale": {
		bugs: cacheBugs{addSeesStale: true},
		must: []string{"add/beside-stale", "add/one-winner-beside-stale"},
	},
	"add in two steps beside a stale": {
		bugs: cacheBugs{addInTwoStepsBesideStale: true},
		must: []string{"add/one-winner-beside-stale"},
	},

	"nothing is stale": {
		bugs: cacheBugs{noStale: true},
		must: []string{"stale/served", "stale/latest", "stale/ends"},
		may:  []string{"slots/*", "add/*"},
	},
	"stale forever": {
		bugs: cacheBugs{staleForever: true},
		must: []string{"stale/ends"},
	},
	"stale keeps the first": {
		bugs: cacheBugs{staleKeepsFirst: true},
		must: []string{"stale/latest"},
		may:  []string{"slots/*", "add/beside-stale"},
	},

	"delete does nothing": {
		bugs: cacheBugs{deleteNothing: true},
		must: []string{"delete/fresh", "delete/stale", "delete/add"},
		may:  []string{"slots/*", "damaged/set"},
	},
	"delete deletes all": {
		bugs: cacheBugs{deleteAll: true},
		must: []string{"delete/fresh"},
		may:  []string{"*"},
	},
	"delete keeps the stale": {
		bugs: cacheBugs{deleteKeepsStale: true},
		must: []string{"delete/stale", "delete/fresh"},
		may:  []string{"slots/*", "damaged/set"},
	},
	"delete of nothing fails": {
		bugs: cacheBugs{deleteAbsentIsError: true},
		must: []string{"delete/absent"},
		may:  []string{"slots/*"},
	},
	"delete leaves a mark": {
		bugs: cacheBugs{deleteLeavesMark: true},
		must: []string{"delete/add"},
	},

	"put stores always": {
		bugs: cacheBugs{putAlways: true},
		must: []string{"slots/deleted", "slots/overtaken", "slots/shared", "slots/one-winner", "slots/beside-stale"},
		may:  []string{"slots/*"},
	},
	"put in two steps": {
		bugs: cacheBugs{putInTwoSteps: true},
		must: []string{"slots/one-winner"},
	},
	"a version stores twice": {
		bugs: cacheBugs{versionsNeverEnd: true},
		must: []string{"slots/stored", "slots/shared"},
		may:  []string{"slots/*"},
	},
	"delete leaves the load": {
		bugs: cacheBugs{deleteOnly: true},
		must: []string{"slots/deleted", "slots/beside-stale"},
		may:  []string{"slots/overtaken", "slots/ahead"},
	},
	"set leaves the load": {
		bugs: cacheBugs{setKeepsLoad: true},
		must: []string{"slots/overtaken"},
		may:  []string{"slots/*"},
	},
	"look takes the load": {
		bugs: cacheBugs{lookTakes: true},
		must: []string{"slots/shared"},
		may:  []string{"slots/one-winner"},
	},
	"a load hides what is stale": {
		bugs: cacheBugs{loadHidesStale: true},
		must: []string{"slots/beside-stale"},
		may:  []string{"slots/ahead"},
	},
	"an outdated load deletes": {
		bugs: cacheBugs{outdatedDeletes: true},
		must: []string{"slots/unstored"},
	},
	"a load hides its value": {
		bugs: cacheBugs{loadHidesValue: true},
		must: []string{"slots/ahead"},
	},
	"a failure forever": {
		bugs: cacheBugs{failureForever: true},
		must: []string{"slots/failure"},
	},

	"an ended context is a miss": {
		bugs: cacheBugs{contextIsMiss: true},
		must: []string{"context/ended"},
		may:  []string{"fault/*"},
	},
	"an ended context is another error": {
		bugs: cacheBugs{contextIsOtherError: true},
		must: []string{"context/ended"},
		may:  []string{"fault/*"},
	},
	"damage is a miss": {
		bugs: cacheBugs{damagedIsMiss: true},
		must: []string{"damaged/get"},
	},
	"damage is a value": {
		bugs: cacheBugs{damagedIsValue: true},
		must: []string{"damaged/get"},
	},
	"damage is a timeout": {
		bugs: cacheBugs{damagedIsTimeout: true},
		must: []string{"damaged/get"},
	},
	"damage stays": {
		bugs: cacheBugs{damagedStays: true},
		must: []string{"damaged/set"},
	},
	"contexts are ignored": {
		bugs: cacheBugs{ignoresContext: true},
		must: []string{"fault/hangs"},
	},
	"a timeout of its own": {
		bugs: cacheBugs{hidesContextError: true},
		must: []string{"fault/hangs"},
	},
	"errors are misses": {
		bugs: cacheBugs{hidesErrors: true},
		must: []string{"fault/refused"},
		may:  []string{"fault/hangs"},
	},
	"it panics": {
		bugs: cacheBugs{doPanic: true},
		must: []string{"get/miss", "set/round-trip"},
		may:  []string{"*"},
	},
}
