package conformance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance/internal/harness"
	"github.com/golockers/locker/conformance/internal/names"
)

func inspectChecks() []harness.Check {
	list := []harness.Check{{
		Name:   "inspect/holder",
		Rules:  []string{i1Reports, i3ChangesNothing},
		Direct: true,
		Causes: "an Info of an earlier holder, kept by the Locker; a TTL in another unit, rounded up, or of the acquisition " +
			"instead of what is left.",
		Run: checkInspectHolder,
	}, {
		Name:  "inspect/from-another-client",
		Rules: []string{i1Reports},
		Causes: "a Locker that reports the locks of its own process only; a token as it is stored, in some codec, and not as it " +
			"was given.",
		Run: checkInspectFromAnother,
	}, {
		Name:   "inspect/expiry",
		Rules:  []string{i1Reports, c3NeverEarly, c4Late},
		Causes: "reading the entry of a lock without its expiry, or comparing that with the clock of the client.",
		Run:    checkInspectExpiry,
	}, {
		Name:   "inspect/no-side-effects",
		Rules:  []string{i3ChangesNothing, c4Late},
		Causes: "an inspection by a call that touches the entry, such as GETEX, or by an Acquire and a Release.",
		Run:    checkInspectChangesNothing,
	}, {
		Name:   "inspect/any-name",
		Rules:  []string{i1Reports, c12AnyName, c8Exact},
		Causes: "a key that is mapped on its way to the backend and not looked up so; a token that is not decoded.",
		Run:    checkInspectAnyName,
	}, {
		Name:  "inspect/queue",
		Rules: []string{i1Reports, i3ChangesNothing, q6Queued},
		Needs: harness.NeedsWait,
		Causes: "the token at the head of the queue taken for the holder's; the holder counted as a waiter; waiters that have " +
			"left counted; an inspection that serves or reorders the queue. If the number is not known, it is -1.",
		Run: checkInspectQueue,
	}, {
		Name:  "inspect/break",
		Rules: []string{i1Reports, rRelease},
		Causes: "a token that Release does not accept from another client; a Release that frees only locks of its own " +
			"process.",
		Run: checkBreak,
	}, {
		Name:   "inspect/break-wakes",
		Rules:  []string{w3WakesAll, q3Handoff},
		Causes: "a Release of another process's token that skips what follows a release of its own: wake-ups and the queue.",
		Run:    checkBreakWakes,
	}, {
		Name:   "inspect/context",
		Rules:  []string{c9Before, i5Error},
		Causes: "a context that is not passed on; an Info that is filled in before the error is looked at.",
		Run:    checkInspectContext,
	}}
	for i := range list {
		list[i].Needs |= harness.NeedsInspect
	}
	return list
}

func checkInspectHolder(e *harness.Env) {
	key, t1, t2 := e.Key(), e.Token(), e.Token()
	e.A.ShowsFree(key, "the key is fresh")
	e.A.ShowsHolder(e.A.Takes(key, t1, harness.Long, "the key is fresh"), "A has just taken it")
	e.A.ShowsHolder(e.A.Extends(key, t1, 3*harness.Long, "A holds it"), "A has extended it")
	e.A.ShowsHolder(e.A.Extends(key, t1, harness.Long/2, "A holds it"), "A has extended it, to a shorter time")
	e.A.ShowsHolder(e.A.Takes(key, t1, harness.Long, "its token holds it"), "A has acquired it again")
	held := e.A.Extends(key, t1, harness.Long+time.Hour, "A holds it")
	e.A.CannotExtend(key, t2, time.Second, "another token holds it")
	e.A.BlockedAs(key, t2, "t1 holds it")
	e.A.ShowsHolder(held, "other tokens were refused")
	e.Sleep(50 * time.Millisecond)
	e.A.ShowsHolder(held, "time has passed")
	e.A.Releases(key, t1, "A holds it")
	e.A.ShowsFree(key, "A has released it")
	held = e.A.Takes(key, t2, harness.Long, "A has released it")
	e.A.ShowsHolder(held, "A has taken it with another token")
	e.A.Releases(key, t2, "A holds it")
	e.A.ShowsFree(key, "A has released it again")
}

func checkInspectFromAnother(e *harness.Env) {
	key, t1, t2 := e.Key(), e.Token(), e.Token()
	e.B.ShowsFree(key, "the key is fresh")
	held := e.A.Takes(key, t1, harness.Long, "the key is fresh")
	e.B.ShowsHolder(held, "A has just taken it")
	held = e.B.Extends(key, t1, 2*harness.Long, "t1 holds it, whichever client extends it")
	for _, c := range e.Clients() {
		c.ShowsHolder(held, "B has just extended it")
	}
	e.C.Releases(key, t1, "t1 holds it, whichever client releases it")
	held = e.B.Takes(key, t2, harness.Long, "C has released it")
	for _, c := range e.Clients() {
		c.ShowsHolder(held, "B has just taken it")
	}
	e.B.Releases(key, t2, "B holds it")
	for _, c := range e.Clients() {
		c.ShowsFree(key, "B has released it")
	}
}

// checkInspectExpiry lets a lock expire, and another token take it over.
func checkInspectExpiry(e *harness.Env) {
	for _, ttl := range []time.Duration{30 * time.Millisecond, 700 * time.Millisecond} {
		key, next := e.Key(), e.Token()
		held := e.A.Takes(key, e.Token(), ttl, "the key is fresh")
		latest := held.End.Add(ttl)
		for {
			r := e.A.Quietly("Inspect", key, "", 0)
			e.Uncontended(e.A.Inspected(r, "the backend works"), r.Info)
			if r.Info.Token == "" {
				if r.End.Before(held.Until()) {
					e.Show(r)
					e.FailAbout(key, "A.Inspect reports A's token until "+e.At(held.Until()), "it reports a free lock at "+e.At(r.End))
				}
				break
			}
			if r.End.Before(held.Until()) { // after that the backend may keep it for its Locker
				e.Agrees(r, r.Info, held, "A has taken it")
			}
			if late := r.Start.Sub(latest); late > e.Slack() {
				e.Show(r)
				e.Overdue(harness.Event, late-e.Granularity(), e.Check.Causes, key, fmt.Sprintf("A.Inspect reports a free lock at %s, or at %s "+
					"on a slow machine", e.At(latest), e.At(latest.Add(e.Slack()))), "A.Inspect = "+r.Result())
			}
			e.Sleep(harness.PollRest(r, held.Until()))
		}
		second := e.B.Takes(key, next, harness.Long, "A's lock has expired")
		e.B.ShowsHolder(second, "B has taken the lock over")
		e.B.Releases(key, next, "B holds it")
		e.A.ShowsFree(key, "B has released it")
	}
}

// checkInspectChangesNothing inspects a lock until it expires, and locks that are free.
func checkInspectChangesNothing(e *harness.Env) {
	key := e.Key()
	for _, c := range e.Clients() {
		c.ShowsFree(key, "the key is fresh")
	}
	held := e.A.Takes(key, e.Token(), time.Second, "the key is fresh: an inspection does not take it")
	e.Note("A, B and C inspect the lock many times until it expires")
	for time.Now().Before(held.Until()) {
		for _, c := range e.Clients() {
			r := c.Inspected(c.Quietly("Inspect", key, "", 0), "the backend works")
			if c == e.A && r.End.Before(held.Until()) {
				e.Agrees(r, r.Info, held, "A has taken it")
				e.Uncontended(r, r.Info)
			}
		}
		e.Sleep(20 * time.Millisecond)
	}
	taken := e.B.TakesOver(held, e.Token(), harness.Long)
	e.B.ShowsHolder(taken, "B has taken it")
	e.B.Extends(key, taken.Token, harness.Long, "B holds it")
	e.B.Releases(key, taken.Token, "B holds it")
	e.C.ShowsFree(key, "B has released it")
	e.C.Takes(key, e.Token(), harness.Long, "B has released it, and an inspection does not take it")
}

// oddNames returns names that backends, their clients and codecs treat in a special way.
func oddNames(base string) []string {
	return []string{
		base + " ", " " + base, base + "\n", base + "\x00", base + "\x00x", base + "\xff\xfe", base + "é", base + "{x}", base + "%41",
		base + "*", base + "?", base + "[a]", base + `\`, base + `\*`, base + "//", base + ":", base + "'", base + `"`, "token:" + base,
		"1:" + base, strings.Repeat("9", 20) + base, base + strings.Repeat("l", names.Limit-len(base)), base + strings.Repeat("l", 251-len(base)),
		base + strings.Repeat("\xfe", names.Limit-len(base)),
	}
}

func checkInspectAnyName(e *harness.Env) {
	keys, tokens := oddNames(e.Key()), oddNames(e.Token())
	tokens = append(tokens, "1700000000", "0", "-1", "\x00", "a", "nil", "{}")
	for i := range max(len(keys), len(tokens)) {
		key, token := keys[i%len(keys)], tokens[i%len(tokens)]
		held := e.A.Takes(key, token, harness.Long, "the key is fresh")
		e.A.ShowsHolder(held, "A has just taken it")
		e.A.Releases(key, token, "A holds it")
		e.A.ShowsFree(key, "A has released it")
	}
}

// checkInspectQueue inspects a lock with three waiters, one of which leaves.
func checkInspectQueue(e *harness.Env) {
	key := e.Key()
	held := e.A.Takes(key, e.Token(), harness.Long, "the key is fresh")
	ctx, leave := context.WithCancel(e.Ctx)
	defer leave()
	stay := make(chan harness.Call, 2)
	for _, c := range []*harness.Client{e.A, e.C} {
		e.Go(func() { stay <- c.DoContext(e.Ctx, "Wait", key, e.Token(), harness.Long) })
	}
	leaves := e.B.Waits(ctx, key, e.Token(), harness.Long)
	waiting(e.A, held, 3, "A and two others wait")
	e.Note("A inspects the lock many times")
	for range 30 {
		r := e.A.Quietly("Inspect", key, "", 0)
		e.Agrees(e.A.Inspected(r, "the backend works"), r.Info, held, "A holds it")
	}
	leave()
	e.Ended(ctx, e.Outcome(leaves, time.Now(), "its context was canceled"), "it was canceled")
	waiting(e.A, held, 2, "B's waiter has left")
	released := e.A.Releases(key, held.Token, "A holds it")
	for n := 1; n >= 0; n-- {
		w := e.Outcome(stay, released.End, "the lock has been released")
		w.Client.Must(w, true, "the lock has been released")
		waiting(w.Client, w, n, "one waiter after the other is served")
		released = w.Client.Releases(key, w.Token, "its Wait has returned")
	}
	e.A.ShowsFree(key, "all have released it")
}

// waiting inspects the lock that held took until it reports n waiters, and never more than three,
// or that their number is not known.
func waiting(c *harness.Client, held harness.Call, n int, why string) {
	reports(held, n, why, func() (harness.Call, locker.Info) {
		r := c.Inspected(c.Quietly("Inspect", held.Key, "", 0), "the backend works")
		return r, r.Info
	})
}

// reports is waiting with another way to look at the lock.
func reports(held harness.Call, n int, why string, look func() (harness.Call, locker.Info)) {
	e, begun := held.Client.Env, time.Now()
	for {
		r, info := look()
		e.Agrees(r, info, held, why)
		if info.Waiters == n || info.Waiters == -1 {
			e.Show(r)
			return
		}
		want := fmt.Sprintf("%s.%s reports %s, or -1 if the number is not known: %s", r.Client.Name, r.Op, harness.Plural(n, "waiter"), why)
		got := fmt.Sprintf("it reports %d", info.Waiters)
		if info.Waiters < -1 || info.Waiters > 3 {
			e.Show(r)
			e.FailAbout(held.Key, want, got)
		}
		e.Overdue(harness.Event, r.Start.Sub(begun), e.Check.Causes, held.Key, want, got)
		e.Sleep(5 * time.Millisecond)
	}
}

// breaks makes C break a lock that is held.
func breaks(e *harness.Env, key string) harness.Call {
	shown := e.C.Inspected(e.C.Inspect(key), "the backend works")
	broken := e.C.Must(e.C.Do("Break", key, "", 0), true, "the lock is held")
	was, now := shown.Info, broken.Info
	ran := was.TTL - now.TTL                    // meanwhile
	slip := harness.Slip.Time + e.Granularity() // a backend that counts seconds reports whole ones
	inTime := was.TTL < 0 && now.TTL < 0 || ran > -slip && ran < broken.End.Sub(shown.Start)+slip
	if now.Key != key || now.Token != was.Token || now.Waiters != was.Waiters || !inTime {
		e.FailAbout(key, "locker.Break on C = "+shown.Result(), "locker.Break on C = "+broken.Result())
	}
	return broken
}

func checkBreak(e *harness.Env) {
	key, token := e.Key(), e.Token()
	e.A.Takes(key, token, harness.Long, "the key is fresh")
	breaks(e, key)
	e.C.ShowsFree(key, "C has broken A's lock")
	e.A.CannotExtend(key, token, harness.Long, "C has broken A's lock")
	e.A.CannotRelease(key, token, "C has broken A's lock")
	b := e.B.Takes(key, e.Token(), harness.Long, "C has broken A's lock")
	e.A.CannotRelease(key, token, "B holds it")
	breaks(e, key)
	e.B.CannotExtend(key, b.Token, harness.Long, "C has broken B's lock")
	free := e.C.Do("Break", key, "", 0)
	if free.OK || !errors.Is(free.Err, locker.ErrNotHeld) || free.Info.Token != "" {
		e.FailAbout(key, "locker.Break on C returns locker.ErrNotHeld and no token: the lock is free", "locker.Break on C = "+free.Result())
	}
	e.A.Takes(key, token, harness.Long, "the lock is free")
}

// checkBreakWakes breaks a lock for which others wait.
func checkBreakWakes(e *harness.Env) {
	if !e.Has(harness.NeedsWait) && !e.Has(harness.NeedsWatch) {
		e.Skip("the Locker is neither a locker.Watcher nor a locker.Waiter")
	}
	key := e.Key()
	held := e.A.Takes(key, e.Token(), harness.Long, "the key is fresh")
	var wakes <-chan struct{}
	if e.Has(harness.NeedsWatch) {
		wakes = e.B.Watches(e.Ctx, key)
	}
	var served <-chan harness.Call
	if e.Has(harness.NeedsWait) {
		served = e.B.Waits(e.Ctx, key, e.Token(), harness.Long)
		waiting(e.A, held, 1, "B waits")
	}
	drain(wakes)
	broken := breaks(e, key)
	due := func() time.Time { return broken.End }
	if wakes != nil {
		if _, ok := harness.Receive(e, harness.Event, wakes, due, "the channel gets a value: C has broken A's lock"); !ok {
			e.Fail("the channel of Watch is never closed", "it is closed")
		}
	}
	if served != nil {
		w := e.B.Must(e.Outcome(served, broken.End, "C has broken A's lock"), true, "C has broken A's lock")
		e.B.ShowsHolder(w, "B's Wait has returned")
		e.A.CannotRelease(key, held.Token, "B holds it")
		e.B.Releases(key, w.Token, "B holds it")
	}
}

func checkInspectContext(e *harness.Env) {
	key, token := e.Key(), e.Token()
	held := e.A.Takes(key, token, harness.Long, "the key is fresh")
	for how, ctx := range doneContexts(e.Ctx) {
		why := "its context was " + how + " before the call"
		onlyKey(e, e.Ended(ctx, e.A.DoContext(ctx, "Inspect", key, "", 0), why))
	}
	ahead, cancel := context.WithTimeout(e.Ctx, time.Hour)
	defer cancel()
	r := e.A.DoContext(ahead, "Inspect", key, "", 0)
	e.Agrees(e.A.Inspected(r, "the context's deadline is an hour ahead"), r.Info, held, "A has just taken it")
	e.Uncontended(r, r.Info)
}

// onlyKey ends the check if an Inspect returned more than the key beside its error.
func onlyKey(e *harness.Env, r harness.Call) {
	if r.Err != nil && r.Info != (locker.Info{Key: r.Key}) {
		e.FailAbout(r.Key, fmt.Sprintf("%s.Inspect returns only the key beside an error", r.Client.Name),
			fmt.Sprintf("%s.Inspect = %+v, %q", r.Client.Name, r.Info, r.Err))
	}
}
