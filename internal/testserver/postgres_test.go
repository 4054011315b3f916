package testserver

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPostgres(t *testing.T) {
	s := Postgres(t, "-c", "work_mem=777kB")
	for range 2 { // the data, and so the answer, survives a crash
		work, err := postgresQuery(s.Addr, "postgres", "SHOW work_mem")
		require.NoError(t, err)
		require.Equal(t, []string{"777kB"}, work)
		_, err = postgresQuery(s.Addr, "postgres", "CREATE TABLE IF NOT EXISTS t (n int); INSERT INTO t VALUES (1) RETURNING n")
		require.NoError(t, err)
		s.Restart()
	}
	rows, err := postgresQuery(s.Addr, "postgres", "SELECT count(*) FROM t")
	require.NoError(t, err)
	require.Equal(t, []string{"2"}, rows)
	_, err = postgresQuery(s.Addr, "postgres", "SELECT 1/0")
	require.ErrorContains(t, err, "division by zero")
}

func TestPostgresStandby(t *testing.T) {
	s := PostgresStandby(t, Postgres(t))
	answer, err := postgresQuery(s.Addr, "postgres", "SELECT pg_is_in_recovery()")
	require.NoError(t, err)
	require.Equal(t, []string{"t"}, answer)
}

func TestPgBouncer(t *testing.T) {
	s := PgBouncer(t, Postgres(t))
	for range 2 {
		answer, err := postgresQuery(s.Addr, "postgres", "SELECT 7")
		require.NoError(t, err)
		require.Equal(t, []string{"7"}, answer)
		s.Restart()
	}
}
