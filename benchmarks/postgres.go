package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/postgres"
	"github.com/jackc/pgx/v5/pgxpool"
)

var postgresLocks = []contender{
	ours("postgres", newPostgres),
	ours("postgres+cohort", newPostgres),
	{"row-lease-1ms", false, rowLease},
	{"advisory-pinned", false, advisoryLock},
}

func newPostgres(j job) (locker.Locker, error) {
	pool, err := pgxPool(j.Postgres)
	return postgres.New(pool), err
}

// runPostgres starts a server that writes every commit to its disk.
func runPostgres(ctx context.Context, b *bench) error {
	pool, err := b.openPostgres(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	if _, err := pool.Exec(ctx, naiveTable); err != nil {
		return err
	}
	if err := b.takeTurns(ctx, "postgres", lockScenarios, postgresLocks, nil); err != nil {
		return err
	}
	return b.refusals(ctx, pool)
}

// openPostgres starts the server if there is none yet.
func (b *bench) openPostgres(ctx context.Context) (*pgxpool.Pool, error) {
	if b.postgres == "" {
		addr, err := b.host.start(testserver.Postgres, "-c", "fsync=on")
		if err != nil {
			return nil, err
		}
		b.postgres = "postgres://" + testserver.PostgresUser + "@" + addr + "/postgres?sslmode=disable"
	}
	pool, err := pgxPool(b.postgres)
	if err != nil {
		return nil, err
	}
	return pool, postgres.EnsureSchema(ctx, pool)
}

func pgxPool(url string) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = connections
	return pgxpool.NewWithConfig(context.Background(), config)
}

const (
	naiveTable = `CREATE TABLE naive (name text PRIMARY KEY, token text NOT NULL, expires timestamptz NOT NULL)`

	naiveTry = `INSERT INTO naive VALUES ($1, $2, now() + $3::interval)
		ON CONFLICT (name) DO UPDATE SET token = excluded.token, expires = excluded.expires WHERE naive.expires < now()`

	naiveRelease = `DELETE FROM naive WHERE name = $1 AND token = $2`
)

// rowLease is the usual hand-written lock in a table.
func rowLease(j job) (lock, error) {
	pool, err := pgxPool(j.Postgres)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, key string) (func() error, error) {
		token := rand.Text()
		for {
			tag, err := pool.Exec(ctx, naiveTry, key, token, ttl)
			if err != nil {
				return nil, err
			}
			if tag.RowsAffected() == 1 {
				break
			}
			time.Sleep(time.Millisecond)
		}
		return func() error {
			tag, err := pool.Exec(ctx, naiveRelease, key, token)
			if err == nil && tag.RowsAffected() != 1 {
				err = errNotHeld
			}
			return err
		}, nil
	}, nil
}

// advisoryLock keeps a connection for as long as it waits and holds. It has no expiry, does not
// work behind a pooler, and two keys may share a lock.
func advisoryLock(j job) (lock, error) {
	pool, err := pgxPool(j.Postgres)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, key string) (func() error, error) {
		conn, err := pool.Acquire(ctx)
		if err != nil {
			return nil, err
		}
		if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock(hashtextextended($1, 0))", key); err != nil {
			conn.Release()
			return nil, err
		}
		return func() error {
			defer conn.Release()
			_, err := conn.Exec(ctx, "SELECT pg_advisory_unlock(hashtextextended($1, 0))", key)
			return err
		}, nil
	}, nil
}

// refusals measures attempts at a lock that another holds, and how long the holder's extensions
// take meanwhile.
func (b *bench) refusals(ctx context.Context, pool *pgxpool.Pool) error {
	l := postgres.New(pool)
	key, holder := newKey("refused"), rand.Text()
	naive := func(ctx context.Context, token string) (bool, error) {
		tag, err := pool.Exec(ctx, naiveTry, key, token, time.Hour)
		return tag.RowsAffected() == 1, err
	}
	contenders := []struct {
		name   string
		try    func(ctx context.Context, token string) (bool, error)
		extend func(ctx context.Context) error
	}{{
		"postgres",
		func(ctx context.Context, token string) (bool, error) { return l.Acquire(ctx, key, token, time.Hour) },
		func(ctx context.Context) error {
			_, err := l.Extend(ctx, key, holder, time.Hour)
			return err
		},
	}, {
		"row-lease", naive,
		func(ctx context.Context) error {
			_, err := pool.Exec(ctx, "UPDATE naive SET expires = now() + '1 hour' WHERE name = $1 AND token = $2", key, holder)
			return err
		},
	}}
	for round := range b.rounds {
		for i := range contenders {
			c := contenders[(i+round)%len(contenders)]
			s := sample{section: "postgres", scenario: "refused-8", who: c.name}
			err := b.try(ctx, s, true, func() ([]metric, error) {
				if _, err := c.try(ctx, holder); err != nil {
					return nil, err
				}
				ctx, cancel := context.WithTimeout(ctx, max(b.scaled(time.Second), 100*time.Millisecond))
				var refused, extended, extending atomic.Int64
				var errs firstOf
				var all sync.WaitGroup
				start := time.Now()
				for range 8 {
					all.Go(func() {
						token := rand.Text()
						for ctx.Err() == nil {
							ok, err := c.try(context.WithoutCancel(ctx), token)
							if ok || err != nil {
								errs.add(fmt.Errorf("%t, %w", ok, err))
								return
							}
							refused.Add(1)
						}
					})
				}
				all.Go(func() {
					for ctx.Err() == nil {
						before := time.Now()
						if err := c.extend(context.WithoutCancel(ctx)); err == nil {
							extending.Add(int64(time.Since(before)))
							extended.Add(1)
						}
						time.Sleep(5 * time.Millisecond)
					}
				})
				all.Wait()
				cancel()
				return []metric{
					{float64(refused.Load()) / time.Since(start).Seconds(), "refusals/s"},
					{milliseconds(time.Duration(extending.Load() / max(extended.Load(), 1))), "extend-ms"},
				}, errs.err
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}
