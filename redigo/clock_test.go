package redigo

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const hour = int64(time.Hour / time.Microsecond)

// steps replaces a client's clock by one that can be stepped.
type steps struct{ by atomic.Int64 } // µs

func (s *steps) on(l *Locker) *steps {
	now := l.clock.now
	l.clock.now = func() int64 { return now() + s.by.Load() }
	return s
}

// rightly checks that a lock, which a successful operation with that ttl has taken or extended
// since the server's time before, lives for ttl from then, and hardly longer.
func rightly(tb testing.TB, raw rawConn, key string, before int64, ttl time.Duration, what string) {
	tb.Helper()
	expiry, after := raw.value(key).expiry*1000, raw.now()
	require.GreaterOrEqual(tb, expiry, before+ttl.Microseconds(), "%s: the lock ends early", what)
	require.LessOrEqual(tb, expiry, after+(ttl+time.Second).Microseconds(), "%s: the lock ends late", what)
}

// A client whose clock is an hour wrong, or jumps, never takes a lock that lives, and those it
// takes live as long as they should.
func TestClockSteps(t *testing.T) {
	t.Parallel()
	srv, holder, raw := newServer(t)
	isOK(t)(holder.Acquire(background, "held", "holder", 10*time.Minute))
	held := raw.string("GET", "locker:held")
	for _, start := range []int64{0, hour, -hour} {
		l := New(newPool(t, srv.Addr))
		s := new(steps).on(l)
		s.by.Store(start)
		for i := range 60 {
			what := fmt.Sprintf("began at %d µs, attempt %d at %d µs", start, i, s.by.Load())
			isRefused(t)(l.Acquire(background, "held", "thief", time.Minute))

			before := raw.now()
			isOK(t)(l.Acquire(background, "free", "t", time.Minute))
			rightly(t, raw, "locker:free", before, time.Minute, what)
			before = raw.now()
			isOK(t)(l.Extend(background, "free", "t", 2*time.Minute))
			rightly(t, raw, "locker:free", before, 2*time.Minute, what)
			isOK(t)(l.Release(background, "free", "t"))

			raw.plant("locker:expired", "gone", -time.Millisecond)
			before = raw.now()
			isOK(t)(l.Acquire(background, "expired", "t", time.Minute))
			rightly(t, raw, "locker:expired", before, time.Minute, what)
			if i%3 == 2 {
				s.by.Store([]int64{0, hour, -hour, rand.Int64N(2*hour) - hour}[rand.N(4)])
			}
		}
	}
	assert.Equal(t, held, raw.string("GET", "locker:held"))
	isOK(t)(holder.Extend(background, "held", "holder", time.Minute))
}

// The clock jumps within an operation, at each point at which it is read. A result of true is right.
func TestClockStepsMidway(t *testing.T) {
	t.Parallel()
	srv, _, raw := newServer(t)
	for _, step := range []int64{hour, -hour, 30_000, -30_000, 70_000, -70_000} {
		for name, op := range map[string]struct {
			plant func()
			run   func(l *Locker) (bool, error)
		}{
			"acquire": {
				func() { raw.do("DEL", "locker:k") },
				func(l *Locker) (bool, error) { return l.Acquire(background, "k", "t", time.Minute) },
			},
			"take over": {
				func() { raw.plant("locker:k", "gone", -time.Second) },
				func(l *Locker) (bool, error) { return l.Acquire(background, "k", "t", time.Minute) },
			},
			"extend": {
				func() { raw.plant("locker:k", "t", time.Second*30) },
				func(l *Locker) (bool, error) { return l.Extend(background, "k", "t", time.Minute) },
			},
		} {
			l := New(newPool(t, srv.Addr))
			s := new(steps).on(l)
			isOK(t)(l.Acquire(background, "warm", "t", time.Minute))
			isOK(t)(l.Release(background, "warm", "t"))
			for at := int64(1); ; at++ {
				var looked atomic.Int64
				now := l.clock.now
				l.clock.now = func() int64 {
					if looked.Add(1) == at {
						s.by.Add(step)
					}
					return now()
				}
				op.plant()
				before := raw.now()
				what := fmt.Sprintf("%s, step by %d µs at look %d", name, step, at)
				ok, err := op.run(l)
				require.NoError(t, err, what)
				require.True(t, ok, what)
				rightly(t, raw, "locker:k", before, time.Minute, what)
				l.clock.now = now
				if looked.Load() < at {
					break
				}
				require.Less(t, at, int64(100))
			}
		}
	}
}

// A clock that jumps at every reading makes operations fail, but their results are never wrong.
func TestClockMad(t *testing.T) {
	t.Parallel()
	srv, _, raw := newServer(t)
	l := New(newPool(t, srv.Addr))
	l.clock.now = func() int64 { return rand.Int64N(2*hour) - hour }
	oks := 0
	for i := range 300 {
		key := strconv.Itoa(i)
		before := raw.now()
		ok, err := l.Acquire(background, key, "t", time.Minute)
		if err != nil {
			require.ErrorIs(t, err, errChanged)
			continue
		}
		require.True(t, ok, "there is no other client")
		oks++
		require.GreaterOrEqual(t, raw.value("locker:"+key).expiry*1000, before+time.Minute.Microseconds())
	}
	t.Logf("%d of 300 were right after all", oks)
}

// A lock that came out short, and that another took before it could be corrected, belongs to the other.
func TestTakenBeforeCorrection(t *testing.T) {
	t.Parallel()
	srv, other, raw := newServer(t)
	w, pool := newWire(t, srv.Addr)
	l := New(pool)
	s := new(steps).on(l)
	isOK(t)(l.Acquire(background, "warm", "t", time.Minute))
	s.by.Store(-hour) // what it writes from here on is expired when it arrives
	w.onSending(func(request string) {
		if has(request, "WATCH") {
			w.quiet()
			isOK(t)(other.Acquire(background, "k", "other", 10*time.Minute))
		}
	})
	w.requests()
	isRefused(t)(l.Acquire(background, "k", "t", time.Minute))
	require.Len(t, w.requests(), 3, "it did not come out short, so this test shows nothing")
	assert.Equal(t, "other", raw.value("locker:k").token)
	isOK(t)(other.Extend(background, "k", "other", 10*time.Minute))
}

// shifted is a connection to a server whose clock is wrong.
type shifted struct {
	redis.Conn
	by *atomic.Int64 // seconds
}

func (c shifted) ReceiveWithTimeout(timeout time.Duration) (any, error) {
	return redis.ReceiveWithTimeout(c.Conn, timeout)
}

func (c shifted) DoWithTimeout(timeout time.Duration, name string, args ...any) (any, error) {
	reply, err := redis.DoWithTimeout(c.Conn, timeout, name, args...)
	c.shift(reply)
	return reply, err
}

// shift changes all times in a reply, which are the only pairs of numbers.
func (c shifted) shift(reply any) {
	list, _ := reply.([]any)
	if parts, err := redis.Int64s(reply, nil); err == nil && len(parts) == 2 && parts[0] > firstSecond {
		list[0] = []byte(strconv.FormatInt(parts[0]+c.by.Load(), 10))
		return
	}
	for _, r := range list {
		c.shift(r)
	}
}

// The server's clock is stepped, or another server takes its place: the next lock is right by the
// new clock.
func TestServerClockSteps(t *testing.T) {
	t.Parallel()
	srv, _, raw := newServer(t)
	var by atomic.Int64
	pool := newPool(t, srv.Addr)
	dial := pool.Dial
	pool.Dial = func() (redis.Conn, error) {
		conn, err := dial()
		return shifted{conn, &by}, err
	}
	l := New(pool)
	for i, seconds := range []int64{0, 3600, 0, -3600, 5, -5, 0, 1, 0} {
		by.Store(seconds)
		for range 3 {
			key := strconv.Itoa(i)
			before := raw.now() + seconds*1e6
			isOK(t)(l.Acquire(background, key, "t", time.Minute))
			expiry, after := raw.value("locker:"+key).expiry*1000, raw.now()+seconds*1e6
			require.GreaterOrEqual(t, expiry, before+time.Minute.Microseconds(), seconds)
			require.LessOrEqual(t, expiry, after+(time.Minute+500*time.Millisecond).Microseconds(), seconds)
			isOK(t)(l.Release(background, key, "t"))
		}
	}
}

func TestNoTime(t *testing.T) {
	t.Parallel()
	srv, l, raw := newServer(t, "--rename-command", "TIME", "")
	for op, run := range operations(l, "k", "t") {
		ok, err := run(background)
		assert.ErrorContains(t, err, "the server does not tell its time; use WithClientClock", op)
		assert.ErrorContains(t, err, "unknown command", op)
		assert.False(t, ok)
	}
	assert.EqualValues(t, 0, raw.do("DBSIZE"))

	a := New(newPool(t, srv.Addr), WithClientClock())
	w, pool := newWire(t, srv.Addr)
	b := New(pool, WithClientClock())
	isOK(t)(a.Acquire(background, "k", "a", time.Minute))
	isRefused(t)(b.Acquire(background, "k", "b", time.Minute))
	before := time.Now()
	isOK(t)(a.Extend(background, "k", "a", 300*time.Millisecond))
	require.Eventually(t, func() bool {
		ok, err := b.Acquire(background, "k", "b", time.Minute)
		assert.NoError(t, err)
		return ok
	}, patience, time.Millisecond)
	assert.GreaterOrEqual(t, time.Since(before), 300*time.Millisecond)
	isRefused(t)(a.Extend(background, "k", "a", time.Minute))
	isRefused(t)(a.Release(background, "k", "a"))
	fence, ok, err := b.Fence(background, "k", "b")
	isOK(t)(ok, err)
	assert.Positive(t, fence)
	_, ok, err = a.Fence(background, "k", "a")
	isRefused(t)(ok, err)
	isOK(t)(b.Release(background, "k", "b"))
	for _, request := range w.requests() {
		assert.False(t, has(request, "TIME"), request)
	}
}

func TestClock(t *testing.T) {
	const ms = 1000
	fake := int64(0)
	c := &clock{now: func() int64 { return fake }}
	c.observe(0, 5_000_000)
	assert.EqualValues(t, 5_000_000, c.ahead.Load(), "the first measurement counts")
	c.observe(10*ms, 5_000_000+15*ms)
	assert.EqualValues(t, 5_000_000+5*ms, c.ahead.Load(), "a slower request raises it")
	for range 2000 {
		c.observe(0, 5_000_000)
	}
	assert.InDelta(t, 5_000_000, c.ahead.Load(), 1*ms, "it comes down slowly")
	c.observe(0, 5_000_000-hour)
	assert.EqualValues(t, 5_000_000-hour, c.ahead.Load(), "the server's clock was stepped back")
	c.observe(0, 5_000_000)
	assert.EqualValues(t, 5_000_000, c.ahead.Load(), "and forward")

	c.observe(0, 5_000_000+200*ms)
	c.observe(0, 5_000_000)
	assert.EqualValues(t, 5_000_000, c.ahead.Load(), "one request that was very slow is forgotten at once")

	// Rounded up twice: to µs, and then to ms.
	assert.EqualValues(t, 5_000+1+2, c.expiry(time.Nanosecond))
	assert.EqualValues(t, 5_000+1+2, c.expiry(time.Millisecond))
	assert.EqualValues(t, 5_000+2+2, c.expiry(time.Millisecond+1))

	assert.False(t, c.fits(5_999, 5_000_000, time.Second), "short")
	assert.True(t, c.fits(6_000, 5_000_000, time.Second))
	assert.False(t, c.fits(6_000, 5_000_000, time.Second+1), "short by a nanosecond")
	assert.True(t, c.fits(6_050, 5_000_000, time.Second))
	assert.False(t, c.fits(6_051, 5_000_000, time.Second), "long")
}
