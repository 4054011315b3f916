package conformance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance/internal/harness"
)

// These checks are about waiters that leave the queue because their contexts end.

func checkWaitCancel(e *harness.Env) {
	e.Surely(func(rest time.Duration) harness.Verdict {
		key, t1 := e.Key(), e.Token()
		e.A.Takes(key, t1, harness.Long, "the key is fresh")
		cancelled, cancel := context.WithCancel(e.Ctx)
		expired, cancel2 := context.WithTimeout(e.Ctx, rest)
		defer cancel2()
		w1, w2 := e.B.Waits(cancelled, key, e.Token(), harness.Long), e.C.Waits(expired, key, e.Token(), harness.Long)
		e.Sleep(rest)
		cancel()
		e.Note("the contexts of both waiters have ended")
		now := time.Now()
		r1, r2 := e.Outcome(w1, now, "its context was canceled"), e.Outcome(w2, now, "its context's deadline has passed")
		released := e.A.Releases(key, t1, "A holds the lock")
		e.B.TakesFree(key, e.Token(), harness.Long, released.Start, released.End, "A has released it, and both waiters have left the queue")
		for r, ctx := range map[*harness.Call]context.Context{&r1: cancelled, &r2: expired} {
			if r.OK || !r.Over(ctx) || !errors.Is(r.Err, ctx.Err()) || !errors.Is(r.Err, locker.ErrHeld) {
				return harness.Wrong(fmt.Sprintf("an error that wraps %q and locker.ErrHeld: the context has ended, and A holds the lock",
					fmt.Sprint(ctx.Err())), fmt.Sprintf("%s.Wait = %s", r.Client.Name, r.Result()))
			}
		}
		return harness.Right()
	})
}

// checkWaitCancelStress lets many waiters join and leave at random, and some stay until they are
// served.
func checkWaitCancelStress(e *harness.Env) {
	key := e.Key()
	const ttl = harness.Long // after a lost grant no waiter is served
	ctx, cancel := context.WithCancel(e.Ctx)
	defer cancel()
	e.Note("many waiters on A, B and C join and leave at random, and those that are served hold the lock for a moment")
	var inside, entered atomic.Int64
	serve := func(c *harness.Client, r harness.Call) {
		c.Must(r, true, "its Wait has returned")
		if n := inside.Add(1); n > 1 {
			e.Fail("one holder at a time", fmt.Sprintf("%d at the same time", n))
		}
		entered.Add(1)
		if rand.IntN(2) == 0 {
			e.Sleep(rand.N(time.Millisecond))
		}
		inside.Add(-1)
		c.Must(c.Quietly("Release", key, r.Token, 0), true, "its Wait has returned")
	}
	deadline := time.Now().Add(2500 * time.Millisecond)
	var all sync.WaitGroup
	for i := range 18 {
		c, patient := e.Clients()[i%3], i < 6
		e.Goes(&all, func() {
			for n := 0; n == 0 || n < 100 && time.Now().Before(deadline); n++ {
				mine, leave := ctx, context.CancelFunc(func() {})
				switch {
				case patient:
				case rand.IntN(2) == 0:
					mine, leave = context.WithTimeout(ctx, rand.N(12*time.Millisecond))
				default:
					mine, leave = context.WithCancel(ctx)
					time.AfterFunc(rand.N(12*time.Millisecond), leave)
				}
				r := c.QuietlyContext(mine, "Wait", key, harness.RandomToken(), ttl)
				if r.OK {
					serve(c, r)
				} else if ctx.Err() == nil && (!r.Over(mine) || !errors.Is(r.Err, mine.Err())) {
					leave()
					c.Must(r, true, "its context has not ended, or the error is another")
				} else if !errors.Is(r.Err, locker.ErrHeld) { // it may hold the lock
					c.Quietly("Release", key, r.Token, 0)
				}
				leave()
				if patient {
					e.Sleep(rand.N(2 * time.Millisecond))
				}
			}
		})
	}
	e.Finish(&all, cancel, "all 18 waiters on A, B and C return: 12 of them leave at random, and no grant is lost")
	e.Note("%d waiters were served", entered.Load())
	last, token := time.Now(), e.Token()
	e.C.TakesFree(key, token, ttl, last, last, "all waiters have left")
}

func checkWaitContext(e *harness.Env) {
	for how, ctx := range doneContexts(e.Ctx) {
		key := e.Key()
		why := "its context was " + how + " before the call"
		e.Ended(ctx, e.A.DoContext(ctx, "Wait", key, e.Token(), harness.Long), why)
		token := e.Token()
		e.B.Takes(key, token, harness.Long, "the key is fresh: A's Wait did nothing, since "+why)
		r := e.Ended(ctx, e.A.DoContext(ctx, "Wait", key, e.Token(), harness.Long), why)
		if errors.Is(r.Err, locker.ErrHeld) {
			e.Fail("an error without locker.ErrHeld: A's Wait has not looked at the lock, since "+why, "A.Wait = "+r.Result())
		}
		e.B.Releases(key, token, "B holds the lock")
		e.C.Takes(key, e.Token(), harness.Long, "B has released it: A's Wait did nothing, since "+why)
	}
	const waiters, few = 150, 60
	ctx, cancel := context.WithCancel(e.Ctx)
	defer cancel()
	var all sync.WaitGroup
	for i := range waiters {
		key := e.Key()
		if i%2 == 0 {
			e.A.Takes(key, e.Token(), harness.Long, "the key is fresh")
		}
		e.Goes(&all, func() { // half of them acquire a free lock
			e.B.QuietlyContext(ctx, "Wait", key, harness.RandomToken(), harness.Long)
		})
	}
	e.Sleep(100 * time.Millisecond)
	cancel()
	e.Finish(&all, cancel, "all waiters have left: their context has ended")
	e.Note("%d waiters on B, half of them in the queue; then their context is canceled", waiters)
	e.Settles(few)
}
