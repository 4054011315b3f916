package redigo

import (
	"sync/atomic"
	"time"
)

const (
	// margin is added so that a request a little slower than those before does not come out short.
	margin = 2 * time.Millisecond

	// late is how long past its ttl a lock may live on the server.
	late = 50 * time.Millisecond
)

// clock makes the expiries that have to be sent before the server has told its time. They are reckoned from
// this process's monotonic clock and the distance between the two, which every reply that carries the
// server's time measures again. Such an expiry counts only once the reply to the request that wrote it
// says that it fits. All times are in µs.
//
// With the client's clock for want of the server's, now is the wall clock and ahead stays 0.
type clock struct {
	now    func() int64
	client bool

	known atomic.Bool
	ahead atomic.Int64 // how far the server's clock is, plus the time that a request takes to arrive
}

func newClock(client bool) *clock {
	if client {
		return &clock{client: true, now: func() int64 { return time.Now().UnixMicro() }}
	}
	start := time.Now()
	return &clock{now: func() int64 { return time.Since(start).Microseconds() }}
}

// expiry is that of a lock which is to live for ttl from when a request sent now arrives, if that takes no
// longer than it did before.
func (c *clock) expiry(ttl time.Duration) int64 {
	now := c.now() + c.ahead.Load()
	if !c.client {
		now += margin.Microseconds()
	}
	return expiry(now, ttl)
}

// fits is whether a lock written with expiry, in a request that the server carried out at now, lives for
// ttl from then, and for no more than late beyond it.
func (c *clock) fits(expiry, now int64, ttl time.Duration) bool {
	beyond := expiry*1000 - now - ceil(int64(ttl), 1000)
	return c.client || beyond >= 0 && beyond <= late.Microseconds()
}

// expiry is ttl after now, in ms, rounded up.
func expiry(now int64, ttl time.Duration) int64 { return ceil(now+ceil(int64(ttl), 1000), 1000) }

func ceil(n, unit int64) int64 {
	q := n / unit
	if n%unit > 0 {
		q++
	}
	return q
}

// observe learns from a request that was sent at sent and carried out at the server's time server.
//
// The distance follows at once when it grows, be it that a clock was stepped, this machine suspended, or
// the request slow: the larger one makes locks live longer. It follows at once, too, when it was so large
// that locks would outlive their ttl by more than late, and otherwise shrinks little by little, so that a
// single fast request does not make the usual ones come out short.
func (c *clock) observe(sent, server int64) {
	if c.client {
		return
	}
	measured, ahead := server-sent, c.ahead.Load()
	switch {
	case !c.known.Load(), measured > ahead, measured < ahead-(late-margin).Microseconds():
		c.ahead.Store(measured)
		c.known.Store(true)
	default:
		c.ahead.Store(ahead - (ahead-measured)/256)
	}
}
