package harness

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/memory"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// slows is a correct Locker on a backend whose plainest request takes slow.
type slows struct {
	*memory.Locker
	slow *atomic.Int64
}

func (s slows) Release(ctx context.Context, key, token string) (bool, error) {
	rest(ctx, time.Duration(s.slow.Load()))
	return s.Locker.Release(ctx, key, token)
}

// judged runs a check in a bubble, on a backend that takes slow for a request.
func judged(t *testing.T, slow *atomic.Int64, fn func(e *Env)) *Recorder {
	t.Helper()
	l := slows{memory.New(), slow}
	c := Config{New: func(testing.TB, string) locker.Locker { return l }}
	ck := Check{Name: "self/check", Rules: []string{"the rule"}, Causes: "the causes", Run: func(e *Env) {
		e.Sleep(time.Second) // something is measured
		fn(e)
	}}
	s, err := NewSuite(t, c, []Check{ck})
	require.NoError(t, err)
	s.Budget = NewBudget(1)
	defer s.Close()
	return s.RunAll(t)["self/check"]
}

// awaits waits for what is due now and comes in a while.
func awaits(e *Env, in time.Duration) {
	ch := make(chan struct{})
	due := time.Now()
	e.Go(func() {
		e.Sleep(in)
		close(ch)
	})
	Receive(e, Event, ch, func() time.Time { return due }, "it comes")
}

func TestTimes(t *testing.T) {
	t.Parallel()
	run := func(t *testing.T, slow time.Duration, fn func(e *Env)) (r *Recorder, tries int, last time.Duration) {
		var d atomic.Int64
		d.Store(int64(slow))
		begun := time.Now()
		r = judged(t, &d, func(e *Env) { tries++; begun = time.Now(); defer func() { last = time.Since(begun) }(); fn(e) })
		return r, tries, last
	}
	for name, test := range map[string]func(t *testing.T){
		"in time": func(t *testing.T) {
			r, n, _ := run(t, 0, func(e *Env) { awaits(e, Event.Time-100*time.Millisecond) })
			assert.False(t, r.Failed() || r.Inconclusive(), r.Printed())
			assert.Equal(t, 1, n)
		},
		"late on a quick machine": func(t *testing.T) {
			r, n, _ := run(t, 0, func(e *Env) { awaits(e, Event.Time+time.Second) })
			assert.True(t, r.Failed())
			assert.Equal(t, 1, n)
		},
		"late on a slow machine, and in time when stretched": func(t *testing.T) {
			r, n, last := run(t, 400*time.Millisecond, func(e *Env) { awaits(e, Event.Time+time.Second) })
			assert.False(t, r.Failed() || r.Inconclusive(), r.Printed())
			assert.Equal(t, 2, n)
			assert.Greater(t, last, Event.Time, "the allowance is stretched")
		},
		"always later than a slow machine explains": func(t *testing.T) {
			r, n, _ := run(t, 400*time.Millisecond, func(e *Env) { awaits(e, 2*e.Allow(Event)) })
			assert.True(t, r.Failed(), r.Why())
			assert.Equal(t, 2, n, "the second run's times are so long that the machine is quick enough")
			assert.Contains(t, r.Printed(), "it comes")
		},
		"never": func(t *testing.T) {
			r, n, last := run(t, 400*time.Millisecond, func(e *Env) { awaits(e, time.Hour) })
			assert.True(t, r.Failed())
			assert.Equal(t, 1, n, "a hang beyond any patience is a fact")
			assert.Greater(t, last, 2*Event.Time)
			assert.Less(t, last, patience)
		},
		"two holders": func(t *testing.T) {
			r, n, _ := run(t, 400*time.Millisecond, func(e *Env) { e.Fail("one holder", "two") })
			assert.True(t, r.Failed())
			assert.Equal(t, 1, n)
		},
		"an error at once": func(t *testing.T) {
			r, n, _ := run(t, 400*time.Millisecond, func(e *Env) { fails(e, 0) })
			assert.True(t, r.Failed())
			assert.Equal(t, 1, n)
		},
		"an error after a timeout": func(t *testing.T) {
			r, n, _ := run(t, 400*time.Millisecond, func(e *Env) {
				if e.stretch < 2 {
					fails(e, 2*time.Second)
				}
			})
			assert.False(t, r.Failed() || r.Inconclusive(), r.Printed())
			assert.Equal(t, 2, n)
		},
		"an error after a timeout on a quick machine": func(t *testing.T) {
			r, n, _ := run(t, 0, func(e *Env) { fails(e, 2*time.Second) })
			assert.True(t, r.Failed())
			assert.Equal(t, 1, n)
		},
		"slower and slower": func(t *testing.T) {
			var d atomic.Int64
			d.Store(int64(20 * time.Millisecond))
			n, a := 0, Allowance{100 * time.Millisecond, 20}
			r := judged(t, &d, func(e *Env) {
				n++
				d.Store(4 * d.Load())
				e.Sleep(time.Minute)
				e.FailTime(a, 2*e.Allow(a), "the causes", "", "it is quick", "it is")
			})
			assert.True(t, r.Inconclusive())
			assert.Equal(t, tries, n)
			assert.Contains(t, r.Why(), "too late, on a machine or a backend on which something was")
		},
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
	}
}

// fails makes a call that returns an error after d.
func fails(e *Env, d time.Duration) {
	r := Call{Client: e.A, Op: "Acquire", Start: time.Now().Add(-d), End: time.Now(), TTL: time.Minute, Err: context.DeadlineExceeded}
	e.A.Must(r, true, "the key is fresh")
}

// Every allowance outlasts an idle machine's delays.
func TestAllowances(t *testing.T) {
	t.Parallel()
	for _, a := range []Allowance{Event, Answer, CtxEnd, IOTimeout, Refusal, Refused, Healing, Polls, Seldom, Served, Leaving, Joining} {
		assert.GreaterOrEqual(t, a.Time/time.Duration(a.Delays), 5*time.Millisecond, "%+v", a)
	}
}
