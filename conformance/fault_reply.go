package conformance

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"syscall"
	"time"

	"github.com/golockers/locker/conformance/internal/faultproxy"
	"github.com/golockers/locker/conformance/internal/harness"
)

func lostReplyChecks() []harness.Check {
	return []harness.Check{{
		Name:  "fault/acquire-reply-lost",
		Rules: []string{c2Outcomes, c5SameToken},
		Causes: "a transport error reported as false; a client library that repeats SET NX after a lost reply and finds the key " +
			"set by its first attempt: when refused, look whose token it is.",
		Run: func(e *harness.Env) { newFaulty(e).acquireUnder(faultproxy.DropReply) },
	}, {
		Name:  "fault/extend-reply-lost",
		Rules: []string{c2Outcomes},
		Causes: "a transport error reported as false; a script or transaction that a client library repeats, and that takes " +
			"the result of its first run for another holder's.",
		Run: func(e *harness.Env) { newFaulty(e).extendUnder(faultproxy.DropReply) },
	}, {
		Name:  "fault/release-reply-lost",
		Rules: []string{c2Outcomes, c2SentTwice, c7Release},
		Causes: "a client library that repeats the release after a lost reply and finds nothing the second time, which is " +
			"reported as false; a transport error reported as false; a repeated release that deletes the next holder's lock.",
		Run: func(e *harness.Env) { newFaulty(e).releaseUnder(faultproxy.DropReply) },
	}}
}

func brokenLinkChecks() []harness.Check {
	all := func(kinds ...faultproxy.Kind) func(e *harness.Env) {
		return func(e *harness.Env) {
			f := newFaulty(e)
			for _, kind := range kinds {
				f.acquireUnder(kind)
				f.extendUnder(kind)
				f.releaseUnder(kind)
			}
		}
	}
	return []harness.Check{{
		Name:   "fault/connection-refused",
		Rules:  []string{c10Faults},
		Direct: true,
		Causes: "(false, nil) for every error; an error that drops its cause by %v: wrap it with %w; a connection that is kept " +
			"after it broke.",
		Run: connectionRefused,
	}, {
		Name:  "fault/reset-mid-request",
		Rules: []string{c10Faults},
		Causes: "a write error, a reset or the end of the connection reported as false; an error that is not a net.Error (the " +
			"end of a connection, a malformed reply) taken for a success; a connection that is used again after it broke.",
		Run: all(faultproxy.ResetRequest, faultproxy.CloseRequest, faultproxy.GarbageRequest),
	}, {
		Name:  "fault/truncated-reply",
		Rules: []string{c10Faults, c2SentTwice},
		Causes: "reading a reply without looking at the error, so that a part of it is taken for the whole, or for false; a " +
			"client library that repeats requests, see fault/release-reply-lost.",
		Run: all(faultproxy.HalfReply),
	}, {
		Name:   "fault/garbage-reply",
		Rules:  []string{c10Faults},
		Causes: "taking every unexpected reply for false, although only a refusal may be; a reply that is not examined.",
		Run:    all(faultproxy.GarbageReply),
	}, {
		Name:   "fault/slow-link",
		Rules:  []string{c9During, c10Faults},
		Causes: "a time limit that the caller did not ask for: a constant of some milliseconds, or a fraction of the ttl.",
		Run:    slowLink,
	}}
}

// acquireUnder acquires a free lock while a fault affects the nth request, for each n.
func (f *faulty) acquireUnder(kind faultproxy.Kind) {
	f.eachStep(func(n int) bool {
		key, token := f.Env.Key(), f.Env.Token()
		r, reached := f.under(kind, n, "Acquire", key, token, harness.Long)
		f.gives(r, "no other token has asked for the lock, and this one may have acquired it")
		if r.OK {
			f.Env.B.Blocked(key, "D's Acquire returned true")
		}
		again := f.insists("Acquire", key, token, harness.Long)
		f.Must(again, true, "no other token has asked for the lock")
		f.Env.B.Blocked(key, "D's repeated Acquire returned true")
		released := f.insists("Release", key, token, 0)
		f.gives(released, "this token holds the lock, unless an earlier Release succeeded")
		free := f.Env.B.Takes(key, f.Env.Token(), harness.Long, "D's Release returned true")
		f.Env.B.Releases(key, free.Token, "B has just taken it")
		return reached
	})
}

// extendUnder extends a lock while a fault affects the nth request, for each n.
func (f *faulty) extendUnder(kind faultproxy.Kind) {
	f.eachStep(func(n int) bool {
		key, token, _ := f.prepared(harness.Long)
		r, reached := f.under(kind, n, "Extend", key, token, harness.Long)
		f.gives(r, "this token holds the lock for ten minutes")
		again := f.insists("Extend", key, token, harness.Long)
		f.Must(again, true, "this token still holds the lock, for ten minutes")
		f.Env.B.Blocked(key, "D has extended it")
		f.insists("Release", key, token, 0)
		return reached
	})
}

// releaseUnder releases a lock while a fault affects the nth request, for each n. A repeated
// release must not harm the next holder.
func (f *faulty) releaseUnder(kind faultproxy.Kind) {
	f.eachStep(func(n int) bool {
		key, token, _ := f.prepared(harness.Long)
		next := f.Env.Token()
		r, reached := f.under(kind, n, "Release", key, token, 0)
		f.gives(r, "this token held the lock when Release was called, for ten minutes")
		switch b := f.Env.B.Acquire(key, next, harness.Long); {
		case r.OK:
			f.Env.B.Must(b, true, "D.Release returned true")
		case b.Err == nil && !b.OK:
			f.Env.Note("the server has not executed D's Release")
			f.insists("Release", key, token, 0)
			f.Env.B.Takes(key, next, harness.Long, "D has released it on a link that works")
		default:
			f.Env.B.Must(b, true, "the key is free, or D holds it")
		}
		f.insists("Release", key, token, 0) // whatever it returns, the lock is another token's now
		f.Env.C.Blocked(key, "B holds it; D's late Release concerns another token")
		f.Env.B.Extends(key, next, harness.Long, "B holds it; D's late Release concerns another token")
		f.Env.B.Releases(key, next, "B holds it")
		return reached
	})
}

// maxConns is more connections than a Locker keeps that has made one call at a time. A client that
// sends the requests of many callers together may have several all the same.
const maxConns = 16

func connectionRefused(e *harness.Env) {
	f := newFaulty(e)
	patience := e.Allow(harness.Refused)
	held, token, _ := f.prepared(harness.Long)
	free, other := e.Key(), e.Token()
	f.p.Refuse()
	e.Note("D's connections are cut, and new ones are refused")
	for _, op := range []string{"Acquire", "Extend", "Release"} {
		key, tok := held, token
		if op == "Acquire" {
			key, tok = free, other
		}
		// A call may find that its connection has ended. When it finds none any more, it must dial.
		var r harness.Call
		for i := 0; i < 3 || i < maxConns && !hasCause(r.Err) && r.End.Sub(r.Start) < patience; i++ {
			r = f.within(patience, op, key, tok, asked(op, harness.Long))
			if r.Err == nil {
				e.Fail(fmt.Sprintf("D.%s = an error: the backend cannot be reached", op),
					fmt.Sprintf("D.%s = %s", op, r.Result()))
			}
			if r.OK {
				e.Fail(fmt.Sprintf("D.%s returns false with an error", op), fmt.Sprintf("D.%s = %s", op, r.Result()))
			}
		}
		// If a client gives up only when its context ends, the cause is the context's error.
		if r.End.Sub(r.Start) < patience && !hasCause(r.Err) {
			e.Fail(fmt.Sprintf("the error of D.%s wraps its cause, that the connection was refused, or the client library's "+
				"error for that", op), fmt.Sprintf("D.%s = %s, which wraps nothing", op, r.Result()))
		}
	}
	f.p.Heal(e.TB)
	e.Note("D's link works again")
	again := f.insists("Acquire", free, other, harness.Long)
	f.Must(again, true, "no other token has asked for the lock")
	again = f.insists("Extend", held, token, harness.Long)
	f.Must(again, true, "this token still holds the lock, for ten minutes")
	again = f.insists("Release", held, token, 0)
	f.gives(again, "this token still holds the lock, for ten minutes")
	e.B.Takes(held, e.Token(), harness.Long, "D's Release returned true")
	e.B.Blocked(free, "D holds it")
}

// hasCause reports whether err wraps the refusal of a connection. A client library may have its own
// error for that, but mere text, as %v makes it, is not a cause.
func hasCause(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) ||
		strings.Contains(fmt.Sprint(err), "refused") && reflect.TypeOf(err) != reflect.TypeOf(errors.New(""))
}

// slowLink makes each call over a slow link, with a short ttl.
func slowLink(e *harness.Env) {
	f := newFaulty(e)
	key, token, _ := f.prepared(harness.Long)
	free := e.Key()
	f.p.Delay(120 * time.Millisecond)
	e.Note("each request and each reply of D is delayed by 120ms")
	patient := func(op, key, token string) {
		r := f.Do(op, key, token, asked(op, time.Second))
		for r.Err != nil && r.End.Sub(r.Start) > time.Second { // the client's I/O timeout, on a busy machine
			r = f.Do(op, key, token, asked(op, time.Second))
		}
		f.Must(r, true, fmt.Sprintf("the link is slow, but ctx does not end for %v", harness.OpTimeout))
	}
	patient("Acquire", free, e.Token())
	patient("Extend", key, token)
	other, token, _ := f.prepared(harness.Long)
	patient("Release", other, token)
}
