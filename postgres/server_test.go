package postgres

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/testserver"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// changes calls each operation that changes a lock.
func changes(tb testing.TB, l *Locker) map[string]error {
	tb.Helper()
	errs := make(map[string]error)
	var ok bool
	check := func(name string) {
		assert.False(tb, ok, "%s reports success", name)
	}
	ok, errs["Acquire"] = l.Acquire(tb.Context(), "k", "t", time.Minute)
	check("Acquire")
	ok, errs["Extend"] = l.Extend(tb.Context(), "k", "t", time.Minute)
	check("Extend")
	ok, errs["Release"] = l.Release(tb.Context(), "k", "t")
	check("Release")
	_, ok, errs["Fence"] = l.Fence(tb.Context(), "k", "t")
	check("Fence")
	return errs
}

// failures calls each operation, all of which must fail.
func failures(tb testing.TB, l *Locker) map[string]error {
	tb.Helper()
	errs := changes(tb, l)
	_, errs["Inspect"] = l.Inspect(tb.Context(), "k")
	for _, err := range l.List(tb.Context(), "k") {
		errs["List"] = err
	}
	for name, err := range errs {
		assert.Error(tb, err, name)
	}
	return errs
}

// crashes lets goroutines take locks while the server is killed, and returns how many of them it has
// forgotten after its restart.
func crashes(t *testing.T, opts ...Option) (granted, forgotten int) {
	s := newServer(t, "-c", "fsync=on")
	l := New(newPool(t, s.Addr), opts...)
	var granting sync.WaitGroup
	var grants atomic.Int64
	keys := make([][]string, 8)
	for i := range keys {
		granting.Go(func() {
			for n := 0; ; n++ {
				key := fmt.Sprintf("%d/%d", i, n)
				if ok, err := l.Acquire(t.Context(), key, "t", time.Hour); err != nil || !ok {
					return
				}
				keys[i] = append(keys[i], key)
				grants.Add(1)
			}
		})
	}
	require.Eventually(t, func() bool { return grants.Load() > 500 }, long, time.Millisecond)
	s.Stop()
	granting.Wait()
	s.Restart()
	require.Eventually(t, func() bool { // connections that have ended fail once
		_, err := l.Inspect(t.Context(), "k")
		return err == nil
	}, long, time.Millisecond)
	held := make(map[string]bool)
	for info, err := range l.List(t.Context(), "") {
		require.NoError(t, err)
		held[info.Key] = true
	}
	for _, keys := range keys {
		for _, key := range keys {
			if granted++; !held[key] {
				forgotten++
			}
		}
	}
	return granted, forgotten
}

func TestCrashForgetsNothing(t *testing.T) {
	t.Parallel()
	granted, forgotten := crashes(t)
	t.Logf("%d grants", granted)
	require.Zero(t, forgotten, "of %d grants", granted)
}

// The server's own default is overruled.
func TestCrashWithAsyncDefault(t *testing.T) {
	t.Parallel()
	s := newServer(t, "-c", "synchronous_commit=off")
	for _, async := range []bool{false, true} {
		pool := newPool(t, s.Addr, "pool_max_conns", "1")
		var opts []Option
		if async {
			opts = append(opts, WithAsyncCommit())
		}
		l := New(pool, opts...)
		flushed := func() (yes bool) {
			err := pool.QueryRow(t.Context(), "SELECT pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn()").Scan(&yes)
			require.NoError(t, err)
			return yes
		}
		// Other processes of the server write as well, now and then.
		const times = 40
		late, lateFences := 0, 0
		for range times {
			acquire(t, l, "k", "t", time.Hour)
			if !flushed() {
				late++
			}
			_, ok, err := l.Fence(t.Context(), "k", "t")
			require.NoError(t, err)
			require.True(t, ok)
			if !flushed() {
				lateFences++
			}
			release(t, l, "k", "t")
			if !flushed() {
				late++
			}
		}
		assert.LessOrEqual(t, lateFences, times/4, "fencing numbers that are not on the disk")
		if async {
			assert.GreaterOrEqual(t, late, times, "the option has no effect, or this test does not notice")
		} else {
			assert.LessOrEqual(t, late, times/4, "changes that are not on the disk")
		}
		var setting string
		require.NoError(t, pool.QueryRow(t.Context(), "SHOW synchronous_commit").Scan(&setting))
		require.Equal(t, "off", setting, "the session's own setting has changed")
	}
}

func TestFenceOverCrash(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	pool := newPool(t, s.Addr)
	l := New(pool, WithAsyncCommit())
	last := uint64(0)
	fence := func(ttl time.Duration) {
		t.Helper()
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			ok, err := l.Acquire(t.Context(), "k", "t", ttl)
			require.NoError(c, err)
			require.True(c, ok)
			n, ok, err := l.Fence(t.Context(), "k", "t")
			require.NoError(c, err)
			require.True(c, ok)
			require.Greater(c, n, last)
			last = n
		}, long, 10*time.Millisecond)
	}
	for range 3 {
		for range 100 {
			fence(time.Hour)
		}
		s.Restart()
		fence(time.Hour)
	}
	for _, loss := range []string{"TRUNCATE locker_locks", "DELETE FROM locker_locks", "DROP TABLE locker_locks"} {
		_, err := pool.Exec(t.Context(), loss)
		require.NoError(t, err)
		require.NoError(t, EnsureSchema(t.Context(), pool))
		fence(time.Hour)
	}
	// The clock was ahead when the last number was minted.
	_, err := pool.Exec(t.Context(), "UPDATE locker_locks SET fence = fence + 3600000000")
	require.NoError(t, err)
	last += 3600000000
	fence(time.Hour)
	release(t, l, "k", "t")
	swept, err := l.sweep(t.Context(), 0)
	require.NoError(t, err)
	require.Zero(t, swept, "the number is forgotten")
	fence(time.Hour)
}

func TestStandby(t *testing.T) {
	t.Parallel()
	primary := newServer(t)
	standby := testserver.PostgresStandby(t, primary)
	l := New(newPool(t, primary.Addr))
	acquire(t, l, "k", "t", time.Hour)
	lagging := New(newPool(t, standby.Addr))
	for name, err := range changes(t, lagging) {
		assert.ErrorContains(t, err, "the server (a standby perhaps) or the session is read-only", name)
	}
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		info, err := lagging.Inspect(t.Context(), "k")
		assert.NoError(c, err)
		assert.Equal(c, "t", info.Token)
	}, long, 10*time.Millisecond)
	_, err := locker.Break(t.Context(), lagging, "k")
	require.ErrorContains(t, err, "read-only")
}

func TestReadOnlySession(t *testing.T) {
	t.Parallel()
	l := New(newPool(t, newServer(t).Addr, "default_transaction_read_only", "on"))
	for name, err := range changes(t, l) {
		assert.ErrorContains(t, err, "read-only", name)
	}
}

// A backend that is killed (57P01) is an error, and the next operation works.
func TestKilledBackend(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	pool, admin := newPool(t, s.Addr, "pool_max_conns", "1"), newPool(t, s.Addr)
	l := New(pool)
	for name, do := range map[string]func() (bool, error){
		"Acquire": func() (bool, error) { return l.Acquire(t.Context(), "k", "t", time.Hour) },
		"Extend":  func() (bool, error) { return l.Extend(t.Context(), "k", "t", time.Hour) },
		"Release": func() (bool, error) { return l.Release(t.Context(), "k", "t") },
	} {
		ok, err := l.Acquire(t.Context(), "k", "t", time.Hour)
		require.NoError(t, err)
		require.True(t, ok)
		_, err = admin.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'`)
		require.NoError(t, err)
		ok, err = do()
		require.Error(t, err, name)
		require.False(t, ok, name)
		ok, err = l.Extend(t.Context(), "k", "t", time.Hour)
		require.NoError(t, err, name)
		require.True(t, ok, name)
	}
}

// hold locks the row of key in a transaction, so that statements that change it hang.
func hold(t *testing.T, pool *pgxpool.Pool, key string) (end func()) {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	tag, err := tx.Exec(t.Context(), "SELECT FROM locker_locks WHERE key = $1 FOR UPDATE", []byte(key))
	require.NoError(t, err)
	require.EqualValues(t, 1, tag.RowsAffected())
	return func() { require.NoError(t, tx.Rollback(context.Background())) }
}

func TestStatementTimeout(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	admin := newPool(t, s.Addr)
	l := New(newPool(t, s.Addr, "statement_timeout", "50"))
	acquire(t, New(admin), "k", "t", time.Hour) // which may take longer than that
	defer hold(t, admin, "k")()
	for name, err := range changes(t, l) {
		var refused *pgconn.PgError
		require.ErrorAs(t, err, &refused, name)
		require.Equal(t, "57014", refused.Code, name)
	}
}

func TestHungStatement(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	admin := newPool(t, s.Addr)
	l := New(newPool(t, s.Addr, "pool_max_conns", "2"))
	acquire(t, l, "k", "t", time.Hour)
	end := hold(t, admin, "k")

	// A caller leaves when its deadline passes.
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := l.Extend(ctx, "k", "t", time.Minute)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	// A Release of the token waits for the call that was left behind, and gives up with its context.
	ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = l.Release(ctx, "k", "t")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	// Without a deadline the call ends with the adapter's own.
	_, err = l.Release(t.Context(), "k", "t")
	require.ErrorContains(t, err, "no answer within 5s")

	end()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		ok, err := l.Release(t.Context(), "k", "t")
		assert.NoError(c, err)
		info, err := l.Inspect(t.Context(), "k")
		assert.NoError(c, err)
		assert.True(c, ok || info.Token == "")
	}, long, 10*time.Millisecond)
}

// A pooler that cannot prepare leads to an error that says what to do.
func TestPgBouncerWithoutOption(t *testing.T) {
	t.Parallel()
	bouncer := testserver.PgBouncer(t, newServer(t))
	var failed error
	require.Eventually(t, func() bool {
		l := New(newPool(t, bouncer.Addr))
		var all sync.WaitGroup
		var mu sync.Mutex
		for range 8 {
			all.Go(func() {
				if _, err := l.Acquire(t.Context(), "k", "t", time.Hour); err != nil {
					mu.Lock()
					defer mu.Unlock()
					failed = err
				}
			})
		}
		all.Wait()
		return failed != nil
	}, long, time.Millisecond)
	if codeOf(failed) != noPrepared && codeOf(failed) != duplicatePrepared {
		t.Skipf("this PgBouncer can prepare: %v", failed)
	}
	require.ErrorContains(t, failed, "use postgres.WithoutPreparing")
}

// Changes of a row need no new entries in the index. Most of them find room on the row's page.
func TestChangesStayOnTheirPage(t *testing.T) {
	t.Parallel()
	pool := newPool(t, newServer(t, "-c", "autovacuum=off").Addr)
	l := New(pool, WithAsyncCommit())
	var all sync.WaitGroup
	const lockers, cycles = 8, 400
	for i := range lockers {
		all.Go(func() {
			for range cycles {
				key := fmt.Sprint("k", i)
				ok, err := l.Acquire(t.Context(), key, "t", time.Hour)
				assert.True(t, ok && err == nil, err)
				_, ok, err = l.Fence(t.Context(), key, "t")
				assert.True(t, ok && err == nil, err)
				ok, err = l.Release(t.Context(), key, "t")
				assert.True(t, ok && err == nil, err)
			}
		})
	}
	all.Wait()
	pool.Reset() // a backend reports its figures when it ends
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		var updates, hot, index int64
		err := pool.QueryRow(t.Context(), `SELECT n_tup_upd, n_tup_hot_upd, pg_relation_size('locker_locks_pkey')
			FROM pg_stat_user_tables WHERE relname = 'locker_locks'`).Scan(&updates, &hot, &index)
		assert.NoError(c, err)
		assert.GreaterOrEqual(c, updates, int64(lockers*(3*cycles-1)))
		assert.GreaterOrEqual(c, hot, updates*95/100)
		assert.LessOrEqual(c, index, int64(64<<10))
	}, long, 10*time.Millisecond)
}

func TestSweep(t *testing.T) {
	t.Parallel()
	pool := newPool(t, newServer(t).Addr)
	l := New(pool)
	for _, key := range []string{"expired", "released", "held", "busy"} {
		acquire(t, l, key, "t", time.Hour)
	}
	release(t, l, "released", "t")
	release(t, l, "busy", "t")
	ok, err := l.Extend(t.Context(), "expired", "t", time.Millisecond)
	require.NoError(t, err)
	require.True(t, ok)
	rows := func() (keys []string) {
		err := pool.QueryRow(t.Context(), "SELECT array_agg(convert_from(key, 'UTF8') ORDER BY key) FROM locker_locks").Scan(&keys)
		require.NoError(t, err)
		return keys
	}
	_, err = l.sweep(t.Context(), time.Hour)
	require.NoError(t, err)
	require.Equal(t, []string{"busy", "expired", "held", "released"}, rows(), "rows that were just used")

	end := hold(t, pool, "busy")
	defer end()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		_, err = l.sweep(t.Context(), 0)
		assert.NoError(c, err)
		assert.Equal(c, []string{"busy", "held"}, rows())
	}, long, time.Millisecond)
	acquire(t, l, "released", "t", time.Hour)
}

// Acquire and Wait sweep from time to time, in the background.
func TestAcquireSweeps(t *testing.T) {
	t.Parallel()
	pool := newPool(t, newServer(t).Addr)
	l := New(pool)
	l.start = time.Now()
	count := func() (n int) {
		const query = "SELECT count(*) FROM locker_locks WHERE expires < now() AND token <> ''"
		require.NoError(t, pool.QueryRow(t.Context(), query).Scan(&n))
		return n
	}
	for i, take := range []func(key string) error{
		func(key string) error {
			_, err := l.Acquire(t.Context(), key, "t", time.Hour)
			return err
		},
		func(key string) error {
			_, err := l.Wait(t.Context(), key, "t", time.Hour)
			return err
		},
		func(key string) error { // by the queue's statement
			watching, cancel := context.WithCancel(t.Context())
			defer cancel()
			_, err := l.Watch(watching, "other")
			require.NoError(t, err)
			_, err = l.Wait(t.Context(), key, "t", time.Hour)
			return err
		},
	} {
		_, err := pool.Exec(t.Context(), `INSERT INTO locker_locks (key, token, expires)
			SELECT int4send(n), 't', now() - interval '1 day' FROM generate_series(1, $1) n`, 2*sweepMost+1)
		require.NoError(t, err)
		key := fmt.Sprint("k", i)
		require.NoError(t, take(key))
		require.Equal(t, 2*sweepMost+1, count(), "it sweeps at once")
		l.start = l.start.Add(-sweepEvery)
		require.NoError(t, take(key))
		require.Eventually(t, func() bool { return count() == 0 }, long, time.Millisecond)
	}
}

// A ttl is never cut off, and the server's clock may be a microsecond behind.
func TestRounding(t *testing.T) {
	for ttl, want := range map[time.Duration]int64{
		time.Millisecond: 1001, time.Millisecond + 1: 1002, 1999 * time.Microsecond: 2000, 2*time.Millisecond - 1: 2001,
		time.Hour: 3_600_000_001, math.MaxInt64: math.MaxInt64/1000 + 2,
	} {
		us, err := microsecondsOf(ttl)
		require.NoError(t, err)
		require.Equal(t, pgtype.Interval{Microseconds: want, Valid: true}, us, ttl)
	}
}

func TestLongestTTL(t *testing.T) {
	t.Parallel()
	l := New(newPool(t, newServer(t).Addr))
	acquire(t, l, "k", "t", math.MaxInt64)
	info, err := l.Inspect(t.Context(), "k")
	require.NoError(t, err)
	require.InDelta(t, math.MaxInt64, int64(info.TTL), float64(time.Minute))
	_, err = l.Acquire(t.Context(), "k", "t", time.Millisecond-1)
	require.ErrorIs(t, err, locker.ErrInvalidTTL)
	require.False(t, errors.Is(err, locker.ErrInvalidKey))
}

// Keys and tokens are bytes, whatever the encoding of the database and of the client.
func TestEncodings(t *testing.T) {
	t.Parallel()
	s := testserver.Postgres(t)
	admin := newPool(t, s.Addr)
	for _, encoding := range []string{"latin1", "sql_ascii", "utf8"} {
		_, err := admin.Exec(t.Context(), fmt.Sprintf("CREATE DATABASE %s TEMPLATE template0 ENCODING '%[1]s'", encoding))
		require.NoError(t, err)
		for _, opts := range [][]Option{nil, {WithoutPreparing()}} {
			pool := newPool(t, s.Addr, "database", encoding, "client_encoding", "LATIN1")
			require.NoError(t, EnsureSchema(t.Context(), pool), encoding)
			l := New(pool, opts...)
			for _, name := range []string{"\x00", "\xff\xfe", "ключ", `\x41`, "A", "'", `\`} {
				acquire(t, l, name, name, time.Hour)
				info, err := l.Inspect(t.Context(), name)
				require.NoError(t, err)
				require.Equal(t, name, info.Token)
			}
			for info, err := range l.List(t.Context(), "") {
				require.NoError(t, err)
				release(t, l, info.Key, info.Token)
			}
		}
	}
}
