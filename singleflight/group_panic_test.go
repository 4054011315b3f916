package singleflight

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// explode is the function whose name must be in the stack.
func explode(with any) (int, error) { panic(with) }

// callEnd is how a call of Do ended.
type callEnd struct {
	result
	returned bool
	panicked any
}

// goDoEnd calls Do on a goroutine of its own and reports how it ended, Goexit included.
func goDoEnd(ctx context.Context, g *Group[int], key string, fn func(context.Context) (int, error)) <-chan callEnd {
	c := make(chan callEnd, 1)
	go func() {
		var e callEnd
		defer func() {
			e.panicked = recover()
			c <- e
		}()
		e.v, e.shared, e.err = g.Do(ctx, key, fn)
		e.returned = true
	}()
	return c
}

func TestPanic(t *testing.T) {
	contexts(t, func(t *testing.T, ctx context.Context) {
		var g Group[int]
		cause := errors.New("boom")
		first := goDoEnd(ctx, &g, "k", func(context.Context) (int, error) {
			time.Sleep(time.Second)
			return explode(cause)
		})
		synctest.Wait()
		var others []<-chan result
		for range 10 {
			others = append(others, goDo(t.Context(), &g, "k", mustNotRun(t)))
		}
		e := <-first
		require.False(t, e.returned)
		require.Equal(t, cause, e.panicked, "the same value, not wrapped")
		for _, c := range others {
			r := <-c
			require.Zero(t, r.v)
			require.True(t, r.shared)
			var pe *PanicError
			require.ErrorAs(t, r.err, &pe)
			require.Equal(t, cause, pe.Value)
			require.Contains(t, string(pe.Stack), "explode", "the stack says where")
			require.ErrorIs(t, r.err, cause)
			require.Contains(t, r.err.Error(), `singleflight: the call for "k" panicked: boom`)
			require.Contains(t, r.err.Error(), "explode")
		}
		requireEmpty(t, &g)
		v, _, err := g.Do(ctx, "k", func(context.Context) (int, error) { return 42, nil })
		require.NoError(t, err)
		require.Equal(t, 42, v)
	})
}

func TestPanicAlone(t *testing.T) {
	contexts(t, func(t *testing.T, ctx context.Context) {
		var g Group[int]
		e := <-goDoEnd(ctx, &g, "k", func(context.Context) (int, error) { return explode("boom") })
		require.False(t, e.returned)
		require.Equal(t, "boom", e.panicked)
		requireEmpty(t, &g)
	})
}

func TestPanicAfterTheFirstCallerLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group[int]
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		first := goDoEnd(ctx, &g, "k", func(context.Context) (int, error) {
			time.Sleep(time.Second)
			return explode("boom")
		})
		synctest.Wait()
		_, _, err := g.Do(t.Context(), "k", mustNotRun(t))
		var pe *PanicError
		require.ErrorAs(t, err, &pe)
		require.Equal(t, "boom", pe.Value)
		require.NoError(t, errors.Unwrap(pe), "not an error, so nothing to unwrap")
		e := <-first
		require.True(t, e.returned)
		require.Equal(t, context.DeadlineExceeded, e.err)
	})
}

// A panic with no caller left ends the program, as any panic that is not recovered.
func TestPanicWithNoCallerLeft(t *testing.T) {
	if os.Getenv("SINGLEFLIGHT_TEST_PANIC") != "" {
		var g Group[int]
		ctx, cancel := context.WithCancel(context.Background())
		g.Do(ctx, "k", func(ctx context.Context) (int, error) {
			cancel()
			<-ctx.Done()
			return explode("boom with no caller left")
		})
		select {} // until the panic ends all
	}
	t.Parallel()
	cmd := exec.Command(os.Args[0], "-test.run=^TestPanicWithNoCallerLeft$", "-test.timeout=1m")
	cmd.Env = append(os.Environ(), "SINGLEFLIGHT_TEST_PANIC=1")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 2, exit.ExitCode(), "%s", out)
	require.Contains(t, string(out), "panic: boom with no caller left")
	require.Contains(t, string(out), "explode(", "the trace says where")
	require.NotContains(t, string(out), "test timed out")
}

func TestGoexit(t *testing.T) {
	contexts(t, func(t *testing.T, ctx context.Context) {
		var g Group[int]
		first := goDoEnd(ctx, &g, "k", func(context.Context) (int, error) {
			time.Sleep(time.Second)
			runtime.Goexit()
			return 42, nil
		})
		synctest.Wait()
		other := goDo(t.Context(), &g, "k", mustNotRun(t))
		e := <-first
		require.False(t, e.returned, "it ended the first caller")
		require.Nil(t, e.panicked)
		r := <-other
		require.EqualError(t, r.err, `singleflight: the call for "k" ended its goroutine (runtime.Goexit)`)
		requireEmpty(t, &g)
	})
}

func TestGoexitWithNoCallerLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group[int]
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		_, _, err := g.Do(ctx, "k", func(ctx context.Context) (int, error) {
			<-ctx.Done()
			runtime.Goexit()
			return 0, nil
		})
		require.Equal(t, context.DeadlineExceeded, err)
		synctest.Wait()
		requireEmpty(t, &g)
	})
}

// The first caller distinguishes a panic of its own fn from one of a flight that fn waited for.
func TestPanicErrorReturnedByFn(t *testing.T) {
	contexts(t, func(t *testing.T, ctx context.Context) {
		var g Group[int]
		theirs := &PanicError{Value: "theirs"}
		v, _, err := g.Do(ctx, "k", func(context.Context) (int, error) { return 0, theirs })
		require.Zero(t, v)
		require.Equal(t, theirs, err)
	})
}
