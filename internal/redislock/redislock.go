// Package redislock is the part of the Redis adapters that does not depend on their client library:
// the scripts, the names of keys and channels, the formats of requests, replies and messages, and
// waiting in the queue. The adapters that use it share their queues.
package redislock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/golockers/locker/internal/line"
	"github.com/golockers/locker/internal/pubsub"
)

// Locks implements the operations of a Locker. Its results are those of [locker.Locker] and its
// optional interfaces. Make one with [New].
type Locks struct {
	Caller
	Source
	requests Requests
	owner    any // the Locker, for package undo
	names    *Namespace
	timeout  time.Duration
	counted  bool
	old      atomic.Bool // the server is older than Redis 7: it does not support SET with NX and GET
	slots    atomic.Bool // the server has refused a script for permits, since their slots differ

	roundTrip roundTrip
	lines     line.Lines[string, place] // by queue
	inbox     inbox
	looking   looking
	doubts    doubts
	sweeps    sweeps

	asker     asker
	answering atomic.Int64 // answers to demands that are on their way
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
	Owner     any // the Locker
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

// Source is where a Locker receives messages from.
type Source struct {
	Hubs     func(ctx context.Context) ([]*pubsub.Hub, error) // of the servers to listen to; none: waiters poll
	Changes  bool                                             // Hubs may return others the next time
	ServerOf func(lock string) any                            // identifies the server of a lock
	MaxLooks int                                              // under way at one server; see [LooksOf]
	Linger   time.Duration                                    // of a channel after its last waiter; 0: ten seconds
}

func (s *Source) serverOf(lock string) any {
	if s.ServerOf == nil || lock == "" {
		return nil
	}
	return s.ServerOf(lock)
}

// New returns the operations of a Locker.
func New(c Config) *Locks {
	l := &Locks{Source: c.Source, requests: c.Requests, owner: c.Owner, names: c.Names, timeout: c.Timeout, counted: c.Counted}
	l.Err, l.Inline, l.Unbounded = c.Err, c.Inline, c.Unbounded
	l.inbox.locks = l
	l.looking.most = max(c.MaxLooks, minLooks)
	return l
}

// SetLinger sets, for tests, how long a channel is kept after its last waiter. It must be called
// before there are waiters.
func (l *Locks) SetLinger(d time.Duration) { l.Linger = d }

// Waiting returns, for tests, how many wait.
func (l *Locks) Waiting() int {
	l.inbox.mu.Lock()
	defer l.inbox.mu.Unlock()
	return l.inbox.waiters
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
		if err := l.doubts.stop(ctx, l.names.Keys(key), s.Token); err != nil {
			return false, err
		}
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
		if a.acquired && s.Sends() > 1 {
			l.doubts.note(l.names.Keys(key), s.Token)
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
		if l.old.Load() || l.inbox.busy.Load() {
			r, err := l.look(s, keys, ms)
			if err != nil || r.number > 0 {
				return attempted(sentOnce(s, sends, err))
			}
			return attempt{isKept: r.number < 0}, s.Refused(l.timeout, ttl)
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
			extended, err := l.extend(s, keys, ms)
			if err != nil || extended > 0 {
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
	number, err := l.extendOne(ctx, l.names.Keys(key), token, ttl)
	return number > 0, err
}

func (l *Locks) extendOne(ctx context.Context, keys Keys, token string, ttl time.Duration) (number int, err error) {
	s := NewSending(ctx, token)
	return CallInOrder(&l.Caller, s, func() (int, error) {
		ms, err := milliseconds(ttl)
		if err != nil {
			return 0, err
		}
		number, err := l.extend(s, keys, ms)
		if err != nil || number == 0 {
			return 0, err
		}
		if _, err = sentOnce(s, 0, nil); err != nil {
			number = 0
		}
		return number, err
	})
}

// extend returns the number of the lock that token holds, or 0.
func (l *Locks) extend(s *Sending, keys Keys, ms int64) (int, error) {
	return keys.number(l.run(Extend, keys, s, ms))
}

// number reads a reply that is the number of a lock, or 0.
func (k Keys) number(reply any, err error) (int, error) {
	n, ok := reply.(int64)
	if err == nil && (!ok || n < 0 || n > int64(k.locks())) {
		err = fmt.Errorf("the server's reply is not the number of a lock: %v", reply)
	}
	return int(n), err
}

// Release frees a lock that token holds. If the request was sent again, and the last copy found
// that token does not hold the lock, Release reports true: an earlier copy may have released it,
// and in any case token does not hold it.
func (l *Locks) Release(ctx context.Context, key, token string) (bool, error) {
	keys := l.names.Keys(key)
	if entry, ok := strings.CutPrefix(token, offered); ok { // see ParseInfo
		return l.releaseOne(ctx, keys, token, entry)
	}
	return l.releaseOne(ctx, keys, token)
}

func (l *Locks) releaseOne(ctx context.Context, keys Keys, token string, entries ...string) (bool, error) {
	s := NewSending(ctx, token)
	defer l.doubts.released(l, ctx, keys, s.Token)
	return CallInOrder(&l.Caller, s, func() (bool, error) {
		released, err := l.release(keys, s, entries...)
		return err == nil && (released || s.Sends() > 1), err
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

// Watch returns a channel that receives a value when a lock is released, and when a release may
// have been missed. If the user is not permitted to subscribe, the error is
// [errors.ErrUnsupported], since callers can poll instead.
func (l *Locks) Watch(ctx context.Context, key string) (<-chan struct{}, error) {
	if l.Err != nil {
		return nil, l.Err
	}
	hubs, err := l.Hubs(ctx)
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

// run runs a script on a queue and its locks, with s as its first argument. While a Cluster moves
// the lock's slot to another node, the lock and the queue may be on different nodes. The script is
// then run on the lock alone.
func (l *Locks) run(script Script, keys Keys, s *Sending, ms int64, more ...string) (any, error) {
	if keys.permits != nil {
		reply, err := l.send(s, Eval{Script: script, Key1: keys.Queue, Keys: keys.permits, TTL: ms, More: more})
		if err != nil && l.requests.IsReply(err, "CROSSSLOT") {
			l.slots.Store(true)
			return nil, errSlots
		}
		return reply, err
	}
	if keys.Queue != "" {
		reply, err := l.eval(script, keys.Queue, keys.Lock, s, ms, more...)
		if err == nil || !l.requests.IsReply(err, "TRYAGAIN") {
			return reply, err
		}
	}
	return l.eval(script, keys.Lock, "", s, ms, more...)
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

// ParseFence reads the reply to a [Fence] or a [Count]: 0 if the token does not hold the lock.
func ParseFence(reply any, err error) (uint64, error) {
	if err != nil {
		return 0, err
	}
	if number, ok := reply.(string); ok {
		if n, err := strconv.ParseUint(number, 10, 63); err == nil {
			return n, nil
		}
	}
	if reply != int64(0) {
		err = fmt.Errorf("unexpected reply to a request for a fencing number: %v", reply)
	}
	return 0, err
}
