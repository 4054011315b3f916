package conformance

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/golockers/locker/conformance/internal/faultproxy"
	"github.com/golockers/locker/conformance/internal/harness"
)

// counterFaultChecks are the checks in which the network fails. C is a process behind a proxy.
func counterFaultChecks() []counterCheck {
	addr := []counterNeed{needsCounterAddr}
	return []counterCheck{
		{
			name: "fault/paused", rule: counterArrives, needs: addr, run: checkCountPaused,
			cause: "looking for the count in one request and incrementing it in another, which creates it without an expiry",
		},
		{
			name: "fault/reply-lost", rule: counterTwice, needs: addr, run: checkCountReplyLost,
			cause: "an error that is dropped; a client that repeats what may have been done",
		},
		{
			name: "fault/replies-lost", rule: counterTwice, needs: addr, run: checkCountRepliesLost,
			cause: "a client that repeats requests several times; MaxRetries of go-redis is 3",
		},
		{
			name: "fault/hangs", rule: counterContext, needs: addr, run: checkCountHangs,
			cause: "a client that ignores contexts",
		},
		{
			name: "fault/refused", rule: counterDown, needs: addr, run: checkCountRefused,
			cause: "an error that is dropped",
		},
	}
}

// proxied returns C, whose backend is behind a proxy, once its connection is open.
func (e *counterEnv) proxied() (*counterClient, *faultproxy.Proxy) {
	if conn, err := net.DialTimeout("tcp", e.config.Addr, harness.OpTimeout); err != nil {
		e.failed("  CounterConfig.Addr: no server answers: " + err.Error())
	} else {
		conn.Close()
	}
	proxy := faultproxy.New(e.tb, e.config.Addr)
	c := e.client("C", proxy.Addr)
	e.warm(c)
	if _, connections := proxy.Count(); connections == 0 {
		e.failed("  CounterConfig.New does not use its addr")
	}
	return c, proxy
}

// warm makes calls, so that the next call needs as few requests as possible.
func (e *counterEnv) warm(c *counterClient) {
	key := e.key()
	for range 2 {
		c.counts(key, 1, longWindow)
	}
}

// C pauses before its first request, in another call before its second, and so on. Each pause lasts
// until the window has ended and everything that was counted in it may have expired.
func checkCountPaused(e *counterEnv) {
	c, proxy := e.proxied()
	for _, before := range []int64{1, 0} { // with and without an earlier count
		for _, windows := range []int{1, 2} {
			for step := 1; step <= maxSteps && e.paused(c, proxy, step, before, windows); step++ {
			}
		}
	}
	e.wantNoEternal()
}

// paused reports whether the call made that many requests.
func (e *counterEnv) paused(c *counterClient, proxy *faultproxy.Proxy, step int, before int64, windows int) bool {
	e.warm(c)
	per := e.stretched(500 * time.Millisecond)
	key := e.key()
	e.fresh(per)
	first := e.a.counts(key, before, per)
	fault := proxy.Arm(faultproxy.HoldRequest, step)
	done := make(chan countReply, 1)
	go func() { done <- c.tries(key, 1, per) }()
	var r countReply
	reached := false
	for !reached {
		select {
		case r = <-done:
			proxy.Disarm()
			r.plausible()
			return false
		default:
			reached = fault.Acted()
			time.Sleep(time.Millisecond)
		}
	}
	first.over()
	time.Sleep(time.Duration(windows-1) * per)
	select {
	case <-done: // C's client did not wait that long, and repeated its request
		fault.Release()
		return true
	default:
	}
	e.note("from here on C continues after a pause before its request %d", step)
	fault.Release()
	r = <-done
	now := e.a.counts(key, 0, per).isAfter(first, windows)
	previous := int64(0)
	if windows == 1 {
		previous = before
	}
	if r.err == nil {
		r.wants(1, previous)
		now.wants(1, previous)
	} else if now.counts.Current > 1 {
		e.fail(now, "0 or 1")
	}
	now.over()
	next := e.b.counts(key, 0, per).isAfter(first, windows+1).wants(0, now.counts.Current)
	next.over()
	e.a.counts(key, 0, per).isAfter(first, windows+2).wants(0, 0)
	return true
}

// The reply to one request of C is lost.
func checkCountReplyLost(e *counterEnv) {
	for _, kind := range []faultproxy.Kind{faultproxy.DropReply, faultproxy.HalfReply, faultproxy.GarbageReply} {
		for step := 1; step <= maxSteps; step++ {
			c, proxy := e.proxied()
			key := e.key()
			first := e.a.counts(key, 1, longWindow)
			fault := proxy.Arm(kind, step)
			r := c.tries(key, 1, longWindow)
			if !fault.Acted() {
				r.plausible()
				break
			}
			e.note("C's request %d %v", step, kind)
			e.wantAtMostTwice(r, e.a.counts(key, 0, longWindow).unbroken(first))
		}
	}
}

// wantAtMostTwice fails unless the count, which was 1, is one that r may have caused.
func (e *counterEnv) wantAtMostTwice(r, now countReply) {
	least := int64(1)
	if r.err == nil {
		least = 2
		if r.counts.Current != now.counts.Current {
			e.fail(r, fmt.Sprintf("%d, the count that there is", now.counts.Current))
		}
	}
	if now.counts.Current < least || now.counts.Current > 3 {
		e.fail(now, fmt.Sprintf("a count of %d to 3", least))
	}
}

// The replies to all requests of C that name the key are lost.
func checkCountRepliesLost(e *counterEnv) {
	c, proxy := e.proxied()
	key := e.key()
	first := e.a.counts(key, 1, longWindow)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	proxy.ArmEach(faultproxy.DropReply, []string{key}) // not of a handshake
	r := c.with(ctx).tries(key, 1, longWindow)
	proxy.Disarm()
	e.wantAtMostTwice(r, e.a.counts(key, 0, longWindow).unbroken(first))
}

func checkCountHangs(e *counterEnv) {
	c, proxy := e.proxied()
	proxy.Hang()
	e.note("from here on C's backend hangs")
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	r := c.with(ctx).tries(e.key(), 1, longWindow)
	if !errors.Is(r.err, context.DeadlineExceeded) {
		e.fail(r, "context.DeadlineExceeded")
	}
	e.recovers(c, proxy)
}

func checkCountRefused(e *counterEnv) {
	c, proxy := e.proxied()
	proxy.Refuse()
	e.note("from here on C's backend refuses connections")
	if r := c.tries(e.key(), 1, longWindow); r.err == nil {
		e.fail(r, "an error")
	}
	e.recovers(c, proxy)
}

// recovers requires that C works again once its backend does.
func (e *counterEnv) recovers(c *counterClient, proxy *faultproxy.Proxy) {
	proxy.Heal(e.tb)
	e.note("C's backend works again")
	for end := time.Now().Add(harness.Healing.Time); ; time.Sleep(20 * time.Millisecond) {
		if r := c.tries(e.key(), 1, longWindow); r.err == nil {
			r.plausible()
			return
		} else if time.Now().After(end) {
			e.fail(r, "a count, now that the backend works")
		}
	}
}

func isContextError(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
