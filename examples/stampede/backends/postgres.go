package main

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/examples/stampede/internal/stampede"
	"github.com/golockers/locker/postgres"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// The tables of the cache and of the locks. The parent creates and drops them.
const (
	cacheTable   = `CREATE UNLOGGED TABLE IF NOT EXISTS stampede_cache (key text PRIMARY KEY, value text NOT NULL, expires timestamptz NOT NULL)`
	dropTables   = `DROP TABLE IF EXISTS stampede_cache, stampede_locks`
	getValue     = `SELECT value FROM stampede_cache WHERE key = $1 AND expires > clock_timestamp()`
	setValue     = `INSERT INTO stampede_cache AS c VALUES ($1, $2, clock_timestamp() + $3::interval) ON CONFLICT (key) DO UPDATE SET value = $2, expires = excluded.expires`
	addValue     = setValue + ` WHERE c.expires <= clock_timestamp()`
	expireValue  = `UPDATE stampede_cache SET expires = clock_timestamp() WHERE key = $1`
	lockingTable = "stampede_locks"
)

// openPool connects to the database at a, once the first query needs it.
func openPool(a stampede.Address) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(a.String())
	if err != nil {
		return nil, err
	}
	config.MaxConns, config.ConnConfig.ConnectTimeout = 20, stampede.Patience
	return pgxpool.NewWithConfig(context.Background(), config)
}

func connectPostgres(a stampede.Address) (stampede.Cache, locker.Locker, error) {
	pool, err := openPool(a)
	return postgresCache{pool}, postgres.New(pool, postgres.WithTable(lockingTable)), err
}

type postgresCache struct{ pool *pgxpool.Pool }

func (c postgresCache) Get(ctx context.Context, key string) (v string, ok bool, err error) {
	err = c.pool.QueryRow(ctx, getValue, key).Scan(&v)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", false, nil
	}
	return v, err == nil, err
}

func (c postgresCache) Set(ctx context.Context, key, v string) error {
	_, err := c.pool.Exec(ctx, setValue, key, v, stampede.FreshFor)
	return err
}

func (c postgresCache) Add(ctx context.Context, key, v string) (bool, error) {
	tag, err := c.pool.Exec(ctx, addValue, key, v, stampede.FreshFor)
	return err == nil && tag.RowsAffected() > 0, err
}

// postgresServer is a database and a listener before it that counts what the fleet sends.
type postgresServer struct {
	pool     *pgxpool.Pool
	listener net.Listener
	reads    atomic.Int64
}

// openPostgres creates the tables, and returns where the fleet finds the database.
func openPostgres(ctx context.Context, a stampede.Address) (stampede.Server, stampede.Address, error) {
	pool, err := openPool(a)
	if err != nil {
		return nil, a, err
	}
	s := &postgresServer{pool: pool}
	if _, err = pool.Exec(ctx, cacheTable); err == nil {
		err = postgres.EnsureSchema(ctx, pool, postgres.WithTable(lockingTable))
	}
	if err == nil {
		s.listener, err = net.Listen("tcp", "127.0.0.1:0")
	}
	if err != nil {
		pool.Close()
		return nil, a, err
	}
	go s.serve(a.Host)
	a.Host = s.listener.Addr().String()
	return s, a, nil
}

func (s *postgresServer) serve(host string) {
	for {
		client, err := s.listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer client.Close()
			server, err := net.DialTimeout("tcp", host, stampede.Patience)
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(client, server)
				client.Close()
			}()
			_, _ = io.Copy(server, &stampede.CountingConn{Conn: client, Reads: &s.reads})
			server.Close()
		}()
	}
}

func (s *postgresServer) Expire(ctx context.Context, key string) error {
	_, err := s.pool.Exec(ctx, expireValue, key)
	return err
}

func (s *postgresServer) Requests(context.Context) (int64, error) { return s.reads.Load(), nil }

func (s *postgresServer) Close() {
	s.listener.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_, _ = s.pool.Exec(ctx, dropTables)
	s.pool.Close()
}
