package postgres

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/puddle/v2"

	"github.com/golockers/locker/internal/misuse"
)

var errNoPool = misuse.New("postgres: nil pool")

// SQLSTATEs of errors.
const (
	serializationFailure = "40001"
	undefinedTable       = "42P01"
	undefinedColumn      = "42703"
	undefinedSchema      = "3F000"
	readOnly             = "25006"
	noPrepared           = "26000"
	duplicatePrepared    = "42P05"
	duplicateTable       = "42P07"
	duplicateObject      = "42710"
	uniqueViolation      = "23505"
)

func codeOf(err error) string {
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		return refused.Code
	}
	return ""
}

// isRefused reports whether err is the server's answer to a statement. An error that ends the session
// is none: an administrator or a shutdown did that, perhaps after the statement took effect. Nor is
// one of a connection that was not made, or of a pooler that has lost its own.
func isRefused(err error) bool {
	if errors.As(err, new(*pgconn.ConnectError)) {
		return false
	}
	code := codeOf(err)
	return code != "" && !strings.HasPrefix(code, "57P") && !strings.HasPrefix(code, "08")
}

// isUnserializable reports whether a statement did nothing because the row changed under it. That
// happens when transactions are repeatable read or serializable by default.
func isUnserializable(err error) bool { return codeOf(err) == serializationFailure }

// isDuplicate reports whether a statement created what another one has just created.
func isDuplicate(err error) bool {
	switch codeOf(err) {
	case duplicateTable, duplicateObject, uniqueViolation:
		return true
	}
	return false
}

// explain adds what to do about an error.
func (l *Locker) explain(err error) error {
	if explained, ok := err.(noWindows); ok {
		return explained.error
	}
	switch codeOf(err) {
	case undefinedTable, undefinedSchema:
		return fmt.Errorf("there is no table %s; call postgres.EnsureSchema, or run postgres.Schema: %w", l.table, err)
	case undefinedColumn:
		return fmt.Errorf("the table %s is not one that postgres.EnsureSchema has created: %w", l.table, err)
	case readOnly:
		return fmt.Errorf("the server (a standby perhaps) or the session is read-only: %w", err)
	case noPrepared, duplicatePrepared:
		return fmt.Errorf("a pooler changes the session between two statements; use postgres.WithoutPreparing: %w", err)
	}
	return err
}

// isClosed reports whether err means that the pool was closed.
func isClosed(err error) bool { return errors.Is(err, puddle.ErrClosedPool) }
