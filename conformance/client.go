package conformance

import (
	"context"
	"fmt"
	"time"

	"github.com/golockers/locker"
)

// call is one operation of a client: what was asked, when, and what came of it.
type call struct {
	client     *client
	op         string
	key, token string
	ttl        time.Duration // 0 for a Release
	start, end time.Time     // just before and just after it
	ok         bool          // a Wait has none: that it is no error
	deadline   time.Time     // of a Wait
	fence      uint64        // of a Fence
	err        error
	quiet      bool // not in the journal
}

// until is the moment before which no other token may get the lock that c took.
func (c call) until() time.Time { return c.start.Add(c.ttl) }

// result is how a reader of Go sees what came of it.
func (c call) result() string {
	err := "nil"
	if c.err != nil {
		err = fmt.Sprintf("%q", c.err.Error())
	}
	switch {
	case c.op == "Wait" && c.ok:
		return fmt.Sprintf("a deadline %.3fs after its start, nil", c.deadline.Sub(c.start).Seconds())
	case c.op == "Wait":
		return "no deadline, " + err
	case c.op == "Fence":
		return fmt.Sprintf("%d, %v, %s", c.fence, c.ok, err)
	}
	return fmt.Sprintf("%v, %s", c.ok, err)
}

// do does one operation, under a context that bounds it should the Locker hang.
func (c *client) do(op, key, token string, ttl time.Duration) call {
	ctx, cancel := context.WithTimeout(c.e.ctx, opTimeout)
	defer cancel()
	return c.doCtx(ctx, op, key, token, ttl)
}

// doCtx does one operation under ctx.
func (c *client) doCtx(ctx context.Context, op, key, token string, ttl time.Duration) call {
	r := call{client: c, op: op, key: key, token: token, ttl: ttl}
	step := c.e.journal.begin(r)
	r = c.send(ctx, r)
	r.quiet = false
	c.e.journal.finish(step, r)
	return r
}

// quietly is do without a line in the journal, unless it is what the check fails of: for checks that do the same
// thing very often.
func (c *client) quietly(op, key, token string, ttl time.Duration) call {
	ctx, cancel := context.WithTimeout(c.e.ctx, opTimeout)
	defer cancel()
	return c.send(ctx, call{client: c, op: op, key: key, token: token, ttl: ttl})
}

// send does the operation that r describes.
func (c *client) send(ctx context.Context, r call) call {
	r.start = time.Now()
	switch r.op {
	case "Acquire":
		r.ok, r.err = c.l.Acquire(ctx, r.key, r.token, r.ttl)
	case "Extend":
		r.ok, r.err = c.l.Extend(ctx, r.key, r.token, r.ttl)
	case "Release":
		r.ok, r.err = c.l.Release(ctx, r.key, r.token)
	case "Wait":
		r.deadline, r.err = c.l.(locker.Waiter).Wait(ctx, r.key, r.token, r.ttl)
		r.ok = r.err == nil
	case "Fence":
		r.fence, r.ok, r.err = c.l.(locker.Fencer).Fence(ctx, r.key, r.token)
	default:
		panic("conformance: no operation " + r.op)
	}
	r.end, r.quiet = time.Now(), true
	if c.shared && r.op != "Wait" {
		c.e.suite.lag.saw(r.end.Sub(r.start))
	}
	c.e.remember(r)
	return r
}

// acquire, extend and release do one operation, whatever may come of it.

func (c *client) acquire(key, token string, ttl time.Duration) call {
	return c.do("Acquire", key, token, ttl)
}

func (c *client) extend(key, token string, ttl time.Duration) call {
	return c.do("Extend", key, token, ttl)
}

func (c *client) release(key, token string) call { return c.do("Release", key, token, 0) }

// takes acquires a lock that must be free, or must be held by token itself.
func (c *client) takes(key, token string, ttl time.Duration, why string) call {
	c.e.tb.Helper()
	return c.must(c.acquire(key, token, ttl), true, why)
}

// blocked tries to acquire, by a fresh token, a lock that must be held.
func (c *client) blocked(key, why string) call {
	c.e.tb.Helper()
	return c.must(c.acquire(key, c.e.token(), blockedTTL), false, why)
}

// long is the ttl of a lock that does not expire while a check runs, however slow the machine.
const long = 10 * time.Minute

// blockedTTL is what an attempt that has to be refused asks for.
const blockedTTL = 40 * time.Second

// blockedAs is blocked by a token that is given.
func (c *client) blockedAs(key, token, why string) call {
	c.e.tb.Helper()
	return c.must(c.acquire(key, token, blockedTTL), false, why)
}

// extends extends a lock that token must hold.
func (c *client) extends(key, token string, ttl time.Duration, why string) call {
	c.e.tb.Helper()
	return c.must(c.extend(key, token, ttl), true, why)
}

// cannotExtend tries to extend a lock that token must not hold.
func (c *client) cannotExtend(key, token string, ttl time.Duration, why string) call {
	c.e.tb.Helper()
	return c.must(c.extend(key, token, ttl), false, why)
}

// releases releases a lock that token must hold.
func (c *client) releases(key, token, why string) call {
	c.e.tb.Helper()
	return c.must(c.release(key, token), true, why)
}

// cannotRelease tries to release a lock that token must not hold.
func (c *client) cannotRelease(key, token, why string) call {
	c.e.tb.Helper()
	return c.must(c.release(key, token), false, why)
}

// must ends the check when r is not what it must be. Why says what it must be so for.
func (c *client) must(r call, ok bool, why string) call {
	c.e.tb.Helper()
	if r.err != nil || r.ok != ok {
		c.e.journal.show(r)
		expected, happened := fmt.Sprintf("%s.%s = %v, nil: %s", c.name, r.op, ok, why), fmt.Sprintf("%s.%s = %s", c.name, r.op, r.result())
		if r.err != nil {
			c.e.failLate(r.causes(), r.key, expected, happened)
		}
		c.e.failAbout(r.key, expected, happened)
	}
	return r
}

// causes is what commonly makes r an error where it should be none.
func (r call) causes() string {
	if r.end.Sub(r.start) >= opTimeout {
		return hungCauses
	}
	return errorCauses + " What this check is for: " + r.client.e.check.causes
}

// answers ends the check when r is an error.
func (c *client) answers(r call) call {
	c.e.tb.Helper()
	if r.err != nil {
		c.e.journal.show(r)
		c.e.failLate(r.causes(), r.key, fmt.Sprintf("%s.%s = true or false, and no error on a backend that works", c.name, r.op),
			fmt.Sprintf("%s.%s = %s", c.name, r.op, r.result()))
	}
	return r
}

// takesOver tries to acquire a lock that held took, again and again, until it has it: never before held's
// ttl has passed since held started, and at last when it has passed since held returned, plus slack.
func (c *client) takesOver(held call, token string, ttl time.Duration) call {
	c.e.tb.Helper()
	return c.takesWhen(held.key, token, ttl, held.until(), held.end.Add(held.ttl),
		fmt.Sprintf("%s.%s started at %s and asked for %v", held.client.name, held.op, c.e.journal.at(held.start), held.ttl))
}

// takesWhen tries to acquire key until it has it: never before earliest, and at last at latest plus slack.
func (c *client) takesWhen(key, token string, ttl time.Duration, earliest, latest time.Time, why string) call {
	c.e.tb.Helper()
	return c.takesWithin(key, token, ttl, earliest, latest, c.e.slack, why)
}

// takesFree is takesWhen for a lock that becomes free without an expiry.
func (c *client) takesFree(key, token string, ttl time.Duration, earliest, latest time.Time, why string) call {
	c.e.tb.Helper()
	return c.takesWithin(key, token, ttl, earliest, latest, c.e.patience, why)
}

func (c *client) takesWithin(key, token string, ttl time.Duration, earliest, latest time.Time, slack func() time.Duration,
	why string) call {
	c.e.tb.Helper()
	for {
		r := c.acquire(key, token, ttl)
		switch {
		case r.err != nil:
			c.must(r, r.end.After(earliest), why)
		case r.ok && r.end.Before(earliest):
			c.e.failAbout(key, fmt.Sprintf("nobody else acquires %s before %s: %s", c.e.journal.short(key), c.e.journal.at(earliest), why),
				fmt.Sprintf("%s.Acquire had it at %s, %v early", c.name, c.e.journal.at(r.end), earliest.Sub(r.end).Round(time.Microsecond)))
		case r.ok:
			return r
		case r.start.After(latest.Add(slack())):
			c.e.failLate(c.e.check.causes, key, fmt.Sprintf("%s is free for others at %s, or with all patience at %s: %s", c.e.journal.short(key), c.e.journal.at(latest),
				c.e.journal.at(latest.Add(slack())), why),
				fmt.Sprintf("%s.Acquire was still refused at %s", c.name, c.e.journal.at(r.start)))
		}
		c.e.sleep(pollRest(r, earliest))
	}
}

// pollRest is how long a poll rests after r: longer far from the moment that matters, before and after it, and
// on a slow backend.
func pollRest(r call, moment time.Time) time.Duration {
	rest := time.Until(moment) / 40
	if rest < 0 {
		rest *= -8
	}
	return max(2*time.Millisecond, min(rest, 25*time.Millisecond), r.end.Sub(r.start))
}

// over says whether ctx had ended, or was past its deadline, when r returned.
func (r call) over(ctx context.Context) bool {
	if deadline, ok := ctx.Deadline(); ok && !r.end.Before(deadline) {
		<-ctx.Done() // a client that keeps the deadline itself may be before ctx's own timer
	}
	return ctx.Err() != nil
}

// watch watches key until ctx ends.
func (c *client) watch(ctx context.Context, key string) <-chan struct{} {
	ch, err := c.l.(locker.Watcher).Watch(ctx, key)
	if err != nil || ch == nil {
		c.e.fail(c.name+".Watch = a channel, nil", fmt.Sprintf("%s.Watch = %v, %v", c.name, ch, err))
	}
	return ch
}

// waits lets c wait in the background and returns where the outcome will be.
func (c *client) waits(ctx context.Context, key, token string, ttl time.Duration) <-chan call {
	done := make(chan call, 1)
	c.e.background.Go(func() {
		c.e.guard(func() { done <- c.doCtx(ctx, "Wait", key, token, ttl) })
	})
	return done
}
