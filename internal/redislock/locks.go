package redislock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/golockers/locker/internal/pubsub"
	"github.com/golockers/locker/internal/waithook"
)

// Locks implements the operations of a Locker. Its results are those of [locker.Locker] and its
// optional interfaces. Make one with [New].
type Locks struct {
	*Waiters
	requests Requests
	names    *Namespace
	timeout  time.Duration
	old      atomic.Bool // the server is older than Redis 7: it does not support SET with NX and GET
	slots    atomic.Bool // the server has refused a script for permits, since their slots differ
}

// Requests holds the requests of a Locker, which an adapter makes with its client library. Each
// request contains the token of s, which counts how often the request may have been executed. An
// adapter whose library repeats requests passes s itself to the library, which asks s for the bytes
// each time. Any other adapter makes the request in [Sending.Once].
type Requests struct {
	// Set is SET with NX and PX. It reports whether the lock was free, and was therefore set.
	Set func(s *Sending, lock string, ms int64) (wasFree bool, err error)
	// SetGet is Set with GET, and returns the value of a lock that was not free.
	SetGet func(s *Sending, lock string, ms int64) (holder string, wasFree bool, err error)
	// Eval runs a script. If the client was closed, the error is a [pubsub.ErrClosed].
	Eval func(s *Sending, e Eval) (reply any, err error)
	// IsReply reports whether err is a server's error reply that begins with prefix, after "ERR "
	// if it is there.
	IsReply func(err error, prefix string) bool
}

// Eval is a request to run a script.
type Eval struct {
	Script
	IsNew      bool     // the server needs the text: EVAL instead of EVALSHA
	Key1, Key2 string   // if Key2 is empty, there is only one key
	Keys       []string // if it is not nil, the keys after Key1, instead of Key2

	// The arguments after the token:
	TTL  int64 // in milliseconds; 0: none
	More []string
}

// Config is what an adapter adds to Locks.
type Config struct {
	Requests
	Source
	Names     *Namespace
	Err       error         // see [Caller]
	Inline    time.Duration // see [Caller]
	Unbounded bool          // see [Caller]
	// Timeout is how long a request may wait for its reply.
	Timeout time.Duration
	// Counted means that subscriptions are made on the server that has the lock, so it can count
	// them.
	Counted bool
}

// New returns the operations of a Locker.
func New(c Config) *Locks {
	l := &Locks{requests: c.Requests, names: c.Names, timeout: c.Timeout}
	l.Waiters = newWaiters(c, l.run)
	return l
}

var (
	errRepeated = errors.New("done, but the request was sent again, and an earlier one may yet arrive")
	errChanging = errors.New("the lock changed hands during each of three tries")
	errNoQueue  = fmt.Errorf("the name has a } but no hash tag, so its queue cannot be in its slot: %w",
		errors.ErrUnsupported)
)

// Acquire takes a lock in one attempt.
func (l *Locks) Acquire(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	for asked := 0; ; asked++ {
		s := NewSending(ctx, token)
		a, err := Call(&l.Caller, s, func() (attempt, error) {
			ms, err := milliseconds(ttl)
			if err != nil {
				return attempt{}, err
			}
			return l.acquire(s, l.names.Keys(key), ms)
		})
		if err != nil && asked == 0 {
			err = s.noCleanup(err)
		}
		if err != nil || !a.isKept {
			return a.acquired, err
		}
		if isFree, err := l.askAfter(ctx, l.names.Keys(key), s, a, asked); !isFree {
			return false, err
		}
	}
}

func (l *Locks) acquire(s *Sending, keys Keys, ms int64) (attempt, error) {
	ttl := time.Duration(min(ms, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
	for range 3 {
		sends := s.Sends()
		// A Locker that has met a queue lately respects it; SET does not.
		if l.old.Load() || l.busy() {
			reply, err := l.run(Look, keys, s, ms)
			if err != nil || reply == int64(1) {
				return attempted(sentOnce(s, sends, err))
			}
			return attempt{isKept: reply == int64(2)}, s.Refused(l.timeout, ttl)
		}
		holder, wasFree, err := l.requests.SetGet(s, keys.Lock, ms)
		switch {
		case err != nil && l.requests.IsReply(err, "syntax error"):
			l.old.Store(true)
			s.Undo()
		case err != nil:
			return attempt{}, err
		case wasFree:
			return attempt{acquired: true}, nil
		case holder != s.Token:
			if err := CheckHolder(holder); err != nil {
				return attempt{}, err
			}
			return refusedBy(holder), s.Refused(l.timeout, ttl)
		default: // token holds the lock; until that ends, a late SET has no effect
			sends = s.Sends()
			reply, err := l.run(Extend, keys, s, ms)
			if err != nil || reply == int64(1) {
				return attempted(sentOnce(s, sends, err))
			}
			// It expired just now: try again.
		}
	}
	return attempt{}, errChanging
}

// sentOnce returns the outcome of a script that has set the remaining time if err is nil. before is
// the result of s.Sends before the script. If more than one request was made since, an earlier one
// may yet arrive and set the remaining time again.
func sentOnce(s *Sending, before int, err error) (bool, error) {
	if err == nil && s.Sends()-before > 1 {
		err = errRepeated
	}
	return err == nil, err
}

// Extend replaces the remaining time of a lock that token holds.
func (l *Locks) Extend(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	s := NewSending(ctx, token)
	return CallInOrder(&l.Caller, s, func() (bool, error) {
		ms, err := milliseconds(ttl)
		if err != nil {
			return false, err
		}
		reply, err := l.run(Extend, l.names.Keys(key), s, ms)
		if err != nil || reply == int64(1) {
			return sentOnce(s, 0, err)
		}
		return false, nil
	})
}

// Release frees a lock that token holds. If the request was sent again, and the last copy found
// that token does not hold the lock, Release reports true: an earlier copy may have released it,
// and in any case token does not hold it.
func (l *Locks) Release(ctx context.Context, key, token string) (bool, error) {
	s := NewSending(ctx, token)
	return CallInOrder(&l.Caller, s, func() (bool, error) {
		freed, err := l.release(l.names.Keys(key), s)
		return err == nil && (freed.Released || s.Sends() > 1), err
	})
}

// Fence returns a fencing number for a lock that token holds.
func (l *Locks) Fence(ctx context.Context, key, token string) (fence uint64, ok bool, err error) {
	s := NewSending(ctx, token)
	fence, err = CallInOrder(&l.Caller, s, func() (uint64, error) {
		counter, lock := l.names.FenceCounter(), l.names.prefix+key
		if l.names.single {
			return ParseFence(l.eval(Fence, counter, lock, s, 0))
		}
		// The number comes before the check, so that a later holder's number is greater.
		fence, err := ParseFence(l.eval(Count, counter, "", s, 0))
		if err != nil {
			return 0, err
		}
		reply, err := l.eval(Holds, lock, "", s, 0)
		if reply != int64(1) || err != nil {
			return 0, err
		}
		return fence, nil
	})
	return fence, fence > 0 && err == nil, err
}

// Wait takes a lock if it is free, and otherwise joins the queue.
func (l *Locks) Wait(ctx context.Context, key, token string, ttl time.Duration) (deadline time.Time, err error) {
	_, deadline, err = l.waitFor(ctx, l.names.Keys(key), token, ttl)
	return deadline, err
}

// waitFor is Wait, and returns the number of the permit if the keys are those of permits.
func (l *Locks) waitFor(ctx context.Context, keys Keys, token string, ttl time.Duration) (
	permit int, deadline time.Time, err error) {
	ms, err := milliseconds(ttl)
	switch {
	case ctx.Err() != nil:
		return 0, time.Time{}, ctx.Err()
	case err != nil:
		return 0, time.Time{}, err
	case l.Err != nil:
		return 0, time.Time{}, l.Err
	case keys.Queue == "":
		return 0, time.Time{}, errNoQueue
	case l.busy():
		return l.wait(ctx, keys, token, ttl, ms, false)
	}
	s := NewSending(ctx, token)
	lock, permits := keys.Lock, keys.permits
	n, err := Call(&l.Caller, s, func() (n int, err error) {
		if permits != nil {
			n, err = l.takePermit(s, permits, ms)
		} else {
			n, err = l.takeLock(s, lock, ms)
		}
		if err == nil && n <= 0 {
			err = s.Refused(l.timeout, l.timeout)
		}
		return n, err
	})
	switch {
	case err == nil && n > 0:
		return n, s.first.Add(ttl), nil
	case err == nil:
		waithook.Call(ctx)
		return l.wait(ctx, keys, token, ttl, ms, true)
	}
	if !s.isUnsent() { // the request may have taken the lock, or may yet take it
		l.undo(ctx, s, &ghost{keys: keys, token: s.Token, ttl: ttl, mayTake: true}, false, true)
	}
	return 0, time.Time{}, s.noCleanup(err)
}

// takeLock takes a lock if it is free, and returns 1 or 0. A refused waiter runs the queue's script,
// which finds the holder, and that may be this token. So the reply need not name it.
func (l *Locks) takeLock(s *Sending, lock string, ms int64) (n int, err error) {
	sent := time.Now()
	wasFree, err := l.requests.Set(s, lock, ms)
	s.came(err)
	if err == nil {
		l.roundTrip.add(time.Since(sent))
	}
	if err == nil && wasFree {
		n = 1
	}
	return n, err
}

// Watch returns a channel that receives a value when a lock is released, and when a release may
// have been missed. If the user is not permitted to subscribe, the error is
// [errors.ErrUnsupported], since callers can poll instead.
func (l *Locks) Watch(ctx context.Context, key string) (<-chan struct{}, error) {
	if l.Err != nil {
		return nil, l.Err
	}
	hubs, err := l.inbox.Hubs(ctx)
	var woken <-chan struct{}
	if err == nil {
		woken, err = pubsub.Watch(ctx, l.names.prefix+key, hubs...)
	}
	switch {
	case err == nil:
		return woken, nil
	case l.requests.IsReply(err, "NOPERM"):
		return nil, fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	default:
		return nil, err
	}
}

// run runs a script on a lock, with s as its first argument. While a Cluster moves the lock's slot
// to another node, the lock and the queue may be on different nodes. The script is then run on the
// lock alone.
func (l *Locks) run(script Script, keys Keys, s *Sending, ms int64, more ...string) (any, error) {
	if keys.permits != nil {
		return l.evalForPermits(script, keys.permits, s, ms, more...)
	}
	reply, err := l.eval(script, keys.Lock, keys.Queue, s, ms, more...)
	if err != nil && keys.Queue != "" && l.requests.IsReply(err, "TRYAGAIN") {
		reply, err = l.eval(script, keys.Lock, "", s, ms, more...)
	}
	return reply, err
}

// eval runs a script on one key, or two if key2 is not empty.
func (l *Locks) eval(script Script, key1, key2 string, s *Sending, ms int64, more ...string) (any, error) {
	return l.send(s, Eval{Script: script, Key1: key1, Key2: key2, TTL: ms, More: more})
}

// send makes a request. If the server does not have the script, it sends the text.
func (l *Locks) send(s *Sending, e Eval) (any, error) {
	start := time.Now()
	reply, err := l.requests.Eval(s, e)
	if err != nil && l.requests.IsReply(err, "NOSCRIPT") {
		e.IsNew = true
		start = time.Now()
		reply, err = l.requests.Eval(s, e)
	}
	if err == nil {
		l.roundTrip.add(time.Since(start))
	} else if foreign := ForeignReply(err.Error()); foreign != nil {
		return nil, foreign
	}
	return reply, err
}
