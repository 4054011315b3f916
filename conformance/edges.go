package conformance

import (
	"context"
	"fmt"
	"time"

	"github.com/golockers/locker/conformance/internal/harness"
)

// These checks take every method through the same states and arguments: whatever its holder does with
// a lock in any order, a token with several locks, and what is left of a lock that has expired.

func edgeChecks() []harness.Check {
	return []harness.Check{{
		Name:  "sametoken/any-sequence",
		Rules: []string{c5SameToken, c6Replaces, c3NeverEarly},
		Causes: "an Acquire by the holder, or an Extend, that takes the longer or the shorter of two times, adds to what is left, " +
			"does nothing if the ttl is the same as before, or only so many times.",
		Run: func(e *harness.Env) { checkAnySequence(e, e.A) },
	}, {
		Name:   "sametoken/any-client",
		Rules:  []string{c5SameToken, c6Replaces, c3NeverEarly},
		Causes: "a client that keeps to itself when the lock ends.",
		Run:    func(e *harness.Env) { checkAnySequence(e, e.Clients()...) },
	}, {
		Name:   "sametoken/several-keys",
		Rules:  []string{c8Exact, c7Release, c6Extend},
		Causes: "a record of what a token holds that has one entry for a token: the last key replaces those before, or goes with them.",
		Run:    checkSeveralKeys,
	}, {
		Name:  "expiry/untouched",
		Rules: []string{c4Late, c6Extend, c7Release},
		Causes: "an expiry that counts only when another token looks, so that the last holder finds its lock as it was; a holder that " +
			"the Locker remembers.",
		Run: checkUntouched,
	}, {
		Name:  "watch/one-leaves",
		Rules: []string{w3WakesAll, w8Ends},
		Needs: harness.NeedsWatch,
		Causes: "a subscription that belongs to the first watcher of a key and ends with it; a list of watchers of fixed size; a " +
			"watcher that leaves and takes another's place in the list.",
		Run: checkOneLeaves,
	}}
}

// checkAnySequence lets the holder acquire and extend its lock in all orders with shorter, longer and
// equal ttls, from one client after another. The last call counts.
func checkAnySequence(e *harness.Env, clients ...*harness.Client) {
	const long = harness.Long
	brief, odd := 1040*time.Millisecond, 1400*time.Millisecond
	sequences := [][]time.Duration{
		{brief, brief}, {brief, brief, brief, brief, brief, brief, brief, brief, brief, brief, brief, brief, brief},
		{long, brief}, {brief, long}, {long, long, brief}, {long, brief, long}, {brief, long, brief}, {long, long, long, brief}, {odd, brief},
		{brief, odd}, {long, brief, brief}, {brief, brief, long}, {long, long - time.Millisecond, brief}, {long, brief, brief, long},
	}
	ways := [][]string{{"Acquire"}, {"Extend"}, {"Acquire", "Extend"}}
	e.Each(len(sequences)*len(ways), func(i int) {
		sequence, ops := sequences[i/len(ways)], ways[i%len(ways)]
		e.InTime("the holder keeps a lock of about a second", func(scale time.Duration) bool {
			stretched := func(ttl time.Duration) time.Duration {
				if ttl < time.Minute {
					return scale * ttl
				}
				return ttl
			}
			key, token := e.Key(), e.Token()
			held := e.A.Takes(key, token, stretched(sequence[0]), "the key is fresh")
			for n, ttl := range sequence[1:] {
				if n == len(sequence)-2 { // so that the last call makes a difference
					e.Sleep(300 * time.Millisecond)
				}
				c := clients[(n+1)%len(clients)]
				next := c.Do(ops[n%len(ops)], key, token, stretched(ttl))
				if next.Err == nil && !next.OK && !next.End.Before(held.Until()) {
					return false
				}
				held = c.Must(next, true, "its token holds the lock")
			}
			if held.TTL < long {
				e.B.TakesOver(held, e.Token(), time.Second)
				return true
			}
			e.Sleep(stretched(brief) + e.Granularity() + 300*time.Millisecond)
			e.B.Blocked(key, "its holder has asked for ten minutes since")
			e.A.Releases(key, token, "its token holds the lock")
			return true
		})
	})
}

func checkSeveralKeys(e *harness.Env) {
	token := e.Token()
	keys := []string{e.Key(), e.Key(), e.Key(), e.Key(), e.Key()}
	for _, key := range keys {
		e.A.Takes(key, token, harness.Long, "the key is fresh; a token may hold any number of locks")
	}
	stays := func(why string, held ...string) {
		for _, key := range held {
			e.C.Blocked(key, why)
			e.A.Extends(key, token, harness.Long, why)
			if e.Has(harness.NeedsInspect) {
				if r := e.A.Inspected(e.A.Inspect(key), "the backend works"); r.Info.Token != token {
					e.FailAbout(key, "A.Inspect reports A's token: "+why, "A.Inspect = "+r.Result())
				}
			}
		}
	}
	stays("A holds each of them", keys...)
	e.A.Releases(keys[1], token, "A holds it")
	stays("A has released another lock with this token", keys[0], keys[2], keys[3], keys[4])
	brief := e.A.Extends(keys[3], token, 400*time.Millisecond, "A holds it")
	next := e.B.TakesOver(brief, e.Token(), harness.Long)
	stays("another lock with this token has expired, and is B's now", keys[0], keys[2], keys[4])
	e.A.CannotRelease(keys[3], token, "it has expired, and B has taken it over")
	e.A.CannotExtend(keys[1], token, harness.Long, "A has released it")
	e.B.Extends(keys[3], next.Token, harness.Long, "B holds it")
	e.A.Releases(keys[4], token, "A holds it")
	stays("A has released another lock with this token", keys[0], keys[2])
	e.A.Takes(keys[1], token, harness.Long, "A has released it")
	for _, key := range []string{keys[2], keys[0], keys[1]} {
		e.A.Releases(key, token, "A holds it")
		e.A.CannotRelease(key, token, "A has released it")
	}
	for _, key := range []string{keys[0], keys[1], keys[2], keys[4]} {
		e.C.Takes(key, e.Token(), harness.Long, "it has been released")
	}
}

// checkUntouched lets locks expire that nobody looks at for some seconds. Then their holder makes
// each call.
func checkUntouched(e *harness.Env) {
	tries := []struct {
		op    string
		needs harness.Needs
		after func(held harness.Call)
	}{
		{"Acquire", 0, func(held harness.Call) {
			e.A.Takes(held.Key, held.Token, harness.Long, "it has expired")
			e.B.Blocked(held.Key, "A holds it again")
			e.A.Releases(held.Key, held.Token, "A holds it again")
		}},
		{"Extend", 0, func(held harness.Call) { e.A.CannotExtend(held.Key, held.Token, harness.Long, "it has expired") }},
		{"Release", 0, func(held harness.Call) { e.A.CannotRelease(held.Key, held.Token, "it has expired") }},
		{"Fence", harness.NeedsFence, func(held harness.Call) {
			e.A.Must(e.A.Do("Fence", held.Key, held.Token, 0), false, "the lock has expired")
		}},
		{"Inspect", harness.NeedsInspect, func(held harness.Call) { e.A.ShowsFree(held.Key, "it has expired") }},
		{"List", harness.NeedsList, func(held harness.Call) { exactly(e.A, held.Key, nil) }},
		{"Wait", harness.NeedsWait, func(held harness.Call) {
			e.A.Must(e.A.Do("Wait", held.Key, held.Token, harness.Long), true, "it has expired")
			e.B.Blocked(held.Key, "A's Wait has returned")
			e.A.Releases(held.Key, held.Token, "A's Wait has returned")
		}},
	}
	e.Each(2*len(tries), func(i int) {
		try := tries[i/2]
		if try.needs != 0 && !e.Has(try.needs) {
			return
		}
		held := e.A.Takes(e.Key(), e.Token(), 100*time.Millisecond, "the key is fresh")
		if i%2 == 1 { // one that was extended
			next := e.A.Extend(held.Key, held.Token, 300*time.Millisecond)
			if !next.OK && next.Err == nil && !next.End.Before(held.Until()) {
				return
			}
			held = e.A.Must(next, true, "A holds the lock")
		}
		e.SleepUntil(held.End.Add(held.TTL + e.Slack()))
		e.Note("nobody has looked at %s since it expired", e.Short(held.Key))
		try.after(held)
		e.B.Takes(held.Key, e.Token(), harness.Long, "it is free after A's "+try.op)
	})
}

func checkOneLeaves(e *harness.Env) {
	const many = 40
	for _, n := range []int{2, 3, many} {
		key := e.Key()
		var chans []<-chan struct{}
		var leave []context.CancelFunc
		for range n {
			ctx, cancel := context.WithCancel(e.Ctx)
			defer cancel()
			chans, leave = append(chans, e.B.WatchesQuietly(ctx, key)), append(leave, cancel)
		}
		e.Note("%d watchers of %s on B", n, e.Short(key))
		stay := func(from int, why string) {
			for range 3 {
				token := e.Token()
				e.A.Takes(key, token, harness.Long, "it is free")
				for _, ch := range chans {
					drain(ch)
				}
				e.A.Releases(key, token, "A holds the lock")
				for i, ch := range chans[from:] {
					woken(e, ch, fmt.Sprintf("A has released the lock, and this is watcher %d of its key on B; %s", from+i+1, why))
				}
			}
		}
		stay(0, "none has left")
		e.Note("the context of the first is canceled")
		leave[0]()
		stay(1, "the first has left")
		e.Sleep(20 * time.Millisecond)
		stay(1, "the first has left")
	}
}
