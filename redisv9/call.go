package redisv9

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/inflight"
	"github.com/golockers/locker/internal/redislock"
	"github.com/redis/go-redis/v9"
)

// sending is an encoded token on its way to the server, perhaps more than once: go-redis repeats a
// request whose reply was lost and does not tell, but it asks for the bytes each time. Once ctx has
// ended there are none, so that nothing is sent for a caller who has gone.
type sending struct {
	ctx   context.Context
	token string
	sends int       // how often the token may have left the process
	first time.Time // when it first did; until then, when it was made
	bytes [32]byte  // room for a token of usual length

	answered bool // it was sent once and came back with an answer
}

func newSending(ctx context.Context, token string) *sending {
	return &sending{ctx: ctx, token: redislock.EncodeToken(token), first: time.Now()}
}

// MarshalBinary implements [encoding.BinaryMarshaler].
func (s *sending) MarshalBinary() ([]byte, error) {
	if err := s.ctx.Err(); err != nil {
		return nil, err // as it is: go-redis must not take it for one that passes
	}
	if s.sends++; s.sends == 1 {
		s.first = time.Now()
	}
	return append(s.bytes[:0], s.token...), nil
}

// isOver says that nothing of it is still to come, once the call has returned.
func (s *sending) isOver() bool { return s.answered || s.sends == 0 }

// isUnsent says that it certainly never left the process. The call has returned, but may have been
// left behind: then nobody knows.
func (s *sending) isUnsent() bool { return s.ctx.Err() == nil && s.sends == 0 }

// isForeign reports whether it certainly did nothing, because the lock is a foreign one.
func (s *sending) isForeign(err error) bool {
	return errors.Is(err, redislock.ErrForeign) && s.ctx.Err() == nil && s.sends == 1
}

// String is what hooks that log commands show.
func (s *sending) String() string { return s.token }

// refused is the error, if any, of an attempt that the last request says was refused. An earlier
// request that timed out may be waiting before the server yet, and take the lock when it is free.
// Or it took the lock, whose ttl has passed since.
func (s *sending) refused(timeout, ttl time.Duration) error {
	if since := time.Since(s.first); s.sends > 1 && since >= min(timeout, ttl) {
		return fmt.Errorf("refused, but the first of %d requests went %v ago without an answer, "+
			"and may have taken the lock in the meantime, or may yet", s.sends, since)
	}
	return nil
}

// call runs an operation for s's token under s's ctx, as [inflight.Do] does.
func call[T any](l *Locker, s *sending, f func() (T, error)) (T, error) {
	return callAfter(l, s, false, f)
}

// callInOrder is call behind whatever a caller has left behind for the token.
func callInOrder[T any](l *Locker, s *sending, f func() (T, error)) (T, error) {
	return callAfter(l, s, true, f)
}

func callAfter[T any](l *Locker, s *sending, inOrder bool, f func() (T, error)) (T, error) {
	caller := s.ctx
	if l.limits.unbounded {
		var cancel context.CancelFunc
		s.ctx, cancel = context.WithTimeout(caller, defaultTimeout)
		defer cancel()
	}
	err := l.err
	if err == nil && inOrder {
		err = l.calls.Wait(s.ctx, s.token)
	}
	if err == nil {
		var v T
		if v, err = inflight.Do(s.ctx, &l.calls, s.token, l.limits.inline, f); err == nil {
			return v, nil
		}
	}
	if s.ctx.Err() != nil && caller.Err() == nil {
		err = errNoReply
	}
	var zero T
	return zero, err
}

var errNoReply = errors.New("no reply within 3 seconds, and the client has no timeout of its own")

// run runs a script on a lock, with s as its first argument. While the lock's slot is on its way to
// another node of a Cluster, the queue may be on the one and the lock on the other: then the lock
// alone has to do.
func (l *Locker) run(script redislock.Script, keys redislock.Keys, s *sending, args ...any) (any, error) {
	reply, err := l.eval(script, keys.Lock, keys.Queue, s, args...)
	if err != nil && keys.Queue != "" && redis.HasErrorPrefix(err, "TRYAGAIN") {
		s.sends-- // that one did nothing
		reply, err = l.eval(script, keys.Lock, "", s, args...)
	}
	return reply, err
}

// eval runs a script. The second key may be empty: then there is none. A server that does not have
// the script is sent its text.
func (l *Locker) eval(script redislock.Script, key1, key2 string, s *sending, args ...any) (any, error) {
	request := make([]any, 0, 6+len(args))
	request = append(request, "evalsha", script.Hash)
	if key2 == "" {
		request = append(request, 1, key1)
	} else {
		request = append(request, 2, key1, key2)
	}
	request = append(append(request, s), args...)
	start := time.Now()
	reply, err := l.client.Do(s.ctx, request...).Result()
	if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
		s.sends-- // that one did nothing
		request[0], request[1] = "eval", script.Text
		start = time.Now()
		reply, err = l.client.Do(s.ctx, request...).Result()
	}
	if err == nil {
		l.roundTrip.add(time.Since(start))
	} else {
		if foreign := redislock.ForeignReply(err.Error()); foreign != nil {
			return nil, foreign
		}
	}
	return reply, err
}

// roundTrip is how long a Locker's requests take, smoothed. It grows faster than it shrinks, since
// a claim that is too short is lost, and one that is too long is made anyway.
type roundTrip struct{ ns atomic.Int64 }

func (r *roundTrip) add(d time.Duration) {
	old := r.ns.Load()
	weight := int64(8)
	switch {
	case old == 0:
		weight = 1
	case int64(d) > old:
		weight = 2
	}
	r.ns.CompareAndSwap(old, old+(int64(d)-old)/weight) // of several at once, one does
}

// claim returns how long a waiter needs to claim a lock.
func (r *roundTrip) claim() time.Duration { return redislock.Claim(time.Duration(r.ns.Load())) }

// milliseconds rounds up. The longest time.Duration is 292 years, which Redis can count from any
// year.
func milliseconds(ttl time.Duration) (int64, error) {
	if ttl <= 0 {
		return 0, fmt.Errorf("%w: %v", locker.ErrInvalidTTL, ttl)
	}
	ms := ttl.Milliseconds()
	if ttl%time.Millisecond > 0 {
		ms++
	}
	return ms, nil
}
