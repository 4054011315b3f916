package conformance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"github.com/golockers/locker/conformance/internal/harness"
	"github.com/golockers/locker/conformance/internal/names"
)

func watchChecks() []harness.Check {
	list := []harness.Check{{
		Name:   "watch/no-missed-release",
		Rules:  []string{w2Live, w1Watch},
		Causes: "a Watch that returns before its subscription is live, or a wake-up that is sent before the key is free.",
		Run:    checkNoMissedRelease,
	}, {
		Name:  "watch/first-release",
		Rules: []string{w2Live},
		Alone: true,
		Causes: "a watch that begins one revision, or one position of a log, after the one at which it was called. Other " +
			"activity on the backend hides that; here there is none.",
		Run: checkFirstRelease,
	}, {
		Name:   "watch/wakes-all",
		Rules:  []string{w3WakesAll},
		Causes: "one channel for a key instead of one for each watcher, or a message that only one of them gets.",
		Run:    checkWakesAll,
	}, {
		Name:  "watch/handoff",
		Rules: []string{w3WakesAll},
		Needs: harness.NeedsWait,
		Causes: "a release that notifies only the head of the queue. Watchers that call Acquire, or that look at the " +
			"lock, hear nothing.",
		Run: checkWatchHandoff,
	}, {
		Name:  "watch/every-release",
		Rules: []string{w3WakesAll},
		Causes: "a subscription that ends with its first message; a wake-up only for releases by the Locker itself; a watcher " +
			"that is slow to read and blocks the others.",
		Run: checkEveryRelease,
	}, {
		Name:   "watch/only-its-key",
		Rules:  []string{w4Channel, "But a release does not wake the watchers of all other keys."},
		Causes: "one signal for all keys, or a pattern in place of a name.",
		Run:    checkOnlyItsKey,
	}, {
		Name:  "watch/channel",
		Rules: []string{w4Channel},
		Causes: "a channel without room, or with room for more than one; closing it when ctx ends, after which every receive " +
			"looks like a wake-up.",
		Run: checkWatchChannel,
	}, {
		Name:  "watch/any-key",
		Rules: []string{c12AnyName, w9Unsupported},
		Causes: "a name that is taken for a pattern (PSUBSCRIBE), a channel whose name is not exactly the lock's key, or a " +
			"limit on the names of channels.",
		Run: checkWatchAnyKey,
	}, {
		Name:  "watch/ends-with-context",
		Rules: []string{w8Ends, c9Before, c14NothingLeft},
		Causes: "a goroutine or a subscription for each watcher that does not end with its ctx, or a Watch that begins with a " +
			"ctx that has ended.",
		Run: checkWatchEnds,
	}}
	for i := range list {
		list[i].Needs |= harness.NeedsWatch
	}
	return list
}

// woken waits for a wake-up that is due.
func woken(e *harness.Env, ch <-chan struct{}, why string) {
	since := time.Now()
	wake(e, ch, func() time.Time { return since }, why)
}

// wake waits for a wake-up. Due returns when it was due, and the zero Time as long as it is not.
func wake(e *harness.Env, ch <-chan struct{}, due func() time.Time, why string) {
	if _, ok := harness.Receive(e, harness.Event, ch, due, "a wake-up: "+why); !ok {
		e.Fail("the channel of Watch is never closed", "it is closed")
	}
}

func drain(ch <-chan struct{}) {
	select {
	case <-ch:
	default:
	}
}

func checkNoMissedRelease(e *harness.Env) {
	e.Note("repeatedly, A holds a lock; B watches its key, calls Acquire, and after each refusal waits for the channel; " +
		"A releases the lock at some time meanwhile")
	var one atomic.Int64
	shared := e.Key()
	lane := func(key func() string) {
		e.Until(30, 3*time.Second, func() {
			key, t1, t2 := key(), harness.RandomToken(), harness.RandomToken()
			e.A.Must(e.A.Quietly("Acquire", key, t1, harness.Long), true, "the key is free")
			spread := time.Duration(1+one.Add(1)%5) * time.Millisecond
			var released atomic.Pointer[time.Time]
			due := func() (t time.Time) {
				if p := released.Load(); p != nil {
					t = *p
				}
				return t
			}
			e.Each(2, func(i int) {
				if i == 0 {
					e.Sleep(rand.N(spread))
					r := e.A.Must(e.A.Quietly("Release", key, t1, 0), true, "A holds the lock")
					released.Store(&r.End)
					return
				}
				ctx, cancel := context.WithCancel(e.Ctx)
				defer cancel()
				ch := e.B.Watches(ctx, key)
				for !e.B.Answers(e.B.Quietly("Acquire", key, t2, harness.Long)).OK {
					wake(e, ch, due, "B has watched the key, then called Acquire, which returned false, and A has released the lock "+
						"since")
				}
			})
			e.B.Must(e.B.Quietly("Release", key, t2, 0), true, "B holds the lock")
		})
	}
	const lanes = 4
	e.Each(lanes, func(i int) {
		if i == 0 {
			lane(func() string { return shared })
			return
		}
		lane(e.Key)
	})
}

// checkFirstRelease needs a backend on which nothing else happens between Watch and the release.
func checkFirstRelease(e *harness.Env) {
	e.Until(12, 3*time.Second, func() {
		key, token := e.Key(), e.Token()
		e.A.Takes(key, token, harness.Long, "the key is fresh")
		ctx, cancel := context.WithCancel(e.Ctx)
		defer cancel()
		ch := e.B.Watches(ctx, key)
		e.A.Releases(key, token, "A holds the lock")
		woken(e, ch, "A has released the lock; nothing else has happened on the backend since B's Watch returned")
	})
}

func checkWakesAll(e *harness.Env) {
	ctx, cancel := context.WithCancel(e.Ctx)
	defer cancel()
	key := e.Key()
	var chans []<-chan struct{}
	for _, c := range []*harness.Client{e.A, e.B, e.B, e.B, e.C} {
		chans = append(chans, c.Watches(ctx, key))
	}
	for range 3 {
		token := e.Token()
		e.A.Takes(key, token, harness.Long, "it is free")
		for _, ch := range chans {
			drain(ch)
		}
		e.A.Releases(key, token, "A holds the lock")
		for i, ch := range chans {
			woken(e, ch, fmt.Sprintf("A has released the lock, and this is watcher %d of its key", i+1))
		}
	}
	// A watcher that leaves does not take the others with it.
	leaving, leave := context.WithCancel(ctx)
	e.B.Watches(leaving, key)
	leave()
	for range 5 { // it leaves at some time meanwhile
		token := e.Token()
		e.C.Takes(key, token, harness.Long, "it is free")
		for _, ch := range chans {
			drain(ch)
		}
		e.C.Releases(key, token, "C holds the lock")
		for i, ch := range chans {
			woken(e, ch, fmt.Sprintf("C has released the lock, and this is watcher %d of its key; another watcher has left", i+1))
		}
		e.Sleep(3 * time.Millisecond)
	}
}

// checkWatchHandoff watches a lock that passes along a queue.
func checkWatchHandoff(e *harness.Env) {
	ctx, cancel := context.WithCancel(e.Ctx)
	defer cancel()
	key := e.Key()
	held := e.A.Takes(key, e.Token(), harness.Long, "the key is fresh")
	const waiters = 3
	served := make(chan harness.Call, waiters)
	for range waiters {
		token := e.Token()
		e.Go(func() { served <- e.B.DoContext(ctx, "Wait", key, token, harness.Long) })
	}
	e.Sleep(e.Standing()) // if a waiter has not joined by now, its turn is no handoff, and this shows less
	var chans []<-chan struct{}
	for _, c := range e.Clients() {
		chans = append(chans, c.Watches(ctx, key))
	}
	for range waiters {
		for _, ch := range chans {
			drain(ch)
		}
		released := held.Client.Releases(key, held.Token, "it holds the lock")
		for i, ch := range chans {
			woken(e, ch, fmt.Sprintf("%s has released the lock, which hands it to the head of the queue, and this is watcher %d of its key",
				held.Client.Name, i+1))
		}
		held = e.B.Must(e.Outcome(served, released.End, "the lock was released, and it waits"), true, "it is the head of the queue")
	}
	e.B.Releases(key, held.Token, "its Wait has returned")
}

func checkEveryRelease(e *harness.Env) {
	ctx, cancel := context.WithCancel(e.Ctx)
	defer cancel()
	key := e.Key()
	e.B.Watches(ctx, key) // this channel is never read
	ch := e.B.Watches(ctx, key)
	e.Note("the first of B's two channels is never read")
	e.Until(30, 2*time.Second, func() {
		for _, c := range e.Clients() {
			token := e.Token()
			c.Takes(key, token, harness.Long, "it is free")
			drain(ch)
			c.Releases(key, token, c.Name+" holds the lock")
			woken(e, ch, c.Name+" has released the lock")
		}
	})
}

func checkOnlyItsKey(e *harness.Env) {
	const others, rounds = 40, 10
	var rest []<-chan struct{}
	for i := range others {
		rest = append(rest, e.Clients()[i%3].WatchesQuietly(e.Ctx, e.Key()))
	}
	key := e.Key()
	mine := e.B.Watches(e.Ctx, key)
	e.Note("%d watchers of as many keys on A, B and C, and one of %s", others, e.Short(key))
	spurious := 0
	for range rounds {
		token := e.Token()
		e.A.Takes(key, token, harness.Long, "it is free")
		drain(mine)
		e.A.Releases(key, token, "A holds the lock")
		woken(e, mine, "A has released the lock")
		e.Sleep(5 * time.Millisecond) // by now a wake-up for all keys has reached most watchers
		for _, ch := range rest {
			spurious += len(ch)
			drain(ch)
		}
	}
	if spurious > others*rounds/4 {
		e.Fail(fmt.Sprintf("%d releases wake the watchers of %d other keys rarely or never", rounds, others),
			fmt.Sprintf("they were woken %d times", spurious))
	}
}

func checkWatchChannel(e *harness.Env) {
	ctx, cancel := context.WithCancel(e.Ctx)
	key := e.Key()
	ch, alone := e.B.Watches(ctx, key), e.C.Watches(ctx, e.Key())
	if cap(ch) != 1 {
		e.Fail("the channel has room for one wake-up", fmt.Sprintf("it has room for %d", cap(ch)))
	}
	for range 5 {
		token := e.Token()
		e.A.Takes(key, token, harness.Long, "it is free")
		e.A.Releases(key, token, "A holds the lock")
	}
	woken(e, ch, "A has released the lock five times")
	e.Note("the context of both watchers is canceled")
	cancel()
	for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); e.Sleep(10 * time.Millisecond) {
		for _, ch := range []<-chan struct{}{ch, alone} {
			select {
			case _, ok := <-ch:
				if !ok {
					e.Fail("the channel of Watch is never closed, not even when ctx ends", "it is closed")
				}
			default:
			}
		}
	}
}

func checkWatchAnyKey(e *harness.Env) {
	base := e.Key()
	names := []string{base + "*", base + "?", base + "[a-z]", `\` + base, base + "\x00z", base + " z", base + "\r\nz", base + "{", "{" + base + "}",
		base + "}{", base + "\xff", base + "日本", base + strings.Repeat("n", 251-len(base)), base + strings.Repeat("n", names.Limit-len(base))}
	e.Spread(len(names), func(i int) {
		key, token := names[i], e.Token()
		ctx, cancel := context.WithCancel(e.Ctx)
		defer cancel()
		r := e.B.WatchContext(ctx, key)
		if errors.Is(r.Err, errors.ErrUnsupported) {
			return
		}
		if r.Err != nil {
			e.Fail(fmt.Sprintf("B.Watch(%s) = a channel, nil, or an error that wraps errors.ErrUnsupported", e.Short(key)), r.Err.Error())
		}
		ch := r.Wakes
		e.A.Takes(key, token, harness.Long, "the key is fresh")
		drain(ch)
		e.A.Releases(key, token, "A holds the lock")
		woken(e, ch, fmt.Sprintf("A has released the lock %s, which B watches", e.Short(key)))
	})
}

func checkWatchEnds(e *harness.Env) {
	for how, ctx := range doneContexts(e.Ctx) {
		e.Ended(ctx, e.B.WatchContext(ctx, e.Key()), "its context was "+how+" before the call")
	}
	// A Locker may keep a connection for the next watcher, but not one for each.
	const watchers, few = 150, 60
	ctx, cancel := context.WithCancel(e.Ctx)
	shared := e.Key()
	e.Note("%d watchers on B, half of them of one key; then their context is canceled", watchers)
	e.Spread(watchers, func(i int) {
		key := shared
		if i%2 == 0 {
			key = e.Key()
		}
		e.B.WatchesQuietly(ctx, key)
	})
	cancel()
	e.Settles(few)
}
