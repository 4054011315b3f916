package conformance

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/golockers/locker/conformance/internal/harness"
)

// These checks are about the order of a queue, and about the places in it.

// queue is a lock that A holds, and waiters on B that have called Wait one after the other.
type queue struct {
	e       *harness.Env
	key     string
	holder  harness.Call // A's
	tokens  []string
	results []<-chan harness.Call
	cancel  context.CancelFunc
}

// newQueue lets A take a fresh key and waiters on B join, one rest after the other, each with its
// ttl.
func newQueue(e *harness.Env, held, rest time.Duration, ttls ...time.Duration) *queue {
	q := &queue{e: e, key: e.Key()}
	q.holder = e.A.Takes(q.key, e.Token(), held, "the key is fresh")
	var ctx context.Context
	ctx, q.cancel = context.WithCancel(e.Ctx)
	for _, ttl := range ttls {
		token := e.Token()
		q.tokens, q.results = append(q.tokens, token), append(q.results, e.B.Waits(ctx, q.key, token, ttl))
		e.Sleep(rest)
	}
	return q
}

// first returns which of two waiters is served first, which is due.
func (q *queue) first(due time.Time, why string) (n int, w harness.Call) {
	type served struct {
		n int
		w harness.Call
	}
	ch, lost := make(chan served, 1), make(chan struct{})
	q.e.Go(func() {
		var s served
		select {
		case s.w = <-q.results[0]:
		case s.w = <-q.results[1]:
			s.n = 1
		case <-lost:
			return
		case <-q.e.Ctx.Done():
			return
		}
		ch <- s
	})
	defer close(lost)
	s, _ := harness.Receive(q.e, harness.Event, ch, func() time.Time { return due }, "Wait returns: "+why)
	q.results[s.n] = nil
	return s.n, s.w
}

// serve waits until every waiter was served, and returns their order. Each releases the lock when
// it has it, or vanishes.
func (q *queue) serve(vanish bool) string {
	type served struct {
		n        int
		deadline time.Time
	}
	var mu sync.Mutex
	var order []served
	var all sync.WaitGroup
	for i, result := range q.results {
		q.e.Goes(&all, func() {
			r := <-result
			mu.Lock()
			order = append(order, served{i + 1, r.Deadline})
			mu.Unlock()
			q.e.B.Must(r, true, "the waiters before it have released the lock, or their locks have expired")
			if !vanish {
				q.e.B.Releases(r.Key, r.Token, "its Wait has returned")
			}
		})
	}
	q.e.Finish(&all, q.cancel, "all waiters are served")
	if vanish { // on a busy machine a Wait may return after the next one
		slices.SortFunc(order, func(a, b served) int { return a.deadline.Compare(b.deadline) })
	}
	var names []string
	for _, s := range order {
		names = append(names, fmt.Sprint(s.n))
	}
	return strings.Join(names, " ")
}

// leave makes the remaining waiters leave the queue.
func (q *queue) leave() {
	q.cancel()
	for _, result := range q.results {
		if result == nil {
			continue
		}
		select {
		case r := <-result:
			if r.OK {
				q.e.B.Release(q.key, r.Token)
			}
		case <-q.e.Ctx.Done():
		}
	}
}

// inOrder is the verdict on waiters that called Wait one after the other, one rest apart.
func inOrder(want, got, what string, rest time.Duration) harness.Verdict {
	if got == want {
		return harness.Right()
	}
	return harness.Wrong(fmt.Sprintf("%s, waiters on one Locker are served in the order in which they joined: %s", what, want),
		fmt.Sprintf("they were served in the order %s; each called Wait %v after the one before", got, rest))
}

// fifoWaiters are so many that waiters who race are not served in order by chance, as six of them
// are once in 720 times.
const fifoWaiters = 12

// oneTo returns the numbers of n waiters in order.
func oneTo(n int) string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprint(i + 1)
	}
	return strings.Join(names, " ")
}

func checkWaitFIFO(e *harness.Env) {
	e.Patiently(func(rest time.Duration) harness.Verdict {
		var ttls []time.Duration
		for i := range fifoWaiters { // falling, or the shortest would be last by chance as well
			ttls = append(ttls, harness.Long-time.Duration(i)*time.Second)
		}
		q := newQueue(e, harness.Long, rest, ttls...)
		defer q.cancel()
		e.Sleep(e.Standing()) // a waiter that is served before the next one joins shows nothing
		e.A.Releases(q.key, q.holder.Token, "A holds the lock")
		return inOrder(oneTo(fifoWaiters), q.serve(false), "when the lock is released", rest)
	})
}

func checkWaitNoBarging(e *harness.Env) {
	const locks = 8
	e.Patiently(func(rest time.Duration) harness.Verdict {
		var barged atomic.Int64
		e.Each(locks, func(int) {
			if barges(e, rest) {
				barged.Add(1)
			}
		})
		if barged.Load() == 0 {
			return harness.Right()
		}
		return harness.Wrong("while a token waits in the queue on B, Acquire of another token on B is refused, even when A releases the lock",
			fmt.Sprintf("B.Acquire took %d of %d locks, %v after Wait was called", barged.Load(), locks, rest))
	})
}

// barges lets B wait in the queue and call Acquire with another token while A releases the lock. It
// reports whether the Acquire overtook the waiter.
func barges(e *harness.Env, rest time.Duration) bool {
	key, t1, t2, t3 := e.Key(), e.Token(), e.Token(), e.Token()
	e.A.Takes(key, t1, harness.Long, "the key is fresh")
	ctx, cancel := context.WithCancel(e.Ctx)
	defer cancel()
	waiter := e.B.Waits(ctx, key, t2, harness.Long)
	e.Sleep(rest)
	var released time.Time
	barged := harness.Call{}
	over := make(chan struct{})
	e.Each(2, func(i int) {
		if i == 0 {
			defer close(over)
			e.Sleep(5 * time.Millisecond)
			released = e.A.Releases(key, t1, "A holds the lock").Start
			e.Sleep(15 * time.Millisecond)
			return
		}
		for last := false; !barged.OK && !last; {
			select {
			case <-over:
				last = true
			default:
			}
			barged = e.B.Answers(e.B.Polls(key, t3, harness.Long))
			e.Sleep(100 * time.Microsecond)
		}
	})
	if barged.OK {
		e.B.Release(key, t3)
		cancel()
		if r := <-waiter; r.OK {
			e.B.Release(key, t2)
		}
		return true
	}
	e.B.Must(e.Outcome(waiter, released, "A has released the lock"), true, "A has released the lock, and B is the head of the queue")
	e.B.Releases(key, t2, "its Wait has returned")
	return false
}

func checkWaitKeepsPlace(e *harness.Env) {
	const waiters, want = 4, "1 2 3 4"
	const vanishing = 1500 * time.Millisecond // long enough to see which waiter had the lock first
	scenarios := []struct {
		name string
		ttl  time.Duration // of the waiters
		do   func(q *queue, scale time.Duration) (inTime bool)
	}{{
		"when the holder vanishes", harness.Long,
		func(q *queue, _ time.Duration) bool { return true },
	}, {
		"when the holder vanishes, and then each waiter that has the lock", vanishing,
		func(q *queue, _ time.Duration) bool { return true },
	}, {
		"when the holder has extended repeatedly, others were refused, and it releases the lock", harness.Long,
		func(q *queue, scale time.Duration) bool {
			for range 13 { // not a multiple of the waiters, which would hide a queue that rotates
				if r := e.A.Extend(q.key, q.holder.Token, scale*time.Second); r.Err != nil || !r.OK {
					e.A.Must(r, !r.End.Before(q.holder.Until()) && r.OK, "A holds the lock")
					return false
				} else {
					q.holder = r
				}
				if r := e.C.Acquire(q.key, e.Token(), harness.Long); r.OK || r.Err != nil {
					e.C.Must(r, r.OK && !r.End.Before(q.holder.Until()), "A holds the lock")
					e.C.Release(q.key, r.Token)
					return false
				}
				e.Sleep(80 * time.Millisecond)
			}
			r := e.A.Release(q.key, q.holder.Token)
			return e.A.Answers(r).OK
		},
	}}
	e.Each(len(scenarios), func(i int) {
		s := scenarios[i]
		e.Patiently(func(rest time.Duration) harness.Verdict {
			var got string
			e.InTime(fmt.Sprintf("%d waiters join while A holds the lock", waiters), func(scale time.Duration) bool {
				q := newQueue(e, scale*time.Second+waiters*rest, rest, slices.Repeat([]time.Duration{s.ttl}, waiters)...)
				defer q.cancel()
				e.Sleep(200 * time.Millisecond)
				if !time.Now().Before(q.holder.Until()) || !s.do(q, scale) {
					q.leave()
					return false
				}
				got = q.serve(s.ttl == vanishing)
				return true
			})
			return inOrder(want, got, s.name, rest)
		})
	})
}

// checkWaitHeadLeaves lets the head of the queue leave, and then the holder vanish, while no other
// call looks at the lock.
func checkWaitHeadLeaves(e *harness.Env) {
	behind := e.Clients()[1:] // where the next waiter stands
	e.Each(2*len(behind), func(i int) {
		c, late := behind[i/2], i%2 == 1
		var held harness.Call
		var next <-chan harness.Call
		e.InTime("the head of the queue leaves while A holds the lock", func(scale time.Duration) bool {
			rest := e.Standing()
			ttl := scale*time.Second + 3*rest
			held = e.A.Takes(e.Key(), e.Token(), ttl, "the key is fresh")
			leaving, leave := context.WithCancel(e.Ctx)
			how := "is canceled"
			if late {
				leaving, leave = context.WithTimeout(e.Ctx, 2*rest)
				how = "has passed its deadline"
			}
			defer leave()
			first := e.B.Waits(leaving, held.Key, e.Token(), harness.Long)
			e.Sleep(rest)
			staying, end := context.WithCancel(e.Ctx)
			next = c.Waits(staying, held.Key, e.Token(), harness.Long)
			e.Sleep(rest)
			if !late {
				leave()
			}
			e.Note("the ctx of the first waiter %s", how)
			r := e.Outcome(first, time.Now(), "its ctx has ended")
			if !r.OK && time.Now().Before(held.Until()) {
				e.TB.Cleanup(end)
				return true
			}
			end()
			for _, r := range []harness.Call{r, <-next} {
				if r.OK {
					r.Client.Release(r.Key, r.Token)
				}
			}
			return false
		})
		due := held.End.Add(held.TTL + e.Granularity())
		const why = "A's lock has expired, and the waiter before it has left"
		r := c.Must(e.Outcome(next, due, why), true, why)
		if r.End.Before(held.Until()) {
			e.Fail(fmt.Sprintf("not before %s, when A's lock expires", e.At(held.Until())),
				fmt.Sprintf("%s.Wait returned at %s", c.Name, e.At(r.End)))
		}
		c.Releases(r.Key, r.Token, "its Wait has returned")
	})
}

func checkWaitQueuedToken(e *harness.Env) {
	for _, rest := range []time.Duration{30 * time.Millisecond, e.Standing()} {
		q := newQueue(e, harness.Long, rest, harness.Long)
		token := q.tokens[0]
		const why = "its token waits in the queue, and A holds the lock"
		for _, c := range e.Clients() {
			c.CannotExtend(q.key, token, harness.Long, why)
			c.CannotRelease(q.key, token, why)
			if e.Has(harness.NeedsFence) {
				c.Must(c.Do("Fence", q.key, token, 0), false, why)
			}
		}
		e.A.Extends(q.key, q.holder.Token, harness.Long, "A holds the lock")
		released := e.A.Releases(q.key, q.holder.Token, "A holds the lock")
		e.B.Must(e.Outcome(q.results[0], released.End, "A has released the lock, and B is the head of the queue"), true, "B is the head of the queue")
		e.C.Blocked(q.key, "B holds the lock")
		e.B.Releases(q.key, token, "its Wait has returned")
		q.cancel()
	}
}
