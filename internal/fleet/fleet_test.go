package fleet_test

import (
	"context"
	"net"
	"os"
	"testing"
	"time"

	"github.com/golockers/locker/internal/fleet"
	"github.com/golockers/locker/internal/leaktest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) {
	fleet.Main(map[string]fleet.Role{
		"doubles": func(c *fleet.Child) {
			for {
				var n int
				c.Receive(&n)
				if n == 0 {
					return
				}
				c.Report(2 * n)
			}
		},
		"listens": func(c *fleet.Child) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				panic(err)
			}
			c.Report(l.Addr().String())
			select {}
		},
		"has a child that listens": func(c *fleet.Child) {
			f, err := fleet.Start("listens", 1)
			if err != nil {
				panic(err)
			}
			var addr string
			if err := f[0].Receive(context.Background(), &addr); err != nil {
				panic(err)
			}
			c.Report(addr)
			select {}
		},
	})
	leaktest.Main(m)
}

func start(t *testing.T, role string, n int) fleet.Fleet {
	t.Helper()
	f, err := fleet.Start(role, n)
	require.NoError(t, err)
	t.Cleanup(f.Kill)
	return f
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestOrdersAndReports(t *testing.T) {
	t.Parallel()
	f, ctx := start(t, "doubles", 3), within(t, time.Minute)
	for i, p := range f {
		require.NoError(t, p.Send(i+1))
	}
	reports, err := fleet.Receive[int](ctx, f)
	require.NoError(t, err)
	assert.Equal(t, []int{2, 4, 6}, reports)

	require.NoError(t, f.Send(7))
	reports, err = fleet.Receive[int](ctx, f)
	require.NoError(t, err)
	assert.Equal(t, []int{14, 14, 14}, reports)

	require.NoError(t, f[1].Send(0))
	var n int
	require.ErrorIs(t, f[1].Receive(ctx, &n), fleet.ErrEnded)
	_, err = fleet.Receive[int](within(t, time.Millisecond), f)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestKill(t *testing.T) {
	t.Parallel()
	f, ctx := start(t, "doubles", 2), within(t, time.Minute)
	require.NoError(t, f[0].Send(1)) // its report is under way
	require.NoError(t, f[1].Signal(os.Kill))
	var n int
	require.ErrorIs(t, f[1].Receive(ctx, &n), fleet.ErrEnded)
	f.Kill()
	require.ErrorIs(t, f[0].Receive(ctx, &n), fleet.ErrEnded)
	require.Error(t, f[0].Send(1))
	f.Kill() // again
}

func TestUnknownRole(t *testing.T) {
	t.Parallel()
	f, err := fleet.Start("nothing", 1)
	require.NoError(t, err)
	t.Cleanup(f.Kill)
	var n int
	require.ErrorIs(t, f[0].Receive(within(t, time.Minute), &n), fleet.ErrEnded)
}

// A process ends when its parent is gone.
func TestParentIsKilled(t *testing.T) {
	t.Parallel()
	f := start(t, "has a child that listens", 1)
	var addr string
	require.NoError(t, f[0].Receive(within(t, time.Minute), &addr))
	listens := func() bool {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			return false
		}
		return assert.NoError(t, conn.Close())
	}
	require.True(t, listens())
	f.Kill()
	require.Eventually(t, func() bool { return !listens() }, time.Minute, 10*time.Millisecond)
}
