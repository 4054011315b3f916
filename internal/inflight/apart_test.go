package inflight_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker/internal/inflight"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestGoexitIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c inflight.Calls
		start := time.Now()
		_, err := inflight.Do(within(t, time.Second), &c, "t", time.Minute, func() (bool, error) {
			runtime.Goexit()
			return true, nil
		})
		assert.ErrorIs(t, err, inflight.ErrGoexit)
		assert.Zero(t, time.Since(start))
		assert.Zero(t, inflight.Entries(&c))
	})
}

func TestGoexitAfterLeaving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c inflight.Calls
		_, err := inflight.Do(within(t, time.Second), &c, "t", time.Minute, func() (bool, error) {
			time.Sleep(2 * time.Second)
			runtime.Goexit()
			return true, nil
		})
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, 1, inflight.Entries(&c))
		require.NoError(t, c.Wait(t.Context(), "t"))
		assert.Zero(t, inflight.Entries(&c))
	})
}

func TestPanicIsTheCallers(t *testing.T) {
	errCause := errors.New("cause")
	synctest.Test(t, func(t *testing.T) {
		var c inflight.Calls
		func() {
			defer func() {
				p, ok := recover().(*inflight.Panic)
				require.True(t, ok)
				assert.Equal(t, errCause, p.Value)
				assert.ErrorIs(t, p, errCause)
				assert.ErrorContains(t, p, "apart_test.go", "the stack of the call is not shown")
			}()
			_, _ = inflight.Do(within(t, time.Second), &c, "t", time.Minute, func() (int, error) { panic(errCause) })
		}()
		assert.Zero(t, inflight.Entries(&c))
		require.NoError(t, c.Wait(t.Context(), "t"))
	})
}

// A panic at the moment when ctx ends is either the caller's or unrecovered, but never lost.
func TestPanicAsTheContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 300 { // which of the two is seen first is a matter of luck
			a := inflight.Go(func() (int, error) { panic("boom") })
			synctest.Wait()
			require.False(t, a.Leave(func() { t.Error("called") }), "left behind, and then nobody has the panic")
			require.Panics(t, func() { _, _ = a.Result() })
		}
	})
}

func TestPanicAfterLeaving(t *testing.T) {
	const child = "LOCKER_TEST_PANIC"
	if os.Getenv(child) != "" {
		var c inflight.Calls
		ctx, cancel := context.WithCancel(t.Context())
		left := make(chan struct{})
		_, err := inflight.Do(ctx, &c, "t", inflight.Never, func() (int, error) {
			cancel()
			<-left
			panic("nobody is left")
		})
		require.ErrorIs(t, err, context.Canceled)
		close(left)
		time.Sleep(time.Minute)
		return
	}
	t.Parallel()
	cmd := exec.Command(os.Args[0], "-test.run=^TestPanicAfterLeaving$")
	cmd.Env = append(os.Environ(), child+"=1")
	out, err := cmd.CombinedOutput()
	require.Error(t, err, "the panic was swallowed")
	assert.Contains(t, string(out), "panic: nobody is left")
	assert.Contains(t, string(out), "apart_test.go")
}
