package postgres

import (
	"context"
	"net/url"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance"
	"github.com/golockers/locker/internal/testserver"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
)

// long bounds everything that is waited for: only a failing test uses it up.
const long = 30 * time.Second

// newPool returns a pool of connections to addr, with more settings in pairs.
func newPool(tb testing.TB, addr string, settings ...string) *pgxpool.Pool {
	tb.Helper()
	q := url.Values{"pool_max_conns": {"64"}, "connect_timeout": {"5"}, "sslmode": {"disable"}}
	for i := 0; i < len(settings); i += 2 {
		q.Set(settings[i], settings[i+1])
	}
	u := url.URL{
		Scheme: "postgres", User: url.User(testserver.PostgresUser), Host: addr, Path: "postgres", RawQuery: q.Encode(),
	}
	config, err := pgxpool.ParseConfig(u.String())
	require.NoError(tb, err)
	// If the context of a ping ends, on a machine that is starved of its processors, pgx may report
	// that to the next user of the connection.
	config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	require.NoError(tb, err)
	tb.Cleanup(pool.Close)
	return pool
}

// newServer starts a server and creates the table.
func newServer(tb testing.TB, args ...string) *testserver.Server {
	tb.Helper()
	s := testserver.Postgres(tb, args...)
	require.NoError(tb, EnsureSchema(tb.Context(), newPool(tb, s.Addr)))
	return s
}

// acquire takes a lock that must be free.
func acquire(tb testing.TB, l locker.Locker, key, token string, ttl time.Duration) {
	tb.Helper()
	ok, err := l.Acquire(tb.Context(), key, token, ttl)
	require.NoError(tb, err)
	require.True(tb, ok, "%q is held", key)
}

func release(tb testing.TB, l locker.Locker, key, token string) {
	tb.Helper()
	ok, err := l.Release(tb.Context(), key, token)
	require.NoError(tb, err)
	require.True(tb, ok, "%q is not held", key)
}

// variants is why the suite runs once for most changes.
const variants = "the suite runs with the defaults, and TestPgBouncer covers what a pooler does"

// The runs take turns: each begins with hundreds of connections, for which the server starts
// processes.
func TestConformance(t *testing.T) {
	run := func(t *testing.T, addr string, settings []string, opts ...Option) {
		admin := newPool(t, addr, append(settings, "default_query_exec_mode", "exec")...)
		conformance.Run(t, conformance.Config{
			Addr: addr,
			New: func(tb testing.TB, addr string) locker.Locker {
				return New(newPool(tb, addr, settings...), opts...)
			},
			LoseData: func(ctx context.Context) error {
				_, err := admin.Exec(ctx, "TRUNCATE locker_locks")
				return err
			},
		})
	}
	t.Run("defaults", func(t *testing.T) { run(t, newServer(t).Addr, nil) })
	t.Run("WithoutPreparing", func(t *testing.T) {
		testserver.Variant(t, variants)
		run(t, newServer(t).Addr, nil, WithoutPreparing())
	})
	t.Run("serializable", func(t *testing.T) {
		testserver.Variant(t, variants)
		run(t, newServer(t, "-c", "default_transaction_isolation=serializable").Addr, nil)
	})
	t.Run("PgBouncer", func(t *testing.T) {
		testserver.Variant(t, variants)
		run(t, testserver.PgBouncer(t, newServer(t)).Addr, nil, WithoutPreparing())
	})
}

func TestSemaphore(t *testing.T) {
	t.Parallel()
	conformance.RunSemaphore(t, conformance.SemaphoreConfig{
		Addr: newServer(t).Addr,
		New:  func(tb testing.TB, addr string) locker.Locker { return New(newPool(tb, addr)) },
	})
}
