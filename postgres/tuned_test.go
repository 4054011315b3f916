package postgres_test

import (
	"testing"
	"time"

	"github.com/golockers/locker/postgres"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTuned(t *testing.T) {
	given, err := pgxpool.ParseConfig("postgres://u@localhost:1/app?pool_max_conns=7")
	require.NoError(t, err)
	tuned := postgres.Tuned(given)
	assert.Zero(t, given.ConnConfig.ConnectTimeout, "the caller's configuration was changed")
	assert.Equal(t, 5*time.Second, tuned.ConnConfig.ConnectTimeout)
	assert.EqualValues(t, 7, tuned.MaxConns)

	given, err = pgxpool.ParseConfig("postgres://u@localhost:1/app?connect_timeout=9")
	require.NoError(t, err)
	assert.Equal(t, 9*time.Second, postgres.Tuned(given).ConnConfig.ConnectTimeout)

	pool, err := pgxpool.NewWithConfig(t.Context(), tuned) // which takes only what ParseConfig has made
	require.NoError(t, err)
	pool.Close()
}
