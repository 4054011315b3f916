package postgres

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/lockertest"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// account is a balance that holders of a lock add one to, each with a read and a write in two
// transactions.
type account struct {
	db    *pgxpool.Pool
	locks *lockertest.Locker

	onlyWrites bool // the reads are not guarded
	accepted   atomic.Int64
}

// add adds one. A holder is paused where pause says: it goes on when the function that pause[at] runs
// has returned.
func (a *account) add(ctx context.Context, pause map[string]func()) error {
	at := func(where string) {
		if pause[where] != nil {
			resume := a.locks.Pause("account/7")
			pause[where]()
			resume()
		}
	}
	return locker.Do(ctx, a.locks, "account/7", time.Hour, func(ctx context.Context) error {
		fence, err := locker.FromContext(ctx).Fence(ctx)
		if err != nil {
			return err
		}
		ctx = context.WithoutCancel(ctx) // as if it did not notice that the lock was lost
		in := func(guarded bool, do func(tx pgx.Tx) error) error {
			return pgx.BeginFunc(ctx, a.db, func(tx pgx.Tx) error {
				if guarded {
					if err := Guard(ctx, tx, "account/7", fence); err != nil {
						return err
					}
				}
				return do(tx)
			})
		}
		at("before the read")
		var balance int
		if err := in(!a.onlyWrites, func(tx pgx.Tx) error {
			return tx.QueryRow(ctx, "SELECT balance FROM accounts").Scan(&balance)
		}); err != nil {
			return err
		}
		at("between")
		if err := in(true, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, fmt.Sprintf("UPDATE accounts SET balance = %d", balance+1))
			return err
		}); err != nil {
			return err
		}
		a.accepted.Add(1)
		at("after the write")
		return nil
	})
}

func (a *account) balance(t *testing.T) (balance int) {
	t.Helper()
	require.NoError(t, a.db.QueryRow(t.Context(), "SELECT balance FROM accounts").Scan(&balance))
	return balance
}

// A holder is paused before its read, between read and write, and after its write, while another one
// does the same and lets it go on between its own read and write. Each write that was accepted counts.
func TestGuard(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	a := account{db: newPool(t, testserver.Postgres(t).Addr), locks: lockertest.New()}
	assert.ErrorContains(t, a.add(ctx, nil), "EnsureGuardSchema")
	for range 2 {
		require.NoError(t, EnsureGuardSchema(ctx, a.db))
	}
	for _, statement := range []string{"CREATE TABLE accounts (balance INTEGER)", "INSERT INTO accounts VALUES (0)",
		GuardSchema()} {
		_, err := a.db.Exec(ctx, statement)
		require.NoError(t, err)
	}
	pauses := func() {
		for _, where := range []string{"before the read", "between", "after the write"} {
			old, paused, read := make(chan error, 1), make(chan struct{}), make(chan struct{})
			go func() { old <- a.add(ctx, map[string]func(){where: func() { close(paused); <-read }}) }()
			<-paused
			err := a.add(ctx, map[string]func(){"between": func() {
				close(read)
				assert.ErrorIs(t, <-old, locker.ErrNotHeld)
			}})
			assert.ErrorIs(t, err, locker.ErrNotHeld) // its lock was taken away as well
		}
	}
	for range 3 {
		pauses()
	}
	assert.Equal(t, 3*(3+1), a.balance(t), "the writes of the later holders, and those before a pause")
	assert.EqualValues(t, 3*(3+1), a.accepted.Load())

	a.onlyWrites = true
	pauses()
	assert.Less(t, a.balance(t), int(a.accepted.Load()), "a guard on the write alone loses some")
}

// Only what can be a fencing number is left in the table.
func TestGuardRefusesOtherNumbers(t *testing.T) {
	for _, fence := range []uint64{0, 1 << 63, math.MaxUint64} {
		assert.ErrorContains(t, Guard(t.Context(), nil, "k", fence), `guard "k": `+strconv.FormatUint(fence, 10)+" is no fencing number")
	}
}
