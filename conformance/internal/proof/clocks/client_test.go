package clocks

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance/internal/proof"
	"github.com/golockers/locker/conformance/internal/proof/load"
	"github.com/golockers/locker/internal/fleet"
	"github.com/golockers/locker/internal/leaktest"
	_ "github.com/golockers/locker/internal/quiet"
	"github.com/golockers/locker/internal/testserver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) {
	fleet.Main(map[string]fleet.Role{"client": client})
	leaktest.Main(m)
}

const (
	// A suspension lasts longer than shortTTL, and that is long enough for a keep-alive on a busy
	// machine.
	shortTTL = 4 * time.Second
	patience = 2 * time.Minute
)

var suspended = map[string]struct {
	start func(tb testing.TB, args ...string) *testserver.Server
	open  load.Open
}{
	"redisv9":  {testserver.Redis, load.Redisv9()},
	"rueidis":  {testserver.Redis, load.Rueidis},
	"redigo":   {testserver.Redis, load.Redigo},
	"memcache": {testserver.Memcached, load.Memcache},
	"postgres": {testserver.Postgres, load.Postgres()},
	"etcd":     {testserver.Etcd, load.Etcd},
}

// order is what a client does first: it takes the lock.
type order struct{ Backend, Addr string }

// report is how that went, with what was left of the lock at that moment.
type report struct {
	What string
	Err  string
	Left time.Duration
}

// child is the testing.TB of a process that has no test.
type child struct{ testing.TB }

func (child) Helper()           {}
func (child) Cleanup(func())    {}
func (child) Fatal(args ...any) { panic(args) }

// client is a process that takes the lock, keeps it alive until it loses it, and unlocks it.
func client(c *fleet.Child) {
	var o order
	c.Receive(&o)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	l := suspended[o.Backend].open(child{}, o.Addr)
	c.Report(report{What: "ready"})
	c.Receive(&o)
	lease, err := locker.Lock(ctx, l, "k", shortTTL, locker.WithKeepAlive(), locker.WithRetry())
	if err != nil {
		c.Report(report{What: "failed", Err: err.Error()})
		return
	}
	// A grant that is as old as the suspension would be noticed here.
	err = answered(ctx, func() error { return lease.Extend(ctx, shortTTL) })
	c.Report(report{What: "held", Left: time.Until(lease.Deadline()), Err: text(err)})
	<-lease.Lost()
	err = answered(ctx, func() error { return lease.Unlock(ctx) })
	c.Report(report{What: "lost", Err: text(err)})
}

// answered repeats a request until the server has answered: on a busy machine that may take longer
// than the clients wait.
func answered(ctx context.Context, do func() error) error {
	err := do()
	for err != nil && !errors.Is(err, locker.ErrNotHeld) && ctx.Err() == nil {
		time.Sleep(20 * time.Millisecond)
		err = do()
	}
	return err
}

func text(err error) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, locker.ErrNotHeld):
		return "not held"
	}
	return err.Error()
}

func next(t *testing.T, p *fleet.Process, what string) report {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var r report
	require.NoError(t, p.Receive(ctx, &r))
	require.Equal(t, what, r.What, r.Err)
	return r
}

// A client that is suspended for longer than its ttl loses the lock to another, learns of it when it
// goes on, and does the other no harm. One that is suspended while it waits is passed over, and is
// served later.
func TestSuspendedClients(t *testing.T) {
	t.Parallel()
	for name, b := range suspended {
		t.Run(name, func(t *testing.T) {
			if name != "redisv9" {
				testserver.Variant(t, proof.ShortForm)
			}
			t.Parallel()
			addr := b.start(t).Addr
			l := b.open(t, addr)
			clients, err := fleet.Start("client", 2)
			require.NoError(t, err)
			t.Cleanup(clients.Kill)
			holder, waiter := clients[0], clients[1]
			o := order{name, addr}
			require.NoError(t, clients.Send(o))
			next(t, holder, "ready")
			next(t, waiter, "ready")
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()

			require.NoError(t, holder.Send(o))
			next(t, holder, "held")
			require.NoError(t, waiter.Send(o)) // it waits, or will
			time.Sleep(200 * time.Millisecond)
			require.NoError(t, holder.Signal(syscall.SIGSTOP))
			require.NoError(t, waiter.Signal(syscall.SIGSTOP))
			began := time.Now()
			lease, err := locker.Lock(ctx, l, "k", shortTTL, locker.WithKeepAlive(), locker.WithRetry())
			require.NoError(t, err)
			took := time.Since(began)

			for _, p := range clients {
				require.NoError(t, p.Signal(syscall.SIGCONT))
			}
			assert.Equal(t, "not held", next(t, holder, "lost").Err)
			time.Sleep(300 * time.Millisecond) // a waiter that believes an old grant has it by now
			require.NoError(t, lease.Err(), "a client that was suspended took the lock away")
			require.NoError(t, answered(ctx, func() error { return lease.Unlock(ctx) }))
			served := next(t, waiter, "held")
			assert.Empty(t, served.Err, "the waiter believed a grant that was over")
			assert.Positive(t, served.Left)
			proof.Record(t, "Suspended clients", name, proof.Of("the lock's ttl", shortTTL),
				proof.Of("another had it after", took.Round(time.Millisecond)))
		})
	}
}
