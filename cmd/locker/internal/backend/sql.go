package backend

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/golockers/locker"
	"github.com/golockers/locker/sqllock"
	_ "modernc.org/sqlite"
)

var mysqlScheme = scheme{
	names: []string{"mysql"},
	form:  "mysql://[user:password@]host:3306/database",
	explains: "A MySQL or MariaDB primary, in the table of the option table=locker_locks, which create=true\n" +
		"creates. Options for TLS: tls=true, and those of rediss.",
	open: func(a *address) (locker.Locker, func() error, error) {
		if a.path == "" {
			a.fail(errors.New("no database after the host"))
		}
		config := mysql.NewConfig()
		config.Net, config.Addr, config.DBName = "tcp", a.server("3306"), a.path
		config.User, config.Passwd = a.user, a.password
		config.InterpolateParams = true // or each operation takes two requests
		config.Logger = &mysql.NopLogger{}
		config.TLS = a.tlsConfig(a.boolean("tls"))
		timeout, table, create := a.timeout(), a.text("table"), a.boolean("create")
		config.Timeout = timeout
		if err := a.check(); err != nil {
			return nil, nil, err
		}
		connector, err := mysql.NewConnector(config)
		if err != nil {
			return nil, nil, errors.New("the driver refuses these options") // its error may contain the password
		}
		db := sql.OpenDB(connector)
		db.SetMaxOpenConns(a.connections)
		db.SetMaxIdleConns(a.connections)
		return openSQL(db, sqllock.MySQL, table, create, timeout)
	},
}

var sqliteScheme = scheme{
	names: []string{"sqlite"},
	form:  "sqlite:///path/of/file.db",
	explains: "A SQLite file, for processes of one machine, in the table of the option table=locker_locks,\n" +
		"which create=true creates, with the file. sqlite://file.db is in the current directory.",
	open: func(a *address) (locker.Locker, func() error, error) {
		file := strings.Join(a.hosts, ",")
		if a.path != "" {
			file += "/" + a.path
		}
		if a.user != "" || a.password != "" || a.inURL {
			a.fail(errors.New("SQLite has no users and passwords"))
		}
		if file == "" {
			a.fail(errors.New("no file"))
		}
		timeout, table, create := a.timeout(), a.text("table"), a.boolean("create")
		if err := a.check(); err != nil {
			return nil, nil, err
		}
		query := url.Values{
			"mode": {"rw"},
			"_pragma": {
				fmt.Sprintf("busy_timeout(%d)", max(timeout, time.Second).Milliseconds()),
				"journal_mode(WAL)", "synchronous(NORMAL)",
			},
		}
		if create {
			query.Set("mode", "rwc")
		}
		db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: file}).EscapedPath()+"?"+query.Encode())
		if err != nil {
			return nil, nil, err
		}
		return openSQL(db, sqllock.SQLite, table, create, timeout)
	},
}

func openSQL(db *sql.DB, d sqllock.Dialect, table string, create bool, timeout time.Duration) (
	locker.Locker, func() error, error) {
	l := sqllock.New(db, d, sqllock.WithTable(table))
	if create {
		ctx, cancel := context.WithTimeout(context.Background(), 2*timeout)
		defer cancel()
		if err := l.EnsureSchema(ctx); err != nil {
			_ = db.Close()
			return nil, nil, &UnavailableError{err}
		}
	}
	return l, db.Close, nil
}
