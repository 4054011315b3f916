package sqltest

// What is peculiar to SQLite.

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/sqllock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSQLiteWithRollbackJournal(t *testing.T) {
	testserver.Variant(t, "TestSQLite runs the suite with WAL, and TestSQLiteProcesses with both")
	file := filepath.Join(t.TempDir(), "locks.db")
	conform(t, "", sqllock.SQLite, func(tb testing.TB, _ string) *sql.DB {
		// The suite is not about the disk, which this journal has to wait for several times a statement.
		return openSQLite(tb, file, "busy_timeout(5000)", "synchronous(OFF)")
	})
}

func TestSQLiteOnOneConnection(t *testing.T) {
	testserver.Variant(t, "TestSQLite runs the suite with many connections, which is harder")
	file := filepath.Join(t.TempDir(), "locks.db")
	conform(t, "", sqllock.SQLite, func(tb testing.TB, _ string) *sql.DB {
		db := openSQLite(tb, file, wal...)
		db.SetMaxOpenConns(1)
		return db
	})
}

// A setting that does not fit is an error that names it, from each operation.
func TestSQLiteSettings(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		file     string
		settings []string
		want     string
	}{
		"no busy timeout":  {"a.db", nil, "sqllock: busy_timeout is 0 ms"},
		"too short":        {"a.db", []string{"busy_timeout(999)"}, "sqllock: busy_timeout is 999 ms"},
		"journal off":      {"a.db", []string{"busy_timeout(5000)", "journal_mode(OFF)"}, "sqllock: journal_mode is off"},
		"journal memory":   {"a.db", []string{"busy_timeout(5000)", "journal_mode(MEMORY)"}, "sqllock: journal_mode is memory"},
		"in memory":        {":memory:", []string{"busy_timeout(5000)"}, "sqllock: the database is in memory"},
		"a temporary file": {"", []string{"busy_timeout(5000)"}, "sqllock: the database is in memory"},
		"several":          {":memory:", nil, "no other process sees it; use a file, or package memory; busy_timeout is 0 ms"},
	} {
		t.Run(name, func(t *testing.T) {
			file := c.file
			if strings.HasSuffix(file, ".db") {
				file = filepath.Join(t.TempDir(), file)
			}
			l := sqllock.New(openSQLite(t, file, c.settings...), sqllock.SQLite)
			require.ErrorContains(t, l.EnsureSchema(t.Context()), c.want)
			for name, err := range failures(t, l) {
				require.ErrorContains(t, err, c.want, name)
			}
		})
	}
}

// A connection with other settings than the first is named when a statement fails on it.
func TestSQLiteConnectionsDiffer(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "locks.db")
	db := openSQLite(t, file, wal...)
	db.SetMaxOpenConns(1)
	l := newLocker(t, db, sqllock.SQLite)
	_, err := db.ExecContext(t.Context(), "PRAGMA busy_timeout = 0")
	require.NoError(t, err)
	acquire(t, l, "k", "t", time.Hour) // no one else writes
	defer begin(t, file)()
	for name, err := range changes(t, l) {
		require.ErrorContains(t, err, "busy_timeout is 0 ms", name)
		require.ErrorContains(t, err, "database is locked", name)
	}
	_, err = l.Inspect(t.Context(), "k")
	require.NoError(t, err)
}

// begin begins a transaction that writes, as another process might.
func begin(t *testing.T, file string) (end func()) {
	t.Helper()
	conn, err := openSQLite(t, file, wal...).Conn(t.Context())
	require.NoError(t, err)
	_, err = conn.ExecContext(t.Context(), "BEGIN IMMEDIATE")
	require.NoError(t, err)
	return func() {
		_, err := conn.ExecContext(context.Background(), "ROLLBACK")
		assert.NoError(t, err)
		assert.NoError(t, conn.Close())
	}
}

// While another process writes, a call waits, and its caller need not.
func TestSQLiteBusy(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "locks.db")
	l := newLocker(t, openSQLite(t, file, "busy_timeout(1000)", "journal_mode(WAL)"), sqllock.SQLite)
	acquire(t, l, "k", "t", time.Hour)
	end := begin(t, file)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := l.Extend(ctx, "k", "t", time.Minute)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	_, err = l.Acquire(t.Context(), "l", "t", time.Hour)
	require.ErrorContains(t, err, "database is locked")
	end()
	release(t, l, "k", "t")
	acquire(t, l, "l", "t", time.Hour)
}

// The variables of a process that TestSQLiteProcesses starts.
const (
	envFile    = "LOCKER_TEST_SQLITE"
	envJournal = "LOCKER_TEST_JOURNAL"
)

// Processes add one to a number in a file, under a lock: none is lost, and the fencing numbers grow.
// Some are killed, whose locks expire.
func TestSQLiteProcesses(t *testing.T) {
	if file := os.Getenv(envFile); file != "" {
		count(t, file)
		return
	}
	t.Parallel()
	for _, journal := range []string{"WAL", "DELETE"} {
		t.Run(journal, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			file := filepath.Join(dir, "locks.db")
			require.NoError(t, os.WriteFile(file+".count", []byte("0 0"), 0o600))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			const processes, killed = 4, 2
			lines := make(chan int, 1)
			outputs := make([]strings.Builder, processes)
			var cmds []*exec.Cmd
			for i := range processes {
				cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestSQLiteProcesses$")
				cmd.Env = append(os.Environ(), envFile+"="+file, envJournal+"="+journal)
				cmd.Stderr = os.Stderr
				out, err := cmd.StdoutPipe()
				require.NoError(t, err)
				require.NoError(t, cmd.Start())
				cmds = append(cmds, cmd)
				go func() {
					for s := bufio.NewScanner(out); s.Scan(); {
						if strings.HasPrefix(s.Text(), "counted") {
							lines <- i
						} else {
							fmt.Fprintln(&outputs[i], s.Text())
						}
					}
					lines <- i - processes
				}()
			}
			counted := make([]int, processes)
			total, ended := 0, 0
			timeout := time.After(2 * long)
			for stopped := false; ended < processes; {
				select {
				case i := <-lines:
					if i < 0 {
						require.True(t, stopped, "a process ended too early: %s", &outputs[i+processes])
						ended++
						break
					}
					counted[i]++
					total++
				case <-timeout:
					t.Fatalf("after %d of each: %v", total, counted)
				}
				if !stopped && slices.Min(counted) >= 5 {
					for _, cmd := range cmds[:killed] {
						require.NoError(t, cmd.Process.Kill())
					}
					require.NoError(t, os.WriteFile(file+".stop", nil, 0o600))
					stopped = true
				}
			}
			for i, cmd := range cmds {
				if err := cmd.Wait(); i >= killed {
					require.NoError(t, err)
				}
			}
			content, err := os.ReadFile(file + ".count")
			require.NoError(t, err)
			var n, fence int
			_, err = fmt.Sscan(string(content), &n, &fence)
			require.NoError(t, err, "%q", content)
			t.Logf("%d counted, of them %v were told", n, counted)
			require.GreaterOrEqual(t, n, total)
			require.LessOrEqual(t, n, total+killed, "a process that was killed had no time to tell")
		})
	}
}

// count is what each process does.
func count(t *testing.T, file string) {
	settings := []string{"busy_timeout(5000)", "journal_mode(" + os.Getenv(envJournal) + ")"}
	l := newLocker(t, openSQLite(t, file, settings...), sqllock.SQLite)
	for {
		lease, err := locker.Lock(t.Context(), l, "count", 5*time.Second)
		require.NoError(t, err)
		begun := time.Now()
		if _, err := os.Stat(file + ".stop"); err == nil {
			require.NoError(t, lease.Unlock(t.Context()))
			return
		}
		number, err := lease.Fence(t.Context())
		require.NoError(t, err)
		content, err := os.ReadFile(file + ".count")
		require.NoError(t, err)
		n, last, _ := strings.Cut(string(content), " ")
		before, err := strconv.Atoi(n)
		require.NoError(t, err)
		fence, err := strconv.ParseUint(last, 10, 64)
		require.NoError(t, err)
		require.Greater(t, number, fence)
		// One write, so that a process that is killed leaves the old or the new.
		temporary := fmt.Sprintf("%s.%d", file, os.Getpid())
		require.NoError(t, os.WriteFile(temporary, fmt.Appendf(nil, "%d %d", before+1, number), 0o600))
		require.NoError(t, os.Rename(temporary, file+".count"))
		fmt.Println("counted")
		require.NoError(t, lease.Unlock(t.Context()))
		// Without a queue the others would hardly get it on a slow machine.
		time.Sleep(rand.N(10*time.Millisecond + 10*time.Since(begun)))
	}
}

func TestSQLiteStorm(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "locks.db")
	var lockers []*sqllock.Locker
	for range 2 {
		lockers = append(lockers, newLocker(t, openSQLite(t, file, wal...), sqllock.SQLite))
	}
	storm(t, lockers, nil)
}
