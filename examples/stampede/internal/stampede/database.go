package stampede

import (
	"cmp"
	"context"
	"database/sql"
	"net/url"
	"path/filepath"
	"time"

	"github.com/ncruces/go-sqlite3"
	_ "github.com/ncruces/go-sqlite3/driver" // the driver "sqlite3"
	_ "github.com/ncruces/go-sqlite3/embed"  // SQLite itself
	"github.com/tetratelabs/wazero"
)

// database is the source of the values: a SQLite file that all processes open. The driver is one that
// compiles fast.
type database struct{ db *sql.DB }

// CompiledIn, if it is not empty, is a directory that keeps the compiled SQLite for other fleets. It is
// for tests: the race detector makes the compilation take many seconds.
var CompiledIn string

func openDatabase(path string) (*database, error) {
	// The first process compiles SQLite for this machine, the others find it beside the database.
	compiled, err := wazero.NewCompilationCacheWithDir(cmp.Or(CompiledIn, filepath.Dir(path)))
	if err != nil {
		return nil, err
	}
	sqlite3.RuntimeConfig = wazero.NewRuntimeConfig().WithMemoryLimitPages(512).WithCompilationCache(compiled)
	file := url.URL{Scheme: "file", Path: path, RawQuery: "_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)"}
	db, err := sql.Open("sqlite3", file.String())
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(8)
	db.SetMaxIdleConns(8)
	return &database{db}, nil
}

func (d *database) create(ctx context.Context) error {
	_, err := d.db.ExecContext(ctx, `CREATE TABLE items (key TEXT PRIMARY KEY, value TEXT NOT NULL)`)
	return err
}

func (d *database) set(ctx context.Context, key, value string) error {
	_, err := d.db.ExecContext(ctx, `INSERT INTO items VALUES (?, ?)
		ON CONFLICT (key) DO UPDATE SET value = excluded.value`, key, value)
	return err
}

// query is the slow query that the cache is there to save: it takes the given time on top of its own.
func (d *database) query(ctx context.Context, key string, takes time.Duration) (value string, err error) {
	err = d.db.QueryRowContext(ctx, `SELECT value FROM items WHERE key = ?`, key).Scan(&value)
	if err != nil {
		return "", err
	}
	select {
	case <-time.After(takes):
		return value, nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

func (d *database) close() error { return d.db.Close() }
