package conformance

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"syscall"
	"time"
)

func lostReplyChecks() []check {
	const rule = "C2 Three outcomes: an error says that the operation may or may not have happened; false says that " +
		"it certainly has not."
	return []check{{
		name: "fault/acquire-reply-lost",
		rule: rule + " C5 Same token: an attempt repeated after a lost reply succeeds.",
		causes: "a transport error reported as false; a client library that repeats SET NX by itself after a lost reply, " +
			"and finds the key taken by our own first attempt: when it is refused, look whose token it is; an Acquire " +
			"that is refused although the token is its own.",
		run: func(e *env) { newFaulty(e).acquireUnder(dropReply) },
	}, {
		name: "fault/extend-reply-lost",
		rule: rule,
		causes: "a transport error reported as false; a script or transaction that a client library repeats, and that " +
			"takes its own first run for another holder's.",
		run: func(e *env) { newFaulty(e).extendUnder(dropReply) },
	}, {
		name: "fault/release-reply-lost",
		rule: rule + " When the client library may have sent a Release twice, finding nothing is true or an error, " +
			"never false. C7 Release: only when the token holds the lock; the lock is free at once.",
		causes: "a client library that repeats the release by itself after a lost reply, finds nothing the second time " +
			"and so reports false; a transport error reported as false; a repeated release that deletes the lock of the " +
			"next holder.",
		run: func(e *env) { newFaulty(e).releaseUnder(dropReply) },
	}}
}

func brokenLinkChecks() []check {
	const rule = "C10 Faults are errors that wrap their cause: a backend that is down or hung is never false, nil, " +
		"never a success, never a panic."
	all := func(kinds ...faultKind) func(e *env) {
		return func(e *env) {
			f := newFaulty(e)
			for _, kind := range kinds {
				f.acquireUnder(kind)
				f.extendUnder(kind)
				f.releaseUnder(kind)
			}
		}
	}
	return []check{{
		name: "fault/connection-refused",
		rule: rule,
		causes: "false, nil for every error; the cause dropped from the error by %v: wrap it with %w; a connection that " +
			"is kept forever after it broke.",
		run: connectionRefused,
	}, {
		name: "fault/reset-within-a-request",
		rule: rule,
		causes: "a write error, a reset or the end of the connection reported as false; an error that is not the network's in " +
			"name (the end of a connection, a reply that makes no sense) taken for a success; a connection that is used again " +
			"after it broke.",
		run: all(resetRequest, closeRequest, garbageRequest),
	}, {
		name: "fault/half-a-reply",
		rule: rule,
		causes: "reading a reply without looking at the error, so that what has come of it is taken for all of it, or " +
			"for false; a client library that repeats requests by itself, see fault/release-reply-lost.",
		run: all(halfReply),
	}, {
		name: "fault/garbage-reply",
		rule: rule,
		causes: "taking every reply that is not the expected one for false, although only a refusal may " +
			"be; a reply that is not looked at.",
		run: all(garbageReply),
	}, {
		name: "fault/slow-link",
		rule: "C9 Context: a method ends with its ctx, or with an I/O timeout of the client. C10: an error is for a " +
			"backend that is down, hung, read-only or out of memory.",
		causes: "a time limit of the adapter's own that the caller did not ask for: a constant of some milliseconds, or " +
			"a share of the ttl.",
		run: slowLink,
	}}
}

// acquireUnder takes a free lock while its nth request runs into a fault, for each n.
func (f *faulty) acquireUnder(kind faultKind) {
	f.eachStep(func(n int) bool {
		key, token := f.e.key(), f.e.token()
		r, reached := f.under(kind, n, "Acquire", key, token, long)
		f.gives(r, "nobody else has ever asked for the lock, and it may have been taken for this token")
		if r.ok {
			f.e.B.blocked(key, "D's Acquire returned true")
		}
		again := f.insists("Acquire", key, token, long)
		f.must(again, true, "nobody else has ever asked for the lock, and the token is the same")
		f.e.B.blocked(key, "D's repeated Acquire returned true")
		released := f.insists("Release", key, token, 0)
		f.gives(released, "the lock is held by this token, or its release has been tried before")
		free := f.e.B.takes(key, f.e.token(), long, "D's Release returned true")
		f.e.B.releases(key, free.token, "B has just taken it")
		return reached
	})
}

// extendUnder extends a lock while the nth request runs into a fault, for each n.
func (f *faulty) extendUnder(kind faultKind) {
	f.eachStep(func(n int) bool {
		key, token, _ := f.prepared(long)
		r, reached := f.under(kind, n, "Extend", key, token, long)
		f.gives(r, "this token holds the lock for ten minutes")
		again := f.insists("Extend", key, token, long)
		f.must(again, true, "this token has held the lock all the time, by a ttl of ten minutes")
		f.e.B.blocked(key, "D has extended it")
		f.insists("Release", key, token, 0)
		return reached
	})
}

// releaseUnder releases a lock while the nth request runs into a fault, for each n. A repeated release must
// not hurt the next holder.
func (f *faulty) releaseUnder(kind faultKind) {
	f.eachStep(func(n int) bool {
		key, token, _ := f.prepared(long)
		next := f.e.token()
		r, reached := f.under(kind, n, "Release", key, token, 0)
		f.gives(r, "this token held the lock when it was called, by a ttl of ten minutes")
		switch b := f.e.B.acquire(key, next, long); {
		case r.ok:
			f.e.B.must(b, true, "D.Release returned true")
		case b.err == nil && !b.ok:
			f.e.note("the server has not done D's Release")
			f.insists("Release", key, token, 0)
			f.e.B.takes(key, next, long, "D has released it on a link that works")
		default:
			f.e.B.must(b, true, "the key is free, or D holds it")
		}
		f.insists("Release", key, token, 0) // whatever it says, the lock is another's now
		f.e.C.blocked(key, "B holds it, and D's late Release is no business of B's lock")
		f.e.B.extends(key, next, long, "B holds it, and D's late Release is no business of B's lock")
		f.e.B.releases(key, next, "B holds it")
		return reached
	})
}

// refusedPatience is how long an operation is given to fail while connections are refused. Some clients try
// until their context ends.
const refusedPatience = 5 * time.Second

func connectionRefused(e *env) {
	f := newFaulty(e)
	held, token, _ := f.prepared(long)
	free, other := e.key(), e.token()
	f.p.refuse()
	e.note("D's connections are cut, and new ones are refused")
	for _, op := range []string{"Acquire", "Extend", "Release"} {
		key, tok := held, token
		if op == "Acquire" {
			key, tok = free, other
		}
		// The first may find that a connection has ended; the second has to connect.
		for range 2 {
			r := f.within(refusedPatience, op, key, tok, asked(op, long))
			if r.err == nil {
				e.fail(fmt.Sprintf("D.%s = an error: the backend cannot be reached", op),
					fmt.Sprintf("D.%s = %s", op, r.result()))
			}
			if r.ok {
				e.fail(fmt.Sprintf("D.%s = false with its error", op), fmt.Sprintf("D.%s = %s", op, r.result()))
			}
		}
		r := f.within(refusedPatience, op, key, tok, asked(op, long))
		// Where a client gives up only when its context ends, that is the cause.
		if r.end.Sub(r.start) < refusedPatience && !hasCause(r.err) {
			e.fail(fmt.Sprintf("errors.Is finds the cause of D.%s's error, that the connection was refused, or what the "+
				"client library says of it", op), fmt.Sprintf("D.%s = %s, which wraps nothing", op, r.result()))
		}
	}
	f.p.heal(e.tb)
	e.note("D's link works again")
	again := f.insists("Acquire", free, other, long)
	f.must(again, true, "nobody else has ever asked for the lock")
	again = f.insists("Extend", held, token, long)
	f.must(again, true, "this token has held the lock all the time, by a ttl of ten minutes")
	again = f.insists("Release", held, token, 0)
	f.gives(again, "this token has held the lock all the time, by a ttl of ten minutes")
	e.B.takes(held, e.token(), long, "D's Release returned true")
	e.B.blocked(free, "D holds it")
}

// hasCause says whether err is, or wraps, that a connection was refused. A client library may have words of its
// own for that; but text alone, as %v makes it, is no cause.
func hasCause(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) ||
		strings.Contains(fmt.Sprint(err), "refused") && reflect.TypeOf(err) != reflect.TypeOf(errors.New(""))
}

// slowLink does each operation over a link that takes its time, with little ttl.
func slowLink(e *env) {
	f := newFaulty(e)
	key, token, _ := f.prepared(long)
	free := e.key()
	f.p.delay(120 * time.Millisecond)
	e.note("each request of D, and each reply, takes 120ms longer")
	patient := func(op, key, token string) {
		r := f.do(op, key, token, asked(op, time.Second))
		for r.err != nil && r.end.Sub(r.start) > time.Second { // the client's own timeout, on a busy machine
			r = f.do(op, key, token, asked(op, time.Second))
		}
		f.must(r, true, fmt.Sprintf("the backend is slow, and ctx ends in %v", opTimeout))
	}
	patient("Acquire", free, e.token())
	patient("Extend", key, token)
	other, token, _ := f.prepared(long)
	patient("Release", other, token)
}
