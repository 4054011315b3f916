package conformance

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/golockers/locker/conformance/internal/harness"
)

// This check is about what the waiters of one client cost the backend.

func lineChecks() []harness.Check {
	return []harness.Check{{
		Name:  "fault/line-cost",
		Rules: []string{q1FIFO, q9Leave},
		Needs: harness.NeedsWait,
		Causes: "a place in the backend's queue, or a loop of looks, for each waiter instead of one for all waiters of the " +
			"Locker; a waiter that asks the backend for something when it leaves, although it had no place.",
		Run: checkLineCost,
	}}
}

const (
	lineWaiters = 1000
	// lineRequests is how many requests a thousand waiters may make beside those of a single one.
	lineRequests = 50
)

// checkLineCost compares what D asks for while one of its waiters waits with what it asks for while a
// thousand do, and while those leave. A Wait may poll, and its first request may be anything.
func checkLineCost(e *harness.Env) {
	f := newFaulty(e)
	key := e.Key()
	a := e.A.Takes(key, e.Token(), harness.Long, "the key is fresh")
	f.joinsQueue(f.Waits(e.Ctx, key, e.Token(), harness.Long))
	requests := func(what func()) (n int, took time.Duration) {
		before, begun := f.requests(), time.Now()
		what()
		return f.requests() - before, time.Since(begun)
	}
	const window = time.Second
	alone, took := requests(func() { e.Sleep(window) })
	rate := float64(alone) / took.Seconds()
	ctx, cancel := context.WithCancel(e.Ctx)
	defer cancel()
	var all sync.WaitGroup
	costs := func(why string, what func()) {
		n, took := requests(what)
		if most := lineRequests + int(2*rate*took.Seconds()); n > most {
			e.Fail(fmt.Sprintf("%s costs at most %s in %v: one place is enough for them all", why, harness.Plural(most, "request"),
				took.Round(time.Millisecond)), fmt.Sprintf("D has made %d; with one waiter it made %s in %v", n, harness.Plural(alone, "request"), window))
		}
	}
	e.Note("%d more waiters of D wait for the lock", lineWaiters)
	costs(fmt.Sprintf("that %d more wait", lineWaiters), func() {
		for range lineWaiters {
			e.Goes(&all, func() { f.QuietlyContext(ctx, "Wait", key, harness.RandomToken(), harness.Long) })
		}
		e.Sleep(window)
	})
	e.Note("their contexts end")
	costs("that they leave", func() {
		cancel()
		e.Finish(&all, cancel, "the waiters of D return: their contexts have ended")
		e.Sleep(window)
	})
	e.A.Releases(key, a.Token, "A holds the lock")
}

// requests returns how many requests D has made.
func (f *faulty) requests() int {
	n, _ := f.p.Count()
	return n
}
