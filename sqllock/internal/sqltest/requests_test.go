package sqltest

// How many requests an operation takes.

import (
	"context"
	"database/sql"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/sqllock"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// counted is a connection that counts what is written: the drivers write each message in one piece.
type counted struct {
	net.Conn
	writes *atomic.Int64
}

func (c counted) Write(b []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(b)
}

func TestRequests(t *testing.T) {
	t.Parallel()
	var writes atomic.Int64
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return counted{conn, &writes}, err
	}
	maria, pg := testserver.MariaDB(t).Addr, testserver.Postgres(t).Addr
	openMySQL := func(interpolate bool) *sql.DB {
		config := mysql.NewConfig()
		config.User, config.Net, config.Addr, config.DBName = testserver.MariaDBUser, "tcp", maria, testserver.MariaDBDatabase
		config.InterpolateParams, config.DialFunc = interpolate, dial
		connector, err := mysql.NewConnector(config)
		require.NoError(t, err)
		return sql.OpenDB(connector)
	}
	config, err := pgx.ParseConfig("postgres://" + testserver.PostgresUser + "@" + pg + "/postgres?sslmode=disable")
	require.NoError(t, err)
	config.DialFunc = dial
	for _, c := range []struct {
		name    string
		dialect sqllock.Dialect
		db      *sql.DB
		want    int64
	}{
		{"MySQL with interpolateParams", sqllock.MySQL, openMySQL(true), 1},
		{"MySQL", sqllock.MySQL, openMySQL(false), 3}, // prepare, execute, and close without an answer
		{"PostgreSQL", sqllock.PostgreSQL, stdlib.OpenDB(*config), 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			defer c.db.Close()
			c.db.SetMaxOpenConns(1)
			l, ctx := newLocker(t, c.db, c.dialect), t.Context()
			acquire(t, l, "held", "other", time.Hour)
			operations := []struct {
				name string
				ok   bool
				do   func() (bool, error)
			}{
				{"acquire", true, func() (bool, error) { return l.Acquire(ctx, "k", "t", time.Minute) }},
				{"acquire again", true, func() (bool, error) { return l.Acquire(ctx, "k", "t", time.Minute) }},
				{"be refused", false, func() (bool, error) { return l.Acquire(ctx, "held", "t", time.Minute) }},
				{"extend", true, func() (bool, error) { return l.Extend(ctx, "k", "t", time.Minute) }},
				{"extend, refused", false, func() (bool, error) { return l.Extend(ctx, "held", "t", time.Minute) }},
				{"release, refused", false, func() (bool, error) { return l.Release(ctx, "held", "t") }},
				{"fence", true, func() (bool, error) { _, ok, err := l.Fence(ctx, "k", "t"); return ok, err }},
				{"inspect", true, func() (bool, error) { i, err := l.Inspect(ctx, "k"); return i.Token == "t", err }},
				{"release", true, func() (bool, error) { return l.Release(ctx, "k", "t") }},
			}
			for _, o := range operations {
				// A driver prepares a statement once, and one in 64 calls of Acquire begins a sweep.
				least := int64(99)
				for range 3 {
					acquire(t, l, "k", "t", time.Minute)
					if o.name == "acquire" {
						release(t, l, "k", "t")
					}
					before := writes.Load()
					ok, err := o.do()
					least = min(least, writes.Load()-before)
					require.NoError(t, err, o.name)
					require.Equal(t, o.ok, ok, o.name)
				}
				assert.Equal(t, c.want, least, o.name)
			}
		})
	}
}
