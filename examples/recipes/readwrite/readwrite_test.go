//go:build unix

package readwrite

import (
	"context"
	"database/sql"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/examples/recipes/internal/replicas"
	"github.com/golockers/locker/internal/fleet"
	"github.com/golockers/locker/internal/leaktest"
	"github.com/golockers/locker/redisv9"
	"github.com/golockers/locker/sqllock"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"
)

func TestMain(m *testing.M) {
	fleet.Main(map[string]fleet.Role{"worker": worker})
	leaktest.Main(m)
}

// order is where the worker finds the locks and the accounts.
type order struct{ Addr, Path string }

func open(path string) (*sql.DB, error) {
	return sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(10000)")
}

// worker changes the account. It reports once when it has read, and once whether its write was refused.
func worker(c *fleet.Child) {
	var o order
	c.Receive(&o)
	db, err := open(o.Path)
	if err != nil {
		c.Report(err.Error())
		return
	}
	l := redisv9.New(redis.NewClient(redisv9.Tuned(&redis.Options{Addr: o.Addr})))
	written, err := Change(context.Background(), l, db, "7", time.Hour,
		func(_ context.Context, balance int) (int, error) {
			c.Report("read")
			c.Receive(&o)
			return balance + 1, nil
		})
	switch {
	case written:
		c.Report("written")
	case errors.Is(err, locker.ErrNotHeld):
		c.Report("refused")
	default:
		c.Report(err.Error())
	}
}

// A process that is stopped between its read and its write goes on after the next holder has read and
// before that one writes. With a guard on the final UPDATE alone both would write. The ttl is so long
// that the process does not notice by itself that its lock was taken away.
func TestStoppedBetweenReadAndWrite(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	client, path := replicas.Clients(t, 1)[0], t.TempDir()+"/accounts.db"
	l := redisv9.New(client)
	db, err := open(path)
	require.NoError(t, err)
	defer func() { assert.NoError(t, db.Close()) }()
	for _, statement := range []string{
		`CREATE TABLE accounts (id TEXT PRIMARY KEY, balance INTEGER NOT NULL)`,
		`INSERT INTO accounts (id, balance) VALUES ('7', 0)`,
	} {
		_, err := db.ExecContext(ctx, statement)
		require.NoError(t, err)
	}

	require.NoError(t, sqllock.EnsureGuardSchema(ctx, db, sqllock.SQLite))

	workers, err := fleet.Start("worker", 1)
	require.NoError(t, err)
	defer workers.Kill()
	o := order{client.(*redis.Client).Options().Addr, path}
	require.NoError(t, workers.Send(o))
	var report string
	require.NoError(t, workers[0].Receive(ctx, &report))
	require.Equal(t, "read", report)
	require.NoError(t, workers[0].Signal(syscall.SIGSTOP))
	_, err = locker.Break(ctx, l, "account/7")
	require.NoError(t, err)

	written, err := Change(ctx, l, db, "7", time.Hour, func(_ context.Context, balance int) (int, error) {
		err := errors.Join(workers.Send(o), workers[0].Signal(syscall.SIGCONT))
		return balance + 1, errors.Join(err, workers[0].Receive(ctx, &report))
	})
	assert.NoError(t, err)
	assert.True(t, written)
	assert.Equal(t, "refused", report)
	var balance int
	require.NoError(t, db.QueryRowContext(ctx, "SELECT balance FROM accounts").Scan(&balance))
	assert.Equal(t, 1, balance)

	// One that loses its lock after it has written says both.
	written, err = Change(ctx, l, db, "7", time.Hour, func(ctx context.Context, balance int) (int, error) {
		_, err := locker.Break(ctx, l, "account/7")
		return balance + 1, err
	})
	assert.True(t, written)
	assert.ErrorIs(t, err, locker.ErrNotHeld)
}
