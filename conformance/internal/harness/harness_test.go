package harness

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
	"github.com/golockers/locker/memory"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// An invalid Config is one clear error.
func TestBadConfig(t *testing.T) {
	t.Parallel()
	good := inMemory()
	const closed = "127.0.0.1:1" // any other port may be taken meanwhile
	open, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer open.Close()
	down := Config{New: func(testing.TB, string) locker.Locker { return broken{err: os.ErrDeadlineExceeded} }}

	list := []Check{{Name: "release/after-expiry"}, {Name: "release/twice"}, {Name: "extend/longer"}}
	cases := map[string]struct {
		config Config
		want   string
	}{
		"no New": {Config{}, "Config.New is nil"},
		"New returns nil": {Config{New: func(testing.TB, string) locker.Locker { return nil }},
			"Config.New returned nil at call 1"},
		"New returns a nil pointer": {Config{New: func(testing.TB, string) locker.Locker { return (*memory.Locker)(nil) }},
			"Config.New returned nil at call 1"},
		"different backends": {Config{New: func(testing.TB, string) locker.Locker { return memory.New() }},
			"calls 1 and 2 of Config.New are on different backends"},
		"negative Granularity": {Config{New: good.New, Granularity: -time.Second}, "Config.Granularity is -1s"},
		"Skip names no check": {Config{New: good.New, Skip: map[string]string{"release/twise": "x"}},
			`Config.Skip names "release/twise", which is not a check; the checks of this group are release/after-expiry, release/twice`},
		"Skip names nothing like it": {Config{New: good.New, Skip: map[string]string{"nonsense": "x"}},
			`Config.Skip names "nonsense", which is not a check`},
		"Skip without a reason":     {Config{New: good.New, Skip: map[string]string{"release/twice": ""}}, `no reason for "release/twice"`},
		"nothing at the address":    {Config{New: good.New, Addr: closed}, "Config.Addr: cannot connect to"},
		"New does not use its addr": {Config{New: good.New, Addr: open.Addr().String()}, "Config.New does not use its addr"},
		"no address":                {Config{New: good.New, Addr: "nonsense"}, "Config.Addr: cannot connect to"},
		"a backend that is down":    {down, "the first Acquire on the backend failed: i/o timeout"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := NewSuite(t, c.config, list)
			require.ErrorContains(t, err, c.want)
			assert.NotContains(t, err.Error(), "\n")
		})
	}
}

// A check that is inconclusive beside others is run again alone, and a check that must be alone is.
func TestInconclusive(t *testing.T) {
	t.Parallel()
	var runs, active, others atomic.Int64
	busy := func(e *Env) {
		active.Add(1)
		defer active.Add(-1)
		e.Sleep(100 * time.Millisecond)
	}
	list := []Check{{Name: "self/never", Run: func(e *Env) {
		runs.Add(1)
		e.Each(3, func(int) { e.Inconclusive("too slow for %s", e.Key()) })
		e.Fail("not", "reached")
	}}, {Name: "self/busy", Run: busy}, {Name: "self/alone", Alone: true, Run: func(e *Env) {
		others.Add(active.Load())
	}}, {Name: "self/later", Run: func(e *Env) {
		others.Add(active.Load())
		if runs.Add(100) < 200 {
			e.Inconclusive("too slow")
		}
	}}, {Name: "self/fails", Run: func(e *Env) {
		e.Each(2, func(i int) {
			if i == 0 {
				e.Inconclusive("too slow")
			}
			e.Fail("a", "b")
		})
	}}}
	s, err := NewSuite(t, inMemory(), list)
	require.NoError(t, err)
	results := s.RunAll(t)
	assert.True(t, results["self/never"].Inconclusive())
	assert.Regexp(t, "^too slow for k[123]$", results["self/never"].Why())
	assert.EqualValues(t, tries+200, runs.Load())
	assert.False(t, results["self/later"].Inconclusive())
	assert.False(t, results["self/later"].Failed())
	assert.True(t, results["self/fails"].Failed())
	assert.False(t, results["self/fails"].Inconclusive())
	assert.LessOrEqual(t, others.Load(), int64(1), "self/later may be beside self/busy the first time")
}

// A wrong answer comes before a late one, a check without faults before one with them, and then a
// direct one.
func TestPlainest(t *testing.T) {
	t.Parallel()
	list := []Check{{Name: "wait/a"}, {Name: "wait/b"}, {Name: "exclusion/direct", Direct: true},
		{Name: "fault/c", Needs: NeedsNetwork}, {Name: "fault/direct", Needs: NeedsNetwork, Direct: true}}
	assert.Equal(t, "exclusion/direct", plainest(list, []string{"wait/b", "exclusion/direct"}, nil))
	assert.Equal(t, "wait/a", plainest(list, []string{"wait/b", "wait/a"}, nil))
	assert.Equal(t, "wait/b", plainest(list, []string{"fault/direct", "wait/b"}, nil))
	late := map[string]bool{"exclusion/direct": true, "wait/b": true}
	assert.Equal(t, "fault/direct", plainest(list, []string{"exclusion/direct", "fault/direct", "fault/c", "wait/b"}, late))
	assert.Equal(t, "exclusion/direct", plainest(list, []string{"wait/b", "exclusion/direct"}, late))
}

// inMemory is the configuration of a correct Locker.
func inMemory() Config {
	l := memory.New()
	return Config{New: func(testing.TB, string) locker.Locker { return l }}
}

// broken is a Locker of which nothing works.
type broken struct{ err error }

func (b broken) Acquire(context.Context, string, string, time.Duration) (bool, error) {
	return false, b.err
}

func (b broken) Extend(context.Context, string, string, time.Duration) (bool, error) {
	return false, b.err
}

func (b broken) Release(context.Context, string, string) (bool, error) { return false, b.err }

// hangs is a correct Locker but for Wait, which ignores its context.
type hangs struct {
	*memory.Locker
	until <-chan struct{}
}

func (h hangs) Wait(_ context.Context, key, _ string, ttl time.Duration) (time.Time, error) {
	if key == "x" {
		<-h.until
	}
	return time.Now().Add(ttl), nil
}

// one runs fn as a check on a correct Locker.
func one(t *testing.T, fn func(e *Env)) *Recorder {
	ck := Check{Name: "self/check", Rules: []string{"the rule"}, Causes: "the causes", Run: fn}
	s, err := NewSuite(t, inMemory(), []Check{ck})
	require.NoError(t, err)
	r := s.Start(t, ck, 1)
	r.Wait(CheckLimit)
	return r
}

func TestCheckThatPanics(t *testing.T) {
	t.Parallel()
	for name, fn := range map[string]func(e *Env){
		"itself":         func(*Env) { panic("oh") },
		"in a goroutine": func(e *Env) { e.Each(3, func(int) { panic("oh") }) },
	} {
		r := one(t, fn)
		assert.True(t, r.Failed(), name)
		assert.Contains(t, r.Printed(), "panic: oh", name)
		assert.Contains(t, r.Printed(), "harness_test.go", name)
		assert.Equal(t, 1, strings.Count(r.Printed(), "  got "), name)
	}
}

// A context's error is explained if it cannot be that of the call's own context.
func TestErrorOfAnotherContext(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ctx  func(e *Env) (context.Context, context.CancelFunc)
		err  error
		want string
	}{
		"the call's own": {func(e *Env) (context.Context, context.CancelFunc) { return context.WithTimeout(e.Ctx, time.Nanosecond) },
			context.DeadlineExceeded, errorCauses},
		"another call's": {func(e *Env) (context.Context, context.CancelFunc) { return context.WithCancel(e.Ctx) },
			context.DeadlineExceeded, endedCauses},
		"no context's": {func(e *Env) (context.Context, context.CancelFunc) { return context.WithCancel(e.Ctx) },
			os.ErrClosed, errorCauses},
	} {
		r := one(t, func(e *Env) {
			ctx, cancel := c.ctx(e)
			defer cancel()
			d := e.NewClient("D", broken{err: c.err})
			d.Must(d.DoContext(ctx, "Acquire", e.Key(), e.Token(), time.Minute), true, "the key is fresh")
		})
		assert.True(t, r.Failed(), name)
		assert.Contains(t, r.Printed(), c.want, name)
	}
}

func TestCheckThatHangs(t *testing.T) {
	t.Parallel()
	ck := Check{Name: "self/check", Rules: []string{"the rule"}, Causes: "the causes", Run: func(e *Env) {
		e.A.Takes(e.Key(), e.Token(), time.Minute, "the key is fresh")
		e.A.DoContext(t.Context(), "Wait", "x", "y", time.Minute)
	}}
	stop := make(chan struct{})
	defer close(stop)
	l := memory.New()
	s, err := NewSuite(t, Config{New: func(testing.TB, string) locker.Locker { return hangs{l, stop} }}, []Check{ck})
	require.NoError(t, err)
	r := s.Start(t, ck, 1)
	r.Wait(100 * time.Millisecond)
	assert.True(t, r.Failed())
	assert.Contains(t, r.Printed(), "self/check has not ended within 100ms")
	assert.Contains(t, r.Printed(), `A.Wait("x", "y", 1m0s) has not returned`)
}

func TestRecorder(t *testing.T) {
	t.Parallel()
	var order []string
	r := one(t, func(e *Env) {
		e.TB.Cleanup(func() { order = append(order, "first") })
		e.TB.Cleanup(func() { order = append(order, "second"); runtime.Goexit() })
		e.TB.Cleanup(func() { order = append(order, "third"); panic("in cleanup") })
		e.TB.Log("said")
		e.TB.Skip("enough")
	})
	assert.Equal(t, []string{"third", "second", "first"}, order)
	assert.True(t, r.Failed(), "by the panic")
	assert.False(t, r.Skipped())
	assert.Contains(t, r.Printed(), "said\nenough\n")

	r = one(t, func(e *Env) { e.TB.Skip("enough") })
	assert.True(t, r.Skipped())
	assert.False(t, r.Failed())

	r = one(t, func(e *Env) {
		e.Each(5, func(i int) {
			if i == 3 {
				e.Fail("a", "b")
			}
		})
		e.Fail("not", "reached")
	})
	assert.True(t, r.Failed())
	assert.NotContains(t, r.Printed(), "reached")
}

// The goroutines of a check are found even if they were started indirectly, and no others are.
func TestGoroutines(t *testing.T) {
	t.Parallel()
	stop := make(chan struct{})
	defer close(stop)
	go func() { <-stop }()
	r := one(t, func(e *Env) {
		e.Settles(0)
		end := make(chan struct{})
		for range 3 {
			go func() { go func() { <-end }(); <-end }()
		}
		for n := 0; n < 6+1; e.Sleep(time.Millisecond) { // and this one
			n, _ = labelled(e.ID)
		}
		close(end)
		e.Settles(0)
	})
	assert.False(t, r.Failed(), r.Printed())
}
