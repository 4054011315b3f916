package sqllock

// What errors of drivers mean, and what to do about them.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"

	"github.com/golockers/locker/internal/misuse"
)

var (
	errNoDB     = misuse.New("sqllock: nil database")
	errNoAnswer = fmt.Errorf("no answer within %v: %w", ioTimeout, os.ErrDeadlineExceeded)
)

// stateOf returns the SQLSTATE of an error of a driver that tells it, as those of PostgreSQL do.
func stateOf(err error) string {
	var e interface{ SQLState() string }
	if errors.As(err, &e) {
		return e.SQLState()
	}
	return ""
}

// isUndone reports whether the database has undone a statement because of others that ran at the same
// time: by a serialization failure or a deadlock.
func (l *Locker) isUndone(err error) bool {
	if l.dialect.Undone != nil {
		return err != nil && l.dialect.Undone(err)
	}
	state := stateOf(err)
	return state == "40001" || state == "40P01"
}

// The drivers' errors have a number but no method for it. 1213 is a deadlock, or a transaction that
// another node of a cluster has refused; 1020 is MariaDB's serialization failure.
var undoneByMySQL = regexp.MustCompile(`(?i)^error (1213|1020)\b`)

func isUndoneByMySQL(err error) bool { return undoneByMySQL.MatchString(err.Error()) }

// isMissing reports whether a statement failed because there is no such table.
func isMissing(err error) bool {
	state, text := stateOf(err), strings.ToLower(err.Error())
	return state == "42P01" || state == "3F000" ||
		strings.Contains(text, "error 1146") || strings.Contains(text, "no such table")
}

// explain adds what to do about an error of a statement.
func (l *Locker) explain(ctx context.Context, q querier, err error) error {
	if isMissing(err) {
		return fmt.Errorf("there is no table %s; call EnsureSchema, or run sqllock.Schema: %w", l.table, err)
	}
	// The settings of this connection may be others than those of the first.
	if wrong, _ := l.check(ctx, q); wrong != nil {
		return fmt.Errorf("%w: %w", wrong, err)
	}
	return err
}
