package redislock

// How this process takes back requests of its own that have no answer yet. How the scripts pass over a
// waiter that has died, of any process, is in locks.lua.

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/golockers/locker/internal/pubsub"
	"github.com/golockers/locker/internal/undo"
)

const (
	attemptFor  = 5 * time.Second        // an attempt to undo something
	patience    = 100 * time.Millisecond // a Wait that gives up takes so much time to leave the queue
	sweepLate   = 20 * time.Millisecond  // after the end of an offer, for waiters to notice
	maxSweeps   = 256                    // queues that a Locker looks after
	maxRepeated = 1024                   // tokens of which a Locker knows that a request may arrive late
)

// release runs the script of that name. If the lock was offered, it makes sure that the queue moves
// on even if all that were told are gone, and no other process notices.
func (l *Locks) release(keys Keys, s *Sending, entries ...string) (bool, error) {
	var more []string
	if len(entries) > 0 {
		more = append(append(make([]string, 0, 1+len(entries)), ""), entries...)
	}
	reply, err := l.run(Release, keys, s, 0, more...)
	if err != nil {
		return false, err
	}
	n, ok := reply.(int64)
	if !ok || n < 0 {
		return false, fmt.Errorf("unexpected reply to a release: %v", reply)
	}
	if seconds := n / 10; seconds > 0 {
		l.sweepLater(keys, time.Duration(seconds)*time.Second+sweepLate)
	}
	return n%10 == 1, nil
}

// undo takes entries out of the queue, and releases the lock if the token has it, or passes it on if
// it is offered to one of the entries. It returns when that was tried, or after a short time, and goes
// on in the background until it is certain. last is the only request of the token that may still
// arrive. If it is nil there may be several.
func (l *Locks) undo(ctx context.Context, keys Keys, token string, ttl time.Duration, last *Sending, entries ...string) {
	answered := make(chan struct{})
	attempt := func(ctx context.Context) (done bool, err error) {
		ctx, cancel := context.WithTimeout(ctx, attemptFor)
		defer cancel()
		s := &Sending{Ctx: ctx, Token: token}
		released, err := CallInOrder(&l.Caller, s, func() (bool, error) { return l.release(keys, s, entries...) })
		if err == nil && answered != nil {
			close(answered)
			answered = nil
		}
		// It has waited for calls that were left behind, so last may be read now.
		isOver := err == nil && last != nil && (last.isOver() || released && last.Sends() == 1)
		return isOver || isHopeless(err), err
	}
	over := answered
	if !undo.Start(ctx, undo.Work{Owner: l.owner, Window: max(ttl, attemptFor), Attempt: attempt}) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		_, _ = attempt(ctx)
		return
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-over:
	case <-timer.C:
	}
}

// isHopeless reports whether a request that failed need not be repeated.
func isHopeless(err error) bool {
	return errors.Is(err, pubsub.ErrClosed) || errors.Is(err, ErrForeign)
}

// pass offers to the next a lock that is offered to an entry whose waiter has gone.
func (l *Locks) pass(entry string) {
	_, id, _ := strings.Cut(entry, " ")
	keys, ok := l.names.keysOf(id)
	if !ok {
		return
	}
	undo.Start(context.Background(), undo.Work{Owner: l.owner, Window: attemptFor,
		Attempt: func(ctx context.Context) (bool, error) {
			s := &Sending{Ctx: ctx, Token: rand.Text()}
			_, err := Call(&l.Caller, s, func() (bool, error) { return l.release(keys, s, entry) })
			return err == nil || isHopeless(err), err
		}})
}

// sweeps are the queues that a Locker looks after until the offers that it has made have ended.
type sweeps struct {
	mu      sync.Mutex
	pending map[string]struct{}
}

// sweepLater makes all in a queue look after some time, if the lock is free then: those that were
// told of the offer do not live.
func (l *Locks) sweepLater(keys Keys, after time.Duration) {
	p := &l.sweeps
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.pending[keys.Queue]; ok || len(p.pending) >= maxSweeps {
		return
	}
	if p.pending == nil {
		p.pending = make(map[string]struct{})
	}
	p.pending[keys.Queue] = struct{}{}
	time.AfterFunc(after, func() {
		p.mu.Lock()
		delete(p.pending, keys.Queue)
		p.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), attemptFor)
		defer cancel()
		_, _ = l.run(Release, keys, &Sending{Ctx: ctx, Token: rand.Text()}, 0, "1000")
	})
}

// repeated are the tokens that hold a lock although one of the requests that took it has no answer.
// It may arrive after the release and take the lock again, so the token is released for some time.
type repeated struct {
	count  atomic.Int64 // the number of tokens
	mu     sync.Mutex
	tokens map[string]*repeatedToken // by their locks and themselves
}

type repeatedToken struct {
	isReleased bool          // guarded by the lock of repeated
	turn       chan struct{} // has a value during a request
	isStopped  bool          // guarded by turn
}

func (k Keys) with(token string) string { return k.Lock + k.Queue + " " + token }

// note remembers a token.
func (r *repeated) note(keys Keys, token string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.tokens == nil {
		r.tokens = make(map[string]*repeatedToken)
	}
	for name := range r.tokens {
		if len(r.tokens) < maxRepeated {
			break
		}
		delete(r.tokens, name)
	}
	r.tokens[keys.with(token)] = &repeatedToken{turn: make(chan struct{}, 1)}
	r.count.Store(int64(len(r.tokens)))
}

// stop stops releasing a token that is about to be used again. The error is ctx's.
func (r *repeated) stop(ctx context.Context, keys Keys, token string) error {
	if r.count.Load() == 0 {
		return nil
	}
	t := r.find(keys.with(token), true)
	if t == nil {
		return nil
	}
	select {
	case t.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	t.isStopped = true
	<-t.turn
	return nil
}

// find returns the token of that name if it has been released or not.
func (r *repeated) find(name string, isReleased bool) *repeatedToken {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.tokens[name]
	if t == nil || t.isReleased != isReleased {
		return nil
	}
	t.isReleased = true
	return t
}

// released is called when a token has been released. One that is remembered is released again and
// again, until no request of it can arrive any more.
func (r *repeated) released(l *Locks, ctx context.Context, keys Keys, token string) {
	if r.count.Load() == 0 {
		return
	}
	name := keys.with(token)
	t := r.find(name, false)
	if t == nil {
		return
	}
	time.AfterFunc(2*undo.Late, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.tokens[name] == t {
			delete(r.tokens, name)
			r.count.Store(int64(len(r.tokens)))
		}
	})
	undo.Start(ctx, undo.Work{Owner: l.owner, Window: undo.Longest, Attempt: func(ctx context.Context) (bool, error) {
		t.turn <- struct{}{}
		defer func() { <-t.turn }()
		if t.isStopped {
			return true, nil
		}
		s := &Sending{Ctx: ctx, Token: token}
		_, err := Call(&l.Caller, s, func() (bool, error) { return l.release(keys, s) })
		return isHopeless(err), err
	}})
}
