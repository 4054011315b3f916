package conformance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"github.com/golockers/locker"
)

const (
	ruleWatchLive = "Watch returns once the subscription is live, so subscribe, then try again misses no release."
	ruleWatchAll  = "Watch: every release wakes all of a Locker's watchers of that key."
	ruleWatchChan = "Watch: the channel has room for one wake-up and is never closed; wake-ups are hints: they coalesce " +
		"and may be spurious."
	ruleWatchEnds = "Watch ends with ctx, leaving nothing."
)

func watchChecks() []check {
	list := []check{{
		name: "watch/no-missed-release",
		rule: ruleWatchLive,
		causes: "a subscription that is still on its way when Watch returns, or a wake-up that is sent before the key " +
			"is free.",
		run: checkNoMissedRelease,
	}, {
		name:  "watch/first-release",
		rule:  ruleWatchLive,
		alone: true,
		causes: "a watch that begins one revision, or one position of a log, after the one at which it was called: what others do " +
			"on the backend meanwhile makes up for that, and here nobody else does anything.",
		run: checkFirstRelease,
	}, {
		name:   "watch/wakes-all",
		rule:   ruleWatchAll,
		causes: "one channel for a key in place of one for each watcher, or a message that only one of them gets.",
		run:    checkWakesAll,
	}, {
		name:  "watch/handed-over",
		rule:  ruleWatchAll + " Also a release that hands the lock to the next in line.",
		needs: needsWait,
		causes: "a release that announces the lock to the next in line alone; a watcher that tries by Acquire, or looks who has " +
			"it, hears nothing.",
		run: checkHandedOver,
	}, {
		name: "watch/every-release",
		rule: ruleWatchAll,
		causes: "a subscription that ends with its first message, a wake-up only for releases by the Locker itself, or " +
			"one watcher, slow to read, that holds up the others.",
		run: checkEveryRelease,
	}, {
		name:   "watch/only-its-key",
		rule:   "Watch: spurious wake-ups are bounded: a release wakes the watchers of its key, not those of all keys.",
		causes: "one signal for all keys, or a pattern where a name was meant.",
		run:    checkOnlyItsKey,
	}, {
		name:   "watch/channel",
		rule:   ruleWatchChan,
		causes: "a channel without room, or with room for more than one; closing it when ctx ends (a receive then says wake up forever).",
		run:    checkWatchChannel,
	}, {
		name: "watch/any-name",
		rule: ruleAnyName + " Where Watch cannot do a name, it is errors.ErrUnsupported.",
		causes: "a name that is taken for a pattern (PSUBSCRIBE), a channel whose name is not the lock's exact key, or a limit " +
			"on the names of channels.",
		run: checkWatchAnyName,
	}, {
		name: "watch/ends-with-context",
		rule: ruleWatchEnds + " " + ruleNothingLeft,
		causes: "a goroutine or a subscription for each watcher that does not end with its ctx, or a Watch that begins " +
			"under a ctx which has ended.",
		run: checkWatchEnds,
	}}
	for i := range list {
		list[i].needs |= needsWatch
	}
	return list
}

// woken waits for a wake-up that has to come.
func woken(e *env, ch <-chan struct{}, why string) {
	since := time.Now()
	wake(e, ch, func() time.Time { return since }, why)
}

// wake waits for a wake-up. Due says when it was due, and the zero Time as long as it is not.
func wake(e *env, ch <-chan struct{}, due func() time.Time, why string) {
	if _, ok := hears(e, ch, due, "a wake-up: "+why); !ok {
		e.fail("the channel of Watch is never closed", "it is closed")
	}
}

func drain(ch <-chan struct{}) {
	select {
	case <-ch:
	default:
	}
}

func checkNoMissedRelease(e *env) {
	e.note("again and again: A holds a lock; B watches its key, calls Acquire, and after each refusal waits for the channel; " +
		"A releases the lock at some time meanwhile")
	var one atomic.Int64
	shared := e.key()
	lane := func(key func() string) {
		e.until(30, 3*time.Second, func() {
			key, t1, t2 := key(), randomToken(), randomToken()
			e.A.must(e.A.quietly("Acquire", key, t1, long), true, "nobody else has the key")
			spread := time.Duration(1+one.Add(1)%5) * time.Millisecond
			var released atomic.Pointer[time.Time]
			due := func() (t time.Time) {
				if p := released.Load(); p != nil {
					t = *p
				}
				return t
			}
			e.each(2, func(i int) {
				if i == 0 {
					e.sleep(rand.N(spread))
					r := e.A.must(e.A.quietly("Release", key, t1, 0), true, "A holds the lock")
					released.Store(&r.end)
					return
				}
				ctx, cancel := context.WithCancel(e.ctx)
				defer cancel()
				ch := e.B.watch(ctx, key)
				for !e.B.answers(e.B.quietly("Acquire", key, t2, long)).ok {
					wake(e, ch, due, "B watches the key, then calls Acquire, which is false, then waits for the channel, and A has "+
						"released the lock at some time meanwhile")
				}
			})
			e.B.must(e.B.quietly("Release", key, t2, 0), true, "B holds the lock")
		})
	}
	const lanes = 4
	e.each(lanes, func(i int) {
		if i == 0 {
			lane(func() string { return shared })
			return
		}
		lane(e.key)
	})
}

// checkFirstRelease is for a backend on which nothing else happens: the release is the next thing.
func checkFirstRelease(e *env) {
	e.until(12, 3*time.Second, func() {
		key, token := e.key(), e.token()
		e.A.takes(key, token, long, "the key is fresh")
		ctx, cancel := context.WithCancel(e.ctx)
		defer cancel()
		e.note("B watches %s", e.short(key))
		ch := e.B.watch(ctx, key)
		e.A.releases(key, token, "A holds the lock")
		woken(e, ch, "A has released the lock, and nothing has happened on the backend since B's Watch returned")
	})
}

func checkWakesAll(e *env) {
	ctx, cancel := context.WithCancel(e.ctx)
	defer cancel()
	key := e.key()
	var chans []<-chan struct{}
	for _, c := range []*client{e.A, e.B, e.B, e.B, e.C} {
		chans = append(chans, c.watch(ctx, key))
	}
	e.note("one watcher on A, three on B, one on C, all of k1")
	for range 3 {
		token := e.token()
		e.A.takes(key, token, long, "it is free")
		for _, ch := range chans {
			drain(ch)
		}
		e.A.releases(key, token, "A holds the lock")
		for i, ch := range chans {
			woken(e, ch, fmt.Sprintf("A has released the lock, and this is watcher %d of it", i+1))
		}
	}
	// One that leaves does not take the others with it.
	leaving, leave := context.WithCancel(ctx)
	e.B.watch(leaving, key)
	leave()
	for range 5 { // at some time during which it is gone
		token := e.token()
		e.C.takes(key, token, long, "it is free")
		for _, ch := range chans {
			drain(ch)
		}
		e.C.releases(key, token, "C holds the lock")
		for i, ch := range chans {
			woken(e, ch, fmt.Sprintf("C has released the lock, and this is watcher %d of it; that another left does not matter", i+1))
		}
		e.sleep(3 * time.Millisecond)
	}
}

// checkHandedOver watches a lock that passes along a line.
func checkHandedOver(e *env) {
	ctx, cancel := context.WithCancel(e.ctx)
	defer cancel()
	key := e.key()
	held := e.A.takes(key, e.token(), long, "the key is fresh")
	const waiters = 3
	served := make(chan call, waiters)
	for range waiters {
		token := e.token()
		e.background.Go(func() { e.guard(func() { served <- e.B.doCtx(ctx, "Wait", key, token, long) }) })
		e.sleep(e.standing()) // each is in line before the next one comes
	}
	var chans []<-chan struct{}
	for _, c := range e.clients() {
		chans = append(chans, c.watch(ctx, key))
	}
	e.note("watchers of %s on A, B and C", e.short(key))
	for range waiters {
		for _, ch := range chans {
			drain(ch)
		}
		released := held.client.releases(key, held.token, "it holds the lock")
		for i, ch := range chans {
			woken(e, ch, fmt.Sprintf("%s has released the lock, which hands it to the next in line, and this is watcher %d of it",
				held.client.name, i+1))
		}
		held = e.B.must(e.outcome(served, released.end, "the lock was released, and it waits in line"), true, "it is the next in line")
	}
	e.B.releases(key, held.token, "its Wait has returned")
}

func checkEveryRelease(e *env) {
	ctx, cancel := context.WithCancel(e.ctx)
	defer cancel()
	key := e.key()
	e.B.watch(ctx, key) // nobody reads from this one
	ch := e.B.watch(ctx, key)
	e.note("two watchers on B, one of which is never read from")
	e.until(30, 2*time.Second, func() {
		for _, c := range e.clients() {
			token := e.token()
			c.takes(key, token, long, "it is free")
			drain(ch)
			c.releases(key, token, c.name+" holds the lock")
			woken(e, ch, c.name+" has released the lock")
		}
	})
}

func checkOnlyItsKey(e *env) {
	const others, rounds = 40, 10
	var rest []<-chan struct{}
	for i := range others {
		rest = append(rest, e.clients()[i%3].watch(e.ctx, e.key()))
	}
	key := e.key()
	mine := e.B.watch(e.ctx, key)
	e.note("%d watchers of as many keys on A, B and C, and one of %s", others, e.short(key))
	spurious := 0
	for range rounds {
		token := e.token()
		e.A.takes(key, token, long, "it is free")
		drain(mine)
		e.A.releases(key, token, "A holds the lock")
		woken(e, mine, "A has released the lock")
		e.sleep(5 * time.Millisecond) // what is for all has come to most by now
		for _, ch := range rest {
			spurious += len(ch)
			drain(ch)
		}
	}
	if spurious > others*rounds/4 {
		e.fail(fmt.Sprintf("of %d releases, the watchers of %d other keys notice nothing, or little", rounds, others),
			fmt.Sprintf("they were woken %d times", spurious))
	}
}

func checkWatchChannel(e *env) {
	ctx, cancel := context.WithCancel(e.ctx)
	key := e.key()
	ch, alone := e.B.watch(ctx, key), e.C.watch(ctx, e.key())
	e.note("a watcher of k1 on B, and one of another key on C")
	if cap(ch) != 1 {
		e.fail("the channel has room for one wake-up", fmt.Sprintf("it has room for %d", cap(ch)))
	}
	for range 5 {
		token := e.token()
		e.A.takes(key, token, long, "it is free")
		e.A.releases(key, token, "A holds the lock")
	}
	woken(e, ch, "A has released the lock five times")
	e.note("now the context of both watchers is cancelled")
	cancel()
	for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); e.sleep(10 * time.Millisecond) {
		for _, ch := range []<-chan struct{}{ch, alone} {
			select {
			case _, ok := <-ch:
				if !ok {
					e.fail("the channel of Watch is never closed, also when ctx ends", "it is closed")
				}
			default:
			}
		}
	}
}

func checkWatchAnyName(e *env) {
	base := e.key()
	names := []string{base + "*", base + "?", base + "[a-z]", `\` + base, base + "\x00z", base + " z", base + "\r\nz", base + "{", "{" + base + "}",
		base + "}{", base + "\xff", base + "日本", base + strings.Repeat("n", 251-len(base)), base + strings.Repeat("n", nameLimit-len(base))}
	e.spread(len(names), func(i int) {
		key, token := names[i], e.token()
		ctx, cancel := context.WithCancel(e.ctx)
		defer cancel()
		e.note("B.Watch of the name %s", e.short(key))
		ch, err := e.B.l.(locker.Watcher).Watch(ctx, key)
		if errors.Is(err, errors.ErrUnsupported) {
			return
		}
		if err != nil {
			e.fail(fmt.Sprintf("B.Watch of the name %s = a channel, or errors.ErrUnsupported", e.short(key)), err.Error())
		}
		e.A.takes(key, token, long, "the key is fresh")
		drain(ch)
		e.A.releases(key, token, "A holds the lock")
		woken(e, ch, fmt.Sprintf("A has released the lock named %s, which B watches", e.short(key)))
	})
}

func checkWatchEnds(e *env) {
	for how, ctx := range doneContexts(e.ctx) {
		e.note("B.Watch under a context that is %s", how)
		if ch, err := e.B.l.(locker.Watcher).Watch(ctx, e.key()); !errors.Is(err, ctx.Err()) {
			e.fail(fmt.Sprintf("B.Watch = nil, an error for which errors.Is(err, %q) holds: its context was %s before the call",
				ctx.Err().Error(), how), fmt.Sprintf("B.Watch = %v, %v", ch, err))
		}
	}
	// A Locker may keep a connection for a while for the next one; not one for each.
	const watchers, few = 150, 60
	ctx, cancel := context.WithCancel(e.ctx)
	shared := e.key()
	e.note("%d watchers on B, half of them of one key; then their context is cancelled", watchers)
	e.spread(watchers, func(i int) {
		key := shared
		if i%2 == 0 {
			key = e.key()
		}
		e.B.watch(ctx, key)
	})
	cancel()
	if n, stacks := e.settles(few, e.patience()+5*time.Second); n > few {
		e.fail(fmt.Sprintf("at most some goroutines are left, of connections and the like (%d)", few),
			fmt.Sprintf("%d goroutines are left that were started on the way:\n%s", n, stacks))
	}
}
