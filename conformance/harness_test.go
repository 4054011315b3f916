package conformance

import (
	"context"
	"net"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What is wrong with a Config is one clear failure at the start.
func TestBadConfig(t *testing.T) {
	t.Parallel()
	good := fakes(func(*fake) {})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	nobody := ln.Addr().String()
	somebody, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer somebody.Close()
	require.NoError(t, ln.Close())
	down := fakes(func(f *fake) {
		f.everywhere(func(ctx context.Context, _ string, _ func(context.Context) error) error {
			return os.ErrDeadlineExceeded
		})
	})

	cases := map[string]struct {
		config Config
		says   string
	}{
		"no New": {Config{}, "Config.New is nil"},
		"New returns nil": {Config{New: func(testing.TB, string) locker.Locker { return nil }},
			"Config.New returned nil at call 1"},
		"New returns a nil pointer": {Config{New: func(testing.TB, string) locker.Locker { return (*fake)(nil) }},
			"Config.New returned nil at call 1"},
		"different backends": {Config{New: func(testing.TB, string) locker.Locker { return newFake(newStore(), 0) }},
			"calls 1 and 2 of Config.New are on different backends"},
		"negative Granularity": {Config{New: good.New, Granularity: -time.Second}, "Config.Granularity is -1s"},
		"Skip names no check": {Config{New: good.New, Skip: map[string]string{"release/twise": "x"}},
			`Config.Skip names "release/twise", and there is no such check; of this group there are release/after-expiry, `},
		"Skip names nothing like it": {Config{New: good.New, Skip: map[string]string{"nonsense": "x"}},
			`Config.Skip names "nonsense", and there is no such check`},
		"Skip without a reason":     {Config{New: good.New, Skip: map[string]string{"release/twice": ""}}, `no reason for "release/twice"`},
		"nobody at the address":     {Config{New: good.New, Addr: nobody}, "Config.Addr: nobody answers at"},
		"New does not use its addr": {Config{New: good.New, Addr: somebody.Addr().String()}, "Config.New does not use its addr"},
		"no address":                {Config{New: good.New, Addr: "nonsense"}, "Config.Addr: nobody answers at"},
		"a backend that is down":    {down, "the first Acquire on the backend failed: i/o timeout"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := newSuite(t, c.config, checks())
			require.ErrorContains(t, err, c.says)
			assert.NotContains(t, err.Error(), "\n")
		})
	}
}

// What is inconclusive beside the others is run again by itself, as often as it may; what is to be alone is.
func TestInconclusive(t *testing.T) {
	t.Parallel()
	var runs, active, others atomic.Int64
	busy := func(e *env) {
		active.Add(1)
		defer active.Add(-1)
		e.sleep(100 * time.Millisecond)
	}
	list := []check{{name: "self/never", run: func(e *env) {
		runs.Add(1)
		e.each(3, func(int) { e.inconclusive("too slow for %s", e.key()) })
		e.fail("not", "reached")
	}}, {name: "self/busy", run: busy}, {name: "self/alone", alone: true, run: func(e *env) {
		others.Add(active.Load())
	}}, {name: "self/later", run: func(e *env) {
		others.Add(active.Load())
		if runs.Add(100) < 200 {
			e.inconclusive("too slow")
		}
	}}, {name: "self/fails", run: func(e *env) {
		e.each(2, func(i int) {
			if i == 0 {
				e.inconclusive("too slow")
			}
			e.fail("a", "b")
		})
	}}}
	s, err := newSuite(t, fakes(func(*fake) {}), list)
	require.NoError(t, err)
	results := s.runAll(t)
	assert.True(t, results["self/never"].Inconclusive())
	assert.Equal(t, "too slow for k1", results["self/never"].why())
	assert.EqualValues(t, tries+200, runs.Load())
	assert.False(t, results["self/later"].Inconclusive())
	assert.False(t, results["self/later"].Failed())
	assert.True(t, results["self/fails"].Failed())
	assert.False(t, results["self/fails"].Inconclusive())
	assert.LessOrEqual(t, others.Load(), int64(1), "self/later may be beside self/busy the first time")
}

// A wrong answer comes before what was late, and a check without faults before one with them.
func TestPlainest(t *testing.T) {
	t.Parallel()
	assert.Equal(t, "exclusion/one-holder", plainest(checks(), []string{"wait/storm", "exclusion/one-holder"}, nil))
	assert.Equal(t, "wait/cancelled", plainest(checks(), []string{"fault/connection-refused", "wait/cancelled"}, nil))
	late := map[string]bool{"exclusion/one-holder": true, "wait/cancelled": true}
	assert.Equal(t, "fault/release-paused", plainest(checks(), []string{"exclusion/one-holder", "fault/release-paused", "wait/cancelled"}, late))
	assert.Equal(t, "exclusion/one-holder", plainest(checks(), []string{"wait/cancelled", "exclusion/one-holder"}, late))
}

// one runs fn as a check on a correct Locker.
func one(t *testing.T, fn func(e *env)) *recorder {
	ck := check{name: "self/check", rule: "the rule", causes: "the causes", run: fn}
	s, err := newSuite(t, fakes(func(*fake) {}), []check{ck})
	require.NoError(t, err)
	return s.run(t, ck)
}

func TestCheckThatPanics(t *testing.T) {
	t.Parallel()
	for name, fn := range map[string]func(e *env){
		"itself":         func(*env) { panic("oh") },
		"in a goroutine": func(e *env) { e.each(3, func(int) { panic("oh") }) },
	} {
		r := one(t, fn)
		assert.True(t, r.Failed(), name)
		assert.Contains(t, r.output(), "panic: oh", name)
		assert.Contains(t, r.output(), "conformance_test.go", name)
		assert.Equal(t, 1, strings.Count(r.output(), "happened"), name)
	}
}

func TestCheckThatHangs(t *testing.T) {
	t.Parallel()
	ck := check{name: "self/check", rule: "the rule", causes: "the causes", run: func(e *env) {
		e.A.takes(e.key(), e.token(), time.Minute, "the key is fresh")
		e.A.doCtx(t.Context(), "Wait", "x", "y", time.Minute)
	}}
	hangs := make(chan struct{})
	defer close(hangs)
	s, err := newSuite(t, fakes(func(f *fake) {
		f.wait = func(_ context.Context, key, _ string, _ time.Duration) (time.Time, error) {
			if key == "x" {
				<-hangs
			}
			return time.Now().Add(time.Minute), nil
		}
	}), []check{ck})
	require.NoError(t, err)
	r := s.start(t, ck)
	r.wait(100 * time.Millisecond)
	assert.True(t, r.Failed())
	assert.Contains(t, r.output(), "self/check has not come to an end in 100ms")
	assert.Contains(t, r.output(), `A.Wait("x", "y", 1m0s) has not returned`)
}

func TestRecorder(t *testing.T) {
	t.Parallel()
	var order []string
	r := one(t, func(e *env) {
		e.tb.Cleanup(func() { order = append(order, "first") })
		e.tb.Cleanup(func() { order = append(order, "second"); runtime.Goexit() })
		e.tb.Cleanup(func() { order = append(order, "third"); panic("in cleanup") })
		e.tb.Log("said")
		e.tb.Skip("enough")
	})
	assert.Equal(t, []string{"third", "second", "first"}, order)
	assert.True(t, r.Failed(), "by the panic")
	assert.False(t, r.Skipped())
	assert.Contains(t, r.output(), "said\nenough\n")

	r = one(t, func(e *env) { e.tb.Skip("enough") })
	assert.True(t, r.Skipped())
	assert.False(t, r.Failed())

	r = one(t, func(e *env) {
		e.each(5, func(i int) {
			if i == 3 {
				e.fail("a", "b")
			}
		})
		e.fail("not", "reached")
	})
	assert.True(t, r.Failed())
	assert.NotContains(t, r.output(), "reached")
}

// A goroutine is found by its check, however far down it was started, and no other is.
func TestGoroutines(t *testing.T) {
	t.Parallel()
	stop := make(chan struct{})
	defer close(stop)
	go func() { <-stop }()
	r := one(t, func(e *env) {
		if n, _ := e.settles(0, 0); n != 0 {
			e.tb.Errorf("%d goroutines at the start", n)
		}
		end := make(chan struct{})
		for range 3 {
			go func() { go func() { <-end }(); <-end }()
		}
		for n := 0; n < 6+1; e.sleep(time.Millisecond) { // and this one
			n, _ = labelled(e.id)
		}
		close(end)
		if n, stacks := e.settles(0, time.Minute); n != 0 {
			e.tb.Errorf("%d goroutines in the end:\n%s", n, stacks)
		}
	})
	assert.False(t, r.Failed(), r.output())
}

func TestPatience(t *testing.T) {
	t.Parallel()
	var l lag
	assert.Equal(t, 3*time.Second, l.allowance())
	l.saw(100 * time.Millisecond)
	l.saw(50 * time.Millisecond)
	assert.Equal(t, 5*time.Second, l.allowance())
	l.saw(time.Hour)
	assert.Equal(t, 45*time.Second, l.allowance())
}
