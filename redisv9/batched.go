package redisv9

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/golockers/locker/internal/lazyctx"
	"github.com/golockers/locker/internal/redislock"
	"github.com/redis/go-redis/v9"
)

// batched is a call that had to queue, and its command in a pipeline. Its caller can withdraw it
// until it is written. From then on the command and the Sending belong to the pipeline, and the
// caller can only leave them behind. When the call is over they are the caller's again.
type batched struct {
	firstReply
	batches *batches
	sending *redislock.Sending
	state   atomic.Int32

	// The caller waits for done or for a value in wake. That has room for two: one from the alarm, if
	// it is the first to set rung, and one when the call is over.
	wake     chan struct{}
	done     <-chan struct{} // nil if the context never ends, or only at deadline
	deadline time.Time       // when the alarm has to wake the caller; zero: never
	rung     atomic.Bool

	// Guarded by the batches' lock:
	prev, next *batched // in the queue
	isQueued   bool

	// Set by a caller that leaves the call behind:
	ended func()        // called when it is over
	gone  chan struct{} // closed after that

	// The outcome, once the call is over:
	alone   bool // the caller has to send it as a request of its own
	hasSlot bool // and has been given a slot for that
	err     error
}

// The states of a call.
const (
	waiting   = iota // in the queue, or in a batch that has not been written yet
	withdrawn        // its caller has left, and it will not be sent
	underWay         // it can no longer be withdrawn
	left             // the same, but its caller has left
	over             // it has an outcome
)

func newBatched(b *batches, s *redislock.Sending, cmd redis.Cmder) *batched {
	c := &batched{firstReply: firstReply{Cmder: cmd}, batches: b, sending: s}
	if c.wake, _ = b.wakes.Get().(chan struct{}); c.wake == nil {
		c.wake = make(chan struct{}, 2)
	}
	c.deadline, c.done = endOf(s.Ctx)
	s.BeginInBatch(&c.firstReply, b.locker.runsOnConnect)
	return c
}

// endOf returns the deadline of a context that nothing else ends, or otherwise a context's Done. The
// Done of an Unlock's context would cost a timer.
func endOf(ctx context.Context) (deadline time.Time, done <-chan struct{}) {
	if l, ok := ctx.(*lazyctx.Context); ok && l.IsDetached() {
		deadline, _ = ctx.Deadline()
		return deadline, nil
	}
	return time.Time{}, ctx.Done()
}

// wait waits until the call is over, and reports false if its context ends first.
func (c *batched) wait() bool {
	for {
		if c.done == nil {
			<-c.wake
		} else {
			select {
			case <-c.wake:
			case <-c.done:
				if c.leave() {
					return false
				}
				<-c.wake
			}
		}
		if c.state.Load() == over {
			break
		}
		if c.sending.Ctx.Err() != nil && c.leave() { // it was the alarm
			return false
		}
	}
	if c.rung.CompareAndSwap(false, true) { // wake stays empty from here on, so another call can use it
		c.batches.wakes.Put(c.wake)
	}
	return true
}

// ring wakes the caller before the call is over. It does so only once.
func (c *batched) ring() {
	if c.rung.CompareAndSwap(false, true) {
		c.wake <- struct{}{}
	}
}

// leave withdraws a call, or leaves it behind. It reports false if the call is over.
func (c *batched) leave() bool {
	if c.state.CompareAndSwap(waiting, withdrawn) {
		b := c.batches
		b.mu.Lock()
		defer b.mu.Unlock()
		if c.isQueued {
			b.remove(c)
		}
		return true
	}
	c.gone = make(chan struct{})
	return c.batches.locker.locks.Leave(c.sending, c.gone, func(ended func()) bool {
		c.ended = ended
		return c.state.CompareAndSwap(underWay, left)
	})
}

// goAlone gives a slot to a call that has been in no batch. It reports false if the caller has just
// left.
func (c *batched) goAlone() bool {
	c.alone, c.hasSlot = true, true
	if !c.state.CompareAndSwap(waiting, over) {
		return false
	}
	c.wake <- struct{}{}
	return true
}

// leftOut takes the place of a call whose caller has left since its batch was made, as commands
// cannot be taken out of a pipeline.
var leftOut = []any{"ping"}

// Args returns the command's arguments. go-redis calls it to write the command, and a hook may call
// it at any time. What was withdrawn before the first call is not sent.
func (c *batched) Args() []any {
	if !c.state.CompareAndSwap(waiting, underWay) && c.state.Load() == withdrawn {
		return leftOut
	}
	return c.Cmder.Args()
}

// firstReply is a command of a pipeline. Only the first reply counts: when go-redis gives up a pipeline
// that it was about to repeat, it also sets the error of commands that have been answered.
type firstReply struct {
	redis.Cmder
	answered bool // by the server
}

// SetErr sets the command's error.
func (r *firstReply) SetErr(err error) {
	if r.answered {
		return
	}
	_, isReply := err.(redis.Error) // and not one that wraps it
	r.answered = err == nil || isReply
	r.Cmder.SetErr(err)
}

// finish hands out the outcome of a call whose batch has ended: its reply, or err if it has none. If
// go-redis was about to repeat the batch, an error is replaced by a request of the caller's own.
func (c *batched) finish(err error, repeats bool) {
	if !c.state.CompareAndSwap(waiting, underWay) && c.state.Load() == withdrawn {
		return
	}
	c.sending.End()
	switch reply := c.Cmder.Err(); {
	case c.answered && (!repeats || reply == nil || errors.Is(reply, redis.Nil)):
		c.err = reply
	case repeats:
		c.alone = true
	default:
		c.err = err
	}
	if c.state.Swap(over) == left {
		c.ended()
		close(c.gone)
		return
	}
	c.wake <- struct{}{}
}
