package testserver

import (
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPostgres(t *testing.T) {
	t.Parallel()
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

// A process that outlives the first one for a moment does not keep the directory from being removed.
func TestPostgresIsRemoved(t *testing.T) {
	t.Parallel()
	var dir, segment string
	var writes sync.WaitGroup
	t.Run("busy", func(t *testing.T) {
		s := Postgres(t)
		dir, segment = s.dir, sharedMemory(s.dir)
		require.NotEmpty(t, segment)
		writes.Go(func() {
			_, _ = postgresQuery(s.Addr, "postgres", "DO 'BEGIN FOR i IN 1..5000 LOOP EXECUTE ''CREATE TABLE t'' || i || ''()''; END LOOP; END'")
		})
		require.Eventually(t, func() bool {
			busy, err := postgresQuery(s.Addr, "postgres", "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'DO%'")
			return err == nil && busy[0] == "1"
		}, patience, time.Millisecond)
	})
	writes.Wait()
	require.NoDirExists(t, dir)
	require.Eventually(t, func() bool { // when the last process has ended
		segments, err := os.ReadFile("/proc/sysvipc/shm")
		return err != nil || !slices.Contains(strings.Fields(string(segments)), segment)
	}, patience, 10*time.Millisecond)
}

func TestPostgresStandby(t *testing.T) {
	t.Parallel()
	s := PostgresStandby(t, Postgres(t))
	answer, err := postgresQuery(s.Addr, "postgres", "SELECT pg_is_in_recovery()")
	require.NoError(t, err)
	require.Equal(t, []string{"t"}, answer)
}

func TestPgBouncer(t *testing.T) {
	t.Parallel()
	s := PgBouncer(t, Postgres(t))
	for range 2 {
		answer, err := postgresQuery(s.Addr, "postgres", "SELECT 7")
		require.NoError(t, err)
		require.Equal(t, []string{"7"}, answer)
		s.Restart()
	}
}
