package postgres

import (
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// tunedConnectTimeout is as long as a Locker waits for an answer.
const tunedConnectTimeout = 5 * time.Second

// Tuned returns a copy of c with the settings that locks need, wherever c leaves the default of pgx: to
// connect takes at most five seconds (ConnectTimeout). By default it may take two minutes, and during
// that time a connection to a server that hangs has a place in the pool, so calls fail for as long even
// if the server is back. Fields that are set keep their values.
//
//	config, err := pgxpool.ParseConfig("postgres://user@localhost:5432/app")
//	…
//	pool, err := pgxpool.NewWithConfig(ctx, postgres.Tuned(config))
//	…
//	l := postgres.New(pool)
//
// Give locks a pool of their own: a lock must not wait behind large reads.
func Tuned(c *pgxpool.Config) *pgxpool.Config {
	t := c.Copy()
	if t.ConnConfig.ConnectTimeout == 0 {
		t.ConnConfig.ConnectTimeout = tunedConnectTimeout
	}
	return t
}
