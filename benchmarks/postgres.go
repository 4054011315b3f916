package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/golockers/locker/cohort"
	"github.com/golockers/locker/postgres"
	"github.com/jackc/pgx/v5/pgxpool"
)

var postgresLocks = []contender{
	{"postgres", true, func(j job) (lock, error) {
		pool, err := pgxPool(j.Postgres)
		return with(postgres.New(pool)), err
	}},
	{"postgres+cohort", true, func(j job) (lock, error) {
		pool, err := pgxPool(j.Postgres)
		return with(cohort.New(postgres.New(pool))), err
	}},
	{"row-lease-1ms", false, rowLease},
	{"advisory-pinned", false, advisoryLock},
}

// runPostgres starts a server that writes every commit to its disk.
func runPostgres(ctx context.Context, b *bench) error {
	server, url, err := startPostgres(ctx)
	if err != nil {
		return err
	}
	defer server.close()
	pool, err := pgxPool(url)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := postgres.EnsureSchema(ctx, pool); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, naiveTable); err != nil {
		return err
	}
	b.postgres = url
	if err := b.takeTurns(ctx, "postgres", lockScenarios, postgresLocks, nil); err != nil {
		return err
	}
	return b.refusals(ctx, pool)
}

// startPostgres runs a server in a directory of its own, as another user if we are root, which it
// refuses.
func startPostgres(ctx context.Context) (*process, string, error) {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	if path, err := exec.LookPath("postgres"); err == nil {
		found = append(found, filepath.Dir(path))
	}
	if len(found) == 0 {
		return nil, "", errors.New("postgres is not installed")
	}
	bin := found[len(found)-1]
	dir, err := os.MkdirTemp("", "locker-benchmark-")
	if err != nil {
		return nil, "", err
	}
	var attributes *syscall.SysProcAttr
	if os.Getuid() == 0 {
		account, err := user.Lookup("postgres")
		if err != nil {
			return nil, "", err
		}
		uid, _ := strconv.Atoi(account.Uid)
		gid, _ := strconv.Atoi(account.Gid)
		if err := os.Chown(dir, uid, gid); err != nil {
			return nil, "", err
		}
		attributes = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	}
	data := filepath.Join(dir, "data")
	initdb := exec.CommandContext(ctx, filepath.Join(bin, "initdb"), "-D", data, "-U", "postgres", "-A", "trust", "--locale", "C")
	initdb.Dir, initdb.SysProcAttr = dir, attributes
	if output, err := initdb.CombinedOutput(); err != nil {
		os.RemoveAll(dir)
		return nil, "", fmt.Errorf("initdb: %w: %s", err, output)
	}
	for range 5 { // the port may be taken between the look and the use
		var port string
		if port, err = freePort(); err != nil {
			break
		}
		cmd := exec.Command(filepath.Join(bin, "postgres"), "-D", data, "-p", port, "-c", "listen_addresses=127.0.0.1",
			"-c", "unix_socket_directories=", "-c", "max_connections=400")
		cmd.Dir, cmd.SysProcAttr = dir, attributes
		url := "postgres://postgres@127.0.0.1:" + port + "/postgres?sslmode=disable&pool_max_conns=" + strconv.Itoa(connections)
		var p *process
		p, err = launch(ctx, cmd, dir, func() error {
			pool, err := pgxPool(url)
			if err != nil {
				return err
			}
			defer pool.Close()
			return pool.Ping(ctx)
		})
		if err == nil {
			return p, url, nil
		}
		if !errors.Is(err, errEnded) {
			break
		}
	}
	os.RemoveAll(dir)
	return nil, "", fmt.Errorf("postgres does not start: %w", err)
}

func pgxPool(url string) (*pgxpool.Pool, error) { return pgxpool.New(context.Background(), url) }

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
			if !b.match.MatchString(s.name()) {
				continue
			}
			if _, err := c.try(ctx, holder); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(ctx, max(b.scaled(time.Second), 100*time.Millisecond))
			var refused, extended, extending atomic.Int64
			var all sync.WaitGroup
			start := time.Now()
			for range 8 {
				all.Go(func() {
					token := rand.Text()
					for ctx.Err() == nil {
						ok, err := c.try(context.WithoutCancel(ctx), token)
						if ok || err != nil {
							b.errs = append(b.errs, fmt.Errorf("%s: %t, %w", s.name(), ok, err))
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
			s.metrics = []metric{
				{float64(refused.Load()) / time.Since(start).Seconds(), "refusals/s"},
				{milliseconds(time.Duration(extending.Load() / max(extended.Load(), 1))), "extend-ms"},
			}
			if err := b.record(s); err != nil {
				return err
			}
		}
	}
	return nil
}
