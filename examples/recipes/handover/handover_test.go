package handover

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/examples/recipes/internal/replicas"
	"github.com/golockers/locker/lockertest"
	"github.com/golockers/locker/memory"
	"github.com/golockers/locker/redisv9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"
)

func openDB(t *testing.T) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+t.TempDir()+"/invoices.db")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, db.Close()) })
	for _, statement := range []string{
		`CREATE TABLE invoices (id TEXT PRIMARY KEY, status TEXT NOT NULL,
			fence BIGINT NOT NULL DEFAULT 0, holder TEXT NOT NULL DEFAULT '')`,
		`INSERT INTO invoices (id, status) VALUES ('42', 'open')`,
	} {
		_, err := db.ExecContext(t.Context(), statement)
		require.NoError(t, err)
	}
	return db
}

func row(t *testing.T, db *sql.DB) (status, holder string) {
	t.Helper()
	require.NoError(t, db.QueryRowContext(t.Context(),
		"SELECT status, holder FROM invoices WHERE id = '42'").Scan(&status, &holder))
	return status, holder
}

func charge(context.Context) error { return nil }

// accept returns the job, as it arrives at a worker.
func accept(t *testing.T, l locker.Locker) (job Job) {
	t.Helper()
	accepted, err := Accept(t.Context(), l, "42", func(_ context.Context, sent Job) error {
		message, err := json.Marshal(sent)
		require.NoError(t, err)
		return json.Unmarshal(message, &job)
	})
	require.NoError(t, err)
	require.True(t, accepted)
	return job
}

func assertRefused(t *testing.T, l locker.Locker) {
	t.Helper()
	accepted, err := Accept(t.Context(), l, "42", nil)
	assert.NoError(t, err)
	assert.False(t, accepted)
}

// The lock passes from the web server to the worker without being free in between.
func TestHandover(t *testing.T) {
	t.Parallel()
	db, clients := openDB(t), replicas.Clients(t, 2)
	web, worker := redisv9.New(clients[0]), redisv9.New(clients[1])
	job := accept(t, web)
	assertRefused(t, web)

	require.NoError(t, Pay(t.Context(), worker, db, job, func(context.Context) error {
		assertRefused(t, web)
		return nil
	}))
	status, holder := row(t, db)
	assert.Equal(t, "paid", status)
	assert.Equal(t, job.Token, holder)
	assert.ErrorIs(t, Pay(t.Context(), worker, db, job, charge), locker.ErrNotHeld, "a second delivery")
	accept(t, web)
}

// A worker that has lost the lock without noticing does not overwrite what the next one has written.
func TestStaleWorker(t *testing.T) {
	t.Parallel()
	db, l := openDB(t), lockertest.New()
	stale := accept(t, l)
	var next Job
	err := Pay(t.Context(), l, db, stale, func(ctx context.Context) error {
		l.Lose("invoice/42")
		next = accept(t, l)
		return Pay(t.Context(), l, db, next, charge)
	})
	assert.ErrorIs(t, err, sql.ErrNoRows)
	assert.ErrorIs(t, err, locker.ErrNotHeld)
	_, holder := row(t, db)
	assert.Equal(t, next.Token, holder)
}

// A job whose sending failed may have arrived all the same. So its lock is not released.
func TestQueueIsDown(t *testing.T) {
	t.Parallel()
	l, lost := memory.New(), errors.New("no reply")
	var sent Job
	_, err := Accept(t.Context(), l, "42", func(_ context.Context, job Job) error { sent = job; return lost })
	assert.ErrorIs(t, err, lost)
	assertRefused(t, l)
	_, err = locker.Resume(t.Context(), l, "invoice/42", sent.Token, time.Minute)
	assert.NoError(t, err)
}
