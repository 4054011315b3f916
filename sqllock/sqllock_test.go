package sqllock

import (
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/undo"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var errCause = errors.New("cause")

// stateError is an error of a driver of PostgreSQL.
type stateError string

func (e stateError) Error() string    { return "SQLSTATE " + string(e) }
func (e stateError) SQLState() string { return string(e) }

// A statement is sent three times at most, and again only if it certainly did nothing.
func TestRepeats(t *testing.T) {
	deadlock := errors.New("Error 1213 (40001): Deadlock found when trying to get lock; try restarting transaction")
	timeout := errors.New("Error 1205 (HY000): Lock wait timeout exceeded; try restarting transaction")
	changed := errors.New("Error 1020 (HY000): Record has changed since last read in table 'locker_locks'")
	for name, c := range map[string]struct {
		dialect Dialect
		answers []any
		sent    int
		ok      bool
		err     error
	}{
		"granted":                {MySQL, []any{int64(1)}, 1, true, nil},
		"refused":                {MySQL, []any{int64(0)}, 1, false, nil},
		"a deadlock":             {MySQL, []any{deadlock, int64(1)}, 2, true, nil},
		"two deadlocks":          {MySQL, []any{deadlock, deadlock, int64(1)}, 3, true, nil},
		"deadlocks":              {MySQL, []any{deadlock}, 3, false, deadlock},
		"a changed record":       {MySQL, []any{changed, int64(0)}, 2, false, nil},
		"a lock wait timeout":    {MySQL, []any{timeout}, 1, false, timeout},
		"any other error":        {MySQL, []any{fmt.Errorf("in Error 1213: %w", errCause)}, 1, false, errCause},
		"a serialization":        {PostgreSQL, []any{stateError("40001"), stateError("40P01"), int64(1)}, 3, true, nil},
		"an ambiguous commit":    {PostgreSQL, []any{stateError("40003")}, 1, false, stateError("40003")},
		"a broken connection":    {PostgreSQL, []any{driver.ErrBadConn, int64(1)}, 2, true, nil},
		"broken connections":     {PostgreSQL, []any{driver.ErrBadConn}, 3, false, driver.ErrBadConn},
		"a dialect's own errors": {Dialect{SQL: mysqlSQL, Undone: func(err error) bool { return err == errCause }}, []any{errCause, int64(1)}, 2, true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fake{answers: c.answers}
			c.dialect.SQL += "\n-- name: check\n" // none
			ok, err := New(f.open(t), c.dialect).Acquire(t.Context(), "k", "t", time.Second)
			require.Equal(t, c.ok, ok)
			require.ErrorIs(t, err, c.err)
			require.Len(t, f.sent, c.sent)
			if c.sent == attempts && !errors.Is(err, driver.ErrBadConn) {
				require.Equal(t, []sql.IsolationLevel{sql.LevelReadCommitted}, f.levels)
			} else {
				require.Empty(t, f.levels)
			}
		})
	}
}

// What is wrong with a setting is an error, before the first statement and when one has failed.
func TestCheck(t *testing.T) {
	d := Dialect{SQL: mysqlSQL + "\n-- name: check\nSELECT complaint\n"}
	f := &fake{answers: []any{int64(7)}} // a complaint
	_, err := New(f.open(t), d).Acquire(t.Context(), "k", "t", time.Second)
	require.EqualError(t, err, "sqllock: 7")
	require.True(t, undo.IsNeedless(err))
	require.Equal(t, []string{"SELECT complaint"}, f.sent)

	f = &fake{answers: []any{int64(0), int64(1), errCause, int64(8)}}
	l := New(f.open(t), d)
	ok, err := l.Acquire(t.Context(), "k", "t", time.Second)
	require.NoError(t, err)
	require.True(t, ok)
	ok, err = l.Acquire(t.Context(), "k", "t", time.Second)
	require.ErrorContains(t, err, "sqllock: 8")
	require.False(t, undo.IsNeedless(err), "the statement was sent")
	require.ErrorIs(t, err, errCause)
	require.False(t, ok)
}

func TestMissingTable(t *testing.T) {
	for d, cause := range map[*Dialect]error{
		&MySQL: errors.New("Error 1146 (42S02): Table 'app.locker_locks' doesn't exist"), &PostgreSQL: stateError("42P01"),
	} {
		f := &fake{answers: []any{cause}}
		_, err := New(f.open(t), *d).Acquire(t.Context(), "k", "t", time.Second)
		require.ErrorContains(t, err, "there is no table")
		require.ErrorIs(t, err, cause)
	}
}

// A ttl is never cut off.
func TestRounding(t *testing.T) {
	f := &fake{answers: []any{int64(1)}}
	l := New(f.open(t), MySQL)
	for ttl, want := range map[time.Duration]int64{
		time.Millisecond: 1000, time.Millisecond + 1: 1001, 2*time.Millisecond - 1: 2000, time.Hour: 3_600_000_000,
	} {
		require.Equal(t, want, microseconds(ttl), ttl)
	}
	for _, ttl := range []time.Duration{0, -1, time.Millisecond - 1} {
		_, err := l.Acquire(t.Context(), "k", "t", ttl)
		require.ErrorIs(t, err, locker.ErrInvalidTTL)
		_, err = l.Extend(t.Context(), "k", "t", ttl)
		require.ErrorIs(t, err, locker.ErrInvalidTTL)
	}
	require.Empty(t, f.sent)
}

// failures calls each operation, all of which must fail.
func failures(t *testing.T, l *Locker) (errs []error) {
	t.Helper()
	ok, err := l.Acquire(t.Context(), "k", "t", time.Minute)
	assert.False(t, ok)
	errs = append(errs, err)
	ok, err = l.Extend(t.Context(), "k", "t", time.Minute)
	assert.False(t, ok)
	errs = append(errs, err)
	ok, err = l.Release(t.Context(), "k", "t")
	assert.False(t, ok)
	errs = append(errs, err)
	_, ok, err = l.Fence(t.Context(), "k", "t")
	assert.False(t, ok)
	errs = append(errs, err)
	_, err = l.Inspect(t.Context(), "k")
	errs = append(errs, err, l.EnsureSchema(t.Context()))
	for _, err := range l.List(t.Context(), "k") {
		errs = append(errs, err)
	}
	require.Len(t, errs, 7)
	return errs
}

func TestInvalid(t *testing.T) {
	for _, err := range failures(t, New(nil, MySQL)) {
		require.ErrorIs(t, err, errNoDB)
		require.ErrorIs(t, err, locker.ErrInvalidLocker)
	}
	db := new(fake).open(t)
	for _, name := range []string{
		".", "a.", ".a", "a.b.c", "a\x00", strings.Repeat("x", longestName+1), "s." + strings.Repeat("x", longestName+1),
	} {
		for _, err := range failures(t, New(db, MySQL, WithTable(name))) {
			require.ErrorContains(t, err, "sqllock: invalid table name", name)
			require.ErrorIs(t, err, locker.ErrInvalidLocker)
		}
		require.Empty(t, Schema(MySQL, WithTable(name)))
	}
	for _, err := range failures(t, New(db, Dialect{})) {
		require.EqualError(t, err, `sqllock: the dialect "" has no statement schema`)
	}
}

func TestDialect(t *testing.T) {
	d := Dialect{Name: "X", Quote: "`", SQL: `
-- Comments before the first name,
-- name: schema
CREATE TABLE {table} (a, b);
-- name: acquire
INSERT INTO {table} -- not a comment of the file
VALUES (:key, :token, {end}, :key::bytea)
-- and between lines, are left out. {unknown}
-- name: end
{now} + :ttl
-- name: now
NOW()
-- name: extend
e
-- name: release
r
-- name: inspect
i
`}
	statements, err := d.statements("`:key {now} ?`")
	require.NoError(t, err)
	require.Equal(t, statement{text: "CREATE TABLE `:key {now} ?` (a, b)"}, statements["schema"])
	want := statement{
		"INSERT INTO `:key {now} ?` -- not a comment of the file\nVALUES (?, ?, NOW() + ?, ?::bytea)",
		[]string{"key", "token", "ttl", "key"},
	}
	require.Equal(t, want, statements["acquire"])
	require.Equal(t, []any{1, 2, 3, 1}, want.args(parameters{"key": 1, "token": 2, "ttl": 3}))
	d.Bind = PostgreSQL.Bind
	statements, err = d.statements("t")
	require.NoError(t, err)
	require.Equal(t, statement{
		"INSERT INTO t -- not a comment of the file\nVALUES ($1, $2, NOW() + $3, $1::bytea)", []string{"key", "token", "ttl"},
	}, statements["acquire"])

	quoted, err := d.quote("my `schema`.\"t\"")
	require.NoError(t, err)
	require.Equal(t, "`my ``schema```.`\"t\"`", quoted)

	_, err = Dialect{Name: "X", SQL: strings.Replace(d.SQL, "{end}", "{ende}", 1)}.statements("t")
	require.EqualError(t, err, `sqllock: the dialect "X" has no text for {ende} in acquire`)

	// Without the optional statements the others work.
	f := &fake{answers: []any{int64(1)}}
	l := New(f.open(t), d)
	_, ok, err := l.Fence(t.Context(), "k", "t")
	require.False(t, ok)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	for _, err := range l.List(t.Context(), "") {
		require.ErrorIs(t, err, errors.ErrUnsupported)
	}
	for range 2 * sweepEvery {
		ok, err := l.Acquire(t.Context(), "k", "t", time.Second)
		require.NoError(t, err)
		require.True(t, ok)
	}
	require.Len(t, f.sent, 2*sweepEvery)
}

// What a user's file must not have by mistake: the three dialects are complete.
func TestDialectsAreComplete(t *testing.T) {
	for _, d := range []Dialect{MySQL, SQLite, PostgreSQL} {
		statements, err := d.statements("t")
		require.NoError(t, err)
		for _, name := range []string{"fence", "list", "sweep"} {
			require.NotEmpty(t, statements[name].text, "%s: %s", d.Name, name)
		}
	}
}

// A database that does not answer is an error that is not the end of the caller's context.
func TestNoAnswer(t *testing.T) {
	require.ErrorIs(t, errNoAnswer, os.ErrDeadlineExceeded)
}

// One in 64 locks that are taken begins a sweep, wherever a process begins to count.
func TestSweepsNowAndThen(t *testing.T) {
	f := &fake{answers: []any{int64(1)}}
	d := MySQL
	d.SQL += "\n-- name: check\n" // none
	l := New(f.open(t), d)
	sweeps := func() (n int) {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, text := range f.sent {
			if strings.HasPrefix(text, "DELETE ") {
				n++
			}
		}
		return n
	}
	for round := range 3 {
		for range sweepEvery {
			ok, err := l.Acquire(t.Context(), "k", "t", time.Second)
			require.NoError(t, err)
			require.True(t, ok)
		}
		require.Eventually(t, func() bool { return sweeps() == round+1 }, 30*time.Second, time.Millisecond)
	}
}

// Only what can be a fencing number is left in the table of Guard.
func TestGuardRefusesOtherNumbers(t *testing.T) {
	for _, fence := range []uint64{0, 1 << 63, math.MaxUint64} {
		err := Guard(t.Context(), nil, MySQL, "k", fence)
		assert.ErrorContains(t, err, `guard "k": `+strconv.FormatUint(fence, 10)+" is no fencing number")
	}
}
