package conformance

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// In these checks the lock passes to waiters whose places in the queue, ttls or tokens might get mixed up.

// queue holds waiters on B that have joined one after the other.
type queue struct {
	e       *env
	key     string
	holder  call // A's
	tokens  []string
	results []chan call
	cancel  context.CancelFunc
}

// queues lets A take a fresh key and waiters on B join, one after the other, each with its ttl.
func newQueue(e *env, held time.Duration, rest time.Duration, ttls ...time.Duration) *queue {
	q := &queue{e: e, key: e.key()}
	q.holder = e.A.takes(q.key, e.token(), held, "the key is fresh")
	var ctx context.Context
	ctx, q.cancel = context.WithCancel(e.ctx)
	for _, ttl := range ttls {
		result, token := make(chan call, 1), e.token()
		e.background.Go(func() {
			e.guard(func() { result <- e.B.doCtx(ctx, "Wait", q.key, token, ttl) })
		})
		q.tokens, q.results = append(q.tokens, token), append(q.results, result)
		e.sleep(rest)
	}
	return q
}

// order sees every waiter served, and returns in which order: each releases the lock when it has it, or vanishes.
func (q *queue) order(vanish bool) string {
	type served struct {
		n        int
		deadline time.Time
	}
	var mu sync.Mutex
	var order []served
	var all sync.WaitGroup
	for i, result := range q.results {
		q.e.goes(&all, func() {
			r := <-result
			mu.Lock()
			order = append(order, served{i + 1, r.deadline})
			mu.Unlock()
			q.e.B.must(r, true, "those before it in the queue have released the lock, or their time is up")
			if !vanish {
				q.e.B.releases(r.key, r.token, "its Wait has returned")
			}
		})
	}
	q.e.finish(&all, q.cancel, "all waiters have their turn")
	if vanish { // those that had it one after the other need not have returned so, on a busy machine
		slices.SortFunc(order, func(a, b served) int { return a.deadline.Compare(b.deadline) })
	}
	var names []string
	for _, s := range order {
		names = append(names, fmt.Sprint(s.n))
	}
	return strings.Join(names, " ")
}

// leave ends the waiters: this try is not to be counted.
func (q *queue) leave() {
	q.cancel()
	for _, result := range q.results {
		if r := <-result; r.ok {
			q.e.B.release(q.key, r.token)
		}
	}
}

func checkWaitPlaceKept(e *env) {
	const waiters, want = 4, "1 2 3 4"
	same := func(ttl time.Duration) []time.Duration {
		ttls := make([]time.Duration, waiters)
		for i := range ttls {
			ttls[i] = ttl
		}
		return ttls
	}
	const vanishing = 1500 * time.Millisecond // long enough to tell who had the lock first
	scenarios := []struct {
		name string
		ttl  time.Duration // of the waiters
		do   func(q *queue, scale time.Duration) (inTime bool)
	}{{
		"the holder vanishes", long,
		func(q *queue, _ time.Duration) bool { return true },
	}, {
		"the holder vanishes, and each who has the lock after it", vanishing,
		func(q *queue, _ time.Duration) bool { return true },
	}, {
		"the holder extends again and again, others are refused, and then it releases", long,
		func(q *queue, scale time.Duration) bool {
			for range 13 { // not a multiple of the waiters: then a queue that goes round would be as it was
				if r := e.A.extend(q.key, q.holder.token, scale*time.Second); r.err != nil || !r.ok {
					e.A.must(r, !r.end.Before(q.holder.until()) && r.ok, "A holds the lock")
					return false
				} else {
					q.holder = r
				}
				if r := e.C.acquire(q.key, e.token(), long); r.ok || r.err != nil {
					e.C.must(r, r.ok && !r.end.Before(q.holder.until()), "A holds the lock")
					e.C.release(q.key, r.token)
					return false
				}
				e.sleep(80 * time.Millisecond)
			}
			r := e.A.release(q.key, q.holder.token)
			return e.A.answers(r).ok
		},
	}}
	e.each(len(scenarios), func(i int) {
		s := scenarios[i]
		e.patiently(func(rest time.Duration) (ok bool, expected, happened string) {
			var got string
			e.inTime(fmt.Sprintf("%d waiters join while A holds the lock", waiters), func(scale time.Duration) bool {
				held := scale*time.Second + waiters*rest
				q := newQueue(e, held, rest, same(s.ttl)...)
				defer q.cancel()
				e.sleep(200 * time.Millisecond)
				if !time.Now().Before(q.holder.until()) || !s.do(q, scale) {
					q.leave()
					return false
				}
				got = q.order(s.ttl == vanishing)
				return true
			})
			return got == want, fmt.Sprintf("%s: waiters that joined one after the other, on one Locker, have the lock in the order %s",
				s.name, want), fmt.Sprintf("it was %s (%v between one and the next)", got, rest)
		})
	})
}

// checkWaitFirstLeaves lets the first in line leave, and then the holder vanish, with nobody else to look at the lock.
func checkWaitFirstLeaves(e *env) {
	behind := e.clients()[1:] // where the one stands who is first then
	e.each(2*len(behind), func(i int) {
		c, late := behind[i/2], i%2 == 1
		var held call
		var next <-chan call
		e.inTime("the first in line leaves while A holds the lock", func(scale time.Duration) bool {
			rest := e.standing()
			ttl := scale*time.Second + 3*rest
			held = e.A.takes(e.key(), e.token(), ttl, "the key is fresh")
			leaving, leave := context.WithCancel(e.ctx)
			how := "is cancelled"
			if late {
				leaving, leave = context.WithTimeout(e.ctx, 2*rest)
				how = "has passed its deadline"
			}
			defer leave()
			first := e.B.waits(leaving, held.key, e.token(), long)
			e.sleep(rest) // it stands in line before the next one comes
			staying, end := context.WithCancel(e.ctx)
			next = c.waits(staying, held.key, e.token(), long)
			e.sleep(rest)
			if !late {
				leave()
			}
			e.note("the ctx of the first in line %s", how)
			r := e.outcome(first, time.Now(), "its ctx has ended")
			if !r.ok && time.Now().Before(held.until()) {
				e.tb.Cleanup(end)
				return true
			}
			end()
			for _, r := range []call{r, <-next} {
				if r.ok {
					r.client.release(r.key, r.token)
				}
			}
			return false
		})
		due := held.end.Add(held.ttl + e.granularity())
		r := c.must(e.outcome(next, due, "the holder's ttl has passed, and who was before it in line has left"), true,
			"the holder's ttl has passed, and who was before it in line has left")
		if r.end.Before(held.until()) {
			e.fail(fmt.Sprintf("not before %s, when A's time is up", e.at(held.until())),
				fmt.Sprintf("%s.Wait had it at %s", c.name, e.at(r.end)))
		}
		c.releases(r.key, r.token, "its Wait has returned")
	})
}

func checkWaitOwnTTL(e *env) {
	ttls := [][2]time.Duration{{900 * time.Millisecond, long}, {3 * time.Second, 600 * time.Millisecond}}
	e.each(len(ttls), func(i int) {
		first, second := ttls[i][0], ttls[i][1]
		q := newQueue(e, long, e.standing(), first, second)
		defer q.cancel()
		released := e.A.releases(q.key, q.holder.token, "A holds the lock")
		w := e.B.must(e.outcome(q.results[0], released.end, "A has released the lock, and it is the first in the queue"), true,
			"A has released the lock, and it is the first in the queue")
		if w.deadline.Before(released.start.Add(first / 2)) {
			e.fail(fmt.Sprintf("a deadline about %v after A's Release at %s: the first in the queue asked for that", first, e.at(released.start)),
				fmt.Sprintf("it is at %s", e.at(w.deadline)))
		}
		// It vanishes. C may have the lock next, or the second in the queue: not before its deadline, and soon after.
		why := fmt.Sprintf("the first in the queue asked for %v, and its Wait said that it holds the lock until %s", first, e.at(w.deadline))
		token := e.token()
		for {
			r := e.C.acquire(q.key, token, long)
			end := r.end
			select {
			case next := <-q.results[1]:
				e.B.must(next, true, "it is the next in the queue")
				r.ok, end = true, next.end
			default:
			}
			switch {
			case r.err != nil:
				e.C.must(r, true, why)
			case r.ok && end.Before(w.deadline):
				e.failAbout(q.key, "nobody else has the lock before: "+why, fmt.Sprintf("another had it at %s", e.at(end)))
			case r.ok:
				return
			case r.start.After(w.end.Add(first + e.slack())):
				e.failLate(e.check.causes, q.key, fmt.Sprintf("it is another's, with all patience, at %s: %s", e.at(w.end.Add(first+e.slack())), why),
					fmt.Sprintf("it was not at %s", e.at(r.start)))
			}
			e.sleep(pollRest(r, w.deadline))
		}
	})
}

func checkWaitTokenInLine(e *env) {
	e.surely(func(rest time.Duration) (bool, string, string) {
		q := newQueue(e, long, rest, long)
		defer q.cancel()
		token := q.tokens[0]
		const why = "its token waits in the queue, and A holds the lock"
		for _, c := range e.clients() {
			c.cannotExtend(q.key, token, long, why)
			c.cannotRelease(q.key, token, why)
			if e.has(needsFence) {
				c.must(c.do("Fence", q.key, token, 0), false, why)
			}
		}
		e.A.extends(q.key, q.holder.token, long, "A holds the lock")
		released := e.A.releases(q.key, q.holder.token, "A holds the lock")
		e.B.must(e.outcome(q.results[0], released.end, "A has released the lock, and it is next in the queue"), true, "it is next in the queue")
		e.C.blocked(q.key, "B holds the lock")
		e.B.releases(q.key, token, "its Wait has returned")
		return true, "", ""
	})
}
