package harness

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/golockers/locker"
)

// Client is a Locker with a name. Each of its methods makes one call and adds it to the history.
// Those that are verbs in the third person also check the answer, and end the check if it is wrong.
type Client struct {
	Name   string
	Locker locker.Locker
	Env    *Env
	shared bool // A, B or C: the budget bounds its requests
}

// Call is one operation of a client, and what it returned.
type Call struct {
	Client     *Client
	Op         string        // a method of Locker or of one of the optional interfaces, or Break
	Key, Token string        // Key is the prefix of a List
	TTL        time.Duration // 0 for operations that ask for none
	Start, End time.Time     // just before and just after it
	OK         bool          // of operations that do not return one: that Err is nil
	Deadline   time.Time     // of a Wait
	Fence      uint64        // of a Fence
	Wakes      <-chan struct{}
	Info       locker.Info // of an Inspect and a Break
	Listed     []Entry     // of a List
	Err        error
	Early      bool // Err is a context's, but the call's own context had not ended
	Quiet      bool // not in the history
	Poll       bool // one of several until the answer is another
}

// Until is the moment before which no other token may get the lock that c took.
func (c Call) Until() time.Time { return c.Start.Add(c.TTL) }

// Over reports whether ctx had ended, or was past its deadline, when c returned.
func (c Call) Over(ctx context.Context) bool {
	if deadline, ok := ctx.Deadline(); ok && !c.End.Before(deadline) {
		<-ctx.Done() // a client that keeps the deadline itself may return before ctx's own timer fires
	}
	return ctx.Err() != nil
}

// Result returns what the method returned, as Go would print it.
func (c Call) Result() string {
	err := "nil"
	if c.Err != nil {
		err = fmt.Sprintf("%q", c.Err.Error())
	}
	switch {
	case c.Op == "Wait" && c.OK:
		return fmt.Sprintf("a deadline %.3fs after its start, nil", c.Deadline.Sub(c.Start).Seconds())
	case c.Op == "Wait":
		return "no deadline, " + err
	case c.Op == "Watch" && c.OK:
		return "a channel, nil"
	case c.Op == "Watch":
		return "no channel, " + err
	case c.Op == "Fence":
		return fmt.Sprintf("%d, %v, %s", c.Fence, c.OK, err)
	case c.Op == "Inspect", c.Op == "Break":
		return describe(c.Info) + ", " + err
	case c.Op == "List":
		return Plural(len(c.Listed), "lock") + ", " + err
	}
	return fmt.Sprintf("%v, %s", c.OK, err)
}

// Causes returns the common causes of an error where none is expected.
func (c Call) Causes() string {
	if c.End.Sub(c.Start) >= OpTimeout {
		return HungCauses
	}
	if c.Early {
		return endedCauses
	}
	return errorCauses + " This check is for: " + c.Client.Env.Check.Causes
}

// Do makes one call, with a timeout in case the Locker hangs.
func (c *Client) Do(op, key, token string, ttl time.Duration) Call {
	ctx, cancel := context.WithTimeout(c.Env.Ctx, OpTimeout)
	defer cancel()
	return c.DoContext(ctx, op, key, token, ttl)
}

// DoContext makes one call.
func (c *Client) DoContext(ctx context.Context, op, key, token string, ttl time.Duration) Call {
	return c.record(ctx, Call{Client: c, Op: op, Key: key, Token: token, TTL: ttl})
}

// poll makes a call that will be repeated until the answer is another.
func (c *Client) poll(op, key, token string, ttl time.Duration) Call {
	ctx, cancel := context.WithTimeout(c.Env.Ctx, OpTimeout)
	defer cancel()
	return c.record(ctx, Call{Client: c, Op: op, Key: key, Token: token, TTL: ttl, Poll: true})
}

func (c *Client) record(ctx context.Context, r Call) Call {
	step := c.Env.history.begin(r)
	r = c.send(ctx, r)
	c.Env.history.finish(step, r)
	return r
}

// Quietly is Do for checks that make the same calls very often: the call is added to the history
// only if the check fails because of it.
func (c *Client) Quietly(op, key, token string, ttl time.Duration) Call {
	ctx, cancel := context.WithTimeout(c.Env.Ctx, OpTimeout)
	defer cancel()
	return c.QuietlyContext(ctx, op, key, token, ttl)
}

// QuietlyContext is Quietly under ctx.
func (c *Client) QuietlyContext(ctx context.Context, op, key, token string, ttl time.Duration) Call {
	return c.send(ctx, Call{Client: c, Op: op, Key: key, Token: token, TTL: ttl, Quiet: true})
}

// send makes the call that r describes. Every call of every check passes through it.
func (c *Client) send(ctx context.Context, r Call) Call {
	if c.shared && r.Op != "Wait" {
		c.Env.suite.Budget.request(func() { r = c.call(ctx, r) })
	} else {
		r = c.call(ctx, r)
	}
	isCtxError := errors.Is(r.Err, context.DeadlineExceeded) || errors.Is(r.Err, context.Canceled)
	r.Early = isCtxError && !r.Over(ctx)
	c.Env.remember(r)
	if tamper := c.Env.suite.Tamper; tamper != nil {
		r = tamper(ctx, r)
	}
	return r
}

func (c *Client) call(ctx context.Context, r Call) Call {
	r.Start = time.Now()
	if moment := c.Env.suite.Moment; moment > 0 {
		time.Sleep(moment)
	}
	switch r.Op {
	case "Acquire":
		r.OK, r.Err = c.Locker.Acquire(ctx, r.Key, r.Token, r.TTL)
	case "Extend":
		r.OK, r.Err = c.Locker.Extend(ctx, r.Key, r.Token, r.TTL)
	case "Release":
		r.OK, r.Err = c.Locker.Release(ctx, r.Key, r.Token)
	case "Wait":
		r.Deadline, r.Err = c.Locker.(locker.Waiter).Wait(ctx, r.Key, r.Token, r.TTL)
		r.OK = r.Err == nil
	case "Fence":
		r.Fence, r.OK, r.Err = c.Locker.(locker.Fencer).Fence(ctx, r.Key, r.Token)
	case "Watch":
		r.Wakes, r.Err = c.Locker.(locker.Watcher).Watch(ctx, r.Key)
		r.OK = r.Err == nil
	case "Inspect":
		r.Info, r.Err = c.Locker.(locker.Inspector).Inspect(ctx, r.Key)
		r.OK = r.Err == nil
	case "Break":
		r.Info, r.Err = locker.Break(ctx, c.Locker, r.Key)
		r.OK = r.Err == nil
	case "List":
		r.Listed, r.Err = collect(c.Locker.(locker.Lister).List(ctx, r.Key))
		r.OK = r.Err == nil
	default:
		panic("conformance: no operation " + r.Op)
	}
	r.End = time.Now()
	return r
}

// Acquire calls Acquire, whatever the answer.
func (c *Client) Acquire(key, token string, ttl time.Duration) Call {
	return c.Do("Acquire", key, token, ttl)
}

// Extend calls Extend, whatever the answer.
func (c *Client) Extend(key, token string, ttl time.Duration) Call {
	return c.Do("Extend", key, token, ttl)
}

// Release calls Release, whatever the answer.
func (c *Client) Release(key, token string) Call { return c.Do("Release", key, token, 0) }

// WatchContext calls Watch, whatever the answer.
func (c *Client) WatchContext(ctx context.Context, key string) Call {
	return c.DoContext(ctx, "Watch", key, "", 0)
}

// Waits starts a Wait in the background and returns where its outcome will be sent.
func (c *Client) Waits(ctx context.Context, key, token string, ttl time.Duration) <-chan Call {
	done := make(chan Call, 1)
	c.Env.Go(func() { done <- c.DoContext(ctx, "Wait", key, token, ttl) })
	return done
}

// Watches watches key until ctx ends.
func (c *Client) Watches(ctx context.Context, key string) <-chan struct{} {
	return c.subscribed(c.WatchContext(ctx, key))
}

// WatchesQuietly is Watches without a line in the history.
func (c *Client) WatchesQuietly(ctx context.Context, key string) <-chan struct{} {
	return c.subscribed(c.QuietlyContext(ctx, "Watch", key, "", 0))
}

func (c *Client) subscribed(r Call) <-chan struct{} {
	if r.Err != nil || r.Wakes == nil {
		c.Env.Show(r)
		c.Env.Fail(c.Name+".Watch = a channel, nil", fmt.Sprintf("%s.Watch = %v, %v", c.Name, r.Wakes, r.Err))
	}
	return r.Wakes
}

// Long is the ttl of a lock that does not expire while a check runs, however slow the machine.
const Long = 10 * time.Minute

// BlockedTTL is the ttl of an attempt that must be refused.
const BlockedTTL = 40 * time.Second

// Takes acquires a lock that must be free, or held by token itself.
func (c *Client) Takes(key, token string, ttl time.Duration, why string) Call {
	c.Env.TB.Helper()
	return c.Must(c.Acquire(key, token, ttl), true, why)
}

// Blocked tries to acquire, with a fresh token, a lock that must be held.
func (c *Client) Blocked(key, why string) Call {
	c.Env.TB.Helper()
	return c.BlockedAs(key, c.Env.Token(), why)
}

// BlockedAs is Blocked with a given token.
func (c *Client) BlockedAs(key, token, why string) Call {
	c.Env.TB.Helper()
	return c.Must(c.Acquire(key, token, BlockedTTL), false, why)
}

// Extends extends a lock that token must hold.
func (c *Client) Extends(key, token string, ttl time.Duration, why string) Call {
	c.Env.TB.Helper()
	return c.Must(c.Extend(key, token, ttl), true, why)
}

// CannotExtend tries to extend a lock that token must not hold.
func (c *Client) CannotExtend(key, token string, ttl time.Duration, why string) Call {
	c.Env.TB.Helper()
	return c.Must(c.Extend(key, token, ttl), false, why)
}

// Releases releases a lock that token must hold.
func (c *Client) Releases(key, token, why string) Call {
	c.Env.TB.Helper()
	return c.Must(c.Release(key, token), true, why)
}

// CannotRelease tries to release a lock that token must not hold.
func (c *Client) CannotRelease(key, token, why string) Call {
	c.Env.TB.Helper()
	return c.Must(c.Release(key, token), false, why)
}

// Must ends the check unless r returned ok and no error. Why explains why it must.
func (c *Client) Must(r Call, ok bool, why string) Call {
	c.Env.TB.Helper()
	if r.Err != nil || r.OK != ok {
		c.Env.Show(r)
		want, got := fmt.Sprintf("%s.%s = %v, nil: %s", c.Name, r.Op, ok, why), fmt.Sprintf("%s.%s = %s", c.Name, r.Op, r.Result())
		if r.Err != nil {
			c.Env.failError(r, want, got)
		}
		c.Env.FailAbout(r.Key, want, got)
	}
	if r.Op == "Wait" && ok {
		c.plausible(r)
	}
	return r
}

// plausible ends the check unless the deadline of a Wait is about its ttl after a moment during the
// Wait. A Locker may deduct something for safety, and the backend may keep the lock a little
// longer.
func (c *Client) plausible(r Call) {
	c.Env.TB.Helper()
	if now := time.Now(); now != now.Round(0) && r.Deadline == r.Deadline.Round(0) { // a testing/synctest bubble has no such clock
		c.Env.FailAbout(r.Key, c.Name+".Wait returns a deadline on this process's monotonic clock, such as time.Now().Add(ttl)",
			"it has a reading of the wall clock alone: "+r.Deadline.String())
	}
	earliest, latest := r.Start.Add(r.TTL/2), r.End.Add(r.TTL+c.Env.Granularity()+Rounding.Time)
	if r.Deadline.Before(earliest) || r.Deadline.After(latest) {
		c.Env.Show(r)
		c.Env.FailAbout(r.Key, fmt.Sprintf("%s.Wait returns a deadline %v after the grant, which was while it waited, from %s to %s",
			c.Name, r.TTL, c.Env.At(r.Start), c.Env.At(r.End)), "it is at "+c.Env.At(r.Deadline))
	}
}

// Answers ends the check if r is an error.
func (c *Client) Answers(r Call) Call {
	c.Env.TB.Helper()
	if r.Err != nil {
		c.Env.Show(r)
		c.Env.failError(r, fmt.Sprintf("%s.%s = true or false, and no error on a backend that works", c.Name, r.Op),
			fmt.Sprintf("%s.%s = %s", c.Name, r.Op, r.Result()))
	}
	return r
}

// TakesOver polls until it has acquired a lock that held took: not before held's ttl has passed
// since held started, and no later than Slack after its ttl has passed since held returned.
func (c *Client) TakesOver(held Call, token string, ttl time.Duration) Call {
	c.Env.TB.Helper()
	return c.TakesWhen(held.Key, token, ttl, held.Until(), held.End.Add(held.TTL),
		fmt.Sprintf("%s.%s started at %s and asked for %v", held.Client.Name, held.Op, c.Env.At(held.Start), held.TTL))
}

// TakesWhen polls until it has acquired key: not before earliest, and no later than Slack after
// latest.
func (c *Client) TakesWhen(key, token string, ttl time.Duration, earliest, latest time.Time, why string) Call {
	c.Env.TB.Helper()
	return c.takesWithin(key, token, ttl, earliest, latest.Add(c.Env.Granularity()), why)
}

// TakesFree is TakesWhen for a lock that becomes free without an expiry.
func (c *Client) TakesFree(key, token string, ttl time.Duration, earliest, latest time.Time, why string) Call {
	c.Env.TB.Helper()
	return c.takesWithin(key, token, ttl, earliest, latest, why)
}

func (c *Client) takesWithin(key, token string, ttl time.Duration, earliest, latest time.Time, why string) Call {
	e := c.Env
	e.TB.Helper()
	for {
		r := c.poll("Acquire", key, token, ttl)
		late := r.Start.Sub(latest)
		switch {
		case r.Err != nil:
			c.Must(r, r.End.After(earliest), why)
		case r.OK && r.End.Before(earliest):
			e.FailAbout(key, fmt.Sprintf("no other token acquires %s before %s: %s", e.Short(key), e.At(earliest), why),
				fmt.Sprintf("%s.Acquire had it at %s, %v early", c.Name, e.At(r.End), earliest.Sub(r.End).Round(time.Microsecond)))
		case r.OK:
			e.Happened(Event, late, why+": it was taken over")
			return r
		default:
			e.Overdue(Event, late, e.Check.Causes, key, fmt.Sprintf("%s is free at %s, or at %s on a slow machine: %s", e.Short(key), e.At(latest),
				e.At(latest.Add(e.Patience())), why), fmt.Sprintf("%s.Acquire was still refused at %s", c.Name, e.At(r.Start)))
		}
		e.Sleep(PollRest(r, earliest))
	}
}

// Polls calls Acquire as one of several polls of a loop.
func (c *Client) Polls(key, token string, ttl time.Duration) Call {
	return c.poll("Acquire", key, token, ttl)
}

// PollRest is how long to sleep after poll r: longer the farther away moment is, before and after
// it, and the slower the backend.
func PollRest(r Call, moment time.Time) time.Duration {
	rest := time.Until(moment) / 40
	if rest < 0 {
		rest *= -8
	}
	return max(2*time.Millisecond, min(rest, 25*time.Millisecond), r.End.Sub(r.Start))
}
