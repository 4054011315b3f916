package redisv9

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/golockers/locker/internal/inflight"
	"github.com/golockers/locker/internal/redislock"
	"github.com/redis/go-redis/v9"
)

// maxBatch is how many calls may travel together. It bounds how long the first of them waits for
// the replies to the others.
const maxBatch = 128

// batches let the calls of a Locker travel together. While fewer than slots requests are under way,
// a call is a request of its own, on its caller's goroutine and context. Further calls queue. A
// request that ends gives its slot to the queue: a single call takes it and goes alone, and several
// become one pipeline. So no call waits while a slot is free. A call has no goroutine or timer of
// its own: each pipeline under way has a goroutine, and all calls share an alarm.
type batches struct {
	locker *Locker
	slots  int
	always bool // for tests: every call goes in a pipeline, even a single one

	// The channels of calls that are over. A pool that all Lockers share would move channels from one
	// bubble of package synctest to another.
	wakes sync.Pool

	mu          sync.Mutex
	busy        int          // slots in use: all of them while calls queue
	first, last *batched     // the queue
	queued      int          // its length
	running     [][]*batched // the batches under way
	alarm       *time.Timer  // nil until it is set for the first time
	alarmAt     time.Time    // zero: the alarm is not set
}

// process sends a command and returns the error that is its reply, or why there is no reply. If s's
// context ends first, the command may still be under way.
func (b *batches) process(s *redislock.Sending, cmd redis.Cmder) error {
	if b.takeFree() {
		defer b.pass()
		return b.locker.sendAlone(s, cmd)
	}
	return b.wait(newBatched(b, s, cmd))
}

// wait queues a call and waits for its outcome.
func (b *batches) wait(c *batched) error {
	b.enter(c)
	if !c.wait() {
		return c.sending.Ctx.Err()
	}
	if c.hasSlot {
		defer b.pass()
	}
	if !c.alone {
		return c.err
	}
	return b.locker.sendAlone(c.sending, c.Cmder)
}

// takeFree takes a free slot for a call that goes alone, and reports whether there was one.
func (b *batches) takeFree() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.always || b.busy == b.slots {
		return false
	}
	b.busy++
	return true
}

// enter queues a call. A slot that has become free meanwhile is given to the queue.
func (b *batches) enter(c *batched) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.push(c)
	b.setAlarm(c.deadline)
	if b.busy < b.slots {
		b.busy++
		b.passLocked()
	}
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
	if batch := b.take(); batch != nil {
		go b.run(batch)
	}
}

// take gives a slot to the queue: to the only call in it, or to a batch, which take returns. If no
// calls queue, take gives the slot up.
func (b *batches) take() []*batched {
	for b.queued == 1 && !b.always {
		c := b.first
		b.remove(c)
		if c.goAlone() {
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
	b.running = append(b.running, batch)
	return batch
}

// ended forgets a batch that take has returned.
func (b *batches) ended(batch []*batched) {
	b.running = slices.DeleteFunc(b.running, func(r []*batched) bool { return r[0] == batch[0] })
}

// run sends batches in a slot until fewer than two calls queue.
func (b *batches) run(batch []*batched) {
	defer func() {
		if batch != nil { // a hook has ended the goroutine
			b.mu.Lock()
			defer b.mu.Unlock()
			b.ended(batch)
			b.passLocked()
		}
	}()
	for batch != nil {
		b.send(batch)
		// Callers that have more to send can then queue before the next batch is made.
		runtime.Gosched()
		b.mu.Lock()
		b.ended(batch)
		batch = b.take()
		b.mu.Unlock()
	}
}

// send sends a batch as one pipeline. A panic, of a hook for instance, has no caller that could
// recover it.
func (b *batches) send(batch []*batched) {
	ctx, cancel := contextOf(batch)
	defer cancel()
	err := inflight.ErrGoexit
	defer func() { finish(batch, err) }()
	pipe := b.locker.client.Pipeline()
	for _, c := range batch {
		_ = pipe.Process(ctx, c) // it only collects
	}
	_, err = pipe.Exec(ctx)
}

// contextOf returns a context that ends at the last deadline of a batch's callers, or never if one
// of them has none.
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

var errNoReply = errors.New("the pipeline ended without a reply to this command")

// finish hands out the outcomes of a batch whose pipeline has ended with err. If go-redis was about
// to repeat the pipeline, each caller that is still there sends its command alone if it had no reply
// or an error as its reply: go-redis repeats single commands by the same rules.
func finish(batch []*batched, err error) {
	repeats := errors.Is(err, redislock.ErrSentBefore)
	if err == nil || errors.Is(err, redis.Nil) {
		err = errNoReply
	}
	for _, c := range batch {
		c.finish(err, repeats)
	}
}

// alarmPause is the least time between two alarms. Each of them looks at all calls.
const alarmPause = 10 * time.Millisecond

// setAlarm sets the alarm for a deadline, unless that is zero or the alarm is set for an earlier
// time already. It needs b.mu.
func (b *batches) setAlarm(deadline time.Time) {
	if deadline.IsZero() || !b.alarmAt.IsZero() && !deadline.Before(b.alarmAt) {
		return
	}
	b.alarmAt = deadline
	if in := time.Until(deadline); b.alarm == nil {
		b.alarm = time.AfterFunc(in, b.ring)
	} else {
		b.alarm.Reset(in)
	}
}

// ring wakes the callers whose deadlines have passed, and sets the alarm for the others.
func (b *batches) ring() {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	var next time.Time
	look := func(c *batched) {
		switch {
		case c.deadline.IsZero() || c.state.Load() == over:
		case !now.Before(c.deadline):
			c.ring()
		case next.IsZero() || c.deadline.Before(next):
			next = c.deadline
		}
	}
	for c := b.first; c != nil; c = c.next {
		look(c)
	}
	for _, batch := range b.running {
		for _, c := range batch {
			look(c)
		}
	}
	b.alarmAt = time.Time{}
	if soonest := now.Add(alarmPause); !next.IsZero() && next.Before(soonest) {
		next = soonest
	}
	b.setAlarm(next)
}
