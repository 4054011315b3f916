package window

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// fake is a Counter of one key, without CountUnder.
type fake struct {
	calls             atomic.Int64
	mu                sync.Mutex
	number            int64
	current, previous int64
	err               error
}

func (f *fake) Count(ctx context.Context, _ string, n int64, per time.Duration) (Counts, error) {
	f.calls.Add(1)
	if err := ctx.Err(); err != nil {
		return Counts{}, err
	}
	if f.err != nil {
		return Counts{}, f.err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now().UnixNano()
	switch number := now / int64(per); number - f.number {
	case 0:
	case 1:
		f.number, f.previous, f.current = number, f.current, 0
	default:
		f.number, f.previous, f.current = number, 0, 0
	}
	f.current += n
	return Counts{f.current, f.previous, per - time.Duration(now%int64(per))}, nil
}

func TestUsed(t *testing.T) {
	for _, c := range []struct {
		rule Rule
		c    Counts
		used int64
	}{
		{Rule{10, time.Minute, false}, Counts{3, 10, time.Minute}, 13},
		{Rule{10, time.Minute, false}, Counts{3, 10, 30 * time.Second}, 8},
		{Rule{10, time.Minute, false}, Counts{3, 10, 29 * time.Second}, 7},
		{Rule{10, time.Minute, true}, Counts{3, 10, time.Minute}, 3},
		{Rule{10, MaxPer, false}, Counts{MaxN, 1 << 60, MaxPer}, MaxN + 1<<60},
		{Rule{10, MaxPer, false}, Counts{1 << 62, 1 << 62, MaxPer}, 1<<63 - 1},
		{Rule{1, time.Minute, false}, Counts{0, 1, time.Minute - 1}, 0},
	} {
		assert.Equal(t, c.used, c.rule.Used(c.c), "%+v", c)
	}
}

// after is the first moment at which the rule allows the calls.
func TestAfter(t *testing.T) {
	for range 20_000 {
		r := Rule{Limit: 1 + rand.Int64N(20), Per: time.Duration(1 + rand.Int64N(1000)), Fixed: rand.IntN(4) == 0}
		c := Counts{rand.Int64N(30), rand.Int64N(30), 1 + rand.N(r.Per)}
		n := 1 + rand.Int64N(r.Limit)
		at := func(d time.Duration) Counts {
			later := c
			if later.Left -= d; later.Left <= 0 {
				later = Counts{0, c.Current, later.Left + r.Per}
			}
			if later.Left <= 0 {
				return Counts{0, 0, r.Per}
			}
			return later
		}
		d := r.after(c, n)
		require.True(t, r.Allows(at(d), n), "%+v %+v %d: %d", r, c, n, d)
		if d > 0 {
			require.False(t, r.Allows(at(d-1), n), "%+v %+v %d: %d", r, c, n, d)
		}
	}
}

func TestLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, opts := range map[string][]Option{
			"sliding": {WithFixed(), WithSliding()}, "fixed": {WithFixed()},
			"counting what is denied": {WithDeniedCounted()},
		} {
			l := New(new(fake), 3, time.Minute, opts...)
			for i := range int64(3) {
				d, err := l.Allow(t.Context(), "k")
				require.NoError(t, err)
				assert.Equal(t, Decision{Allowed: true, Limit: 3, Remaining: 2 - i, ResetAfter: d.ResetAfter}, d, name)
			}
			d, err := l.AllowN(t.Context(), "k", 2)
			require.NoError(t, err)
			assert.False(t, d.Allowed)
			assert.Positive(t, d.RetryAfter)
			time.Sleep(d.RetryAfter - time.Nanosecond)
			again, err := l.AllowN(t.Context(), "k", 2)
			require.NoError(t, err)
			assert.False(t, again.Allowed, name)
			if name != "counting what is denied" {
				time.Sleep(time.Nanosecond)
				d, err = l.AllowN(t.Context(), "k", 2)
				require.NoError(t, err)
				assert.True(t, d.Allowed, name)
			}
			time.Sleep(d.ResetAfter)
			d, err = l.AllowN(t.Context(), "k", 3)
			require.NoError(t, err)
			assert.True(t, d.Allowed, name)
		}
	})
}

// A client gets the full limit in each window, and never more, even if it calls slowly.
func TestSteadyRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, limit := range []int64{1, 2, 10, 100} {
			l := New(new(fake), limit, time.Minute)
			var allowed int64
			for range 60 * 50 {
				d, err := l.Allow(t.Context(), "k")
				require.NoError(t, err)
				if d.Allowed {
					allowed++
				}
				time.Sleep(200 * time.Millisecond)
			}
			assert.InDelta(t, 10*limit, allowed, float64(limit), "in 10 minutes")
		}
	})
}

func TestBackendFails(t *testing.T) {
	down := &fake{err: errors.New("it is down")}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, closed := range map[string]bool{"open": false, "closed": true} {
		l := New(down, 3, time.Minute)
		if closed {
			l = New(down, 3, time.Minute, WithFailClosed())
		}
		d, err := l.Allow(t.Context(), "k")
		require.ErrorIs(t, err, down.err, name)
		assert.EqualError(t, err, `window: allow "k": it is down`)
		assert.Equal(t, Decision{Allowed: !closed, Limit: 3}, d)
		assert.EqualError(t, l.Wait(t.Context(), "k"), `window: wait "k": it is down`)
		d, err = l.Allow(ended, "k")
		require.ErrorIs(t, err, context.Canceled)
		assert.Equal(t, !closed, d.Allowed)
	}
}

func TestBadInput(t *testing.T) {
	ctx := t.Context()
	c := new(fake)
	for want, call := range map[string]func() (Decision, error){
		`window: allow "": invalid key: empty`: func() (Decision, error) { return New(c, 1, time.Second).Allow(ctx, "") },
		`window: allow "` + strings.Repeat("k", 32) + `"…: invalid key: 1025 bytes, more than 1024`: func() (Decision, error) {
			return New(c, 1, time.Second).Allow(ctx, strings.Repeat("k", 1025))
		},
		`window: allow "k": invalid number of calls: 0 is less than 1`: func() (Decision, error) {
			return New(c, 1, time.Second).AllowN(ctx, "k", 0)
		},
		`window: allow "k": invalid number of calls: 2 is more than the limit of 1`: func() (Decision, error) {
			return New(c, 1, time.Second).AllowN(ctx, "k", 2)
		},
		`window: allow "k": invalid limit: 0 is not between 1 and 1000000000000`: func() (Decision, error) {
			return New(c, 0, time.Second).Allow(ctx, "k")
		},
		`window: allow "k": invalid limit: a window of 999µs is not between 1ms and 8784h0m0s`: func() (Decision, error) {
			return New(c, 1, 999*time.Microsecond).Allow(ctx, "k")
		},
		`window: allow "k": the Counter is nil`: func() (Decision, error) { return New((*fake)(nil), 1, time.Second).Allow(ctx, "k") },
	} {
		d, err := call()
		assert.EqualError(t, err, want)
		assert.False(t, d.Allowed)
	}
	assert.ErrorIs(t, New(c, 1, time.Second).Wait(ctx, ""), locker.ErrInvalidKey)
	assert.ErrorIs(t, New(nil, 1, time.Second).Wait(ctx, "k"), errNilCounter)
	assert.Zero(t, c.calls.Load())
	assert.Equal(t, 2*time.Millisecond, New(c, 1, time.Millisecond+1).rule.Per)
}

// Waiters are served in order, and only the first makes requests.
func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := new(fake)
		l := New(c, 10, time.Minute, WithFixed())
		var order []int
		done := make(chan int, 50)
		for i := range 50 {
			go func() {
				assert.NoError(t, l.Wait(t.Context(), "k"))
				done <- i
			}()
			synctest.Wait()
		}
		for range 50 {
			order = append(order, <-done)
		}
		// Those of one window may return in any order, and no others.
		for i, waiter := range order {
			assert.Equal(t, i/10, waiter/10)
		}
		// Two requests for a call that is allowed, and one for each that is denied.
		assert.LessOrEqual(t, c.calls.Load(), int64(2*50+5))
		assert.Empty(t, l.turns.queues)
	})
}

func TestWaitEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := new(fake)
		l := New(c, 1, time.Minute)
		require.NoError(t, l.Wait(t.Context(), "k"))
		short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		assert.ErrorIs(t, l.Wait(short, "k"), context.DeadlineExceeded)
		assert.NoError(t, short.Err(), "it does not wait for nothing")
		ctx, cancel := context.WithCancel(t.Context())
		results := make(chan error)
		for range 2 {
			go func() { results <- l.Wait(ctx, "k") }()
		}
		synctest.Wait()
		cancel()
		assert.ErrorIs(t, <-results, context.Canceled)
		assert.ErrorIs(t, <-results, context.Canceled)
		assert.Empty(t, l.turns.queues)
		assert.EqualValues(t, 1, c.current)
	})
}

func TestTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(hangs{}, 3, time.Minute, WithTimeout(200*time.Millisecond))
		start := time.Now()
		_, err := l.Allow(t.Context(), "k")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.EqualError(t, err, `window: allow "k": no answer within 200ms: context deadline exceeded`)
		assert.Equal(t, 200*time.Millisecond, time.Since(start))
		assert.ErrorContains(t, l.Wait(t.Context(), "k"), `window: wait "k": no answer within 200ms`)

		// The caller's own context comes first.
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		start = time.Now()
		_, err = l.Allow(ctx, "k")
		assert.EqualError(t, err, `window: allow "k": context deadline exceeded`)
		assert.Equal(t, 50*time.Millisecond, time.Since(start))
	})
}

// A caller may wait for its turn for longer than the timeout.
func TestTimeoutOfWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(new(fake), 1, time.Minute, WithTimeout(time.Millisecond))
		for range 3 {
			require.NoError(t, l.Wait(t.Context(), "k"))
		}
	})
}

// fails is a backend that answers with an error after a second.
type fails struct{}

func (fails) Count(context.Context, string, int64, time.Duration) (Counts, error) {
	time.Sleep(time.Second)
	return Counts{}, errDown
}

var errDown = errors.New("it is down")

// Those who wait get the error together, and not one after the other.
func TestWaitFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(fails{}, 1, time.Minute)
		start := time.Now()
		results := make(chan error)
		for range 50 {
			go func() { results <- l.Wait(t.Context(), "k") }()
		}
		for range 50 {
			assert.ErrorIs(t, <-results, errDown)
		}
		assert.Equal(t, time.Second, time.Since(start))
		assert.ErrorIs(t, l.Wait(t.Context(), "k"), errDown)
		assert.Equal(t, 2*time.Second, time.Since(start), "a new queue")
		assert.Empty(t, l.turns.queues)
	})
}

// Processes that wait do not keep each other from their turns by calls that are denied.
func TestWaitDeniedCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := new(fake)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
		defer cancel()
		var all sync.WaitGroup
		var allowed atomic.Int64
		for range 3 {
			l := New(c, 1, time.Second, WithDeniedCounted())
			all.Go(func() {
				for l.Wait(ctx, "k") == nil {
					allowed.Add(1)
				}
			})
		}
		all.Wait()
		assert.InDelta(t, 100, allowed.Load(), 10)
	})
}
