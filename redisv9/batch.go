package redisv9

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/golockers/locker/internal/inflight"
	"github.com/golockers/locker/internal/redislock"
	"github.com/redis/go-redis/v9"
)

// maxBatch is how many commands travel together. It bounds how long the first of them waits for the
// replies to the others.
const maxBatch = 128

// batches let the calls of a Locker travel together. While fewer than slots requests are under way,
// a call is a request of its own, on its caller's goroutine and context. Further calls queue. A
// request that ends gives its slot to the queue: a single call takes it and goes alone, and several
// become one pipeline. So no call waits while a slot is free, and there is neither a timer nor a
// goroutine, except for the pipelines under way.
type batches struct {
	locker *Locker
	slots  int
	always bool // for tests: a call that goes alone is a pipeline as well

	mu          sync.Mutex
	busy        int      // slots in use: all of them, while calls queue
	first, last *batched // the queue
	queued      int      // its length
}

// batched is a call that had to queue, and its command in a pipeline. Its caller can withdraw it
// until it is written. From then on the command and the Sending belong to the pipeline, and the
// caller can only leave them behind; they are the caller's again when ready is closed.
type batched struct {
	redis.Cmder
	batches *batches
	sending *redislock.Sending
	ready   chan struct{}
	state   atomic.Int32 // waiting, withdrawn or underWay

	// Guarded by the batches' lock:
	prev, next *batched // in the queue
	isQueued   bool
	isOver     bool
	ended      func() // called when it is over, since its caller has left it behind

	answered bool // by the server

	// The outcome, once it is over:
	alone   bool // it is to be sent as a request of its own,
	hasSlot bool // and has a slot
	err     error
}

const (
	waiting   = iota // in the queue, or in a batch that has not been written yet
	withdrawn        // its caller has left, and it will not be sent
	underWay         // or answered
)

// process sends a command and returns the error of its reply, or of the lack of one. If s's context
// ends before, the command may still be under way.
func (b *batches) process(s *redislock.Sending, cmd redis.Cmder) error {
	c := b.enter(s, cmd)
	if c == nil {
		defer b.pass()
		return b.locker.sendAlone(s, cmd)
	}
	select {
	case <-c.ready:
	case <-s.Ctx.Done():
		if c.withdraw() || b.locker.locks.Leave(s, c.ready, c.leave) {
			return s.Ctx.Err()
		}
		<-c.ready
	}
	if c.hasSlot {
		defer b.pass()
	}
	if !c.alone {
		return c.err
	}
	return b.locker.sendAlone(s, cmd)
}

// enter takes a slot, and returns nil, or queues.
func (b *batches) enter(s *redislock.Sending, cmd redis.Cmder) *batched {
	b.mu.Lock()
	defer b.mu.Unlock()
	isFree := b.busy < b.slots
	if isFree {
		b.busy++
		if !b.always {
			return nil
		}
	}
	c := &batched{Cmder: cmd, batches: b, sending: s, ready: make(chan struct{})}
	b.push(c)
	if isFree {
		b.passLocked()
	}
	return c
}

func (b *batches) push(c *batched) {
	c.prev, c.isQueued = b.last, true
	if b.last != nil {
		b.last.next = c
	} else {
		b.first = c
	}
	b.last = c
	b.queued++
}

func (b *batches) remove(c *batched) {
	if c.prev != nil {
		c.prev.next = c.next
	} else {
		b.first = c.next
	}
	if c.next != nil {
		c.next.prev = c.prev
	} else {
		b.last = c.prev
	}
	c.prev, c.next, c.isQueued = nil, nil, false
	b.queued--
}

// pass gives a slot to the queue, or gives it up.
func (b *batches) pass() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.passLocked()
}

func (b *batches) passLocked() {
	if batch := b.take(); len(batch) > 0 {
		go b.run(batch)
	}
}

// take gives a slot to the queue. If that is for a batch, take returns it. Otherwise the slot is
// given to the only call in the queue, or given up.
func (b *batches) take() []*batched {
	for b.queued == 1 && !b.always {
		c := b.first
		b.remove(c)
		if c.state.CompareAndSwap(waiting, underWay) { // its caller has not just left
			c.alone, c.hasSlot, c.isOver = true, true, true
			close(c.ready)
			return nil
		}
	}
	n := min(b.queued, maxBatch)
	if n == 0 {
		b.busy--
		return nil
	}
	batch := make([]*batched, n)
	for i := range batch {
		batch[i] = b.first
		b.remove(b.first)
	}
	return batch
}

// run sends batches in a slot, until fewer than two calls queue.
func (b *batches) run(batch []*batched) {
	defer func() {
		if batch != nil { // a hook has ended the goroutine
			b.pass()
		}
	}()
	for batch != nil {
		b.send(batch)
		// Callers that have more to send can then queue before the next batch is made.
		runtime.Gosched()
		b.mu.Lock()
		batch = b.take()
		b.mu.Unlock()
	}
}

// withdraw takes a call back that has not been sent, and reports whether it could.
func (c *batched) withdraw() bool {
	if !c.state.CompareAndSwap(waiting, withdrawn) {
		return false
	}
	b := c.batches
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.isQueued {
		b.remove(c)
	}
	return true
}

// leave leaves a call behind that is under way, and reports whether it is.
func (c *batched) leave(ended func()) bool {
	c.batches.mu.Lock()
	defer c.batches.mu.Unlock()
	if c.isOver {
		return false
	}
	c.ended = ended
	return true
}

// send sends a batch as one pipeline. A panic, of a hook for instance, has no caller that could
// recover it.
func (b *batches) send(batch []*batched) {
	err := inflight.ErrGoexit
	defer func() { b.finish(batch, err) }()
	ctx, cancel := contextOf(batch)
	defer cancel()
	pipe := b.locker.client.Pipeline()
	for _, c := range batch {
		_ = pipe.Process(ctx, c) // it only collects
	}
	_, err = pipe.Exec(ctx)
}

// contextOf returns a context that ends when the last of a batch's callers runs out of time.
func contextOf(batch []*batched) (context.Context, context.CancelFunc) {
	var last time.Time
	for _, c := range batch {
		deadline, ok := c.sending.Ctx.Deadline()
		if !ok {
			return context.Background(), func() {}
		}
		if deadline.After(last) {
			last = deadline
		}
	}
	return context.WithDeadline(context.Background(), last)
}

// leftOut takes the place of a call whose caller has left since its batch was made, as commands
// cannot be taken out of a pipeline.
var leftOut = []any{"ping"}

// Args returns the command's arguments. go-redis calls it to write the command: what was withdrawn
// before that is not sent.
func (c *batched) Args() []any {
	if c.state.CompareAndSwap(waiting, underWay) {
		c.sending.BeginInBatch(c.Cmder, c.batches.locker.runsOnConnect)
	} else if c.state.Load() == withdrawn {
		return leftOut
	}
	return c.Cmder.Args()
}

// SetErr sets the command's error. Only the first reply counts: when go-redis gives up a pipeline
// that it was about to repeat, it also sets the error of commands that have been answered.
func (c *batched) SetErr(err error) {
	if c.answered {
		return
	}
	_, isReply := err.(redis.Error) // and not one that wraps it
	c.answered = err == nil || isReply
	c.Cmder.SetErr(err)
}

var errNoReply = errors.New("the pipeline ended without a reply to this command")

// finish hands out the outcomes of a batch whose pipeline has ended with err. If go-redis was about
// to repeat the pipeline, every command without a reply, or with one that is an error, is left to
// its caller, if that is still there: go-redis repeats single commands by the same rules.
func (b *batches) finish(batch []*batched, err error) {
	repeats := errors.Is(err, redislock.ErrSentBefore)
	if err == nil || errors.Is(err, redis.Nil) {
		err = errNoReply
	}
	b.mu.Lock()
	for i, c := range batch {
		if !c.state.CompareAndSwap(waiting, underWay) {
			if c.state.Load() == withdrawn {
				batch[i] = nil
				continue
			}
			c.sending.End()
		}
		switch reply := c.Cmder.Err(); {
		case c.answered && (!repeats || reply == nil || errors.Is(reply, redis.Nil)):
			c.err = reply
		case repeats:
			c.alone = true
		default:
			c.err = err
		}
		c.isOver = true
	}
	b.mu.Unlock()
	for _, c := range batch {
		if c == nil {
			continue
		}
		if c.ended != nil {
			c.ended()
		}
		close(c.ready)
	}
}
