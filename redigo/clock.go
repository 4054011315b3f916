package redigo

import (
	"sync/atomic"
	"time"
)

const (
	// margin is added so that a lock does not come out short if its request is a little slower than
	// those before.
	margin = 2 * time.Millisecond

	// late is how long past its ttl a lock may live on the server.
	late = 50 * time.Millisecond
)

// clock makes the expiries that are sent before the reply to the same request brings the server's
// time. It computes them from this process's monotonic clock and the offset of the server's, which
// every reply with the server's time measures. Such an expiry counts only if that reply shows that
// it fits. All times are in µs.
//
// With [WithClientClock], now is the wall clock and ahead stays 0.
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

// expiry returns the expiry of a lock that is to live for ttl from the arrival of a request sent
// now, if that request takes no longer to arrive than earlier ones.
func (c *clock) expiry(ttl time.Duration) int64 {
	now := c.now() + c.ahead.Load()
	if !c.client {
		now += margin.Microseconds()
	}
	return expiry(now, ttl)
}

// fits reports whether a lock that the server wrote with expiry at its time now lives for ttl from
// then, and for no more than late beyond it.
func (c *clock) fits(expiry, now int64, ttl time.Duration) bool {
	beyond := expiry*1000 - now - ceil(int64(ttl), 1000)
	return c.client || beyond >= 0 && beyond <= late.Microseconds()
}

// expiry returns the time ttl after now, in ms, rounded up.
func expiry(now int64, ttl time.Duration) int64 { return ceil(now+ceil(int64(ttl), 1000), 1000) }

func ceil(n, unit int64) int64 {
	q := n / unit
	if n%unit > 0 {
		q++
	}
	return q
}

// observe learns from a request that was sent at sent and that the server carried out at its time
// server.
//
// A larger offset is taken over at once, whether a clock was stepped, this machine was suspended,
// or the request was slow: locks then live longer. A much smaller one is taken over at once as
// well, since locks would otherwise outlive their ttl by more than late. Apart from that the
// offset shrinks gradually, so that a single fast request does not make the locks of requests of
// usual speed come out short.
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
