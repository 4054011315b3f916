// Package lockertest provides a [locker.Locker] for tests of code that uses locks.
//
//	l := lockertest.New()
//	release := l.Hold("report") // as another process would
//	ran, err := locker.TryDo(ctx, l, "report", time.Minute, write)
//	// not ran, no error
//	release()
//
// It is a real lock in memory with every optional interface, so the code under test waits, queues
// and expires as it would on a server. A test holds locks against it, takes them away, makes
// operations fail or hang, and inspects the calls. It works in a testing/synctest bubble, in
// which waiting and expiry take no time.
package lockertest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/misuse"
	"github.com/golockers/locker/internal/undo"
	"github.com/golockers/locker/memory"
)

var (
	_ locker.Watcher   = (*Locker)(nil)
	_ locker.Waiter    = (*Locker)(nil)
	_ locker.Fencer    = (*Locker)(nil)
	_ locker.Inspector = (*Locker)(nil)
	_ locker.Lister    = (*Locker)(nil)
)

// Op is an operation of a [Locker].
type Op uint8

const (
	// Acquire is called by locker.TryLock and TryDo. For Fail and Hang it includes Wait, so it
	// stands for every way to take a lock.
	Acquire Op = iota + 1

	// Wait is called by locker.Lock, Do, LockAll and DoAll.
	Wait

	// Extend is called by the keep-alive, Lease.Extend and locker.Resume, and by Lease.Unlock with
	// locker.WithMinHold.
	Extend

	// Release is called by Lease.Unlock, locker.Break and the cleanup after a failed acquisition.
	Release

	// Watch is called by package singleflight's Loader.
	Watch

	// Fence is called by Lease.Fence.
	Fence

	// Inspect is called by locker.Break.
	Inspect

	// List is called by tools.
	List
)

var opNames = [...]string{
	Acquire: "Acquire", Wait: "Wait", Extend: "Extend", Release: "Release", Watch: "Watch", Fence: "Fence",
	Inspect: "Inspect", List: "List",
}

// String returns the name of the method.
func (op Op) String() string {
	if op == 0 || int(op) >= len(opNames) {
		return "Op(" + strconv.Itoa(int(op)) + ")"
	}
	return opNames[op]
}

// Call is an operation that was called.
type Call struct {
	Op    Op
	Key   string        // or List's prefix
	Token string        // of Acquire, Wait, Extend, Release and Fence
	TTL   time.Duration // of Acquire, Wait and Extend

	// The results, zero while the call is under way. OK reports whether it did what it was asked
	// to do.
	OK  bool
	Err error
}

// Locker is a [locker.Locker] in memory that a test controls. The zero value is ready to use, and
// each Locker is a backend of its own. It is safe for concurrent use and must not be copied.
type Locker struct {
	memory memory.Locker

	mu      sync.Mutex
	trouble [len(opNames)]trouble
	holds   int // counts calls of Hold
	calls   []*Call
	failed  map[name]bool // acquisitions that ended with an error, until they are released
	paused  map[name]bool // holders that do not notice that they have lost the lock

	// A lock that is held when Hold takes it stays under its token in memory, where it cannot
	// change hands without its queue getting it first. Only its name for the caller changes.
	inside, outside map[name]string
}

type trouble struct {
	err  error
	hang bool
}

// name is a token of a key, as a caller knows it or as memory does.
type name struct{ key, token string }

// New returns a Locker that holds no locks.
func New() *Locker { return new(Locker) }

// Fail makes calls of op do nothing and return err. Fail with a nil err makes op work again, even
// after [Locker.Hang]. Fail(Acquire, err) applies to Wait as well, so every function that takes a
// lock gets the error.
//
// Package locker treats a backend error as an unknown outcome: after a failed acquisition it
// releases the token in the background. That Release succeeds at once, unless Release is made to
// fail as well. It is then repeated for as long as the ttl, at most a minute, and a test in a bubble
// has to sleep for that long before it ends.
func (l *Locker) Fail(op Op, err error) { l.set(op, trouble{err: err}) }

// Hang makes calls of op block until their context ends, like those of a server that does not
// answer. Fail with a nil error makes op work again; calls that hang already continue to.
// Hang(Acquire) applies to Wait as well.
func (l *Locker) Hang(op Op) { l.set(op, trouble{hang: true}) }

func (l *Locker) set(op Op, t trouble) {
	if op == 0 || int(op) >= len(opNames) {
		panic("lockertest: no such operation: " + op.String())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.trouble[op] = t
}

// Hold takes the lock of key, as another process would, and keeps it without expiry until release
// is called. If the lock is held, its holder loses it, and callers that wait for it go on
// waiting. Calling release again does nothing, nor does calling it after Lose or another Hold has
// taken the lock.
func (l *Locker) Hold(key string) (release func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.holds++
	token := fmt.Sprint("lockertest/", l.holds)
	for !l.takeOver(key, token) { // a Wait has taken it in between, or it has expired
	}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		_, _ = l.memory.Release(context.Background(), key, l.name(l.inside, key, token))
	}
}

// takeOver makes token hold the lock of key, in place of its holder if there is one, and reports
// whether it does.
func (l *Locker) takeOver(key, token string) bool {
	holder := l.holder(key)
	if holder == "" {
		acquired, _ := l.memory.Acquire(context.Background(), key, token, math.MaxInt64)
		return acquired
	}
	extended, _ := l.memory.Extend(context.Background(), key, holder, math.MaxInt64)
	if !extended {
		return false
	}
	l.rename(name{key, l.name(l.outside, key, holder)}, holder+" "+token)
	l.rename(name{key, token}, holder)
	return true
}

// Lose takes the lock of key from its holder, as an eviction or a restart of the server would.
// The lock passes to the next in the queue, if there is one. The holder notices at its next
// operation, such as that of its keep-alive. Lose does nothing if the lock is free.
func (l *Locker) Lose(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if holder := l.holder(key); holder != "" {
		_, _ = l.memory.Release(context.Background(), key, holder)
	}
}

// Pause makes the holder of key behave like one whose process stands still for longer than its ttl
// and then goes on. The lock passes to the next in the queue or becomes free, as with Lose, but the
// holder's lease does not notice: until resume is called its extensions report success, so that with a
// keep-alive it stays held. Use it to test that what the lock protects refuses the fencing number that
// the paused holder got before. Pause does nothing if the lock is free.
func (l *Locker) Pause(key string) (resume func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	holder := l.holder(key)
	if holder == "" {
		return func() {}
	}
	paused := name{key, l.name(l.outside, key, holder)}
	if l.paused == nil {
		l.paused = make(map[name]bool)
	}
	l.paused[paused] = true
	_, _ = l.memory.Release(context.Background(), key, holder)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.paused, paused)
	}
}

// holder returns the token that holds the lock of key in memory.
func (l *Locker) holder(key string) string {
	info, _ := l.memory.Inspect(context.Background(), key)
	return info.Token
}

// rename makes caller the name outside of a token inside.
func (l *Locker) rename(caller name, token string) {
	if l.inside == nil {
		l.inside, l.outside = make(map[name]string), make(map[name]string)
	}
	l.inside[caller] = token
	l.outside[name{caller.key, token}] = caller.token
}

// name returns the name of a token inside or outside: itself, if it was not renamed.
func (l *Locker) name(where map[name]string, key, token string) string {
	if renamed, ok := where[name{key, token}]; ok {
		return renamed
	}
	return token
}

const maxCalls = 10_000

// Calls returns the operations that were called, the oldest first. Only the last 10,000 are kept.
func (l *Locker) Calls() []Call {
	l.mu.Lock()
	defer l.mu.Unlock()
	calls := make([]Call, len(l.calls))
	for i, c := range l.calls {
		calls[i] = *c
	}
	return calls
}

// atomically runs an operation with the token of a caller. No Hold comes in between.
func (l *Locker) atomically(key, caller string, operation func(token string)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	operation(l.name(l.inside, key, caller))
}

// Acquire implements [locker.Locker].
func (l *Locker) Acquire(ctx context.Context, key, token string, ttl time.Duration) (acquired bool, err error) {
	caller := token
	_, end, err := l.begin(ctx, Call{Op: Acquire, Key: key, Token: token, TTL: ttl})
	if err == nil {
		l.atomically(key, caller, func(token string) { acquired, err = l.memory.Acquire(ctx, key, token, ttl) })
	}
	end(acquired, err)
	return acquired, err
}

// Extend implements [locker.Locker].
func (l *Locker) Extend(ctx context.Context, key, token string, ttl time.Duration) (extended bool, err error) {
	caller := token
	_, end, err := l.begin(ctx, Call{Op: Extend, Key: key, Token: token, TTL: ttl})
	if err == nil {
		l.atomically(key, caller, func(token string) {
			extended, err = l.memory.Extend(ctx, key, token, ttl)
			extended = extended || err == nil && l.paused[name{key, caller}]
		})
	}
	end(extended, err)
	return extended, err
}

// Release implements [locker.Locker].
func (l *Locker) Release(ctx context.Context, key, token string) (released bool, err error) {
	caller := token
	token, end, err := l.begin(ctx, Call{Op: Release, Key: key, Token: token})
	if err == nil {
		l.atomically(key, caller, func(token string) { released, err = l.memory.Release(ctx, key, token) })
		released = released || err == nil && l.hasFailed(key, token)
	}
	end(released, err)
	return released, err
}

// hasFailed reports whether an acquisition by token has failed and was not released since. That its
// Release reports true ends the cleanup of package locker, which would go on for 5 seconds and
// outlast a synctest bubble.
func (l *Locker) hasFailed(key, token string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	failed := l.failed[name{key, token}]
	delete(l.failed, name{key, token})
	return failed
}

// Wait implements [locker.Waiter].
func (l *Locker) Wait(ctx context.Context, key, token string, ttl time.Duration) (deadline time.Time, err error) {
	token, end, err := l.begin(ctx, Call{Op: Wait, Key: key, Token: token, TTL: ttl})
	if err == nil {
		deadline, err = l.memory.Wait(ctx, key, token, ttl)
	}
	end(err == nil, err)
	return deadline, err
}

// Watch implements [locker.Watcher].
func (l *Locker) Watch(ctx context.Context, key string) (woken <-chan struct{}, err error) {
	_, end, err := l.begin(ctx, Call{Op: Watch, Key: key})
	if err == nil {
		woken, err = l.memory.Watch(ctx, key)
	}
	end(err == nil, err)
	return woken, err
}

// Fence implements [locker.Fencer].
func (l *Locker) Fence(ctx context.Context, key, token string) (fence uint64, ok bool, err error) {
	token, end, err := l.begin(ctx, Call{Op: Fence, Key: key, Token: token})
	if err == nil {
		fence, ok, err = l.memory.Fence(ctx, key, token)
	}
	end(ok, err)
	return fence, ok, err
}

// Inspect implements [locker.Inspector].
func (l *Locker) Inspect(ctx context.Context, key string) (info locker.Info, err error) {
	info.Key = key
	_, end, err := l.begin(ctx, Call{Op: Inspect, Key: key})
	if err == nil {
		info, err = l.memory.Inspect(ctx, key)
	}
	end(err == nil, err)
	return l.seen(info), err
}

// List implements [locker.Lister].
func (l *Locker) List(ctx context.Context, prefix string) iter.Seq2[locker.Info, error] {
	return func(yield func(locker.Info, error) bool) {
		_, end, err := l.begin(ctx, Call{Op: List, Key: prefix})
		end(err == nil, err)
		if err != nil {
			yield(locker.Info{}, err)
			return
		}
		for info, err := range l.memory.List(ctx, prefix) {
			if !yield(l.seen(info), err) {
				return
			}
		}
	}
}

// seen is info with the token that callers know.
func (l *Locker) seen(info locker.Info) locker.Info {
	if l == nil {
		return info
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	info.Token = l.name(l.outside, info.Key, info.Token)
	return info
}

var errNil = misuse.New("lockertest: nil Locker")

// begin records a call, and returns its token in memory, a function to call with the result, and
// the error that was arranged for it.
func (l *Locker) begin(ctx context.Context, c Call) (token string, end func(ok bool, err error), err error) {
	if l == nil {
		return "", func(bool, error) {}, errNil
	}
	l.mu.Lock()
	if len(l.calls) == maxCalls {
		l.calls = l.calls[1:]
	}
	l.calls = append(l.calls, &c)
	t := l.trouble[c.Op]
	if c.Op == Wait && t == (trouble{}) {
		t = l.trouble[Acquire]
	}
	token = l.name(l.inside, c.Key, c.Token)
	l.mu.Unlock()

	ended := ctx.Err()
	end = func(ok bool, err error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		c.OK, c.Err = ok, err
		if ended != nil { // a test may compare it
			c.Err = ended
		}
		if (c.Op == Acquire || c.Op == Wait) && err != nil && !errors.Is(err, locker.ErrHeld) && !undo.IsNeedless(err) {
			if l.failed == nil || len(l.failed) == maxCalls {
				l.failed = make(map[name]bool)
			}
			l.failed[name{c.Key, token}] = true
		}
	}
	switch {
	case ended != nil: // nothing happens, so package locker has nothing to release
		if err = ended; c.Op == Acquire || c.Op == Wait {
			err = undo.Needless(err)
		}
	case t.hang:
		<-ctx.Done()
		err = ctx.Err()
	default:
		err = t.err
	}
	return token, end, err
}
