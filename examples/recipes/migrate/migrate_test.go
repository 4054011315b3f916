package migrate

import (
	"context"
	"database/sql"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/golockers/locker/examples/recipes/internal/replicas"
	"github.com/golockers/locker/redisv9"
	"github.com/pressly/goose/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"
)

// Replicas that start together run each migration once, and all of them then have the new schema.
func TestUp(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	file, clients := "file:"+t.TempDir()+"/app.db", replicas.Clients(t, 4)
	migrations := fstest.MapFS{"00001_users.sql": {Data: []byte(
		"-- +goose Up\nCREATE TABLE users (id TEXT);\n-- +goose Down\nDROP TABLE users;\n")}}
	var ran atomic.Int32
	fill := goose.NewGoMigration(2, &goose.GoFunc{RunTx: func(ctx context.Context, tx *sql.Tx) error {
		ran.Add(1)
		for { // until all the others wait
			info, err := redisv9.New(clients[0]).Inspect(ctx, "migrations")
			if err != nil || info.Waiters == len(clients)-1 {
				break
			}
			time.Sleep(time.Millisecond)
		}
		_, err := tx.ExecContext(ctx, "INSERT INTO users VALUES ('ann')")
		return err
	}}, nil)

	var running sync.WaitGroup
	for _, client := range clients {
		running.Go(func() {
			db, err := sql.Open("sqlite", file)
			if !assert.NoError(t, err) {
				return
			}
			defer db.Close()
			provider, err := goose.NewProvider(goose.DialectSQLite3, db, migrations, goose.WithGoMigrations(fill))
			if !assert.NoError(t, err) {
				return
			}
			assert.NoError(t, Up(ctx, redisv9.New(client), provider))
			version, err := provider.GetDBVersion(ctx)
			assert.NoError(t, err)
			assert.EqualValues(t, 2, version)
		})
	}
	running.Wait()
	assert.EqualValues(t, 1, ran.Load())

	db, err := sql.Open("sqlite", file)
	require.NoError(t, err)
	defer db.Close()
	var users int
	require.NoError(t, db.QueryRowContext(ctx, "SELECT count(*) FROM users").Scan(&users))
	assert.Equal(t, 1, users)
}
