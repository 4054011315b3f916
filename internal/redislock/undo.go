package redislock

// How this process takes back requests of its own that have no answer yet, passes on what is offered to
// a waiter that has gone, and notices that nobody has taken an offer. How a release passes over a waiter
// that has died is in locks.lua (offer), and how the next waiter to look does in look.lua.

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
	attemptFor = 5 * time.Second       // an attempt to undo something
	sweepLate  = 20 * time.Millisecond // after the end of an offer, for waiters to notice
	maxSweeps  = 256                   // queues that a Locker looks after
	maxDoubts  = 4096                  // tokens of which a Locker knows that a request may arrive late
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
// on in the background until it is certain, or, for the token, until that is used again. last is the
// only request of the token that may still arrive. If it is nil there may be several. Without a token
// it leaves the lock alone.
func (l *Locks) undo(ctx context.Context, keys Keys, token string, ttl time.Duration, last *Sending, entries ...string) {
	var d *doubt
	if token == "" {
		token, d = rand.Text(), newDoubt()
		d.isReleased = true // which nobody uses again
	} else {
		d = l.doubts.note(keys, token)
		l.doubts.release(keys, token, d)
	}
	attempt := l.undoing(d, keys, token, last, entries)
	if !undo.Try(ctx, undo.Work{Owner: l.owner, Window: max(ttl, attemptFor), Attempt: attempt}) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undo.Patience)
		defer cancel()
		_, _ = attempt(ctx)
	}
}

// undoing returns an attempt to undo.
func (l *Locks) undoing(d *doubt, keys Keys, token string, last *Sending, entries []string) func(context.Context) (bool, error) {
	return func(ctx context.Context) (done bool, err error) {
		ctx, cancel := context.WithTimeout(ctx, attemptFor)
		defer cancel()
		s := &Sending{Ctx: ctx, Token: token}
		type outcome struct{ released, isOver bool }
		o, err := CallInOrder(&l.Caller, s, func() (o outcome, err error) {
			d.turn <- struct{}{}
			defer func() { <-d.turn }()
			if l.doubts.isInUse(d) {
				if len(entries) == 0 {
					return outcome{isOver: true}, nil
				}
				s.Token = rand.Text()
			}
			o.released, err = l.release(keys, s, entries...)
			if err != nil && !s.isUnsent() && !l.isAnswer(err) {
				l.doubts.failed(d)
			}
			return o, err
		})
		// It has waited for calls that were left behind, so last may be read now.
		done = err == nil && (o.isOver || last != nil && (last.isOver() || o.released && last.Sends() == 1)) || isHopeless(err)
		if done {
			l.doubts.drop(keys, token, d)
		}
		return done, err
	}
}

// isHopeless reports whether a request that failed need not be repeated.
func isHopeless(err error) bool {
	return errors.Is(err, pubsub.ErrClosed) || errors.Is(err, ErrForeign)
}

// isAnswer reports whether the server has sent an error.
func (l *Locks) isAnswer(err error) bool {
	return errors.Is(err, ErrForeign) || l.requests.IsReply(err, "")
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

// doubts are the tokens of which a request that takes a lock has no answer, and may arrive late. Such
// a token is released for some time if it should not hold the lock: when it has been released, or its
// Wait has ended.
type doubts struct {
	count  atomic.Int64 // the number of tokens
	mu     sync.Mutex
	tokens map[string]*doubt // by their locks and themselves
}

type doubt struct {
	turn chan struct{} // has a value during a request to release the token

	// Guarded by the lock of doubts:
	isReleased bool        // the token should not hold the lock
	failed     time.Time   // when a request to release it last had no answer
	end        *time.Timer // forgets a token that is released
}

func newDoubt() *doubt { return &doubt{turn: make(chan struct{}, 1)} }

func (k Keys) with(token string) string { return k.Lock + k.Queue + " " + token }

// note remembers a token for as long as a request of it may arrive.
func (d *doubts) note(keys Keys, token string) *doubt {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.tokens == nil {
		d.tokens = make(map[string]*doubt)
	}
	for name, t := range d.tokens {
		if len(d.tokens) < maxDoubts {
			break
		}
		// A token that is not known any more may be used again, so it is not released any more: if
		// it holds the lock, that ends with its ttl.
		t.isReleased = false
		d.removeLocked(name, t)
	}
	t := newDoubt()
	d.tokens[keys.with(token)] = t
	d.count.Store(int64(len(d.tokens)))
	return t
}

// find returns what is known of a token, or nil.
func (d *doubts) find(keys Keys, token string) *doubt {
	if d.count.Load() == 0 {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.tokens[keys.with(token)]
}

// drop forgets a token, unless there is news of it.
func (d *doubts) drop(keys Keys, token string, t *doubt) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if name := keys.with(token); d.tokens[name] == t {
		d.removeLocked(name, t)
	}
}

func (d *doubts) removeLocked(name string, t *doubt) {
	if t.end != nil {
		t.end.Stop()
	}
	delete(d.tokens, name)
	d.count.Store(int64(len(d.tokens)))
}

var errReleasing = errors.New("a request to release this token has no answer, and may arrive late: use another token")

// stop ends the releases of a token that is about to be used again. If that may be too late, it
// returns an error.
func (d *doubts) stop(ctx context.Context, keys Keys, token string) error {
	t := d.find(keys, token)
	if t == nil {
		return nil
	}
	select {
	case t.turn <- struct{}{}:
		defer func() { <-t.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if time.Since(t.failed) < undo.Late {
		return undo.Needless(errReleasing)
	}
	t.isReleased = false
	return nil
}

// release notes that a token should not hold the lock, and reports whether that is news.
func (d *doubts) release(keys Keys, token string, t *doubt) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if t.isReleased {
		return false
	}
	t.isReleased = true
	t.end = time.AfterFunc(undo.Longest, func() { d.drop(keys, token, t) })
	return true
}

// isInUse reports whether the token may hold the lock.
func (d *doubts) isInUse(t *doubt) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !t.isReleased
}

// failed notes that a request to release a token has no answer.
func (d *doubts) failed(t *doubt) {
	d.mu.Lock()
	defer d.mu.Unlock()
	t.failed = time.Now()
}

// released is called when a token has been released. One that is in doubt is released again and
// again, until no request of it can arrive any more.
func (d *doubts) released(l *Locks, ctx context.Context, keys Keys, token string) {
	if t := d.find(keys, token); t != nil && d.release(keys, token, t) {
		undo.Start(ctx, undo.Work{Owner: l.owner, Window: undo.Longest, Attempt: l.undoing(t, keys, token, nil, nil)})
	}
}
