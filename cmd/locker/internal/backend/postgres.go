package backend

import (
	"context"
	"errors"
	"net/url"
	"strings"

	"github.com/golockers/locker"
	"github.com/golockers/locker/postgres"
	"github.com/jackc/pgx/v5/pgxpool"
)

var postgresScheme = scheme{
	names: []string{"postgres", "postgresql"},
	form:  "postgres://[user:password@]host:5432[,host:5432]/database",
	explains: "A PostgreSQL primary, in the table of the option table=locker_locks, which create=true\n" +
		"creates. postgresql:// is the same. Options for TLS: sslmode=verify-full, ca=FILE,\n" +
		"cert=FILE and key=FILE. What is not in the URL comes from PGUSER and the like.",
	open: func(a *address) (locker.Locker, func() error, error) {
		query := url.Values{}
		for option, name := range map[string]string{"sslmode": "sslmode", "ca": "sslrootcert", "cert": "sslcert", "key": "sslkey"} {
			if value := a.text(option); value != "" {
				query.Set(name, value)
			}
		}
		if a.path == "" {
			a.fail(errors.New("no database after the hosts"))
		}
		servers, timeout, table, create := a.servers("5432"), a.timeout(), a.text("table"), a.boolean("create")
		if err := a.check(); err != nil {
			return nil, nil, err
		}
		u := url.URL{Scheme: "postgres", Host: strings.Join(servers, ","), Path: a.path, RawQuery: query.Encode()}
		config, err := pgxpool.ParseConfig(u.String()) // without the password, so no error contains it
		if err != nil {
			return nil, nil, err
		}
		if a.user != "" {
			config.ConnConfig.User = a.user
		}
		if a.password != "" {
			config.ConnConfig.Password = a.password
		}
		config.ConnConfig.ConnectTimeout = timeout
		config.MaxConns, config.MinConns = int32(min(a.connections, 1000)), 0
		pool, err := pgxpool.NewWithConfig(context.Background(), config)
		if err != nil {
			return nil, nil, err
		}
		if create {
			ctx, cancel := context.WithTimeout(context.Background(), 2*timeout)
			defer cancel()
			if err := postgres.EnsureSchema(ctx, pool, postgres.WithTable(table)); err != nil {
				pool.Close()
				return nil, nil, &UnavailableError{err}
			}
		}
		return postgres.New(pool, postgres.WithTable(table)), func() error { pool.Close(); return nil }, nil
	},
}
